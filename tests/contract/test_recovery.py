"""One recovery pass, one timer pass: what stands at the head of the line keeps nothing behind it from its turn."""

from __future__ import annotations

import pytest

import composer.coordinator.recovery as recovery
import composer.coordinator.timers as timers
from composer.core.plan import Plan
from composer.memory.store import MemoryStore
from composer.postgres.store import PostgresStore
from tests.contract.driver import Driver, a_plan
from tests.servers import execute

pytestmark = pytest.mark.anyio


async def lose_dispatches(driver: Driver, *run_ids: str) -> None:
    """Outbox rows of these runs are gone, as after a hand in the tables."""
    store = driver.store
    if isinstance(store, MemoryStore):
        for key in [key for key in store._outbox if key[0] in run_ids]:
            del store._outbox[key]
        return
    assert isinstance(store, PostgresStore)
    await execute(store._url, *(f"delete from composer.outbox where run_id = '{run_id}'" for run_id in run_ids))


async def spoil(driver: Driver, plan: Plan) -> None:
    """The plan can no longer be read: it is of a later release, or damaged."""
    store = driver.store
    plan_id = await store.register_plan(plan)
    if isinstance(store, MemoryStore):
        del store._plans[plan_id]
        return
    assert isinstance(store, PostgresStore)
    store._plans.clear()
    store._plan_ids.clear()
    await execute(
        store._url,
        f"update composer.plans set body = '{{\"format\": 99}}' where namespace = '{store.namespace}' and id = {plan_id}",
    )


async def test_quarantined_runs_do_not_hide_expired_leases(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases that ended in quarantined runs leave the page to those that can be swept."""
    monkeypatch.setattr(recovery, "_MOST", 3)
    for _ in range(4):
        run_id = await driver.start()
        await driver.claim_one()
        assert await driver.store.quarantine(run_id, 1, "bad")
    await driver.later(1.0)
    good = await driver.start()
    await driver.claim_one()
    await driver.later(60.0)
    assert (await recovery.recover(driver.store)).expired == 1
    assert (await driver.task(good)).crashes == 1


async def test_a_plan_that_cannot_be_read_stops_its_own_run_only(driver: Driver) -> None:
    """Recovery and timers take a run aside whose plan they cannot read, and go on with the others."""
    unreadable = a_plan({"a": ["input"], "b": ["a"]}, workflow="other", timeout=100.0)
    bad, good = await driver.start(unreadable), await driver.start(a_plan(timeout=100.0))
    assert len(await driver.claim()) == 2
    later, due = await driver.start(unreadable, starts=(90.0, None)), await driver.start(starts=(90.0, None))
    await spoil(driver, unreadable)
    await driver.later(60.0)
    assert (await recovery.recover(driver.store)).expired == 1
    assert (await driver.task(good)).crashes == 1
    await driver.later(60.0)
    assert (await timers.fire_due(driver.store))[1] == 2
    assert (await driver.record(due)).head.snapshot.status == "running"
    for run_id in (bad, later):
        assert (await driver.record(run_id)).quarantine is not None


async def test_lost_dispatches_behind_many_healthy_runs_are_found(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ready task without an outbox row is found within a few passes however many open runs are older."""
    monkeypatch.setattr(recovery, "_MOST", 3)
    for _ in range(7):
        await driver.start()
    lost = [await driver.start(), await driver.start()]
    await lose_dispatches(driver, *lost)
    await driver.later(120.0)
    assert sum([(await recovery.recover(driver.store)).redispatched for _ in range(4)]) == 2
    assert len(await driver.claim()) == 9


async def test_tasks_that_lost_two_workers_come_one_at_a_time(driver: Driver) -> None:
    """The first lost worker separates nothing; from the second on each claim brings one of them, and all others."""
    runs = [await driver.start() for _ in range(3)]
    for crashes in (1, 2):
        assert {task.run.run_id for task in await driver.claim()} == set(runs)
        await driver.later(60.0)
        assert (await recovery.recover(driver.store)).expired == 3
        await driver.later(60.0)
        await timers.fire_due(driver.store)
        assert {(await driver.task(run_id)).crashes for run_id in runs} == {crashes}
    fresh = [await driver.start() for _ in range(2)]
    brought = [[task.run.run_id for task in await driver.claim()] for _ in range(4)]
    assert set(fresh) < set(brought[0])
    assert [len(each) for each in brought] == [3, 1, 1, 0]
    assert sorted([*fresh, *runs]) == sorted(run_id for each in brought for run_id in each)
