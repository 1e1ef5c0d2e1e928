"""explain(): for every open node of a run what it waits for, and for an ended run why it has ended."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from composer.core.decide import explain as explain_node
from composer.core.plan import Node, Plan
from composer.core.states import ENDED_RUN, SETTLED, NodeState, RunStatus, TaskState
from composer.ports.store import Presence, RunRecord, TaskRecord

_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class NodeExplanation:
    """An open node and what it waits for. `state` is as in client.get(); `is_stuck` says that nobody alive can move it."""

    node: str
    state: str
    text: str
    is_stuck: bool = False


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a run is where it is. Its text is for people."""

    run_id: str
    workflow: str
    status: str
    text: str
    nodes: Sequence[NodeExplanation]
    """The open nodes, in the plan's order."""

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
    return Explanation(record.head.run_id, record.workflow, run.status.value, _why(record, nodes), nodes)


def _why(record: RunRecord, nodes: Sequence[NodeExplanation]) -> str:
    run = record.head.snapshot
    if record.quarantine is not None:
        return (
            f"it could not be decided and was taken aside ({record.quarantine}); client.release(run_id) lets it go on"
        )
    if run.status is RunStatus.SCHEDULED:
        return f"it starts at {_at(record.starts_at)}"
    if run.status in ENDED_RUN:
        if run.status is RunStatus.COMPLETED:
            return f"it completed at {_at(record.finished_at)}"
        error: dict[str, Any] = json.loads(record.error or "{}")
        where = f" at node {error['node']!r}" if error.get("node") else ""
        text = ": ".join(str(error[key]) for key in ("type", "message") if error.get(key))
        return f"{error.get('code', 'no reason is stored')}{where}{': ' + text if text else ''}"
    stuck = sum(each.is_stuck for each in nodes)
    deadline = f"; its deadline is {_at(record.deadline_at)}" if record.deadline_at is not None else ""
    more = f", {stuck} of them wait for a worker that is not there" if stuck else ""
    return f"{len(nodes)} of {len(run.letters)} nodes are open{more}{deadline}"


def _node(
    node: Node, letter: NodeState, task: TaskRecord | None, record: RunRecord, plan: Plan, present: Presence
) -> NodeExplanation:
    words, stuck, state = explain_node(node, letter), False, letter.word
    if letter is NodeState.BLOCKED:
        open_needs = [plan.nodes[n].name for n in node.needs if record.head.snapshot.letters[n] not in SETTLED]
        named = ", ".join(open_needs[:_MOST_NAMED])
        rest = f" and {len(open_needs) - _MOST_NAMED} more" if len(open_needs) > _MOST_NAMED else ""
        words = f"waits for {named}{rest}" if open_needs else words
    elif letter in (NodeState.MAPPING, NodeState.DRAINING):
        counts = record.maps.get(node.index)
        if counts is None:
            words = "its items are about to be stored by a coordinator"
        else:
            open_items = counts.total - counts.settled
            words = f"{counts.settled:,} of {counts.total:,} items have ended, {counts.failed:,} of them failed; {open_items:,} are open"
            missing = _missing(node, present)
            words, stuck = (f"{words}; {missing}", True) if missing else (words, False)
    elif task is not None and letter is NodeState.WAITING:
        if node.kind == "sleep":
            words = f"sleeps until {_at(task.wake_at)}"
        elif task.wake_at is not None:
            words = f"{words}, until {_at(task.wake_at)}"
    elif task is not None and letter is NodeState.ACTIVE:
        state = task.state
        words, stuck = _task(node, task, present)
    return NodeExplanation(node.name, state, words, stuck)


def _task(node: Node, task: TaskRecord, present: Presence) -> tuple[str, bool]:
    match task.state:
        case TaskState.LEASED:
            host = next((f" on {each.host}" for each in present.workers if each.worker_id == task.owner), "")
            return (
                f"step {node.step} runs in worker {task.owner}{host} since {_at(task.started_at)} (attempt {task.attempt}), "
                f"whose lease ends at {_at(task.lease_expires_at)}",
                False,
            )
        case TaskState.DELAYED:
            error: dict[str, Any] = json.loads(task.error or "{}")
            text = f" after {error.get('type', 'a failure')}: {error.get('message', '')}" if task.error else ""
            return f"step {node.step} is tried again at {_at(task.wake_at)} (attempt {task.attempt}){text}", False
        case _:
            missing = _missing(node, present)
            text = f"step {node.step} is {task.state}, for a worker of queue {task.queue!r}"
            return (f"{text}; {missing}", True) if missing else (text, False)


def _missing(node: Node, present: Presence) -> str:
    """Why nobody alive can run the node's step; "" when somebody can."""
    serving = [worker for worker in present.workers if node.options.queue in worker.queues]
    if not serving:
        return f"no live worker serves queue {node.options.queue!r}"
    if not any(node.step in worker.steps for worker in serving):
        return f"no live worker of queue {node.options.queue!r} knows step {node.step!r}"
    return ""


def _at(moment: datetime | None) -> str:
    return "an unknown moment" if moment is None else moment.isoformat(sep=" ", timespec="seconds")
