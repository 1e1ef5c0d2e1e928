"""Items as values: the list they come from, what of it is refused, how many may fail, read codes, and histories with items."""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.core.decide import decide
from composer.core.events import (
    CancelRequested,
    DeadlinePassed,
    ItemsSettled,
    LeaseExpired,
    MapCounts,
    RetryRequested,
    Started,
    StepReleased,
    StepSnoozed,
)
from composer.core.expressions import NotAList, elements
from composer.core.history import TaskTally, fold
from composer.core.items import MOST_ITEMS, NoItems, item_changes, items_of, list_text, part_of, tolerance_of
from composer.core.plan import (
    INPUT,
    MOST_NODES,
    NodeOptions,
    Plan,
    Read,
    list_code,
    node_of,
    node_read,
    outcomes_code,
    part_code,
)
from composer.core.snapshot import Counters, Letters, Snapshot
from composer.core.states import NodeState, RunStatus, TaskState
from composer.core.transition import Fence, Transition
from composer.core.values import Values
from tests.builders import a_delivery, a_failure, a_run, completed, failed


def a_map(over: Any = None, *, reader: Any = None, options: dict[str, Any] | None = None, **whole: Any) -> Plan:
    """src -> each, a map over `over` (src's output) -> reader, whose argument is `reader` (the whole list)."""
    nodes: list[dict[str, Any]] = [
        {"name": "src", "kind": "step", "step": "src", "args": {}},
        {
            "name": "each", "kind": "map", "step": "each", "over": "x",
            "args": {"x": over if over is not None else {"$": {"ref": "src"}}, "y": 1},
            **({"options": options} if options else {}),
        },
        {"name": "reader", "kind": "step", "step": "reader", "args": {"xs": reader or {"$": {"ref": "each"}}}},
    ]  # fmt: skip
    body: dict[str, Any] = {"format": 1, "workflow": "w", "nodes": nodes, "output": {"$": {"ref": "reader"}}}
    return Plan({**body, "options": whole} if whole else body)


def the_items(text: str, plan: Plan | None = None) -> list[str]:
    """What the map of a plan runs over when src gave `text`."""
    plan = plan or a_map()
    return list(items_of(plan, plan.nodes[1], Values("C..", {0: text})).texts)


# -- lists -----------------------------------------------------------------------------------------------------

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(JSON_VALUES, max_size=8), st.sampled_from([None, 1, "\t"]), st.booleans())
def test_elements_are_the_texts_of_the_list(values, indent, ascii_):
    """Taken apart, a list gives each element as the text it was written as, whatever stands between them."""
    text = json.dumps(values, indent=indent, ensure_ascii=ascii_)
    found = elements(f" {text}\n")
    assert [json.loads(each) for each in found] == values
    assert all(each in text for each in found)
    if indent is None:
        assert found == [json.dumps(each, ensure_ascii=ascii_) for each in values]


@pytest.mark.parametrize("text", ["[1.10,1e400,-0.0]", '[ "\\u0000" , 123456789012345678901234567890 ]', "[]", " [ ] "])
def test_elements_are_not_spelled_anew(text):
    """Big numbers, trailing zeros and escapes come out as they went in."""
    assert "".join(elements(text)) == text.strip(" []").replace(" ", "").replace(",", "")


@pytest.mark.parametrize(
    ("text", "what"),
    [("null", "null"), ("true", "a truth value"), ("1.5", "a number"), ('"ab"', "text"), ('{"a":[1]}', "an object")],
)
def test_what_is_no_list_is_named(text, what):
    """Anything else than a list is refused with what it is; text is not taken for a list of letters."""
    with pytest.raises(NotAList, match=what):
        elements(text)
    with pytest.raises(NoItems) as caught:
        the_items(text)
    assert caught.value.code == "NotAList"
    assert caught.value.why == f"the list of map each (src) is {what}, not a list"


