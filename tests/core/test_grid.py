"""The whole grid: every event, in every status, over every node letter, has an answer."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import get_args

import pytest

from composer.core.decide import decide
from composer.core.events import (
    CancelRequested,
    DeadlinePassed,
    Event,
    ItemsSettled,
    LeaseExpired,
    MapCounts,
    Report,
    RetryRequested,
    Scheduled,
    Signalled,
    Started,
    StepCompleted,
    StepFailed,
    StepReleased,
    StepSnoozed,
    StepStopped,
    StoredSignal,
    TimerFired,
)
from composer.core.history import fold
from composer.core.plan import INPUT, NodeOptions, Plan
from composer.core.retries import Retry
from composer.core.snapshot import Counters, Letters, Snapshot
from composer.core.states import ENDED_RUN, SETTLED, NodeState, RunStatus
from composer.core.transition import NeedValues, Transition
from tests.builders import a_delivery, a_failure, a_plan, says

TIRED = {"failures": 99, "crashes": 99, "attempt": 100, "delivery": 300}
DELIVERIES = {
    "current": a_delivery(0),
    "spent": a_delivery(0, **TIRED),
    "of another node": a_delivery(1),
    "of an item": a_delivery(0, item=3),
    "of the run": a_delivery(INPUT),
    "of no node": a_delivery(7),
    "from nowhere": a_delivery(-9, attempt=-1, delivery=-1, failures=-5, crashes=-5),
}
REPORTS = {
    StepCompleted: lambda task: [StepCompleted(task, '{"n":1}')],
    StepFailed: lambda task: [
        StepFailed(task, a_failure(), retryable, after, jitter)
        for retryable, after, jitter in ((True, None, 0.0), (True, float("inf"), 0.99), (False, None, 0.5))
    ],
    StepSnoozed: lambda task: [StepSnoozed(task, 0.0), StepSnoozed(task, float("nan"), "1")],
    StepReleased: lambda task: [StepReleased(task)],
    StepStopped: lambda task: [StepStopped(task)],
    LeaseExpired: lambda task: [LeaseExpired(task)],
}
OTHERS: dict[type, list[Event]] = {
    Started: [Started()],
    Scheduled: [Scheduled()],
    DeadlinePassed: [DeadlinePassed()],
    CancelRequested: [CancelRequested(), CancelRequested("why\ud800")],
    TimerFired: [TimerFired(0, "2026-01-01T00:00:00Z"), TimerFired(1, "2026-01-01T00:00:00Z", 3)],
    Signalled: [Signalled("go", "1"), Signalled("go", "null", "once"), Signalled("other", "1")],
    ItemsSettled: [
        ItemsSettled(0, MapCounts(3, completed=3, expanded=3)),
        ItemsSettled(0, MapCounts(3, completed=1, failed=1, expanded=3, first_failed=2, error='{"kind":"error"}')),
        ItemsSettled(0, MapCounts(3, failed=3, expanded=3, retries=4)),
        ItemsSettled(0, MapCounts(3, completed=1, expanded=3)),
    ],
    RetryRequested: [RetryRequested(), RetryRequested(rerun_stale=True), RetryRequested(adopted_plan=7)],
}
PLANS = {
    "alone": a_plan({"a": []}),
    "output": a_plan({"a": [], "b": ["a"]}, output={"$": {"ref": "b", "path": ["n"]}}, timeout=3.0),
    "stubborn": a_plan({"a": [], "b": ["a"]}, every=NodeOptions(retries=Retry(None, 0.0))),
    "fast": a_plan({"a": [], "b": []}, fail_fast=True, every=NodeOptions(retries=Retry(2), on_crash="fail")),
    "joins": a_plan({"a": [], "b": ["settled:a"], "c": ["maybe:a", "after:b"], "d": ["either:a,b"]}),
    "guards": a_plan(
        {
            "a": [],
            "g": [],
            "h": ["when:g"],
            "i": [],
            "b": ["when:h"],
            "c": ["unless:g", "a"],
            "d": ["settled:a", "when:i"],
        },
        guards={
            "g": says("eq", "a/n", 1, kind="number"),
            "h": says("is_none", "input/m"),
            "i": says("eq", "settled:a/state", ("failed",), kind="text"),
        },
        output="settled:a",
        fail_fast=True,
    ),
    "waits": Plan(
        {
            "format": 1,
            "workflow": "shop",
            "nodes": [
                {
                    "name": "w",
                    "kind": "wait",
                    "event": "go",
                    "schema": {},
                    "timeout": 5,
                    "on_timeout": {"const": [1]},
                    "args": {},
                },
                {
                    "name": "v",
                    "kind": "wait",
                    "event": "go",
                    "schema": {},
                    "timeout": 5,
                    "args": {},
                    "after": [{"ref": "w"}],
                },
                {"name": "s", "kind": "sleep", "args": {"for": {"$": {"ref": "input", "path": ["n"]}}}},
                {"name": "u", "kind": "sleep", "args": {"until": {"$": {"ref": "w"}}}},
                {"name": "r", "kind": "race", "of": [{"ref": "v"}, {"ref": "u"}], "args": {}},
            ],
            "output": {"$": {"settled": [{"ref": "w"}]}},
        }
    ),
    "map": Plan(
        {
            "format": 1,
            "workflow": "shop",
            "nodes": [
                {
                    "name": "m",
                    "kind": "map",
                    "step": "each",
                    "over": "x",
                    "args": {"x": {"$": {"ref": "input", "path": ["n"]}}},
                },
                {"name": "n", "kind": "map", "step": "each", "over": "x", "args": {"x": {"$": {"ref": "m"}}}},
                {"name": "o", "kind": "step", "step": "o", "args": {"x": {"$": {"ref": "n", "path": [0]}}}},
            ],
            "output": {"$": {"settled_each": [{"ref": "m"}]}},
        }
    ),
    "guard first": a_plan(
        {"g": [], "a": ["when:g"], "b": ["unless:g"]}, guards={"g": says("eq", "input/n", 2, kind="number")}
    ),
}


def events() -> list[tuple[str, Event]]:
    """Every event type, reports with every kind of delivery."""
    named = [(type(event).__name__, event) for each in OTHERS.values() for event in each]
    for (kind, make), (word, task) in product(REPORTS.items(), DELIVERIES.items()):
        named += [(f"{kind.__name__} {word}", event) for event in make(task)]
    return named


def runs(plan: Plan) -> list[Snapshot]:
    """Every status with every letter of the first node; the others blocked, or completed. Consistent or not."""
    made = [Snapshot.unborn(len(plan.nodes))]
    rest = len(plan.nodes) - 1
    for status, letter, other in product(RunStatus, NodeState, (".", "C", "F")):
        made.append(Snapshot(status, 5, Letters(letter + other * rest), Counters(0 if letter == "F" else -1)))
    return made


def answer(plan: Plan, run: Snapshot, batch: list[Event]) -> Transition:
    """The decision, with values for everything it may ask for."""
    values: dict[int, str] = {}
    signals: dict[str, list[StoredSignal]] = {}
    while isinstance(decision := decide(plan, run, batch, values, values, signals), NeedValues):
        assert decision.nodes or decision.signals, "asked for nothing"
        assert values.keys().isdisjoint(decision.nodes), "asked for what it was given"
        assert signals.keys().isdisjoint(decision.signals), "asked for what it was given"
        values |= dict.fromkeys(decision.nodes, '{"n":1}')
        signals |= {name: [StoredSignal(7, name, "2", "once")] for name in decision.signals}
    return decision


def test_grid_names_every_event():
    """The grid below has every event type there is."""
    assert set(REPORTS) == set(get_args(Report))
    assert set(REPORTS) | set(OTHERS) == set(get_args(Event))


def verify(plan: Plan, run: Snapshot, batch: list[Event], made: Transition) -> None:
    """What must be true of any answer."""
    assert all(reason for _, reason in made.ignored), "ignored without a reason"
    if made.is_empty:
        assert made.run == run, "nothing happened and the run changed"
        assert {id(event) for event, _ in made.ignored} == set(map(id, batch)), "undecided: neither applied nor ignored"
        assert not (made.changes or made.starts or made.stops_open_tasks or made.result or made.restarts)
        return
    assert made.run.version == run.version + 1
    applied = [entry for entry in made.history["events"] if entry["event"] != "plan-adopted"]
    assert len(applied) + len(made.ignored) == len(batch), "an event is applied or ignored, once"
    made.history_text.encode()
    tasks = [(change.node, change.item) for change in made.changes]
    assert len(set(tasks)) == len(tasks), "one task has one outcome"
    assert set(tasks).isdisjoint((start.node, start.item) for start in made.starts)
    for start in made.starts:
        expected = {NodeState.ACTIVE}
        if not start.is_ready:
            expected = (
                {NodeState.WAITING, NodeState.MAPPING} if start.waits else {NodeState.COMPLETED, NodeState.FAILED}
            )
        assert made.run.letters[start.node] in expected
    if made.ends_run:
        assert not any(start.is_ready or start.waits for start in made.starts), "an ended run has nothing open"
        assert not made.restarts
    for node in range(len(plan.nodes)):
        if run.letters[node] == "C" and run.status is RunStatus.RUNNING and run.version:
            assert made.run.letters[node] == "C", "only a retry changes a completed node"


def test_every_cell_is_decided():
    """Each event in each state is applied or ignored with a reason; none raises, and no cell is empty."""
    cells: dict[tuple[str, str, str], set[str]] = {}
    for plan in PLANS.values():
        for run, (name, event) in product(runs(plan), events()):
            made = answer(plan, run, [event])
            verify(plan, run, [event], made)
            status = run.status.value if run.version else "unborn"
            outcome = made.ignored[0][1] if made.is_empty else "applied"
            cells.setdefault((status, run.letters.text[0], name), set()).add(outcome)
    states = len(RunStatus) * len(NodeState) + 1
    assert len(cells) == states * len({name for name, _ in events()})
    assert all(cells.values())
    applied = Counter(name for (_, _, name), answers in cells.items() if "applied" in answers)
    print(f"\n{len(cells)} cells, {sum(applied.values())} of them applied")
    assert applied["RetryRequested"] == len(NodeState), "a retry is for failed runs, whatever their nodes are"
    assert applied["StepCompleted current"] == 2, "a result counts while its node is active and the run is open"
    assert applied["StepCompleted of no node"] == 0
    assert applied["Scheduled"] == 1


def test_ended_runs_ignore_everything_but_a_retry():
    """An ended run answers every event but a retry with its status, and a retry only when it failed."""
    plan = PLANS["output"]
    for run, (_, event) in product(runs(plan), events()):
        if run.status in ENDED_RUN and not (run.status is RunStatus.FAILED and isinstance(event, RetryRequested)):
            assert answer(plan, run, [event]).ignored == [(event, f"the run is {run.status.value}")]


def test_pairs_of_events_are_decided():
    """Any two events in one batch, in either order, come to one answer in which each has its place."""
    plan = PLANS["stubborn"]
    few = {name: event for name, event in events() if " " not in name or name.endswith(("current", "another node"))}
    for run in runs(plan):
        if run.letters.text[1] == ".":
            for pair in product(few.values(), repeat=2):
                if pair[0] is not pair[1]:
                    verify(plan, run, list(pair), answer(plan, run, list(pair)))


def test_ignored_events_do_not_disturb_others():
    """A batch with an ignored event in it comes to what it comes to without it."""
    plan, run = PLANS["output"], Snapshot(RunStatus.RUNNING, 5, Letters("A."))
    good = StepCompleted(a_delivery(0), "1")
    alone = answer(plan, run, [good])
    for _, event in events():
        if answer(plan, run, [event]).is_empty:
            for batch in ([event, good], [good, event]):
                made = answer(plan, run, batch)
                if isinstance(event, Report) and event.task.node == 1:
                    continue
                assert (made.run, made.changes, made.starts, made.history) == (
                    alone.run,
                    alone.changes,
                    alone.starts,
                    alone.history,
                )


def test_every_transition_folds():
    """The history row of any first transition or of any later one gives the run after it."""
    plan = PLANS["alone"]
    made = answer(plan, Snapshot.unborn(1), [Started()])
    for _, event in events():
        after = answer(plan, made.run, [event])
        rows = [made.history] if after.is_empty else [made.history, after.history]
        assert fold(plan, rows).run == after.run


def shown(made: Transition) -> str:
    """Everything of a transition, as text."""
    return "|".join(f"{each.name}={getattr(made, each.name)!r}" for each in fields(made)) + made.history_text


def digest() -> str:
    """One digest over the answers of the whole grid, and over what they would write."""
    total = hashlib.sha256()
    for plan in (PLANS["output"], PLANS["joins"], PLANS["guards"]):
        total.update(f"{plan.text}{plan.shape}{plan.options_hash}".encode())
        for run, (_, event) in product(runs(plan)[::7], events()):
            total.update(shown(answer(plan, run, [event])).encode("utf-8", "surrogatepass"))
    return total.hexdigest()


def test_answers_are_the_same_every_time():
    """Deciding the same again gives the same bytes."""
    plan = PLANS["joins"]
    for run, (_, event) in product(runs(plan)[:60], events()):
        assert shown(answer(plan, run, [event])) == shown(answer(plan, run, [event]))


def test_answers_do_not_depend_on_the_hash_seed():
    """Two processes with hash seeds of their own come to the same bytes as this one."""
    children = [
        subprocess.Popen(
            [sys.executable, "-c", "from tests.core.test_grid import digest; print(digest())"],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "4711")
    ]
    here = digest()
    assert [child.communicate()[0].strip() for child in children] == [here, here]
    assert [child.returncode for child in children] == [0, 0]


@pytest.mark.parametrize("letter", NodeState)
def test_reports_count_only_for_active_nodes(letter):
    """A report changes something only while its node is active; settled nodes say what they are."""
    run = Snapshot(RunStatus.RUNNING, 5, Letters(letter + "."))
    made = answer(PLANS["output"], run, [StepCompleted(a_delivery(0), "1")])
    assert made.is_empty == (letter is not NodeState.ACTIVE)
    if letter in SETTLED:
        assert letter.word in made.ignored[0][1]
