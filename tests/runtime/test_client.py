"""What a client waits for, and what becomes of its calls when it closes."""

from __future__ import annotations

import copy
import pickle
import threading
import uuid
from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from composer import (
    AsyncClient,
    Client,
    ClientError,
    RunEnded,
    RunFailed,
    RunNotRetryable,
    step,
    wait_for_event,
    workflow,
)
from composer.apply import Applier
from composer.core.events import RetryRequested
from composer.errors import StoreUnavailable
from composer.memory.store import MemoryStore
from composer.ports.wakeups import RunEnd
from composer.postgres.store import PostgresStore
from tests.servers import query
from tests.working import until, working

pytestmark = pytest.mark.anyio


@step
async def plus(n: int) -> int:
    """One more."""
    return n + 1


@workflow
def once(n: int) -> int:
    """One step."""
    return plus(n)


@workflow
def asking() -> int:
    """Waits for a number."""
    return plus(wait_for_event("number", int))


class HeldBack(MemoryStore):
    """A store whose first two reads of ends wait until they are let go; the second may fail then."""

    def __init__(self, *, fails: bool) -> None:
        super().__init__()
        self.fails, self.reads = fails, 0
        self.let_go = [anyio.Event(), anyio.Event()]

    async def run_ends(self, run_ids: Sequence[str]) -> dict[str, RunEnd]:
        self.reads += 1
        number = self.reads
        if number <= 2:
            await self.let_go[number - 1].wait()
        if number == 2 and self.fails:
            raise StoreUnavailable("away")
        return await super().run_ends(run_ids)


