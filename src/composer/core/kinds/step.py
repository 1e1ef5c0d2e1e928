"""A step: its task is ready, leased or delayed, and what its worker reports decides what follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from composer.core.draft import Draft
from composer.core.events import (
    Delivery,
    Failure,
    FailureKind,
    LeaseExpired,
    Report,
    StepCompleted,
    StepFailed,
    StepReleased,
    StepSnoozed,
)
from composer.core.plan import Node
from composer.core.retries import bounded
from composer.core.states import NodeState, TaskState
from composer.core.transition import Fence, TaskChange


def activate(draft: Draft, node: Node) -> None:
    """Everything it needs has settled well: its task becomes ready."""
    draft.activate(node)


def apply(draft: Draft, node: Node, event: Report) -> None:
    """A report about its task, or the loss of the worker that had it."""
    task = event.task
    letter = draft.letters[node.index]
    if letter != NodeState.ACTIVE:
        draft.ignore(event, f"node {node.name} is {NodeState(letter).word}")
        return
    if (task.node, task.item) in draft.changes:
        draft.ignore(event, f"node {node.name} has another report in the same batch")
        return
    if any((start.node, start.item) == (task.node, task.item) for start in draft.starts):
        draft.ignore(event, f"the task of node {node.name} is only opened in the same batch")
        return
    made = answer(node, event)
    draft.change(made.change)
    draft.record(made.event, task, **made.facts)
    if made.failure is not None:
        draft.fail(node, made.failure, attempt=task.attempt)
    elif made.change.output is not None:
        draft.values[node.index] = made.change.output
        draft.settle(node.index, NodeState.COMPLETED)


def stop(draft: Draft, node: Node) -> None:
    """The run stops: whatever the body still does no longer counts."""
    draft.letters[node.index] = NodeState.CANCELLED


def explain(node: Node, letter: NodeState) -> str:
    """What the node waits for, in words."""
    if letter is NodeState.ACTIVE:
        return f"step {node.step} is ready, running or waiting for its next attempt"
    return letter.word


@dataclass(frozen=True, slots=True)
class Answer:
    """What a report about a task comes to: the task's change, and its line in history."""

    change: TaskChange
    event: str
    facts: Mapping[str, Any]
    failure: Failure | None = None
    """Set when the task has failed for good."""


def answer(node: Node, event: Report) -> Answer:
    """What a report about a task of this node comes to, by itself: the same for a step's one task and for a map's items."""
    task = event.task
    match event:
        case StepCompleted():
            return Answer(_change(task, TaskState.COMPLETED, output=event.output), "step-completed", _COMPLETED)
        case StepFailed():
            return _failed(node, event)
        case StepSnoozed():
            delay = bounded(event.delay)
            change = _change(task, TaskState.DELAYED, delay=delay)
            change.delivery_add, change.details = 1, event.details
            _ready_at_once(change)
            return Answer(change, "step-snoozed", {"outcome": "snoozed", "delay": round(delay, 3)})
        case StepReleased():
            change = _change(task, TaskState.READY)
            change.delivery_add, change.details = 1, event.details
            return Answer(change, "step-released", {"outcome": "released"})
        case LeaseExpired():
            return _crashed(node, event)
        case _:
            # A body that says it was stopped, in a run that was not: it gives the task back.
            change = _change(task, TaskState.READY)
            change.delivery_add = 1
            return Answer(change, "step-stopped", {"outcome": "released"})


_COMPLETED: Final[Mapping[str, Any]] = {"outcome": "completed"}


def _failed(node: Node, event: StepFailed, *, crashes_add: int = 0, fence: Fence = Fence.REPORT) -> Answer:
    task, policy = event.task, node.options.retries
    failures = task.failures + 1
    facts: dict[str, Any] = {
        "failures": failures,
        "kind": event.failure.kind.value,
        "error": f"{event.failure.type}: {event.failure.message}"[:2_000],
    }
    if crashes_add:
        facts["crashes"] = task.crashes + crashes_add
    place: dict[str, Any] = {"node": node.name, "item": task.item} if task.item >= 0 else {"node": node.name}
    error = event.failure.encode(attempt=task.attempt, **place)
    if event.retryable and policy.has_another(failures):
        asked = event.retry_after
        delay = bounded(asked) if asked is not None else policy.delay_after(failures, event.jitter)
        change = _change(task, TaskState.DELAYED, error=error, delay=delay, fence=fence)
        change.attempt_add = change.failures_add = 1
        change.details = event.details
        change.crashes_add = crashes_add
        _ready_at_once(change)
        return Answer(change, "step-failed", {"outcome": "retried", "delay": round(delay, 3), **facts})
    change = _change(task, TaskState.FAILED, error=error, fence=fence)
    change.failures_add = 1
    change.crashes_add = crashes_add
    return Answer(change, "step-failed", {"outcome": "failed", **facts}, event.failure)


def _crashed(node: Node, event: LeaseExpired) -> Answer:
    """A crash is not a failure of the user's code, until it has happened too often."""
    task, options = event.task, node.options
    crashes = task.crashes + 1
    if options.on_crash == "fail" or crashes >= options.max_crashes:
        budget = (
            "the step says on_crash='fail'" if options.on_crash == "fail" else f"max_crashes is {options.max_crashes}"
        )
        if options.heartbeat == "manual":
            silence = f"step {node.step} gave no heartbeat for {options.heartbeat_timeout or 0:g} s: it hangs, or its worker was lost"
            failure = Failure(FailureKind.HEARTBEAT, "HeartbeatTimeout", f"{silence} (time {crashes}; {budget})")
        else:
            why = f"the worker was lost while it ran step {node.step} (crash {crashes}; {budget})"
            failure = Failure(FailureKind.WORKER_LOST, "WorkerLost", why)
        return _failed(node, StepFailed(task, failure, jitter=event.jitter), crashes_add=1, fence=Fence.EXPIRY)
    delay = options.retries.delay_after(crashes, event.jitter)
    change = _change(task, TaskState.DELAYED, delay=delay, fence=Fence.EXPIRY)
    change.crashes_add = 1
    _ready_at_once(change)
    return Answer(change, "lease-expired", {"outcome": "crashed", "crashes": crashes, "delay": round(delay, 3)})


def _change(
    task: Delivery,
    state: TaskState,
    *,
    output: str | None = None,
    error: str | None = None,
    delay: float | None = None,
    fence: Fence = Fence.REPORT,
) -> TaskChange:
    return TaskChange(
        task.node, task.item, fence, task.attempt, task.delivery, state, output=output, error=error, delay=delay
    )


def _ready_at_once(change: TaskChange) -> None:
    """No delay needs no timer."""
    if change.delay is not None and change.delay <= 0.0:
        change.state, change.delay = TaskState.READY, None
