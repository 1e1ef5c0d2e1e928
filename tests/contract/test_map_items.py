"""Maps in a store: pages, additive results, windows, draining, virtual outputs, retries. The same on every store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from composer.coordinator.recovery import recover
from composer.coordinator.timers import fire_due
from composer.core.events import CancelRequested, LeaseExpired, RetryRequested, StepReleased, StepSnoozed
from composer.core.items import item_changes, items_of, tolerance_of
from composer.core.plan import Plan, list_code, outcomes_code, part_code
from composer.core.values import Values
from composer.ports.store import ClaimedTask, ItemCommit, MapPage
from composer.verify import violations_of
from tests.contract.driver import RETRIES, Driver, done, failed

pytestmark = pytest.mark.anyio


def a_map(*, reader: bool = True, **options: Any) -> Plan:
    """items -> each (a map over its output) -> reader."""
    nodes: list[dict[str, Any]] = [
        {"name": "items", "kind": "step", "step": "items", "args": {}},
        {
            "name": "each",
            "kind": "map",
            "step": "each",
            "over": "x",
            "args": {"x": {"$": {"ref": "items"}}, "all": {"$": {"ref": "items"}}},
            **({"options": options} if options else {}),
        },
    ]
    if reader:
        nodes.append({"name": "reader", "kind": "step", "step": "reader", "args": {"xs": {"$": {"ref": "each"}}}})
    output = {"$": {"ref": "reader"}} if reader else {"$": {"settled_each": [{"ref": "each"}]}}
    return Plan({"format": 1, "workflow": "flow", "nodes": nodes, "output": output})


async def mapping(driver: Driver, items: list[Any], plan: Plan | None = None) -> str:
    """A run whose map has begun and whose items are all stored."""
    run_id = await driver.start(plan or a_map())
    (task,) = await driver.claim(10, steps={"items"})
    await driver.apply(run_id, done(task, json.dumps(items)))
    await fire_due(driver.store)
    return run_id


async def counts(driver: Driver, run_id: str) -> tuple[int, int, int, int]:
    """Total, completed, failed and withdrawn items of the map."""
    made = (await driver.record(run_id)).maps[1]
    return made.total, made.completed, made.failed, made.withdrawn


async def rows(driver: Driver, run_id: str) -> dict[int, str]:
    """State of every item by its row."""
    for run in await driver.store.audit(None, 1000):
        if run.record.head.run_id == run_id:
            return {task.item: task.state for task in run.record.tasks if task.node == 1 and task.item >= 0}
    raise AssertionError("no such run")


async def sound(driver: Driver, run_id: str) -> None:
    """Nothing is wrong with the run."""
    for run in await driver.store.audit(None, 1000):
        if run.record.head.run_id == run_id:
            assert violations_of(run, await driver.store.load_plan(run.record.head.plan_id)) == []


async def letter(driver: Driver, run_id: str, node: int = 1) -> str:
    return (await driver.head(run_id)).snapshot.letters[node].value


async def test_items_are_tasks_with_their_input_and_the_shared_values(driver: Driver) -> None:
    """Every item is claimed with its own text as it stands in the list, and with what all of them read."""
    run_id = await driver.start(a_map())
    (task,) = await driver.claim(10, steps={"items"})
    await driver.apply(run_id, done(task, '[1.10, {"a" : 2},"x"]'))
    assert await letter(driver, run_id) == "M"
    await fire_due(driver.store)
    claimed = await driver.claim(10, steps={"each"})
    assert {t.task.item: t.input for t in claimed} == {0: "1.10", 1: '{"a" : 2}', 2: '"x"'}
    assert [dict(t.values) for t in claimed] == [{0: '[1.10, {"a" : 2},"x"]'}] * 3


async def test_results_are_added_up_and_the_end_is_decided_once(driver: Driver) -> None:
    """Items of one batch make one version; the last ones complete the map, and its reader gets the list in order."""
    run_id = await mapping(driver, [1, 2, 3, 4])
    claimed = sorted(await driver.claim(10, steps={"each"}), key=lambda t: t.task.item)
    version = (await driver.head(run_id)).snapshot.version
    await driver.apply(run_id, done(claimed[3], '"d"'), done(claimed[1], '"b"'))
    assert (await driver.head(run_id)).snapshot.version == version + 1
    assert await counts(driver, run_id) == (4, 2, 0, 0)
    assert await letter(driver, run_id) == "M"
    await driver.apply(run_id, done(claimed[0], '"a"'), done(claimed[2], '"c"'))
    assert await letter(driver, run_id) == "C"
    (reader,) = await driver.claim(10, steps={"reader"})
    assert dict(reader.values) == {list_code(1): '["a","b","c","d"]'}
    await driver.apply(run_id, done(reader))
    assert (await driver.head(run_id)).snapshot.status == "completed"
    await sound(driver, run_id)


async def test_empty_list_needs_no_rows(driver: Driver) -> None:
    """A map over nothing completes in the same decision, without a task, and reads as an empty list."""
    run_id = await mapping(driver, [])
    assert await letter(driver, run_id) == "C"
    assert await rows(driver, run_id) == {}
    (reader,) = await driver.claim(10, steps={"reader"})
    assert dict(reader.values) == {list_code(1): "[]"}
    await sound(driver, run_id)


async def test_pages_are_taken_in_their_order_once(driver: Driver) -> None:
    """Only the next page is stored; one that was stored already, or comes too early, changes nothing."""
    plan = a_map()
    run_id = await driver.start(plan)
    (task,) = await driver.claim(10, steps={"items"})
    await driver.apply(run_id, done(task, "[1,2,3,4,5]"))
    values = Values("C..", {0: "[1,2,3,4,5]"})
    found = items_of(plan, plan.nodes[1], values)

    async def store(first: int, last: int) -> bool:
        page = MapPage(run_id, plan, 1, first, 5, found.texts[first:last], 0, 0, found.digest)
        return (await driver.store.expand_map(page))[0]

    assert not await store(2, 4)
    assert await store(0, 2)
    assert not await store(0, 2)
    assert not await store(4, 5)
    assert await store(2, 4)
    # The items that are there run, and do not end the map.
    claimed = await driver.claim(10, steps={"each"})
    assert [t.task.item for t in claimed] == [0, 1, 2, 3]
    await driver.apply(run_id, *map(done, claimed))
    assert await letter(driver, run_id) == "M"
    assert await store(4, 5)
    (last,) = await driver.claim(10, steps={"each"})
    await driver.apply(run_id, done(last))
    assert await letter(driver, run_id) == "C"
    await sound(driver, run_id)


async def test_half_stored_map_is_gone_on_with(driver: Driver) -> None:
    """When a coordinator dies between two pages, another one stores the rest once its time is over."""
    plan = a_map()
    run_id = await driver.start(plan)
    (task,) = await driver.claim(10, steps={"items"})
    await driver.apply(run_id, done(task, "[1,2,3]"))
    assert len(await driver.store.take_due_waits(10, 10.0)) == 1
    found = items_of(plan, plan.nodes[1], Values("C..", {0: "[1,2,3]"}))
    assert (await driver.store.expand_map(MapPage(run_id, plan, 1, 0, 3, found.texts[:1], 0, 0, found.digest)))[0]
    await fire_due(driver.store)
    assert len(await rows(driver, run_id)) == 1, "the one that died still has its time"
    await driver.later(11)
    await fire_due(driver.store)
    assert await rows(driver, run_id) == {0: "ready", 1: "ready", 2: "ready"}
    await sound(driver, run_id)


async def test_lost_end_is_found_again(driver: Driver) -> None:
    """When the process that reported the last item dies before it has decided the end, a coordinator decides it."""
    plan = a_map()
    run_id = await mapping(driver, [1, 2], plan)
    claimed = await driver.claim(10, steps={"each"})
    commit = ItemCommit(run_id, plan, item_changes(plan, [done(t) for t in claimed]))
    (answer,) = await driver.store.commit_items([commit])
    assert answer is not None
    assert answer.maps[1].has_ended
    assert await letter(driver, run_id) == "M"
    await driver.later(6)
    await fire_due(driver.store)
    assert await letter(driver, run_id) == "C"
    await sound(driver, run_id)


@pytest.mark.parametrize(("tolerate", "expected"), [(0, "D"), (1, "M"), ("50%", "M"), ("20%", "D")])
async def test_failed_items_beyond_the_tolerance_drain_the_map(driver: Driver, tolerate: Any, expected: str) -> None:
    """One failed item of four drains a map that tolerates none, and not one that tolerates it."""
    plan = a_map(tolerate=tolerate)
    run_id = await mapping(driver, [1, 2, 3, 4], plan)
    claimed = await driver.claim(2, steps={"each"})
    await driver.apply(run_id, failed(claimed[0]))
    assert await letter(driver, run_id) == expected
    await fire_due(driver.store)
    if expected == "M":
        rest = [claimed[1], *await driver.claim(10, steps={"each"})]
        await driver.apply(run_id, *(done(t, str(t.task.item)) for t in rest))
        assert await letter(driver, run_id) == "C"
        (reader,) = await driver.claim(10, steps={"reader"})
        outputs = sorted(t.task.item for t in rest)
        assert json.loads(reader.values[list_code(1)]) == outputs
    else:
        assert await counts(driver, run_id) == (4, 0, 1, 2)
        assert await driver.claim(10, steps={"each"}) == [], "what has not begun is withdrawn"
        assert await letter(driver, run_id) == "D", "one item still runs"
        await driver.apply(run_id, done(claimed[1]))
        record = await driver.record(run_id)
        assert record.head.snapshot.status == "failed"
        error = json.loads(record.error or "{}")
        assert (error["node"], error["item"], error["failed"], error["items"]) == ("each", claimed[0].task.item, 1, 4)
        assert error["message"].startswith(f"item {claimed[0].task.item} of 4: no")
    await sound(driver, run_id)


async def test_draining_map_begins_nothing_again(driver: Driver) -> None:
    """While a map drains, an item that would be tried again, comes back or is given back is withdrawn instead."""
    plan = a_map(**RETRIES)
    run_id = await mapping(driver, list(range(6)), plan)
    claimed = await driver.claim(5, steps={"each"})
    bad, retried, snoozed, released, crashed = claimed
    await driver.apply(run_id, failed(bad, retryable=False))
    assert await letter(driver, run_id) == "D"
    await driver.apply(run_id, failed(retried), StepSnoozed(snoozed.task, 5.0), StepReleased(released.task))
    await driver.later(60)
    await driver.apply(run_id, LeaseExpired(crashed.task))
    await fire_due(driver.store)
    assert set((await rows(driver, run_id)).values()) == {"failed", "withdrawn"}
    assert await counts(driver, run_id) == (6, 0, 1, 5)
    assert set((await rows(driver, run_id)).values()) == {"failed", "withdrawn"}
    assert (await driver.head(run_id)).snapshot.status == "failed"
    await sound(driver, run_id)


async def test_stale_reports_of_items_are_refused_one_by_one(driver: Driver) -> None:
    """A report that another delivery has outdone is ignored, and the rest of its batch counts."""
    run_id = await mapping(driver, [1, 2])
    first, second = await driver.claim(10, steps={"each"})
    await driver.apply(run_id, StepReleased(first.task))
    (again,) = await driver.claim(10, steps={"each"})
    applied = await driver.apply(run_id, done(first, '"old"'), done(second, '"b"'))
    assert [ignored.event.task for ignored in applied.ignored] == [first.task]  # type: ignore[union-attr]
    assert await counts(driver, run_id) == (2, 1, 0, 0)
    await driver.apply(run_id, done(again, '"new"'))
    twice = await driver.apply(run_id, done(again, '"twice"'))
    assert len(twice.ignored) == 1
    stored = await driver.store.load_values([(run_id, list_code(1))])
    assert sorted(json.loads(stored.outputs[run_id, list_code(1)])) == ["b", "new"]
    await sound(driver, run_id)


async def test_late_report_is_heard_until_somebody_claims_the_item(driver: Driver) -> None:
    """An item whose lease was swept and that nobody has claimed since takes the slow worker's result, and no second one runs."""
    run_id = await mapping(driver, [1])
    (task,) = await driver.claim(10, steps={"each"})
    await driver.later(60)
    await driver.apply(run_id, LeaseExpired(task.task))
    await driver.apply(run_id, done(task, '"late"'))
    assert await letter(driver, run_id) == "C"
    assert await driver.claim(10, steps={"each"}) == []
    await sound(driver, run_id)


