"""Which nodes may start, which never can, and which failures fail the run: the join table, and nothing else decides it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import Enum
from typing import Final

from composer.core.plan import Need, Term
from composer.core.states import SETTLED, NodeState


class Standing(Enum):
    """What a blocked node's dependencies make of it."""

    WAIT = "wait"
    RUN = "run"
    SKIP = "skip"


NO: Final = "no"
"""Column of a guard that has completed, and whose answer is no."""
_RUN, _SKIP, _WAIT = Standing.RUN, Standing.SKIP, Standing.WAIT
# One row a way of depending, one column a state of what is depended on. EITHER is over several nodes and asks
# for the branch that was taken: any failure skips, else any completion runs. RACE does not wait for all. Only guards say no.
JOIN_TABLE: Final[dict[Need, dict[str, Standing]]] = {
    Need.PLAIN: {"C": _RUN, "S": _SKIP, "F": _SKIP, "X": _SKIP},
    Need.AFTER: {"C": _RUN, "S": _RUN, "F": _SKIP, "X": _SKIP},
    Need.MAYBE: {"C": _RUN, "S": _RUN, "F": _SKIP, "X": _SKIP},
    Need.SETTLED: {"C": _RUN, "S": _RUN, "F": _RUN, "X": _SKIP},
    Need.EITHER: {"C": _RUN, "S": _WAIT, "F": _SKIP, "X": _SKIP},
    Need.RACE: {"C": _RUN, "S": _WAIT, "F": _WAIT, "X": _SKIP},
    Need.GUARD_YES: {"C": _RUN, NO: _SKIP, "S": _SKIP, "F": _SKIP, "X": _SKIP},
    Need.GUARD_NO: {"C": _SKIP, NO: _RUN, "S": _SKIP, "F": _SKIP, "X": _SKIP},
}


_BRANCHES: Final = (Need.EITHER, Need.RACE)


def standing(terms: Sequence[Term], letters: Sequence[str], no: Collection[int] = ()) -> Standing:
    """Whether a node with these dependencies waits, runs or is skipped. `no` are the guards that answered no.

    It is asked again whenever one of them settles; nothing is decided before all of them have, but for a race, which
    the first that completes decides.
    """
    verdict = Standing.RUN
    for term in terms:
        table = JOIN_TABLE[term.need]
        taken, waits = term.need not in _BRANCHES, False
        for node in term.nodes:
            letter = letters[node]
            if letter not in SETTLED:
                if term.need is not Need.RACE:
                    return Standing.WAIT
                waits = True
                continue
            answer = table.get(NO if no and node in no else letter, Standing.SKIP)
            if answer is Standing.SKIP:
                verdict = Standing.SKIP
            elif answer is Standing.RUN:
                taken = True
        if not taken:
            if waits:
                return Standing.WAIT
            verdict = Standing.SKIP
    return verdict


class Fate(Enum):
    """What becomes of the run by a node that failed."""

    HANDLED = "handled"
    OPEN = "open"
    """Somebody may still handle it."""
    UNHANDLED = "unhandled"
    """It fails the run."""


def fate(
    failed: int, readers: Iterable[tuple[Sequence[Term], str]], letters: Sequence[str], no: Collection[int] = ()
) -> Fate:
    """Whether the failure of a node is handled. `readers`: terms and letter of everything that depends on it.

    It is when a node that reads it through settled() ran, unless another one was skipped for want of its output: one
    that would have run had nothing failed. A reader in a block that was not taken would not have, and does not count.
    """
    spared: list[str] | None = None
    ran = waits = False
    for terms, letter in readers:
        for term in terms:
            if failed not in term.nodes:
                continue
            if term.need is Need.SETTLED:
                waits = waits or letter == NodeState.BLOCKED
                ran = ran or letter not in (NodeState.BLOCKED, NodeState.SKIPPED, NodeState.CANCELLED)
            elif letter == NodeState.SKIPPED:
                spared = spared or ["C" if each == NodeState.FAILED else each for each in letters]
                if standing(terms, spared, no) is Standing.RUN:
                    return Fate.UNHANDLED
    return Fate.HANDLED if ran else Fate.OPEN if waits else Fate.UNHANDLED


_ROWS: Final = {
    Need.PLAIN: "its output, plainly, or `settled_each(x)`",
    Need.AFTER: "`.after(x)`",
    Need.MAYBE: "`maybe(x)`",
    Need.SETTLED: "`settled(x)`, `.after(settled(x))`",
    Need.EITHER: "`either(x, y)`, for each of them",
    Need.RACE: "`race(x, y)`, for each of them",
    Need.GUARD_YES: "`when(...)`: a condition",
    Need.GUARD_NO: "`otherwise()`: the same condition",
}
_COLUMNS: Final = {"C": "completed", NO: "said no", "S": "skipped", "F": "failed", "X": "cancelled"}
_CELLS: Final = {Standing.RUN: "runs", Standing.SKIP: "skipped", Standing.WAIT: "looks at the others"}


def join_table_markdown() -> str:
    """The join table as Markdown: what a node does, by how it depends on x and how x ended."""
    lines = [
        f"| A node that needs x as | {' | '.join(f'x {word}' for word in _COLUMNS.values())} |",
        "|---" * (len(_COLUMNS) + 1) + "|",
    ]
    for need, row in JOIN_TABLE.items():
        cells = [_CELLS[row[column]] if column in row else "" for column in _COLUMNS]
        lines.append(f"| {_ROWS[need]} | {' | '.join(cells)} |".replace("|  |", "| |"))
    return "\n".join(lines) + "\n"
