"""C07: a crash between a commit and the hand-over of what follows."""

from __future__ import annotations

import anyio
import asyncpg
import pytest

from composer import AsyncClient, Settings, step, workflow
from composer.coordinator.recovery import recover
from tests.working import working

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


async def test_a_client_that_is_gone_after_start_leaves_a_run_that_completes(database: str, namespace: str) -> None:
    """The run is durable when start returns, whatever becomes of the client."""
    async with AsyncClient(settings=Settings(database_url=database, namespace=namespace)) as client:
        handles = await client.start_many(pair, [(n,) for n in range(50)])
    async with working(database, namespace, [pair], queues=("default", "elsewhere")) as site:
        for n, handle in enumerate(handles):
            assert await site.client.handle(pair, handle.id).result(timeout=10) == n
