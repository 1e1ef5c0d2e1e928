"""What a decision asks for. A store applies a Transition in one atomic write, guarded by the run's version."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

from composer.core.events import Event
from composer.core.snapshot import Snapshot
from composer.core.states import ENDED_RUN, TaskState

history_json: Final = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), allow_nan=False, check_circular=False
).encode
"""How history is written: in ASCII, since half a surrogate pair in a message must not make it unwritable."""


class Fence(IntEnum):
    """What must still be true of a task for a change to it to count."""

    REPORT = 1
    """The delivery is the current one; the task is leased, or was put back and nobody has claimed it since."""
    EXPIRY = 2
    """The delivery is the current one, and its lease is over on the database's clock."""
    WAITING = 3
    """The task waits. Only a decision ends a wait, so the run's version is guard enough."""


@dataclass(slots=True)
class TaskChange:
    """A new state for an existing task. The `_add` numbers are added to what the row holds."""

    node: int
    item: int
    fence: Fence
    attempt: int
    delivery: int
    state: TaskState
    attempt_add: int = 0
    delivery_add: int = 0
    failures_add: int = 0
    crashes_add: int = 0
    output: str | None = None
    error: str | None = None
    delay: float | None = None
    """Seconds until it is ready again; the store stamps the moment. With state DELAYED only."""
    details: str | None = None
    """A newer checkpoint than the row holds; None keeps that."""


@dataclass(slots=True)
class TaskStart:
    """A task that becomes ready now. With `reopened` the row may exist: attempt + 1, its budgets fresh, its results gone."""

    node: int
    item: int = -1
    reopened: bool = False
    waits: bool = False
    """It is not for a worker: something else settles the node, and the task is what waits for that."""
    wake_in: float | None = None
    """Of a task that waits: seconds until a coordinator looks at it; None leaves that to an event."""
    wake_at: str | None = None
    """The moment instead, as ISO 8601 text with its offset."""
    output: str | None = None
    """Of a task that has completed as soon as it came to its turn: its output, as JSON text."""
    error: str | None = None
    """Of a task that has failed as soon as it came to its turn: why, as JSON text."""

    @property
    def has_ended(self) -> bool:
        """Whether it is stored with its end: there was nothing to run or to wait for."""
        return self.output is not None or self.error is not None

    @property
    def is_ready(self) -> bool:
        """Whether it is for a worker."""
        return not self.waits and not self.has_ended


@dataclass(frozen=True, slots=True)
class NewSignal:
    """A signal to be stored. `node` is the node that takes it at once; None keeps it for one that will wait."""

    name: str
    payload: str
    dedupe: str | None = None
    node: int | None = None


@dataclass(slots=True)
class RunResult:
    """What node -1, the run itself, holds from now on. Both None clears it."""

    output: str | None = None
    error: str | None = None


@dataclass(slots=True)
class Transition:
    """From one version of a run to the next."""

    run: Snapshot
    """The run afterwards; its version is one more than the one decided on."""
    changes: list[TaskChange] = field(default_factory=list[TaskChange])
    starts: list[TaskStart] = field(default_factory=list[TaskStart])
    stops_open_tasks: bool = False
    """Every open task of the run that `changes` does not name is cancelled."""
    signals: list[NewSignal] = field(default_factory=list[NewSignal])
    """Signals to be stored."""
    taken: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """(id, node) of stored signals that a node takes."""
    result: RunResult | None = None
    restarts: bool = False
    """The run is open again after it had ended: a new deadline counts from now."""
    history: dict[str, Any] = field(default_factory=dict[str, Any])
    ignored: list[tuple[Event, str]] = field(default_factory=list[tuple[Event, str]])
    """Events that changed nothing, each with the reason."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write: every event was ignored."""
        return not self.history

    @property
    def is_rare(self) -> bool:
        """Whether it needs more than the ordinary commit: stops, reopened tasks, expiries."""
        return (
            self.stops_open_tasks
            or self.restarts
            or bool(self.signals)
            or bool(self.taken)
            or any(change.fence is not Fence.REPORT for change in self.changes)
            or any(start.reopened for start in self.starts)
        )

    @property
    def starts_are_ready(self) -> bool:
        """Whether all that starts is for workers: nothing waits, and nothing ends as soon as it comes to its turn."""
        return all(start.is_ready for start in self.starts)

    @property
    def ends_run(self) -> bool:
        """Whether the run has ended with it."""
        return self.run.status in ENDED_RUN

    @property
    def history_text(self) -> str:
        """The history row, as JSON text."""
        return history_json(self.history)


@dataclass(frozen=True, slots=True)
class NeedValues:
    """The decision needs these values first, by read code (core.plan), and the run's signals of these names."""

    nodes: tuple[int, ...]
    signals: tuple[str, ...] = ()
