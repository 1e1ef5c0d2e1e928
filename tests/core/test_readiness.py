"""The join table: each cell, each combination of two, and what becomes of a node in a run."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from composer.core.plan import Need, Term
from composer.core.readiness import JOIN_TABLE, NO, Fate, Standing, fate, join_table_markdown, standing
from composer.core.states import SETTLED, NodeState, RunStatus
from tests.builders import a_plan, completed, failed
from tests.core.model import ModelStore

WAIT, RUN, SKIP = Standing.WAIT, Standing.RUN, Standing.SKIP
# The table of core.md, written a second time, one line a way of depending: completed, skipped, failed, cancelled.
EXPECTED = {
    Need.PLAIN: (RUN, SKIP, SKIP, SKIP),
    Need.AFTER: (RUN, RUN, SKIP, SKIP),
    Need.MAYBE: (RUN, RUN, SKIP, SKIP),
    Need.SETTLED: (RUN, RUN, RUN, SKIP),
}
EITHER = {
    "CC": RUN, "CS": RUN, "SC": RUN, "SS": SKIP,
    "CF": SKIP, "FC": SKIP, "SF": SKIP, "FS": SKIP, "FF": SKIP, "CX": SKIP, "XS": SKIP,
}  # fmt: skip
OPEN = "".join(state for state in NodeState if state not in SETTLED)


def test_table_has_a_row_for_every_need():
    """Every way of depending has its row, with a cell for each way a node ends in a running run."""
    assert set(JOIN_TABLE) == set(Need)
    for need, row in JOIN_TABLE.items():
        assert set(row) == {*"CSFX"} | ({NO} if need in (Need.GUARD_YES, Need.GUARD_NO) else set())


@pytest.mark.parametrize("need", EXPECTED, ids=lambda need: need.value)
@pytest.mark.parametrize("letter", "CSFX")
def test_cell_of_one_dependency(need, letter):
    """A node with one dependency runs or is skipped as its cell of the table says."""
    assert standing([Term(need, (0,))], letter) is EXPECTED[need]["CSFX".index(letter)]


@pytest.mark.parametrize("letters", EITHER)
def test_cell_of_either(letters):
    """either() asks for a branch that was taken: a failure skips, else one completion is enough."""
    assert standing([Term(Need.EITHER, (0, 1))], letters) is EITHER[letters]


@pytest.mark.parametrize("need", Need, ids=lambda need: need.value)
@pytest.mark.parametrize("letter", OPEN)
def test_nothing_is_decided_before_everything_has_settled(need, letter):
    """A node with an open dependency waits, whatever the others came to."""
    for other in SETTLED:
        assert standing([Term(need, (0,))], letter) is WAIT
        assert standing([Term(Need.PLAIN, (0,)), Term(need, (1,))], other + letter) is WAIT
        assert standing([Term(Need.EITHER, (0, 1))], letter + other) is WAIT


def test_letters_without_a_cell_skip():
    """What was undone or could not be undone gives nothing to go on with."""
    for need, letter in product(Need, "V!"):
        assert standing([Term(need, (0,))], letter) is SKIP


def test_two_dependencies_run_only_together():
    """A node with two dependencies runs when both cells say so, and is skipped when either says so."""
    for (one, row), (two, other) in product(EXPECTED.items(), repeat=2):
        for i, j in product(range(4), repeat=2):
            expected = RUN if row[i] is other[j] is RUN else SKIP
            assert standing([Term(one, (0,)), Term(two, (1,))], "CSFX"[i] + "CSFX"[j]) is expected


def test_no_dependency_runs():
    """A node that needs nothing runs."""
    assert standing([], "") is RUN


def test_failure_is_handled_by_a_reader_that_ran():
    """A failure is handled when a node that reads it through settled() ran, and by nothing else."""
    settled, plain, other = [Term(Need.SETTLED, (0,))], [Term(Need.PLAIN, (0,))], [Term(Need.SETTLED, (1,))]
    assert [fate(0, [(settled, letter)], "F" + letter) for letter in "CFASX."] == [
        Fate.HANDLED, Fate.HANDLED, Fate.HANDLED, Fate.UNHANDLED, Fate.UNHANDLED, Fate.OPEN,
    ]  # fmt: skip
    assert fate(0, [], "F") is Fate.UNHANDLED
    assert fate(0, [(plain, "S"), (other, "C")], "FCSC") is Fate.UNHANDLED


def test_failure_is_not_handled_when_another_reader_was_skipped_for_it():
    """A node that was skipped for want of the failed node's output outweighs any reader through settled()."""
    settled = [Term(Need.SETTLED, (0,))]
    for need in (Need.PLAIN, Need.AFTER, Need.MAYBE, Need.EITHER):
        assert fate(0, [([Term(need, (0,))], "S"), (settled, "C")], "FSC") is Fate.UNHANDLED
        assert fate(0, [([Term(need, (0,))], "."), (settled, "C")], "F.C") is Fate.HANDLED


