"""Draft: the transition under construction. Node kinds write on it; decide() turns it into a Transition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from composer.core.events import Delivery, Event, Failure
from composer.core.plan import Node, Plan
from composer.core.snapshot import Counters, Letters, Snapshot
from composer.core.states import OPEN_TASK, SETTLED, NodeState, RunStatus, TaskState
from composer.core.transition import Fence, RunResult, TaskChange, TaskStart, Transition


def entry_of(plan: Plan, event: str, task: Delivery, **facts: Any) -> dict[str, Any]:
    """The history entry of a delivery that ended."""
    entry: dict[str, Any] = {"event": event, **facts}
    entry["node"] = plan.nodes[task.node].name
    entry["attempt"] = task.attempt
    entry["delivery"] = task.delivery
    if task.item >= 0:
        entry["item"] = task.item
    if task.worker:
        entry["worker"] = task.worker
    if task.claimed_at:
        entry["claimed_at"] = round(task.claimed_at, 6)
    return entry


class Draft:
    """What is known and what was decided so far, for one run and one batch of events."""

    __slots__ = (
        "_before", "changes", "counters", "entries", "ignored", "letters", "newly_settled", "plan",
        "reset", "restarts", "result", "starts", "status", "stops", "values", "wanted",
    )  # fmt: skip

    def __init__(self, plan: Plan, before: Snapshot, values: Mapping[int, str]) -> None:
        self.plan = plan
        self._before = before
        self.values = dict(values)
        """Outputs known to this decision, as JSON text."""
        self.status = before.status
        self.letters: list[str] = list(before.letters.text)
        self.counters = before.counters
        self.changes: dict[tuple[int, int], TaskChange] = {}
        self.starts: list[TaskStart] = []
        self.stops = False
        self.restarts = False
        self.reset: list[int] = []
        self.result: RunResult | None = None
        self.entries: list[dict[str, Any]] = []
        self.ignored: list[tuple[Event, str]] = []
        self.newly_settled: list[int] = []
        self.wanted: dict[int, None] = {}
        """Read codes without whose values this cannot be decided."""

    @property
    def is_unborn(self) -> bool:
        """Whether the run has had no transition yet, and none is under way."""
        return self._before.version == 0 and not self.entries

    # -- what node kinds say ---------------------------------------------------------------------------
    def activate(self, node: Node) -> None:
        """The node's task becomes ready."""
        self.letters[node.index] = NodeState.ACTIVE
        self.starts.append(TaskStart(node.index, reopened=self.counters.retries > 0))

    def wait(self, node: Node, state: NodeState, *, wake_in: float | None = None) -> None:
        """The node has a task that waits; a coordinator looks at it in `wake_in` seconds."""
        self.letters[node.index] = state
        reopened = self.counters.retries > 0
        self.starts.append(TaskStart(node.index, reopened=reopened, waits=True, wake_in=wake_in))

    def end_wait(self, node: Node, state: TaskState, *, error: str | None = None, wake_in: float | None = None) -> None:
        """The task that waits for the node ends, or is looked at again in `wake_in` seconds."""
        self.change(TaskChange(node.index, -1, Fence.WAITING, 0, 0, state, error=error, delay=wake_in))

    def has_values(self, codes: Sequence[int]) -> bool:
        """Whether all of these can be read now. What is missing is asked for, and the decision begins again."""
        missing = [code for code in codes if code not in self.values]
        self.wanted.update(dict.fromkeys(missing))
        return not missing

    def settle(self, node: int, state: NodeState) -> None:
        """The node has reached its end; whoever needs it is looked at next."""
        self.letters[node] = state
        self.newly_settled.append(node)

    def change(self, change: TaskChange) -> None:
        """The task's one outcome in this batch."""
        self.changes[change.node, change.item] = change

    def fail(self, node: Node, failure: Failure, **facts: Any) -> None:
        """The node has failed for good. The run's first failure, within a batch by plan order, becomes its error."""
        self.settle(node.index, NodeState.FAILED)
        first = self.counters.first_failure
        if first < 0 or (node.index < first and self._before.counters.first_failure < 0):
            self.counters = Counters(node.index, self.counters.retries)
            self.result = RunResult(error=failure.encode(code="node-failed", node=node.name, **facts))

    def record(self, event: str, task: Delivery | None = None, **facts: Any) -> None:
        """A history entry. With a task it is the record of how a delivery ended."""
        self.entries.append({"event": event, **facts} if task is None else entry_of(self.plan, event, task, **facts))

    def ignore(self, event: Event, reason: str) -> None:
        """The event changes nothing."""
        self.ignored.append((event, reason))

    def stop(self, status: RunStatus, error: str | None) -> None:
        """The run ends now: what is open is cancelled, what has settled stays."""
        self.status = status
        self.stops = True
        self.result = RunResult(error=error)
        self.starts.clear()
        for change in self.changes.values():
            if change.state in OPEN_TASK:
                change.state, change.delay = TaskState.CANCELLED, None
        for index, letter in enumerate(self.letters):
            if letter not in SETTLED:
                self.letters[index] = NodeState.CANCELLED
        self.newly_settled.clear()

    # -- the end -----------------------------------------------------------------------------------------
    def transition(self) -> Transition:
        """What the decision comes to."""
        before = self._before
        if not self.entries:
            return Transition(before, ignored=self.ignored)
        letters = Letters.of(self.letters)
        after = Snapshot(self.status, before.version + 1, letters, self.counters)
        history: dict[str, Any] = {"events": self.entries}
        if before.version == 0 or self.status is not before.status:
            history["status"] = self.status.value
        old, new = before.letters.text, letters.text
        if old != new:
            nodes = self.plan.nodes
            history["nodes"] = {nodes[i].name: new[i] for i in range(len(new)) if old[i] != new[i]}
        if self.counters != before.counters:
            history["counters"] = self.counters.encode()
        if self.reset:
            history["reset"] = [self.plan.nodes[i].name for i in self.reset]
        return Transition(
            after,
            changes=list(self.changes.values()),
            starts=self.starts,
            stops_open_tasks=self.stops,
            result=self.result,
            restarts=self.restarts and self.status is RunStatus.RUNNING,
            history=history,
            ignored=self.ignored,
        )
