"""Waits, sleeps and races as a decision sees them: what begins, what ends it, and what a retry makes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from composer.core.decide import explain, reset_nodes, stale_nodes
from composer.core.events import CancelRequested, Event, RetryRequested, Signalled, TimerFired
from composer.core.kinds import race, sleep, wait
from composer.core.plan import Plan
from composer.core.states import NodeState, RunStatus, TaskState
from composer.core.transition import Transition
from tests.builders import a_delivery, completed, failed
from tests.core.model import ModelStore

AT = "2026-01-01T00:00:00Z"
A: dict[str, Any] = {"name": "a", "kind": "step", "step": "a", "args": {}}


def flow(*nodes: dict[str, Any], output: Any = None) -> ModelStore:
    """A run of these nodes that has started."""
    return ModelStore.started(
        Plan({"format": 1, "workflow": "flow", "params": {}, "nodes": list(nodes), "output": output})
    )


def a_wait(name: str = "w", *, timeout: float | None = None, after: str | None = None, **more: Any) -> dict[str, Any]:
    """A wait for "go"."""
    return {"name": name, "kind": "wait", "event": "go", "schema": {}, "timeout": timeout, "args": {}, **_after(after), **more}  # fmt: skip


def a_sleep(name: str = "s", *, after: str | None = None, **args: Any) -> dict[str, Any]:
    """A sleep: `length=` seconds, or `until=` a moment."""
    found = {"for" if key == "length" else key: value for key, value in args.items()}
    return {"name": name, "kind": "sleep", "args": found, **_after(after)}


def a_race(*of: str) -> dict[str, Any]:
    """A race between nodes."""
    return {"name": "r", "kind": "race", "of": [{"ref": each} for each in of]}


def a_step(name: str, *, after: str | None = None, **args: Any) -> dict[str, Any]:
    """A step, with what it reads."""
    return {"name": name, "kind": "step", "step": name, "args": args, **_after(after)}


def _after(name: str | None) -> dict[str, Any]:
    return {"after": [{"ref": name}]} if name else {}


def ref(name: str) -> dict[str, Any]:
    """A node's value."""
    return {"$": {"ref": name}}


def happens(store: ModelStore, *events: Event) -> Transition:
    """The events, all of which count, as one batch."""
    outcome = store.apply(events)
    store.check()
    assert outcome.dropped == []
    assert outcome.made is not None
    return outcome.made


def ignored(store: ModelStore, event: Event) -> str:
    """Why the event changes nothing."""
    before = store.run
    outcome = store.apply([event])
    assert outcome.made is None
    assert store.run == before
    return outcome.dropped[0][1]


def ran(store: ModelStore, name: str, output: str = "1") -> Transition:
    """The step completes."""
    return happens(store, completed(store.claim(store.plan.index[name]), output))


def ends(store: ModelStore) -> dict[str, str]:
    """Letters by name."""
    return {node.name: store.run.letters[node.index] for node in store.plan.nodes}


def fired(store: ModelStore, name: str) -> TimerFired:
    """The timer that the node has now."""
    index = store.plan.index[name]
    return TimerFired(index, AT, store.rows[index].attempt)


# -- waits -----------------------------------------------------------------------------------------------------
def test_wait_begins_with_a_timer_only_if_it_can_time_out():
    """A wait is a task for nobody: looked at when its timeout is over, or never if it has none."""
    store = flow(a_wait("w", timeout=60.0), a_wait("x"))
    assert ends(store) == {"w": "W", "x": "W"}
    assert [store.rows[i].state for i in (0, 1)] == [TaskState.WAITING] * 2
    assert [store.rows[i].has_timer for i in (0, 1)] == [True, False]


@pytest.mark.parametrize("payload", ["null", '"x"', '{"a":1}', "0"])
def test_event_is_the_value_of_its_wait(payload):
    """Any JSON is a payload, null like the others, and what reads the wait starts in the same transition."""
    store = flow(a_wait(), a_step("b", x=ref("w")))
    made = happens(store, Signalled("go", payload))
    assert ends(store) == {"w": "C", "b": "A"}
    assert store.rows[0].output == payload
    assert [start.node for start in made.starts] == [1]
    assert [(signal.payload, signal.node) for signal in made.signals] == [(payload, 0)]
    assert store.run.counters.timed_out == ()


