"""The cost contract of docs and design: how many statements each operation sends, counted on the connections."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import asyncpg
import pytest

from composer import AsyncClient, Settings, Worker, step, workflow
from composer.apply import Applier
from composer.coordinator.timers import fire_due
from composer.core.events import StepReleased
from composer.core.items import item_changes, items_of
from composer.core.plan import Plan
from composer.core.values import Values
from composer.ports.store import Beat, ItemCommit, MapPage, RunCommit
from composer.postgres.encode import encode_items, encode_one, encode_page, encode_start, encode_start_one, encode_steps
from composer.postgres.store import PostgresStore
from tests.contract.driver import Driver, a_plan, done, opened
from tests.contract.test_map_items import a_map, mapping
from tests.postgres.observed import ObservedStore, until


@step
async def first(value: int) -> int:
    """Begins a chain."""
    return value


@step
async def add(value: int) -> int:
    """One link."""
    return value + 1


@step
async def join(left: int, right: int) -> int:
    """The end of a diamond."""
    return left + right


LINKS = 10


@workflow
def chain(value: int) -> int:
    """Ten steps in a row."""
    value = first(value)
    for _ in range(LINKS - 1):
        value = add(value)
    return value


@workflow
def diamond(value: int) -> int:
    """One, two, one."""
    top = first(value)
    return join(left=add(top), right=add(top))


@workflow
def single(value: int) -> int:
    """One step."""
    return add(value)


@pytest.fixture
async def store(database: str, namespace: str) -> AsyncIterator[ObservedStore]:
    """An observed store in a namespace of its own."""
    store = ObservedStore(database, namespace=namespace, connections=4)
    await store.open()
    yield store
    await store.close()


@asynccontextmanager
async def a_worker(store: PostgresStore, *flows: Any, **options: Any) -> AsyncIterator[Worker]:
    """A worker without a coordinator, once it sleeps."""
    settings = Settings(coordinator=False, **options)
    async with Worker(flows or [chain], settings, store=store) as worker:
        if isinstance(store, ObservedStore):
            # It says once that it sleeps, looks again, and sleeps; it and its keeper have said that they live.
            await until(lambda: store.names()["with lapsed_sleepers as"] and store.names()["claim"] >= 2)
            await until(lambda: store.names()["with lapsed_workers as"] >= 2)
            await store.listening.wait()
        yield worker


def work_of(store: ObservedStore) -> Counter[str]:
    """What was sent on behalf of runs, without signs of life and polls."""
    names = store.names()
    return Counter(
        {name: names[name] for name in ("start", "commit_steps", "commit_rare", "load_values") if names[name]}
    )


@pytest.mark.parametrize("count", [1, 100])
async def test_start_is_one_statement(store: ObservedStore, count: int) -> None:
    """Starting one run or a hundred of a known workflow sends one statement."""
    async with AsyncClient(store=store) as client:
        await client.start(single, 0)
        store.sent.clear()
        await client.start_many(single, [(i,) for i in range(count)])
        assert store.names() == {"start": 1}


async def test_start_of_a_new_workflow_registers_its_plan_once(store: ObservedStore) -> None:
    """The first start of a workflow sends one statement more, later starts do not."""
    async with AsyncClient(store=store) as client:
        store.sent.clear()
        for i in range(3):
            await client.start(single, i)
        assert store.names() == {"with p as": 1, "start": 3}


async def test_claim_is_one_statement_with_arguments(store: ObservedStore) -> None:
    """Claiming fifty tasks with the outputs they read sends one statement."""
    driver = Driver(store)
    plan = a_plan({"a": [], "b": ["a", "input"]})
    for _ in range(50):
        await driver.start(plan)
    for task in await driver.claim():
        await driver.apply(task.run.run_id, done(task))
    store.sent.clear()
    claimed = await driver.claim()
    assert [len(task.values) for task in claimed] == [2] * 50
    assert store.names() == {"claim": 1}


async def test_commit_of_many_runs_is_one_statement(store: ObservedStore) -> None:
    """Reports of fifty runs, two steps each, are committed in one statement."""
    driver = Driver(store)
    plan = a_plan({"a": [], "b": [], "c": ["a", "b"]})
    for _ in range(50):
        await driver.start(plan)
    commits: dict[str, list[Any]] = {}
    for task in await driver.claim():
        commits.setdefault(task.run.run_id, []).append(done(task))
    batch = [await driver.commit_of(await driver.head(run_id), *events) for run_id, events in commits.items()]
    store.sent.clear()
    answers = (await store.commit(batch)).answers
    assert {answer.verdict for answer in answers} == {"won"}
    assert store.names() == {"commit_steps": 1}


async def test_lost_race_costs_one_statement_more(store: ObservedStore) -> None:
    """A commit in which ten of twenty runs were changed meanwhile sends two statements, however many lost."""
    driver = Driver(store)
    plan = a_plan({"a": [], "b": [], "c": ["a", "b"]})
    runs = [await driver.start(plan) for _ in range(20)]
    applier = Applier(store, owner="w")
    claimed = await driver.claim()
    for task in claimed:
        await applier.remember(task)
    a = {task.run.run_id: task for task in claimed if task.step == "a"}
    b = {task.run.run_id: task for task in claimed if task.step == "b"}
    for run_id in runs[::2]:
        await driver.apply(run_id, done(b[run_id]))
    store.sent.clear()
    applied = await applier.apply({run_id: [done(a[run_id])] for run_id in runs})
    assert len(applied.transitions) == 20
    assert store.names() == {"commit_steps": 2}


async def test_late_report_costs_one_statement_more(store: ObservedStore) -> None:
    """A report that comes after its lease was swept is heard by a second statement."""
    driver = Driver(store)
    run_id = await driver.start()
    claimed = await driver.claim_one()
    await store._fetch(
        "testing",
        "update composer.tasks set state = 'ready', lease_owner = null, lease_expires_at = null where run_id = $1 and node = 0",
        run_id,
    )
    head = await driver.head(run_id)
    commit = await driver.commit_of(head, done(claimed))
    store.sent.clear()
    assert (await store.commit([commit])).answers[0].verdict == "won"
    assert store.names() == {"commit_steps": 1, "commit_rare": 1}


async def test_renewal_of_all_leases_is_one_statement(store: ObservedStore) -> None:
    """Renewing fifty leases sends one statement."""
    driver = Driver(store)
    for _ in range(50):
        await driver.start()
    beats = [Beat(task.run.run_id, task.task, 15.0) for task in await driver.claim()]
    store.sent.clear()
    assert set(await store.renew(beats, owner="w")) == {"owned"}
    assert store.names() == {"renew": 1}


async def test_chain_on_one_worker_costs_its_steps_and_the_start(store: ObservedStore) -> None:
    """A chain started beside its worker sends one start and one commit a step, and nothing else for the run."""
    async with a_worker(store) as worker, AsyncClient(store=worker.store) as client:
        assert await (await client.start(chain, 0)).result(timeout=10) == LINKS - 1
        await until(lambda: worker.loop.is_idle)
        store.sent.clear()
        assert await (await client.start(chain, 5)).result(timeout=10) == LINKS + 4
        await until(lambda: worker.loop.is_idle)
        assert work_of(store) == {"start": 1, "commit_steps": LINKS}
        others = store.names() - work_of(store)
        # One read of how it ended at most; a poll may fall into the time it takes.
        assert others.keys() <= {"claim", "run_ends"}
        assert others["run_ends"] <= 1
        assert others["claim"] <= 1


async def test_chain_started_elsewhere_costs_one_claim_more(store: ObservedStore, database: str) -> None:
    """A chain of n steps started in another process is n + 2 statements: its start, one claim, one commit a step."""
    async with (
        opened(ObservedStore(database, namespace=store.namespace, connections=2)) as elsewhere,
        a_worker(store) as worker,
        AsyncClient(store=elsewhere) as client,
    ):
        await client.start(chain, 0)
        await until(lambda: worker.loop.executed == LINKS and worker.loop.is_idle)
        store.sent.clear()
        elsewhere.sent.clear()
        await client.start(chain, 0)
        await until(lambda: worker.loop.executed == 2 * LINKS and worker.loop.is_idle)
        assert work_of(store) == {"commit_steps": LINKS}
        assert elsewhere.names() == {"start": 1}
        # The claim that took it; one that found nothing more; and a poll may fall into the time it takes.
        assert 1 <= store.names()["claim"] <= 3


async def test_diamond_on_one_worker_reads_nothing(store: ObservedStore) -> None:
    """The join of a diamond whose branches ran on this worker gets their outputs without a read."""
    async with a_worker(store, diamond) as worker, AsyncClient(store=worker.store) as client:
        await (await client.start(diamond, 0)).result(timeout=10)
        store.sent.clear()
        assert await (await client.start(diamond, 1)).result(timeout=10) == 4
        await until(lambda: worker.loop.is_idle)
        work = work_of(store)
        assert work["start"] == 1
        assert 3 <= work["commit_steps"] <= 4
        assert work.keys() == {"start", "commit_steps"}


async def test_many_runs_share_their_commits(store: ObservedStore) -> None:
    """A hundred runs of ten steps need far fewer commits than steps, since what has finished meanwhile goes together."""
    async with a_worker(store) as worker, AsyncClient(store=worker.store) as client:
        store.sent.clear()
        async with anyio.create_task_group() as group:
            for handle in await client.start_many(chain, [(i,) for i in range(100)]):
                group.start_soon(handle.result)
        assert worker.loop.executed == 100 * LINKS
        work = work_of(store)
        assert work["start"] == 1
        assert work["commit_steps"] <= 100
        assert store.names()["claim"] <= 20


async def test_idle_worker_polls_once_a_second(store: ObservedStore) -> None:
    """A worker with nothing to do sends one claim a second, and its signs of life."""
    async with a_worker(store, poll_interval=0.3, lease=15.0):
        store.sent.clear()
        await until(lambda: store.names()["claim"] >= 5)
        claims = [each.at for each in store.sent if each.name == "claim"]
        assert claims[4] - claims[0] >= 4 * 0.3 * 0.9
        others = store.names() - Counter(claim=99)
        assert others.keys() <= {"select 1", "with lapsed_workers as", "with lapsed_sleepers as"}
        assert sum(others.values()) <= 3
    assert Settings().poll_interval == 1.0


async def test_worker_renews_all_its_leases_together(store: ObservedStore) -> None:
    """A worker with twenty running bodies renews them all in one statement an interval, a third of the lease."""
    release = anyio.Event()
    running = 0

    @step(name="hold")
    async def hold(value: int) -> int:
        nonlocal running
        running += 1
        await release.wait()
        return value

    @workflow(name="holding")
    def holding(value: int) -> int:
        return hold(value)

    async with a_worker(store, holding, lease=1.2) as worker, AsyncClient(store=worker.store) as client:
        await client.start_many(holding, [(i,) for i in range(20)])
        await until(lambda: running == 20)
        store.sent.clear()
        await until(lambda: store.names()["renew"] >= 3)
        renewals = [each for each in store.sent if each.name == "renew"]
        assert [len(each.args[1]) for each in renewals[:3]] == [20, 20, 20]
        assert renewals[2].at - renewals[0].at >= 2 * 0.4 * 0.9
        release.set()
        await until(lambda: worker.loop.is_idle)


# -- rows ----------------------------------------------------------------------------------------------------------


async def rows_written(store: PostgresStore, name: str, *args: Any) -> dict[str, tuple[int, int, int]]:
    """Rows that a statement inserts, updates and deletes, by table, as a connection of its own counted them."""
    connection = await asyncpg.connect(store._url)
    try:
        async with connection.transaction():
            await connection.fetch(getattr(store._sql, name), *args)
            rows = await connection.fetch(
                "select split_part(relname, '_', 1) as name, sum(n_tup_ins)::int, sum(n_tup_upd)::int, sum(n_tup_del)::int "
                "from pg_stat_xact_user_tables where schemaname = 'composer' group by 1"
            )
    finally:
        await connection.close()
    return {row["name"]: tuple(row)[1:] for row in rows if any(tuple(row)[1:])}


def encoded(name: str, namespace: str, commit: RunCommit) -> list[Any]:
    """Parameters of either of the two ordinary commits."""
    if name == "commit_one":
        return encode_one(namespace, commit, "w", 15.0)
    return encode_steps(namespace, [commit], "w", 15.0)


either = pytest.mark.parametrize("name", ["commit_one", "commit_steps"])


@either
async def test_eager_step_writes_two_task_rows_and_one_history_row(store: ObservedStore, name: str) -> None:
    """A step whose follower is handed over writes its run, its task, the new task and one history row; no outbox row."""
    driver = Driver(store)
    run_id = await driver.start(a_plan({"a": [], "b": ["a"], "c": ["b"]}))
    commit = await driver.commit_of(await driver.head(run_id), done(await driver.claim_one()), leased=("b",))
    written = await rows_written(store, name, *encoded(name, store.namespace, commit))
    assert written == {"runs": (0, 1, 0), "tasks": (1, 1, 0), "history": (1, 0, 0)}


@either
async def test_step_through_the_outbox_writes_one_row_more(store: ObservedStore, name: str) -> None:
    """A step whose follower anybody may claim writes one outbox row beside, which the claim deletes again."""
    driver = Driver(store)
    run_id = await driver.start(a_plan({"a": [], "b": ["a"], "c": ["b"]}))
    commit = await driver.commit_of(await driver.head(run_id), done(await driver.claim_one()))
    written = await rows_written(store, name, *encoded(name, store.namespace, commit))
    assert written == {"runs": (0, 1, 0), "tasks": (1, 1, 0), "history": (1, 0, 0), "outbox": (1, 0, 0)}
    written = await rows_written(store, "claim", store.namespace, ["default"], ["b"], 10, "w", 15.0, 0)
    assert written == {"tasks": (0, 1, 0), "outbox": (0, 0, 1)}


@either
async def test_last_step_writes_the_result_beside(store: ObservedStore, name: str) -> None:
    """The step that ends its run writes the run's own task row, which holds the output, and nothing new."""
    driver = Driver(store)
    run_id = await driver.start()
    commit = await driver.commit_of(await driver.head(run_id), done(await driver.claim_one()))
    written = await rows_written(store, name, *encoded(name, store.namespace, commit))
    assert written == {"runs": (0, 1, 0), "tasks": (0, 2, 0), "history": (1, 0, 0)}


