"""Letters, counters and the snapshot: values that survive their stored form."""

from __future__ import annotations

from itertools import product

import pytest

from composer.core.snapshot import Counters, Letters, Snapshot
from composer.core.states import ENDED_RUN, OPEN_TASK, SETTLED, NodeState, RunStatus, TaskState


def test_letters_read_as_states():
    """Letters give a state a node, by index, in order and with a length."""
    letters = Letters("CA.!")
    assert letters[0] is NodeState.COMPLETED
    assert list(letters) == [NodeState.COMPLETED, NodeState.ACTIVE, NodeState.BLOCKED, NodeState.UNDO_FAILED]
    assert len(letters) == 4
    assert repr(letters) == "Letters('CA.!')"
    assert Letters.of(letters) == letters
    assert Letters.blocked(3).text == "..."


def test_letters_are_values():
    """Equal letters are equal and hash alike, and are not their text."""
    assert Letters("CA") == Letters("CA") != Letters("AC")
    assert hash(Letters("CA")) == hash(Letters("CA"))
    assert Letters("CA") != "CA"


@pytest.mark.parametrize("pair", ["".join(pair) for pair in product(NodeState, repeat=2)])
def test_letters_are_settled_when_each_is(pair):
    """A run's letters are settled exactly when every single one is."""
    assert Letters(pair).are_settled == (pair[0] in SETTLED and pair[1] in SETTLED)


def test_no_letters_are_settled():
    """A plan without nodes has nothing left to happen."""
    assert Letters("").are_settled


@pytest.mark.parametrize("counters", [Counters(), Counters(0), Counters(7), Counters(-1, 2), Counters(3, 1)])
def test_counters_survive_their_text(counters):
    """Counters come back from what is stored; none at all is the empty text."""
    assert Counters.decode(counters.encode()) == counters
    assert (counters.encode() == "") == (counters == Counters())


def test_counters_of_the_first_release_are_read():
    """A text that knows only the first failure is read."""
    assert Counters.decode('{"first_failure":4}') == Counters(4)


def test_snapshot_comes_back_from_its_row():
    """A row's four columns give the run."""
    run = Snapshot(RunStatus.FAILED, 9, Letters("CF"), Counters(1))
    assert Snapshot.stored("failed", 9, "CF", run.counters.encode()) == run
    assert Snapshot.unborn(2) == Snapshot(RunStatus.RUNNING, 0, Letters(".."))


def test_states_are_each_on_one_side():
    """Statuses, tasks and letters are open or ended, as core.md lists them."""
    assert set(RunStatus) - ENDED_RUN == {"scheduled", "running", "compensating"}
    assert set(TaskState) - OPEN_TASK == {"completed", "failed", "withdrawn", "cancelled"}
    assert set(NodeState) - set(SETTLED) == set(".AWMDQU")
    assert all(len(state) == 1 for state in NodeState)