def test_timeout_without_a_stand_in_fails_the_run():
    """It is a failure of the wait, with code event-timeout, and is not retried by itself."""
    store = flow(a_wait(timeout=60.0), a_step("b", x=ref("w")))
    happens(store, fired(store, "w"))
    assert ends(store) == {"w": "F", "b": "S"}
    assert store.run.status is RunStatus.FAILED
    error = json.loads(store.error or "")
    assert (error["code"], error["node"]) == ("event-timeout", "w")
    assert "'go' did not come within 60 s" in error["message"]


def test_stand_in_is_told_from_an_event():
    """The stand-in answer is the value, and settled() says that it timed out; the same value sent does not."""
    nodes = a_wait(timeout=60.0, on_timeout={"const": None}), a_step("b", o={"$": {"settled": [{"ref": "w"}]}})
    output = {"$": {"settled": [{"ref": "w"}], "path": ["state"]}}
    late, sent = flow(*nodes, output=output), flow(*nodes, output=output)
    happens(late, fired(late, "w"))
    happens(sent, Signalled("go", "null"))
    assert (late.rows[0].output, sent.rows[0].output) == ("null", "null")
    for store, word in (late, "timed-out"), (sent, "completed"):
        ran(store, "b")
        assert store.output == json.dumps(word)


def test_event_before_its_wait_is_taken_as_the_wait_begins():
    """Kept ones are taken in the order they came, in the transition that would begin the wait: no task ever waits."""
    store = flow(A, a_wait(after="a"), a_wait("x", after="w"))
    happens(store, Signalled("go", "1"))
    happens(store, Signalled("go", "2"))
    made = ran(store, "a")
    assert ends(store) == {"a": "C", "w": "C", "x": "C"}
    w, x = store.plan.index["w"], store.plan.index["x"]
    assert (store.rows[w].output, store.rows[x].output) == ("1", "2")
    assert [node for _, node in made.taken] == [w, x]
    assert all(start.output is not None and not start.waits for start in made.starts)
    assert store.run.status is RunStatus.COMPLETED


@pytest.mark.parametrize("signal_first", [True, False])
def test_event_in_the_batch_that_begins_its_wait(signal_first):
    """One batch may hold the end of a step and the event for the wait behind it, in either order: it is taken, once."""
    store = flow(A, a_wait(after="a"))
    events: list[Event] = [completed(store.claim(0)), Signalled("go", "7")]
    made = happens(store, *(reversed(events) if signal_first else events))
    assert ends(store) == {"a": "C", "w": "C"}
    assert (store.rows[1].state, store.rows[1].output) == (TaskState.COMPLETED, "7")
    assert [(signal.payload, signal.node) for signal in made.signals] == [("7", 1)]


def test_two_waits_take_events_in_the_order_they_began():
    """Of two that wait for a name the one that began first takes the first event, though it comes later in the plan."""
    store = flow(A, a_wait("u", after="a"), a_wait("w"))
    ran(store, "a")
    happens(store, Signalled("go", "1"))
    assert ends(store) == {"a": "C", "u": "W", "w": "C"}
    happens(store, Signalled("go", "2"))
    assert store.rows[store.plan.index["u"]].output == "2"
    assert store.run.counters.waiting == ()


def test_two_waits_of_one_decision_take_events_in_plan_order():
    """Where two began in one decision the plan's order counts."""
    store = flow(a_wait("w"), a_wait("x"))
    happens(store, Signalled("go", "1"), Signalled("go", "2"))
    assert [store.rows[i].output for i in (0, 1)] == ["1", "2"]


def test_event_with_a_known_id_changes_nothing():
    """Of one dedupe id only the first counts: in one batch, in two, kept or taken. Without an id each counts."""
    store = flow(A, a_wait(after="a"), a_wait("x", after="w"), a_wait("y", after="x"))
    outcome = store.apply([Signalled("go", "1", "id"), Signalled("go", "2", "id")])
    assert [reason for _, reason in outcome.dropped] == ["a signal with this dedupe id was accepted before"]
    assert "accepted before" in ignored(store, Signalled("go", "3", "id"))
    ran(store, "a")
    assert ends(store) == {"a": "C", "w": "C", "x": "W", "y": "."}
    assert "accepted before" in ignored(store, Signalled("go", "4", "id"))
    happens(store, Signalled("go", "5"), Signalled("go", "5"))
    assert store.run.status is RunStatus.COMPLETED


