"""Values: what is known of how the nodes of one run ended, as templates, conditions and outcomes read it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from composer.core.plan import INPUT
from composer.core.states import NodeState


@dataclass(frozen=True, slots=True)
class Values:
    """Ends of nodes, by their place in the plan (INPUT: the run's input, which is always there).

    The letters decide what a node came to: after a retry, a text of an earlier life of the node may still be at hand.
    """

    letters: Sequence[str]
    """The run's letters."""
    outputs: Mapping[int, str] = field(default_factory=dict[int, str])
    """JSON texts of completed nodes, as stored."""
    errors: Mapping[int, str] = field(default_factory=dict[int, str])
    """JSON texts of the errors of failed nodes, as stored."""
    each: Mapping[int, str] = field(default_factory=dict[int, str])
    """For maps that settled_each() reads: a JSON list with an Outcome an item, in index order (outcomes.each_text)."""

    def letter(self, node: int) -> str:
        """What became of a node. The input has always been there."""
        return NodeState.COMPLETED if node == INPUT else self.letters[node]

    def lacking(self, reads: Iterable[int], settled: Sequence[int]) -> list[int]:
        """Nodes among `reads` whose text is wanted and not at hand; `settled` are those whose error is wanted as well."""
        found: list[int] = []
        for node in reads:
            letter = self.letter(node)
            if (letter == NodeState.COMPLETED and node not in self.outputs) or (
                letter == NodeState.FAILED and node in settled and node not in self.errors
            ):
                found.append(node)
        return found
