"""C07: a crash between a commit and the hand-over of what follows."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncIterator

import anyio
import asyncpg
import pytest

from composer import AsyncClient, Settings, step, workflow
from composer.coordinator.recovery import recover
from tests.servers import execute, query
from tests.working import until, working

pytestmark = pytest.mark.anyio

ran: list[int] = []


@step
async def first(n: int) -> int:
    """The first."""
    return n


@step(queue="elsewhere")
async def second(n: int) -> int:
    """What follows, in a queue of its own: never handed over, always dispatched."""
    ran.append(n)
    return n


@workflow
def pair(n: int) -> int:
    """Two steps."""
    return second(first(n))


async def test_what_was_committed_and_never_dispatched_is_found(database: str, namespace: str) -> None:
    """50 of 50 successors start once although their hand-out was lost, at attempt 1."""
    ran.clear()
    async with working(database, namespace, [pair], coordinator=False) as site:
        handles = await site.client.start_many(pair, [(n,) for n in range(50)])
        connection = await asyncpg.connect(database)
        with anyio.fail_after(10):
            while (
                await connection.fetchval(
                    "select count(*) from composer.outbox where namespace = $1 and queue = 'elsewhere'", namespace
                )
                < 50
            ):
                await anyio.sleep(0.01)
        await connection.execute("delete from composer.outbox where namespace = $1", namespace)
        await connection.close()
    async with working(database, namespace, [pair], queues=("default", "elsewhere")) as site:
        assert (await recover(site.worker.store, lost_after=0.0)).redispatched == 50
        for n, handle in enumerate(handles):
            assert await site.client.handle(pair, handle.id).result(timeout=10) == n
        assert sorted(ran) == list(range(50))
        assert await site.verified() == []


@pytest.fixture
async def orders(database: str) -> AsyncIterator[str]:
    """The database with the application's own table in it."""
    await execute(database, "create table orders (id int)")
    yield database
    await execute(database, "drop table orders")


async def nothing_started(database: str, namespace: str) -> bool:
    """Whether there is no order, no run, no task, no hand-out and no key."""
    tables = ("runs", "tasks", "outbox", "history", "run_keys")
    texts = [f"select from composer.{table} where namespace = $1" for table in tables]
    found = [await query(database, text, namespace) for text in texts]
    return not any(found) and not await query(database, "select from orders")


async def test_start_within_a_transaction_that_rolls_back_leaves_nothing(orders: str, namespace: str) -> None:
    """50 starts within transactions that roll back, beside a worker: no run, no hand-out, no body runs, nothing is logged."""
    ran.clear()
    async with working(orders, namespace, [pair], queues=("default", "elsewhere")) as site:
        connection = await asyncpg.connect(orders)
        for n in range(50):
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute("insert into orders values ($1)", n)
            await site.client.start(pair, n, idempotency_key=f"order-{n}", within=connection)
            await transaction.rollback()
        assert await nothing_started(orders, namespace)
        # What was started after them has run: had one of them been dispatched, it would have run before.
        async with connection.transaction():
            last = await site.client.start(pair, 99, within=connection)
        assert await last.result(timeout=10) == 99
        assert ran == [99]
        await connection.close()


async def test_client_that_is_killed_before_its_commit_leaves_nothing(orders: str, namespace: str) -> None:
    """A process with 50 transactions open, a start in each, is killed before any commits: nothing is there, keys are free."""
    command = [sys.executable, "-m", "tests.lenders", orders, namespace, "50"]
    async with await anyio.open_process(command, stdin=subprocess.PIPE, stderr=None) as process:
        assert process.stdout is not None
        with anyio.fail_after(30):
            assert b"started" in await process.stdout.receive()
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    # The server notices each closed connection in its own time, and rolls back.
    others = "select from pg_stat_activity where datname = current_database() and state = 'idle in transaction'"
    await until(lambda: _is_empty(orders, others))
    assert await nothing_started(orders, namespace)
    async with AsyncClient(settings=Settings(database_url=orders, namespace=namespace)) as client:
        assert (await client.start(pair, 1, idempotency_key="order-1")).created


async def _is_empty(database: str, text: str) -> bool:
    return not await query(database, text)


async def test_a_client_that_is_gone_after_start_leaves_a_run_that_completes(database: str, namespace: str) -> None:
    """The run is durable when start returns, whatever becomes of the client."""
    async with AsyncClient(settings=Settings(database_url=database, namespace=namespace)) as client:
        handles = await client.start_many(pair, [(n,) for n in range(50)])
    async with working(database, namespace, [pair], queues=("default", "elsewhere")) as site:
        for n, handle in enumerate(handles):
            assert await site.client.handle(pair, handle.id).result(timeout=10) == n
