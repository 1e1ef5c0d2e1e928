"""C23, first half: ten thousand items, small runs beside them, and a list that is mapped again. Child workflows come later."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack

import anyio
import pytest

from composer import AsyncClient, RunFailed, Settings, Worker, step, workflow
from tests.working import opened

pytestmark = pytest.mark.anyio

ITEMS = 10_000


@step
async def numbers(count: int) -> list[int]:
    """What the map runs over."""
    return list(range(count))


@step
async def same(n: int) -> int:
    """An item."""
    return n


@step
async def in_order(found: list[int]) -> int:
    """The sum of a list that is in its order."""
    assert found == list(range(len(found)))
    return sum(found)


@workflow
def wide(count: int) -> int:
    """One map."""
    return in_order(same.map(numbers(count)))


@workflow
def twice(count: int) -> int:
    """A map over the output of a map."""
    return in_order(same.map(same.map(numbers(count))))


@workflow
def small(n: int) -> int:
    """One step."""
    return same(n)


async def test_ten_thousand_items(database: str, namespace: str) -> None:
    """Every item counts once and in order, the last ones are as fast as the first, and small runs beside them start at once."""
    settings = Settings(database_url=database, namespace=namespace, concurrency=20)
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(opened(database, namespace)) for _ in range(3)]
        for store in stores:
            await stack.enter_async_context(Worker([wide, twice, small], settings, store=store))
        client = await stack.enter_async_context(AsyncClient(store=stores[0], settings=settings))
        delays: list[float] = []

        async def beside() -> None:
            for n in range(50):
                began = time.monotonic()
                await (await client.start(small, n)).result(timeout=30)
                delays.append(time.monotonic() - began)

        handle = await client.start(wide, ITEMS)
        async with anyio.create_task_group() as group:
            group.start_soon(beside)
            assert await handle.result(timeout=60) == 49_995_000
        assert sorted(delays)[int(len(delays) * 0.95)] < 1.0

        (run,) = [each for each in await client.store.audit(None, 100) if each.record.head.run_id == handle.id]
        ends = sorted(task.finished_at for task in run.record.tasks if task.item >= 0 and task.finished_at)
        assert len(ends) == ITEMS
        stored = [
            row.at for row in run.history for entry in row.changes["events"] if entry["event"] == "items-expanded"
        ]
        assert len(stored) == ITEMS // 1_000
        assert (stored[-1] - stored[0]).total_seconds() < 10
        first, last = ends[1_000] - ends[0], ends[-1] - ends[-1_001]
        assert last.total_seconds() <= 2 * first.total_seconds() + 0.5

        assert await (await client.start(twice, 2_000)).result(timeout=60) == 1_999_000


async def test_more_items_than_a_map_may_have_are_refused_with_the_number(database: str, namespace: str) -> None:
    """A list of a hundred thousand and one fails its run, and says both numbers and what to do."""
    settings = Settings(database_url=database, namespace=namespace)
    async with (
        opened(database, namespace) as store,
        Worker([wide], settings, store=store),
        AsyncClient(store=store, settings=settings) as client,
    ):
        with pytest.raises(RunFailed) as caught:
            await (await client.start(wide, 100_001)).result(timeout=30)
    assert caught.value.error_type == "MapTooWide"
    assert "100,001" in caught.value.message
    assert "100,000" in caught.value.message
    assert "batch" in caught.value.message