def test_event_nobody_waits_for_is_refused():
    """A name that the workflow does not know is ignored with the name, and so is any event to a run that has ended."""
    store = flow(a_wait())
    assert "waits for no event 'stop'" in ignored(store, Signalled("stop", "1"))
    happens(store, CancelRequested("no"))
    assert ignored(store, Signalled("go", "1")) == "the run is cancelled"


@pytest.mark.parametrize("ended_by", ["event", "cancel"])
def test_timer_after_the_end_changes_nothing(ended_by):
    """A timer that fires when its wait has ended, or its run was cancelled, is ignored and says why."""
    store = flow(a_wait(timeout=60.0), a_step("b", after="w"))
    timer = fired(store, "w")
    happens(store, Signalled("go", "1") if ended_by == "event" else CancelRequested("no"))
    reason = ignored(store, timer)
    assert reason == ("node w is completed" if ended_by == "event" else "the run is cancelled")


# -- sleeps ----------------------------------------------------------------------------------------------------
def test_sleep_is_the_moment_it_ended():
    """Its value is what the timer's event says, and what comes after it starts with it."""
    store = flow(a_sleep(length=60), a_step("b", x=ref("s")))
    assert (ends(store), store.rows[0].has_timer) == ({"s": "W", "b": "."}, True)
    happens(store, fired(store, "s"))
    assert ends(store) == {"s": "C", "b": "A"}
    assert store.rows[0].output == json.dumps(AT)


@pytest.mark.parametrize("length", ["0", "-5", "-1e300", '"-P1D"', '"PT0S"'])
def test_sleep_of_nothing_is_over_in_the_same_decision(length):
    """Nothing and less is no pause, and takes no task."""
    store = flow(A, a_sleep(length=ref("a")), a_step("b", after="s"))
    made = ran(store, "a", length)
    assert ends(store) == {"a": "C", "s": "C", "b": "A"}
    assert [start.node for start in made.starts] == [store.plan.index["b"]]


@pytest.mark.parametrize("length", ["-5", "0"])
def test_sleep_of_nothing_whose_end_is_read_is_stamped_at_once(length):
    """Where its value is read, the store has to say when that was: it is due at once."""
    store = flow(A, a_sleep(length=ref("a")), a_step("b", x=ref("s")))
    (start,) = ran(store, "a", length).starts
    assert (start.waits, start.wake_in) == (True, 0.0)


@pytest.mark.parametrize(
    ("length", "seconds"), [("0.25", 0.25), ('"PT0.5S"', 0.5), ('"P400D"', 400 * 86_400.0), ("3155760000", 3_155_760_000.0)]
)  # fmt: skip
def test_sleep_of_numbers_and_durations(length, seconds):
    """Seconds, or a duration as it is stored: from a fraction of a second to a century."""
    store = flow(A, a_sleep(length=ref("a")))
    (start,) = ran(store, "a", length).starts
    assert (start.waits, start.wake_in, start.wake_at) == (True, seconds, None)


@pytest.mark.parametrize(
    ("length", "says"),
    [
        ("3155760001", "3155760001 is longer than a century"),
        ("1e300", "1e+300 is longer than a century"),
        ("1" + "0" * 400, "hundreds of digits"),
        ("-1" + "0" * 400, "hundreds of digits"),
        ("1e400", "longer than a century"),
        ("null", "expected a number, got null"),
        ("true", "expected a number, got true"),
        ('"soon"', "expected a duration"),
        ('"P99999999999D"', "expected a duration"),
    ],
)
def test_impossible_length_fails_the_sleep(length, says):
    """What is no length fails the node and not the decision, in words that name the node and the value, and are short."""
    store = flow(A, a_sleep(length=ref("a")), a_step("b", after="s"))
    ran(store, "a", length)
    assert ends(store) == {"a": "C", "s": "F", "b": "S"}
    message = json.loads(store.error or "")["message"]
    assert message.startswith("sleep s: ")
    assert says in message
    assert len(message) < 200


