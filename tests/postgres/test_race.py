"""Two workers on the same runs at the same time, and what the tables themselves refuse."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import anyio
import asyncpg
import pytest

from composer import AsyncClient, Settings, Worker, step, workflow
from composer.apply import Applier
from composer.core.events import CancelRequested, Event, StepReleased
from composer.core.history import fold
from composer.ports.store import CommitAnswers, RunCommit, Verdict
from composer.postgres.store import PostgresStore
from tests.contract.driver import Driver, a_diamond, done, opened
from tests.servers import Server, execute, query

RUNS = 1_000


@step
async def top(value: int) -> int:
    """Anybody's."""
    return value


_meetings: dict[int, anyio.Event] = {}


async def meet(value: int) -> None:
    """Returns once both branches of a run are here, so that both end at the same moment."""
    other = _meetings.pop(value, None)
    if other is not None:
        other.set()
    else:
        _meetings[value] = mine = anyio.Event()
        await mine.wait()


@step(queue="left")
async def left(value: int) -> int:
    """The first worker's."""
    await meet(value)
    return value + 1


@step(queue="right")
async def right(value: int) -> int:
    """The second worker's."""
    await meet(value)
    return value + 2


@step
async def bottom(one: int, two: int) -> int:
    """Anybody's."""
    return one * two


@workflow
def diamond(value: int) -> int:
    """Both branches end at about the same time, on different workers."""
    value = top(value)
    return bottom(one=left(value), two=right(value))


