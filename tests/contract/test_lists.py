"""Lists of runs, and a run's changes: the same on every store."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from composer.core.events import CancelRequested
from composer.core.states import RunStatus
from composer.ports.store import RunQuery, WorkerRecord
from tests.contract.driver import Driver, a_chain, a_plan, done, failed

pytestmark = pytest.mark.anyio


async def listed(driver: Driver, query: RunQuery, page: int = 100) -> list[str]:
    """Ids of all pages, in order."""
    found: list[str] = []
    after: str | None = None
    while True:
        got = await driver.store.list_runs(query, after, page)
        found += [run.head.run_id for run in got.runs]
        if got.reached is None:
            return found
        after = got.reached


async def test_runs_come_in_the_order_of_their_creation(driver: Driver) -> None:
    """Newest first or oldest first, page by page, each once."""
    runs = [await driver.start() for _ in range(7)]
    for page in (1, 2, 3, 7, 100):
        assert await listed(driver, RunQuery(newest_first=False), page) == runs
        assert await listed(driver, RunQuery(), page) == runs[::-1]


async def test_runs_are_chosen_by_what_is_asked(driver: Driver) -> None:
    """By workflow, status, tags, error and creation; all that is asked has to fit."""
    one, two = a_plan(), a_plan(workflow="other")
    ended = await driver.start(one, tags={"customer": "7", "kind": "a"})
    await driver.apply(ended, done(await driver.claim_one()))
    broken = await driver.start(one, tags={"customer": "7"})
    await driver.apply(broken, failed(await driver.claim_one(), retryable=False))
    stopped = await driver.start(two, tags={"customer": "8"})
    await driver.apply(stopped, CancelRequested("no"))
    fresh = await driver.start(two)

    async def those(**asked: object) -> list[str]:
        return await listed(driver, RunQuery(newest_first=False, **asked), 2)  # type: ignore[arg-type]

    assert await those(workflow="flow") == [ended, broken]
    assert await those(workflow="other", statuses=frozenset({RunStatus.RUNNING})) == [fresh]
    assert await those(statuses=frozenset({RunStatus.FAILED, RunStatus.CANCELLED})) == [broken, stopped]
    assert await those(tags={"customer": "7"}) == [ended, broken]
    assert await those(tags={"customer": "7", "kind": "a"}) == [ended]
    assert await those(error_code="node-failed") == [broken]
    assert await those(error_code="error") == [broken], "the kind of the failure"
    assert await those(error_code="cancelled") == [stopped]
    assert await those(workflow="nobody's") == []
    now = (await driver.record(fresh)).created_at
    assert await those(since=now + timedelta(seconds=1)) == []
    assert await those(until=now + timedelta(seconds=1)) == [ended, broken, stopped, fresh]
    assert await those(since=datetime(2000, 1, 1, tzinfo=UTC), until=datetime(2001, 1, 1, tzinfo=UTC)) == []
    (summary,) = (await driver.store.list_runs(RunQuery(error_code="node-failed"), None, 10)).runs
    assert (summary.workflow, summary.head.snapshot.status, dict(summary.tags)) == ("flow", "failed", {"customer": "7"})
    assert summary.error is not None


async def test_changes_are_read_from_a_version_on(driver: Driver) -> None:
    """A run with the transitions above a version, and the bodies that have begun and not ended."""
    run_id = await driver.start(a_chain(2))
    task = await driver.claim_one()
    found = await driver.store.changes(run_id, 0, 10)
    assert found is not None
    assert [row.version for row in found.history] == [1]
    assert [(t.node, t.attempt, t.delivery, t.worker) for t in found.begun] == [(0, 1, 1, "w")]
    await driver.apply(run_id, done(task))
    await driver.apply(run_id, done(await driver.claim_one()))
    found = await driver.store.changes(run_id, 1, 1)
    assert found is not None
    assert [row.version for row in found.history] == [2]
    assert found.head.snapshot.version == 3
    later = await driver.store.changes(run_id, 3, 10)
    assert later is not None
    assert (later.history, later.begun) == ([], [])
    assert await driver.store.changes((await driver.store.mint_run_ids(1))[0], 0, 10) is None


async def test_a_worker_that_is_silent_for_too_long_is_not_present(driver: Driver) -> None:
    """A registration lapses after the time it was given for, and counts again once it is renewed."""
    worker = WorkerRecord("me", "host", "boot", 7, 1.0, ["default"], ["a"])
    await driver.store.register_worker(worker, ttl=60.0)
    await driver.store.register_worker(replace(worker, worker_id="other"), ttl=3_600.0)
    await driver.later(61.0)
    assert [w.worker_id for w in (await driver.store.presence()).workers] == ["other"]
    await driver.store.register_worker(worker, ttl=60.0)
    assert [w.worker_id for w in (await driver.store.presence()).workers] == ["me", "other"]


async def test_presence_is_who_lives(driver: Driver) -> None:
    """Registered workers are there with what they serve, until they say that they leave."""
    worker = WorkerRecord("me", "host", "boot", 7, 1.0, ["default"], ["a"])
    await driver.store.register_worker(worker, ttl=60.0)
    present = await driver.store.presence()
    assert [(w.worker_id, list(w.queues), list(w.steps)) for w in present.workers] == [("me", ["default"], ["a"])]
    await driver.store.forget_worker("me")
    assert (await driver.store.presence()).workers == []
