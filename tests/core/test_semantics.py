"""The rows of semantics.py that the core can show, one test a row; and that the table is whole."""

from __future__ import annotations

import ast
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from composer.core.events import (
    CancelRequested,
    DeadlinePassed,
    LeaseExpired,
    RetryRequested,
    Scheduled,
    Started,
    StepReleased,
    StepSnoozed,
)
from composer.core.plan import NodeOptions
from composer.core.retries import Retry
from composer.core.snapshot import Snapshot
from composer.core.states import RunStatus, TaskState
from composer.core.transition import Transition
from tests.builders import a_delivery, a_failure, a_plan, a_run, completed, failed, says, tried
from tests.core.model import ModelStore
from tests.core.semantics import NOT_BUILT_YET, ROWS

ROOT = Path(__file__).parents[2]


# -- the table ---------------------------------------------------------------------------------------------
def test_table_has_every_row_once():
    """All 80 rows are there, each either shown by a test or named as not built yet, and none both."""
    assert list(ROWS) == list(range(1, 81))
    shown = {number for number, row in ROWS.items() if row.test}
    assert shown.isdisjoint(NOT_BUILT_YET)
    assert shown | NOT_BUILT_YET == set(ROWS)
    assert len({row.scenario for row in ROWS.values()}) == len(ROWS)
    assert all(row.scenario.endswith(".") for row in ROWS.values())
    assert all(row.test or not row.open for row in ROWS.values())


@pytest.mark.parametrize("number", [number for number, row in ROWS.items() if row.test])
def test_row_has_the_test_it_names(number):
    """The test a row names is one that pytest collects, with a sentence of its own."""
    file, name = str(ROWS[number].test).split("::")
    assert Path(file).name.startswith("test_")
    assert name.startswith("test_")
    assert functions_of(ROOT / file).get(name), f"{name} in {file}"


