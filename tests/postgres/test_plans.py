"""Plans of the hot statements, made on empty tables that nobody ever analysed, must not change with the tables' size.

Each statement is prepared on empty tables with the settings of the store's own connections, then the tables are filled
and the same plan is run: no node of it may read more rows than the batch holds, give or take a few.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from composer.core.events import CancelRequested, LeaseExpired, RetryRequested, StepReleased, StepSnoozed
from composer.core.items import item_changes, items_of
from composer.core.plan import INPUT, part_code
from composer.core.states import RunStatus
from composer.core.values import Values
from composer.ports.store import Beat, ClaimedTask, ItemCommit, MapPage, RunQuery
from composer.postgres.partitions import lower_bound, month_after
from composer.postgres.store import SESSION, PostgresStore
from tests.contract.driver import Driver, a_plan, done, failed
from tests.contract.test_map_items import a_map
from tests.servers import Server

TASKS = 50_000
BATCH = 20
PLAN = a_plan(
    {"a": ["input"], "b": ["input"], "c": ["a", "b"], "d": ["a", "c"]},
    options={"a": {"retries": {"attempts": 9, "delay": 9.0, "backoff": 1.0, "max_delay": 9.0, "jitter": 0.0, "no_retry_on": []}}},
)  # fmt: skip

# A quarter of the tasks' number of runs, in three namespaces, one of them the test's own; every other run is open.
FILL = f"""
insert into composer.runs (namespace, id, workflow, plan, status, version, letters, finished_at)
select substr('nop', 1 + i % 3, 1), ('01900000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid, 'flow', 1,
       case when i % 2 = 0 then 'running' else 'completed' end, 3, 'CA..', case when i % 2 = 1 then now() end
  from generate_series(1, {TASKS // 4}) i;
insert into composer.tasks (namespace, run_id, node, step, queue, state, output, reads, lease_owner, lease_expires_at, wake_at)
select r.namespace, r.id, n, 'a', case r.namespace when 'n' then 'other' else 'default' end, s.state,
       case when s.state = 'completed' then '1' end, '{{-1}}', case when s.state = 'leased' then 'somebody' end,
       case when s.state = 'leased' then now() + interval '1 h' end, case when s.state = 'delayed' then now() + interval '1 h' end
  from composer.runs r, generate_series(-1, 2) n,
       lateral (select case when r.status = 'completed' or n < 1 then 'completed'
                            when hashtext(r.id::text) % 3 = 0 then 'leased' when hashtext(r.id::text) % 3 = 1 then 'delayed'
                            else 'ready' end as state) s;
insert into composer.outbox (namespace, queue, priority, run_id, node, item, step)
select namespace, queue, 0, run_id, node, item, step from composer.tasks where state = 'ready';
insert into composer.history (namespace, run_id, version, changes)
select namespace, id, v, '{{}}' from composer.runs, generate_series(1, 3) v;
insert into composer.run_keys (namespace, workflow, key, run_id, input_digest)
select namespace, workflow, id::text, id, '' from composer.runs
"""


class ExplainingStore(PostgresStore):
    """Runs its statements through plans that were made when `freeze` said so; `plans` has what they did."""

    def __init__(self, connection: Any, namespace: str) -> None:
        super().__init__("", namespace=namespace)
        self.connection = connection
        self.names: dict[str, str] = {}
        self.plans: list[tuple[str, dict[str, Any]]] = []
        self._ids.heard(time.time())

    async def open(self) -> None:
        """It has its connection."""

    async def freeze(self) -> None:
        """Prepares every statement, and has its plan made, now."""
        for name in self._sql.__slots__:
            text = getattr(self._sql, name)
            types = [_type(each) for each in (await self.connection.prepare(text)).get_parameters()]
            await self.connection.execute(f"prepare {name}({', '.join(types)}) as {text}")
            await self.connection.execute(f"explain execute {name}({', '.join(f'null::{each}' for each in types)})")
            self.names[text] = name

    async def _fetch(self, doing: str, text: str, *args: Any) -> list[Any]:
        name = self.names.get(text)
        if name is not None:
            types = [_type(each) for each in (await self.connection.prepare(text)).get_parameters()]
            values = ", ".join(f"${i}::{each}::text" for i, each in enumerate(types, 1))
            quoted = await self.connection.fetchval(
                f"select array(select quote_nullable(x) from unnest(array[{values}]) as u(x))", *args
            )
            literals = ", ".join(f"{value}::{each}" for value, each in zip(quoted, types, strict=True))
            transaction = self.connection.transaction()
            await transaction.start()
            found = await self.connection.fetchval(
                f"explain (analyze, timing off, format json) execute {name}({literals})"
            )
            await transaction.rollback()
            self.plans.append((name, json.loads(found)[0]))
        rows: list[Any] = await self.connection.fetch(text, *args)
        return rows


def _type(found: Any) -> str:
    return f"{found.name.removesuffix('[]')}[]" if found.kind == "array" else str(found.name)


def nodes_of(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every node of a plan."""
    yield plan
    for each in plan.get("Plans", ()):
        yield from nodes_of(each)


def rows_read(node: dict[str, Any]) -> float:
    """Rows a node read in all its loops, kept or not."""
    removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    return (node["Actual Rows"] + removed) * node["Actual Loops"]


BIG = {"runs", "tasks", "outbox", "history", "run_keys", "maps", "signals"}


def check(plans: list[tuple[str, dict[str, Any]]], most: int) -> None:
    """No node scans a big table whole or reads more than `most` rows."""
    assert plans
    for name, found in plans:
        for node in nodes_of(found["Plan"]):
            relation = node.get("Relation Name", "")
            where = f"{name}: {node['Node Type']} on {relation} {node.get('Index Name', '')}"
            assert not (node["Node Type"] == "Seq Scan" and relation.split("_2")[0] in BIG), where
            if relation in BIG or relation.startswith("history"):
                assert rows_read(node) <= most, f"{where} reads {rows_read(node):.0f} rows, and {most} are enough"
            else:
                # Filters between common table expressions: a hashed look-up, never one against all.
                assert rows_read(node) <= most * BATCH / 4, f"{where} reads {rows_read(node):.0f} rows"


@asynccontextmanager
async def unattended(server: Server, *tables: str) -> AsyncIterator[Any]:
    """A connection to a database of its own, where nobody tidies or counts these tables behind the test's back."""
    url = server.database()
    connection = await asyncpg.connect(url, server_settings={**SESSION, "application_name": "composer"})
    try:
        for table in tables:
            await connection.execute(f"alter table composer.{table} set (autovacuum_enabled = off)")
        yield connection
    finally:
        await connection.close()
        server.drop(url)


@pytest.fixture
async def store(each_server: Server) -> AsyncIterator[ExplainingStore]:
    """A store whose plans were made on empty tables, on tables that are full now."""
    async with unattended(each_server, "runs", "tasks", "outbox", "run_keys", "history_default") as connection:
        for ahead in range(36):
            year, month = month_after(2024, 1, ahead)
            await connection.execute(
                f"create table if not exists composer.history_{year:04}_{month:02} partition of composer.history "
                f"for values from ('{lower_bound(year, month)}') to ('{lower_bound(*month_after(year, month))}')"
            )
        store = ExplainingStore(connection, "n")
        await store.freeze()
        await connection.execute(FILL)
        yield store


async def test_plans_made_on_empty_tables_read_what_the_batch_holds(store: ExplainingStore) -> None:
    """With plans made on empty tables, fifty thousand tasks and 36 months of history no hot statement reads more rows than its batch holds."""
    count = await store.connection.fetchval("select count(*) from composer.tasks")
    assert count >= TASKS
    assert await store.connection.fetchval("select count(*) from pg_inherits") >= 36
    analysed = await store.connection.fetchval(
        "select count(*) from pg_stat_user_tables where relname in ('runs', 'tasks', 'outbox') "
        "and (last_analyze is not null or last_autoanalyze is not null)"
    )
    assert analysed == 0
    driver = Driver(store)
    # A backlog of the namespace's own, in the same queue.
    runs = [await driver.new(PLAN, key=f"k{i}", priority=i % 3) for i in range(5 * BATCH)]
    for start in range(0, len(runs), BATCH):
        await store.start_runs(runs[start : start + BATCH])
    check(store.plans, 3 * BATCH)
    store.plans.clear()

    claimed = await driver.claim(BATCH)
    assert len(claimed) == BATCH
    check(store.plans, 4 * BATCH)
    store.plans.clear()

    await store.renew([Beat(task.run.run_id, task.task, 60.0, '"x"') for task in claimed], owner="w")
    check(store.plans, 2 * BATCH)
    store.plans.clear()

    # Reports of all kinds, each run with what was claimed of it.
    by_run: dict[str, list[ClaimedTask]] = {}
    for task in claimed:
        by_run.setdefault(task.run.run_id, []).append(task)
    commits = []
    for i, (run_id, tasks) in enumerate(by_run.items()):
        events: list[Any] = []
        for task in tasks:
            if i % 4 == 0:
                events.append(StepReleased(task.task))
            elif i % 4 == 1:
                events.append(StepSnoozed(task.task, 0.001))
            elif i % 4 == 2 and task.step == "a":
                events.append(failed(task))
            else:
                events.append(done(task))
        if i < 5:
            events = [done(tasks[0])]
        commits.append(await driver.commit_of(await driver.head(run_id), *events))
    store.plans.clear()
    singles = commits[:5]
    for single in singles:
        assert (await store.commit([single], owner="w", lease=15.0)).answers[0].verdict == "won"
    check(store.plans, 3 * BATCH)
    store.plans.clear()

    rest = [commit for commit in commits if commit not in singles]
    answers = (await store.commit(rest, owner="w", lease=15.0)).answers
    assert {answer.verdict for answer in answers} == {"won"}
    check(store.plans, 3 * BATCH)
    store.plans.clear()

    lost = (await store.commit(commits, owner="w", lease=15.0)).answers
    assert {answer.verdict for answer in lost} == {"lost"}
    check(store.plans, 3 * BATCH)
    store.plans.clear()

    assert await store.move_due_tasks(BATCH) > 0
    check(store.plans, 3 * BATCH)
    store.plans.clear()

    ids = list(by_run)
    assert await store.load_values([(run_id, node) for run_id in ids for node in (INPUT, 0, 1)])
    assert await store.run_ends(ids)
    assert await store.load_heads(ids)
    await store.leased_to("w", ids)
    await store.next_due_in()
    await store.due_runs(BATCH)
    await store.unknown_steps(queues=["default"], steps=["a"], limit=BATCH)
    check(store.plans, 5 * BATCH)


async def test_rare_commits_read_what_the_batch_holds(store: ExplainingStore) -> None:
    """Sweeps, stops and retries read no more than the tasks of the runs they are about."""
    driver = Driver(store)
    runs = [await driver.start(PLAN) for _ in range(BATCH)]
    claimed = await driver.claim(2 * BATCH)
    assert len(claimed) == 2 * BATCH
    await store.connection.execute(
        "update composer.tasks set lease_expires_at = now() - interval '1 s' where namespace = 'n' and state = 'leased'"
    )
    store.plans.clear()
    expired = await store.expired_tasks(BATCH)
    assert len(expired) == BATCH
    check(store.plans, 2 * BATCH)
    by_run: dict[str, list[Any]] = {}
    for head, delivery in expired:
        by_run.setdefault(head.run_id, []).append(LeaseExpired(delivery))
    commits = [await driver.commit_of(await driver.head(run_id), *events) for run_id, events in by_run.items()]
    store.plans.clear()
    assert {answer.verdict for answer in (await store.commit(commits)).answers} == {"won"}
    check(store.plans, 4 * BATCH)

    commits = [await driver.commit_of(await driver.head(run_id), CancelRequested()) for run_id in runs[: BATCH // 2]]
    store.plans.clear()
    assert {answer.verdict for answer in (await store.commit(commits)).answers} == {"won"}
    check(store.plans, 4 * BATCH)

    other = runs[BATCH // 2 :]
    events: dict[str, list[Any]] = {}
    for task in claimed:
        if task.run.run_id in other and task.run.run_id not in by_run:
            events.setdefault(task.run.run_id, []).append(failed(task, retryable=False))
    retried = list(events)
    for run_id, each in events.items():
        await driver.apply(run_id, *each)
    commits = [await driver.commit_of(await driver.head(run_id), RetryRequested()) for run_id in retried]
    assert commits
    store.plans.clear()
    assert {answer.verdict for answer in (await store.commit(commits)).answers} == {"won"}
    check(store.plans, 4 * BATCH)


# A map of many items beside, in the test's own namespace: half of them completed, the others waiting behind a window.
WIDE = """
insert into composer.tasks (namespace, run_id, node, item, step, queue, state, input, output)
select namespace, run_id, 1, i, 'each', 'default', case when i < 10000 then 'completed' else 'held' end, '1', case when i < 10000 then '1' end
  from (select namespace, run_id from composer.maps limit 1) m, generate_series(1000, 20000) i
"""


async def test_items_read_what_the_batch_holds(store: ExplainingStore) -> None:
    """Storing a page, claiming and reporting items of a map of twenty thousand reads no more than the batch."""
    driver = Driver(store)
    plan = a_map(reader=False, max_concurrency=2 * BATCH, tolerate=3)
    run_id = await driver.start(plan)
    (task,) = await driver.claim(10, steps={"items"})
    await driver.apply(run_id, done(task, json.dumps(list(range(20_000)))))
    store.plans.clear()
    (due,) = await store.take_due_waits(BATCH, 10.0)
    check(store.plans, 2 * BATCH)
    found = items_of(plan, plan.nodes[1], Values("C..", {0: json.dumps(list(range(20_000)))}))
    store.plans.clear()
    for first in (0, BATCH, 2 * BATCH):
        texts = found.texts[first : first + BATCH]
        page = MapPage(run_id, plan, 1, first, 20_000, texts, 3, 0, found.digest)
        assert (await store.expand_map(page))[0]
    check(store.plans, 2 * BATCH)
    await store.connection.execute(WIDE)
    store.plans.clear()

    claimed = await driver.claim(BATCH, steps={"each"})
    assert len(claimed) == BATCH
    check(store.plans, 4 * BATCH)
    store.plans.clear()

    reports = [failed(each) if i % 7 == 6 else done(each) for i, each in enumerate(claimed)]
    (answer,) = await store.commit_items([ItemCommit(run_id, plan, item_changes(plan, reports))])
    assert answer is not None
    assert len(answer.applied) == BATCH
    check(store.plans, 4 * BATCH)
    store.plans.clear()

    page = MapPage(run_id, plan, 1, 3 * BATCH, 20_000, found.texts[3 * BATCH : 4 * BATCH], 3, 0, found.digest)
    assert (await store.expand_map(page))[0]
    check(store.plans, 2 * BATCH)
    store.plans.clear()
    await store.load_values([(run_id, part_code(1, 0))])
    check(store.plans, 2 * BATCH)
    assert due.node == 1


# As far as the counts go, ten thousand items of the map are held from item 10,000 on, and there is room for some.
HALF = f"""
update composer.maps set total = 20001, expanded = 20001, completed = 9980, held = 10001, next_held = 10000, active = most_active - {BATCH}
"""


async def test_freeing_and_withdrawing_read_what_they_change(store: ExplainingStore) -> None:
    """Behind ten thousand items that have completed, freeing reads the items it frees, and withdrawing no row of another run."""
    driver = Driver(store)
    plan = a_map(max_concurrency=2 * BATCH)
    run_id = await driver.start(plan)
    (task,) = await driver.claim(10, steps={"items"})
    await driver.apply(run_id, done(task, json.dumps(list(range(20_001)))))
    found = items_of(plan, plan.nodes[1], Values("C..", {0: json.dumps(list(range(20_001)))}))
    page = MapPage(run_id, plan, 1, 0, 20_001, found.texts[:BATCH], 0, 0, found.digest)
    assert (await store.expand_map(page))[0]
    bad, *_ = await driver.claim(BATCH, steps={"each"})
    await store.connection.execute(WIDE)
    await store.connection.execute(HALF)
    store.plans.clear()
    await store.free_items(run_id, 1)
    check(store.plans, 2 * BATCH)
    states = "select state, count(*)::int from composer.tasks where run_id = $1 and item >= 10000 group by state"
    assert dict(await store.connection.fetch(states, run_id)) == {"held": 10_001 - BATCH, "ready": BATCH}

    await driver.apply(run_id, failed(bad))
    store.plans.clear()
    (due,) = await store.take_due_waits(BATCH, 10.0)
    check(store.plans, 2 * BATCH)
    assert due.head.snapshot.letters.text == "CD."
    store.plans.clear()
    assert (await store.withdraw_items(run_id, plan.nodes[1], BATCH))[0] == BATCH
    # Items that have ended stand before those that have not begun, and are passed over: those of this map, and no others.
    check(store.plans, 10_000 + 3 * BATCH)


async def test_lists_and_watches_read_their_page(store: ExplainingStore) -> None:
    """A page of a list reads that many runs of each status asked for, and a watch the transitions it does not know yet."""
    running = frozenset({RunStatus.RUNNING})
    for query in (
        RunQuery(), RunQuery(workflow="flow"), RunQuery(statuses=running), RunQuery(workflow="flow", statuses=running),
        RunQuery(newest_first=False), RunQuery(workflow="flow", newest_first=False),
    ):  # fmt: skip
        page = await store.list_runs(query, None, BATCH)
        assert page.reached is not None
        assert len(page.runs) == BATCH
    check(store.plans, 7 * BATCH)
    store.plans.clear()
    driver = Driver(store)
    run_id = await driver.start(PLAN)
    await store.changes(run_id, 0, 10)
    await store.presence()
    check(store.plans, 2 * BATCH)


SMALL = """
insert into composer.runs (namespace, id, workflow, plan, status, version, letters, finished_at)
select 'n', ('01600000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid, 'flow', 1, 'completed', 11, 'CCCCCCCCCC', now()
  from generate_series(1, 250) i
"""
ASLEEP = """
insert into composer.runs (namespace, id, workflow, plan, status, version, letters)
select 'n', ('01610000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid, 'flow', 1, 'running', 1, 'W' from generate_series(1, 20000) i
"""
WAITING = """
insert into composer.tasks (namespace, run_id, node, state, wake_at)
select 'n', id, 0, 'waiting', now() + interval '30 d' from composer.runs where letters = 'W'
"""


async def test_plans_made_on_small_tables_hold_for_many_sleeping_runs(each_server: Server) -> None:
    """With plans made when there were a few finished runs, looking for the next timer does not read twenty thousand runs that sleep."""
    async with unattended(each_server, "runs", "tasks") as connection:
        await connection.execute(SMALL)
        await connection.execute("analyze composer.runs")
        await connection.execute("analyze composer.tasks")
        store = ExplainingStore(connection, "n")
        await store.freeze()
        await connection.execute(ASLEEP)
        await connection.execute(WAITING)
        due_in = await store.next_due_in()
        assert due_in is not None
        assert due_in > 29 * 86_400
        assert await store.take_due_waits(BATCH, 10.0) == []
        assert await store.due_runs(BATCH) == []
        assert await store.move_due_tasks(BATCH) == 0
        assert await store.expired_tasks(BATCH) == []
        check(store.plans, 2 * BATCH)


DUE = """
insert into composer.tasks (namespace, run_id, node, state, wake_at)
select 'n', r.id, n, 'waiting', case when n = 1 then now() - interval '1 s' when n = 0 then now() + interval '30 d' end
  from composer.runs r cross join generate_series(0, 2) n where r.letters = 'W'
"""


async def test_due_timers_are_found_among_those_that_are_not(each_server: Server) -> None:
    """Of sixty thousand waiting tasks, a third due, a third later and a third without a timer, a pass reads the batch it takes."""
    async with unattended(each_server, "runs", "tasks") as connection:
        await connection.execute(SMALL)
        store = ExplainingStore(connection, "n")
        await store.freeze()
        await connection.execute(ASLEEP)
        await connection.execute(DUE)
        assert await connection.fetchval("select count(*) from composer.tasks where state = 'waiting'") == 60_000
        due_in = await store.next_due_in()
        assert due_in is not None
        assert due_in == 0.0
        taken = await store.take_due_waits(BATCH, 10.0)
        assert len(taken) == BATCH
        assert {each.node for each in taken} == {1}
        assert {name for name, _ in store.plans} == {"next_due", "due_waits"}
        check(store.plans, 4 * BATCH)


async def test_plans_are_generic_and_a_scan_would_be_found(store: ExplainingStore) -> None:
    """No plan was made for particular values, and a statement that reads a table whole fails the check."""
    await store.load_heads(await store.mint_run_ids(3))
    custom = await store.connection.fetchval("select sum(custom_plans) from pg_prepared_statements where from_sql")
    assert custom == 0
    scan = "select count(*) from composer.tasks where output = $1"
    await store.connection.execute(f"prepare scan (text) as {scan}")
    store.names[scan] = "scan"
    store.plans.clear()
    await store._fetch("testing", scan, "1")
    with pytest.raises(AssertionError, match="tasks"):
        check(store.plans, 4 * BATCH)


def test_session_settings_are_those_of_the_plans() -> None:
    """The settings that keep plans from depending on statistics are set for every connection of the engine."""
    options = PostgresStore("postgresql:///x").connection_options()
    for name in ("plan_cache_mode", "enable_seqscan", "enable_bitmapscan", "jit"):
        assert options["server_settings"][name] == SESSION[name]
    assert SESSION["plan_cache_mode"] == "force_generic_plan"


async def test_recovery_reads_its_page(store: ExplainingStore) -> None:
    """A pass over the dispatches reads a page of open runs and of outbox rows, however many there are, and so does the next."""
    await store.expired_tasks(BATCH)
    for _ in range(2):
        assert await store.repair_outbox(BATCH, 0.0) == (0, 0)
    check(store.plans, 4 * BATCH)
