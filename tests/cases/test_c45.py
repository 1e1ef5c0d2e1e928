"""C45: a pool that is exhausted, and connections that run out."""

from __future__ import annotations

import random

import anyio
import asyncpg
import pytest

from composer import step, workflow
from composer.postgres.store import PostgresStore
from tests.working import until, working

pytestmark = pytest.mark.anyio


@step
async def works(n: int) -> int:
    """A moment."""
    await anyio.sleep(0.005)
    return n


@workflow
def work(n: int) -> int:
    """One step."""
    return works(n)


async def one_more(url: str) -> asyncpg.Connection | None:
    """A connection, or None once the server has none left."""
    try:
        return await asyncpg.connect(url)
    except asyncpg.PostgresError:
        return None


async def test_work_goes_on_while_connections_are_scarce(database: str, namespace: str) -> None:
    """1,500 runs on a pool of 5 while others use up the server's connections: attempt 1 each, no error in a step."""
    chance = random.Random(45)
    store = PostgresStore(database, namespace=namespace, connections=5)
    await store.open()
    hogs: list[asyncpg.Connection] = []
    try:
        async with working(database, namespace, [work], concurrency=50, lease=2.0, store=store) as site:
            handles = await site.client.start_many(work, [(n,) for n in range(1_500)])
            while (hog := await one_more(database)) is not None:
                hogs.append(hog)
            cancelled = 0
            for handle in chance.sample(handles, 100):
                cancelled += (await handle.cancel()).accepted
            await until(lambda: site.worker.loop.executed > 700, 60)
            while hogs:
                await hogs.pop().close()
            ends = {"completed": 0, "cancelled": 0}
            for handle in handles:
                end = await site.client.wait(handle.id, timeout=60)
                ends[end.status] += 1
            assert ends == {"completed": 1_500 - cancelled, "cancelled": cancelled}
            assert await site.verified() == []
        connection = await asyncpg.connect(database)
        worst = "select max(attempt), max(crashes) from composer.tasks where namespace = $1 and node = 0 and state = 'completed'"
        assert tuple(await connection.fetchrow(worst, namespace)) == (1, 0)
        idle = "select count(*) from pg_stat_activity where state like 'idle in transaction%' and datname = current_database()"
        assert await connection.fetchval(idle) == 0
        await connection.close()
    finally:
        for hog in hogs:
            await hog.close()
        await store.close()