def test_path_that_leads_nowhere_is_named():
    """A list that is to be found under a key that is not there is refused with the whole path."""
    with pytest.raises(NoItems) as caught:
        the_items('{"a": {"c": []}}', a_map({"$": {"ref": "src", "path": ["a", "b"]}}))
    assert caught.value.code == "ItemsUnreadable"
    assert "src.a.b" in caught.value.why
    assert the_items('{"a": {"b": [1, 2]}}', a_map({"$": {"ref": "src", "path": ["a", "b"]}})) == ["1", "2"]


def test_constant_list_is_a_list():
    """A list written down, with references in it, is run over as any other."""
    assert the_items("7", a_map([1, "x", {"$": {"ref": "src"}}])) == ["1", '"x"', "7"]


def test_zip_puts_lists_side_by_side_and_refuses_different_lengths():
    """Lists side by side give one list an item; different lengths are named with their numbers."""
    plan = a_map(
        {"$": {"zip": [{"ref": "src", "path": ["a"]}, {"ref": "src", "path": ["b"]}, {"const": [True, False]}]}}
    )
    assert the_items('{"a": [1.0, 2], "b": ["x", null]}', plan) == ['[1.0,"x",true]', "[2,null,false]"]
    with pytest.raises(NoItems, match=r"src\.a has 1, src\.b has 2"):
        the_items('{"a": [1], "b": ["x", null]}', plan)
    with pytest.raises(NoItems, match="text, not a list"):
        the_items('{"a": "12", "b": ["x", null]}', plan)


def test_too_many_items_are_refused_with_both_numbers():
    """As many items as a map may have are taken, one more is refused with how many there are, how many may be, and what to do."""
    most = "[" + ",".join(["0"] * MOST_ITEMS) + "]"
    assert len(the_items(most)) == MOST_ITEMS
    with pytest.raises(NoItems) as caught:
        the_items(most[:-1] + ",0]")
    assert caught.value.code == "MapTooWide"
    assert all(word in caught.value.why for word in ("100,001", "100,000", "batch"))


def test_digest_tells_lists_apart():
    """Equal lists have equal digests, different ones different digests."""
    plan = a_map()
    digests = [
        items_of(plan, plan.nodes[1], Values("C..", {0: text})).digest for text in ("[1,2]", "[1,2]", "[12]", '["1",2]')
    ]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


# -- how many may fail -----------------------------------------------------------------------------------------


@given(st.integers(0, MOST_ITEMS), st.decimals(0, 100, places=2))
def test_tolerance_of_a_share_is_exact(total, share):
    """A share of the items is rounded down from its exact value, never from that of a binary number next to it."""
    plan = a_map(options={"tolerate": f"{share}%"})
    assert tolerance_of(plan, plan.nodes[1], total) == int(total * Fraction(share) / 100)


@pytest.mark.parametrize(
    ("tolerate", "total", "expected"),
    [(0, 10, 0), (3, 10, 3), (3, 2, 3), ("5%", 10, 0), ("5%", 20, 1), ("50%", 3, 1), ("100%", 7, 7), ("0%", 7, 0), ("1.13%", 10_000, 113)],
)  # fmt: skip
def test_tolerance_is_a_number_or_a_share(tolerate, total, expected):
    """Numbers count items, shares are of all items, rounded down."""
    plan = a_map(options={"tolerate": tolerate})
    assert tolerance_of(plan, plan.nodes[1], total) == expected


def test_map_that_is_read_item_by_item_tolerates_everything():
    """Under settled_each no number of failed items fails the map, whoever reads it besides."""
    plan = a_map(reader={"a": {"$": {"settled_each": [{"ref": "each"}]}}, "b": {"$": {"ref": "each"}}})
    assert tolerance_of(plan, plan.nodes[1], 9) == 9
    assert not MapCounts(9, failed=9, tolerance=9).has_failed


# -- read codes ------------------------------------------------------------------------------------------------

NODES = st.integers(0, MOST_NODES - 1)


