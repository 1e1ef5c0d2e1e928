"""Tasks that wait, as a store keeps them: their moments, those that end as soon as they begin, and what takes them away."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from composer.coordinator.timers import fire_due
from composer.core.events import CancelRequested, DeadlinePassed, Event, RetryRequested, Signalled
from composer.core.plan import Plan
from composer.verify import Verified, verify, violations_of
from tests.contract.driver import Driver, done, failed

pytestmark = pytest.mark.anyio

A: dict[str, Any] = {"name": "a", "kind": "step", "step": "a", "args": {}}


def a_plan(*nodes: dict[str, Any], output: Any = None) -> Plan:
    """These nodes."""
    return Plan({"format": 1, "workflow": "flow", "params": {}, "nodes": list(nodes), "output": output})


def a_sleep(name: str = "s", **args: Any) -> dict[str, Any]:
    """A sleep: `length=60`, or `until=` a moment."""
    after = [{"ref": each} for each in args.pop("after", ())]
    found = {"for" if key == "length" else key: value for key, value in args.items()}
    return {"name": name, "kind": "sleep", "args": found} | ({"after": after} if after else {})


def a_wait(name: str = "w", **more: Any) -> dict[str, Any]:
    """A wait for event "go"."""
    return {"name": name, "kind": "wait", "event": "go", "schema": {}, "timeout": None, "args": {}, **more}


async def test_waits_that_a_start_begins(driver: Driver) -> None:
    """A start stores a sleep with its moment and a wait without a timeout without one; no worker gets either."""
    run_id = await driver.start(a_plan(a_sleep(length=60), a_wait()))
    sleeping, waiting = await driver.task(run_id, "s"), await driver.task(run_id, "w")
    created = (await driver.record(run_id)).created_at
    assert (sleeping.state, waiting.state, waiting.wake_at) == ("waiting", "waiting", None)
    assert sleeping.wake_at is not None
    assert abs(sleeping.wake_at - created - timedelta(seconds=60)) < timedelta(seconds=5)
    assert await driver.claim() == []
    due_in = await driver.store.next_due_in()
    assert due_in is not None
    assert 50 < due_in <= 60


async def test_wait_without_a_timeout_has_no_timer(driver: Driver) -> None:
    """Of a wait that only an event ends nothing ever comes due, and the event ends it."""
    run_id = await driver.start(a_plan(a_wait()))
    assert await driver.store.next_due_in() is None
    await driver.later(10 * 365 * 86_400)
    assert await driver.store.take_due_waits(10, 10.0) == []
    await driver.apply(run_id, Signalled("go", "null"))
    assert (await driver.task(run_id, "w")).output == "null"
    assert (await driver.head(run_id)).snapshot.status == "completed"


@pytest.mark.parametrize("begins", ["with the run", "later"])
@pytest.mark.parametrize(
    ("moment", "utc"),
    [
        ("2031-05-01T12:00:00+02:00", datetime(2031, 5, 1, 10, tzinfo=UTC)),
        ("2031-05-01T12:00:00+23:00", datetime(2031, 4, 30, 13, tzinfo=UTC)),
        ("2031-05-01T12:00:00.000001-23:59", datetime(2031, 5, 2, 11, 59, 0, 1, tzinfo=UTC)),
        ("0002-01-01T00:00:00Z", datetime(2, 1, 1, tzinfo=UTC)),
    ],
)
async def test_moments_are_kept_whatever_their_offset(driver: Driver, begins: str, moment: str, utc: datetime) -> None:
    """A sleep until a moment is stored with that moment, also where its offset is larger than any zone's."""
    first = begins == "later"
    after = ("a",) if first else ()
    run_id = await driver.start(a_plan(*([A] if first else []), a_sleep(until=moment, after=after)))
    if first:
        await driver.apply(run_id, done(await driver.claim_one()))
    assert (await driver.task(run_id, "s")).wake_at == utc


async def test_tasks_that_end_as_they_begin(driver: Driver) -> None:
    """A wait whose event came before it is stored as completed, an impossible sleep as failed: neither is ever due or claimed."""
    plan = a_plan(
        A, a_wait(after=[{"ref": "a"}]), a_sleep(length={"$": {"ref": "a"}}),
        {"name": "r", "kind": "step", "step": "r", "args": {"x": {"$": {"ref": "w"}}, "y": {"$": {"settled": [{"ref": "s"}]}}}},
    )  # fmt: skip
    run_id = await driver.start(plan)
    await driver.apply(run_id, Signalled("go", '"early"', "once"))
    await driver.apply(run_id, done(await driver.claim_one(), "1e300"))
    waited, slept = await driver.task(run_id, "w"), await driver.task(run_id, "s")
    assert (waited.state, waited.output, waited.wake_at) == ("completed", '"early"', None)
    assert (slept.state, slept.output, slept.wake_at) == ("failed", None, None)
    assert slept.error is not None
    assert "longer than a century" in json.loads(slept.error)["message"]
    assert waited.finished_at is not None
    assert slept.finished_at is not None
    assert [(each.dedupe, each.node) for each in await driver.store.load_signals(run_id)] == [("once", 1)]
    assert await driver.store.next_due_in() is None
    reader = await driver.claim_one()
    assert reader.step == "r"
    outputs = [value for value in reader.values.values() if value is not None]
    assert '"early"' in outputs