async def test_items_are_retried_by_their_policy(driver: Driver) -> None:
    """A failed attempt of an item is delayed and tried again, with its own counts; the map goes on."""
    run_id = await mapping(driver, [1, 2], a_map(**RETRIES))
    first, second = await driver.claim(10, steps={"each"})
    await driver.apply(run_id, failed(first), done(second))
    assert await counts(driver, run_id) == (2, 1, 0, 0)
    assert await driver.claim(10, steps={"each"}) == []
    await driver.later(11)
    await fire_due(driver.store)
    (again,) = await driver.claim(10, steps={"each"})
    assert (again.task.item, again.task.attempt, again.task.failures) == (first.task.item, 2, 1)
    await driver.apply(run_id, done(again))
    assert await letter(driver, run_id) == "C"
    await sound(driver, run_id)


async def test_window_is_kept_and_never_runs_dry(driver: Driver) -> None:
    """No more items than max_concurrency are ready or running at once, and all run, in index order."""
    run_id = await mapping(driver, list(range(7)), a_map(max_concurrency=2))
    seen: list[int] = []
    while await letter(driver, run_id) == "M":
        states = (await rows(driver, run_id)).values()
        assert sum(state in ("ready", "leased") for state in states) <= 2
        claimed = await driver.claim(10, steps={"each"})
        assert 1 <= len(claimed) <= 2
        seen += [t.task.item for t in claimed]
        await driver.apply(run_id, *map(done, claimed))
    assert seen == list(range(7))
    assert await letter(driver, run_id) == "C"
    await sound(driver, run_id)


