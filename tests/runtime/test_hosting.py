"""Workers and clients inside other people's processes: applications, notebooks, fixtures of any test framework."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from composer import AsyncClient, ClientError, ResultTimeout, Settings, Worker, WorkerError, step, workflow
from composer.memory.store import MemoryStore
from composer.postgres.store import PostgresStore
from tests.working import until

pytestmark = pytest.mark.anyio

QUIET = Settings(coordinator=False, grace=5.0)


@step
async def twice(n: int) -> int:
    """Twice as much."""
    return 2 * n


@step
async def endless(n: int) -> int:
    """Never ends by itself."""
    await anyio.sleep_forever()
    return n


@workflow
def doubled(n: int) -> int:
    """One step."""
    return twice(n)


@workflow
def stuck(n: int) -> int:
    """One step that never ends."""
    return endless(n)


async def elsewhere(work: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns in a task of its own, as a cell of a notebook is."""
    return await asyncio.create_task(work)


class Failing(MemoryStore):
    """A store whose listener breaks down when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.breaks = anyio.Event()

    async def listen(self) -> None:
        await self.breaks.wait()
        raise ZeroDivisionError("listening")


async def test_worker_and_client_are_used_from_many_tasks(database: str, namespace: str) -> None:
    """Started in one task, used in another and stopped in a third, as in the cells of a notebook; then the client again."""
    settings = Settings(database_url=database, namespace=namespace)
    worker = await elsewhere(Worker([doubled], settings).start())
    client = await elsewhere(AsyncClient(settings=settings).open())
    for _ in range(2):
        handle = await elsewhere(client.start(doubled, 21))
        assert await elsewhere(handle.result(timeout=10)) == 42
        await elsewhere(client.close())
        with pytest.raises(RuntimeError, match="not open"):
            await client.start(doubled, 1)
        await elsewhere(client.open())
    await elsewhere(client.close())
    await client.close()
    await elsewhere(worker.stop())


async def test_block_may_be_entered_and_left_by_different_tasks(database: str, namespace: str) -> None:
    """A fixture whose set-up and tear-down are two tasks can hold a worker and a client."""
    settings = Settings(database_url=database, namespace=namespace)
    worker = Worker([doubled], settings)
    await elsewhere(worker.__aenter__())
    client = AsyncClient(store=worker.store, settings=settings)
    await elsewhere(client.__aenter__())
    assert await (await client.start(doubled, 4)).result(timeout=10) == 8
    await elsewhere(client.__aexit__(None, None, None))
    await elsewhere(worker.__aexit__(None, None, None))


async def test_several_workers_in_one_process(database: str, namespace: str) -> None:
    """Two workers on one store and one with its own share the work, and each may end before the others."""
    settings = Settings(database_url=database, namespace=namespace, concurrency=2)
    async with Worker([doubled], settings) as first, AsyncClient(store=first.store, settings=settings) as client:
        async with Worker([doubled], settings, store=first.store), Worker([doubled], settings):
            handles = await client.start_many(doubled, [(n,) for n in range(50)])
            assert [await handle.result(timeout=20) for handle in handles] == [2 * n for n in range(50)]
        assert await (await client.start(doubled, 4)).result(timeout=10) == 8


async def test_signals_and_other_threads_are_left_alone(database: str, namespace: str) -> None:
    """A worker sets no handler of any signal, and works in the loop of a thread that could not."""
    before = [signal.getsignal(each) for each in signal.valid_signals()]
    settings = Settings(database_url=database, namespace=namespace)
    results: list[int] = []

    async def use() -> None:
        async with Worker([doubled], settings) as worker, AsyncClient(store=worker.store, settings=settings) as client:
            results.append(await (await client.start(doubled, 5)).result(timeout=10))

    async with Worker([doubled], settings):
        assert [signal.getsignal(each) for each in signal.valid_signals()] == before
        thread = threading.Thread(target=asyncio.run, args=(use(),))
        thread.start()
        await anyio.to_thread.run_sync(thread.join)
    assert results == [10]


async def test_block_ends_with_the_service_that_broke_down(caplog: pytest.LogCaptureFixture) -> None:
    """A block over a broken worker is interrupted, raises why, and leaves its task uncancelled; the log has it too."""
    with anyio.fail_after(5), pytest.raises(ZeroDivisionError, match="listening"):
        await _sleep_over_a_broken_worker()
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0
    await anyio.lowlevel.checkpoint()
    assert [record.levelno for record in caplog.records if "has ended before" in record.message] == [logging.ERROR]


async def _sleep_over_a_broken_worker() -> None:
    store = Failing()
    async with Worker([doubled], QUIET, store=store):
        store.breaks.set()
        await anyio.sleep_forever()


async def test_started_worker_that_broke_down_says_so_when_stopped() -> None:
    """Without a block nobody is interrupted: stop() raises what ended the worker."""
    store = Failing()
    worker = await Worker([doubled], QUIET, store=store).start()
    store.breaks.set()
    with anyio.fail_after(5):
        await worker.wait_stopped()
    with pytest.raises(ZeroDivisionError, match="listening"):
        await worker.stop()


async def test_what_the_block_raises_passes_as_it_is() -> None:
    """An exception of the block is not wrapped, and running steps are not waited for."""
    with anyio.fail_after(5), pytest.raises(LookupError, match="mine"):
        await _raise_over_a_stuck_step()


async def _raise_over_a_stuck_step() -> None:
    store = MemoryStore()
    async with Worker([stuck], Settings(coordinator=False), store=store) as worker, AsyncClient(store=store) as client:
        await client.start(stuck, 1)
        await until(lambda: worker.loop._attempts)
        raise LookupError("mine")


async def test_cancelled_stop_does_not_wait_for_the_grace_time() -> None:
    """Who is cancelled while the worker drains ends at once, and nothing of the worker is left."""
    store = MemoryStore()
    worker = await Worker([stuck], Settings(coordinator=False, grace=600.0), store=store).start()
    async with AsyncClient(store=store) as client:
        handle = await client.start(stuck, 1)
        await until(lambda: worker.loop._attempts)
        with anyio.fail_after(5):
            with anyio.move_on_after(0.1) as scope:
                await worker.stop()
            assert scope.cancelled_caught
            await worker.wait_stopped()
        with pytest.raises(ResultTimeout):
            await handle.result(timeout=0.05)


async def test_entering_that_fails_raises_its_own_error() -> None:
    """A store that cannot be opened ends the entering with its own exception, and leaves no task."""

    class Closed(MemoryStore):
        async def register_plan(self, plan: Any) -> int:
            raise LookupError("no plans today")

    before = asyncio.all_tasks()
    with pytest.raises(LookupError, match="no plans"):
        await Worker([doubled], QUIET, store=Closed()).start()
    await anyio.lowlevel.checkpoint()
    assert asyncio.all_tasks() == before


async def test_entering_that_is_cancelled_leaves_nothing() -> None:
    """A worker whose start is cancelled has ended when the cancellation arrives."""

    class Slow(MemoryStore):
        async def register_plan(self, plan: Any) -> int:
            await anyio.sleep_forever()
            return 0

    before = asyncio.all_tasks()
    with anyio.move_on_after(0.05) as scope:
        await Worker([doubled], QUIET, store=Slow()).start()
    assert scope.cancelled_caught
    assert asyncio.all_tasks() == before


async def test_wrong_order_is_refused() -> None:
    """A worker that was not started cannot be stopped, one that was cannot be started again, nor an open client opened."""
    worker = Worker([doubled], QUIET, store=MemoryStore())
    for use in (worker.drain, lambda: worker.store):
        with pytest.raises(WorkerError, match="not running"):
            use()
    with pytest.raises(WorkerError, match="not started"):
        await worker.stop()
    await worker.start()
    with pytest.raises(WorkerError, match="runs once"):
        await worker.start()
    await worker.stop()
    async with AsyncClient(store=MemoryStore()) as client:
        with pytest.raises(ClientError, match="open already"):
            await client.open()


async def test_what_is_closed_inside_its_block_may_be_left() -> None:
    """A client that was closed, and a worker that was stopped, within the block end it without a complaint."""
    async with Worker([doubled], QUIET, store=MemoryStore()) as worker, AsyncClient(store=worker.store) as client:
        await client.close()
        await worker.stop()


async def test_a_client_opens_nothing_again_of_a_worker_that_has_stopped(database: str, namespace: str) -> None:
    """A client on a worker's store says so after the worker's end, and closes in peace; no connection is left of either."""
    worker = await Worker([doubled], Settings(database_url=database, namespace=namespace)).start()
    store = worker.store
    assert isinstance(store, PostgresStore)
    async with AsyncClient(store=store) as client:
        handle = await client.start(doubled, 2)
        assert await handle.result(timeout=10) == 4
        await worker.stop()
        with pytest.raises(ClientError, match="has ended"):
            await handle.get()
    assert store._pool is None


def in_another_loop(work: Callable[[], Awaitable[Any]]) -> Callable[[], Any]:
    """Does it in an event loop of its own, which must not take longer than two seconds."""

    async def limited() -> Any:
        async with asyncio.timeout(2):
            return await work()

    return lambda: asyncio.run(limited())


async def test_other_loops_are_refused(database: str, namespace: str) -> None:
    """Whatever is asked of a client in another loop than its own raises there at once; stopping a worker, too; both go on."""
    settings = Settings(database_url=database, namespace=namespace)
    async with Worker([doubled], settings) as worker, AsyncClient(settings=settings) as client:
        handle = await client.start(doubled, 4, delay="1h")
        uses: list[Callable[[], Awaitable[Any]]] = [
            lambda: client.start(doubled, 1),
            lambda: handle.result(timeout=1),
            lambda: anext(client.watch(handle.id)),
            lambda: anext(client.runs()),
            lambda: client.explain(handle.id),
            client.close,
        ]
        for use in uses:
            with pytest.raises(ClientError, match="another event loop"):
                await anyio.to_thread.run_sync(in_another_loop(use))
        with pytest.raises(WorkerError, match="another event loop"):
            await anyio.to_thread.run_sync(in_another_loop(worker.stop))
        assert await (await client.start(doubled, 4)).result(timeout=10) == 8
        assert (await handle.cancel()).accepted


def test_what_a_loop_took_with_it_is_closed(database: str, namespace: str) -> None:
    """A client that was left open in a loop that has ended is a closed one: it says so, and may be opened, in another loop."""
    settings = Settings(database_url=database, namespace=namespace)
    client, worker = AsyncClient(settings=settings), Worker([doubled], settings)

    async def begins() -> None:
        await worker.start()
        await client.open()
        await client.start(doubled, 1)

    async def opens_again() -> bool:
        await client.open()
        run = await client.start(doubled, 1)
        await client.close()
        return run.created

    asyncio.run(begins())
    with pytest.raises(ClientError, match="not open"):
        asyncio.run(client.start(doubled, 1))  # type: ignore[arg-type]
    assert asyncio.run(opens_again())
    asyncio.run(client.open())
    asyncio.run(client.close())
    asyncio.run(worker.stop())
