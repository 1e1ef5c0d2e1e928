"""Statements about one map at the same time: pages, results, withdrawals and stops, in forced orders and in no order at all."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import asyncpg
import pytest

from composer.apply import Applier, persistently
from composer.coordinator.recovery import recover
from composer.coordinator.timers import fire_due
from composer.core.events import CancelRequested, DeadlinePassed, Event, RetryRequested, StepReleased
from composer.core.history import fold
from composer.core.items import item_changes
from composer.core.plan import list_code
from composer.errors import StoreUnavailable
from composer.ports.store import ItemCommit
from composer.postgres.store import PostgresStore
from composer.verify import Verified, verify
from tests.contract.driver import Driver, done, failed, opened
from tests.contract.test_map_items import a_map, counts, letter, mapping, rows, sound
from tests.contract.test_map_lives import page_of
from tests.servers import Server, execute, query
from tests.working import until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def driver(each_server: Server, namespace: str) -> AsyncIterator[Driver]:
    """A driver on a database of its own, on each server."""
    url = each_server.database()
    async with opened(PostgresStore(url, namespace=namespace, connections=12)) as store:
        yield Driver(store)
    each_server.drop(url)


class Line:
    """Statements that wait for one run, one behind the other."""

    def __init__(self, url: str, group: Any) -> None:
        self._url, self._group, self._count = url, group, 0

    async def joins(self, call: Callable[[], Awaitable[Any]]) -> None:
        """Begins a call and returns once its statement waits."""
        self._count += 1
        self._group.start_soon(call)
        waiting = "select count(*) from pg_locks where not granted and database = (select oid from pg_database where datname = current_database())"
        await until(lambda: self._waits(waiting))

    async def _waits(self, text: str) -> bool:
        return (await query(self._url, f"{text} or not granted and locktype = 'transactionid'"))[0][0] >= self._count


@asynccontextmanager
async def in_line(driver: Driver, run_id: str) -> AsyncIterator[Line]:
    """Holds the run; what joins the line goes on, in its order, when the block ends."""
    store = driver.store
    assert isinstance(store, PostgresStore)
    connection = await asyncpg.connect(store._url)
    try:
        async with anyio.create_task_group() as group:
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute("select from composer.runs where id = $1 for update", run_id)
            yield Line(store._url, group)
            await transaction.commit()
    finally:
        await connection.close()


async def half_kept(driver: Driver) -> tuple[str, Any]:
    """A retried run with a window of one: item 0 is stored again and leased, item 1 is to come, item 2 has completed before."""
    plan = a_map(max_concurrency=1, tolerate=1)
    items = [1, 2, 3]
    run_id = await mapping(driver, items, plan)
    for output in ("0", "1", "2"):
        (task,) = await driver.claim(10, steps={"each"})
        await driver.apply(run_id, done(task) if output == "2" else failed(task))
    assert (await driver.head(run_id)).snapshot.letters.text[1] == "F"
    await driver.apply(run_id, RetryRequested())
    assert (await driver.store.expand_map(page_of(run_id, plan, items, 0, 1, 1)))[0]
    (task,) = await driver.claim(10, steps={"each"})
    return run_id, task


async def test_window_goes_on_when_items_end_while_others_are_stored(driver: Driver) -> None:
    """The commit that made room could not see the item that was stored while it waited; with nothing left to store, a coordinator finds it."""
    run_id, task = await half_kept(driver)
    plan = await driver.store.load_plan((await driver.head(run_id)).plan_id)
    items = [1, 2, 3]
    async with in_line(driver, run_id) as line:
        await line.joins(lambda: driver.store.expand_map(page_of(run_id, plan, items, 1, 2, 1)))
        await line.joins(lambda: driver.apply(run_id, done(task)))
    assert await rows(driver, run_id) == {0: "completed", 1: "held", 2: "completed"}
    # The last page brings nothing that could run, and takes the place of the moment the commit had set.
    assert (await driver.store.expand_map(page_of(run_id, plan, items, 2, 3, 1)))[0]
    assert await rows(driver, run_id) == {0: "completed", 1: "held", 2: "completed"}
    await driver.later(6)
    await fire_due(driver.store)
    assert await rows(driver, run_id) == {0: "completed", 1: "ready", 2: "completed"}
    (last,) = await driver.claim(10, steps={"each"})
    await driver.apply(run_id, done(last))
    assert await letter(driver, run_id) == "C"
    await sound(driver, run_id)


async def test_whoever_frees_items_and_does_not_see_them_looks_again(driver: Driver) -> None:
    """A coordinator that waited behind a page does not see its items, and leaves the map due, so that they are freed a second later."""
    plan = a_map(max_concurrency=1)
    run_id = await driver.start(plan)
    (task,) = await driver.claim(10, steps={"items"})
    await driver.apply(run_id, done(task, "[1, 2]"))
    assert (await driver.store.expand_map(page_of(run_id, plan, [1, 2], 0, 1, 0)))[0]
    (first,) = await driver.claim(10, steps={"each"})
    async with in_line(driver, run_id) as line:
        await line.joins(lambda: driver.store.expand_map(page_of(run_id, plan, [1, 2], 1, 2, 0)))
        await line.joins(lambda: driver.apply(run_id, done(first)))
        await line.joins(lambda: driver.store.free_items(run_id, 1))
    assert await rows(driver, run_id) == {0: "completed", 1: "held"}
    await driver.later(2)
    await fire_due(driver.store)
    assert await rows(driver, run_id) == {0: "completed", 1: "ready"}
    await sound(driver, run_id)


async def test_cancel_behind_a_page_ends_its_items_too(driver: Driver) -> None:
    """A stop that was decided before a page was stored is decided again after it, and leaves no item of it open."""
    plan = a_map()
    run_id = await driver.start(plan)
    (task,) = await driver.claim(10, steps={"items"})
    await driver.apply(run_id, done(task, "[1, 2, 3, 4]"))
    assert (await driver.store.expand_map(page_of(run_id, plan, [1, 2, 3, 4], 0, 2, 0)))[0]
    stored: list[bool] = []

    async def third() -> None:
        stored.append((await driver.store.expand_map(page_of(run_id, plan, [1, 2, 3, 4], 3, 4, 0)))[0])

    async with in_line(driver, run_id) as line:
        await line.joins(lambda: driver.store.expand_map(page_of(run_id, plan, [1, 2, 3, 4], 2, 3, 0)))
        await line.joins(lambda: driver.apply(run_id, CancelRequested()))
    await third()
    assert stored == [False]
    assert set((await rows(driver, run_id)).values()) == {"cancelled"}
    assert len(await rows(driver, run_id)) == 3
    assert await driver.claim(10) == []
    await sound(driver, run_id)


async def test_one_of_two_coordinators_stores_a_page(driver: Driver) -> None:
    """Of two who store the same page at the same moment one does, and the other is told how far the map is."""
    plan = a_map()
    run_id = await driver.start(plan)
    (task,) = await driver.claim(10, steps={"items"})
    await driver.apply(run_id, done(task, "[1, 2, 3]"))
    answers: list[tuple[bool, Any]] = []

    async def store() -> None:
        answers.append(await driver.store.expand_map(page_of(run_id, plan, [1, 2, 3], 0, 2, 0)))

    async with in_line(driver, run_id) as line:
        await line.joins(store)
        await line.joins(store)
    assert sorted(taken for taken, _ in answers) == [False, True]
    assert len(await rows(driver, run_id)) == 2
    assert len(await driver.claim(10, steps={"each"})) == 2
    await sound(driver, run_id)


async def test_two_ends_of_one_map_are_one(driver: Driver) -> None:
    """Two workers report the last two items at the same moment: both are counted, and the map completes once."""
    run_id = await mapping(driver, [1, 2])
    one, two = await driver.claim(10, steps={"each"})
    async with in_line(driver, run_id) as line:
        await line.joins(lambda: driver.apply(run_id, done(one, '"one"')))
        await line.joins(lambda: driver.apply(run_id, done(two, '"two"')))
    assert await letter(driver, run_id) == "C"
    history = await driver.store.history(run_id)
    assert [e["event"] for row in history for e in row.changes["events"]].count("map-completed") == 1
    assert len(await driver.claim(10, steps={"reader"})) == 1
    await sound(driver, run_id)


async def test_items_handed_out_while_a_map_drains_are_not_withdrawn(driver: Driver) -> None:
    """An item that a worker claims while the withdrawal waits for the run stays that worker's, and its result ends the map."""
    run_id = await mapping(driver, [1, 2, 3])
    plan = await driver.store.load_plan((await driver.head(run_id)).plan_id)
    (bad,) = await driver.claim(1, steps={"each"})
    await driver.apply(run_id, failed(bad))
    claimed: list[Any] = []
    async with in_line(driver, run_id) as line:
        await line.joins(lambda: driver.store.withdraw_items(run_id, plan.nodes[1], 100))
        claimed += await driver.claim(1, steps={"each"})
    assert sorted((await rows(driver, run_id)).values()) == ["failed", "leased", "withdrawn"]
    assert await counts(driver, run_id) == (3, 0, 1, 1)
    await driver.apply(run_id, done(claimed[0]))
    assert (await driver.head(run_id)).snapshot.status == "failed"
    await sound(driver, run_id)


