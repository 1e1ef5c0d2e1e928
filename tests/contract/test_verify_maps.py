"""What `composer verify` says of maps whose rows somebody has damaged: every damage is found, under the number it breaks."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from composer.coordinator.timers import fire_due
from composer.core.events import StepReleased
from composer.memory.store import MemoryStore
from composer.ports.store import AuditedRun, TaskRecord
from composer.verify import Verified, verify, violations_of
from tests.contract.driver import Driver, TurnableClock, done, failed
from tests.contract.test_map_items import a_map, mapping
from tests.contract.test_map_lives import page_of
from tests.servers import execute

pytestmark = pytest.mark.anyio


def with_item(run: AuditedRun, item: int, **changes: object) -> AuditedRun:
    """The run with another row of an item."""
    tasks = [replace(t, **changes) if (t.node, t.item) == (1, item) else t for t in run.record.tasks]
    return replace(run, record=replace(run.record, tasks=tasks))


def with_counts(run: AuditedRun, **changes: int) -> AuditedRun:
    """The run with other counts of its map."""
    return replace(run, record=replace(run.record, maps={1: replace(run.record.maps[1], **changes)}))


def without_item(run: AuditedRun, item: int) -> AuditedRun:
    """The run without an item's row."""
    tasks = [t for t in run.record.tasks if (t.node, t.item) != (1, item)]
    return replace(run, record=replace(run.record, tasks=tasks))


def with_entry(run: AuditedRun, version: int, **entry: object) -> AuditedRun:
    """The run with one more entry in the history row of a version."""
    rows = [
        replace(row, changes={**row.changes, "events": [*row.changes["events"], entry]})
        if row.version == version
        else row
        for row in run.history
    ]
    return replace(run, history=rows)


HALF = {"outcome": "completed", "attempt": 1, "delivery": 1, "event": "step-completed", "node": "each"}
# Of a map of six with a window of three: items 0 completed, 1 failed (tolerated), 2 leased, 3 and 4 ready, 5 held.
DAMAGES: dict[str, tuple[int, str, Callable[[AuditedRun], AuditedRun]]] = {
    "a completed item more in the rows": (5, "2 completed", lambda run: with_item(run, 2, state="completed", output="1")),
    "a completed item less in the rows": (5, "0 completed", lambda run: with_item(run, 0, state="ready")),
    "a failed item less in the rows": (5, "0 failed", lambda run: with_item(run, 1, state="withdrawn")),
    "a count of completed items too high": (5, "say 2", lambda run: with_counts(run, completed=2)),
    "a count of failed items too high": (5, "and 2", lambda run: with_counts(run, failed=2)),
    "a count of held items too high": (5, "1 items are held, its counts say 2", lambda run: with_counts(run, held=2)),
    "a held item that is ready": (5, "0 items are held", lambda run: with_item(run, 5, state="ready")),
    "an item's row that is gone": (5, "5 of 6 items are stored", lambda run: without_item(run, 3)),
    "a count of stored items too low": (5, "counts say 5", lambda run: with_counts(run, expanded=5)),
    "a withdrawn item of a map that goes on": (5, "1 are withdrawn", lambda run: with_item(run, 3, state="withdrawn")),
    "failures that history does not know": (5, "the row 4", lambda run: with_item(run, 1, failures=4)),
    "a completed item without its output": (1, "no output", lambda run: with_item(run, 0, output=None)),
    "a second result of an item": (1, "[0]: 2 results", lambda run: with_entry(run, 4, item=0, **HALF)),
    "a result before the map began": (2, "[4] ended at version 1", lambda run: with_entry(run, 1, item=4, **HALF)),
    "a map without its own task": (
        3, "each is mapping, and no task waits",
        lambda run: replace(run, record=replace(run.record, tasks=[t for t in run.record.tasks if not is_own(t)])),
    ),
}  # fmt: skip


def is_own(task: TaskRecord) -> bool:
    """Whether it is the map's own task."""
    return (task.node, task.item) == (1, -1)


