"""explain(): for every open node of a run what it waits for, and for an ended run why it has ended.

What a node waits for in general its kind says; its task's row says how far that is, and who lives says whether anybody
can move it. The three are read one after the other, so that a node may have gone on meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from composer.core.decide import explain as explain_node
from composer.core.plan import Node, Plan
from composer.core.states import ENDED_RUN, SETTLED, NodeState, RunStatus, TaskState
from composer.ports.store import Presence, RunRecord, TaskRecord

_MOST_NAMED: Final = 5
_LATE: Final = timedelta(seconds=30)
"""Overdue by more than this, a timer or lease is one that no coordinator looks at."""


@dataclass(frozen=True, slots=True)
class NodeExplanation:
    """An open node and what it waits for. `state` is as in client.get()."""

    node: str
    state: str
    text: str
    """For people, one line."""
    is_stuck: bool = False
    """Whether nobody alive can move it: no worker serves its queue and knows its step, or no coordinator looks at its timer."""
    blocked_by: Sequence[str] = ()
    """Nodes it needs that have not ended."""
    worker: str | None = None
    """Who runs it."""
    until: datetime | None = None
    """When it goes on at the latest: the next attempt, a sleep's end, a wait's timeout, the end of the worker's lease."""
    error: str | None = None
    """Type and message of its last failure."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a run is where it is. str() of it is for people."""

    run_id: str
    workflow: str
    status: str
    text: str
    """About the run as a whole, one line."""
    nodes: Sequence[NodeExplanation]
    """The open nodes, in the plan's order."""
    quarantine: str | None = None
    """Why the run was taken out of every loop, if it was."""

    def __str__(self) -> str:
        lines = [f"run {self.run_id} of workflow {self.workflow!r} is {self.status}: {self.text}"]
        lines += [f"  {'! ' if each.is_stuck else ''}{each.node}: {each.text}" for each in self.nodes]
        return "\n".join(lines)


def explanation(record: RunRecord, plan: Plan, present: Presence) -> Explanation:
    """What a run, its plan and who lives tell together."""
    run = record.head.snapshot
    nodes: list[NodeExplanation] = []
    if run.status not in ENDED_RUN:
        tasks = {task.node: task for task in record.tasks if task.item < 0}
        for node in plan.nodes:
            letter = run.letters[node.index]
            if letter not in SETTLED:
                nodes.append(_node(node, letter, tasks.get(node.index), record, plan, present))
    text = _why(record, nodes, present.at)
    return Explanation(record.head.run_id, record.workflow, run.status.value, text, nodes, record.quarantine)


def _why(record: RunRecord, nodes: Sequence[NodeExplanation], now: datetime) -> str:
    run = record.head.snapshot
    if record.quarantine is not None:
        return (
            f"it could not be decided and was taken aside ({record.quarantine}); client.release(run_id) lets it go on"
        )
    if run.status is RunStatus.SCHEDULED:
        return f"it starts at {_at(record.starts_at)}{_overdue(record.starts_at, now)}"
    if run.status is RunStatus.COMPLETED:
        return f"it completed at {_at(record.finished_at)}"
    if run.status in ENDED_RUN:
        error = _decoded(record.error)
        where = f" at node {error['node']!r}" if error.get("node") else ""
        text = _error(error)
        return f"{error.get('code', 'no reason is stored')}{where}{f': {text}' if text else ''}"
    stuck = sum(each.is_stuck for each in nodes)
    more = f", {stuck} of them stuck" if stuck else ""
    deadline = f"; its deadline is {_at(record.deadline_at)}{_overdue(record.deadline_at, now)}"
    return f"{len(nodes)} of {len(run.letters)} nodes are open{more}{deadline if record.deadline_at else ''}"


def _node(
    node: Node, letter: NodeState, task: TaskRecord | None, record: RunRecord, plan: Plan, present: Presence
) -> NodeExplanation:
    made = NodeExplanation(node.name, letter.word, explain_node(node, letter))
    if letter is NodeState.BLOCKED:
        return _blocked(made, node, record, plan)
    if letter in (NodeState.MAPPING, NodeState.DRAINING):
        return _map(made, node, record, present)
    if task is None:
        return made
    if letter is NodeState.WAITING:
        late = _overdue(task.wake_at, present.at)
        if node.kind == "sleep":
            made = replace(made, text=f"sleeps until {_at(task.wake_at)}{late}")
        elif task.wake_at is not None:
            made = replace(made, text=f"{made.text}, until {_at(task.wake_at)}{late}")
        return replace(made, until=task.wake_at, is_stuck=bool(late))
    return _task(made, node, task, present) if letter is NodeState.ACTIVE else made


