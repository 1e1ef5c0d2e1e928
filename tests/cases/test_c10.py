"""C10: one bad item does not spoil a claimed batch."""

from __future__ import annotations

import asyncpg
import pytest

from composer import RunFailed, step, workflow
from tests.working import working

pytestmark = pytest.mark.anyio


@step
async def reads(n: int) -> int:
    """The number."""
    return n


@workflow
def reading(n: int) -> int:
    """One step."""
    return reads(n)


@pytest.mark.parametrize("stored", ["{not json", '{"n": "three"}', "{}"])
async def test_one_unreadable_input_fails_alone(database: str, namespace: str, stored: str) -> None:
    """Nine of ten ready tasks run at attempt 1; the tenth fails with a stored error naming step and field."""
    async with working(database, namespace, [reading], coordinator=False) as site:
        site.worker.drain()
        await site.worker.wait_stopped()
        handles = await site.client.start_many(reading, [(n,) for n in range(10)])
        connection = await asyncpg.connect(database)
        await connection.execute(
            "update composer.tasks set input = $1 where node = -1 and run_id = $2 and namespace = $3",
            stored,
            handles[2].id,
            namespace,
        )
        await connection.close()
    async with working(database, namespace, [reading], concurrency=20) as site:
        for n, handle in enumerate(handles):
            if n != 2:
                assert await site.client.handle(reading, handle.id).result(timeout=5) == n
                assert (await site.client.get(handle.id)).nodes[0].attempt == 1
        with pytest.raises(RunFailed, match="reads") as caught:
            await site.client.handle(reading, handles[2].id).result(timeout=5)
        assert "n" in caught.value.message
        assert (await site.client.get(handles[2].id)).nodes[0].attempt == 1, "it is not retried"
        assert await (await site.client.start(reading, 5)).result(timeout=5) == 5
