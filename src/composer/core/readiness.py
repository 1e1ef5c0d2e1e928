"""Which nodes may start, and which never can: the join table, and nothing else decides it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final

from composer.core.plan import Need, Term
from composer.core.states import SETTLED, NodeState


class Standing(Enum):
    """What a blocked node's dependencies make of it."""

    WAIT = "wait"
    RUN = "run"
    SKIP = "skip"


# One row a way of depending, one column a state of what is depended on. EITHER is over several nodes and asks
# for the branch that was taken: any failure skips, else any completion runs.
JOIN_TABLE: Final[dict[Need, dict[str, Standing]]] = {
    Need.PLAIN: {"C": Standing.RUN, "S": Standing.SKIP, "F": Standing.SKIP, "X": Standing.SKIP},
    Need.AFTER: {"C": Standing.RUN, "S": Standing.RUN, "F": Standing.SKIP, "X": Standing.SKIP},
    Need.MAYBE: {"C": Standing.RUN, "S": Standing.RUN, "F": Standing.SKIP, "X": Standing.SKIP},
    Need.SETTLED: {"C": Standing.RUN, "S": Standing.RUN, "F": Standing.RUN, "X": Standing.SKIP},
    Need.EITHER: {"C": Standing.RUN, "S": Standing.WAIT, "F": Standing.SKIP, "X": Standing.SKIP},
}


def standing(terms: Sequence[Term], letters: Sequence[str]) -> Standing:
    """Whether a node with these dependencies waits, runs or is skipped.

    It is asked again whenever one of them settles; nothing is decided before all of them have.
    """
    verdict = Standing.RUN
    for term in terms:
        table = JOIN_TABLE[term.need]
        taken = term.need is not Need.EITHER
        for node in term.nodes:
            letter = letters[node]
            if letter not in SETTLED:
                return Standing.WAIT
            answer = table.get(letter, Standing.SKIP)
            if answer is Standing.SKIP:
                verdict = Standing.SKIP
            elif answer is Standing.RUN:
                taken = True
        if not taken:
            verdict = Standing.SKIP
    return verdict


def is_handled(node: int, users_terms: Sequence[tuple[Sequence[Term], str]]) -> bool:
    """Whether a failed node was read through settled() by a node that ran. `users_terms`: terms and letter of each user."""
    return any(
        letter in (NodeState.COMPLETED, NodeState.FAILED)
        and any(term.need is Need.SETTLED and node in term.nodes for term in terms)
        for terms, letter in users_terms
    )
