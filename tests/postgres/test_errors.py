"""What callers see when the database is away, read-only or without its schema, and that everything goes on afterwards."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import asyncpg
import pytest

from composer import AsyncClient, Settings, Worker, step, workflow
from composer.apply import Applier
from composer.core.history import fold
from composer.errors import SchemaError, StoreUnavailable
from composer.ports.store import Verdict
from composer.postgres import embedded_reaper
from composer.postgres.store import PostgresStore
from tests.contract.driver import Driver, a_chain, a_diamond, done, opened
from tests.postgres.observed import until
from tests.servers import Server, TestServer, execute, query

# -- what is not there -----------------------------------------------------------------------------------------


async def test_database_without_schema_is_a_schema_error_that_says_what_to_do(empty_database: str) -> None:
    """Opening a store on an empty database raises SchemaError, which names the command that helps."""
    with pytest.raises(SchemaError, match="composer migrate"):
        await PostgresStore(empty_database).open()


async def test_schema_that_is_lost_later_is_a_schema_error(fresh_database: str) -> None:
    """A statement that finds its tables gone raises SchemaError."""
    async with opened(PostgresStore(fresh_database)) as store:
        await execute(fresh_database, "drop schema composer cascade")
        with pytest.raises(SchemaError):
            await store.expired_tasks(1)


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        (lambda url: url.rsplit("/", 1)[0] + "/x?host=/nowhere", "not available"),
        (lambda url: "postgresql://composer@127.0.0.1:1/x", "not available"),
        (lambda url: url.replace("/test_", "/no_such_"), "check user, password, database name"),
    ],
    ids=["no socket", "no port", "no database"],
)
async def test_server_that_cannot_be_reached_is_unavailable(
    database: str, change: Callable[[str], str], hint: str
) -> None:
    """Opening a store where nobody listens, or on a database that does not exist, raises StoreUnavailable."""
    with pytest.raises(StoreUnavailable, match=hint):
        await PostgresStore(change(database)).open()


async def test_read_only_database_is_unavailable_for_writes(fresh_database: str) -> None:
    """On a read-only database writes raise StoreUnavailable, and once it is writable again they succeed."""
    async with opened(PostgresStore(fresh_database, connections=1)) as store:
        driver = Driver(store)
        run = await driver.new()
        await store._fetch("testing", "set default_transaction_read_only = on")
        with pytest.raises(StoreUnavailable, match="starting a run"):
            await store.start_runs([run])
        assert await store.load_heads([run.run_id]) == {}
        await store._fetch("testing", "set default_transaction_read_only = off")
        assert (await store.start_runs([run]))[0].created


# -- connections that break ------------------------------------------------------------------------------------


async def terminate(url: str, where: str = "true") -> int:
    """Ends the server's side of other connections to the database; returns how many."""
    text = f"select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and {where}"
    return len(await query(url, text))


async def test_backend_terminated_in_the_middle_is_unavailable_and_the_next_call_works(fresh_database: str) -> None:
    """A commit whose backend is ended while it waits raises StoreUnavailable, changes nothing, and succeeds when it is done again."""
    async with opened(PostgresStore(fresh_database, connections=2)) as store:
        driver = Driver(store)
        run_id = await driver.start(a_chain(2))
        commit = await driver.commit_of(await driver.head(run_id), done(await driver.claim_one()))
        blocker = await asyncpg.connect(fresh_database)
        failure: list[BaseException] = []

        async def try_it() -> None:
            try:
                await store.commit([commit])
            except StoreUnavailable as error:
                failure.append(error)

        async with anyio.create_task_group() as group, blocker.transaction():
            await blocker.execute("select from composer.runs for update")
            group.start_soon(try_it)
            with anyio.fail_after(10):
                while not await terminate(fresh_database, "wait_event_type = 'Lock'"):
                    await anyio.sleep(0.005)
        await blocker.close()
        assert len(failure) == 1
        assert "committing" in str(failure[0])
        assert len(await store.history(run_id)) == 1
        assert (await store.commit([commit])).answers[0].verdict is Verdict.WON


