"""Guards: asked once, in the transition in which the last thing they read settles; and what follows in odd lives."""

from __future__ import annotations

import json
from typing import Any

import pytest

from composer.core.decide import decide, reset_nodes, stale_nodes
from composer.core.events import CancelRequested, DeadlinePassed, RetryRequested, Started
from composer.core.history import fold
from composer.core.kinds import guard
from composer.core.plan import INPUT, Plan
from composer.core.snapshot import Snapshot
from composer.core.states import NodeState, RunStatus, TaskState
from composer.core.transition import NeedValues, Transition
from tests.builders import a_delivery, a_plan, a_run, completed, failed, says
from tests.core.model import ModelStore

BIG = says("gt", "a/n", 5, kind="number")
FAILED = says("eq", "settled:a/state", ("failed",), kind="text")
FORK = {"a": [], "g": [], "yes": ["when:g"], "no": ["unless:g"]}


def started(nodes: dict[str, list[str]], guards: dict[str, Any], text: str = "{}", **more: Any) -> ModelStore:
    return ModelStore.started(a_plan(nodes, guards=guards, **more), text=text)


def ends(store: ModelStore) -> str:
    """The letters in the order in which the nodes' names sort."""
    store.check()
    return "".join(store.run.letters[store.plan.index[name]] for name in sorted(store.plan.index))


def run(store: ModelStore, name: str, output: str | None = '"x"') -> Transition:
    """The named step completes, or fails when there is no output."""
    task = store.claim(store.plan.index[name])
    made = store.apply([failed(task) if output is None else completed(task, output)]).made
    store.check()
    assert made is not None
    return made


def test_guard_is_answered_with_what_it_waits_for():
    """The report that settles what a guard reads also answers it and starts its block: one transition, no task."""
    store = started(FORK, {"g": BIG})
    assert ends(store) == "A..."
    made = run(store, "a", '{"n": 6}')
    assert ends(store) == "CCSA"
    assert [store.plan.nodes[start.node].name for start in made.starts] == ["yes"]
    assert made.history["guards"] == {"g": True}
    assert made.run.counters.no == ()
    assert store.plan.index["g"] not in store.rows


def test_no_is_kept_in_the_run():
    """A guard that says no is in the counters, so that a node of its block that waits for more is skipped much later."""
    store = started({"a": [], "g": [], "slow": [], "yes": ["slow", "when:g"], "no": ["slow", "unless:g"]}, {"g": BIG})
    made = run(store, "a", '{"n": 5}')
    g = store.plan.index["g"]
    assert (made.history["guards"], made.run.counters.no) == ({"g": False}, (g,))
    assert json.loads(made.history["counters"])["no"] == [g]
    again = Snapshot.stored("running", 2, made.run.letters.text, made.run.counters.encode())
    assert again == made.run
    run(store, "slow")
    assert ends(store) == "CCACS"
    assert fold(store.plan, store.history).answers == {g: False}


def test_guard_over_the_input_is_answered_at_the_start():
    """A guard that reads the input only is a root: the first transition answers it, from the input that is at hand."""
    plan = a_plan({"g": [], "yes": ["when:g"]}, guards={"g": says("is_none", "input/x")})
    assert decide(plan, Snapshot.unborn(2), [Started()]) == NeedValues((INPUT,))
    made = decide(plan, Snapshot.unborn(2), [Started()], {INPUT: '{"x":null}'})
    assert isinstance(made, Transition)
    assert made.run.letters.text == "CA"
    scheduled = ModelStore.started(plan, scheduled=True, text='{"x":1}')
    assert ends(scheduled) == ".."
    scheduled.apply([Started()])
    assert (ends(scheduled), scheduled.run.status) == ("CS", RunStatus.COMPLETED)