async def test_commits_of_items_in_opposite_orders_do_not_deadlock(driver: Driver) -> None:
    """Batches over the same twelve maps in different orders, beside claims, pages, withdrawals and sweeps, deadlock nowhere."""
    store = driver.store
    assert isinstance(store, PostgresStore)
    plan = a_map(max_concurrency=20, tolerate=2)
    runs = [await mapping(driver, list(range(60)), plan) for _ in range(12)]

    async def work(number: int) -> None:
        for turn in range(8):
            claimed = await driver.claim(60, owner=f"w{number}", steps={"each"})
            if number % 2:
                claimed.reverse()
            events: dict[str, list[Event]] = {}
            for i, task in enumerate(claimed):
                event: Event = StepReleased(task.task) if i % 5 == turn % 5 else done(task)
                if task.run.run_id == runs[3] and i % 3 == 0:
                    event = failed(task)
                events.setdefault(task.run.run_id, []).append(event)
            await Applier(store, owner=f"w{number}").apply(events)

    async def beside() -> None:
        for _ in range(10):
            await fire_due(store)
            await recover(store, lost_after=0.0)

    async with anyio.create_task_group() as group:
        for number in range(4):
            group.start_soon(work, number)
        group.start_soon(beside)
        group.start_soon(lambda: Applier(store).apply({run_id: [CancelRequested()] for run_id in reversed(runs[::4])}))
    await driver.later(11)
    await fire_due(store)
    await recover(store, lost_after=0.0)
    assert store.deadlocks == 0
    deadlocks = await query(store._url, "select deadlocks from pg_stat_database where datname = current_database()")
    assert deadlocks[0][0] == 0
    assert [violation async for violation in verify(store, Verified())] == []


