"""Drawings of plans: what they show, that nothing overlaps, and that large plans are drawn too."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from xml.etree import ElementTree

import pytest

from composer import draw, either, maybe, otherwise, race, sleep, step, wait_for_event, when, workflow
from composer.core.plan import Plan
from composer.draw.graph import edges, layers
from composer.draw.layout import arrange, crossings

SVG = "{http://www.w3.org/2000/svg}"


@step
async def number(n: int) -> int:
    """The same."""
    return n


@step
async def numbers(n: int) -> list[int]:
    """One of it."""
    return [n]


@step
async def told(n: int, each: list[int]) -> int:
    """Something."""
    return n


@workflow
def every_kind(n: int) -> int:
    """A node of each kind."""
    many = number.named("each").map(numbers(n))
    first = race(wait_for_event("go", int, timeout="2d"), sleep("90s"))
    with when(n > 3, name="large"):
        number.named("yes")(n)
    with otherwise():
        number.named("no")(n)
    return told.after(first)(n, many)


@workflow
def constant() -> int:
    """No node at all."""
    return 7


def chain(length: int) -> Plan:
    """A plan of steps one after the other."""

    @workflow
    def long(n: int) -> int:
        at = number(n)
        for _ in range(length - 1):
            at = number(at)
        return at

    return long.plan


def test_text_names_every_node_once_with_what_it_needs() -> None:
    """A line a node, layers indented, conditions, events, durations and the output's nodes beside it."""
    lines = draw.text(every_kind.plan).splitlines()
    heads = {line.split()[1]: line for line in lines[1:-2]}
    assert set(heads) == {node.name for node in every_kind.plan.nodes}
    assert "← numbers" in heads["each"]
    assert "number for every item" in heads["each"]
    assert "event go, at most 2 d" in heads["go"]
    assert "90 s" in heads["sleep"]
    assert "← large (no)" in heads["no"]
    assert "each, race (after)" in heads["told"]
    assert lines[-2] == "  returns ← told"
    indent = {name: len(line) - len(line.lstrip()) for name, line in heads.items()}
    assert indent["numbers"] < indent["each"] < indent["told"]


def test_states_of_a_run_stand_in_each_drawing() -> None:
    """Given states by node name, the text says them, Mermaid and SVG colour by them."""
    states = {node.name: "blocked" for node in every_kind.plan.nodes} | {"numbers": "completed", "each": "mapping"}
    by_name = {line.split()[1]: line for line in draw.text(every_kind.plan, states).splitlines()[1:-2]}
    assert by_name["each"].split()[2] == "mapping"
    index = every_kind.plan.index
    assert f"class n{index['numbers']} completed" in draw.mermaid(every_kind.plan, states)
    groups = ElementTree.fromstring(draw.svg(every_kind.plan, states)).findall(f"{SVG}g")
    assert groups[index["each"]].get("class") == "map running"
    assert groups[index["told"]].get("class") == "step"


def test_svg_has_a_group_a_node_and_a_path_an_edge() -> None:
    """The document is well formed, needs nothing from elsewhere, and holds every node and every edge once."""
    plan = every_kind.plan
    text = draw.svg(plan)
    root = ElementTree.fromstring(text)
    assert [group.get("class") for group in root.findall(f"{SVG}g")] == [node.kind for node in plan.nodes]
    assert len(root.findall(f"{SVG}path")) == len({(edge.source, edge.target) for edge in edges(plan)})
    assert "href" not in text
    assert "url(#tip)" in text
    assert "@import" not in text