async def test_idle_connections_that_were_ended_are_replaced(fresh_database: str) -> None:
    """After all idle connections were ended by the server, calls work again after one StoreUnavailable each at most."""
    async with opened(PostgresStore(fresh_database, connections=3)) as store:
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(store.expired_tasks, 1)
        assert await terminate(fresh_database) >= 1
        failures = 0
        while True:
            try:
                await store.expired_tasks(1)
                break
            except StoreUnavailable:
                failures += 1
        assert failures <= 3


async def test_server_that_stops_and_starts_again() -> None:
    """While the server is stopped calls raise StoreUnavailable; once it runs again the same store works, and a bell is heard again."""
    server = await anyio.to_thread.run_sync(TestServer)
    try:
        url = await anyio.to_thread.run_sync(server.database)
        async with opened(PostgresStore(url)) as store, anyio.create_task_group() as group:
            group.start_soon(store.listen)
            await store.listening.wait()
            driver = Driver(store)
            run_id = await driver.start()
            await anyio.to_thread.run_sync(embedded_reaper.stop_server, str(server.embedded.data))
            for _ in range(3):
                with pytest.raises(StoreUnavailable):
                    await store.load_heads([run_id])
            await anyio.to_thread.run_sync(server.embedded.start)
            with store.wakeups.on_tasks(("default",)) as bell:
                assert (await driver.head(run_id)).snapshot.version == 1
                await store.set_sleeping("me", asleep=True, ttl=60)
                async with opened(PostgresStore(url)) as other:
                    with anyio.fail_after(10):
                        while True:
                            await Driver(other).start()
                            if await bell.wait(0.2):
                                break
            group.cancel_scope.cancel()
    finally:
        await anyio.to_thread.run_sync(server.close)


async def test_listener_that_was_ended_hears_again(fresh_database: str) -> None:
    """A listening connection that the server ended is replaced within moments: it rings for all that may have been missed, then for news."""
    async with opened(PostgresStore(fresh_database)) as store, anyio.create_task_group() as group:
        group.start_soon(store.listen)
        await store.listening.wait()
        await store.set_sleeping("me", asleep=True, ttl=60)
        with store.wakeups.on_tasks(("default",)) as bell:
            assert await terminate(fresh_database, "query ilike 'listen%' or query = 'select 1'") == 1
            assert await bell.wait(10), "everybody looks after a reconnection"
            async with opened(PostgresStore(fresh_database)) as other:
                await Driver(other).start()
                assert await bell.wait(10)
        group.cancel_scope.cancel()


# -- statements whose outcome is unknown -------------------------------------------------------------------------

Cut = Callable[[str], str | None]


class CuttingStore(PostgresStore):
    """Cuts connections: `cut` says of each statement whether before, during or after it, or not at all."""

    cut: Cut

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.cut = lambda text: None
        self.cuts: Counter[str] = Counter()

    def connection_options(self) -> dict[str, Any]:
        """As ever, with connections that break."""
        store = self

        class Breaking(asyncpg.Connection):
            __slots__ = ()

            async def fetch(self, query: str, *args: Any, **more: Any) -> Any:
                how = store.cut(query)
                if how is None:
                    return await super().fetch(query, *args, **more)
                store.cuts[how] += 1
                if how == "before":
                    self.terminate()
                elif how == "during":
                    sending = asyncio.ensure_future(super().fetch(query, *args, **more))
                    await asyncio.sleep(0)
                    self.terminate()
                    return await sending
                else:
                    await super().fetch(query, *args, **more)
                    self.terminate()
                raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")

        return {**super().connection_options(), "connection_class": Breaking}

    def twin(self) -> PostgresStore:
        """A handle whose connections hold."""
        return PostgresStore(self._url, namespace=self.namespace, connections=2)

    def cut_once(self, statement: str, how: str) -> None:
        """Cuts the next connection that sends this statement."""
        text = getattr(self._sql, statement)

        def cut(sent: str) -> str | None:
            if sent != text:
                return None
            self.cut = lambda text: None
            return how

        self.cut = cut


