"""C17: the timer of a cancelled run must not fire later."""

from __future__ import annotations

import anyio
import pytest

from composer import AsyncClient, Settings, Worker, sleep, step, workflow
from composer.coordinator.timers import fire_due
from composer.ports.store import Store
from tests.working import opened, until, working

pytestmark = pytest.mark.anyio

_ran: list[int] = []
"""What came after its sleep."""


@step
async def before(n: int) -> int:
    """Runs at once."""
    return n


@step
async def behind(n: int) -> int:
    """Must not run after a sleep that was cancelled."""
    _ran.append(n)
    return n


@workflow
def short(n: int) -> int:
    """Sleeps for a moment."""
    return behind.after(sleep("700ms", after=before(n)))(n)


@workflow
def long(n: int) -> int:
    """Sleeps for a day."""
    return behind.after(sleep("1d", after=before(n)))(n)


async def sleeping(client: AsyncClient, run_id: str) -> bool:
    """Whether the run is in its sleep."""
    return {node.name: node.state for node in (await client.get(run_id)).nodes}["sleep"] == "waiting"


async def is_due(store: Store) -> bool:
    """Whether the earliest timer has come due."""
    due_in = await store.next_due_in()
    assert due_in is not None
    return due_in <= 0


@pytest.mark.parametrize("flow", [short, long], ids=["short", "a day"])
async def test_cancelled_sleep_never_wakes(database: str, namespace: str, flow: object) -> None:
    """Cancelled in its sleep the run is cancelled at once and for good; no timer is left, nothing comes after the cancel in history."""
    _ran.clear()
    async with working(database, namespace, [short, long]) as site:
        handle = await site.client.start(flow, 1)  # type: ignore[arg-type]
        await until(lambda: sleeping(site.client, handle.id))
        began = anyio.current_time()
        assert (await handle.cancel("enough")).accepted
        assert anyio.current_time() - began < 1.0
        version = (await site.client.store.load_heads([handle.id]))[handle.id].snapshot.version
        assert await site.client.store.next_due_in() is None, "a timer is left"
        # A run that begins to sleep later, and wakes: the short one would have woken by then.
        assert await (await site.client.start(short, 2)).result(timeout=10) == 2
        run = await handle.get()
        assert run.status == "cancelled"
        history = await site.client.history(handle.id)
        assert [row.version for row in history] == list(range(1, version + 1))
        assert history[-1].changes["events"][-1]["event"] == "cancel-requested"
        assert await site.verified() == []
    assert _ran == [2]


async def test_timer_that_comes_due_while_nobody_looks(database: str, namespace: str) -> None:
    """With no coordinator between the cancel and the due time, the first one that looks finds only what was not cancelled."""
    _ran.clear()
    settings = Settings(database_url=database, namespace=namespace, coordinator=False)
    async with (
        opened(database, namespace) as store,
        Worker([short], settings, store=store),
        AsyncClient(store=store, settings=settings) as client,
    ):
        handle = await client.start(short, 1)
        await until(lambda: sleeping(client, handle.id))
        assert (await handle.cancel()).accepted
        other = await client.start(short, 2)
        await until(lambda: sleeping(client, other.id))
        await until(lambda: is_due(store))
        assert await fire_due(store) == (0, 1)
        assert await other.result(timeout=10) == 2
        assert (await handle.get()).status == "cancelled"
    assert _ran == [2]
