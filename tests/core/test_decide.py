"""decide(): what a batch of events makes of a run, case by case."""

from __future__ import annotations

import json
import math

import pytest

from composer.core.decide import decide, reset_nodes, stale_nodes
from composer.core.events import (
    CancelRequested,
    DeadlinePassed,
    Failure,
    FailureKind,
    LeaseExpired,
    RetryRequested,
    Scheduled,
    Started,
    StepReleased,
    StepSnoozed,
)
from composer.core.plan import INPUT, NodeOptions
from composer.core.retries import CEILING
from composer.core.snapshot import Snapshot
from composer.core.states import NodeState, RunStatus, TaskState
from composer.core.transition import Fence, NeedValues, Transition
from tests.builders import a_delivery, a_failure, a_plan, a_run, completed, failed, says, tried
from tests.core.model import ModelStore

CHAIN = a_plan({"a": [], "b": ["a"]})
PAIR = a_plan({"a": [], "b": []})


def one(decision: Transition | NeedValues) -> Transition:
    assert isinstance(decision, Transition)
    return decision


def test_start_opens_the_roots():
    """A run that starts has its nodes without needs active and everything else blocked."""
    made = one(decide(a_plan({"a": [], "b": ["a"], "c": []}), Snapshot.unborn(3), [Started()]))
    assert (made.run.status, made.run.version, made.run.letters.text) == (RunStatus.RUNNING, 1, "A.A")
    assert [start.node for start in made.starts] == [0, 2]
    assert made.history["status"] == "running"


def test_start_of_a_plan_without_nodes_completes():
    """A workflow without nodes is complete in its first transition."""
    made = one(decide(a_plan({}, output={"n": 1}), Snapshot.unborn(0), [Started()]))
    assert made.run.status is RunStatus.COMPLETED
    assert made.result is not None
    assert made.result.output == '{"n":1}'


def test_completion_opens_what_waited_for_it():
    """A completed node's readers become active in the same transition."""
    made = one(decide(CHAIN, a_run("A."), [completed(0)]))
    assert made.run.letters.text == "CA"
    assert [(c.node, c.state, c.output) for c in made.changes] == [(0, TaskState.COMPLETED, '"done"')]
    assert [s.node for s in made.starts] == [1]
    assert not made.is_rare


def test_output_is_asked_for_only_when_the_run_ends():
    """A decision that ends the run names the outputs it lacks, and gets by with those the events carry."""
    output = {"a": {"$": {"ref": "a"}}, "b": {"$": {"ref": "b"}}, "i": {"$": {"ref": "input", "path": ["n"]}}}
    plan = a_plan({"a": [], "b": ["a"]}, output=output)
    assert decide(plan, a_run("CA"), [completed(1, "2")]) == NeedValues((0, INPUT))
    made = one(decide(plan, a_run("CA"), [completed(1, "2")], {0: "1.10", INPUT: '{"n":3}'}))
    assert made.result is not None
    assert made.result.output == '{"a":1.10,"b":2,"i":3}'


def test_output_that_cannot_be_read_fails_the_run():
    """A run whose output names a field that is not there fails with code output-unreadable, naming the path."""
    plan = a_plan({"a": []}, output={"$": {"ref": "a", "path": ["x"]}})
    made = one(decide(plan, a_run("A"), [completed(0, '{"y":1}')]))
    assert made.run.status is RunStatus.FAILED
    assert made.result is not None
    error = json.loads(made.result.error or "")
    assert error["code"] == "output-unreadable"
    assert "a.x" in error["message"]


def test_output_of_a_skipped_node_fails_the_run():
    """A run whose output is read from a skipped node fails with code no-output, although no node failed unhandled."""
    went_well = says("eq", "settled:a/state", ("completed",), kind="text")
    store = ModelStore.started(a_plan({"a": [], "g": [], "b": ["a", "when:g"]}, guards={"g": went_well}, output="b"))
    store.apply([failed(store.claim(0))])
    store.check()
    assert store.run.status is RunStatus.FAILED
    assert json.loads(store.error or "")["code"] == "no-output"


def test_first_failure_of_a_batch_is_the_first_in_the_plan():
    """Of two nodes that fail in one batch, the one that comes first in the plan is the run's failure, in either order."""
    for events in ([failed(0), failed(1)], [failed(1), failed(0)]):
        made = one(decide(PAIR, a_run("AA"), events))
        assert made.run.counters.first_failure == 0
        assert made.result is not None
        assert json.loads(made.result.error or "")["node"] == "a"


