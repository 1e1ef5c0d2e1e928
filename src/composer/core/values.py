"""Values: what is known of how the nodes of one run ended, as templates, conditions and outcomes read it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from composer.core.plan import INPUT, Read, node_read
from composer.core.snapshot import Snapshot
from composer.core.states import NodeState


@dataclass(frozen=True, slots=True)
class Values:
    """Ends of nodes: outputs by read code (core.plan), errors by their place in the plan.

    The letters decide what a node came to: after a retry, a text of an earlier life of the node may still be at hand.
    """

    letters: Sequence[str]
    """The run's letters."""
    outputs: Mapping[int, str] = field(default_factory=dict[int, str])
    """JSON texts of completed nodes, as stored."""
    errors: Mapping[int, str] = field(default_factory=dict[int, str])
    """JSON texts of the errors of failed nodes, as stored."""

    timed_out: Collection[int] = ()
    """Waits that completed with the answer that stands in for their event."""

    @classmethod
    def of(cls, run: Snapshot, outputs: Mapping[int, str], errors: Mapping[int, str]) -> Values:
        """What is at hand of a run as it is."""
        return cls(run.letters.text, outputs, errors, run.counters.timed_out)

    def letter(self, node: int) -> str:
        """What became of a node. The input has always been there."""
        return NodeState.COMPLETED if node == INPUT else self.letters[node]

    def lacking(self, reads: Iterable[int], settled: Sequence[int]) -> list[int]:
        """Read codes whose text is wanted and not at hand; `settled` are the nodes whose error is wanted as well."""
        found: list[int] = []
        for code in reads:
            node = node_read(code)[0]
            letter = self.letter(node)
            if (letter == NodeState.COMPLETED and code not in self.outputs) or (
                letter == NodeState.FAILED and node in settled and node not in self.errors
            ):
                found.append(code)
        return found


ABSENT: Final = ""
"""Stands for one item of a map's list that the list turned out not to have. Never a JSON text."""


def absent_parts(codes: Iterable[int], found: Mapping[int, str]) -> dict[int, str]:
    """Those of some read codes that ask for one item of a list, and were not found: the list is shorter."""
    return {code: ABSENT for code in codes if code not in found and node_read(code)[1] is Read.PART}
