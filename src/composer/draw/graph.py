"""What every drawing needs to know of a plan: its edges with their words, what to write on a node, and its layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from composer.core.plan import Need, Node, Plan, Term

_WORDS: Final = {Need.PLAIN: "", Need.GUARD_YES: "yes", Need.GUARD_NO: "no"}
_CONTROL: Final = frozenset({Need.AFTER, Need.GUARD_YES, Need.GUARD_NO})
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))


@dataclass(frozen=True, slots=True)
class Edge:
    """`target` needs `source`, both as node indices. `word` says how: "" for data, else after, either, yes, ..."""

    source: int
    target: int
    word: str
    is_control: bool
    """Whether it only says when, and carries no data."""


def edges(plan: Plan) -> list[Edge]:
    """Every dependency of every node, each once."""
    return [
        Edge(source, node.index, word(need), need in _CONTROL)
        for node in plan.nodes
        for need, source in pairs(node.terms)
    ]


def pairs(terms: Sequence[Term]) -> list[tuple[Need, int]]:
    """The terms taken apart: how a node is needed, and which."""
    return list(dict.fromkeys((term.need, n) for term in terms for n in term.nodes))


def word(need: Need) -> str:
    """What is written beside an edge."""
    return _WORDS.get(need, need.value)


def about(plan: Plan, node: Node) -> str:
    """What there is to say of a node beside its name: the condition, the event, the step where its name differs."""
    if node.kind == "guard":
        conditions: Mapping[str, str] = plan.about.get("conditions", {})
        return conditions.get(node.name, "")
    if node.kind == "wait":
        limit = f", at most {_duration(node.wait_timeout)}" if node.wait_timeout is not None else ""
        return f"event {node.event}{limit}" if node.event else ""
    if node.kind == "sleep":
        seconds: Any = node.args.get("for")
        return _duration(seconds) if isinstance(seconds, (int, float)) else ""
    if node.kind == "map":
        return f"{node.step} for every item"
    return node.step if node.step and node.step != node.name else ""


def layers(plan: Plan) -> list[int]:
    """For each node how many come one after the other before it, at most."""
    found: list[int] = []
    for node in plan.nodes:
        found.append(max((found[n] + 1 for n in node.needs), default=0))
    return found


def _duration(seconds: float) -> str:
    for size, unit in _UNITS:
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