@pytest.mark.parametrize("how", ["cancelled", "failed"])
async def test_a_read_that_ends_early_does_not_lose_what_others_asked_for(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait whose run another one reads too goes on when that one's time is over, or its read fails."""
    monkeypatch.setattr("composer.client.async_client.PATIENCE", 0.0)
    store = HeldBack(fails=how == "failed")
    outcomes: dict[str, str] = {}
    async with AsyncClient(store=store) as client:
        runs = [(await client.start(once, n)).id for n in range(3)]

        async def wait(run_id: str, scope: anyio.CancelScope) -> None:
            with scope:
                try:
                    await client.wait(run_id)
                except Exception as error:
                    outcomes[run_id] = type(error).__name__

        scopes = [anyio.CancelScope() for _ in runs]
        async with anyio.create_task_group() as group:
            group.start_soon(wait, runs[0], scopes[0])
            await until(lambda: store.reads == 1)
            # These two gather meanwhile, and the first of them reads for both.
            group.start_soon(wait, runs[1], scopes[1])
            group.start_soon(wait, runs[2], scopes[2])
            await until(lambda: len(client._ends._reader._waiting) == 2)
            store.let_go[0].set()
            await until(lambda: store.reads == 2)
            if how == "cancelled":
                scopes[1].cancel()
            else:
                store.let_go[1].set()
            await until(lambda: store.reads >= 3)
            store.wakeups.run_ended(runs[2], RunEnd(runs[2], "completed", "3", None))
            await until(lambda: not client.store.wakeups._ends.get(runs[2]))
            group.cancel_scope.cancel()
    assert outcomes == ({} if how == "cancelled" else {runs[1]: "StoreUnavailable"})


class Flickering(MemoryStore):
    """A store that is away twice when a client says that it sleeps."""

    refused = 0

    async def set_sleeping(self, sleeper: str, *, asleep: bool, ttl: float) -> None:
        if asleep and self.refused < 2:
            self.refused += 1
            raise StoreUnavailable("away")


async def test_a_watch_outlasts_what_ends_other_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch whose store is away for longer than the client's patience, at any of its statements, goes on."""
    monkeypatch.setattr("composer.client.async_client.PATIENCE", 0.0)
    store = Flickering()
    events: list[str] = []
    async with AsyncClient(store=store) as client, anyio.create_task_group() as group:
        run = await client.start(once, 1)

        async def follow() -> None:
            async for change in run.watch():
                events.append(change.event)

        group.start_soon(follow)
        await until(lambda: store.refused == 2)
        await run.cancel()
    assert events[0] == "started"
    assert events[-1] == "run-cancelled"


async def test_an_end_that_was_heard_before_a_retry_elsewhere_is_not_the_result(database: str, namespace: str) -> None:
    """A run that failed here, and was retried by another process since, is not reported as failed."""
    tries: list[int] = []
    gate = anyio.Event()

    @step
    async def may_fail(n: int) -> int:
        tries.append(n)
        if len(tries) == 1:
            raise ValueError("no")
        await gate.wait()
        return n

    @workflow
    def careful(n: int) -> int:
        return may_fail(n)

    results: list[int | str] = []

    async def ask() -> None:
        try:
            results.append(await handle.result(timeout=10))
        except RunFailed as error:
            results.append(str(error))

    async with working(database, namespace, [once, careful]) as site:
        await (await site.client.start(once, 1)).result(timeout=10)  # From here on it hears.
        handle = await site.client.start(careful, 7)
        await until(lambda: ended(site.client, handle.id))
        elsewhere = PostgresStore(database, namespace=namespace, connections=1)
        try:
            await Applier(elsewhere).apply_one(handle.id, RetryRequested())
        finally:
            await elsewhere.close()
        await until(lambda: len(tries) == 2)
        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await until(lambda: results or site.client.store.wakeups.awaited_runs)
            gate.set()
    assert results == [7]


async def ended(client: AsyncClient, run_id: str) -> bool:
    """Whether the run has ended."""
    return (await client.get(run_id)).has_ended


def test_a_client_that_closes_ends_the_calls_of_other_threads(database: str, namespace: str) -> None:
    """A thread that waits for a result is told when the client closes, which does not wait for the run."""
    told: list[BaseException] = []
    with Client(database, namespace=namespace) as client:
        handle = client.start(once, 1)
        waits = threading.Event()

        def wait() -> None:
            waits.set()
            try:
                handle.result()
            except BaseException as error:
                told.append(error)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        waits.wait()
        while not client._client._ends._is_listening:
            client.get(handle.id)
    thread.join(10)
    assert [type(each) for each in told] == [ClientError]
    assert "closed" in str(told[0])


async def test_a_run_is_found_by_its_id_however_it_is_written(database: str, namespace: str) -> None:
    """Every method takes it in capitals, and without hyphens, as some tools write it."""
    async with working(database, namespace, [once, asking]) as site:
        client, run = site.client, await site.client.start(once, 1)
        for written in (run.id.upper(), run.id.replace("-", "")):
            assert await client.handle(once, written).result(timeout=10) == 2
            assert (await client.get(written)).id == run.id
            assert (await client.explain(written)).run_id == run.id
            assert len(await client.history(written)) > 1
            assert [change.event async for change in client.watch(written)][-1] == "run-completed"
            assert not await client.release(written)
            with pytest.raises(RunNotRetryable, match=run.id):
                await client.retry(written)
            open_one = await client.start(asking)
            other = open_one.id.upper() if written == run.id.upper() else open_one.id.replace("-", "")
            assert (await client.signal(other, "number", 5)).node == "number"
            assert await open_one.result(timeout=10) == 6
            assert not (await client.cancel(other)).accepted
            with pytest.raises(RunEnded, match=open_one.id):
                await client.signal(other, "number", 5)


async def test_a_closed_client_says_so(database: str, namespace: str) -> None:
    """After its block a client opens no connection again, and leaves no word that it sleeps."""
    async with AsyncClient(database, namespace=namespace) as client:
        handle = await client.start(once, 1)
        with pytest.raises(TimeoutError):
            await handle.result(timeout=0.05)
    with pytest.raises(RuntimeError, match="not open"):
        await client.get(handle.id)
    assert await query(database, f"select id from composer.sleepers where namespace = '{namespace}'") == []


def test_of_many_threads_one_opens_a_client(database: str, namespace: str) -> None:
    """Eight threads that open one client: one does, the others are told, and closing it leaves none of its threads."""
    client = Client(database, namespace=namespace)
    together, answers = threading.Barrier(8), list[str]()

    def opens() -> None:
        together.wait()
        try:
            client.__enter__()
        except ClientError as error:
            answers.append(str(error))
        else:
            answers.append("open")

    threads = [threading.Thread(target=opens) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == ["open"] + 7 * ["the client is open already"]
    client.__exit__(None, None, None)
    assert [thread for thread in threading.enumerate() if thread.name == "composer client"] == []


def test_a_closed_client_starts_nothing_within_a_transaction_either(database: str, namespace: str) -> None:
    """It is said before the connection is looked at, and in the words of the client that was used."""
    client = Client(database, namespace=namespace)
    with pytest.raises(ClientError, match="with Client"):
        client.start(once, 1, within=object())


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("through", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_client_cannot_be_copied(database: str, kind: Any, through: Any) -> None:
    """Neither to another process nor here: the error says to make one there."""
    with pytest.raises(ClientError, match="make one"):
        through(kind(database))


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_handle_cannot_be_sent_to_another_process(database: str, kind: Any) -> None:
    """It leads to its client, which cannot be; the error says what to do there."""
    with pytest.raises(ClientError, match="make one"):
        pickle.dumps(kind(database).handle(once, str(uuid.uuid4())))