def test_first_failure_stays_over_later_ones():
    """A later failure does not replace the first one, even where it comes first in the plan."""
    store = ModelStore.started(PAIR)
    store.apply([failed(store.claim(1))])
    store.apply([failed(store.claim(0))])
    assert store.run.counters.first_failure == 1
    assert json.loads(store.error or "")["node"] == "b"


def test_fail_fast_stops_the_rest():
    """With fail_fast the first failure cancels every open node and task at once."""
    plan = a_plan({"a": [], "b": [], "c": ["b"]}, fail_fast=True)
    made = one(decide(plan, a_run("AA."), [failed(0)]))
    assert made.run.status is RunStatus.FAILED
    assert made.run.letters.text == "FXX"
    assert made.stops_open_tasks
    assert made.is_rare


def test_retry_within_the_budget_waits_for_the_policy():
    """A failure within the budget delays the task by the policy, spends one failure and leaves the node active."""
    plan = a_plan({"a": []}, every=tried(3, delay=10.0, backoff=3.0))
    made = one(decide(plan, a_run("A"), [failed(a_delivery(failures=1, attempt=2, delivery=5))]))
    change = made.changes[0]
    assert (change.state, change.delay) == (TaskState.DELAYED, pytest.approx(30.0))
    assert (change.attempt_add, change.failures_add, change.crashes_add, change.delivery_add) == (1, 1, 0, 0)
    assert (change.attempt, change.delivery, change.fence) == (2, 5, Fence.REPORT)
    assert made.run.letters.text == "A"


def test_retry_after_replaces_the_policys_delay():
    """The delay a step asks for is taken as it is."""
    plan = a_plan({"a": []}, every=tried(2, delay=10.0))
    assert one(decide(plan, a_run("A"), [failed(0, retry_after=77.0)])).changes[0].delay == 77.0


@pytest.mark.parametrize("delay", [math.inf, 1e300, 1e12, math.nan, -1.0, -math.inf])
def test_delays_a_step_asks_for_stay_in_the_calendar(delay):
    """A step that asks to wait for ever, for less than nothing or for no number still has a next moment, and a history."""
    plan = a_plan({"a": []}, every=tried(2))
    for event in (failed(0, retry_after=delay), StepSnoozed(a_delivery(), delay)):
        made = one(decide(plan, a_run("A"), [event]))
        change = made.changes[0]
        if delay > 0:
            assert (change.state, change.delay) == (TaskState.DELAYED, CEILING)
        else:
            assert (change.state, change.delay) == (TaskState.READY, None)
        assert json.loads(made.history_text)


def test_history_holds_any_text():
    """A reason or a message with half a surrogate pair or a NUL in it does not make the history row unwritable."""
    weird = "caf\udce9 \0 é"
    for event in (CancelRequested(weird), failed(0, failure=a_failure(weird))):
        text = one(decide(a_plan(), a_run("A"), [event])).history_text
        entry = json.loads(text)["events"][0]
        assert weird in entry.get("reason", "") + entry.get("error", "")
        assert text.isascii()
        assert "\0" not in text


def test_not_retryable_fails_at_once():
    """A failure that says it is final fails the node with budget left."""
    made = one(decide(a_plan({"a": []}, every=tried(9)), a_run("A"), [failed(0, retryable=False)]))
    assert made.changes[0].state is TaskState.FAILED
    assert made.run.status is RunStatus.FAILED


@pytest.mark.parametrize("attempts", [1, 2, 3])
@pytest.mark.parametrize("most", [1, 2, 3])
def test_crash_budget_bounds_the_starts(attempts, most):
    """A step that always loses its worker starts max_crashes + attempts - 1 times."""
    options = NodeOptions(retries=tried(attempts, delay=0.0).retries, max_crashes=most)
    store = ModelStore.started(a_plan({"a": []}, every=options))
    starts = 0
    while store.run.status is RunStatus.RUNNING:
        store.claim(0)
        starts += 1
        store.apply([LeaseExpired(store.end_lease(0))])
        store.check()
    assert starts == most + attempts - 1
    assert json.loads(store.error or "")["kind"] == "worker-lost"


@pytest.mark.parametrize("attempts", [1, 3])
def test_crash_of_a_step_that_must_not_crash_is_a_failure(attempts):
    """With on_crash="fail" every lost worker is a failure under the retry policy."""
    options = NodeOptions(retries=tried(attempts, delay=0.0).retries, on_crash="fail")
    store = ModelStore.started(a_plan({"a": []}, every=options))
    for _ in range(attempts):
        store.claim(0)
        store.apply([LeaseExpired(store.end_lease(0))])
        store.check()
    assert store.run.status is RunStatus.FAILED
    assert (store.rows[0].failures, store.rows[0].crashes) == (attempts, attempts)