async def test_held_items_are_freed_when_a_commit_could_not(driver: Driver) -> None:
    """Room that nobody used is used by a coordinator."""
    plan = a_map(max_concurrency=1)
    run_id = await driver.start(plan)
    (task,) = await driver.claim(10, steps={"items"})
    await driver.apply(run_id, done(task, "[1,2,3]"))
    found = items_of(plan, plan.nodes[1], Values("C..", {0: "[1,2,3]"}))

    def page(first: int, last: int) -> MapPage:
        return MapPage(run_id, plan, 1, first, 3, found.texts[first:last], 0, 0, found.digest)

    await driver.store.expand_map(page(0, 1))
    (only,) = await driver.claim(10, steps={"each"})
    await driver.apply(run_id, done(only))
    # The window had run dry before the next page came: its first item is ready at once.
    await driver.store.expand_map(page(1, 3))
    assert await rows(driver, run_id) == {0: "completed", 1: "ready", 2: "held"}
    await driver.store.free_items(run_id, 1)
    assert (await rows(driver, run_id))[2] == "held", "there is no room"
    await sound(driver, run_id)


async def test_read_codes_give_what_the_map_made(driver: Driver) -> None:
    """The list, its parts from either end, and an outcome an item: failed ones are left out of the list only."""
    plan = a_map(reader=False)
    run_id = await mapping(driver, list(range(4)), plan)
    assert tolerance_of(plan, plan.nodes[1], 4) == 4, "what is read item by item does not fail"
    claimed = {t.task.item: t for t in await driver.claim(10, steps={"each"})}
    await driver.apply(
        run_id, done(claimed[0], '"a"'), failed(claimed[1]), done(claimed[2], '"c"'), done(claimed[3], "null")
    )
    codes = [list_code(1), outcomes_code(1), *(part_code(1, at) for at in (0, 1, 2, 3, -1, -3, -4))]
    stored = await driver.store.load_values([(run_id, code) for code in codes])
    outputs = {code: text for (_, code), text in stored.outputs.items()}
    assert outputs[list_code(1)] == '["a","c",null]'
    assert {at: outputs.get(part_code(1, at)) for at in (0, 1, 2, 3, -1, -3, -4)} == {
        0: '"a"', 1: '"c"', 2: "null", 3: None, -1: "null", -3: '"a"', -4: None,
    }  # fmt: skip
    outcomes: list[Mapping[str, Any]] = json.loads(outputs[outcomes_code(1)])
    assert [each["state"] for each in outcomes] == ["completed", "failed", "completed", "completed"]
    assert (outcomes[1]["error"]["type"], outcomes[1]["error"]["item"]) == ("ValueError", 1)
    record = await driver.record(run_id)
    assert record.head.snapshot.status == "completed"
    assert json.loads(record.output or "")[0] == {"state": "completed", "value": "a", "error": None}
    await sound(driver, run_id)


