"""Maps of runs that were retried: lists that changed, became shorter or empty, and pages that come too late."""

from __future__ import annotations

import json
from typing import Any

import pytest

from composer.coordinator.timers import fire_due
from composer.core.events import DeadlinePassed, RetryRequested
from composer.core.items import digest_of, items_of
from composer.core.plan import Plan, list_code, outcomes_code, part_code
from composer.core.values import Values
from composer.ports.store import MapPage
from tests.contract.driver import Driver, done, failed
from tests.contract.test_map_items import a_map, counts, letter, mapping, rows, sound

pytestmark = pytest.mark.anyio


def remade() -> Plan:
    """gate -> items (reads how the gate ended) -> each -> reader: a retry with rerun_stale makes the list anew."""
    nodes: list[dict[str, Any]] = [
        {"name": "gate", "kind": "step", "step": "gate", "args": {}},
        {"name": "items", "kind": "step", "step": "items", "args": {"gate": {"$": {"settled": [{"ref": "gate"}]}}}},
        {"name": "each", "kind": "map", "step": "each", "over": "x", "args": {"x": {"$": {"ref": "items"}}}},
        {"name": "reader", "kind": "step", "step": "reader", "args": {"xs": {"$": {"ref": "each"}}}},
    ]
    return Plan({"format": 1, "workflow": "remade", "nodes": nodes, "output": {"$": {"ref": "reader"}}})


def page_of(run_id: str, plan: Plan, items: list[Any], first: int, last: int, retries: int, node: int = 1) -> MapPage:
    """Some items of a list."""
    values = Values("C" * len(plan.nodes), {node - 1: json.dumps(items)})
    found = items_of(plan, plan.nodes[node], values)
    digest = digest_of(found, plan.nodes[node], values)
    return MapPage(run_id, plan, node, first, len(items), found.texts[first:last], 0, retries, digest)


async def made_again(driver: Driver, run_id: str, first: list[Any], second: list[Any]) -> None:
    """The run fails by an item of the first list, one of which has completed; it is retried, and gets the second list."""
    for name, items in (("first", first), ("second", second)):
        (gate,) = await driver.claim(10, steps={"gate"})
        await driver.apply(run_id, failed(gate) if name == "first" else done(gate))
        (task,) = await driver.claim(10, steps={"items"})
        await driver.apply(run_id, done(task, json.dumps(items)))
        await fire_due(driver.store)
        if name == "first":
            good, bad = await driver.claim(2, steps={"each"})
            await driver.apply(run_id, done(good, '"first"'), failed(bad))
            await fire_due(driver.store)
            assert (await driver.head(run_id)).snapshot.status == "failed"
            await driver.apply(run_id, RetryRequested(rerun_stale=True))


async def test_list_that_became_empty_is_read_as_empty(driver: Driver) -> None:
    """After a retry whose list is empty the map completes, and nothing that items of the earlier list gave is read."""
    plan = a_map(tolerate=1)
    run_id = await mapping(driver, [1, 2, 3], plan)
    claimed = {t.task.item: t for t in await driver.claim(10, steps={"each"})}
    await driver.apply(run_id, done(claimed[0], '"old"'), failed(claimed[1]))
    await driver.apply(run_id, DeadlinePassed())
    assert (await driver.head(run_id)).snapshot.status == "failed"
    await driver.apply(run_id, RetryRequested())
    # As if the step that makes the list had run again.
    assert (await driver.store.expand_map(page_of(run_id, plan, [], 0, 0, 1)))[0]
    await driver.later(11)
    stored = await driver.store.load_values(
        [(run_id, code) for code in (list_code(1), outcomes_code(1), part_code(1, 0))]
    )
    assert {code: text for (_, code), text in stored.outputs.items()} == {list_code(1): "[]", outcomes_code(1): "[]"}
    assert await counts(driver, run_id) == (0, 0, 0, 0)
    await fire_due(driver.store)
    assert await letter(driver, run_id) == "C"
    (reader,) = await driver.claim(10, steps={"reader"})
    assert dict(reader.values) == {list_code(1): "[]"}
    await sound(driver, run_id)


