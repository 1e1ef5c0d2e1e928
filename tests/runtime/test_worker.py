"""A worker and a client in one process, on a real PostgreSQL."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta

import anyio
import pytest

from composer import (
    AsyncClient,
    IdempotencyConflict,
    NonRetryable,
    PayloadError,
    PlanError,
    ResultTimeout,
    Retry,
    RunCancelled,
    RunFailed,
    RunNotFound,
    RunNotRetryable,
    Snooze,
    Worker,
    step,
    step_context,
    workflow,
)
from composer.worker.loop import WorkerLoop
from tests.working import until, working

pytestmark = pytest.mark.anyio

started: dict[str, threading.Event] = {}
ended: dict[str, float] = {}
broken: set[str] = set()


def begun(name: str) -> threading.Event:
    """Set once a body of this name has started."""
    return started.setdefault(name, threading.Event())


@step
async def plus(n: int, by: int = 1) -> int:
    """A little more."""
    return n + by


@step
def times(n: int, by: int) -> int:
    """In a thread."""
    return n * by


@step
async def waits(name: str) -> str:
    """Ends when it is cancelled."""
    begun(name).set()
    try:
        await anyio.sleep(30)
    finally:
        ended[name] = time.monotonic()
    return name


@step
def checks(name: str) -> str:
    """A thread that looks whether it should stop."""
    begun(name).set()
    try:
        for _ in range(3_000):
            time.sleep(0.01)
            step_context().heartbeat()
    finally:
        ended[name] = time.monotonic()
    return name


@step
async def after(name: str) -> str:
    """What must not start any more."""
    begun(f"after {name}").set()
    return name


@step(timeout=0.2, retries=2)
async def too_slow(name: str) -> str:
    """Longer than its timeout."""
    begun(name).set()
    await anyio.sleep(5)
    return name


@step(timeout=0.2, retries=Retry(attempts=3, delay=0.05))
def too_slow_thread(name: str) -> str:
    """A thread longer than its timeout."""
    begun(name).set()
    time.sleep(0.6)
    return name


@step(retries=Retry(attempts=3, delay=0.05))
async def breaks(name: str) -> str:
    """Fails while `name` is broken."""
    if name in broken:
        raise OSError(f"{name} is broken")
    return name


@step(retries=5)
async def hopeless(kind: str) -> str:
    """Fails in the way that was asked for."""
    match kind:
        case "final":
            raise NonRetryable("never") from ValueError("the cause")
        case "exit":
            raise SystemExit(3)
        case "unprintable":

            class Odd(NonRetryable):
                def __str__(self) -> str:
                    raise RuntimeError("no text")

            raise Odd
        case _:
            raise NonRetryable("nul \0 and surrogate \ud800")


@step
async def looks_again(name: str) -> int:
    """Snoozes twice, keeping count."""
    seen = step_context().heartbeat_details(int, default=0)
    step_context().heartbeat(seen + 1)
    if seen < 2:
        raise Snooze(0.05)
    return seen


@workflow
def sums(n: int) -> int:
    """Branches, threads, defaults."""
    more = plus(n)
    return plus(times(more, 3), by=times.named("again")(n, by=2))


@workflow
def nothing() -> str:
    """No step at all."""
    return "done"


@workflow
def waiting(name: str) -> str:
    """A coroutine and its successor."""
    return after(waits(name))


@workflow
def checking(name: str) -> str:
    """A thread and its successor."""
    return after(checks(name))


@workflow
def slow(name: str) -> str:
    """A timeout."""
    return too_slow(name)


@workflow
def slow_thread(name: str) -> str:
    """A timeout of a thread."""
    return too_slow_thread(name)


@workflow
def mended(name: str) -> str:
    """Something done, something that breaks, something after it."""
    done = after(name)
    return after.named("last")(breaks.after(done)(name))


@workflow
def failing(kind: str) -> str:
    """Fails."""
    return hopeless(kind)


@workflow
def polls(name: str) -> int:
    """Snoozes."""
    return looks_again(name)


@workflow(timeout=0.3)
def hurried(name: str) -> str:
    """A deadline."""
    return after(waits(name))


FLOWS = [
    sums, nothing, waiting, checking, slow, slow_thread, mended, failing, polls, hurried,
]  # fmt: skip


async def test_a_workflow_of_coroutines_and_threads_gives_its_result(database: str, namespace: str) -> None:
    """Values go through branches, threads, defaults and keyword arguments; history folds to the run."""
    async with working(database, namespace, FLOWS) as site:
        handle = await site.client.start(sums, 3)
        assert await handle.result(timeout=10) == 18
        assert {node.name: node.state for node in (await handle.get()).nodes} == dict.fromkeys(
            ["plus", "plus-2", "times", "again"], "completed"
        )
        assert await site.verified() == []


async def test_a_workflow_without_steps_is_completed_by_its_start(database: str, namespace: str) -> None:
    """There is nothing to wait for."""
    async with working(database, namespace, FLOWS) as site:
        handle = await site.client.start(nothing)
        assert (await handle.get()).status == "completed"
        assert await handle.result(timeout=5) == "done"


@pytest.mark.parametrize("flow", [waiting, checking])
async def test_a_cancel_reaches_a_running_body_at_once(database: str, namespace: str, flow) -> None:
    """Coroutines and checking threads end well within a second, and nothing starts after the cancel."""
    name = f"cancel {flow.name} {namespace}"
    async with working(database, namespace, FLOWS) as site:
        handle = await site.client.start(flow, name)
        await until(begun(name).is_set)
        at = time.monotonic()
        result = await handle.cancel("not needed")
        assert (result.accepted, result.status) == (True, "cancelled")
        await until(lambda: name in ended)
        assert ended[name] - at < 0.2
        with pytest.raises(RunCancelled, match="not needed"):
            await handle.result(timeout=5)
        assert (await site.client.cancel(handle.id)).accepted, "a second cancel is the same"
        assert not begun(f"after {name}").is_set()
        assert await site.verified() == []


async def test_a_coroutine_that_is_too_slow_is_retried_and_then_fails(database: str, namespace: str) -> None:
    """Each attempt ends with its timeout; the error gives the limit."""
    async with working(database, namespace, FLOWS) as site:
        handle = await site.client.start(slow, f"slow {namespace}")
        with pytest.raises(RunFailed, match=r"timeout of 0\.2 s") as caught:
            await handle.result(timeout=20)
        assert caught.value.attempt == 3
        assert (await handle.get()).nodes[0].failures == 3


async def test_a_thread_that_is_too_slow_keeps_its_slot_until_it_returns(database: str, namespace: str) -> None:
    """C16: at most three starts; what a timed-out thread returns is not taken; its slot is taken meanwhile."""
    async with working(database, namespace, FLOWS) as site:
        handle = await site.client.start(slow_thread, f"thread {namespace}")
        with pytest.raises(RunFailed, match="timeout"):
            await handle.result(timeout=20)
        assert site.worker.loop.executed == 3
        assert not site.worker.loop.is_idle, "the last thread still runs"
        await until(lambda: site.worker.loop.is_idle)
        assert await site.verified() == []


@pytest.mark.parametrize("kind", ["final", "exit", "unprintable", "odd text"])
async def test_whatever_a_body_raises_is_a_failed_attempt(database: str, namespace: str, kind: str) -> None:
    """SystemExit, errors without text and with text no database holds: stored, and the worker goes on."""
    async with working(database, namespace, FLOWS) as site:
        handle = await site.client.start(failing, kind)
        if kind == "exit":
            await until(lambda: site.worker.loop.executed >= 1)
            await site.client.cancel(handle.id)
        else:
            with pytest.raises(RunFailed) as caught:
                await handle.result(timeout=10)
            assert caught.value.node == "hopeless"
            if kind == "final":
                assert caught.value.error_type == "ValueError"
                assert "never" in caught.value.message
        assert await (await site.client.start(sums, 1)).result(timeout=10) == 8


async def test_a_failed_run_is_retried_where_it_stopped(database: str, namespace: str) -> None:
    """What had completed does not run again; the rest runs with fresh budgets; only one of two retries wins."""
    name = f"mend {namespace}"
    broken.add(name)
    async with working(database, namespace, FLOWS) as site:
        handle = await site.client.start(mended, name)
        with pytest.raises(RunFailed, match="is broken"):
            await handle.result(timeout=10)
        before = site.worker.loop.executed
        planned = await site.client.retry(handle.id, dry_run=True)
        assert {each.node for each in planned.reset_steps} == {"breaks", "last"}
        assert (await handle.get()).status == "failed"
        broken.discard(name)
        await site.client.retry(handle.id)
        assert await handle.result(timeout=10) == name
        assert site.worker.loop.executed == before + 2
        nodes = {node.name: node for node in (await handle.get()).nodes}
        assert (nodes["breaks"].attempt, nodes["breaks"].failures) == (4, 0)
        with pytest.raises(RunNotRetryable, match="completed"):
            await site.client.retry(handle.id)
        assert await site.verified() == []


async def test_a_retry_adopts_corrected_options(database: str, namespace: str) -> None:
    """Row 46: the newest options of the same shape apply, unless they are kept on purpose."""

    @step(name="does")
    async def does(name: str) -> str:
        if name in broken:
            raise OSError("broken")
        return name

    @workflow(name="corrected")
    def first(name: str) -> str:
        return does(name)

    @workflow(name="corrected")
    def second(name: str) -> str:
        return does.options(retries=Retry(attempts=3, delay=0))(name)

    name = f"adopt {namespace}"
    broken.add(name)
    async with working(database, namespace, [first]) as site:
        handle = await site.client.start(first, name)
        with pytest.raises(RunFailed):
            await handle.result(timeout=10)
    async with working(database, namespace, [second]) as site:
        assert (await site.client.retry(handle.id, dry_run=True)).new_options
        assert not (await site.client.retry(handle.id, dry_run=True, keep_options=True)).new_options
        await site.client.retry(handle.id)
        await until(lambda: site.worker.loop.executed == 3)
        with pytest.raises(RunFailed):
            await site.client.handle(second, handle.id).result(timeout=10)
        assert (await site.client.get(handle.id)).nodes[0].failures == 3
        assert await site.verified() == []


async def test_a_deadline_stops_the_run_and_a_retry_gives_another(database: str, namespace: str) -> None:
    """The run fails with code `deadline`, its body is cancelled, and retried it has as long again."""
    name = f"deadline {namespace}"
    async with working(database, namespace, FLOWS) as site:
        handle = await site.client.start(hurried, name)
        for _ in range(2):
            with pytest.raises(RunFailed, match="deadline"):
                await handle.result(timeout=10)
            await until(lambda: site.worker.loop.is_idle)
            await site.client.retry(handle.id)
        with pytest.raises(RunFailed, match="deadline"):
            await handle.result(timeout=10)
        assert await site.verified() == []


async def test_a_snooze_keeps_its_checkpoint_and_costs_nothing(database: str, namespace: str) -> None:
    """Two snoozes are no attempts, and what was kept is there the next time."""
    async with working(database, namespace, FLOWS) as site:
        handle = await site.client.start(polls, "x")
        assert await handle.result(timeout=10) == 2
        node = (await handle.get()).nodes[0]
        assert (node.attempt, node.failures) == (1, 0)


async def test_the_same_key_is_the_same_run(database: str, namespace: str) -> None:
    """Rows 59 to 61: parallel starts give one run, in any state; another input is refused and names the run."""
    async with working(database, namespace, FLOWS) as site:
        handles = []

        async def start() -> None:
            handles.append(await site.client.start(sums, 3, idempotency_key="order-7"))

        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(start)
        assert len({handle.id for handle in handles}) == 1
        assert sum(handle.created for handle in handles) == 1
        assert await handles[0].result(timeout=10) == 18
        assert (await site.client.start(sums, 3, idempotency_key="order-7")).id == handles[0].id
        with pytest.raises(IdempotencyConflict, match="order-7") as caught:
            await site.client.start(sums, 4, idempotency_key="order-7")
        assert caught.value.run_id == handles[0].id


async def test_a_scheduled_run_starts_when_it_is_due(database: str, namespace: str) -> None:
    """Row 58: nothing runs before, its key is taken, a cancel before leaves nothing done."""
    async with working(database, namespace, FLOWS) as site:
        later = await site.client.start(sums, 3, delay=0.3, idempotency_key="k")
        at = await site.client.start(sums, 1, start_at=datetime.now(UTC) + timedelta(seconds=0.2))
        never = await site.client.start(sums, 3, delay="1h")
        assert (await later.get()).status == "scheduled"
        assert not (await site.client.start(sums, 3, idempotency_key="k")).created
        assert (await never.cancel()).status == "cancelled"
        assert await later.result(timeout=10) == 18
        assert await at.result(timeout=10) == 8
        assert await site.verified() == []


async def test_what_is_wrong_with_a_call_is_said_before_anything_is_stored(database: str, namespace: str) -> None:
    """Bad arguments, keys, moments and ids raise at the call."""
    async with working(database, namespace, FLOWS) as site:
        client = site.client
        with pytest.raises(PayloadError, match="sums"):
            await client.start(sums, "three")  # type: ignore[arg-type]
        with pytest.raises(PlanError):
            await client.start(sums)  # type: ignore[call-arg]
        with pytest.raises(PlanError, match="takes a @workflow"):
            await client.start(plus, 1)  # type: ignore[arg-type]
        with pytest.raises(PlanError, match="time zone"):
            await client.start(sums, 1, start_at=datetime(2030, 1, 1))
        for key in ("", "nul \0", "half \ud800", "x" * 501):
            with pytest.raises(PlanError, match="idempotency_key"):
                await client.start(sums, 1, idempotency_key=key)
        with pytest.raises(PlanError, match="tags"):
            await client.start(sums, 1, tags={"half": "\ud800"})
        with pytest.raises(PayloadError, match="bytes"):
            await client.start(waiting, "x" * 2_100_000)
        for run_id in ("nonsense", "01900000-0000-7000-8000-000000000000"):
            with pytest.raises(RunNotFound):
                await client.get(run_id)
            with pytest.raises(RunNotFound):
                await client.cancel(run_id)
            with pytest.raises(RunNotFound):
                await client.retry(run_id)
        with pytest.raises(ResultTimeout, match="goes on"):
            await (await client.start(sums, 1, delay=60)).result(timeout=0.05)


async def test_a_worker_that_leaves_lets_steps_finish_and_gives_back_the_rest(database: str, namespace: str) -> None:
    """Row 57: what ends within the grace counts; what does not is ready at once, for the same attempt."""
    name = f"leave {namespace}"
    async with working(database, namespace, FLOWS, grace=0.3) as site:
        handle = await site.client.start(waiting, name)
        await until(begun(name).is_set)
    assert name in ended, "the body was told to stop"
    async with working(database, namespace, [sums]) as site:
        node = (await site.client.get(handle.id)).nodes
        first = next(each for each in node if each.name == "waits")
        assert (first.state, first.attempt, first.failures, first.crashes) == ("ready", 1, 0, 0)
        assert await site.verified() == []


async def test_threads_leave_in_their_own_time(database: str, namespace: str) -> None:
    """A thread that finishes within the grace time of a drain has its result applied."""
    async with working(database, namespace, [times_flow], grace=10) as site:
        leaving.append(site.worker.loop)
        handle = await site.client.start(times_flow, 4)
        await until(begun("slow times").is_set)
    async with working(database, namespace, [sums]) as site:
        assert (await site.client.get(handle.id)).output == 8


leaving: list[WorkerLoop] = []


@step
def slow_times(n: int) -> int:
    """A thread that goes on until its worker has been told to leave."""
    begun("slow times").set()
    for _ in range(1_000):
        if leaving[0].draining:
            return n * 2
        time.sleep(0.01)
    raise AssertionError("its worker stays")


@workflow
def times_flow(n: int) -> int:
    """One thread."""
    return slow_times(n)


async def test_the_callers_own_error_leaves_the_blocks_unwrapped(database: str, namespace: str) -> None:
    """An exception inside `async with Worker` and `async with AsyncClient` is not wrapped in a group."""
    with pytest.raises(ZeroDivisionError):
        async with working(database, namespace, FLOWS) as site:
            _ = 1 // (site.worker.loop.executed * 0)


def test_a_worker_and_a_client_say_when_they_are_not_open() -> None:
    """Outside of their blocks both say what to do."""
    with pytest.raises(RuntimeError, match="async with"):
        _ = AsyncClient("postgresql://nowhere/").store
    with pytest.raises(RuntimeError, match="async with"):
        _ = Worker([sums]).loop