async def test_half_the_claim_is_for_plain_steps(driver: Driver) -> None:
    """Plain steps that come after many items get up to half of a claim; of a lower priority they get none of it."""
    await mapping(driver, list(range(20)))
    small = [await driver.start() for _ in range(3)]
    low = await driver.start(priority=-1)
    claimed = await driver.claim(6)
    assert [t.run.run_id for t in claimed if t.task.item < 0] == small
    assert len(claimed) == 6
    rest = await driver.claim(100)
    assert [t.run.run_id for t in rest if t.task.item < 0] == [low]
    assert sum(t.task.item >= 0 for t in rest) == 17


async def test_retry_keeps_finished_items(driver: Driver) -> None:
    """A retry runs failed and withdrawn items again with fresh budgets, and no item that has completed."""
    run_id = await mapping(driver, [10, 11, 12, 13], a_map(**RETRIES))
    claimed = {t.task.item: t for t in await driver.claim(2, steps={"each"})}
    await driver.apply(run_id, done(claimed[0], '"kept"'))
    await driver.apply(run_id, failed(claimed[1], retryable=False))
    await fire_due(driver.store)
    assert (await driver.head(run_id)).snapshot.status == "failed"
    await driver.apply(run_id, RetryRequested())
    assert await letter(driver, run_id) == "M"
    await fire_due(driver.store)
    again = {t.task.item: t for t in await driver.claim(10, steps={"each"})}
    assert sorted(again) == [1, 2, 3]
    assert (again[1].task.attempt, again[1].task.failures, again[1].input) == (2, 0, "11")
    assert await counts(driver, run_id) == (4, 1, 0, 0)
    await driver.apply(run_id, *(done(t, f'"{item}"') for item, t in again.items()))
    (reader,) = await driver.claim(10, steps={"reader"})
    assert reader.values[list_code(1)] == '["kept","1","2","3"]'
    await sound(driver, run_id)


