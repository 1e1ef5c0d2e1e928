"""Where things stand in a drawing: layers from above to below, as few crossings as simple means reach, no overlaps.

An edge over several layers gets a place in each of them, so that it goes around what stands there. Orders come from
medians of the neighbours, swept down and up; of all the orders met the one with the fewest crossings is kept.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_SWEEPS: Final = 8
_MOST_BENDS: Final = 4_000
"""Places kept free for long edges. Beyond them an edge goes straight: the drawing is a thicket anyway."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The centre of each item across (`x`), and for each edge the points it goes through, as (layer, x).

    `width` is how far it all reaches, from 0.
    """

    x: Sequence[float]
    routes: Mapping[tuple[int, int], Sequence[tuple[int, float]]]
    width: float


def arrange(
    layer: Sequence[int], links: Sequence[tuple[int, int]], widths: Sequence[float], *, gap: float = 28, bend: float = 6
) -> Layout:
    """Places items, each in its layer and as wide as it is, so that links from above to below cross little.

    `gap` is kept free between neighbours; `bend` is the width of an edge that passes through a layer.
    """
    count = len(layer)
    if not count:
        return Layout([], {}, 0)
    layers = list(layer)
    sizes = list(widths)
    chains: dict[tuple[int, int], list[int]] = {}
    segments: list[tuple[int, int]] = []
    for link in sorted(dict.fromkeys(links), key=lambda link: layer[link[1]] - layer[link[0]]):
        source, target = link
        between = range(layer[source] + 1, layer[target])
        chain = [source]
        if len(sizes) - count + len(between) <= _MOST_BENDS:
            for each in between:
                chain.append(len(sizes))
                layers.append(each)
                sizes.append(bend)
        chain.append(target)
        chains[link] = chain
        segments += itertools.pairwise(chain)
    rows: list[list[int]] = [[] for _ in range(max(layers) + 1)]
    for item, at in enumerate(layers):
        rows[at].append(item)
    above: list[list[int]] = [[] for _ in sizes]
    below: list[list[int]] = [[] for _ in sizes]
    for one, other in segments:
        above[other].append(one)
        below[one].append(other)
    rows = _ordered(rows, above, below)
    x = _placed(rows, above, below, sizes, gap)
    routes = {link: [(layers[each], x[each]) for each in chain] for link, chain in chains.items()}
    return Layout(x[:count], routes, max(x[i] + sizes[i] / 2 for i in range(len(sizes))))


def _ordered(rows: list[list[int]], above: list[list[int]], below: list[list[int]]) -> list[list[int]]:
    best, fewest = [list(row) for row in rows], crossings(rows, below)
    for sweep in range(_SWEEPS):
        if not fewest:
            break
        down = sweep % 2 == 0
        near = above if down else below
        place = {item: i for row in rows for i, item in enumerate(row)}
        for row in rows if down else reversed(rows):
            # What has no neighbour keeps its place, as sorting by medians is stable.
            row.sort(key=lambda item: _median([place[n] for n in near[item]], place[item]))
            place.update((item, i) for i, item in enumerate(row))
        now = crossings(rows, below)
        if now < fewest:
            best, fewest = [list(row) for row in rows], now
    return best


def _median(places: list[int], otherwise: float) -> float:
    if not places:
        return otherwise
    places.sort()
    middle = len(places) // 2
    return places[middle] if len(places) % 2 else (places[middle - 1] + places[middle]) / 2


def crossings(rows: Sequence[Sequence[int]], below: Sequence[Sequence[int]]) -> int:
    """How many pairs of edges cross, between each row and the next."""
    place = {item: i for row in rows for i, item in enumerate(row)}
    found = 0
    for row in rows:
        seen: list[int] = []
        for item in row:
            ends = sorted(place[n] for n in below[item])
            found += sum(len(seen) - bisect_right(seen, end) for end in ends)
            for end in ends:
                insort(seen, end)
    return found


def _placed(
    rows: list[list[int]], above: list[list[int]], below: list[list[int]], sizes: list[float], gap: float
) -> list[float]:
    x = [0.0] * len(sizes)
    for row in rows:
        at = 0.0
        for item in row:
            x[item] = at + sizes[item] / 2
            at += sizes[item] + gap
    for sweep in range(_SWEEPS):
        near = above if sweep % 2 == 0 else below
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted = [sum(x[n] for n in near[item]) / len(near[item]) if near[item] else x[item] for item in row]
            apart = [(sizes[one] + sizes[other]) / 2 + gap for one, other in itertools.pairwise(row)]
            # Pushed apart from the left and from the right; halfway between both nothing overlaps either.
            left = list(wanted)
            for i, least in enumerate(apart, 1):
                left[i] = max(left[i], left[i - 1] + least)
            right = list(wanted)
            for i in range(len(apart) - 1, -1, -1):
                right[i] = min(right[i], right[i + 1] - apart[i])
            for item, one, other in zip(row, left, right, strict=True):
                x[item] = (one + other) / 2
    start = min(x[i] - sizes[i] / 2 for i in range(len(x)))
    return [each - start for each in x]