async def test_cancel_takes_every_timer_away(driver: Driver) -> None:
    """After a cancel nothing of the run is due, however much time passes, and its history has no event more."""
    run_id = await driver.start(a_plan(a_sleep(length=60), a_wait(timeout=90, on_timeout={"const": 1})))
    await driver.apply(run_id, CancelRequested("no"))
    assert set((await driver.states(run_id)).values()) == {"cancelled"}
    assert await driver.store.next_due_in() is None
    version = (await driver.head(run_id)).snapshot.version
    await driver.later(100)
    assert await fire_due(driver.store) == (0, 0)
    assert (await driver.head(run_id)).snapshot.version == version


async def test_retry_leaves_a_race_that_was_won(driver: Driver) -> None:
    """After a race the run failed: its retry runs the failed step, and waits for nothing that had lost."""
    run_id = await driver.start(
        a_plan(
            a_sleep(length=60), a_wait(), {"name": "r", "kind": "race", "of": [{"ref": "w"}, {"ref": "s"}]},
            {"name": "b", "kind": "step", "step": "b", "args": {}, "after": [{"ref": "r"}]},
        )
    )  # fmt: skip
    await driver.later(61)
    await fire_due(driver.store)
    await driver.apply(run_id, failed(await driver.claim_one()))
    await driver.apply(run_id, RetryRequested())
    assert (await driver.states(run_id))["w"] == "withdrawn"
    await driver.apply(run_id, done(await driver.claim_one()))
    assert (await driver.head(run_id)).snapshot.status == "completed"


@pytest.mark.parametrize("stop", [CancelRequested(), DeadlinePassed(0)], ids=["cancel", "deadline"])
async def test_what_ended_as_it_began_is_kept_by_a_stop_in_the_same_commit(driver: Driver, stop: Event) -> None:
    """A wait whose event was there and a sleep that cannot be read end with the step before them, and then the run is stopped."""
    b = {
        "name": "b",
        "kind": "step",
        "step": "b",
        "args": {"x": {"$": {"ref": "w"}}, "y": {"$": {"settled": [{"ref": "s"}]}}},
    }
    run_id = await driver.start(a_plan(A, a_sleep(length={"$": {"ref": "a"}}), a_wait(after=[{"ref": "a"}]), b))
    await driver.apply(run_id, Signalled("go", '"early"'))
    await driver.apply(run_id, done(await driver.claim_one(), '"no number"'), stop)
    waited, slept = await driver.task(run_id, "w"), await driver.task(run_id, "s")
    assert (waited.state, waited.output) == ("completed", '"early"')
    assert slept.state == "failed"
    assert "sleep s" in (slept.error or "")
    status = (await driver.head(run_id)).snapshot.status
    assert status == ("cancelled" if isinstance(stop, CancelRequested) else "failed")
    assert await driver.claim() == []
    assert [violation async for violation in verify(driver.store, Verified())] == []


async def test_a_value_from_the_commit_that_stopped_the_run_is_read_after_a_retry(driver: Driver) -> None:
    """A retry goes on from a wait that had taken its event just before the deadline: the event is not asked for again."""
    b = {"name": "b", "kind": "step", "step": "b", "args": {"x": {"$": {"ref": "w"}}}}
    run_id = await driver.start(a_plan(A, a_wait(after=[{"ref": "a"}]), b))
    await driver.apply(run_id, Signalled("go", '"early"'))
    await driver.apply(run_id, done(await driver.claim_one()), DeadlinePassed(0))
    await driver.apply(run_id, RetryRequested())
    claimed = await driver.claim_one()
    assert claimed.step == "b"
    assert list(claimed.values.values()) == ['"early"']
    await driver.apply(run_id, done(claimed))
    assert (await driver.head(run_id)).snapshot.status == "completed"


async def test_verify_misses_the_task_of_a_node_that_ended(driver: Driver) -> None:
    """A row that is gone, or in another state than its node, is a violation of the first promise."""
    run_id = await driver.start(a_plan(a_wait()))
    await driver.apply(run_id, Signalled("go", "1"))
    (run,) = await driver.store.audit(None, 10)
    plan = await driver.store.load_plan(run.record.head.plan_id)
    assert violations_of(run, plan) == []
    for rows, there in (
        ([task for task in run.record.tasks if task.node != 0], "not there"),
        ([replace(task, state="withdrawn") if task.node == 0 else task for task in run.record.tasks], "withdrawn"),
    ):
        found = violations_of(replace(run, record=replace(run.record, tasks=rows)), plan)
        assert [(each.invariant, each.problem) for each in found] == [(1, f"w is completed, and its task is {there}")]