def test_guards_ask_only_for_what_is_missing():
    """Outputs that the events carry are not asked for; errors are asked for only of failed nodes read through settled()."""
    both = says("and", FAILED, says("is_none", "maybe:b"), says("is_none", "c"))
    plan = a_plan({"a": [], "b": [], "c": [], "g": [], "y": ["when:g"]}, guards={"g": both})
    assert decide(plan, a_run("FAC..", first_failure=0), [failed(1)]) != NeedValues((0, 2))  # b failed: g is skipped
    assert decide(plan, a_run("FAC..", first_failure=0), [completed(1)]) == NeedValues((0, 2))
    assert decide(plan, a_run("FAC..", first_failure=0), [completed(1)], {2: "1"}) == NeedValues((0,))
    known = decide(plan, a_run("FAC..", first_failure=0), [completed(1)], {2: "1"}, {0: '{"type":"E"}'})
    assert isinstance(known, Transition)
    assert known.run.letters.text == "FCCCS"


def test_several_guards_are_asked_for_together():
    """All values that one decision needs are named at once, as far as it got without them."""
    guards = {"g": BIG, "h": says("lt", "b/n", 5, kind="number"), "i": says("is_none", "c")}
    plan = a_plan({"a": [], "b": [], "c": [], "g": ["after:c"], "h": ["after:c"], "i": ["when:g"]}, guards=guards)
    assert decide(plan, a_run("CCA..."), [completed(2)]) == NeedValues((0, 1))


def test_guard_reads_a_failure_of_the_same_transition():
    """The error of the attempt that has just failed for good is at hand for a guard that reads its outcome."""
    wrong_card = says("eq", "settled:a/error/type", ("ValueError",), kind="text")
    store = started(FORK, {"g": wrong_card})
    run(store, "a", None)
    assert (ends(store), store.run.status) == ("FCSA", RunStatus.RUNNING)
    run(store, "yes")
    assert store.run.status is RunStatus.COMPLETED


def test_unevaluable_guard_fails_and_never_says_no():
    """What cannot be evaluated is a failure with code, node, value and kind; both blocks are skipped and the run fails."""
    store = started(FORK, {"g": BIG})
    made = run(store, "a", '{"n": "six"}')
    assert (ends(store), store.run.status) == ("CFSS", RunStatus.FAILED)
    error = json.loads(store.error or "")
    assert (error["code"], error["node"], error["type"]) == ("guard-unevaluable", "g", "Unevaluable")
    assert error["message"] == 'condition g cannot be evaluated: a.n: expected a number, got "six"'
    assert made.history["unevaluable"] == {"g": error["message"]}
    assert "guards" not in made.history
    store.apply([RetryRequested()])
    assert (ends(store), store.run.status) == ("CFSS", RunStatus.FAILED), "the same values: the same error"


def test_long_values_are_short_in_the_error():
    """An error of a guard does not carry a payload along."""
    store = started(FORK, {"g": BIG})
    made = run(store, "a", json.dumps({"n": "x" * 1_000_000}))
    assert len(made.history_text) < 2_000
    assert len(store.error or "") < 1_000


@pytest.mark.parametrize("event", [CancelRequested("enough"), DeadlinePassed()])
def test_stop_cancels_a_guard_that_was_not_asked(event):
    """A guard that still waits is cancelled with the run; one that has answered keeps its answer."""
    store = started({**FORK, "h": [], "z": ["when:h"]}, {"g": says("is_none", "input"), "h": BIG}, text="1")
    store.apply([event])
    assert ends(store) == "XCXXSX"
    assert store.run.counters.no == (store.plan.index["g"],)


def test_nothing_can_be_reported_of_a_guard():
    """A report that names a guard is ignored with the reason, whatever the guard's letter is."""
    plan = a_plan(FORK, guards={"g": BIG})
    g = plan.index["g"]
    for letter in NodeState:
        made = decide(plan, a_run(f"A{letter}.."), [completed(a_delivery(g))])
        assert isinstance(made, Transition)
        assert [reason for _, reason in made.ignored] == ["node g is a condition and has no task"]


def test_guard_explains_itself():
    """Each state of a guard has a sentence that names it, or the plain word."""
    node = a_plan(FORK, guards={"g": BIG}).nodes[1]
    told = {letter: guard.explain(node, letter) for letter in NodeState}
    assert told[NodeState.BLOCKED] == "condition g is answered once everything it reads has ended"
    assert "could not be evaluated" in told[NodeState.FAILED]
    assert "not asked" in told[NodeState.SKIPPED]
    assert told[NodeState.CANCELLED] == "cancelled"
    assert all(told.values())


