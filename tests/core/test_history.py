"""Folding a history gives the run and its tasks' numbers, at every version."""

from __future__ import annotations

import json

import pytest

from composer.core.events import CancelRequested, LeaseExpired, RetryRequested, Started, StepReleased, StepSnoozed
from composer.core.history import TaskTally, fold
from composer.core.plan import NodeOptions
from composer.core.retries import Retry
from composer.core.snapshot import Snapshot
from composer.core.states import RunStatus
from tests.builders import a_plan, completed, failed, tried
from tests.core.model import ModelStore

PLAN = a_plan({"a": [], "b": ["a"], "c": ["after:b"]}, every=tried(2, delay=0.0))


def test_fold_of_nothing_is_a_run_before_its_start():
    """No history gives a run that has not happened."""
    folded = fold(PLAN, [])
    assert folded.run == Snapshot.unborn(3)
    assert folded.tasks == {}


def test_fold_knows_opened_tasks():
    """A task that was opened and not reported yet has its first attempt and nothing spent."""
    assert fold(PLAN, ModelStore.started(PLAN).history).tasks == {(0, -1): TaskTally()}


def test_fold_follows_a_run_through_everything():
    """Status, letters, counters, attempts, failures and crashes are right after every single transition of a long life."""
    store = ModelStore.started(PLAN, scheduled=True)
    store.check()
    store.apply([Started()])
    steps = [
        lambda: store.apply([StepSnoozed(store.claim(0), 0.0)]),
        lambda: store.apply([StepReleased(store.claim(0))]),
        lambda: (store.claim(0), store.apply([LeaseExpired(store.end_lease(0))])),
        lambda: store.apply([failed(store.claim(0))]),
        lambda: store.apply([failed(store.claim(0))]),
        lambda: store.apply([completed(store.claim(2))]),
        lambda: store.apply([RetryRequested()]),
        lambda: store.apply([completed(store.claim(0))]),
        lambda: (store.claim(1), store.apply([LeaseExpired(store.end_lease(1))])),
        lambda: store.apply([failed(store.claim(1), retryable=False)]),
        lambda: store.apply([RetryRequested(rerun_stale=True)]),
        lambda: store.apply([CancelRequested()]),
    ]
    letters = []
    for step in steps:
        step()
        store.check()
        letters.append(store.run.letters.text)
    assert letters == ["A..", "A..", "A..", "A..", "FSA", "FSC", "A.C", "CAC", "CAC", "CFC", "CAC", "CXC"]
    assert store.run.status is RunStatus.CANCELLED
    told = {key[0]: (t.attempt, t.failures, t.crashes) for key, t in fold(PLAN, store.history).tasks.items()}
    assert told == {0: (3, 0, 0), 1: (2, 0, 0), 2: (1, 0, 0)}


def test_fold_resets_budgets_when_the_task_is_opened_not_when_its_node_is():
    """Between a retry and its turn a task left over keeps what it had spent, as its row does; then it starts afresh."""
    plan = a_plan({"a": [], "b": ["settled:a"]})
    store = ModelStore.started(plan)
    store.apply([failed(store.claim(0))])
    store.apply([failed(store.claim(1))])
    store.apply([RetryRequested()])
    store.check()
    assert fold(plan, store.history).tasks[1, -1] == TaskTally(1, failures=1)
    store.apply([completed(store.claim(0))])
    store.check()
    assert fold(plan, store.history).tasks[1, -1] == TaskTally(2)


def test_fold_counts_crashes_that_became_failures():
    """A lost worker that spends the crash budget counts as a crash and as a failure."""
    plan = a_plan({"a": []}, every=NodeOptions(retries=Retry(2, 0.0), max_crashes=1))
    store = ModelStore.started(plan)
    for spent in (1, 2):
        store.claim(0)
        store.apply([LeaseExpired(store.end_lease(0))])
        store.check()
        tally = fold(plan, store.history).tasks[0, -1]
        assert (tally.failures, tally.crashes) == (spent, spent)


def test_fold_reads_what_was_written():
    """History rows that went through their text fold to the same run."""
    store = ModelStore.started(PLAN)
    store.apply([failed(store.claim(0))])
    store.apply([completed(store.claim(0))])
    assert fold(PLAN, [json.loads(json.dumps(row)) for row in store.history]) == fold(PLAN, store.history)


def test_fold_refuses_a_node_the_plan_lacks():
    """A history of another plan is refused with a KeyError."""
    with pytest.raises(KeyError, match="zz"):
        fold(PLAN, [{"events": [], "nodes": {"zz": "A"}}])