@either
async def test_nobody_asleep_nobody_notified(store: ObservedStore, name: str) -> None:
    """While nobody sleeps neither a start nor a commit notifies; while somebody does each notifies once."""
    driver = Driver(store)

    async def notified(statement: str, *args: Any) -> int:
        return (await store._fetch("testing", getattr(store._sql, statement), *args))[0]["notified"]

    for asleep in (0, 1):
        if asleep:
            await store.set_sleeping("me", asleep=True, ttl=60.0)
        run = await driver.new(a_plan({"a": [], "b": ["a"]}))
        if name == "commit_one":
            assert await notified("start_one", *encode_start_one(store.namespace, run, "", 0.0)) == asleep
        else:
            assert await notified("start", *encode_start(store.namespace, [run], "", 0.0)) == asleep
        claimed = await driver.claim_one()
        await driver.apply(run.run_id, StepReleased(claimed.task))
        commit = await driver.commit_of(await driver.head(run.run_id), done(await driver.claim_one()))
        assert await notified(name, *encoded(name, store.namespace, commit)) == asleep
        await driver.claim()


# -- maps ----------------------------------------------------------------------------------------------------------


async def test_items_of_any_number_of_runs_are_one_statement(store: ObservedStore) -> None:
    """Forty items of four maps are claimed with one statement and reported with one; the ends of all four are one more."""
    driver = Driver(store)
    runs = [await mapping(driver, list(range(10))) for _ in range(4)]
    store.sent.clear()
    claimed = await driver.claim(40, steps={"each"})
    assert store.names() == {"claim": 1}
    assert len(claimed) == 40
    store.sent.clear()
    applier = Applier(store, owner="w")
    for task in claimed:
        await applier.remember(task)
    batch = {run_id: [done(task) for task in claimed if task.run.run_id == run_id] for run_id in runs}
    half = {run_id: reports[:5] for run_id, reports in batch.items()}
    await applier.apply(half)
    assert store.names() == {"commit_items": 1}
    store.sent.clear()
    await applier.apply({run_id: reports[5:] for run_id, reports in batch.items()})
    assert store.names() == {"commit_items": 1, "commit_rare": 1}


