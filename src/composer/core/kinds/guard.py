"""A guard: a condition over values, answered once, in the decision in which all that it reads has settled.

It has no task: nobody runs it, and nothing can be reported of it. Its letter says that it answered; those that answered
no are in the run's counters, since nodes of its block may come to their turn much later.
"""

from __future__ import annotations

from composer.core.draft import Draft
from composer.core.events import Failure, FailureKind, Report
from composer.core.expressions import Unreadable, evaluate
from composer.core.plan import Node
from composer.core.states import NodeState


def activate(draft: Draft, node: Node) -> None:
    """Everything it depends on has settled well: it answers, or cannot, or says which values that takes first."""
    if not draft.has_all(node.reads, node.reads_settled):
        return
    try:
        answer = evaluate(draft.plan, node.args["condition"], draft.known())
    except Unreadable as error:
        # Never "no": what cannot be decided must not quietly take the other branch.
        why = f"condition {node.name} cannot be evaluated: {error}"
        draft.unevaluable[node.index] = why[:2_000]
        failure = Failure(FailureKind.CONDITION, type(error).__name__, why)
        draft.fail(node, failure, code="guard-unevaluable")
    else:
        draft.answer(node, answer)


def apply(draft: Draft, node: Node, event: Report) -> None:
    """Nothing can be reported of it."""
    draft.ignore(event, f"node {node.name} is a condition and has no task")


def stop(draft: Draft, node: Node) -> None:
    """The run stops before it was answered."""
    draft.letters[node.index] = NodeState.CANCELLED


def explain(node: Node, letter: NodeState) -> str:
    """What the node waits for, in words."""
    match letter:
        case NodeState.BLOCKED:
            return f"condition {node.name} is answered once everything it reads has ended"
        case NodeState.COMPLETED:
            return f"condition {node.name} was answered"
        case NodeState.FAILED:
            return f"condition {node.name} could not be evaluated"
        case NodeState.SKIPPED:
            return f"condition {node.name} was not asked: what it reads was skipped or failed, or it lies in a block not taken"
        case _:
            return letter.word