async def test_retry_over_another_list_runs_all_items(driver: Driver) -> None:
    """When the list has changed, nothing is kept, and items that it does not have any more are read no more."""
    run_id = await mapping(driver, [1, 2, 3])
    claimed = {t.task.item: t for t in await driver.claim(2, steps={"each"})}
    await driver.apply(run_id, done(claimed[0], '"old"'))
    await driver.apply(run_id, failed(claimed[1]))
    await fire_due(driver.store)
    await driver.apply(run_id, RetryRequested(rerun_stale=True))
    # As if the step that makes the list had run again: it is not reset by this retry.
    plan = await driver.store.load_plan((await driver.head(run_id)).plan_id)
    found = items_of(plan, plan.nodes[1], Values("C..", {0: "[1,5]"}))
    page = MapPage(run_id, plan, 1, 0, 2, found.texts, 0, 1, found.digest)
    assert (await driver.store.expand_map(page))[0]
    assert await rows(driver, run_id) == {0: "ready", 1: "ready", 2: "cancelled"}
    again = await driver.claim(10, steps={"each"})
    assert [t.input for t in again] == ["1", "5"]
    await driver.apply(run_id, *(done(t, '"new"') for t in again))
    stored = await driver.store.load_values([(run_id, list_code(1))])
    assert stored.outputs[run_id, list_code(1)] == '["new","new"]'
    await sound(driver, run_id)


