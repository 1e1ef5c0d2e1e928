"""A plan as a Mermaid flowchart, for pages that draw it themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from composer.core.plan import Node, Plan
from composer.draw.graph import about, edges

_SHAPES: Final = {
    "step": ('["', '"]'), "map": ('[["', '"]]'), "guard": ('{"', '"}'), "wait": ('(["', '"])'), "sleep": ('("', '")'),
    "race": ('(("', '"))'), "child": ('[/"', '"/]'),
}  # fmt: skip
_COLOURS: Final = {
    "completed": "fill:#d9f2e3,stroke:#1a7f4b", "failed": "fill:#fbe0de,stroke:#b3261e", "running": "fill:#dcebfb,stroke:#1f5fa8",
    "waiting": "fill:#fdf1d3,stroke:#946200", "skipped": "fill:#f3f3f3,stroke:#999,color:#777",
}  # fmt: skip


def mermaid(plan: Plan, states: Mapping[str, str] | None = None) -> str:
    """The plan as a Mermaid flowchart. `states` are words for the nodes of a run, by node name."""
    lines = ["flowchart TD"]
    for node in plan.nodes:
        before, after = _SHAPES.get(node.kind, _SHAPES["step"])
        lines.append(f"  n{node.index}{before}{_quoted(_label(plan, node))}{after}")
    for edge in edges(plan):
        arrow = "-.->" if edge.is_control else "-->"
        lines.append(f"  n{edge.source} {arrow}{f'|{edge.word}|' if edge.word else ''} n{edge.target}")
    if states:
        classes = {node.index: colour_of(states[node.name]) for node in plan.nodes if node.name in states}
        lines += [f"  classDef {name} {style}" for name, style in _COLOURS.items() if name in classes.values()]
        lines += [f"  class n{index} {name}" for index, name in classes.items() if name]
    return "\n".join(lines)


def colour_of(state: str) -> str:
    """The state as one of the few that have a colour; "" for what has not begun."""
    if state in ("completed", "failed", "skipped", "waiting"):
        return state
    if state in ("leased", "mapping", "running", "active"):
        return "running"
    if state in ("delayed", "held"):
        return "waiting"
    if state in ("draining", "stopping", "undo failed"):
        return "failed"
    return "skipped" if state in ("cancelled", "withdrawn") else ""


def _label(plan: Plan, node: Node) -> str:
    if node.kind == "guard":
        return about(plan, node) or node.name
    return f"{node.name} for every item" if node.kind == "map" else node.name


def _quoted(text: str) -> str:
    text = " ".join(text.split())
    return text.replace("#", "#35;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")