def test_late_report_is_heard_until_the_task_is_claimed_again():
    """A result that comes after its lease was ended counts while the task is ready, and not once it is claimed."""
    for claimed in (False, True):
        store = ModelStore.started(a_plan({"a": []}, every=tried(1, delay=0.0)))
        task = store.claim(0)
        store.apply([LeaseExpired(store.end_lease(0))])
        if claimed:
            store.claim(0)
        outcome = store.apply([completed(task)])
        assert (outcome.made is None) == claimed
        assert (store.run.status is RunStatus.COMPLETED) != claimed
        store.check()


def test_batch_takes_the_newest_delivery_of_a_task():
    """Of two deliveries of one task in one batch the newer one counts, in either order: the older one cannot be current."""
    for turned in (False, True):
        store = ModelStore.started(a_plan({"a": []}, every=tried(1, delay=0.0)))
        old = store.claim(0)
        store.apply([LeaseExpired(store.end_lease(0))])
        new = store.claim(0)
        events = [completed(old, "1"), completed(new, "2")]
        outcome = store.apply(events[::-1] if turned else events)
        assert [event for event, _ in outcome.dropped] == [events[0]]
        assert store.value(0) == "2"


def test_batch_prefers_a_report_to_the_expiry_of_its_lease():
    """A report and the expiry of the same delivery in one batch: the report counts, in either order."""
    expired, report = LeaseExpired(a_delivery()), completed(0)
    for events in ([expired, report], [report, expired]):
        made = one(decide(a_plan(), a_run("A"), events))
        assert made.run.status is RunStatus.COMPLETED
        assert [event for event, _ in made.ignored] == [expired]


def test_batch_takes_one_report_a_delivery():
    """Of two reports of one delivery in one batch the first counts and the second is ignored with a reason."""
    first, second = failed(0), completed(0)
    made = one(decide(a_plan({"a": []}, every=tried(2)), a_run("A"), [first, second]))
    assert made.run.letters.text == "A"
    assert [event for event, _ in made.ignored] == [second]
    assert made.ignored[0][1]


def test_batch_ignores_reports_of_tasks_it_opens_itself():
    """A report of a task that the same batch opens cannot be true yet, and is ignored."""
    early = completed(1)
    made = one(decide(CHAIN, a_run("A."), [completed(0), early]))
    assert made.run.letters.text == "CA"
    assert [event for event, _ in made.ignored] == [early]


def test_batch_that_stops_keeps_what_was_reported_before():
    """A result before the cancel in a batch is kept, a retry before it is cancelled, and a report behind it ignored."""
    plan = a_plan({"a": [], "b": [], "c": [], "d": ["a"]}, every=tried(2))
    late = completed(2)
    made = one(decide(plan, a_run("AAA."), [completed(0), failed(1), CancelRequested("enough"), late]))
    assert made.run.letters.text == "CXXX"
    assert [(c.node, c.state) for c in made.changes] == [(0, TaskState.COMPLETED), (1, TaskState.CANCELLED)]
    assert made.changes[1].delay is None
    assert made.starts == []
    assert [event for event, _ in made.ignored] == [late]


@pytest.mark.parametrize("stop", [CancelRequested(), DeadlinePassed()])
def test_batch_that_ends_the_run_is_not_stopped_afterwards(stop):
    """A cancel or deadline behind the last result of a batch finds the run ended, as it would in a batch of its own."""
    made = one(decide(a_plan(), a_run("A"), [completed(0), stop]))
    assert made.run.status is RunStatus.COMPLETED
    assert [event for event, _ in made.ignored] == [stop]
    made = one(decide(a_plan({}), Snapshot.unborn(0), [Scheduled(), CancelRequested()]))
    assert made.run.status is RunStatus.CANCELLED


@pytest.mark.parametrize("end", [DeadlinePassed(), failed(0)])
def test_retry_in_the_batch_that_ends_the_run_is_ignored(end):
    """A run that ends in a batch is not opened again in the same one: no task is ended and opened in one transition."""
    plan = a_plan({"a": [], "b": []}, fail_fast=True)
    retry = RetryRequested()
    made = one(decide(plan, a_run("AA"), [end, retry]))
    assert made.run.status is RunStatus.FAILED
    assert [event for event, _ in made.ignored] == [retry]


def test_retry_and_cancel_in_one_batch_open_nothing():
    """A retry that is cancelled in the same batch starts nothing and sets no new deadline."""
    made = one(decide(a_plan(), a_run("F", "failed", first_failure=0), [RetryRequested(), CancelRequested()]))
    assert made.run.status is RunStatus.CANCELLED
    assert not made.starts
    assert not made.restarts