@given(NODES, NODES, st.integers(-MOST_ITEMS, MOST_ITEMS), st.integers(-MOST_ITEMS, MOST_ITEMS))
def test_read_codes_come_back_as_they_were_made(one, other, index, another):
    """A code gives its node, what is read and the index back; no two readings have one code; all fit 32 bits."""
    made = {
        (one, Read.OUTPUT, 0): one,
        (one, Read.LIST, 0): list_code(one),
        (other, Read.LIST, 0): list_code(other),
        (one, Read.OUTCOMES, 0): outcomes_code(one),
        (other, Read.OUTCOMES, 0): outcomes_code(other),
        (one, Read.PART, index): part_code(one, index),
        (other, Read.PART, another): part_code(other, another),
        (INPUT, Read.OUTPUT, 0): INPUT,
    }
    assert {what: node_read(code) for what, code in made.items()} == {what: what for what in made}
    assert len(set(made.values())) == len(made)
    assert all(-(2**31) <= code < 2**31 for code in made.values())
    assert [node_of(code) for code in made.values()] == [node for node, _, _ in made]


@given(NODES, st.integers(MOST_ITEMS + 1, 2**63) | st.integers(-(2**63), -MOST_ITEMS - 1))
def test_index_past_all_maps_reads_the_list(node, index):
    """An index that no map has asks for the whole list, which then says that it is not there."""
    assert part_code(node, index) == list_code(node)


@given(st.lists(st.sampled_from(["1", '"x"', "null"]), max_size=5), st.integers(-7, 7))
def test_part_is_what_the_list_has_there(outputs, index):
    """One part of a map's list is what Python's index gives, from either end; out of range it is None."""
    values = json.loads(list_text(outputs))
    part = part_of(outputs, index)
    if -len(values) <= index < len(values):
        assert part is not None
        assert json.loads(part) == values[index]
    else:
        assert part is None


@pytest.mark.parametrize(
    ("symbol", "expected"),
    [
        ({"ref": "each"}, list_code(1)),
        ({"ref": "each", "path": [0]}, part_code(1, 0)),
        ({"ref": "each", "path": [-2, "a"]}, part_code(1, -2)),
        ({"ref": "each", "path": [MOST_ITEMS + 1]}, list_code(1)),
        ({"settled_each": [{"ref": "each"}]}, outcomes_code(1)),
        ({"ref": "src", "path": [0]}, 0),
    ],
)
def test_reads_of_a_map_have_their_codes(symbol, expected):
    """What a reader names of a map is what it asks a store for: the list, one part, or the outcomes."""
    assert a_map(reader={"$": symbol}).nodes[2].reads == (expected,)


# -- what is decided -------------------------------------------------------------------------------------------


def decided(plan: Plan, run: Snapshot, *events: Any, **values: str) -> Transition:
    """The decision, with outputs by node name."""
    made = decide(plan, run, events, {plan.index[name]: text for name, text in values.items()})
    assert isinstance(made, Transition), made
    return made


def the_end(plan: Plan, run: Snapshot, **counts: Any) -> Transition:
    """What follows from counts of the map."""
    return decided(plan, run, ItemsSettled(1, MapCounts(**counts)))


def test_chained_empty_maps_complete_in_one_transition():
    """A step that gives nothing completes all maps behind it in its own transition, without a task for any of them."""
    nodes: list[dict[str, Any]] = [{"name": "a", "kind": "step", "step": "a", "args": {}}]
    for before, name in (("a", "b"), ("b", "c"), ("c", "d")):
        nodes.append({"name": name, "kind": "map", "step": name, "over": "x", "args": {"x": {"$": {"ref": before}}}})
    reads = {"xs": {"$": {"ref": "d"}}, "f": {"$": {"settled_each": [{"ref": "b"}]}}}
    nodes.append({"name": "e", "kind": "step", "step": "e", "args": reads})
    plan = Plan({"format": 1, "workflow": "w", "nodes": nodes, "output": {"$": {"ref": "e"}}})
    made = decided(plan, a_run("A...."), completed(0, "[]"))
    assert made.run.letters.text == "CCCCA"
    assert [start.node for start in made.starts] == [4]
    assert [(each["event"], each["node"]) for each in made.history["follows"]] == [("map-completed", n) for n in "bcd"]


