"""A plan as lines of text: one a node, in the order in which they can run, each with what it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from composer.core.plan import Plan, Term
from composer.draw.graph import about, layers, pairs, word

_MARKS: Final = {"step": "■", "map": "≡", "guard": "?", "wait": "◷", "sleep": "z", "race": "⚑", "child": "▣"}
_DEEPEST: Final = 12
"""Layers that are shown by indenting; with more of them the names would leave the screen, and the layer is a number."""
_WIDEST: Final = 40


def text(plan: Plan, states: Mapping[str, str] | None = None) -> str:
    """The plan as text. `states` are words for the nodes of a run, by node name."""
    if not plan.nodes:
        return f"workflow {plan.workflow}\n  no nodes: its output is a constant"
    depth = layers(plan)
    is_deep = max(depth) > _DEEPEST
    digits = len(str(max(depth) + 1))
    width = min(max(len(node.name) for node in plan.nodes), _WIDEST)
    states = states or {}
    state_width = max((len(states.get(node.name, "")) for node in plan.nodes), default=0)
    lines = [f"workflow {plan.workflow}"]
    for node in sorted(plan.nodes, key=lambda node: depth[node.index]):
        layer = depth[node.index]
        margin = f"{layer + 1:{digits}} " if is_deep else "  " * layer
        needs = _needs(plan, node.terms)
        parts = [f"{node.name:<{width}}"]
        if state_width:
            parts.append(f"{states.get(node.name, ''):<{state_width}}")
        parts += [part for part in (about(plan, node), f"← {needs}" if needs else "") if part]
        lines.append(f"  {margin}{_MARKS.get(node.kind, '■')} {'  '.join(parts)}".rstrip())
    returned = _needs(plan, plan.output_terms)
    if returned:
        lines.append(f"  returns ← {returned}")
    kinds = {node.kind for node in plan.nodes}
    legend = "  ".join(f"{mark} {kind}" for kind, mark in _MARKS.items() if kind in kinds)
    return "\n".join([*lines, f"  {legend}"])


def _needs(plan: Plan, terms: Sequence[Term]) -> str:
    """What is needed, with the word of each edge that has one."""
    shown: list[str] = []
    for need, node in pairs(terms):
        said = word(need)
        shown.append(f"{plan.nodes[node].name} ({said})" if said else plan.nodes[node].name)
    return ", ".join(shown)
