"""Run statuses, task states and node letters, and which of them are settled: the only list."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class RunStatus(StrEnum):
    """What a run is. Spelled the same in PostgreSQL, Python, the command line and the logs."""

    SCHEDULED = "scheduled"
    RUNNING = "running"
    COMPENSATING = "compensating"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class TaskState(StrEnum):
    """What a task row is."""

    HELD = "held"
    READY = "ready"
    LEASED = "leased"
    DELAYED = "delayed"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    WITHDRAWN = "withdrawn"
    CANCELLED = "cancelled"


class NodeState(StrEnum):
    """What a node of a run is: one letter in the run's row."""

    BLOCKED = "."
    ACTIVE = "A"
    WAITING = "W"
    MAPPING = "M"
    DRAINING = "D"
    STOPPING = "Q"
    COMPLETED = "C"
    FAILED = "F"
    SKIPPED = "S"
    CANCELLED = "X"
    COMPENSATING = "U"
    COMPENSATED = "V"
    UNDO_FAILED = "!"

    @property
    def word(self) -> str:
        """The state as people read it: `completed`, `undo failed`."""
        return self.name.lower().replace("_", " ")


ENDED_RUN: Final = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})
OPEN_TASK: Final = frozenset({TaskState.HELD, TaskState.READY, TaskState.LEASED, TaskState.DELAYED, TaskState.WAITING})
SETTLED: Final = "CFSXV!"
"""Letters of nodes that nothing will change any more, but for a retry or an undo."""
