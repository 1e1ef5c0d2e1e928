"""`composer graph`: a workflow's plan, drawn as text or as Mermaid."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, Literal

import typer

from composer.cli.examine import AsJson
from composer.cli.runs import workflow_of
from composer.cli.text import printable
from composer.core.plan import Need, Node, Plan

_SHAPES: Final = {
    "step": ('["', '"]'), "map": ('[["', '"]]'), "guard": ('{"', '"}'), "wait": ('("', '")'), "sleep": ('("', '")'), "race": ('(("', '"))'),
}  # fmt: skip
_MARKS: Final = {"step": "■", "map": "≡", "guard": "?", "wait": "◷", "sleep": "z", "race": "⚑"}
_EDGES: Final = {
    Need.PLAIN: "", Need.AFTER: "after", Need.MAYBE: "maybe", Need.EITHER: "either", Need.SETTLED: "settled", Need.RACE: "race",
    Need.GUARD_YES: "yes", Need.GUARD_NO: "no",
}  # fmt: skip


def graph(
    workflow: Annotated[str, typer.Argument(metavar="MODULE:WORKFLOW", help="The workflow.", show_default=False)],
    form: Annotated[Literal["text", "mermaid"], typer.Option("--format", help="How it is drawn.")] = "text",
    as_json: AsJson = False,
) -> None:
    """Draw what a workflow does. With --json the plan itself."""
    plan = workflow_of(workflow).plan
    if as_json:
        typer.echo(json.dumps(plan.body, ensure_ascii=False))
    else:
        typer.echo(printable(mermaid(plan) if form == "mermaid" else drawn(plan)))


def drawn(plan: Plan) -> str:
    """The plan as text: a line a node, in the order in which they can run, each with what it needs."""
    levels = _levels(plan)
    width = max((len(node.name) for node in plan.nodes), default=0)
    lines = [f"workflow {plan.workflow}"]
    for level in sorted(set(levels.values())):
        for node in plan.nodes:
            if levels[node.index] == level:
                needs = ", ".join(_need(plan, need, n) for need, n in _edges(node))
                lines.append(
                    f"  {'  ' * level}{_MARKS[node.kind]} {node.name:<{width}}  {_about(plan, node, needs)}".rstrip()
                )
    kinds = {node.kind for node in plan.nodes}
    legend = "  ".join(f"{mark} {kind}" for kind, mark in _MARKS.items() if kind in kinds)
    return "\n".join([*lines, f"  {legend}"] if kinds else [*lines, "  no nodes: its output is a constant"])


def _about(plan: Plan, node: Node, needs: str) -> str:
    conditions: dict[str, str] = plan.about.get("conditions", {})
    what = {"guard": conditions.get(node.name, ""), "wait": f"event {node.event}" if node.event else ""}.get(
        node.kind, ""
    )
    if node.kind == "map":
        what = f"{node.step} for every item"
    elif node.kind == "step" and node.step != node.name:
        what = node.step
    return "  ".join(part for part in (what, f"← {needs}" if needs else "") if part)


def _need(plan: Plan, need: Need, node: int) -> str:
    word = _EDGES[need]
    return f"{plan.nodes[node].name}{f' ({word})' if word else ''}"


def _edges(node: Node) -> list[tuple[Need, int]]:
    return list(dict.fromkeys((term.need, n) for term in node.terms for n in term.nodes))


def _levels(plan: Plan) -> dict[int, int]:
    """How many nodes come one after the other before each of them, at most."""
    levels: dict[int, int] = {}
    for node in plan.nodes:
        levels[node.index] = max((levels[n] + 1 for n in node.needs), default=0)
    return levels


def mermaid(plan: Plan) -> str:
    """The plan as a Mermaid flowchart."""
    conditions: dict[str, Any] = plan.about.get("conditions", {})
    lines = ["flowchart TD"]
    for node in plan.nodes:
        before, after = _SHAPES[node.kind]
        label = conditions.get(node.name) or node.name
        if node.kind == "map":
            label = f"{node.name} for every item"
        lines.append(f"  n{node.index}{before}{_quoted(str(label))}{after}")
    for node in plan.nodes:
        for need, n in _edges(node):
            word = _EDGES[need]
            arrow = "-.->" if need in (Need.AFTER, Need.GUARD_YES, Need.GUARD_NO) else "-->"
            lines.append(f"  n{n} {arrow}{f'|{word}|' if word else ''} n{node.index}")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return text.replace("#", "#35;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")
