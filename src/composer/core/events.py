"""What can happen to a run, in the past tense. Facts only: what follows from them is decided in decide.py.

No event carries the time. A report carries the delivery it answers, with the numbers the task row held when it was
handed out; the store applies it only while that delivery is still the task's current one (the fence), so the
numbers are still right whenever the event counts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True)
class Delivery:
    """One hand-out of a task to a worker: the fence, and what the task row said at that moment."""

    node: int
    attempt: int
    delivery: int
    item: int = -1
    failures: int = 0
    crashes: int = 0
    worker: str = ""
    claimed_at: float = field(default=0.0, compare=False)
    """Seconds since the epoch on the database's clock; 0.0 when not known. Only ever shown, and read back it differs by microseconds."""


class FailureKind(StrEnum):
    """Why an attempt failed."""

    ERROR = "error"
    TIMEOUT = "timeout"
    HEARTBEAT = "heartbeat"
    WORKER_LOST = "worker-lost"
    PAYLOAD = "payload"
    """What the step returned cannot be written as the type of its result."""
    PAYLOAD_TOO_LARGE = "payload-too-large"
    PAYLOAD_MISMATCH = "payload-mismatch"
    """The stored arguments do not fit the step as it is now."""
    CONDITION = "condition"
    """No attempt of a step: a condition of the workflow could not be evaluated."""
    PROCESS_DIED = "process-died"
    """The process of a step with isolation="process" ended before the step did."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure as it is stored and shown."""

    kind: FailureKind
    type: str
    message: str
    traceback: str = ""
    causes: tuple[str, ...] = ()
    """The exceptions behind it, as "type: message", the nearest first."""

    def encode(self, **more: Any) -> str:
        """JSON text; `more` are facts about where it happened."""
        out: dict[str, Any] = {"kind": self.kind.value, "type": self.type, "message": self.message, **more}
        if self.causes:
            out["causes"] = self.causes
        if self.traceback:
            out["traceback"] = self.traceback
        return json.dumps(out, ensure_ascii=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Started:
    """The run begins."""


@dataclass(frozen=True, slots=True)
class Scheduled:
    """The run is to begin later; its key is taken, nothing runs."""


@dataclass(frozen=True, slots=True)
class StepCompleted:
    """A body returned. `output` is its result as JSON text."""

    task: Delivery
    output: str


@dataclass(frozen=True, slots=True)
class StepFailed:
    """A body raised, ran out of time or could not be given its arguments."""

    task: Delivery
    failure: Failure
    retryable: bool = True
    retry_after: float | None = None
    """Seconds the step asked for; None leaves the delay to the policy."""
    jitter: float = 0.5
    """Where in the policy's spread the delay falls, in [0, 1): drawn by the reporter, as a decision draws nothing."""
    details: str | None = None
    """The attempt's last checkpoint as JSON text, where it is not stored yet."""


@dataclass(frozen=True, slots=True)
class StepSnoozed:
    """A body asked to be run again later. Costs nothing."""

    task: Delivery
    delay: float
    details: str | None = None


@dataclass(frozen=True, slots=True)
class StepReleased:
    """A worker gave a task back unfinished, as it does when it shuts down. Costs nothing."""

    task: Delivery
    details: str | None = None


@dataclass(frozen=True, slots=True)
class StepStopped:
    """A body ended because its run was stopped."""

    task: Delivery


@dataclass(frozen=True, slots=True)
class LeaseExpired:
    """A worker was not heard of in time: it crashed, hangs, or is cut off."""

    task: Delivery
    jitter: float = 0.5


@dataclass(frozen=True, slots=True)
class MapCounts:
    """How far a map is. The first three add up to `total` when it has reached its end."""

    total: int
    completed: int = 0
    failed: int = 0
    withdrawn: int = 0
    """Items that will not run: the map failed before they began."""
    expanded: int = 0
    """Items that are stored."""
    held: int = 0
    """Stored items that wait for their turn under `max_concurrency`."""
    tolerance: int = 0
    """Failed items that do not fail the map."""
    first_failed: int = -1
    """The item whose failure came first, -1 while none has failed."""
    error: str = ""
    """Its failure, as JSON text."""
    retries: int = 0
    """How often the run had been retried when the map began."""

    @property
    def settled(self) -> int:
        """Items nothing more will happen to."""
        return self.completed + self.failed + self.withdrawn

    @property
    def has_ended(self) -> bool:
        """Whether every item has settled."""
        return self.settled >= self.total

    @property
    def has_failed(self) -> bool:
        """Whether more items failed than it tolerates."""
        return self.failed > self.tolerance


@dataclass(frozen=True, slots=True)
class ItemsSettled:
    """The counts of a map have reached an end: all items have settled, or more have failed than it tolerates."""

    node: int
    counts: MapCounts


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The moment has come that a waiting task was to be woken at."""

    node: int
    at: str
    """That moment or a little later, on the database's clock, as ISO 8601 text: a sleep's value."""
    attempt: int = 0
    """The task's attempt then: a run that was retried since has another timer."""


@dataclass(frozen=True, slots=True)
class Signalled:
    """Somebody outside sent the run an event. `payload` is JSON text; of one `dedupe` id only the first counts."""

    name: str
    payload: str
    dedupe: str | None = None


@dataclass(frozen=True, slots=True)
class StoredSignal:
    """A signal the run has: kept for a node that will wait, or taken by one."""

    id: int
    name: str
    payload: str
    dedupe: str | None = None
    node: int | None = None
    """The node that took it."""


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The time the workflow allows a run is over."""

    retries: int | None = None
    """How often the run had been retried when its deadline passed: one that was retried since has another deadline."""


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Somebody wants the run to stop."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class RetryRequested:
    """Somebody wants a failed run to go on where it stopped."""

    rerun_stale: bool = False
    """Whether completed nodes that read a reset node's data run again too."""
    adopted_plan: int | None = None
    """Id of the plan of the same shape that the run goes on with; None: the one it has."""


Report = StepCompleted | StepFailed | StepSnoozed | StepReleased | StepStopped | LeaseExpired
"""Events that answer a delivery."""
Event = (
    Report
    | ItemsSettled
    | TimerFired
    | Signalled
    | Started
    | Scheduled
    | DeadlinePassed
    | CancelRequested
    | RetryRequested
)