@cache
def functions_of(path: Path) -> dict[str, str | None]:
    """The test functions of a file and their docstrings."""
    body = ast.parse(path.read_text()).body
    functions = [each for each in body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {each.name: ast.get_docstring(each) for each in functions}


def test_rows_shown_here_are_in_the_table():
    """No test of a row is left out of the table."""
    named = {row.test for row in ROWS.values()}
    here = [name for name in functions_of(Path(__file__)) if name.startswith("test_row_") and name[9].isdigit()]
    assert {f"tests/core/test_semantics.py::{name}" for name in here} <= named


# -- the rows ----------------------------------------------------------------------------------------------
def letters(store: ModelStore) -> str:
    """The run's letters, once everything that must hold does."""
    store.check()
    return store.run.letters.text


def ends(store: ModelStore) -> dict[str, str]:
    """Letter by node."""
    store.check()
    return {node.name: store.run.letters[node.index].value for node in store.plan.nodes}


def work(store: ModelStore, *fails: str, **outputs: str) -> ModelStore:
    """Every node that starts completes, but for those that are to fail, until the run ends."""
    while store.run.status is RunStatus.RUNNING:
        index = next(node for node, row in store.rows.items() if row.is_open)
        task, name = store.claim(index), store.plan.nodes[index].name
        store.apply([failed(task) if name in fails else completed(task, outputs.get(name, f'"{name}"'))])
        store.check()
    return store


def big(node: str = "input") -> dict[str, Any]:
    """The condition that something is over 5."""
    return says("gt", f"{node}/n", 5, kind="number")


def test_row_6_either_of_two_takes_the_first():
    """Of two branches that both completed, either() is the first argument's value, whichever ended first."""
    store = ModelStore.started(a_plan({"a": [], "b": []}, output="either:b,a"))
    store.apply([completed(store.claim(0), "1")])
    store.apply([completed(store.claim(1), "2")])
    assert (letters(store), store.output) == ("CC", "2")


def test_row_7_either_is_no_fallback():
    """either() over a branch that failed is skipped and the run fails by it; a condition on its outcome is the fallback."""
    store = work(ModelStore.started(a_plan({"a": [], "b": [], "c": ["either:a,b"]})), "b")
    assert ends(store) == {"a": "C", "b": "F", "c": "S"}
    assert (store.run.status, json.loads(store.error or "")["node"]) == (RunStatus.FAILED, "b")
    broken = says("eq", "settled:b/state", ("failed",), kind="text")
    nodes = {"b": [], "g": [], "spare": ["when:g"], "use": ["b", "unless:g"]}
    plan = a_plan(nodes, guards={"g": broken}, output="either:spare,use")
    store = work(ModelStore.started(plan), "b")
    assert ends(store) == {"b": "F", "g": "C", "spare": "C", "use": "S"}
    assert (store.run.status, store.output, store.error) == (RunStatus.COMPLETED, '"spare"', None)
    store = work(ModelStore.started(plan))
    assert ends(store) == {"b": "C", "g": "C", "spare": "S", "use": "C"}
    assert (store.run.status, store.output) == (RunStatus.COMPLETED, '"use"')


def test_row_8_either_of_nothing_is_skipped():
    """A node that reads either() of branches that were all skipped is skipped, and nothing has failed."""
    nodes = {"g": [], "a": ["when:g"], "b": ["when:g"], "c": ["either:a,b"]}
    store = ModelStore.started(a_plan(nodes, guards={"g": big()}), text='{"n": 1}')
    assert ends(store) == {"g": "C", "a": "S", "b": "S", "c": "S"}
    assert store.run.status is RunStatus.COMPLETED


def test_row_11_reader_in_a_block_not_taken():
    """A settled() reader that was skipped has handled nothing: the run fails by the node it would have read."""
    plan = a_plan({"a": [], "g": [], "b": ["settled:a", "when:g"]}, guards={"g": big()})
    store = work(ModelStore.started(plan, text='{"n": 1}'), "a")
    assert ends(store) == {"a": "F", "g": "C", "b": "S"}
    assert (store.run.status, json.loads(store.error or "")["node"]) == (RunStatus.FAILED, "a")
    assert work(ModelStore.started(plan, text='{"n": 6}'), "a").run.status is RunStatus.COMPLETED


def test_row_12_plain_reading_is_not_handling():
    """The plain reader is skipped, the settled() reader runs, and the run fails once everything has settled."""
    store = ModelStore.started(a_plan({"a": [], "b": ["a"], "c": ["settled:a"]}))
    store.apply([failed(store.claim(0))])
    assert (letters(store), store.run.status) == ("FSA", RunStatus.RUNNING)
    store.apply([completed(store.claim(2))])
    assert (letters(store), store.run.status) == ("FSC", RunStatus.FAILED)
    assert json.loads(store.error or "")["node"] == "a"


def test_row_13_after_is_order_only():
    """after(x) runs when x completed or was skipped, not when it failed; after(settled(x)) runs in each case."""
    store = ModelStore.started(
        a_plan({"a": [], "b": ["a"], "c": ["after:b"], "d": ["after:a"], "e": ["after:settled:a"]})
    )
    store.apply([failed(store.claim(0))])
    names = {node.name: store.run.letters[node.index].value for node in store.plan.nodes}
    assert names == {"a": "F", "b": "S", "c": "A", "d": "S", "e": "A"}
    store = ModelStore.started(a_plan({"x": [], "y": ["after:x"]}))
    store.apply([completed(store.claim(0))])
    assert letters(store) == "CA"


def test_row_18_readers_of_a_failed_node_are_skipped():
    """Everything that reads a failed node, directly or not, is skipped, and the run fails by that node once the rest is done."""
    store = ModelStore.started(a_plan({"a": [], "b": ["a"], "c": ["b"], "d": []}))
    store.apply([failed(store.claim(0))])
    assert store.run.status is RunStatus.RUNNING
    store.apply([completed(store.claim(store.plan.index["d"]))])
    assert {node.name: store.run.letters[node.index].value for node in store.plan.nodes} == {"a": "F", "b": "S", "c": "S", "d": "C"}  # fmt: skip
    store.check()
    assert store.run.status is RunStatus.FAILED
    assert json.loads(store.error or "")["node"] == "a"
    nodes = {"a": [], "g": [], "b": ["when:g"], "c": ["unless:g"]}
    store = work(ModelStore.started(a_plan(nodes, guards={"g": big("a")})), "a")
    assert ends(store) == {"a": "F", "g": "S", "b": "S", "c": "S"}
    assert (store.run.status, json.loads(store.error or "")["node"]) == (RunStatus.FAILED, "a")


def test_row_14_data_for_two_blocks():
    """One node's value may decide two blocks and be read in both; each condition is answered for itself."""
    guards = {"g": big("a"), "h": says("lt", "a/n", 100, kind="number")}
    nodes = {"a": [], "g": [], "h": [], "b": ["a", "when:g"], "c": ["a", "when:h"]}
    for n, expected in ((1, "CCCSC"), (50, "CCCCC"), (100, "CCCCS")):
        store = work(ModelStore.started(a_plan(nodes, guards=guards)), a=json.dumps({"n": n}))
        assert "".join(ends(store)[name] for name in nodes) == expected
        assert store.run.status is RunStatus.COMPLETED


@pytest.mark.parametrize(
    ("outer", "inner", "expected"), [(1, 9, "CSSSC"), (9, 1, "CCSCS"), (9, 9, "CCCSS"), (1, None, "CSSSC")]
)
def test_row_15_blocks_inside_blocks(outer, inner, expected):
    """An inner block is taken when both say yes; if the outer says no the inner is not even asked, nor its otherwise()."""
    nodes = {"g": [], "h": ["when:g"], "b": ["when:g", "when:h"], "c": ["when:g", "unless:h"], "d": ["unless:g"]}
    guards = {"g": says("gt", "input/a", 5, kind="number"), "h": says("gt", "input/b", 5, kind="number")}
    store = ModelStore.started(a_plan(nodes, guards=guards), text=json.dumps({"a": outer, "b": inner}))
    assert "".join(ends(work(store))[name] for name in nodes) == expected
    assert store.run.status is RunStatus.COMPLETED


def test_row_16_otherwise_is_the_other_answer():
    """otherwise() is taken when its condition said no; an else-if when those before said no and its own yes."""
    nodes = {"g": [], "h": ["unless:g"], "a": ["when:g"], "b": ["unless:g", "when:h"], "c": ["unless:g", "unless:h"]}
    guards = {"g": big(), "h": says("gt", "input/n", 3, kind="number")}
    taken = {}
    for n in (6, 4, 2):
        store = work(ModelStore.started(a_plan(nodes, guards=guards), text=json.dumps({"n": n})))
        taken[n] = [name for name in "abc" if ends(store)[name] == "C"]
        assert store.run.status is RunStatus.COMPLETED
    assert taken == {6: ["a"], 4: ["b"], 2: ["c"]}


def test_row_17_guard_over_a_skipped_value():
    """A condition that reads a skipped value is skipped with both branches; maybe() decides on the absence."""
    nodes = {"g": [], "x": ["when:g"], "h": [], "b": ["when:h"], "c": ["unless:h"]}
    store = ModelStore.started(a_plan(nodes, guards={"g": big(), "h": big("x")}), text='{"n": 1}')
    assert ends(store) == {"g": "C", "x": "S", "h": "S", "b": "S", "c": "S"}
    assert store.run.status is RunStatus.COMPLETED
    plan = a_plan(nodes, guards={"g": big(), "h": says("is_none", "maybe:x")})
    store = work(ModelStore.started(plan, text='{"n": 1}'))
    assert ends(store) == {"g": "C", "x": "S", "h": "C", "b": "C", "c": "S"}


def test_row_19_null_is_a_value():
    """A step that returned None has completed: its reader runs, and the output is null."""
    store = ModelStore.started(a_plan({"a": [], "b": ["a"]}, output="a"))
    store.apply([completed(store.claim(0), "null")])
    assert letters(store) == "CA"
    store.apply([completed(store.claim(1))])
    assert (store.run.status, store.output) == (RunStatus.COMPLETED, "null")


def test_row_29_deadline_stops_open_tasks():
    """At the deadline the run fails with code deadline, its open nodes and tasks are cancelled, completed ones stay."""
    store = ModelStore.started(a_plan({"a": [], "b": ["a"], "c": ["b"]}, timeout=90.0))
    store.apply([completed(store.claim(0))])
    body = store.claim(1)
    store.apply([DeadlinePassed()])
    assert letters(store) == "CXX"
    assert (store.run.status, store.rows[1].state) == (RunStatus.FAILED, TaskState.CANCELLED)
    error = json.loads(store.error or "")
    assert error["code"] == "deadline"
    assert "90 s" in error["message"]
    assert store.apply([completed(body)]).made is None


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (None, "null"),
        (7, "7"),
        ({"a": [{"$": {"ref": "a", "path": ["n"]}}, "x"]}, '{"a":[1,"x"]}'),
        ({"$": {"ref": "a"}}, '{"n": 1}'),
    ],
)
def test_row_32_output_is_a_template(output, text):
    """The run's output is nothing, a constant or a template with the nodes' outputs filled in."""
    store = ModelStore.started(a_plan({"a": []}, output=output))
    store.apply([completed(store.claim(0), '{"n": 1}')])
    assert store.output == text


