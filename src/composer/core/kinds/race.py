"""A race over waits and sleeps: settled by the first that completes, with its value; the others are withdrawn."""

from __future__ import annotations

from composer.core.draft import Draft
from composer.core.events import Report, TimerFired
from composer.core.plan import Node
from composer.core.states import SETTLED, NodeState


def activate(draft: Draft, node: Node) -> None:
    """One of them has completed."""
    nodes = draft.plan.nodes
    winner = next(member for member in node.of if draft.letters[member] == NodeState.COMPLETED)
    if not draft.has_all((winner,)):
        return
    draft.follow("race-won", node, winner=nodes[winner].name)
    for member in node.of:
        letter = draft.letters[member]
        if letter in SETTLED:
            continue
        if letter == NodeState.WAITING:
            draft.end_waiting(nodes[member])
            draft.withdraw(nodes[member])
        draft.settle(member, NodeState.SKIPPED)
    draft.complete_unstarted(node, draft.values[winner])


def apply(draft: Draft, node: Node, event: Report | TimerFired) -> None:
    """Nothing can be reported of it."""
    draft.ignore(event, f"node {node.name} is a race and has no task")


def stop(draft: Draft, node: Node) -> None:
    """The run stops."""
    draft.letters[node.index] = NodeState.CANCELLED


def explain(node: Node, letter: NodeState) -> str:
    """What the node waits for, in words."""
    return "it waits for the first of its waits and sleeps" if letter is NodeState.BLOCKED else letter.word