async def test_start_of_a_map_is_one_statement(store: ObservedStore) -> None:
    """A run that begins with a map starts with one statement, and its items are stored with one a thousand."""

    @step(name="same")
    async def same(n: int) -> int:
        return n

    @workflow(name="wide")
    def wide(numbers: list[int]) -> list[int]:
        return same.map(numbers)

    async with AsyncClient(store=store) as client:
        await client.start(wide, [1])
        store.sent.clear()
        await client.start(wide, list(range(2_500)))
        assert store.names() == {"start": 1}
        store.sent.clear()
        await fire_due(store)
        assert store.names()["expand_map"] == 1 + 3


async def test_waits_cost_one_statement(store: ObservedStore) -> None:
    """Waits that a start or a report begins are in its one statement; all timers due in a pass are one commit."""
    driver, body = Driver(store), [
        {"name": "a", "kind": "step", "step": "a", "args": {}},
        {"name": "s", "kind": "sleep", "args": {"for": 60}},
        {"name": "w", "kind": "wait", "event": "go", "schema": {}, "timeout": 60, "on_timeout": {"const": 1}, "args": {}},
        {"name": "t", "kind": "sleep", "args": {"until": "2099-01-01T00:00:00Z"}, "after": [{"ref": "a"}]},
    ]  # fmt: skip
    plan = Plan({"format": 1, "workflow": "waits", "params": {}, "nodes": body, "output": None})
    news = [await driver.new(plan) for _ in range(10)]
    store.sent.clear()
    await store.start_runs(news)
    assert store.names() == {"start": 1}
    claimed = await driver.claim()
    assert len(claimed) == 10
    applier = Applier(store, owner="w")
    for task in claimed:
        await applier.remember(task)
    store.sent.clear()
    await applier.apply({task.run.run_id: [done(task)] for task in claimed})
    assert sum(store.names().values()) == 1
    await driver.later(61)
    await fire_due(store)
    assert {(await driver.head(each.run_id)).snapshot.letters.text for each in news} == {"CCCW"}
    # Twenty timers of ten runs, in this pass: one look that finds them, and one commit.
    await driver.start(plan)
    await driver.later(61)
    store.sent.clear()
    await fire_due(store)
    assert (store.names()["due_waits"], store.names()["commit_rare"]) == (1, 1)


