"""Races over a waiting node, each order forced: one side has decided when the other one commits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from composer.apply import Applied, Applier
from composer.coordinator.timers import fire_due
from composer.core.events import CancelRequested, Event, RetryRequested, Signalled, TimerFired
from composer.core.plan import Plan
from tests.contract.driver import Driver, done

pytestmark = pytest.mark.anyio

AT = "2026-01-01T00:00:00Z"


def a_wait(**more: Any) -> Plan:
    """A wait with a stand-in answer, then a second one of the same name."""
    nodes: list[dict[str, Any]] = [
        {"name": "w", "kind": "wait", "event": "go", "schema": {}, "timeout": 60, "on_timeout": {"const": "late"}, "args": {}, **more},
        {"name": "x", "kind": "wait", "event": "go", "schema": {}, "timeout": None, "args": {}, "after": [{"ref": "w"}]},
    ]  # fmt: skip
    return Plan({"format": 1, "workflow": "flow", "nodes": nodes, "output": {"$": {"ref": "w"}}})


def a_sleep() -> Plan:
    """A sleep, then a step."""
    nodes: list[dict[str, Any]] = [
        {"name": "s", "kind": "sleep", "args": {"for": 60}},
        {"name": "t", "kind": "step", "step": "t", "args": {}, "after": [{"ref": "s"}]},
    ]
    return Plan({"format": 1, "workflow": "flow", "nodes": nodes, "output": None})


async def apply_over(driver: Driver, run_id: str, event: Event, other: Callable[[], Awaitable[Any]]) -> Applied:
    """Applies an event that was decided before `other` happened, and commits after it."""
    store = driver.store
    commit, calls = store.commit, 0

    async def late(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            store.commit = commit  # type: ignore[method-assign]
            await other()
        return await commit(*args, **options)

    store.commit = late  # type: ignore[method-assign]
    try:
        return await Applier(store).apply({run_id: [event]}, patience=0)
    finally:
        store.commit = commit  # type: ignore[method-assign]


async def letters(driver: Driver, run_id: str) -> str:
    return (await driver.head(run_id)).snapshot.letters.text


async def test_signal_that_commits_before_a_timeout_wins(driver: Driver) -> None:
    """The timeout was decided first and commits second: the wait has the signal's payload, and the timeout is ignored."""
    run_id = await driver.start(a_wait())
    applied = await apply_over(
        driver, run_id, TimerFired(0, AT, 1), lambda: driver.apply(run_id, Signalled("go", '"sent"'))
    )
    assert [ignored.reason for ignored in applied.ignored] == ["node w is completed"]
    assert (await driver.task(run_id, "w")).output == '"sent"'
    assert await letters(driver, run_id) == "CW"


async def test_signal_that_commits_after_a_timeout_is_for_the_next(driver: Driver) -> None:
    """The signal was decided first and commits second: the wait has its stand-in, and the next wait of the name takes the signal."""
    run_id = await driver.start(a_wait())
    await apply_over(driver, run_id, Signalled("go", '"sent"'), lambda: driver.apply(run_id, TimerFired(0, AT, 1)))
    assert (await driver.task(run_id, "w")).output == '"late"'
    assert (await driver.task(run_id, "x")).output == '"sent"'
    assert (await driver.head(run_id)).snapshot.status == "completed"
    assert [signal.node for signal in await driver.store.load_signals(run_id)] == [1]


async def test_signal_that_comes_while_a_wait_begins_is_not_lost(driver: Driver) -> None:
    """A signal that commits while the decision that begins its wait is under way is taken by that wait."""
    plan = a_wait(after=[{"ref": "a"}])
    nodes = [{"name": "a", "kind": "step", "step": "a", "args": {}}, *plan.body["nodes"]]
    run_id = await driver.start(Plan({**plan.body, "nodes": nodes}))
    task = await driver.claim_one()
    await apply_over(driver, run_id, done(task), lambda: driver.apply(run_id, Signalled("go", '"early"')))
    assert (await driver.task(run_id, "w")).output == '"early"'
    assert await letters(driver, run_id) == "CCW"