def test_run_of_nothing_but_an_empty_map_completes_as_it_starts():
    """A map over the run's own empty input is over with the start of the run, and its list is the run's output."""
    node = {
        "name": "m",
        "kind": "map",
        "step": "m",
        "over": "x",
        "args": {"x": {"$": {"ref": "input", "path": ["xs"]}}},
    }
    plan = Plan({"format": 1, "workflow": "w", "nodes": [node], "output": {"$": {"ref": "m"}}})
    made = decide(plan, Snapshot.unborn(1), [Started()], {INPUT: '{"xs":[]}'})
    assert isinstance(made, Transition)
    assert (made.run.status, made.run.letters.text, made.starts) == (RunStatus.COMPLETED, "C", [])
    assert made.result is not None
    assert made.result.output == "[]"


def test_map_waits_with_a_task_that_is_due_at_once():
    """A map over something has a task of its own, which waits and is due now; no item is a task of this transition."""
    made = decided(a_map(), a_run("A.."), completed(0, "[1,2]"))
    assert made.run.letters.text == "CM."
    (start,) = made.starts
    assert (start.node, start.item, start.waits, start.wake_in, start.is_ready) == (1, -1, True, 0.0, False)


def test_empty_list_of_a_retried_run_is_left_to_a_coordinator():
    """In a run that was retried an empty list may have had items before, so the map begins as any other."""
    run = Snapshot(RunStatus.RUNNING, 9, Letters("A.."), Counters(retries=1))
    assert decided(a_map(), run, completed(a_delivery(0, 2, 2), "[]")).run.letters.text == "CM."


@pytest.mark.parametrize(
    ("counts", "letters"),
    [
        ({"completed": 2}, "CM."),
        ({"completed": 3, "failed": 1}, "CM."),
        ({"completed": 4, "failed": 1}, "CCA"),
        ({"completed": 3, "failed": 2}, "CFS"),
        ({"completed": 1, "failed": 2}, "CD."),
        ({"completed": 1, "failed": 2, "withdrawn": 2}, "CFS"),
        ({"completed": 5}, "CCA"),
    ],
)
def test_counts_decide_the_map(counts, letters):
    """One failure is tolerated: at the end of five items the map completes, with two it drains or fails."""
    made = the_end(
        a_map(),
        a_run("CM."),
        total=5,
        expanded=5,
        tolerance=1,
        error='{"kind":"error","type":"E"}',
        first_failed=2,
        **counts,
    )
    assert made.run.letters.text == letters
    assert made.is_empty == (letters == "CM.")


def test_draining_map_is_due_at_once_and_waits_for_its_last_item():
    """A map that drains has its own task due now; counts that go on change nothing; the last one fails it by the first failure."""
    plan = a_map()
    error = json.dumps({"kind": "timeout", "type": "StepTimeout", "message": "slow", "attempt": 3})
    counts = {"total": 9, "expanded": 9, "failed": 1, "first_failed": 4, "error": error}
    made = the_end(plan, a_run("CM."), **counts)
    (change,) = made.changes
    assert (change.node, change.item, change.fence, change.state, change.delay) == (
        1,
        -1,
        Fence.WAITING,
        TaskState.WAITING,
        0.0,
    )
    assert the_end(plan, made.run, **counts).ignored[0][1] == "map each goes on: 1 of 9 items have settled"
    end = the_end(plan, made.run, **{**counts, "failed": 2, "withdrawn": 7})
    assert end.run.status is RunStatus.FAILED
    assert end.result is not None
    told = json.loads(end.result.error or "")
    assert (told["code"], told["node"], told["item"], told["items"], told["failed"], told["attempt"]) == (
        "node-failed",
        "each",
        4,
        9,
        2,
        3,
    )
    assert (told["kind"], told["type"]) == ("timeout", "StepTimeout")
    assert told["message"] == "item 4 of 9, and 1 more failed: slow"


def test_fail_fast_stops_everything_with_the_first_item_too_many():
    """With fail_fast a map does not drain: the run stops with all open tasks as soon as more failed than it tolerates."""
    made = the_end(a_map(fail_fast=True), a_run("CM."), total=9, expanded=9, failed=1, first_failed=0, error="{}")
    assert (made.run.status, made.run.letters.text) == (RunStatus.FAILED, "CFX")
    assert made.stops_open_tasks