async def test_an_item_is_one_row_written_three_times(store: ObservedStore) -> None:
    """Stored, claimed, reported: each time its one row, with an outbox row that the claim deletes, and a row of history a batch."""
    driver = Driver(store)
    plan = a_map()
    run_id = await driver.start(plan)
    (task,) = await driver.claim(10, steps={"items"})
    await driver.apply(run_id, done(task, json.dumps(list(range(100)))))
    found = items_of(plan, plan.nodes[1], Values("C..", {0: json.dumps(list(range(100)))}))
    page = MapPage(run_id, plan, 1, 0, 100, found.texts[:50], 0, 0, found.digest)
    stored = await rows_written(store, "expand_map", *encode_page(store.namespace, page))
    # The map's own task is told when to look again.
    assert stored == {
        "tasks": (50, 1, 0), "outbox": (50, 0, 0), "maps": (1, 0, 0), "runs": (0, 1, 0), "history": (1, 0, 0),
    }  # fmt: skip
    claim = (store.namespace, ["default"], ["each"], 50, "w", 15.0, 0)
    assert await rows_written(store, "claim", *claim) == {"tasks": (0, 50, 0), "outbox": (0, 0, 50)}
    claimed = [task for task in await store.leased_to("w", [run_id]) if task.task.item >= 0]
    assert len(claimed) == 50
    commit = ItemCommit(run_id, plan, item_changes(plan, [done(task) for task in claimed]))
    reported = await rows_written(store, "commit_items", *encode_items(store.namespace, [commit]))
    assert reported == {"tasks": (0, 50, 0), "maps": (0, 1, 0), "runs": (0, 1, 0), "history": (1, 0, 0)}