async def test_cancel_ends_all_items(driver: Driver) -> None:
    """A cancelled run leaves no open item, and reports of its items are ignored with the run's status."""
    run_id = await mapping(driver, list(range(5)), a_map(max_concurrency=3))
    claimed = await driver.claim(2, steps={"each"})
    await driver.apply(run_id, done(claimed[0]))
    await driver.apply(run_id, CancelRequested("enough"))
    assert set((await rows(driver, run_id)).values()) == {"completed", "cancelled"}
    applied = await driver.apply(run_id, done(claimed[1]))
    assert [ignored.reason for ignored in applied.ignored] == ["the run is cancelled"]
    assert await driver.claim(10, steps={"each"}) == []
    await sound(driver, run_id)


async def test_items_of_a_quarantined_run_are_not_counted(driver: Driver) -> None:
    """Reports of items of a run that was taken aside are dropped with that reason, and its pages are not stored."""
    run_id = await mapping(driver, [1, 2])
    (one, _) = await driver.claim(10, steps={"each"})
    version = (await driver.head(run_id)).snapshot.version
    assert await driver.store.quarantine(run_id, version, "bad")
    applied = await driver.apply(run_id, done(one))
    assert [ignored.reason for ignored in applied.ignored] == ["the run is quarantined"]
    assert await counts(driver, run_id) == (2, 0, 0, 0)


async def test_list_that_is_none_fails_the_map(driver: Driver) -> None:
    """A value that is no list, or one of too many items, fails the node at once, with what it is, and is read by settled()."""
    for text, why in (
        ('{"a":1}', "an object, not a list"),
        ("null", "null, not a list"),
        (f"[{'0,' * 100_000}0]", "100,001"),
    ):
        run_id = await driver.start(a_map())
        (task,) = await driver.claim(10, steps={"items"})
        await driver.apply(run_id, done(task, text))
        record = await driver.record(run_id)
        assert record.head.snapshot.status == "failed"
        assert why in json.loads(record.error or "{}")["message"]
        assert (await driver.states(run_id))["each"] == "failed"
        await sound(driver, run_id)


async def test_expired_items_come_back_by_recovery(driver: Driver) -> None:
    """Recovery finds items whose worker is gone; they cost a crash and no attempt."""
    run_id = await mapping(driver, [1, 2])
    claimed: list[ClaimedTask] = await driver.claim(10, steps={"each"})
    await driver.later(60)
    recovered = await recover(driver.store)
    assert recovered.expired == 2
    await driver.later(60)
    await fire_due(driver.store)
    again = await driver.claim(10, steps={"each"})
    assert {(t.task.item, t.task.attempt, t.task.delivery, t.task.crashes) for t in again} == {
        (t.task.item, 1, 2, 1) for t in claimed
    }
    await driver.apply(run_id, *map(done, again))
    assert await letter(driver, run_id) == "C"
    await sound(driver, run_id)