async def half_done(driver: Driver) -> AuditedRun:
    """A map in the middle of everything."""
    run_id = await mapping(driver, list(range(6)), a_map(max_concurrency=3, tolerate=1))
    claimed = await driver.claim(3, steps={"each"})
    await driver.apply(run_id, done(claimed[0], '"a"'), failed(claimed[1]))
    (run,) = await driver.store.audit(None, 10)
    states = [t.state for t in run.record.tasks if t.node == 1 and t.item >= 0]
    assert states == ["completed", "failed", "leased", "ready", "ready", "held"]
    return run


@pytest.mark.parametrize("what", DAMAGES)
async def test_damage_is_found(what: str) -> None:
    """A map at work has no violation, and has the one that its damage makes, with words that say where."""
    number, words, damage = DAMAGES[what]
    driver = Driver(MemoryStore(clock=TurnableClock()))
    run = await half_done(driver)
    plan = await driver.store.load_plan(run.record.head.plan_id)
    assert violations_of(run, plan) == []
    found = violations_of(damage(run), plan)
    assert number in {violation.invariant for violation in found}, found
    assert any(words in violation.problem for violation in found if violation.invariant == number), found


async def test_completed_map_whose_counts_do_not_add_up_is_found() -> None:
    """A completed map has settled every item, and its own task needs no output."""
    driver = Driver(MemoryStore(clock=TurnableClock()))
    run_id = await mapping(driver, [1, 2, 3])
    await driver.apply(run_id, *map(done, await driver.claim(10, steps={"each"})))
    (run,) = await driver.store.audit(None, 10)
    plan = await driver.store.load_plan(run.record.head.plan_id)
    assert [(t.state, t.output) for t in run.record.tasks if is_own(t)] == [("completed", None)]
    assert violations_of(run, plan) == []
    found = violations_of(with_counts(run, total=4), plan)
    assert [violation.problem for violation in found] == ["each: it is completed, and 3 of its 4 items have settled"]


SQL = {
    "a row": "update composer.tasks set state = 'ready', output = null where namespace = '{0}' and node = 1 and item = 0",
    "a count": "update composer.maps set completed = completed + 1 where namespace = '{0}'",
    "a row too few": "delete from composer.tasks where namespace = '{0}' and node = 1 and item = 4",
    "the map's own task": "update composer.tasks set wake_at = null, state = 'cancelled' where namespace = '{0}' and node = 1 and item = -1",
}


@pytest.mark.parametrize("what", SQL)
async def test_damage_in_the_tables_is_found(database: str, namespace: str, postgres_store, what: str) -> None:
    """`verify` reads the damage from the tables themselves, and finds nothing before it was done."""
    driver = Driver(postgres_store)
    await half_done(driver)
    assert [violation async for violation in verify(postgres_store, Verified())] == []
    await execute(database, SQL[what].format(namespace))
    assert [violation.invariant async for violation in verify(postgres_store, Verified())] in ([5], [3], [5, 1], [1, 5])


async def test_half_stored_and_draining_maps_are_in_order(driver: Driver) -> None:
    """A map between two pages, one that drains with items that were never stored, and one that was put back have no violation."""
    plan = a_map(max_concurrency=2)
    run_id = await driver.start(plan)
    (task,) = await driver.claim(10, steps={"items"})
    await driver.apply(run_id, done(task, json.dumps(list(range(9)))))
    for first in (0, 3):
        assert (await driver.store.expand_map(page_of(run_id, plan, list(range(9)), first, first + 3, 0)))[0]
        await clean(driver)
    one, two = await driver.claim(10, steps={"each"})
    await driver.apply(run_id, StepReleased(two.task))
    await clean(driver)
    (two,) = await driver.claim(10, steps={"each"})
    await driver.apply(run_id, failed(one))
    await clean(driver)
    await fire_due(driver.store)
    await clean(driver)
    (run,) = await driver.store.audit(None, 10)
    assert (run.record.maps[1].withdrawn, run.record.head.snapshot.letters.text[1]) == (7, "D")
    await driver.apply(run_id, done(two))
    await clean(driver)


async def clean(driver: Driver) -> None:
    """Nothing is wrong with any run."""
    assert [violation async for violation in verify(driver.store, Verified())] == []