@pytest.mark.parametrize("event", [CancelRequested("why"), DeadlinePassed()])
@pytest.mark.parametrize("letter", ["M", "D"])
def test_stop_ends_a_map_wherever_it_is(event, letter):
    """A stop cancels a map that goes on or drains, with all of its items, and what its counts say later is ignored."""
    plan = a_map()
    made = decided(plan, a_run(f"C{letter}."), event)
    assert made.run.letters.text == "CXX"
    assert made.stops_open_tasks
    assert the_end(plan, made.run, total=2, completed=2).ignored[0][1] == f"the run is {made.run.status.value}"


def test_counts_of_an_earlier_life_are_ignored():
    """Counts that were made before the run was retried say nothing about it now."""
    run = Snapshot(RunStatus.RUNNING, 9, Letters("CM."), Counters(retries=2))
    assert the_end(a_map(), run, total=2, completed=2, retries=1).is_empty
    assert the_end(a_map(), run, total=2, completed=2, retries=2).run.letters.text == "CCA"


def test_retry_begins_a_failed_map_again_and_leaves_a_completed_one():
    """A retry sets the failed map back and begins it at once, its list being there; a map that completed is not touched."""
    plan = a_map()
    run = Snapshot(RunStatus.FAILED, 9, Letters("CFS"), Counters(first_failure=1))
    made = decided(plan, run, RetryRequested(), src="[1,2]")
    assert made.run.letters.text == "CM."
    assert [(start.node, start.reopened, start.waits) for start in made.starts] == [(1, True, True)]
    run = Snapshot(RunStatus.FAILED, 9, Letters("CCF"), Counters(first_failure=2))
    assert decided(plan, run, RetryRequested()).run.letters.text == "CCA"


def test_reports_of_items_change_no_run_by_themselves():
    """A report about an item is for the store to count: as an event of the run it is ignored with that reason."""
    made = decided(a_map(), a_run("CM."), completed(a_delivery(1, item=0)))
    assert made.is_empty
    assert "counted where they are stored" in made.ignored[0][1]


# -- what reports of items come to -----------------------------------------------------------------------------

OPTIONS = NodeOptions.from_json(
    {"retries": {"attempts": 2, "delay": 3.0, "backoff": 1.0, "max_delay": 9.0, "jitter": 0.0, "no_retry_on": []}}
).as_json()


@pytest.mark.parametrize(
    ("report", "state", "outcome", "added"),
    [
        (completed(a_delivery(1, item=7), "5"), "completed", "completed", (0, 0, 0, 0)),
        (failed(a_delivery(1, item=7)), "delayed", "retried", (1, 0, 1, 0)),
        (failed(a_delivery(1, item=7), retryable=False), "failed", "failed", (0, 0, 1, 0)),
        (failed(a_delivery(1, item=7, failures=1)), "failed", "failed", (0, 0, 1, 0)),
        (StepSnoozed(a_delivery(1, item=7), 5.0), "delayed", "snoozed", (0, 1, 0, 0)),
        (StepSnoozed(a_delivery(1, item=7), 0.0), "ready", "snoozed", (0, 1, 0, 0)),
        (StepReleased(a_delivery(1, item=7)), "ready", "released", (0, 1, 0, 0)),
        (LeaseExpired(a_delivery(1, item=7)), "delayed", "crashed", (0, 0, 0, 1)),
        (LeaseExpired(a_delivery(1, item=7, crashes=2)), "delayed", "retried", (1, 0, 1, 1)),
        (LeaseExpired(a_delivery(1, item=7, crashes=2, failures=1)), "failed", "failed", (0, 0, 1, 1)),
    ],
)
def test_item_has_the_rules_of_a_step(report, state, outcome, added):
    """An item is retried, snoozed, released and recovered as a step is, and its line in history names it."""
    (made,) = item_changes(a_map(options=OPTIONS), [report])
    change, entry = made.change, json.loads(made.entry)
    assert (change.node, change.item, change.state) == (1, 7, state)
    assert (change.attempt_add, change.delivery_add, change.failures_add, change.crashes_add) == added
    assert (entry["node"], entry["item"], entry["outcome"], entry["attempt"], entry["delivery"]) == (
        "each",
        7,
        outcome,
        1,
        1,
    )


