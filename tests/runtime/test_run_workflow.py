"""run_workflow(): whole runs in memory, on a clock that is turned."""

from __future__ import annotations

from datetime import timedelta

import pytest

from composer import NonRetryable, Retry, RetryAfter, RunFailed, Snooze, step, step_context, workflow
from composer.testing import crash_everywhere, run_workflow

pytestmark = pytest.mark.anyio
tried: list[int] = []


@step
async def double(n: int) -> int:
    """Twice n."""
    return n * 2


@step
def add(a: int, b: int) -> int:
    """The sum."""
    return a + b


@step(retries=Retry(attempts=4, delay="1h", max_delay="1d"))
async def flaky(n: int) -> int:
    """Fails twice."""
    tried.append(step_context().attempt)
    if step_context().attempt < 3:
        raise OSError("not yet")
    return n


@step
async def hopeless(n: int) -> int:
    """Always fails."""
    raise NonRetryable("no way")


@step(retries=1)
async def sleepy(n: int) -> int:
    """Looks three times, a day apart."""
    seen = step_context().heartbeat_details(int, default=0)
    step_context().heartbeat(seen + 1)
    if seen < 2:
        raise Snooze(timedelta(days=1))
    return seen


@step(retries=1)
async def told_when(n: int) -> int:
    """Says itself when to try again."""
    if step_context().attempt == 1:
        raise RetryAfter(90)
    return n


@workflow
def diamond(n: int) -> int:
    """Two branches that meet."""
    return add(double(n), double.named("other")(n))


@workflow
def retried(n: int) -> int:
    """One step that fails twice."""
    return flaky(n)


@workflow
def failing(n: int) -> int:
    """A failure, and a branch that goes on beside it."""
    add(hopeless(n), n)
    return double(n)


@workflow
def polling(n: int) -> int:
    """Snoozes."""
    return sleepy(n)


@workflow
def patient(n: int) -> int:
    """Is told when."""
    return told_when(n)


async def test_a_diamond_completes_with_its_value() -> None:
    """Both branches ran once and met."""
    result = await run_workflow(diamond, 3)
    assert (result.status, result.value) == ("completed", 12)
    assert [each.node for each in result.executions].count("add") == 1


async def test_retries_take_hours_and_no_time() -> None:
    """Two retries an hour and two apart pass on the virtual clock."""
    tried.clear()
    result = await run_workflow(retried, 5)
    assert result.value == 5
    assert tried == [1, 2, 3]
    assert timedelta(hours=2) < result.elapsed < timedelta(hours=4)
    assert result.node("flaky").failures == 2


async def test_a_failure_fails_the_run_after_the_other_branch_has_ended() -> None:
    """What depends on the failure is skipped, the rest completes, the run says where and why it failed."""
    result = await run_workflow(failing, 1)
    assert result.status == "failed"
    assert {n.name: n.state for n in result.run.nodes} == {
        "hopeless": "failed",
        "double": "completed",
        "add": "skipped",
    }
    with pytest.raises(RunFailed, match="no way") as caught:
        _ = result.value
    assert caught.value.node == "hopeless"


async def test_a_snooze_costs_nothing_and_keeps_its_checkpoint() -> None:
    """Three looks a day apart are one attempt."""
    result = await run_workflow(polling, 1)
    assert result.value == 2
    assert [each.attempt for each in result.executions] == [1, 1, 1]
    assert [each.delivery for each in result.executions] == [1, 3, 5]
    assert result.elapsed >= timedelta(days=2)


async def test_retry_after_sets_the_delay() -> None:
    """The step's own delay is the one that is waited."""
    result = await run_workflow(patient, 1)
    assert result.status == "completed"
    assert timedelta(seconds=90) <= result.elapsed < timedelta(seconds=91)


async def test_a_crashed_worker_costs_no_attempt() -> None:
    """The body ran, its result was lost, another delivery of the same attempt did it again."""
    result = await run_workflow(diamond, 3, crash=add)
    assert result.value == 12
    assert [(e.attempt, e.delivery) for e in result.executions if e.node == "add"] == [(1, 1), (1, 2)]
    assert result.node("add").crashes == 1


async def test_a_step_that_always_kills_its_worker_fails_after_its_crash_budget() -> None:
    """max_crashes (3) + attempts (4) - 1 starts, then the run fails with the worker lost, not with a user's error."""
    result = await run_workflow(retried, 1, crash={flaky: 1_000})
    assert result.status == "failed"
    assert result.ran("flaky") == 6
    assert result.error is not None
    assert result.error["kind"] == "worker-lost"


async def test_a_crash_after_any_transition_changes_nothing_in_the_end() -> None:
    """Whatever transition the worker dies after, the run ends the same."""
    results = await crash_everywhere(diamond, 4)
    assert len(results) > 2
    assert {result.value for result in results} == {16}


async def test_bodies_can_be_replaced() -> None:
    """A replaced body runs instead, plain or async."""

    def more(n: int) -> int:
        return n + 100

    assert (await run_workflow(diamond, 1, replace={double: more})).value == 202


async def test_a_result_of_the_wrong_type_fails_the_step_for_good() -> None:
    """The payload is refused where it is produced, with the step's name."""
    result = await run_workflow(diamond, 1, replace={double: lambda n: "x"})
    assert result.status == "failed"
    assert result.error is not None
    assert (result.error["kind"], result.node("double").attempt) == ("payload", 1)