WINDOW, ITEMS = 7, 2_400


async def test_window_is_never_exceeded_and_never_stalls(driver: Driver) -> None:
    """With three workers and two coordinators on one map, pages still being stored, no more items than its window are under way at any moment."""
    store = driver.store
    assert isinstance(store, PostgresStore)
    plan = a_map(max_concurrency=WINDOW, **RETRYING)
    run_id = await driver.start(plan)
    (task,) = await driver.claim(10, steps={"items"})
    await driver.apply(run_id, done(task, str(list(range(ITEMS)))))
    draw = random.Random(3)
    most: list[int] = []
    under_way = "select count(*) from composer.tasks where run_id = $1 and node = 1 and item >= 0 and state in ('ready', 'leased', 'delayed')"

    async def is_mapping() -> bool:
        return await letter(driver, run_id) == "M"

    async def work(number: int) -> None:
        while await is_mapping():
            claimed = await driver.claim(3, owner=f"w{number}", steps={"each"})
            if not claimed:
                await anyio.sleep(0.002)
            events = [
                failed(t) if t.task.failures == 0 and draw.random() < 0.02 else done(t, str(t.input)) for t in claimed
            ]
            if events:
                await Applier(store, owner=f"w{number}").apply({run_id: events})

    async def tend() -> None:
        while await is_mapping():
            await fire_due(store)
            await anyio.sleep(0.01)

    async def look() -> None:
        while await is_mapping():
            most.append((await query(store._url, under_way, run_id))[0][0])
            await anyio.sleep(0.02)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(work, number)
            for _ in range(2):
                group.start_soon(tend)
            group.start_soon(look)
    assert len(most) >= 10
    assert WINDOW - 2 <= max(most) <= WINDOW
    assert await letter(driver, run_id) == "C"
    stored = await store.load_values([(run_id, list_code(1))])
    assert stored.outputs[run_id, list_code(1)] == str(list(range(ITEMS))).replace(" ", "")
    assert store.deadlocks == 0
    await sound(driver, run_id)