@pytest.fixture
async def cutting(database: str, namespace: str) -> AsyncIterator[CuttingStore]:
    """A store that cuts connections, in a namespace of its own."""
    store = CuttingStore(database, namespace=namespace, connections=4)
    await store.open()
    yield store
    await store.close()


@pytest.mark.parametrize("how", ["before", "during", "after"])
async def test_start_with_unknown_outcome_makes_one_run(cutting: CuttingStore, how: str) -> None:
    """A start whose connection breaks before, while or after it is done raises StoreUnavailable, and done again there is one run."""
    driver = Driver(cutting)
    for key in (None, how):
        run = await driver.new(key=key)
        cutting.cut_once("start" if key else "start_one", how)
        with pytest.raises(StoreUnavailable):
            await cutting.start_runs([run])
        (answer,) = await cutting.start_runs([run])
        assert answer.run_id == run.run_id
        assert len(await driver.claim()) == 1


@pytest.mark.parametrize("how", ["before", "during", "after"])
async def test_client_start_with_unknown_outcome_says_that_it_made_the_run(cutting: CuttingStore, how: str) -> None:
    """A client whose start breaks tries again by itself, gets one run, and is told that it made it."""
    async with AsyncClient(store=cutting) as client:
        cutting.cut_once("start", how)
        handle = await client.start(links, 1, idempotency_key=how)
        assert handle.created
        again = await client.start(links, 1, idempotency_key=how)
        assert (again.id, again.created) == (handle.id, False)
    assert len(await cutting.history(handle.id)) == 1


@pytest.mark.parametrize("how", ["before", "during", "after"])
async def test_commit_with_unknown_outcome_is_applied_once_and_hands_over(cutting: CuttingStore, how: str) -> None:
    """A commit whose connection breaks is done again, its result applied once, and what it made ready is handed over once."""
    driver = Driver(cutting)
    run_id = await driver.start(a_diamond())
    claimed = await driver.claim_one()
    cutting.cut_once("commit_one", how)
    applier = Applier(cutting, owner="w")
    applied = await applier.apply({run_id: [done(claimed, '"x"')]}, grant=lambda run_id, node: True, patience=10)
    assert cutting.cuts[how] == 1
    assert sorted(task.step for task in applied.handed) == ["left", "right"]
    assert [dict(task.values) for task in applied.handed] == [{0: '"x"'}] * 2
    rows = await cutting.history(run_id)
    assert [row.version for row in rows] == [1, 2]
    assert fold(a_diamond(), [row.changes for row in rows]).tasks[0, -1].completions == 1
    assert await driver.claim() == []
    left, right = applied.handed
    applied = await applier.apply({run_id: [done(left), done(right)]})
    assert applied.ignored == []


async def test_reads_that_a_commit_needs_are_tried_again(cutting: CuttingStore) -> None:
    """A commit gets through although every statement it needs breaks once: the look-up, the commit, the read back, the arguments."""
    driver = Driver(cutting)
    run_id = await driver.start(a_diamond())
    applied = await driver.apply(run_id, done(await driver.claim_one()), grant=lambda run_id, node: True)
    left, right = applied.handed
    await driver.apply(run_id, done(left, '"l"'))
    names = ["load_heads", "commit_one", "leased_to", "load_values"]
    texts = [getattr(cutting._sql, name) for name in names]

    def cut(text: str) -> str | None:
        if text not in texts:
            return None
        texts.remove(text)
        return "after"

    cutting.cut = cut
    # Another worker's applier, which knows nothing of what ran elsewhere.
    applied = await Applier(cutting, owner="w").apply({run_id: [done(right, '"r"')]}, grant=lambda run_id, node: True)
    assert [(task.step, dict(task.values)) for task in applied.handed] == [("bottom", {1: '"l"', 2: '"r"'})]
    assert cutting.cuts["after"] >= 3
    assert set(texts) <= {cutting._sql.load_values}, "the read back brought the arguments along"