def test_entry_of_an_item_is_ascii_whatever_its_error_says():
    """Half a surrogate pair in a message does not make history unwritable."""
    (made,) = item_changes(a_map(), [failed(a_delivery(1, item=0), failure=a_failure("\ud800é"))])
    assert made.entry.isascii()


# -- histories -------------------------------------------------------------------------------------------------


def stored(first: int, last: int, **more: Any) -> dict[str, Any]:
    """A history row: items were stored."""
    return {"events": [{"event": "items-expanded", "node": "each", "from": first, "to": last, **more}]}


def ended(item: int, outcome: str, attempt: int = 1, **more: Any) -> dict[str, Any]:
    """A history row: a delivery of an item ended."""
    return {
        "events": [
            {"event": "e", "node": "each", "item": item, "outcome": outcome, "attempt": attempt, "delivery": 1, **more}
        ]
    }


def tallies(*rows: dict[str, Any]) -> dict[int, TaskTally]:
    """What the history knows of the items."""
    return {item: tally for (node, item), tally in fold(a_map(), rows).tasks.items() if node == 1}


def test_fold_counts_items_by_themselves():
    """Every item has its own attempts, failures, crashes and results, and versions grow by one a row."""
    rows = [
        stored(0, 3), ended(0, "completed"), ended(1, "retried", failures=1), ended(1, "crashed", attempt=2, crashes=1),
        ended(1, "failed", attempt=2, failures=2), ended(2, "released"),
    ]  # fmt: skip
    assert tallies(*rows) == {
        0: TaskTally(completions=1),
        1: TaskTally(2, failures=2, crashes=1),
        2: TaskTally(),
    }
    assert fold(a_map(), rows).run.version == len(rows)


def test_fold_reopens_items_that_had_not_completed():
    """Stored again, a failed item has a new attempt and fresh budgets; one that completed is as it was."""
    rows = [stored(0, 2), ended(0, "completed"), ended(1, "failed", failures=1), stored(0, 2)]
    assert tallies(*rows) == {0: TaskTally(completions=1), 1: TaskTally(2)}


def test_fold_of_another_list_keeps_nothing():
    """Stored afresh, every item begins again, those of later pages and of later lives too, whenever their turn comes."""
    rows = [stored(0, 3), *(ended(item, "completed") for item in range(3)), stored(0, 1, afresh=True)]
    assert tallies(*rows) == {0: TaskTally(2), 1: TaskTally(), 2: TaskTally()}
    later = [*rows, stored(0, 1), stored(1, 2)]
    assert tallies(*later) == {0: TaskTally(3), 1: TaskTally(2), 2: TaskTally()}


def test_letters_of_a_map_fold():
    """Mapping, draining and failing are in the run's letters at every version."""
    plan = a_map()
    made = [decided(plan, Snapshot.unborn(3), Started())]
    made.append(decided(plan, made[-1].run, completed(0, "[1,2,3]")))
    for counts in ({"failed": 1}, {"failed": 1, "withdrawn": 2}):
        made.append(the_end(plan, made[-1].run, total=3, expanded=3, first_failed=0, error="{}", **counts))
    history = [each.history for each in made]
    letters = [fold(plan, history[: n + 1]).run.letters.text for n in range(len(history))]
    assert letters == ["A..", "CM.", "CD.", "CFS"]
    assert fold(plan, history).run == made[-1].run
    assert {NodeState(letter) for letter in "MD"} == {NodeState.MAPPING, NodeState.DRAINING}


def test_share_is_never_read_as_a_float():
    """The smallest difference there is: 0.57 % of ten thousand is 57, and a float says 56."""
    assert int(10_000 * float("0.57") / 100) == 56
    assert int(10_000 * Decimal("0.57") / 100) == 57
    plan = a_map(options={"tolerate": "0.57%"})
    assert tolerance_of(plan, plan.nodes[1], 10_000) == 57