# -- retry -------------------------------------------------------------------------------------------------
def test_retry_asks_guards_again_that_depend_on_what_is_reset():
    """After a retry a guard that read a failure's outcome is asked again, and the other branch may be taken."""
    store = started({**FORK, "z": []}, {"g": FAILED})
    run(store, "z", None)
    run(store, "a", None)
    run(store, "yes")
    assert (ends(store), store.run.status) == ("FCSCF", RunStatus.FAILED)
    store.apply([RetryRequested()])
    assert ends(store) == "A..CA"
    assert fold(store.plan, store.history).answers == {}
    run(store, "a")
    assert (ends(store), store.run.counters.no) == ("CCACA", (store.plan.index["g"],))
    run(store, "no")
    run(store, "z")
    assert (ends(store), store.run.status) == ("CCCCC", RunStatus.COMPLETED)


def test_retry_leaves_other_guards_and_their_blocks():
    """A guard whose values stay says what it said: it is not reset, and the block it did not take is skipped again."""
    store = started({**FORK, "z": ["no"]}, {"g": BIG})
    run(store, "a", '{"n": 1}')
    run(store, "no")
    run(store, "z", None)
    assert ends(store) == "CCCSF"
    made = store.apply([RetryRequested()]).made
    assert made is not None
    assert ends(store) == "CCCSA"
    assert made.history["reset"] == ["yes", "z"]
    assert made.history["nodes"] == {"yes": "S", "z": "A"}
    assert store.run.counters.no == (store.plan.index["g"],)


def test_stale_blocks_are_named_and_run_again_on_request():
    """Completed nodes of a block whose condition is asked again are stale; rerun_stale resets them with their guard."""
    plan = a_plan({**FORK, "late": ["yes"], "other": []}, guards={"g": FAILED})
    ended = {"a": "F", "g": "C", "no": "S", "yes": "C", "late": "C", "other": "F"}
    names = [node.name for node in plan.nodes]
    by_name = [ended[name] for name in names]
    assert {names[i] for i in stale_nodes(plan, by_name)} == {"yes", "late"}
    assert {names[i] for i in reset_nodes(plan, by_name)} == {"a", "g", "no", "other"}
    assert {names[i] for i in reset_nodes(plan, by_name, rerun_stale=True)} == {"a", "g", "no", "other", "yes", "late"}


# -- fail_fast ---------------------------------------------------------------------------------------------
def test_fail_fast_waits_for_who_could_handle_the_failure():
    """A failure that somebody reads through settled() stops nothing while that reader may run, or once it did."""
    store = started({"a": [], "b": [], "c": ["settled:a", "b"], "d": []}, {}, fail_fast=True)
    run(store, "a", None)
    assert ends(store) == "FA.A"
    run(store, "b")
    assert ends(store) == "FCAA"
    run(store, "d")
    run(store, "c")
    assert (ends(store), store.run.status, store.error) == ("FCCC", RunStatus.COMPLETED, None)


def test_fail_fast_stops_once_nobody_can_handle_it():
    """When the reader that could have handled a failure is skipped, the run stops then, with that failure as its error."""
    nodes = {"a": [], "b": [], "g": [], "c": ["settled:a", "when:g"], "d": []}
    store = started(nodes, {"g": says("gt", "b/n", 5, kind="number")}, fail_fast=True)
    run(store, "a", None)
    assert ends(store) == "FA.A."
    run(store, "b", '{"n": 1}')
    assert (ends(store), store.run.status) == ("FCSXC", RunStatus.FAILED)
    assert json.loads(store.error or "")["node"] == "a"
    assert store.rows[store.plan.index["d"]].state is TaskState.CANCELLED


def test_fail_fast_stops_at_once_for_a_plain_reader():
    """A failure that a plain reader is skipped for cannot be handled any more, and stops the run at once."""
    store = started({"a": [], "b": ["a"], "c": ["settled:a"], "d": []}, {}, fail_fast=True)
    run(store, "a", None)
    assert (ends(store), store.run.status) == ("FSXX", RunStatus.FAILED)