async def test_deadlock_is_done_again_and_counted(cutting: CuttingStore) -> None:
    """A statement that the server rolled back for a deadlock is done again at once, and counted."""
    driver = Driver(cutting)
    run_id = await driver.start()
    failures = [asyncpg.DeadlockDetectedError("deadlock detected"), asyncpg.SerializationError("could not serialize")]

    def cut(text: str) -> str | None:
        if text == cutting._sql.commit_one and failures:
            raise failures.pop()
        return None

    cutting.cut = cut
    assert (await driver.commit(await driver.head(run_id), done(await driver.claim_one()))).verdict is Verdict.WON
    assert cutting.deadlocks == 2


# -- a worker on a bad line --------------------------------------------------------------------------------------

_started: Counter[str] = Counter()
_gates: dict[str, anyio.Event] = {}


@step
async def link(value: int) -> int:
    """One of a chain."""
    return value + 1


@step
async def gated(value: int, name: str) -> int:
    """Runs until the test opens its gate."""
    _started[name] += 1
    await _gates[name].wait()
    return value


@step
async def both(one: int, two: int) -> int:
    """Joins."""
    return one + two


@workflow
def links(value: int) -> int:
    """Six in a row."""
    for _ in range(6):
        value = link(value)
    return value


@workflow
def fork(value: int) -> int:
    """Two branches, the second of two steps."""
    return both(one=gated(value, "one"), two=link(gated(value, "two")))


async def test_running_body_is_not_started_twice_when_a_commit_of_its_run_breaks(cutting: CuttingStore) -> None:
    """While a body runs, a commit of its sibling with an unknown outcome does not start that body a second time."""
    _started.clear()
    _gates.update(one=anyio.Event(), two=anyio.Event())
    settings = Settings(coordinator=False, poll_interval=0.1)
    async with Worker([fork], settings, store=cutting) as worker, AsyncClient(store=cutting) as client:
        handle = await client.start(fork, 7)
        await until(lambda: len(_started) == 2)
        cutting.cut_once("commit_one", "after")
        _gates["two"].set()
        await until(lambda: cutting.cuts["after"] == 1 and worker.loop.executed >= 3 and not worker.loop._committing)
        _gates["one"].set()
        assert await handle.result(timeout=10) == 15
        assert _started == {"one": 1, "two": 1}
        assert worker.loop.executed == 4


async def test_worker_gets_through_on_a_line_that_breaks_all_the_time(cutting: CuttingStore) -> None:
    """While every eighth statement's connection is cut, before, during or after it, all chains complete and each result is applied once."""
    rng = random.Random(14)
    ways = ("before", "during", "after")
    plan = links.plan
    looked: list[str] = []
    runs: list[str] = []
    cutting.cut = lambda text: looked.append(text) if text == cutting._sql.next_due else None
    settings = Settings(poll_interval=0.1, recovery_interval=0.3, lease=2.0)
    async with Worker([links], settings, store=cutting) as worker, AsyncClient(store=cutting) as client:
        # What fails while the worker starts ends the start, so the cuts begin when its loops run.
        await until(lambda: looked)

        async def wait(index: int, handle: Any) -> None:
            assert await handle.result(timeout=30) == index + 6

        cutting.cut = lambda text: rng.choice(ways) if rng.random() < 0.125 else None
        while min(cutting.cuts[way] for way in ways) < 4:
            handles = await client.start_many(links, [(i,) for i in range(20)])
            runs += [handle.id for handle in handles]
            async with anyio.create_task_group() as group:
                for i, handle in enumerate(handles):
                    group.start_soon(wait, i, handle)
        cutting.cut = lambda text: None
        await until(lambda: worker.loop.is_idle)
    for run_id in runs:
        folded = fold(plan, [row.changes for row in await cutting.history(run_id)])
        assert {key: tally.completions for key, tally in folded.tasks.items()} == {(n, -1): 1 for n in range(6)}
    assert cutting.deadlocks == 0


async def test_servers_are_what_they_say(each_server: Server) -> None:
    """The servers that the tests run on are PostgreSQL 15 or newer."""
    assert int((await query(each_server.url, "show server_version_num"))[0][0]) >= 150000
