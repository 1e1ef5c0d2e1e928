"""C17: the timer of a cancelled run must not fire later."""

from __future__ import annotations

import anyio
import pytest

from composer import AsyncClient, Settings, Worker, sleep, step, workflow
from composer.coordinator.timers import fire_due
from tests.working import opened, until, working

pytestmark = pytest.mark.anyio

_ran: list[str] = []


@step
async def before(n: int) -> int:
    """Runs at once."""
    return n


@step
async def behind(n: int) -> int:
    """Must not run."""
    _ran.append("behind")
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
        # Past the moment at which the short one would have woken.
        await anyio.sleep(1.0)
        run = await handle.get()
        assert run.status == "cancelled"
        history = await site.client.history(handle.id)
        assert [row.version for row in history] == list(range(1, version + 1))
        assert history[-1].changes["events"][-1]["event"] == "cancel-requested"
        assert await site.verified() == []
    assert _ran == []


async def test_timer_that_comes_due_while_nobody_looks(database: str, namespace: str) -> None:
    """With no coordinator between the cancel and the due time, the first one that looks finds nothing to fire."""
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
        await anyio.sleep(0.8)
        assert await fire_due(store) == (0, 0)
        assert (await handle.get()).status == "cancelled"
    assert _ran == []