@pytest.mark.parametrize(
    ("moment", "utc"),
    [
        ("2031-05-01T12:00:00Z", "2031-05-01T12:00:00+00:00"),
        ("2031-05-01T12:00:00.5+02:00", "2031-05-01T10:00:00.500000+00:00"),
        ("2031-05-01T12:00:00+23:00", "2031-04-30T13:00:00+00:00"),
        ("2031-05-01T12:00:00-23:59", "2031-05-02T11:59:00+00:00"),
        ("1999-01-01T00:00:00Z", "1999-01-01T00:00:00+00:00"),
    ],
)
def test_moment_is_told_the_store_in_utc(moment, utc):
    """A moment may have any offset; the store gets it in UTC, which it can take in any case. Past ones are due at once there."""
    store = flow(A, a_sleep(until=ref("a")))
    (start,) = ran(store, "a", json.dumps(moment)).starts
    assert (start.waits, start.wake_at, start.wake_in) == (True, utc, None)


@pytest.mark.parametrize(
    ("moment", "says"),
    [
        ('"2031-05-01T12:00:00"', "has no time zone"),
        ('"2031-05-01"', "has no time zone"),
        ('"0001-01-01T00:00:00+05:00"', "no moment to sleep until"),
        ('"9998-12-31T23:00:00-05:00"', "no moment to sleep until"),
        ('"9999-12-31T23:00:00-05:00"', "no moment to sleep until"),
        ("5", "expected a date and time"),
        ("null", "expected a date and time"),
    ],
)
def test_impossible_moment_fails_the_sleep(moment, says):
    """Without a zone nobody knows the moment; outside of the calendar there is none."""
    store = flow(A, a_sleep(until=ref("a")))
    ran(store, "a", moment)
    assert ends(store) == {"a": "C", "s": "F"}
    assert says in json.loads(store.error or "")["message"]


# -- races -----------------------------------------------------------------------------------------------------
def test_race_has_the_value_of_the_first():
    """Whichever ends first gives the race its value; the other is skipped, its task withdrawn, and its timer means nothing."""
    for wins in ("w", "s"):
        store = flow(a_sleep(length=60), a_wait(timeout=90.0), a_race("w", "s"), a_step("b", x=ref("r")))
        loses = "s" if wins == "w" else "w"
        timer = fired(store, loses)
        happens(store, Signalled("go", '"x"') if wins == "w" else fired(store, "s"))
        assert ends(store) == {wins: "C", loses: "S", "r": "C", "b": "A"}
        rows = {node.name: store.rows[node.index] for node in store.plan.nodes if node.index in store.rows}
        assert (rows["r"].output, rows[loses].state) == (rows[wins].output, TaskState.WITHDRAWN)
        assert ignored(store, timer) == f"node {loses} is skipped"


def test_event_for_the_loser_of_a_race_is_kept():
    """An event that comes when its wait has lost is for the next wait of the name."""
    store = flow(a_sleep(length=60), a_wait(), a_race("w", "s"), a_step("b", after="r"), a_wait("x", after="b"))
    happens(store, fired(store, "s"))
    happens(store, Signalled("go", "1"))
    ran(store, "b")
    assert ends(store) == {"s": "C", "w": "S", "r": "C", "b": "C", "x": "C"}


def test_race_does_not_wait_for_those_that_have_not_begun():
    """One that has not come to its turn is skipped when another has won, and never begins."""
    store = flow(A, a_sleep(length=60, after="a"), a_wait(), a_race("w", "s"))
    happens(store, Signalled("go", "1"))
    ran(store, "a")
    assert ends(store) == {"a": "C", "w": "C", "s": "S", "r": "C"}
    assert store.plan.index["s"] not in store.rows


def test_race_in_one_batch_has_one_winner():
    """When both ends are in one batch the first in it wins, and the other one is ignored."""
    store = flow(a_sleep(length=60), a_wait(), a_race("w", "s"))
    outcome = store.apply([fired(store, "s"), Signalled("go", "1")])
    assert outcome.made is not None
    assert ends(store) == {"s": "C", "w": "S", "r": "C"}
    assert store.run.status is RunStatus.COMPLETED
    store.check()


