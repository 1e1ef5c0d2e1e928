"""A wait for an event: settled by a signal from outside, by one that came before, or by its timeout.

A run keeps signals nobody waits for yet; a wait that becomes active takes the oldest of its name. Of several nodes that
wait for one name, the one that has waited longest takes the signal.
"""

from __future__ import annotations

import json

from composer.core.draft import Draft
from composer.core.events import Failure, FailureKind, Report, TimerFired
from composer.core.plan import Node
from composer.core.states import NodeState, TaskState


def activate(draft: Draft, node: Node) -> None:
    """It waits, unless the event has come before it."""
    early = draft.take_signal(node)
    if early is None:
        draft.follow("wait-started", node, event_name=node.event)
        draft.wait(node, NodeState.WAITING, wake_in=node.wait_timeout)
        draft.begin_waiting(node)
    elif early.payload:
        draft.follow("event-received", node, event_name=node.event, signal=early.id)
        draft.complete_unstarted(node, early.payload)


def apply(draft: Draft, node: Node, event: Report | TimerFired) -> None:
    """Its time is over: it takes the answer that stands in for the event, or fails."""
    if not isinstance(event, TimerFired):
        draft.ignore(event, f"node {node.name} is a wait and has no body")
        return
    if draft.letters[node.index] != NodeState.WAITING:
        draft.ignore(event, f"node {node.name} is {NodeState(draft.letters[node.index]).word}")
        return
    draft.end_waiting(node)
    draft.record("event-timed-out", node=node.name, event_name=node.event)
    if node.on_timeout is None:
        limit = f"within {node.wait_timeout:g} s" if node.wait_timeout is not None else "in time"
        failure = Failure(FailureKind.TIMEOUT, "EventTimeout", f"event {node.event!r} did not come {limit}")
        error = failure.encode(node=node.name, code="event-timeout")
        draft.end_wait(node, TaskState.FAILED, error=error, attempt=event.attempt)
        draft.fail(node, failure, code="event-timeout")
        return
    output = json.dumps(node.on_timeout["const"], ensure_ascii=False, separators=(",", ":"))
    draft.end_wait(node, TaskState.COMPLETED, output=output, attempt=event.attempt)
    draft.values[node.index] = output
    draft.time_out(node)
    draft.settle(node.index, NodeState.COMPLETED)


def receive(draft: Draft, node: Node, payload: str) -> None:
    """The event has come."""
    draft.end_waiting(node)
    draft.end_wait(node, TaskState.COMPLETED, output=payload)
    draft.values[node.index] = payload
    draft.settle(node.index, NodeState.COMPLETED)


def stop(draft: Draft, node: Node) -> None:
    """The run stops, and its timer with it."""
    draft.letters[node.index] = NodeState.CANCELLED


def explain(node: Node, letter: NodeState) -> str:
    """What the node waits for, in words."""
    if letter is NodeState.WAITING:
        return f"it waits for event {node.event!r}"
    return letter.word