def test_fail_fast_stops_for_a_condition():
    """A condition that cannot be evaluated stops the run as a failed step does."""
    store = started({**FORK, "z": []}, {"g": BIG}, fail_fast=True)
    run(store, "a", "[]")
    assert (ends(store), store.run.status) == ("CFXXX", RunStatus.FAILED)
    assert json.loads(store.error or "")["code"] == "guard-unevaluable"


# -- whose failure is the run's ------------------------------------------------------------------------------
def test_handled_failure_is_not_the_runs_error():
    """The run fails by the failure nobody handled, though another came first and was handled."""
    store = started({"a": [], "b": ["settled:a"], "c": ["b"], "d": []}, {})
    run(store, "a", None)
    run(store, "d", None)
    run(store, "b")
    run(store, "c")
    assert (ends(store), store.run.status) == ("FCCF", RunStatus.FAILED)
    assert json.loads(store.error or "")["node"] == "d"
    assert store.run.counters.first_failure == store.plan.index["d"]


def test_error_of_a_later_failure_is_looked_up():
    """Of two failures that could have been handled the first was and the second was not: its stored error is loaded."""
    store = started(
        {"a": [], "b": [], "c": ["settled:a"], "g": [], "d": ["settled:b", "when:g"]}, {"g": says("is_none", "c")}
    )
    run(store, "a", None)
    run(store, "b", None)
    assert json.loads(store.error or "")["node"] == "a"
    last = store.claim(store.plan.index["c"])
    b = store.plan.index["b"]
    assert decide(store.plan, store.run, [completed(last, "1")]) == NeedValues((b,))
    store.apply([completed(last, "1")])
    assert (ends(store), store.run.status) == ("FFCSC", RunStatus.FAILED)
    error = json.loads(store.error or "")
    assert (error["node"], error["code"], error["message"], error["attempt"]) == ("b", "node-failed", "no", 1)
    assert store.run.counters.first_failure == b


def test_condition_that_fails_over_a_handled_failure_is_the_runs_error():
    """A guard that reads the value of a failed node through settled() fails with its own error, which is the run's."""
    store = started(FORK, {"g": says("gt", "settled:a/value/n", 5, kind="number")})
    run(store, "a", None)
    assert (ends(store), store.run.status) == ("FFSS", RunStatus.FAILED)
    error = json.loads(store.error or "")
    assert (error["node"], error["code"]) == ("g", "guard-unevaluable")
    assert "settled(a).value.n: the value there is null" in error["message"]


def test_output_that_reads_a_failed_node_plainly_fails_by_it():
    """The run's output is a reader too: what it wants plainly is not handled, though somebody else read the outcome."""
    store = started({"a": [], "b": ["settled:a"]}, {}, output="a")
    run(store, "a", None)
    run(store, "b")
    assert (ends(store), store.run.status) == ("FC", RunStatus.FAILED)
    assert json.loads(store.error or "")["node"] == "a"


def test_long_chains_of_guards_are_answered_in_one_transition():
    """Hundreds of nested conditions over the input are answered by the start, in plan order."""
    count = 300
    nodes = {f"g{i:03}": [f"when:g{i - 1:03}"] if i else [] for i in range(count)}
    guards = {name: says("gt", "input/n", i, kind="number") for i, name in enumerate(nodes)}
    store = started(nodes, guards, text='{"n": 250}')
    assert store.run.letters.text == "C" * 251 + "S" * 49
    assert (store.run.version, store.run.status, store.run.counters.no) == (1, RunStatus.COMPLETED, (250,))
    assert store.history[0]["guards"] == {name: i < 250 for i, name in enumerate(nodes) if i <= 250}


def test_shape_covers_conditions_and_blocks():
    """Another condition, another kind of comparison or another branch is another shape."""
    plans: list[Plan] = [
        a_plan({"a": [], "g": [], "b": [need]}, guards={"g": says("gt", "a/n", number, kind=kind)})
        for need, number, kind in (
            ("when:g", 5, "number"),
            ("unless:g", 5, "number"),
            ("when:g", 6, "number"),
            ("when:g", 5, "decimal"),
        )
    ]
    assert len({plan.shape for plan in plans}) == 4