@pytest.mark.parametrize(("second", "kept"), [('"a"', {0}), ('"b"', set())])
async def test_items_that_were_given_something_else_are_run_again(driver: Driver, second: str, kept: set[int]) -> None:
    """When a retry makes anew what all items are given, completed items are kept if that came out the same, and run again if not."""
    nodes: list[dict[str, Any]] = [
        {"name": "gate", "kind": "step", "step": "gate", "args": {}},
        {"name": "given", "kind": "step", "step": "given", "args": {"gate": {"$": {"settled": [{"ref": "gate"}]}}}},
        {
            "name": "map", "kind": "map", "step": "each", "over": "x",
            "args": {"x": [1, 2, 3], "y": {"$": {"ref": "given"}}},
        },
    ]  # fmt: skip
    plan = Plan({"format": 1, "workflow": "given", "nodes": nodes, "output": {"$": {"ref": "map"}}})
    run_id = await driver.start(plan)
    for life, text in enumerate(('"a"', second)):
        (gate,) = await driver.claim(10, steps={"gate"})
        await driver.apply(run_id, done(gate) if life else failed(gate))
        (task,) = await driver.claim(10, steps={"given"})
        await driver.apply(run_id, done(task, text))
        await fire_due(driver.store)
        claimed = {t.task.item: t for t in await driver.claim(10, steps={"each"})}
        if life == 0:
            await driver.apply(run_id, done(claimed[0], '"first"'), failed(claimed[1]))
            await driver.apply(run_id, failed(claimed[2]))
            assert (await driver.head(run_id)).snapshot.status == "failed"
            await driver.apply(run_id, RetryRequested(rerun_stale=True))
    assert {0, 1, 2} - set(claimed) == kept
    await driver.apply(run_id, *(done(t, '"second"') for t in claimed.values()))
    record = await driver.record(run_id)
    assert json.loads(record.output or "") == ["first" if item in kept else "second" for item in range(3)]
    await sound(driver, run_id)


@pytest.mark.parametrize("second", [[], [7], [7, 8, 9, 10]])
async def test_list_that_is_made_anew_is_all_that_counts(driver: Driver, second: list[int]) -> None:
    """A retry that makes another list, be it empty, shorter or longer, runs all of it and reads nothing of the first one."""
    plan = remade()
    run_id = await driver.start(plan)
    await made_again(driver, run_id, [1, 2, 3], second)
    again = await driver.claim(10, steps={"each"})
    assert [t.input for t in again] == [str(n) for n in second]
    await driver.apply(run_id, *(done(t, str(t.input)) for t in again))
    assert await letter(driver, run_id, plan.index["each"]) == "C"
    (reader,) = await driver.claim(10, steps={"reader"})
    assert json.loads(reader.values[list_code(plan.index["each"])]) == second
    await driver.apply(run_id, done(reader))
    assert (await driver.head(run_id)).snapshot.status == "completed"
    await sound(driver, run_id)


async def test_shorter_list_leaves_no_outcomes_behind(driver: Driver) -> None:
    """Items that the newer list does not have keep their row and their deliveries, and are in none of what is read."""
    plan = a_map(reader=False)
    run_id = await mapping(driver, [1, 2, 3], plan)
    claimed = {t.task.item: t for t in await driver.claim(10, steps={"each"})}
    await driver.apply(run_id, done(claimed[1], '"old"'), failed(claimed[2]))
    await driver.apply(run_id, DeadlinePassed())
    await driver.apply(run_id, RetryRequested())
    assert (await driver.store.expand_map(page_of(run_id, plan, [7], 0, 1, 1)))[0]
    assert await rows(driver, run_id) == {0: "ready", 1: "cancelled", 2: "cancelled"}
    (only,) = await driver.claim(10, steps={"each"})
    assert (only.input, only.task.attempt) == ("7", 2)
    # The body of the first life is no longer heard.
    applied = await driver.apply(run_id, done(claimed[0], '"late"'))
    assert len(applied.ignored) == 1
    await driver.apply(run_id, done(only, '"new"'))
    record = await driver.record(run_id)
    assert record.head.snapshot.status == "completed"
    assert json.loads(record.output or "") == [{"state": "completed", "value": "new", "error": None}]
    await sound(driver, run_id)


