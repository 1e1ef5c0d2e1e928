# pyright: strict
"""Every public name that good.py does not need, and what a checker knows of it."""

import logging
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, assert_type

from composer import (
    AsyncClient,
    AsyncRunHandle,
    CancelResult,
    Change,
    Client,
    ClientError,
    ComposerError,
    Explanation,
    IdempotencyConflict,
    LifespanError,
    MapProgress,
    NodeExplanation,
    NodeView,
    NonRetryable,
    Outcome,
    OutcomeError,
    PayloadError,
    PayloadTooLarge,
    PlanError,
    ProcessStepError,
    QueryError,
    ResultTimeout,
    Retry,
    RetryAfter,
    RetryResult,
    RunCancelled,
    RunEnded,
    RunFailed,
    RunNotFound,
    RunNotRetryable,
    RunQuarantined,
    RunSummary,
    RunView,
    Settings,
    SignalResult,
    Snooze,
    Step,
    StepCancelled,
    StepContext,
    StepError,
    StepLogFilter,
    StoreUnavailable,
    TransactionError,
    UnknownEvent,
    UnknownWorkflow,
    Worker,
    WorkerError,
    Workflow,
    step,
    step_context,
    workflow,
)
from composer.draw import mermaid, svg, text
from composer.testing import Later, StepExecution, VirtualClock, WorkflowResult, WorkflowStuck, run_workflow


@step(retries=Retry(attempts=3, delay=0.5, no_retry_on=(KeyError,)))
def count(number: int) -> int:
    context = step_context()
    assert_type(context, StepContext)
    assert_type(context.run_id, str)
    assert_type(context.attempt, int)
    assert_type(context.fence, int)
    assert_type(context.idempotency_key, str)
    assert_type(context.heartbeat_details(int, default=0), int)
    assert_type(context.cancelled, bool)
    match number:
        case 1:
            raise NonRetryable("final")
        case 2:
            raise RetryAfter(timedelta(minutes=1), "busy")
        case 3:
            raise Snooze(5)
        case 4:
            raise StepCancelled
        case _:
            return number


@workflow
def counting(number: int) -> int:
    return count(number)


as_step: Step[[int], int] = count
as_workflow: Workflow[[int], int] = counting


# -- what a client gives


def steers(client: Client, run_id: str) -> None:
    cancelled = client.cancel(run_id, reason="enough")
    assert_type(cancelled, CancelResult)
    assert_type(cancelled.accepted, bool)
    retried = client.retry(run_id, dry_run=True)
    assert_type(retried, RetryResult)
    assert_type([each.node for each in retried.reset_steps], list[str])
    sent = client.signal(run_id, "approval", True, dedupe_id="1")
    assert_type(sent, SignalResult)
    assert_type(sent.node, str | None)
    assert_type(client.runs(counting, status=["failed"], tags={"a": "b"}), Iterator[RunSummary])
    assert_type(client.watch(run_id, after_version=3), Iterator[Change])
    for found in client.runs("counting", status="running"):
        assert_type(found.tags, Mapping[str, str])
        assert_type(found.finished_at, datetime | None)
    for change in client.watch(run_id):
        assert_type(change.version, int)
        assert_type(change.node, str | None)
        assert_type(change.at, datetime)


def looks(client: Client, run_id: str) -> None:
    run = client.get(run_id)
    assert_type(run, RunView)
    assert_type(run.nodes, Sequence[NodeView])
    assert_type(run.nodes[0].items, MapProgress | None)
    assert_type(run.has_ended, bool)
    why = client.explain(run_id)
    assert_type(why, Explanation)
    assert_type(why.nodes, Sequence[NodeExplanation])
    assert_type(why.nodes[0].blocked_by, Sequence[str])


async def awaited(client: AsyncClient, run_id: str) -> None:
    assert_type(await client.cancel(run_id), CancelResult)
    assert_type(await client.retry(run_id), RetryResult)
    assert_type(await client.signal(run_id, "approval"), SignalResult)
    assert_type(await client.get(run_id), RunView)
    assert_type(await client.explain(run_id), Explanation)
    assert_type(client.runs(), AsyncGenerator[RunSummary])
    assert_type(client.watch(run_id), AsyncGenerator[Change])
    assert_type(client.handle(counting, run_id), AsyncRunHandle[int])
    assert_type(client.handle("counting", run_id), AsyncRunHandle[Any])


def decides(outcome: Outcome[int]) -> int:
    assert_type(outcome.error, StepError | None)
    assert_type(outcome.state, Literal["completed", "failed", "skipped", "cancelled", "timed-out"])
    try:
        return outcome.unwrap()
    except OutcomeError as error:
        assert_type(error.state, str)
        return outcome.value_or(0)


# -- what is raised


def catches(error: ComposerError) -> str | int | bool | Sequence[str] | None:
    assert_type(error.code, str)
    assert_type(error.docs, str)
    match error:
        case PlanError():
            return error.where
        case PayloadTooLarge():
            return error.size
        case LifespanError():
            return error.phase
        case RunFailed():
            assert_type(error.node, str | None)
            return error.causes
        case RunCancelled():
            return error.reason
        case ResultTimeout():
            timed_out: TimeoutError = error
            return str(timed_out)
        case RunNotFound():
            return error.namespace
        case RunQuarantined():
            return error.reason
        case RunNotRetryable() | RunEnded():
            return error.status
        case IdempotencyConflict():
            return error.key
        case UnknownEvent():
            return error.known
        case UnknownWorkflow() | PayloadError() | QueryError() | StoreUnavailable():
            return str(error)
        case TransactionError():
            return error.advice
        case ClientError() | WorkerError():
            misuse: RuntimeError = error
            return str(misuse)
        case WorkflowStuck():
            return error.code
        case _:
            return None


def around(error: ProcessStepError) -> None:
    assert_type(error.type_name, str)


# -- what is set up, drawn and tested


def sets_up(handler: logging.Handler) -> Worker:
    handler.addFilter(StepLogFilter())
    settings = Settings(database_url="postgresql://...", concurrency=10, processes=None)
    assert_type(settings.queues, tuple[str, ...])
    return Worker([counting], settings, steps=[count])


def draws() -> None:
    for draw in (mermaid, svg, text):
        assert_type(draw(counting.plan, {"count": "failed"}), str)


async def tests() -> None:
    clock = VirtualClock()
    result = await run_workflow(counting, 5, clock=clock, signals={"approval": Later("2h", True)})
    assert_type(result, WorkflowResult[int])
    assert_type(result.value, int)
    assert_type(result.executions, Sequence[StepExecution])
    assert_type(clock.elapsed, timedelta)