def test_row_33_no_branch_no_output():
    """A run whose output is either() of branches that were all skipped fails with code no-output."""
    nodes = {"g": [], "a": ["when:g"], "b": ["a"]}
    store = ModelStore.started(a_plan(nodes, guards={"g": big()}, output="either:a,b"), text='{"n": 1}')
    assert ends(store) == {"g": "C", "a": "S", "b": "S"}
    assert (store.run.status, json.loads(store.error or "")["code"]) == (RunStatus.FAILED, "no-output")
    store = work(ModelStore.started(a_plan(nodes, guards={"g": big()}, output="maybe:b"), text='{"n": 1}'))
    assert (store.run.status, store.output) == (RunStatus.COMPLETED, "null")


def test_row_34_outcome_as_output():
    """A failed node that the output reads through settled() is an Outcome in it, and the run completes."""
    store = work(ModelStore.started(a_plan({"a": []}, output="settled:a")), "a")
    assert store.run.status is RunStatus.COMPLETED
    made = json.loads(store.output or "")
    assert (made["state"], made["value"], made["error"]["message"]) == ("failed", None, "no")
    assert store.error is None


def test_row_37_cancel_of_a_running_run():
    """A cancel ends the run at once, keeps what completed and cancels the rest; a second one changes nothing."""
    store = ModelStore.started(a_plan({"a": [], "b": ["a"], "c": ["b"]}))
    store.apply([completed(store.claim(0))])
    body = store.claim(1)
    assert store.apply([CancelRequested("enough")]).made is not None
    assert letters(store) == "CXX"
    assert store.run.status is RunStatus.CANCELLED
    assert json.loads(store.error or "") == {"code": "cancelled", "message": "enough"}
    assert store.apply([CancelRequested("again")]).made is None
    assert store.apply([completed(body)]).made is None


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
def test_row_39_cancel_of_an_ended_run(status):
    """A cancel of an ended run is ignored, and says how the run ended."""
    store = ModelStore(a_plan(), a_run("C", status))
    outcome = store.apply([CancelRequested()])
    assert outcome.made is None
    assert outcome.dropped[0][1] == f"the run is {status}"