def test_reader_that_would_have_been_skipped_anyway_does_not_count():
    """A plain reader in a block that was not taken, or that lacks something else too, leaves the failure handled."""
    settled = [Term(Need.SETTLED, (0,))]
    in_block = [Term(Need.PLAIN, (0,)), Term(Need.GUARD_YES, (1,))]
    assert fate(0, [(in_block, "S"), (settled, "C")], "FCSC", no=(1,)) is Fate.HANDLED
    assert fate(0, [(in_block, "S"), (settled, "C")], "FCSC") is Fate.UNHANDLED
    lacking = [Term(Need.PLAIN, (0,)), Term(Need.PLAIN, (1,))]
    assert fate(0, [(lacking, "S"), (settled, "C")], "FSSC") is Fate.HANDLED
    assert fate(0, [(lacking, "S"), (settled, "C")], "FFSC") is Fate.UNHANDLED


@pytest.mark.parametrize(
    ("need", "cells"), [(Need.GUARD_YES, (RUN, SKIP, SKIP, SKIP, SKIP)), (Need.GUARD_NO, (SKIP, RUN, SKIP, SKIP, SKIP))]
)
def test_cell_of_a_guard(need, cells):
    """A block is taken by the one answer; a guard that was skipped, failed or cancelled takes neither branch."""
    told = [
        standing([Term(need, (0,))], letter, no) for letter, no in (("C", ()), ("C", (0,)), *((x, ()) for x in "SFX"))
    ]
    assert tuple(told) == cells


def test_docs_have_the_table_as_it_is():
    """The join table of the docs is the one that decides."""
    text = (Path(__file__).parents[2] / "docs/how-it-works.md").read_text()
    begin, end = "<!-- join table: begin -->\n", "<!-- join table: end -->"
    assert text.partition(begin)[2].partition(end)[0] == join_table_markdown()


def run_of(nodes: dict[str, list[str]], **outcomes: str) -> ModelStore:
    """A run in which every node that starts completes, except those that are to fail."""
    store = ModelStore.started(a_plan(nodes))
    while store.run.status is RunStatus.RUNNING:
        index = next(node for node, row in store.rows.items() if row.is_open)
        task = store.claim(index)
        store.apply([failed(task) if store.plan.nodes[index].name in outcomes else completed(task)])
        store.check()
    return store


@pytest.mark.parametrize(
    ("nodes", "fails", "letters", "status"),
    [
        ({"a": [], "b": ["a"], "c": ["b"], "d": ["c"]}, "a", "FSSS", "failed"),
        ({"a": [], "b": ["a"], "c": ["after:b"]}, "a", "FSC", "failed"),
        ({"a": [], "b": ["after:a"]}, "a", "FS", "failed"),
        ({"a": [], "b": ["after:settled:a"]}, "a", "FC", "completed"),
        ({"a": [], "b": ["settled:a"]}, "a", "FC", "completed"),
        ({"a": [], "b": ["settled:a"], "c": ["b"]}, "ab", "FFS", "failed"),
        ({"a": [], "b": ["a"], "c": ["settled:b"]}, "a", "FSC", "failed"),
        ({"a": [], "b": [], "c": ["b"], "d": ["settled:a", "c"]}, "ab", "FFSS", "failed"),
        ({"a": [], "b": ["a"], "c": ["maybe:b"]}, "a", "FSC", "failed"),
        ({"a": [], "b": ["maybe:a"]}, "a", "FS", "failed"),
        ({"a": [], "b": ["a"], "c": [], "d": ["either:b,c"]}, "a", "FSCC", "failed"),
        ({"a": [], "b": [], "c": ["either:a,b"]}, "b", "CFS", "failed"),
    ],
)  # fmt: skip
def test_run_follows_the_table(nodes, fails, letters, status):
    """Skips go through a run as the table says, and a failure fails it unless a reader through settled() ran."""
    store = run_of(nodes, **dict.fromkeys(fails, "fails"))
    named = {node.name: store.run.letters[node.index].value for node in store.plan.nodes}
    assert named == dict(zip(sorted(nodes), _by_name(nodes, letters), strict=True))
    assert store.run.status.value == status


def _by_name(nodes: dict[str, list[str]], letters: str) -> str:
    """The letters of a case are written in the plan's order."""
    order = [node.name for node in a_plan(nodes).nodes]
    return "".join(letters[order.index(name)] for name in sorted(nodes))


def test_skips_reach_the_end_in_one_transition():
    """A failure at the head of a long chain ends the run in the transition that it happens in."""
    nodes = {f"n{i:04}": [f"n{i - 1:04}"] if i else [] for i in range(500)}
    store = ModelStore.started(a_plan(nodes))
    store.apply([failed(store.claim(0))])
    store.check()
    assert store.run.letters.text == "F" + "S" * 499
    assert (store.run.status, store.run.version) == (RunStatus.FAILED, 2)