def boxes(root: ElementTree.Element) -> list[tuple[float, float, float, float]]:
    """The sides of each node: left, top, right, bottom."""
    found: list[tuple[float, float, float, float]] = []
    for group in root.findall(f"{SVG}g"):
        corners: list[tuple[float, float]] = []
        for rect in group.findall(f"{SVG}rect"):
            x, y, w, h = (float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
            corners += [(x, y), (x + w, y + h)]
        for polygon in group.findall(f"{SVG}polygon"):
            pairs = (point.split(",") for point in polygon.attrib["points"].split())
            corners += [(float(x), float(y)) for x, y in pairs]
        across, down = zip(*corners, strict=True)
        found.append((min(across), min(down), max(across), max(down)))
    return found


def points_along(path: str) -> Iterator[tuple[float, float]]:
    """Points on an edge, close to each other."""
    start, *curves = path.removeprefix("M").split("C")
    x0, y0 = map(float, start.split())
    for curve in curves:
        x1, y1, x2, y2, x3, y3 = map(float, curve.split())
        for t in (i / 40 for i in range(41)):
            a, b, c, d = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3
            yield a * x0 + b * x1 + c * x2 + d * x3, a * y0 + b * y1 + c * y2 + d * y3
        x0, y0 = x3, y3


@workflow
def branching(n: int) -> int:
    """Branches in branches, and edges that pass several layers of them."""
    before = number.named("before")(n)
    with when(n > 3, name="large"):
        asked = wait_for_event("asked", bool, timeout="2d")
        insured = number.named("insured")(before)
        with when(asked):
            number.named("granted-under-a-name-that-goes-on-and-on")(insured)
        with otherwise():
            number.named("refused")(insured)
    with otherwise():
        plain = number.named("plain")(before)
    joined = either(insured, plain)
    with when(n > 5, name="odd"):
        extra = number.named("extra")(joined)
    each = number.named("each").map(numbers(joined))
    return told.after(maybe(extra), number.named("late")(before))(joined, each)


@pytest.mark.parametrize("plan", [every_kind.plan, branching.plan], ids=["every-kind", "branching"])
def test_no_edge_of_an_svg_runs_behind_a_node(plan: Plan) -> None:
    """Edges touch nodes at their upper and lower sides only."""
    root = ElementTree.fromstring(draw.svg(plan))
    for path in root.findall(f"{SVG}path"):
        for x, y in points_along(path.attrib["d"]):
            assert not any(
                left + 1 < x < right - 1 and top + 1 < y < bottom - 1 for left, top, right, bottom in boxes(root)
            ), path.attrib["d"]


def test_svg_has_its_colours_for_viewers_that_know_no_variables() -> None:
    """Every colour stands where it is used: librsvg and Inkscape would paint what a variable names black."""
    assert "var(" not in draw.svg(every_kind.plan)


def test_wide_letters_have_room() -> None:
    """Capitals, which are wider than other letters, fit the node of their name."""

    @workflow
    def shouting(n: int) -> int:
        return number.named("WWWWMMMMWWWWMMMM")(n)

    ((left, _, right, _),) = boxes(ElementTree.fromstring(draw.svg(shouting.plan)))
    # In 13 px, where a W is about as wide as it is high.
    assert right - left > 16 * 0.95 * 13


def test_svg_and_mermaid_quote_what_conditions_say() -> None:
    """A condition over marks of the two languages stays text in both."""

    @workflow
    def quoting(text: str) -> int:
        with when(text == '</title><script>"&#', name="odd"):
            inside = number.named("inside")(1)
        with otherwise():
            other = number.named("other")(2)
        return either(inside, other)

    plan = quoting.plan
    root = ElementTree.fromstring(draw.svg(plan))
    assert root.find(f".//{SVG}script") is None
    assert any("<script>" in (title.text or "") for title in root.iter(f"{SVG}title"))
    label = draw.mermaid(plan).splitlines()[1 + plan.index["odd"]]
    assert "<" not in label
    assert label.count('"') == 2


@pytest.mark.parametrize("plan", [constant.plan, chain(1), chain(14)], ids=["none", "one", "deep"])
def test_small_and_deep_plans_are_drawn(plan: Plan) -> None:
    """A plan without nodes says so; a deep one numbers its layers instead of indenting them off the screen."""
    text = draw.text(plan)
    assert max(map(len, text.splitlines())) < 80
    assert ("no nodes" in text) is (not plan.nodes)
    assert len(ElementTree.fromstring(draw.svg(plan)).findall(f"{SVG}g")) == len(plan.nodes)


@pytest.mark.parametrize("seed", range(12))
def test_nothing_overlaps(seed: int) -> None:
    """In random graphs no two neighbours of a layer touch, and all is within the width."""
    dice = random.Random(seed)
    links: list[tuple[int, int]] = []
    depth: list[int] = []
    for item in range(40):
        sources = dice.sample(range(item), min(item, dice.randrange(4)))
        links += [(source, item) for source in sources]
        depth.append(max((depth[source] + 1 for source in sources), default=0))
    widths = [dice.uniform(60, 200) for _ in depth]
    made = arrange(depth, links, widths, gap=10)
    for layer in set(depth):
        row = sorted((i for i, each in enumerate(depth) if each == layer), key=lambda i: made.x[i])
        for one, other in itertools.pairwise(row):
            assert made.x[other] - made.x[one] >= (widths[one] + widths[other]) / 2 + 10 - 1e-6
    assert min(x - width / 2 for x, width in zip(made.x, widths, strict=True)) >= -1e-6
    assert max(x + width / 2 for x, width in zip(made.x, widths, strict=True)) <= made.width + 1e-6


def test_crossings_are_counted() -> None:
    """Two edges cross when their ends are in opposite orders; edges that share an end do not."""
    assert crossings([[0, 1], [2, 3]], [[3], [2], [], []]) == 1
    assert crossings([[0, 1], [3, 2]], [[3], [2], [], []]) == 0
    assert crossings([[0, 1], [2]], [[2], [2], []]) == 0


def test_two_crossed_wires_are_uncrossed() -> None:
    """What two items need in the opposite order is put in theirs."""
    made = arrange([0, 0, 1, 1], [(0, 3), (1, 2)], [50, 50, 50, 50])
    assert (made.x[0] < made.x[1]) is (made.x[3] < made.x[2])


def test_the_largest_plan_is_drawn_in_seconds() -> None:
    """2,000 nodes of which each needs the first: long edges without end, and still a drawing."""
    count = 2_000
    depth = list(range(count))
    links = [(0, i) for i in range(1, count)] + [(i, i + 1) for i in range(1, count - 1)]
    began = time.monotonic()
    made = arrange(depth, links, [100.0] * count)
    assert time.monotonic() - began < 10
    assert len(made.routes) == len(set(links))
    assert layers(chain(50)) == list(range(50))