def test_row_40_cancel_of_a_scheduled_run():
    """A cancelled scheduled run never had a task, and does not start any more."""
    store = ModelStore.started(a_plan(), scheduled=True)
    store.apply([CancelRequested()])
    assert letters(store) == "X"
    assert (store.run.status, store.rows) == (RunStatus.CANCELLED, {})
    assert store.apply([Started()]).made is None


@pytest.mark.parametrize("status", [status for status in RunStatus if status is not RunStatus.FAILED])
def test_row_47_retry_is_for_failed_runs(status):
    """A retry of a run that has not failed is ignored, with the run's status as the reason."""
    outcome = ModelStore(a_plan(), a_run("C", status)).apply([RetryRequested()])
    assert outcome.made is None
    assert outcome.dropped[0][1] == f"the run is {status.value}"


def test_row_48_retry_restarts_the_deadline():
    """A retry after a deadline asks for a new one, and what the deadline cancelled runs again."""
    store = ModelStore.started(a_plan({"a": [], "b": ["a"]}, timeout=5.0))
    store.claim(0)
    store.apply([DeadlinePassed()])
    made = store.apply([RetryRequested()]).made
    assert made is not None
    assert made.restarts
    assert letters(store) == "A."


def test_row_49_one_of_two_retries_wins():
    """Two retries decided on the same version: one commit fits, and the loser finds the run running."""
    store = ModelStore.started(a_plan())
    store.apply([failed(store.claim(0))])
    one, two = store.decide([RetryRequested()]), store.decide([RetryRequested()])
    store.commit(one)
    assert two.run.version == store.run.version, "its version is taken"
    outcome = store.apply([RetryRequested()])
    assert outcome.made is None
    assert outcome.dropped[0][1] == "the run is running"


def test_row_50_crash_is_no_failure():
    """A lost worker costs a crash, not an attempt or a failure, and the task waits as after a failure."""
    store = ModelStore.started(a_plan({"a": []}, every=NodeOptions(retries=Retry(2, "9s", jitter=0.0))))
    store.claim(0)
    made = store.apply([LeaseExpired(store.end_lease(0))]).made
    assert made is not None
    assert made.changes[0].delay == pytest.approx(9.0)
    row = store.rows[0]
    assert (row.state, row.attempt, row.failures, row.crashes) == (TaskState.DELAYED, 1, 0, 1)
    assert letters(store) == "A"


def test_row_53_snooze_costs_nothing():
    """A snoozed task comes back later with the same attempt, a new delivery and its checkpoint."""
    store = ModelStore.started(a_plan({"a": []}, every=tried(2)))
    store.apply([failed(store.claim(0))])
    store.wake(0)
    made = store.apply([StepSnoozed(store.claim(0), 60.0, '{"page":3}')]).made
    assert made is not None
    assert (made.changes[0].delay, made.changes[0].details) == (60.0, '{"page":3}')
    row = store.rows[0]
    assert (row.state, row.attempt, row.delivery, row.failures, row.crashes) == (TaskState.DELAYED, 2, 3, 1, 0)
    store.check()


