"""C18: very long, zero and odd sleeps."""

from __future__ import annotations

from datetime import datetime, timedelta

import anyio
import pytest

from composer import PlanError, sleep, step, workflow
from composer.coordinator.recovery import recover
from composer.coordinator.timers import fire_due
from tests.servers import execute
from tests.working import until, working

pytestmark = pytest.mark.anyio

_ran: list[float] = []


@step
async def seconds(n: float) -> float:
    """How long the sleep is to be."""
    return n


@step
async def behind(n: float) -> float:
    """Comes after the sleep."""
    _ran.append(n)
    return n


@workflow
def sleeps(n: float) -> float:
    """As long as a value says."""
    return behind.after(sleep(seconds(n)))(n)


@workflow
def year(n: float) -> float:
    """Four hundred days."""
    return behind.after(sleep(timedelta(days=400)))(n)


@pytest.mark.parametrize("n", [0.0, -5.0, 0.3])
async def test_short_sleeps_go_on(database: str, namespace: str, n: float) -> None:
    """Nothing and less is no pause; a fraction of a second is one, and no shorter than it says."""
    _ran.clear()
    async with working(database, namespace, [sleeps]) as site:
        began = anyio.current_time()
        assert await (await site.client.start(sleeps, n)).result(timeout=10) == n
        assert anyio.current_time() - began >= max(0.0, n)
    assert _ran == [n]


async def test_four_hundred_days_hold_nothing(database: str, namespace: str) -> None:
    """A sleep of 400 days is stored as that; it holds no slot and no lease, nothing is handed out meanwhile, and once due its successor runs once."""
    _ran.clear()
    async with working(database, namespace, [year, sleeps]) as site:
        handle = await site.client.start(year, 1.0)
        store = site.client.store

        async def stored() -> datetime | None:
            record = await store.get_run(handle.id)
            assert record is not None
            return next((task.wake_at for task in record.tasks if task.state == "waiting"), None)

        await until(stored)
        record = await store.get_run(handle.id)
        wake_at = await stored()
        assert record is not None
        assert wake_at is not None
        assert abs(wake_at - record.created_at - timedelta(days=400)) < timedelta(seconds=1)
        assert site.worker.loop.is_idle
        assert {task.state for task in record.tasks} == {"waiting"}
        # All that works for runs has been at work meanwhile, and has looked for what is due or lost.
        assert await (await site.client.start(sleeps, 0.3)).result(timeout=10) == 0.3
        assert not (await recover(store)).found_any
        assert await fire_due(store) == (0, 0)
        assert await stored() == wake_at
        assert site.worker.loop.executed == 2, "something of the sleeping run was handed out"
        version = (await store.load_heads([handle.id]))[handle.id].snapshot.version
        assert version == 1, "a sleeping run moves"

        await execute(database, f"update composer.tasks set wake_at = now() where run_id = '{handle.id}' and node = 0")
        site.worker.store.wakeups.timer_set()
        assert await handle.result(timeout=10) == 1.0
        assert await site.verified() == []
    assert _ran == [0.3, 1.0]


@pytest.mark.parametrize("odd", [-5, float("nan"), float("inf"), timedelta.max, timedelta(days=40_000)])
def test_impossible_constants_are_refused_where_they_are_written(odd: object) -> None:
    """A negative sleep, one of NaN, and one of more than a century cannot be built."""
    with pytest.raises(PlanError, match="sleep"):

        @workflow
        def never(n: float) -> float:
            return behind.after(sleep(odd))(n)  # type: ignore[arg-type]


async def test_impossible_values_fail_their_node_and_no_loop(database: str, namespace: str) -> None:
    """A value that is no duration fails the sleep, naming it; the coordinator goes on."""
    async with working(database, namespace, [sleeps]) as site:
        handle = await site.client.start(sleeps, 1e11)
        await site.client.wait(handle.id, timeout=10)
        run = await handle.get()
        assert run.error is not None
        assert (run.status, run.error["node"]) == ("failed", "sleep")
        assert "100000000000.0 is longer than a century" in run.error["message"]
        assert await (await site.client.start(sleeps, 0.05)).result(timeout=10) == 0.05