def test_retry_keeps_what_completed():
    """A retry opens the failed node again, blocks what was skipped and leaves completed nodes alone."""
    plan = a_plan({"a": [], "b": ["a"], "c": ["b"]})
    made = one(decide(plan, a_run("CFS", "failed", version=7, first_failure=1), [RetryRequested()]))
    assert (made.run.status, made.run.version, made.run.letters.text) == (RunStatus.RUNNING, 8, "CA.")
    assert [(start.node, start.reopened) for start in made.starts] == [(1, True)]
    assert made.restarts
    assert made.is_rare
    assert made.history["reset"] == ["b", "c"]
    assert made.run.counters.first_failure == -1
    assert made.result is not None
    assert made.result.error is None


def test_retry_reopens_tasks_that_start_again_later():
    """A task left over from before a retry is opened again, not anew, also when its turn comes transitions later."""
    plan = a_plan({"u": [], "x": ["u"], "y": ["after:x"]})
    store = ModelStore.started(plan)
    store.apply([failed(store.claim(0))])
    y = plan.index["y"]
    store.apply([failed(store.claim(y))])
    assert store.run.letters.text == "FSF"
    store.apply([RetryRequested()])
    store.check()
    assert store.run.letters.text == "A.."
    store.apply([completed(store.claim(0))])
    store.apply([completed(store.claim(1))])
    store.check()
    assert (store.rows[y].attempt, store.rows[y].failures) == (2, 0)
    store.apply([completed(store.claim(y))])
    store.check()
    assert store.run.status is RunStatus.COMPLETED


def test_retry_with_nothing_to_run_ends_at_once():
    """A retry of a run that failed without a failed node ends it again, with a version of its own and no new deadline."""
    plan = a_plan({"a": []}, output={"$": {"ref": "a", "path": ["x"]}})
    made = one(decide(plan, a_run("C", "failed", version=3), [RetryRequested()], {0: "{}"}))
    assert (made.run.status, made.run.version) == (RunStatus.FAILED, 4)
    assert not made.restarts


def test_rerun_stale_runs_completed_readers_again():
    """With rerun_stale the completed nodes that read data of a reset node run again, those merely after it do not."""
    plan = a_plan({"a": [], "b": ["settled:a"], "c": ["b"], "d": ["after:b"], "e": ["a"]})
    letters = "FCCCS"
    assert [plan.nodes[i].name for i in stale_nodes(plan, letters)] == ["b", "c"]
    assert reset_nodes(plan, letters) == [0, 4]
    run = a_run(letters, "failed", first_failure=0)
    made = one(decide(plan, run, [RetryRequested(rerun_stale=True)]))
    assert made.run.letters.text == "A..C."


def test_deadline_counts_from_the_real_start():
    """A deadline says nothing to a run that has not started; one that starts late gets its deadline then."""
    scheduled = one(decide(a_plan(timeout=5.0), Snapshot.unborn(1), [Scheduled()])).run
    early = DeadlinePassed()
    made = one(decide(a_plan(timeout=5.0), scheduled, [early]))
    assert made.is_empty
    assert made.ignored == [(early, "the run has not started")]
    assert one(decide(a_plan(timeout=5.0), scheduled, [Started()])).restarts


def test_snooze_and_release_cost_nothing():
    """A snoozed task and one given back keep attempt, failures and crashes, and get a new delivery."""
    for event, state in (
        (StepSnoozed(a_delivery(), 5.0, '{"at":3}'), TaskState.DELAYED),
        (StepReleased(a_delivery(), '{"at":3}'), TaskState.READY),
    ):
        change = one(decide(a_plan(), a_run("A"), [event])).changes[0]
        assert (change.state, change.details, change.delivery_add) == (state, '{"at":3}', 1)
        assert (change.attempt_add, change.failures_add, change.crashes_add) == (0, 0, 0)


def test_attempt_record_says_how_the_delivery_ended():
    """The history entry of a delivery carries node, attempt, delivery, worker, claim time, outcome and error."""
    task = a_delivery(0, 2, 4, failures=1, worker="w-1", claimed_at=12.3456789)
    failure = Failure(FailureKind.TIMEOUT, "StepTimeout", "too long")
    entry = one(decide(a_plan(), a_run("A"), [failed(task, failure=failure)])).history["events"][0]
    assert entry == {
        "event": "step-failed", "outcome": "failed", "node": "a", "attempt": 2, "delivery": 4, "worker": "w-1",
        "claimed_at": 12.345679, "failures": 2, "kind": "timeout", "error": "StepTimeout: too long",
    }  # fmt: skip


def test_word_of_every_letter():
    """Every node state has a word for people, and no two share one."""
    assert len({state.word for state in NodeState}) == len(NodeState)
    assert NodeState.UNDO_FAILED.word == "undo failed"