@pytest.mark.parametrize("cancel_first", [True, False])
async def test_cancel_and_timer(driver: Driver, cancel_first: bool) -> None:
    """Whichever commits first, the run ends cancelled; what the timer began is cancelled too, and nothing is left that waits."""
    run_id = await driver.start(a_sleep())
    fired, cancelled = TimerFired(0, AT, 1), CancelRequested("no")
    first, second = (cancelled, fired) if cancel_first else (fired, cancelled)
    applied = await apply_over(driver, run_id, second, lambda: driver.apply(run_id, first))
    assert (await driver.head(run_id)).snapshot.status == "cancelled"
    assert await letters(driver, run_id) == ("XX" if cancel_first else "CX")
    assert [ignored.reason for ignored in applied.ignored] == (["the run is cancelled"] if cancel_first else [])
    assert await driver.claim() == []
    assert await driver.store.next_due_in() is None


async def test_two_coordinators_on_one_timer(driver: Driver) -> None:
    """Two that fire the same timer have it fire once: one is ignored, and the step behind it starts once."""
    run_id = await driver.start(a_sleep())
    applied = await apply_over(driver, run_id, TimerFired(0, AT, 1), lambda: driver.apply(run_id, TimerFired(0, AT, 1)))
    assert [ignored.reason for ignored in applied.ignored] == ["node s is completed"]
    assert len(await driver.claim()) == 1


async def test_due_wait_goes_to_one_coordinator_for_a_while(driver: Driver) -> None:
    """A timer that is due is given to one; another gets it when that one has done nothing with it for its time."""
    run_id = await driver.start(a_sleep())
    assert await driver.store.take_due_waits(10, 10.0) == []
    await driver.later(61)
    (due,) = await driver.store.take_due_waits(10, 10.0)
    assert (due.head.run_id, due.node, due.counts, due.attempt) == (run_id, 0, None, 1)
    assert await driver.store.take_due_waits(10, 10.0) == []
    await driver.later(11)
    assert len(await driver.store.take_due_waits(10, 10.0)) == 1
    await driver.later(11)
    await fire_due(driver.store)
    assert await letters(driver, run_id) == "CA"


async def test_timer_of_an_earlier_life_does_nothing(driver: Driver) -> None:
    """A timer that was taken before the run failed and was retried does not end the new wait."""
    plan = a_wait()
    first = {key: value for key, value in plan.body["nodes"][0].items() if key != "on_timeout"}
    run_id = await driver.start(Plan({**plan.body, "nodes": [first]}))
    await driver.apply(run_id, TimerFired(0, AT, 1))
    assert (await driver.head(run_id)).snapshot.status == "failed"
    assert (await driver.task(run_id, "w")).state == "failed"
    await driver.apply(run_id, RetryRequested())
    assert await letters(driver, run_id) == "W"
    await driver.apply(run_id, TimerFired(0, AT, 1))
    assert await letters(driver, run_id) == "W", "it is the timer of the first attempt"
    await driver.apply(run_id, Signalled("go", "1"))
    assert (await driver.head(run_id)).snapshot.status == "completed"


async def test_repeated_dedupe_id_is_stored_once(driver: Driver) -> None:
    """Row 24: of one dedupe id the first is stored and taken; the second changes nothing, whatever it carries."""
    run_id = await driver.start(a_wait())
    await driver.apply(run_id, Signalled("go", "1", "once"))
    applied = await driver.apply(run_id, Signalled("go", "2", "once"))
    assert len(applied.ignored) == 1
    assert [(s.payload, s.dedupe, s.node) for s in await driver.store.load_signals(run_id)] == [("1", "once", 0)]
    kept = await driver.start(a_sleep())
    assert len((await driver.apply(kept, Signalled("go", "1"))).ignored) == 1
    assert await driver.store.load_signals(kept) == []
