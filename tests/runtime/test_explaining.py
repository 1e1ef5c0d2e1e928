"""explain and watch in every state of a run: in memory, where a test says what happens and when."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from composer import (
    AsyncClient,
    AsyncRunHandle,
    Change,
    NodeExplanation,
    race,
    sleep,
    sleep_until,
    step,
    wait_for_event,
    when,
    workflow,
)
from composer.core.events import DeadlinePassed, LeaseExpired
from composer.memory.store import MemoryStore
from composer.ports.store import ClaimedTask, MapPage, WorkerRecord
from tests.contract.driver import Driver, TurnableClock, done, failed

pytestmark = pytest.mark.anyio


@step(retries=3)
async def load(n: int) -> int:
    """A step with retries."""
    return n


@step(queue="gpu")
async def render(n: int) -> int:
    """A step of another queue."""
    return n


@workflow(timeout="1h")
def chain(n: int) -> int:
    """Two queues."""
    return render(load(n))


@workflow
def wide(ns: list[int]) -> list[int]:
    """A map."""
    return load.options(max_concurrency=2).map(ns)


@workflow
def waits(at: datetime) -> tuple[bool | None, datetime | datetime, datetime]:
    """An event without a limit, a race, and a sleep until a moment."""
    return wait_for_event("go", bool | None), race(sleep("1h"), sleep("2h")), sleep_until(at)


@workflow
def choosing(n: int) -> int:
    """A condition that cannot be evaluated for text."""
    with when(n > 3):
        load(n)
    return load.named("other")(n)


@pytest.fixture
def driver() -> Driver:
    """A store in memory whose time the test turns."""
    return Driver(MemoryStore(clock=TurnableClock()))


@pytest.fixture
async def client(driver: Driver) -> AsyncIterator[AsyncClient]:
    """A client on it."""
    async with AsyncClient(store=driver.store) as client:
        yield client


def a_worker(*, queues: list[str], steps: list[str], name: str = "w") -> WorkerRecord:
    return WorkerRecord(name, "host-1", "boot", 7, 1.0, queues, steps)


async def claimed(driver: Driver) -> ClaimedTask:
    """The one task that waits, leased to worker w."""
    return await driver.claim_one(steps=["load", "render"], queues=["default", "gpu"])


async def nodes_of(handle: AsyncRunHandle[object]) -> dict[str, NodeExplanation]:
    """What is explained, by node."""
    return {each.node: each for each in (await handle.explain()).nodes}


async def test_a_ready_step_waits_for_a_worker_that_lives_serves_its_queue_and_knows_it(
    driver: Driver, client: AsyncClient
) -> None:
    """What is missing is named, one after the other, and once nothing is the step is not stuck."""
    handle = await client.start(chain, 1)
    node = (await nodes_of(handle))["load"]
    assert (node.state, node.is_stuck, node.until) == ("ready", True, None)
    assert node.text == (
        "step load is ready since 2026-01-01 00:00:00+00:00, for a worker of queue 'default'; "
        "no live worker serves queue 'default'"
    )
    assert (await handle.explain()).text.startswith("2 of 2 nodes are open, 1 of them stuck; its deadline is 2026-")
    await driver.store.register_worker(a_worker(queues=["default"], steps=["render"]), ttl=60.0)
    node = (await nodes_of(handle))["load"]
    assert node.is_stuck
    assert node.text.endswith("no live worker of queue 'default' knows step 'load'")
    await driver.store.register_worker(a_worker(queues=["default"], steps=["load"], name="x"), ttl=60.0)
    node = (await nodes_of(handle))["load"]
    assert not node.is_stuck
    assert node.text.endswith("for a worker of queue 'default'")
    await driver.later(61.0)
    assert (await nodes_of(handle))["load"].is_stuck


async def test_a_step_that_runs_names_its_worker_and_its_readers_name_it(driver: Driver, client: AsyncClient) -> None:
    """A leased step has its worker, host, attempt and lease; one whose lease nobody looks after is stuck."""
    handle = await client.start(chain, 1)
    await driver.store.register_worker(a_worker(queues=["default"], steps=["load"]), ttl=60.0)
    await claimed(driver)
    found = await nodes_of(handle)
    load, render = found["load"], found["render"]
    assert (load.state, load.worker, load.is_stuck) == ("leased", "w", False)
    assert load.text.startswith(
        "step load runs in worker w on host-1 since 2026-01-01 00:00:00+00:00, attempt 1; its lease "
    )
    assert load.until is not None
    assert (render.state, render.text, render.blocked_by) == ("blocked", "waits for load", ("load",))
    await driver.later(500.0)
    load = (await nodes_of(handle))["load"]
    assert load.is_stuck
    assert "runs in worker w, which is not heard of any more, since" in load.text
    assert load.text.endswith("long past: no coordinator is at work")


async def test_a_delayed_step_has_its_next_attempt_and_its_last_error(driver: Driver, client: AsyncClient) -> None:
    """After a failure the moment and the error are told, after a crash that a worker was lost."""
    handle = await client.start(chain, 1)
    await driver.store.register_worker(a_worker(queues=["default"], steps=["load"]), ttl=10_000.0)
    await driver.apply(handle.id, failed(await claimed(driver), "too busy", retry_after=60.0))
    node = (await nodes_of(handle))["load"]
    assert (node.state, node.is_stuck, node.until) == ("delayed", False, datetime(2026, 1, 1, 0, 1, tzinfo=UTC))
    assert node.error is not None
    assert node.text == (f"step load is tried again at 2026-01-01 00:01:00+00:00, attempt 2; last error: {node.error}")
    assert node.error.endswith(": too busy")
    await driver.later(60.0)
    assert await driver.store.move_due_tasks(10) == 1
    node = (await nodes_of(handle))["load"]
    assert node.text == f"step load is ready, for a worker of queue 'default'; last error: {node.error}"
    task = await claimed(driver)
    await driver.later(500.0)
    await driver.apply(handle.id, LeaseExpired(task.task))
    assert "; 1 of its workers were lost" in (await nodes_of(handle))["load"].text


async def test_a_map_tells_how_far_it_is(driver: Driver, client: AsyncClient) -> None:
    """Before its items are stored, while they run and are held, and with the first failure among them."""
    handle = await client.start(wide, [1, 2, 3, 4])
    await driver.store.register_worker(a_worker(queues=["default"], steps=["load"]), ttl=10_000.0)
    node = (await nodes_of(handle))["load"]
    assert (node.state, node.text) == ("mapping", "its items are about to be stored by a coordinator")
    page = MapPage(handle.id, wide.plan, 0, 0, 4, ["1", "2", "3", "4"], 0, 0, "d")
    assert (await driver.store.expand_map(page))[0]
    node = (await nodes_of(handle))["load"]
    assert node.text == "0 of 4 items have ended, 0 of them failed; 2 wait for their turn (max_concurrency 2)"
    assert not node.is_stuck
    await driver.store.forget_worker("w")
    assert (await nodes_of(handle))["load"].is_stuck


async def test_waits_sleeps_and_races_tell_what_ends_them(driver: Driver, client: AsyncClient) -> None:
    """A wait without a limit has no moment, a race waits for the first, and a timer nobody looks at is stuck."""
    handle = await client.start(waits, datetime(2026, 1, 1, 5, tzinfo=UTC))
    found = await nodes_of(handle)
    assert (found["go"].text, found["go"].until) == ("it waits for event 'go'", None)
    assert found["sleep"].text == "sleeps until 2026-01-01 01:00:00+00:00"
    assert found["race"].text == "waits for the first of sleep, sleep-2"
    assert found["sleep_until"].until == datetime(2026, 1, 1, 5, tzinfo=UTC)
    assert not any(node.is_stuck for node in found.values())
    await driver.later(3_700.0)
    found = await nodes_of(handle)
    assert [name for name, node in found.items() if node.is_stuck] == ["sleep"]
    assert found["sleep"].text.endswith("long past: no coordinator is at work")


async def test_a_run_that_has_not_begun_or_was_taken_aside_says_so(driver: Driver, client: AsyncClient) -> None:
    """A scheduled run names its moment, a quarantined one the reason and the remedy."""
    later = await client.start(chain, 1, delay="1h")
    explained = await later.explain()
    assert (explained.status, explained.text) == ("scheduled", "it starts at 2026-01-01 01:00:00+00:00")
    assert [node.text for node in explained.nodes] == ["starts with the run", "waits for load"]
    assert (await client.explain(later.id)) == explained
    aside = await client.start(chain, 1)
    assert await driver.store.quarantine(aside.id, 1, "the plan is unreadable")
    explained = await aside.explain()
    assert explained.quarantine == "the plan is unreadable"
    assert str(explained).startswith(
        f"run {aside.id} of workflow 'chain' is running: it could not be decided and was taken aside (the plan is "
        "unreadable); client.release(run_id) lets it go on\n  ! load: "
    )


async def test_an_ended_run_says_why(driver: Driver, client: AsyncClient) -> None:
    """Cancelled, over its deadline and completed: the reason stands there and no node is open; a damaged error is no error."""
    cancelled = await client.start(chain, 1)
    await cancelled.cancel("the customer left")
    assert str(await cancelled.explain()) == (
        f"run {cancelled.id} of workflow 'chain' is cancelled: cancelled: the customer left"
    )
    late = await client.start(chain, 1)
    await driver.apply(late.id, DeadlinePassed())
    assert (await late.explain()).text.startswith("deadline: the run took longer")
    completed = await client.start(chain, 1)
    for _ in range(2):
        await driver.apply(completed.id, done(await claimed(driver)))
    assert (await completed.explain()).text == "it completed at 2026-01-01 00:00:00+00:00"
    store = driver.store
    assert isinstance(store, MemoryStore)
    store._runs[late.id].error = '{"code'
    assert "cannot be read" in (await late.explain()).text


# -- watch -----------------------------------------------------------------------------------------------------


async def seen(handle: AsyncRunHandle[object], after_version: int = 0, until: str = "") -> list[Change]:
    """Changes up to the first of an event, or to the end."""
    found: list[Change] = []
    changes = handle.watch(after_version=after_version)
    async for change in changes:
        found.append(change)
        if change.event == until:
            await changes.aclose()
            break
    return found


async def test_another_watch_goes_on_where_one_stopped(driver: Driver, client: AsyncClient) -> None:
    """From every version on, what follows is told once; what is told again is the start of a body that had not ended."""
    handle = await client.start(chain, 1)
    await driver.apply(handle.id, failed(await claimed(driver), retry_after=1.0))
    await driver.later(1.0)
    await driver.store.move_due_tasks(10)
    task = await claimed(driver)
    first = await seen(handle, until="step-failed")
    open_body = (await seen_now(handle, 4))[-1]
    assert (open_body.event, open_body.attempt) == ("step-started", 2)
    await driver.apply(handle.id, done(task))
    await driver.apply(handle.id, done(await claimed(driver)))
    whole = await seen(handle)
    assert [(each.event, each.node, each.attempt) for each in whole] == [
        ("started", None, None),
        ("step-started", "load", 1), ("step-failed", "load", 1),
        ("step-started", "load", 2), ("step-completed", "load", 2),
        ("step-started", "render", 1), ("step-completed", "render", 1),
        ("run-completed", None, None),
    ]  # fmt: skip
    assert first == whole[: len(first)]
    for version in range(whole[-1].version + 1):
        rest = await seen(handle, version)
        newer = [each for each in whole if each.version > version]
        again = [each for each in whole if each.version == version and each.event == "step-started"] if version else []
        assert rest == [*again, *newer], version


async def seen_now(handle: AsyncRunHandle[object], count: int) -> list[Change]:
    """The first so many changes."""
    found: list[Change] = []
    changes = handle.watch()
    async for change in changes:
        found.append(change)
        if len(found) == count:
            await changes.aclose()
            break
    return found


async def test_conditions_and_what_follows_are_told(driver: Driver, client: AsyncClient) -> None:
    """An answer, a skipped block, waits and sleeps that begin, a race that is won and a condition that fails."""
    handle = await client.start(choosing, 1)
    events = await seen_now(handle, 3)
    assert [(each.event, each.facts.get("answer")) for each in events] == [
        ("started", None),
        ("condition-answered", False),
        ("node-skipped", None),
    ]
    assert {each.version for each in events} == {1}
    await driver.store.register_plan(choosing.plan)
    text = await client.start("choosing", {"n": "many"})
    failures = [each for each in await seen_now(text, 3) if each.event == "condition-failed"]
    assert [(each.node, "cannot be evaluated" in (each.error or "")) for each in failures] == [("when", True)]

    waiting = await client.start(waits, datetime(2026, 1, 2, tzinfo=UTC))
    begun = await seen_now(waiting, 5)
    assert sorted((each.event, each.node) for each in begun[1:]) == [
        ("sleep-started", "sleep"),
        ("sleep-started", "sleep-2"),
        ("sleep-started", "sleep_until"),
        ("wait-started", "go"),
    ]
    assert timedelta(0) == begun[1].at - begun[0].at