# -- retries ---------------------------------------------------------------------------------------------------
def a_lost_race(**more: Any) -> ModelStore:
    """A run that failed after a race whose sleep, of the length that step a gave, had won."""
    store = flow(A, a_sleep(length=ref("a")), a_wait(**more), a_race("w", "s"), a_step("b", after="r"))
    ran(store, "a", "60")
    happens(store, fired(store, "s"))
    happens(store, failed(store.claim(store.plan.index["b"])))
    assert store.run.status is RunStatus.FAILED
    return store


def test_retry_leaves_a_race_that_was_won():
    """What lost stays skipped: the retry waits for no event that the run had decided to do without."""
    store = a_lost_race()
    names = [store.plan.nodes[i].name for i in reset_nodes(store.plan, store.run.letters.text)]
    assert names == ["b"]
    assert stale_nodes(store.plan, store.run.letters.text) == []
    happens(store, RetryRequested())
    assert ends(store) == {"a": "C", "s": "C", "w": "S", "r": "C", "b": "A"}
    ran(store, "b")
    assert store.run.status is RunStatus.COMPLETED


def test_retry_leaves_the_answer_about_who_won():
    """A condition on who won is not asked again either, and its block stays as it was."""
    plan = [
        a_sleep(length=60), a_wait(), a_race("w", "s"),
        {"name": "g", "kind": "guard", "args": {"condition": {"$": {"op": "is_none", "args": [{"maybe": [{"ref": "w"}]}]}}}},
        a_step("b") | {"when": [{"guard": "g", "is": True}]},
    ]  # fmt: skip
    store = flow(*plan)
    happens(store, fired(store, "s"))
    happens(store, failed(store.claim(store.plan.index["b"])))
    happens(store, RetryRequested())
    assert ends(store) == {"s": "C", "w": "S", "r": "C", "g": "C", "b": "A"}


def test_race_whose_winner_runs_again_is_run_again():
    """With rerun_stale a winner that reads what is reset sleeps again, and then all of the race is open again."""
    nodes = (A, a_sleep(length=ref("a")), a_wait(), a_race("w", "s"), a_step("b", x=ref("r")))
    plan = flow(*nodes).plan
    letters = {"a": "F", "s": "C", "w": "S", "r": "C", "b": "C"}
    text = "".join(letters[node.name] for node in plan.nodes)
    assert [plan.nodes[i].name for i in reset_nodes(plan, text)] == ["a"]
    again = {plan.nodes[i].name for i in reset_nodes(plan, text, rerun_stale=True)}
    assert again == {"a", "s", "w", "r", "b"}
    assert {plan.nodes[i].name for i in stale_nodes(plan, text)} == {"s", "r", "b"}


def test_wait_that_failed_waits_again_after_a_retry():
    """A wait that timed out begins again with its whole timeout, and the old timer is not its timer."""
    store = flow(a_wait(timeout=60.0))
    old = fired(store, "w")
    happens(store, old)
    happens(store, RetryRequested())
    assert ends(store) == {"w": "W"}
    store.apply([old])
    assert ends(store) == {"w": "W"}
    happens(store, Signalled("go", "1"))
    assert store.run.status is RunStatus.COMPLETED


# -- the rest --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("index", range(3))
def test_nobody_reports_a_wait_a_sleep_or_a_race(index):
    """They have no body: a report of one is ignored."""
    store = flow(a_sleep(length=60), a_wait(), a_race("w", "s"))
    assert "node" in ignored(store, completed(a_delivery(index)))


def test_waits_sleeps_and_races_explain_themselves():
    """Each says what it waits for, and afterwards how it ended."""
    store = flow(a_sleep(length=60), a_wait(), a_race("w", "s"))
    w, s, r = (store.plan.nodes[store.plan.index[name]] for name in "wsr")
    assert explain(w, NodeState.WAITING) == wait.explain(w, NodeState.WAITING) == "it waits for event 'go'"
    assert explain(s, NodeState.WAITING) == sleep.explain(s, NodeState.WAITING) == "s sleeps"
    assert "the first of its waits and sleeps" in race.explain(r, NodeState.BLOCKED)
    for node in (w, s, r):
        assert explain(node, NodeState.COMPLETED) == "completed"
