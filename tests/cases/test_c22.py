"""C22: chained maps over nothing, with several coordinators."""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack

import pytest

from composer import AsyncClient, Settings, Worker, either, otherwise, step, step_context, when, workflow
from tests.working import opened

pytestmark = pytest.mark.anyio

RUNS = 100
_ran: Counter[str] = Counter()


@step
async def src(count: int) -> list[int]:
    """What the first map runs over."""
    return list(range(count))


@step
async def f(n: int) -> int:
    """An item of the first map."""
    _ran[step_context().node] += 1
    return n


@step
async def g(n: int) -> int:
    """An item of the second."""
    _ran[step_context().node] += 1
    return n


@step
async def h(found: list[int]) -> int:
    """What reads the second."""
    _ran[step_context().run_id] += 1
    return len(found)


@workflow
def chained(count: int) -> int:
    """A map over a map, over what may be nothing."""
    return h(g.map(f.map(src(count))))


@workflow
def in_a_branch(count: int) -> int:
    """A map over nothing inside a branch that is taken, then a join."""
    found = src(count)
    with when(count < 5):
        few = h(f.map(found))
    with otherwise():
        many = h.named("many")(g.map(found))
    return either(few, many)


@pytest.mark.parametrize("flow", [chained, in_a_branch], ids=["chained", "in a branch"])
async def test_maps_over_nothing_complete_every_time(database: str, namespace: str, flow: object) -> None:
    """Of a hundred runs all succeed; the reader runs once in each with an empty list, and no item ever runs."""
    _ran.clear()
    settings = Settings(database_url=database, namespace=namespace)
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(opened(database, namespace)) for _ in range(3)]
        for store in stores:
            await stack.enter_async_context(Worker([chained, in_a_branch], settings, store=store))
        client = await stack.enter_async_context(AsyncClient(store=stores[0], settings=settings))
        handles = await client.start_many(flow, [(0,)] * RUNS)  # type: ignore[arg-type]
        assert [await handle.result(timeout=30) for handle in handles] == [0] * RUNS
        states: Counter[tuple[str, str]] = Counter()
        for handle in handles:
            nodes = (await client.get(handle.id)).nodes
            states.update((node.name, node.state) for node in nodes if node.name in ("f", "g"))
    assert (_ran["f"], _ran["g"]) == (0, 0)
    assert [_ran[handle.id] for handle in handles] == [1] * RUNS
    assert len(states) == 2, "the same state every time"
    assert states["f", "completed"] == RUNS
