"""A plan as one SVG file that needs nothing else: no font, no script, no style from elsewhere; light and dark."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias
from xml.sax.saxutils import escape

from composer.core.plan import Node, Plan
from composer.draw.graph import about, edges, layers
from composer.draw.layout import arrange
from composer.draw.mermaid import colour_of

_Point: TypeAlias = tuple[float, float]

_HEIGHT: Final = 46.0
_PITCH: Final = 96.0
_MARGIN: Final = 24.0
_TITLE: Final = 40.0
_LONGEST: Final = 34
_STACKED: Final = (0, 4, 8)
"""How far the sheets of a map are apart."""
# Colours are written where they are used, since viewers other than browsers know no CSS variables and would paint all
# black; what those make of a media query is nothing, which is right.
_STYLE: Final = """
svg{color-scheme:light dark;background:#fff}
text{font:13px ui-sans-serif,system-ui,sans-serif;fill:#1c2330} .head{font-weight:600;font-size:15px}
.soft{font-size:11px;fill:#667085} .shape{fill:#f5f7fa;stroke:#8a94a6;stroke-width:1.3}
.edge{fill:none;stroke:#8a94a6;stroke-width:1.3} .control{stroke-dasharray:5 4} .tip{fill:#8a94a6}
.word{font-size:11px;fill:#667085;paint-order:stroke;stroke:#fff;stroke-width:4px}
.sleep .shape{stroke-dasharray:3 3}
.completed .shape{fill:#d9f2e3;stroke:#1a7f4b} .failed .shape{fill:#fbe0de;stroke:#b3261e}
.running .shape{fill:#dcebfb;stroke:#1f5fa8} .waiting .shape{fill:#fdf1d3;stroke:#946200}
.skipped{opacity:.5}
@media (prefers-color-scheme:dark){svg{background:#14181f} text{fill:#e6e9ef} .soft,.word{fill:#9aa4b5} .word{stroke:#14181f}
.shape{fill:#1e2530;stroke:#7b8699} .edge{stroke:#7b8699} .tip{fill:#7b8699}
.completed .shape{fill:#143524} .failed .shape{fill:#431b19} .running .shape{fill:#15304d} .waiting .shape{fill:#3c2e0c}}
"""


def svg(plan: Plan, states: Mapping[str, str] | None = None) -> str:
    """The plan as a standalone SVG document. `states` are words for the nodes of a run, by node name."""
    states = states or {}
    depth = layers(plan)
    labels = [(_cut(node.name), _cut(about(plan, node))) for node in plan.nodes]
    widths = [_width(node.kind, *label) for node, label in zip(plan.nodes, labels, strict=True)]
    found = edges(plan)
    placed = arrange(depth, [(edge.source, edge.target) for edge in found], widths)
    title = f"workflow {plan.workflow}"
    width = max(placed.width, _text_width(title, 15)) + 2 * _MARGIN
    height = _TITLE + (max(depth, default=-1) + 1) * _PITCH - (_PITCH - _HEIGHT if depth else 0) + 2 * _MARGIN

    def y(layer: int) -> float:
        return _MARGIN + _TITLE + layer * _PITCH + _HEIGHT / 2

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'role="img" aria-label="{_safe(title, quote=True)}">',
        f"<title>{_safe(title)}</title><style>{_STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="tip" d="M0 0 8 4 0 8z"/></marker></defs>',
        f'<text class="head" x="{_MARGIN}" y="{_MARGIN + 12}">{_safe(title)}</text>',
    ]
    words: list[_Word] = []
    said: dict[tuple[int, int], list[str]] = {}
    control: dict[tuple[int, int], bool] = {}
    for edge in found:
        said.setdefault((edge.source, edge.target), []).extend([edge.word] if edge.word else [])
        control[edge.source, edge.target] = control.get((edge.source, edge.target), True) and edge.is_control
    for link, route in placed.routes.items():
        points = _around([(x + _MARGIN, y(layer)) for layer, x in route], plan.nodes[link[1]].kind)
        dashed = " control" if control[link] else ""
        parts.append(f'<path class="edge{dashed}" marker-end="url(#tip)" d="{_curve(points)}"/>')
        if said[link]:
            words.append(_placed_word(", ".join(dict.fromkeys(said[link])), points, words))
    for node, label, size in zip(plan.nodes, labels, widths, strict=True):
        at = (placed.x[node.index] + _MARGIN, y(depth[node.index]))
        parts.append(_node(plan, node, label, size, at, states.get(node.name, "")))
    if not plan.nodes:
        parts.append(f'<text class="soft" x="{_MARGIN}" y="{_MARGIN + 32}">no nodes: its output is a constant</text>')
    return "\n".join([*parts, *map(str, words), "</svg>"])


def _node(plan: Plan, node: Node, label: tuple[str, str], width: float, at: _Point, state: str) -> str:
    x, y = at
    name, soft = label
    tip = "\n".join(part for part in (f"{node.kind} {node.name}", about(plan, node), state) if part)
    lines = f'<text text-anchor="middle" x="{x:.1f}" y="{y + (-2 if soft else 5):.1f}">{_safe(name)}</text>'
    if soft:
        lines += f'<text class="soft" text-anchor="middle" x="{x:.1f}" y="{y + 13:.1f}">{_safe(soft)}</text>'
    colour = colour_of(state)
    return (
        f'<g class="{node.kind}{f" {colour}" if colour else ""}"><title>{_safe(tip)}</title>'
        f"{_shape(node.kind, x - width / 2, y - _HEIGHT / 2, width)}{lines}</g>"
    )


def _shape(kind: str, x: float, y: float, w: float) -> str:
    h = _HEIGHT
    if kind == "map":
        return "".join(_box(x + d, y - d, w, 5) for d in reversed(_STACKED))
    if kind == "guard":
        return _polygon(
            [(x, y + h / 2), (x + 18, y), (x + w - 18, y), (x + w, y + h / 2), (x + w - 18, y + h), (x + 18, y + h)]
        )
    if kind in ("wait", "sleep"):
        return _box(x, y, w, h / 2)
    if kind == "race":
        return _polygon(
            [(x, y), (x + w - 16, y), (x + w, y + h / 2), (x + w - 16, y + h), (x, y + h), (x + 16, y + h / 2)]
        )
    if kind == "child":
        return _box(x, y, w, 5) + _box(x + 4, y + 4, w - 8, 3, h - 8)
    return _box(x, y, w, 5)


def _box(x: float, y: float, w: float, round_: float, h: float = _HEIGHT) -> str:
    return f'<rect class="shape" x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="{round_:g}"/>'


def _polygon(points: Sequence[_Point]) -> str:
    return f'<polygon class="shape" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'


def _around(route: Sequence[_Point], kind: str) -> list[_Point]:
    """From the lower side of the first node to the upper side of the last, which is of this kind.

    Each layer between is crossed from side to side, upright: whoever bends in it runs behind its nodes.
    """
    half, raised = _HEIGHT / 2, _STACKED[-1]
    (x1, y1), *between, (x2, y2) = route
    passed = [point for x, y in between for point in ((x, y - half - raised), (x, y + half))]
    return [(x1, y1 + half), *passed, (x2, y2 - half - (raised if kind == "map" else 0))]


def _curve(points: Sequence[_Point]) -> str:
    """Through all points, upright at each of them."""
    out = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for (x1, y1), (x2, y2) in itertools.pairwise(points):
        half = (y1 + y2) / 2
        out.append(f"C{x1:.1f} {half:.1f} {x2:.1f} {half:.1f} {x2:.1f} {y2:.1f}")
    return "".join(out)


@dataclass(frozen=True, slots=True)
class _Word:
    """What is written on an edge, and where its middle is."""

    text: str
    x: float
    y: float

    def covers(self, other: _Word) -> bool:
        apart = (_text_width(self.text, 11) + _text_width(other.text, 11)) / 2 + 4
        return abs(self.x - other.x) < apart and abs(self.y - other.y) < 13

    def __str__(self) -> str:
        return (
            f'<text class="word" text-anchor="middle" x="{self.x:.1f}" y="{self.y + 4:.1f}">{_safe(self.text)}</text>'
        )


def _placed_word(text: str, points: Sequence[_Point], others: Sequence[_Word]) -> _Word:
    """The word on the last piece of its edge, which is the one that leads to who needs it; aside of other words if it can be."""
    (x1, y1), (x2, y2) = points[-2:]
    first: _Word | None = None
    for t in (0.5, 0.38, 0.62, 0.26, 0.74, 0.14):
        # A cubic curve whose inner points are halfway down.
        along = 3 * t * t - 2 * t**3
        down = 1.5 * t * (1 - t) + t**3
        word = _Word(text, x1 + (x2 - x1) * along, y1 + (y2 - y1) * down)
        if not any(word.covers(other) for other in others):
            return word
        first = first or word
    assert first is not None
    return first


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def _width(kind: str, name: str, soft: str) -> float:
    sides = 48 if kind in ("guard", "race") else 32
    return max(84.0, _text_width(name, 13) + sides, _text_width(soft, 11) + sides)


def _text_width(text: str, size: float) -> float:
    """About as wide as the wider of the common sans-serif fonts draw it: no drawing can ask the font."""
    return sum(map(_character_width, text)) * size


def _character_width(c: str) -> float:
    if c in "MWmw@%" or unicodedata.east_asian_width(c) in "WF":
        return 1.0
    return 0.7 if c.isupper() or c in "=<>+" else 0.58


def _safe(text: str, *, quote: bool = False) -> str:
    """The text for XML, which has no place for most control characters, however they are written."""
    kept = "".join(
        c if c in "\n\t" or (unicodedata.category(c) not in ("Cc", "Cs") and c not in "\ufffe\uffff") else "\ufffd"
        for c in text
    )
    return escape(kept, {'"': "&quot;"} if quote else {})
