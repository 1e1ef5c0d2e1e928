"""A step: its task is ready, leased or delayed, and what its worker reports decides what follows."""

from __future__ import annotations

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
    match event:
        case StepCompleted():
            draft.change(_change(task, TaskState.COMPLETED, output=event.output))
            draft.values[node.index] = event.output
            draft.record("step-completed", task, outcome="completed")
            draft.settle(node.index, NodeState.COMPLETED)
        case StepFailed():
            _fail(draft, node, event)
        case StepSnoozed():
            delay = bounded(event.delay)
            change = _change(task, TaskState.DELAYED, delay=delay)
            change.delivery_add, change.details = 1, event.details
            _ready_at_once(change)
            draft.change(change)
            draft.record("step-snoozed", task, outcome="snoozed", delay=round(delay, 3))
        case StepReleased():
            change = _change(task, TaskState.READY)
            change.delivery_add, change.details = 1, event.details
            draft.change(change)
            draft.record("step-released", task, outcome="released")
        case LeaseExpired():
            _crash(draft, node, event)
        case _:
            # A body that says it was stopped, in a run that was not: it gives the task back.
            change = _change(task, TaskState.READY)
            change.delivery_add = 1
            draft.change(change)
            draft.record("step-stopped", task, outcome="released")


def stop(draft: Draft, node: Node) -> None:
    """The run stops: whatever the body still does no longer counts."""
    draft.letters[node.index] = NodeState.CANCELLED


def explain(node: Node, letter: NodeState) -> str:
    """What the node waits for, in words."""
    if letter is NodeState.ACTIVE:
        return f"step {node.step} is ready, running or waiting for its next attempt"
    return letter.word


def _fail(draft: Draft, node: Node, event: StepFailed, *, crashes_add: int = 0, fence: Fence = Fence.REPORT) -> None:
    task, policy = event.task, node.options.retries
    failures = task.failures + 1
    facts = {
        "failures": failures,
        "kind": event.failure.kind.value,
        "error": f"{event.failure.type}: {event.failure.message}"[:2_000],
    }
    if crashes_add:
        facts["crashes"] = task.crashes + crashes_add
    error = event.failure.encode(attempt=task.attempt)
    if event.retryable and policy.has_another(failures):
        asked = event.retry_after
        delay = bounded(asked) if asked is not None else policy.delay_after(failures, event.jitter)
        change = _change(task, TaskState.DELAYED, error=error, delay=delay, fence=fence)
        change.attempt_add = change.failures_add = 1
        change.details = event.details
        change.crashes_add = crashes_add
        _ready_at_once(change)
        draft.change(change)
        draft.record("step-failed", task, outcome="retried", delay=round(delay, 3), **facts)
        return
    change = _change(task, TaskState.FAILED, error=error, fence=fence)
    change.failures_add = 1
    change.crashes_add = crashes_add
    draft.change(change)
    draft.record("step-failed", task, outcome="failed", **facts)
    draft.fail(node, event.failure, task.attempt)


def _crash(draft: Draft, node: Node, event: LeaseExpired) -> None:
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
        _fail(draft, node, StepFailed(task, failure, jitter=event.jitter), crashes_add=1, fence=Fence.EXPIRY)
        return
    delay = options.retries.delay_after(crashes, event.jitter)
    change = _change(task, TaskState.DELAYED, delay=delay, fence=Fence.EXPIRY)
    change.crashes_add = 1
    _ready_at_once(change)
    draft.change(change)
    draft.record("lease-expired", task, outcome="crashed", crashes=crashes, delay=round(delay, 3))


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
