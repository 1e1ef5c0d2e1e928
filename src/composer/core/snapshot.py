"""What one run looks like at one instant: a status, a version, a letter a node, small counters."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from composer.core.states import SETTLED, NodeState, RunStatus

_STATES: Final = {state.value: state for state in NodeState}


class Letters:
    """The states of a run's nodes, in the plan's order. A value: `replaced` makes another one."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text
        """As stored: one letter a node."""

    @classmethod
    def blocked(cls, count: int) -> Letters:
        """Letters of a run in which nothing has happened yet."""
        return cls(NodeState.BLOCKED.value * count)

    @classmethod
    def of(cls, states: Iterable[str]) -> Letters:
        """Letters from one state a node."""
        return cls("".join(states))

    def __getitem__(self, node: int) -> NodeState:
        return _STATES[self.text[node]]

    def __iter__(self) -> Iterator[NodeState]:
        return map(_STATES.__getitem__, self.text)

    def __len__(self) -> int:
        return len(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Letters) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Letters({self.text!r})"

    @property
    def are_settled(self) -> bool:
        """Whether nothing is left to happen to any node."""
        return not self.text.lstrip(SETTLED)


@dataclass(frozen=True, slots=True)
class Counters:
    """What a decision needs to know of earlier ones and no letter says. Stored as a short JSON text, "" for none."""

    first_failure: int = -1
    """Index of the node whose failure came first, -1 while none has failed."""
    retries: int = 0
    """How often the failed run was opened again. From then on a task that starts may have a row from before."""
    no: tuple[int, ...] = ()
    """Guards that answered no, in plan order: their letter says that they answered, not what."""

    waiting: tuple[int, ...] = ()
    """Waits for events whose name several nodes wait for, longest waiting first."""
    timed_out: tuple[int, ...] = ()
    """Waits that completed with the answer that stands in for the event: their output does not say so."""

    def encode(self) -> str:
        """The stored text."""
        if self == _NO_COUNTERS:
            return ""
        counted: dict[str, Any] = {"first_failure": self.first_failure}
        if self.retries:
            counted["retries"] = self.retries
        if self.no:
            counted["no"] = self.no
        if self.waiting:
            counted["waiting"] = self.waiting
        if self.timed_out:
            counted["timed_out"] = self.timed_out
        return json.dumps(counted, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> Counters:
        """Counters from their stored text."""
        if not text:
            return _NO_COUNTERS
        counted = json.loads(text)
        return cls(
            counted["first_failure"],
            counted.get("retries", 0),
            *(tuple(counted.get(name, ())) for name in ("no", "waiting", "timed_out")),
        )


_NO_COUNTERS: Final = Counters()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run as a decision sees it."""

    status: RunStatus
    version: int
    letters: Letters
    counters: Counters = _NO_COUNTERS

    @classmethod
    def unborn(cls, nodes: int) -> Snapshot:
        """What a run is before its first transition."""
        return cls(RunStatus.RUNNING, 0, Letters.blocked(nodes))

    @classmethod
    def stored(cls, status: str, version: int, letters: str, counters: str) -> Snapshot:
        """A run as its row says."""
        return cls(RunStatus(status), version, Letters(letters), Counters.decode(counters))
