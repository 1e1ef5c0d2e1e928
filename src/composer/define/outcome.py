"""Outcome: how a node ended, as a value. What settled() and settled_each() hand to a step instead of a result.

Its JSON is {"state": ..., "value": ..., "error": {...} or null}, so that the engine can write one without knowing the
type of the value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar, cast

from composer.errors import OutcomeError

T = TypeVar("T")
D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class StepError:
    """Why a node has no value: `type` and `message` of what was raised, and where it happened.

    `kind` is the stable word for it: error, timeout, heartbeat, worker-lost, payload, ...; `item` is that of a map, and
    `run_id` is set where the node belongs to another run, a child of the reader's.
    """

    type: str = ""
    message: str = ""
    kind: str = "error"
    node: str = ""
    item: int | None = None
    attempt: int | None = None
    run_id: str | None = None

    def __str__(self) -> str:
        return ": ".join(part for part in (self.type or self.kind, self.message) if part)


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """How a node ended: with a value, or with the reason why there is none.

    `value` is None unless the node completed (and may be None then too: ask `ok`); `error` is None unless it failed
    or timed out.
    """

    state: Literal["completed", "failed", "skipped", "cancelled", "timed-out"]
    value: T | None = None
    error: StepError | None = None

    @property
    def ok(self) -> bool:
        """Whether there is a value."""
        return self.state == "completed"

    @property
    def failed(self) -> bool:
        """Whether it failed; running out of time is failing too."""
        return self.state in ("failed", "timed-out")

    @property
    def skipped(self) -> bool:
        """Whether it never ran: its condition did not hold, or what it needed was not there."""
        return self.state == "skipped"

    @property
    def timed_out(self) -> bool:
        """Whether it ran out of time."""
        return self.state == "timed-out"

    @property
    def cancelled(self) -> bool:
        """Whether it was stopped before it ended."""
        return self.state == "cancelled"

    def value_or(self, default: D) -> T | D:
        """The value, or `default` when there is none."""
        return cast("T", self.value) if self.ok else default

    def unwrap(self) -> T:
        """The value. Raises OutcomeError, which carries the state and the error, when there is none."""
        if not self.ok:
            raise OutcomeError(self.state, self.error)
        return cast("T", self.value)