async def test_items_of_a_list_before_the_last_are_never_kept(driver: Driver) -> None:
    """What completed over the first list is not kept by a third life over the second, though that stored a part of it only."""
    plan = a_map(tolerate=9)
    run_id = await mapping(driver, [1, 2, 3, 4], plan)
    await driver.apply(run_id, *(done(t, '"first"') for t in await driver.claim(3, steps={"each"})))
    await driver.apply(run_id, DeadlinePassed())
    await driver.apply(run_id, RetryRequested())
    second = [5, 6, 7, 8]
    assert (await driver.store.expand_map(page_of(run_id, plan, second, 0, 1, 1)))[0]
    (one,) = await driver.claim(10, steps={"each"})
    await driver.apply(run_id, done(one, '"second"'))
    await sound(driver, run_id)
    await driver.apply(run_id, DeadlinePassed())
    await sound(driver, run_id)
    await driver.apply(run_id, RetryRequested())
    await sound(driver, run_id)
    for first in range(4):
        assert (await driver.store.expand_map(page_of(run_id, plan, second, first, first + 1, 2)))[0]
    assert await counts(driver, run_id) == (4, 1, 0, 0)
    again = await driver.claim(10, steps={"each"})
    assert {t.task.item: t.input for t in again} == {1: "6", 2: "7", 3: "8"}
    await driver.apply(run_id, *(done(t, '"third"') for t in again))
    (reader,) = await driver.claim(10, steps={"reader"})
    assert reader.values[list_code(1)] == '["second","third","third","third"]'
    await sound(driver, run_id)


async def test_page_of_an_earlier_life_is_refused(driver: Driver) -> None:
    """A coordinator that read its list before the retry stores nothing after it."""
    plan = a_map()
    run_id = await driver.start(plan)
    (task,) = await driver.claim(10, steps={"items"})
    await driver.apply(run_id, done(task, json.dumps([1, 2, 3])))
    assert (await driver.store.expand_map(page_of(run_id, plan, [1, 2, 3], 0, 1, 0)))[0]
    await driver.apply(run_id, DeadlinePassed())
    await driver.apply(run_id, RetryRequested())
    before = await driver.head(run_id)
    assert not (await driver.store.expand_map(page_of(run_id, plan, [1, 2, 3], 1, 2, 0)))[0]
    assert await driver.head(run_id) == before
    assert await rows(driver, run_id) == {0: "cancelled"}
    assert (await driver.store.expand_map(page_of(run_id, plan, [1, 2, 3], 0, 3, 1)))[0]
    assert set((await rows(driver, run_id)).values()) == {"ready"}
    await sound(driver, run_id)


async def test_retry_of_a_half_stored_map_stores_the_rest(driver: Driver) -> None:
    """A run that was stopped while its map was being stored keeps what had completed, and runs and stores all others."""
    plan = a_map(max_concurrency=2)
    run_id = await driver.start(plan)
    (task,) = await driver.claim(10, steps={"items"})
    await driver.apply(run_id, done(task, json.dumps([1, 2, 3, 4, 5])))
    assert (await driver.store.expand_map(page_of(run_id, plan, [1, 2, 3, 4, 5], 0, 3, 0)))[0]
    one, _ = await driver.claim(10, steps={"each"})
    await driver.apply(run_id, done(one, '"kept"'))
    await driver.apply(run_id, DeadlinePassed())
    await sound(driver, run_id)
    await driver.apply(run_id, RetryRequested())
    await sound(driver, run_id)
    await fire_due(driver.store)
    assert await rows(driver, run_id) == {0: "completed", 1: "ready", 2: "ready", 3: "held", 4: "held"}
    await sound(driver, run_id)
    while claimed := await driver.claim(10, steps={"each"}):
        await driver.apply(run_id, *(done(t, str(t.task.item)) for t in claimed))
    (reader,) = await driver.claim(10, steps={"reader"})
    assert reader.values[list_code(1)] == '["kept",1,2,3,4]'
    await sound(driver, run_id)


async def test_draining_of_a_half_stored_second_life_is_counted_right(driver: Driver) -> None:
    """A retried map that fails before all of its items are stored again withdraws the rest, whatever rows are left of before."""
    plan = a_map()
    run_id = await mapping(driver, [1, 2, 3, 4], plan)
    claimed = {t.task.item: t for t in await driver.claim(10, steps={"each"})}
    await driver.apply(run_id, done(claimed[0]), done(claimed[3]))
    await driver.apply(run_id, DeadlinePassed())
    await driver.apply(run_id, RetryRequested())
    assert (await driver.store.expand_map(page_of(run_id, plan, [1, 2, 3, 4], 0, 2, 1)))[0]
    (again,) = await driver.claim(10, steps={"each"})
    await driver.apply(run_id, failed(again))
    assert await letter(driver, run_id) == "D"
    await fire_due(driver.store)
    assert await counts(driver, run_id) == (4, 1, 1, 2)
    assert (await driver.head(run_id)).snapshot.status == "failed"
    await sound(driver, run_id)