class CountingStore(PostgresStore):
    """Counts what became of commits."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.verdicts: Counter[Verdict] = Counter()

    async def commit(self, commits: Sequence[RunCommit], *, owner: str = "", lease: float = 0.0) -> CommitAnswers:
        """Commits, and counts the verdicts."""
        answers = await super().commit(commits, owner=owner, lease=lease)
        self.verdicts.update(answer.verdict for answer in answers.answers)
        return answers


async def test_two_workers_on_the_branches_of_a_thousand_runs(each_server: Server, namespace: str) -> None:
    """Of a thousand diamonds whose branches end on different workers every result is applied once, without a deadlock, though many races are lost."""
    url = each_server.database()
    stores = [CountingStore(url, namespace=namespace, connections=4) for _ in range(2)]
    settings = [
        # A slot for every body: branches wait for each other.
        Settings(queues=queues, poll_interval=0.1, concurrency=3 * RUNS)
        for queues in (("default", "left"), ("right", "default"))
    ]
    async with AsyncExitStack() as stack:
        for store in stores:
            await store.open()
            stack.push_async_callback(store.close)
        workers = [
            await stack.enter_async_context(Worker([diamond], each, store=store))
            for store, each in zip(stores, settings, strict=True)
        ]
        client = await stack.enter_async_context(AsyncClient(store=stores[0]))
        results: dict[int, int] = {}

        async def wait(index: int, handle: Any) -> None:
            results[index] = await handle.result(timeout=60)

        async with anyio.create_task_group() as group:
            for i, handle in enumerate(await client.start_many(diamond, [(i,) for i in range(RUNS)])):
                group.start_soon(wait, i, handle)
        assert not _meetings
        assert results == {i: (i + 1) * (i + 2) for i in range(RUNS)}
        assert sum(worker.loop.executed for worker in workers) == 4 * RUNS
    assert [store.deadlocks for store in stores] == [0, 0]
    lost = sum(store.verdicts[Verdict.LOST] for store in stores)
    assert lost > RUNS / 10, "the workers hardly met: the test shows nothing"
    assert sum(store.verdicts[Verdict.STALE] for store in stores) == 0
    await check_runs(url, namespace, RUNS)
    each_server.drop(url)


async def check_runs(url: str, namespace: str, count: int) -> None:
    """All runs completed, with a history that has no gap, applied every result once, and gives the run; nothing is left over."""
    plan = diamond.plan
    runs = await query(url, "select id, version, letters, status from composer.runs where namespace = $1", namespace)
    assert len(runs) == count
    history: dict[Any, list[Any]] = {}
    for row in await query(
        url,
        "select run_id, version, changes::jsonb::text as changes from composer.history where namespace = $1 order by 1, 2",
        namespace,
    ):
        history.setdefault(row["run_id"], []).append(row)
    for run in runs:
        rows = history[run["id"]]
        assert [row["version"] for row in rows] == list(range(1, run["version"] + 1))
        folded = fold(plan, [json.loads(row["changes"]) for row in rows])
        assert (folded.run.status, folded.run.letters.text) == (run["status"], run["letters"]) == ("completed", "CCCC")
        assert {key: tally.completions for key, tally in folded.tasks.items()} == {(n, -1): 1 for n in range(4)}
    open_tasks = "select count(*) from composer.tasks where namespace = $1 and state <> 'completed'"
    assert (await query(url, open_tasks, namespace))[0][0] == 0
    assert (await query(url, "select count(*) from composer.outbox where namespace = $1", namespace))[0][0] == 0


async def test_commits_in_opposite_orders_do_not_deadlock(each_server: Server, namespace: str) -> None:
    """Eight batches at once over the same forty runs, in different orders and beside claims, stops and sweeps, deadlock nowhere."""
    url = each_server.database()
    async with opened(PostgresStore(url, namespace=namespace, connections=12)) as store:
        driver = Driver(store)
        plan = a_diamond(options={"top": {"priority": 1}})
        runs = [await driver.start(plan) for _ in range(40)]

        async def release_and_finish(number: int) -> None:
            for round_ in range(6):
                claimed = await driver.claim(30, owner=f"w{number}")
                if number % 2:
                    claimed.reverse()
                events: dict[str, list[Event]] = {}
                for i, task in enumerate(claimed):
                    event: Event = done(task) if (i + round_) % 3 else StepReleased(task.task)
                    events.setdefault(task.run.run_id, []).append(event)
                await Applier(store, owner=f"w{number}").apply(events)

        async def stop() -> None:
            await Applier(store).apply({run_id: [CancelRequested()] for run_id in reversed(runs[::4])})

        async def sweep() -> None:
            for _ in range(10):
                await store.expired_tasks(100)
                await store.move_due_tasks(100)
                await store.repair_outbox(100, 0.0)

        async with anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(release_and_finish, number)
            group.start_soon(stop)
            group.start_soon(sweep)
        assert store.deadlocks == 0
        deadlocks = await query(url, "select deadlocks from pg_stat_database where datname = current_database()")
        assert deadlocks[0][0] == 0
        for run_id in runs:
            rows = await store.history(run_id)
            folded = fold(plan, [row.changes for row in rows])
            assert folded.run == (await driver.head(run_id)).snapshot
            assert all(tally.completions <= 1 for tally in folded.tasks.values())
    each_server.drop(url)


# -- constraints ---------------------------------------------------------------------------------------------------

RUN = "insert into composer.runs (namespace, id, workflow, plan, {0}) values ('n', gen_random_uuid(), 'w', 1, {1})"
TASK = "insert into composer.tasks (namespace, run_id, node, {0}) values ('n', gen_random_uuid(), 0, {1})"
NONSENSE = {
    "an unknown status": RUN.format("status, version, letters", "'sleeping', 1, ''"),
    "an open run that has finished": RUN.format("status, version, letters, finished_at", "'running', 1, '', now()"),
    "an ended run without an end": RUN.format("status, version, letters", "'failed', 1, ''"),
    "a scheduled run without a start": RUN.format("status, version, letters", "'scheduled', 1, ''"),
    "version zero": RUN.format("status, version, letters", "'running', 0, ''"),
    "an unknown state": TASK.format("state", "'running'"),
    "a lease without an owner": TASK.format("state, lease_expires_at", "'leased', now()"),
    "an owner without an end": TASK.format("state, lease_owner", "'leased', 'w'"),
    "an owner of a ready task": TASK.format("state, lease_owner, lease_expires_at", "'ready', 'w', now()"),
    "an end of nobody's lease": TASK.format("state, lease_expires_at", "'ready', now()"),
    "a delay without an end": TASK.format("state", "'delayed'"),
    "a negative attempt": TASK.format("state, attempt", "'ready', -1"),
    "a negative delivery": TASK.format("state, delivery", "'ready', -1"),
    "negative failures": TASK.format("state, failures", "'ready', -1"),
    "negative crashes": TASK.format("state, crashes", "'ready', -1"),
    "a priority out of bounds": TASK.format("state, priority", "'ready', 101"),
}


@pytest.mark.parametrize("what", NONSENSE)
async def test_tables_refuse_nonsense(database: str, what: str) -> None:
    """A row that no run or task can be is refused by a CHECK."""
    with pytest.raises(asyncpg.CheckViolationError):
        await execute(database, NONSENSE[what])


async def test_tables_refuse_a_second_history_row_of_a_version(database: str) -> None:
    """A version of a run is written once."""
    row = "insert into composer.history (namespace, run_id, version, changes) values ('n', '01900000-0000-7000-8000-000000000000', 1, '{}')"
    await execute(database, row)
    with pytest.raises(asyncpg.UniqueViolationError):
        await execute(database, row)