def _blocked(made: NodeExplanation, node: Node, record: RunRecord, plan: Plan) -> NodeExplanation:
    letters = record.head.snapshot.letters
    names = [plan.nodes[need].name for need in node.needs if letters[need] not in SETTLED]
    if not names:
        text = "starts with the run" if record.head.snapshot.status is RunStatus.SCHEDULED else made.text
        return replace(made, text=text)
    named = ", ".join(names[:_MOST_NAMED])
    rest = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    first = "the first of " if node.kind == "race" and len(names) > 1 else ""
    return replace(made, text=f"waits for {first}{named}{rest}", blocked_by=tuple(names))


def _map(made: NodeExplanation, node: Node, record: RunRecord, present: Presence) -> NodeExplanation:
    counts = record.maps.get(node.index)
    if counts is None or counts.retries < record.head.snapshot.counters.retries:
        return replace(made, text="its items are about to be stored by a coordinator")
    text = f"{counts.settled:,} of {counts.total:,} items have ended, {counts.failed:,} of them failed"
    if counts.held:
        text += f"; {counts.held:,} wait for their turn (max_concurrency {node.options.max_concurrency})"
    if made.state == NodeState.DRAINING.word:
        text += "; too many failed, and it waits for those that still run"
    missing = _missing(node.step, node.options.queue, present)
    error = _error(_decoded(counts.error)) or None
    return replace(made, text=f"{text}{missing and '; ' + missing}", is_stuck=bool(missing), error=error)


def _task(made: NodeExplanation, node: Node, task: TaskRecord, present: Presence) -> NodeExplanation:
    error = _error(_decoded(task.error))
    made = replace(made, state=task.state, error=error or None)
    last = f"; last error: {error}" if error else ""
    if task.state == TaskState.LEASED:
        owner = next((each for each in present.workers if each.worker_id == task.owner), None)
        where = f" on {owner.host}" if owner else ", which is not heard of any more,"
        text = (
            f"step {node.step} runs in worker {task.owner}{where} since {_at(task.started_at)}, attempt {task.attempt}"
        )
        late = _overdue(task.lease_expires_at, present.at)
        text = f"{text}; its lease ends at {_at(task.lease_expires_at)} unless renewed{late}{last}"
        return replace(made, text=text, is_stuck=bool(late), worker=task.owner, until=task.lease_expires_at)
    missing = _missing(node.step, task.queue, present)
    if task.state == TaskState.DELAYED:
        late = _overdue(task.wake_at, present.at)
        crashed = f"; {task.crashes} of its workers were lost" if task.crashes else ""
        text = f"step {node.step} is tried again at {_at(task.wake_at)}{late}, attempt {task.attempt}{crashed}{last}"
        text = f"{text}{missing and '; ' + missing}"
        return replace(made, text=text, until=task.wake_at, is_stuck=bool(late or missing))
    # A task that was handed out before is ready again since a moment that no row has.
    since = f" since {_at(task.created_at)}" if task.delivery == 0 and task.attempt == 1 else ""
    text = f"step {node.step} is ready{since}, for a worker of queue {task.queue!r}{missing and '; ' + missing}{last}"
    return replace(made, text=text, is_stuck=bool(missing))


def _missing(step: str, queue: str, present: Presence) -> str:
    """Why nobody alive can run the step; "" when somebody can."""
    serving = [worker for worker in present.workers if queue in worker.queues]
    if not serving:
        return f"no live worker serves queue {queue!r}"
    if not any(step in worker.steps for worker in serving):
        return f"no live worker of queue {queue!r} knows step {step!r}"
    return ""


def _overdue(moment: datetime | None, now: datetime) -> str:
    late = moment is not None and now - moment > _LATE
    return ", long past: no coordinator is at work" if late else ""


def _decoded(text: str | None) -> Mapping[str, Any]:
    """A stored error. One that was damaged is no reason not to explain the rest."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"message": "the stored error cannot be read"}


def _error(error: Mapping[str, Any]) -> str:
    return ": ".join(str(error[name]) for name in ("type", "message") if error.get(name))


def _at(moment: datetime | None) -> str:
    return "an unknown moment" if moment is None else moment.isoformat(sep=" ", timespec="seconds")