def test_row_57_released_task_is_ready_at_once():
    """A task given back is ready with the same attempt, and nothing was spent."""
    store = ModelStore.started(a_plan())
    store.apply([StepReleased(store.claim(0), "1")])
    row = store.rows[0]
    assert (row.state, row.attempt, row.failures, row.crashes) == (TaskState.READY, 1, 0, 0)
    store.check()


def test_row_58_scheduled_run_waits():
    """A scheduled run has no task and hears no deadline; its start opens the roots and starts the deadline."""
    store = ModelStore.started(a_plan({"a": [], "b": ["a"]}, timeout=5.0), scheduled=True)
    assert letters(store) == ".."
    assert store.run.status is RunStatus.SCHEDULED
    assert store.apply([DeadlinePassed()]).made is None
    made = store.apply([Started()]).made
    assert made is not None
    assert made.restarts
    assert letters(store) == "A."
    assert store.apply([Started()]).made is None
    assert store.apply([Scheduled()]).made is None


def test_row_73_loser_decides_again():
    """Two branches that end at once both count: the second, decided on an older version, is decided again."""
    store = ModelStore.started(a_plan({"a": [], "b": [], "c": ["a", "b"]}))
    a, b = store.claim(0), store.claim(1)
    first, second = store.decide([completed(a)]), store.decide([completed(b)])
    store.commit(first)
    assert second.run.version != store.run.version + 1
    assert letters(store) == "CA."
    store.apply([completed(b)])
    assert letters(store) == "CCA"


def test_row_74_duplicates_and_stale_reports():
    """A report that comes again is ignored; one of an older delivery fails its fence while the new one runs."""
    store = ModelStore.started(a_plan({"a": [], "b": ["a"]}, every=tried(1, delay=0.0)))
    old = store.claim(0)
    store.apply([LeaseExpired(store.end_lease(0))])
    new = store.claim(0)
    assert store.apply([completed(old, "1")]).dropped[0][1] == "stale"
    assert store.apply([completed(new, "2")]).made is not None
    again = store.apply([completed(new, "2")])
    assert (again.made, again.dropped[0][1]) == (None, "node a is completed")
    assert store.value(0) == "2"
    store.check()


@pytest.mark.parametrize("type_", ["SystemExit", "KeyboardInterrupt", "GeneratorExit", "MyError"])
def test_row_78_any_exception_is_a_failed_attempt(type_):
    """An exception of any type is a failure of that type, retried within the budget."""
    store = ModelStore.started(a_plan({"a": []}, every=tried(2, delay=0.0)))
    store.apply([failed(store.claim(0), failure=a_failure("", type_))])
    assert store.rows[0].state is TaskState.READY
    store.apply([failed(store.claim(0), failure=a_failure("", type_))])
    store.check()
    assert json.loads(store.error or "")["type"] == type_


@pytest.mark.parametrize("text", ["", "\0", "\ud800", "\U0001f600", '"}', "x" * 100_000, "line\nline", "\x1b[31m"])
def test_row_79_any_text_can_be_stored(text):
    """Any type name, message and traceback survive as JSON that a database can hold, and the history shows 2,000 characters."""
    failure = a_failure(text, text or "E")
    stored = json.loads(failure.encode(node="a").encode())
    assert (stored["message"], stored["type"], stored["node"]) == (text, text or "E", "a")
    store = ModelStore.started(a_plan())
    made = store.apply([failed(store.claim(0), failure=failure)]).made
    assert isinstance(made, Transition)
    assert made.history_text.isascii()
    assert len(made.history["events"][0]["error"]) <= 2_000


def test_row_80_defaults():
    """A step is tried once without a timeout, a run has no deadline, and the third crash fails it."""
    plan = a_plan()
    options = plan.nodes[0].options
    assert (options.retries.attempts, options.timeout, plan.timeout, plan.fail_fast) == (1, None, None, False)
    store = ModelStore.started(plan)
    for state in (TaskState.DELAYED, TaskState.DELAYED, TaskState.FAILED):
        store.claim(0)
        store.apply([LeaseExpired(store.end_lease(0))])
        store.check()
        assert store.rows[0].state is state
        if state is TaskState.DELAYED:
            store.wake(0)
    assert store.run.status is RunStatus.FAILED


def test_unborn_run_ignores_reports():
    """Nothing can be reported of a run that has not begun."""
    store = ModelStore(a_plan(), Snapshot.unborn(1))
    assert store.apply([completed(a_delivery())]).made is None