RETRYING = {
    "retries": {"attempts": 3, "delay": 0.02, "backoff": 1.0, "max_delay": 1.0, "jitter": 0.0, "no_retry_on": []}
}


class CutStore(PostgresStore):
    """One commit of items in ten is applied and its answer lost; two in ten have their connection cut a moment after they were sent."""

    def __init__(self, url: str, namespace: str, name: str, draw: random.Random) -> None:
        super().__init__(url, namespace=namespace, connections=2)
        self.name, self.draw, self.cuts = name, draw, 0
        self.killer: Any = None

    def connection_options(self) -> dict[str, Any]:
        """As ever, with a name that tells whose connections they are."""
        options = super().connection_options()
        return {**options, "server_settings": {**options["server_settings"], "application_name": self.name}}

    async def commit_items(self, commits: Any) -> Any:
        """Commits, and may be cut."""
        fate = self.draw.random()
        if fate > 0.3:
            return await super().commit_items(commits)
        self.cuts += 1
        if fate < 0.1:
            await super().commit_items(commits)
            raise StoreUnavailable("the answer was lost")
        cut = asyncio.create_task(self._cut(self.draw.uniform(0.0, 0.003)))
        try:
            return await super().commit_items(commits)
        finally:
            await cut

    async def _cut(self, delay: float) -> None:
        await anyio.sleep(delay)
        kill = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1 and datname = current_database()"
        await self.killer.execute(kill, self.name)


async def test_four_committers_whose_connections_are_cut(driver: Driver) -> None:
    """Four workers commit 2,000 items while their commits are cut off at random: each result counts once, counts equal rows, history folds."""
    store = driver.store
    assert isinstance(store, PostgresStore)
    total = 2_000
    plan = a_map()
    run_id = await driver.start(plan)
    (task,) = await driver.claim(10, steps={"items"})
    await driver.apply(run_id, done(task, str(list(range(total)))))
    await fire_due(store)
    outcomes: Counter[str] = Counter()

    async def work(mine: CutStore) -> None:
        owner = mine.name
        while await letter(driver, run_id) == "M":
            # As a worker does: a claim whose answer is lost is read back.
            claimed = await persistently(
                lambda: mine.claim_tasks(queues=["default"], steps={"each"}, limit=10, owner=owner, lease=60.0), None
            )
            held = await persistently(lambda: mine.leased_to(owner, [run_id]), None)
            tasks = {(t.task.item, t.task.delivery): t for t in (*claimed, *held)}
            if not tasks:
                await anyio.sleep(0.01)
                continue
            reports: list[Event] = [done(t, f'"{t.input} by {owner}"') for t in tasks.values()]
            applied = await Applier(mine, owner=owner).apply({run_id: reports})
            outcomes["uncertain"] += len(applied.uncertain)
            # A commit that was applied before it was cut finds all of its reports applied the second time.
            outcomes["applied and cut"] += bool(applied.uncertain) and len(applied.ignored) == len(reports)

    async def tend() -> None:
        # Whoever's last answer was lost has not decided the end: a coordinator does.
        while await letter(driver, run_id) == "M":
            await fire_due(store)
            await anyio.sleep(0.2)

    stores = [CutStore(store._url, store.namespace, f"w{n}", random.Random(n)) for n in range(4)]
    with anyio.fail_after(90):
        async with AsyncExitStack() as stack:
            for mine in stores:
                await stack.enter_async_context(opened(mine))
                mine.killer = await asyncpg.connect(store._url)
                stack.push_async_callback(mine.killer.close)
            async with anyio.create_task_group() as group:
                for mine in stores:
                    group.start_soon(work, mine)
                group.start_soon(tend)
    cuts = sum(mine.cuts for mine in stores)
    print(f"\n{cuts} commits cut, {dict(outcomes)}")
    assert cuts >= 20
    assert outcomes["applied and cut"] >= 5
    assert outcomes["uncertain"] > outcomes["applied and cut"], "none was cut before it was applied"
    (run,) = [run for run in await store.audit(None, 100) if run.record.head.run_id == run_id]
    folded = fold(plan, [row.changes for row in run.history])
    assert folded.run == run.record.head.snapshot
    tallies = {item: tally for (node, item), tally in folded.tasks.items() if node == 1 and item >= 0}
    assert {item: tally.completions for item, tally in tallies.items()} == dict.fromkeys(range(total), 1)
    made = run.record.maps[1]
    assert (made.completed, made.failed, made.withdrawn) == (total, 0, 0)
    items = [t for t in run.record.tasks if t.node == 1 and t.item >= 0]
    assert [(t.state, (t.output or "").split()[0]) for t in items] == [("completed", f'"{i}') for i in range(total)]
    assert sum(mine.deadlocks for mine in stores) == 0
    await sound(driver, run_id)


