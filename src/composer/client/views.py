"""What a client shows of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from composer.core.events import MapCounts
from composer.core.plan import Node, Plan
from composer.core.snapshot import Snapshot
from composer.core.states import ENDED_RUN, NodeState, RunStatus
from composer.errors import RunCancelled, RunFailed
from composer.ports.store import RunRecord, TaskRecord


@dataclass(frozen=True, slots=True)
class MapProgress:
    """How far a map is, in items. `total` = completed + failed + withdrawn + open."""

    total: int
    completed: int
    failed: int
    withdrawn: int
    """Items that will not run, because too many others failed before they began."""

    @property
    def open(self) -> int:
        """Items that run, wait for a worker or for their turn."""
        return self.total - self.completed - self.failed - self.withdrawn


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node of a run. `state` is a word: blocked, ready, leased, delayed, completed, failed, skipped, cancelled, ..."""

    name: str
    state: str
    step: str
    attempt: int = 0
    """Attempts begun or waited for; 0 before the first."""
    failures: int = 0
    crashes: int = 0
    error: Mapping[str, Any] | None = None
    """The last failure: kind, type, message, causes, traceback."""
    worker: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    next_attempt_at: datetime | None = None
    """Of a wait or a sleep: when its time is over."""
    items: MapProgress | None = None
    """Of a map that has begun."""
    answer: bool | None = None
    """What a condition said; None for every other node, and while it has not been asked."""


@dataclass(frozen=True, slots=True)
class RunView:
    """A run at one instant. `input`, `output` and `error` are decoded JSON; `nodes` are in the plan's order."""

    id: str
    workflow: str
    status: str
    namespace: str
    priority: int
    tags: Mapping[str, str]
    input: Any
    output: Any
    error: Mapping[str, Any] | None
    quarantine: str | None
    nodes: Sequence[NodeView]
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    starts_at: datetime | None
    deadline_at: datetime | None

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will happen to it by itself."""
        return self.status in ENDED_RUN


def view(record: RunRecord, plan: Plan) -> RunView:
    """The run as people see it."""
    tasks = {task.node: task for task in record.tasks}
    letters = record.head.snapshot.letters
    return RunView(
        id=record.head.run_id,
        workflow=record.workflow,
        status=record.head.snapshot.status.value,
        namespace=record.namespace,
        priority=record.priority,
        tags=record.tags,
        input=_decoded(record.input),
        output=_decoded(record.output),
        error=_decoded(record.error),
        quarantine=record.quarantine,
        nodes=[
            _guard(node, record.head.snapshot)
            if node.kind == "guard"
            else _node(node, letters[node.index], tasks.get(node.index), record.maps.get(node.index))
            for node in plan.nodes
        ],
        created_at=record.created_at,
        updated_at=record.updated_at,
        finished_at=record.finished_at,
        starts_at=record.starts_at,
        deadline_at=record.deadline_at,
    )


def _decoded(text: str | None) -> Any:
    """The value of a stored text. One that was damaged is shown as it is: whoever looks must be able to see it."""
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return text


def _guard(node: Node, run: Snapshot) -> NodeView:
    letter = run.letters[node.index]
    answer = node.index not in run.counters.no if letter is NodeState.COMPLETED else None
    return NodeView(node.name, letter.word, "", answer=answer)


def _node(node: Node, letter: NodeState, task: TaskRecord | None, counts: MapCounts | None) -> NodeView:
    if task is None or letter is NodeState.BLOCKED:
        return NodeView(node.name, letter.word, node.step)
    # An active node's task says more than its letter: ready, leased or delayed.
    state = task.state if letter is NodeState.ACTIVE else letter.word
    # Only steps have attempts; what else a node's task tells is since when it waits.
    is_step = node.kind == "step"
    return NodeView(
        node.name,
        state,
        node.step,
        attempt=task.attempt if is_step else 0,
        failures=task.failures,
        crashes=task.crashes,
        error=_decoded(task.error),
        worker=task.owner,
        started_at=task.started_at if is_step else task.created_at,
        finished_at=task.finished_at,
        next_attempt_at=None if node.kind == "map" else task.wake_at,
        items=MapProgress(counts.total, counts.completed, counts.failed, counts.withdrawn) if counts else None,
    )


def failure_of(run_id: str, workflow: str, status: str, error_text: str | None) -> RunFailed | RunCancelled:
    """The exception that says how a run that did not complete ended."""
    error: dict[str, Any] = json.loads(error_text) if error_text else {}
    if status == RunStatus.CANCELLED:
        return RunCancelled(run_id, workflow, error.get("message", ""))
    return RunFailed(
        run_id,
        workflow,
        failure=error.get("code", "failed"),
        node=error.get("node"),
        error_type=error.get("type", ""),
        message=error.get("message", ""),
        traceback=error.get("traceback", ""),
        attempt=error.get("attempt"),
        kind=error.get("kind", ""),
        causes=error.get("causes", ()),
    )