async def test_stop_comes_through_however_many_report(driver: Driver) -> None:
    """A deadline that passes while three workers report items as fast as they can stops the run within a second, with all its items."""
    store = driver.store
    plan = a_map()
    run_id = await mapping(driver, list(range(3_000)), plan)
    took: list[float] = []

    async def work(number: int) -> None:
        while (await driver.head(run_id)).snapshot.status == "running":
            claimed = await driver.claim(5, owner=f"w{number}", steps={"each"})
            if claimed:
                await store.commit_items([ItemCommit(run_id, plan, item_changes(plan, [done(t) for t in claimed]))])

    async def some_completed() -> bool:
        return (await counts(driver, run_id))[1] > 10

    async def stop() -> None:
        await until(some_completed)
        began = anyio.current_time()
        applied = await Applier(store).apply({run_id: [DeadlinePassed()]})
        took.append(anyio.current_time() - began)
        assert run_id in applied.transitions

    async with anyio.create_task_group() as group:
        for number in range(3):
            group.start_soon(work, number)
        group.start_soon(stop)
    assert took[0] < 2.0
    states = Counter((await rows(driver, run_id)).values())
    assert set(states) == {"completed", "cancelled"}
    assert min(states.values()) > 10
    # What a claim had in its hands at the moment of the stop, the next one drops.
    assert await driver.claim(500) == []
    await sound(driver, run_id)


async def test_map_that_the_database_will_not_have_stops_no_other(driver: Driver) -> None:
    """A page that the database refuses takes its run aside, with the reason; the map that was due beside it is stored, and timers go on."""
    store = driver.store
    assert isinstance(store, PostgresStore)
    await execute(store._url, """alter table composer.tasks add constraint refused check (input <> '"bad"')""")
    runs: list[str] = []
    for items in ('["good", "bad"]', '["good"]'):
        runs.append(await driver.start(a_map()))
        (task,) = await driver.claim(10, steps={"items"})
        await driver.apply(runs[-1], done(task, items))
    await fire_due(store)
    bad, good = [await driver.record(run_id) for run_id in runs]
    assert bad.quarantine is not None
    assert "refused" in bad.quarantine
    assert good.quarantine is None
    assert await rows(driver, runs[1]) == {0: "ready"}
    # Once the reason is gone, the run goes on where it was.
    await execute(store._url, "alter table composer.tasks drop constraint refused")
    assert await store.release(runs[0])
    await driver.later(11)
    await fire_due(store)
    assert await rows(driver, runs[0]) == {0: "ready", 1: "ready"}
    await sound(driver, runs[0])


async def test_item_that_the_database_will_not_have_stops_no_other(driver: Driver) -> None:
    """A result that the database refuses takes its run aside, though others have reported items of it since; other runs' results count."""
    store = driver.store
    assert isinstance(store, PostgresStore)
    await execute(store._url, """alter table composer.tasks add constraint refused check (output <> '"bad"')""")
    one, other = [await mapping(driver, [1, 2, 3]) for _ in range(2)]
    applier = Applier(store, owner="w")
    tasks = await driver.claim(10, steps={"each"})
    for task in tasks:
        await applier.remember(task)
    mine = [task for task in tasks if task.run.run_id == one]
    await driver.apply(one, done(mine[2]))
    reports: dict[str, list[Event]] = {
        one: [done(mine[0], '"bad"'), done(mine[1])],
        other: [done(task) for task in tasks if task.run.run_id == other],
    }
    applied = await applier.apply(reports)
    assert {ignored.reason for ignored in applied.ignored} == {"the run is quarantined"}
    assert "refused" in ((await driver.record(one)).quarantine or "")
    assert await counts(driver, one) == (3, 1, 0, 0)
    assert await letter(driver, other) == "C"
    await sound(driver, other)
