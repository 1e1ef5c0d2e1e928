"""Draft: the transition under construction. Node kinds write on it; decide() turns it into a Transition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from composer.core.events import Delivery, Event, Failure, StoredSignal
from composer.core.plan import Node, Plan
from composer.core.snapshot import Letters, Snapshot
from composer.core.states import OPEN_TASK, SETTLED, NodeState, RunStatus, TaskState
from composer.core.transition import Fence, NewSignal, RunResult, TaskChange, TaskStart, Transition
from composer.core.values import Values


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
        "_before", "_signals", "answers", "changes", "counters", "entries", "errors", "follows", "ignored", "letters", "missing", "missing_signals",
        "newly_settled", "plan", "reset", "restarts", "result", "signals", "starts", "status", "stops", "taken", "unevaluable", "values",
    )  # fmt: skip

    def __init__(
        self,
        plan: Plan,
        before: Snapshot,
        values: Mapping[int, str],
        errors: Mapping[int, str],
        signals: Mapping[str, Sequence[StoredSignal]] | None = None,
    ) -> None:
        self.plan = plan
        self._before = before
        self.values = dict(values)
        """Outputs known to this decision, as JSON text by read code."""
        self.errors = dict(errors)
        """Errors of failed nodes known to this decision, as JSON text."""
        self.missing: list[int] = []
        """Read codes of what has to be known before anything can be decided."""
        self._signals = signals
        self.missing_signals: dict[str, None] = {}
        """Names of the signals that have to be known before anything can be decided."""
        self.signals: list[NewSignal] = []
        self.taken: list[tuple[int, int]] = []
        self.answers: dict[int, bool] = {}
        """What guards answered."""
        self.unevaluable: dict[int, str] = {}
        """Why guards could not."""
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
        self.follows: list[dict[str, Any]] = []
        self.ignored: list[tuple[Event, str]] = []
        self.newly_settled: list[int] = []

    @property
    def is_unborn(self) -> bool:
        """Whether the run has had no transition yet, and none is under way."""
        return self._before.version == 0 and not self.entries

    def known(self) -> Values:
        """How nodes have ended, as far as this decision knows."""
        return Values(self.letters, self.values, self.errors, self.counters.timed_out)

    # -- what node kinds say ---------------------------------------------------------------------------
    def activate(self, node: Node) -> None:
        """The node's task becomes ready."""
        self.letters[node.index] = NodeState.ACTIVE
        self.starts.append(TaskStart(node.index, reopened=self.counters.retries > 0))

    def wait(self, node: Node, state: NodeState, *, wake_in: float | None = None, wake_at: str | None = None) -> None:
        """The node has a task that waits; a coordinator looks at it in `wake_in` seconds, or at a moment."""
        self.letters[node.index] = state
        self.starts.append(
            TaskStart(node.index, reopened=self.counters.retries > 0, waits=True, wake_in=wake_in, wake_at=wake_at)
        )

    def end_wait(
        self,
        node: Node,
        state: TaskState,
        *,
        output: str | None = None,
        error: str | None = None,
        wake_in: float | None = None,
        attempt: int = 0,
    ) -> None:
        """The task that waits for the node ends, or is looked at again in `wake_in` seconds.

        With an `attempt` only the wait of that attempt does. One that was opened in this very decision just does not begin.
        """
        started = next((start for start in self.starts if start.node == node.index and start.item < 0), None)
        if started is not None:
            self.starts.remove(started)
            if output is not None or error is not None:
                self.starts.append(TaskStart(node.index, reopened=started.reopened, output=output, error=error))
            return
        self.change(
            TaskChange(node.index, -1, Fence.WAITING, attempt, 0, state, output=output, error=error, delay=wake_in)
        )

    def withdraw(self, node: Node) -> None:
        """The task that waits for the node is not needed any more."""
        self.end_wait(node, TaskState.WITHDRAWN)

    def has_all(self, reads: Sequence[int], settled: Sequence[int] = ()) -> bool:
        """Whether all of these read codes can be read now. What is missing is asked for, and the decision begins again."""
        lacking = self.known().lacking(reads, settled)
        self.missing += lacking
        return not lacking

    def settle(self, node: int, state: NodeState) -> None:
        """The node has reached its end; whoever needs it is looked at next."""
        self.letters[node] = state
        self.newly_settled.append(node)

    def change(self, change: TaskChange) -> None:
        """The task's one outcome in this batch."""
        self.changes[change.node, change.item] = change
        if change.state is TaskState.FAILED and change.item < 0 and change.error is not None:
            self.errors[change.node] = change.error

    def answer(self, node: Node, answer: bool) -> None:
        """The guard has answered."""
        self.answers[node.index] = answer
        if not answer:
            self.counters = replace(self.counters, no=tuple(sorted({*self.counters.no, node.index})))
        self.settle(node.index, NodeState.COMPLETED)

    def fail(self, node: Node, failure: Failure, code: str = "node-failed", **facts: Any) -> None:
        """The node has failed for good. The run's first failure, within a batch by plan order, becomes its error.

        One that nobody can handle comes before one that somebody reads through settled().
        """
        self.settle(node.index, NodeState.FAILED)
        first, handleable = self.counters.first_failure, self.plan.handleable
        is_first = first < 0 or (node.index < first and self._before.counters.first_failure != first)
        if first >= 0 and (first in handleable) != (node.index in handleable):
            is_first = first in handleable
        if is_first:
            self.counters = replace(self.counters, first_failure=node.index)
            self.result = RunResult(error=failure.encode(code=code, node=node.name, **facts))

    def complete_unstarted(self, node: Node, output: str) -> None:
        """The node has completed before there was anything to wait for: its task is stored as completed."""
        self.starts.append(TaskStart(node.index, reopened=self.counters.retries > 0, output=output))
        self.values[node.index] = output
        self.settle(node.index, NodeState.COMPLETED)

    # -- signals -----------------------------------------------------------------------------------------
    def signals_of(self, name: str) -> Sequence[StoredSignal] | None:
        """The signals of this name that the run has; None when they have to be known first, which is asked for."""
        if self._before.version == 0:
            return ()
        if self._signals is None or name not in self._signals:
            self.missing_signals[name] = None
            return None
        return self._signals[name]

    def take_signal(self, node: Node) -> StoredSignal | None:
        """The oldest kept signal of the node's event, which it takes; one without a payload when that is not known yet."""
        stored = self.signals_of(node.event)
        if stored is None:
            return StoredSignal(0, node.event, "")
        for number, new in enumerate(self.signals):
            if new.name == node.event and new.node is None and not any(self._is_kept(each) for each in stored):
                self.signals[number] = replace(new, node=node.index)
                return StoredSignal(0, new.name, new.payload, new.dedupe)
        for each in stored:
            if self._is_kept(each):
                self.taken.append((each.id, node.index))
                return each
        return None

    def _is_kept(self, signal: StoredSignal) -> bool:
        return signal.node is None and all(signal.id != taken for taken, _ in self.taken)

    def begin_waiting(self, node: Node) -> None:
        """The node waits for an event; the order counts where another one waits for the same."""
        if len(self.plan.events[node.event]) > 1:
            self.counters = replace(self.counters, waiting=(*self.counters.waiting, node.index))

    def end_waiting(self, node: Node) -> None:
        """The node waits no more."""
        if node.index in self.counters.waiting:
            waiting = tuple(index for index in self.counters.waiting if index != node.index)
            self.counters = replace(self.counters, waiting=waiting)

    def time_out(self, node: Node) -> None:
        """The wait completed with the answer that stands in for the event."""
        self.counters = replace(self.counters, timed_out=(*self.counters.timed_out, node.index))

    def fail_unstarted(self, node: Node, failure: Failure) -> None:
        """The node has failed before there was anything to run: its task is stored as failed, for those who read the error."""
        error = failure.encode(node=node.name)
        self.starts.append(TaskStart(node.index, reopened=self.counters.retries > 0, error=error))
        self.errors[node.index] = error
        self.fail(node, failure)

    def record(self, event: str, task: Delivery | None = None, **facts: Any) -> None:
        """A history entry. With a task it is the record of how a delivery ended."""
        self.entries.append({"event": event, **facts} if task is None else entry_of(self.plan, event, task, **facts))

    def follow(self, what: str, node: Node, **facts: Any) -> None:
        """Something that follows from the events, for people: no event by itself."""
        self.follows.append({"event": what, "node": node.name, **facts})

    def ignore(self, event: Event, reason: str) -> None:
        """The event changes nothing."""
        self.ignored.append((event, reason))

    def stop(self, status: RunStatus, error: str | None) -> None:
        """The run ends now: what is open is cancelled, what has settled stays."""
        self.status = status
        self.stops = True
        self.result = RunResult(error=error)
        # What has ended without a task stays ended, and whoever reads it after a retry needs its value.
        self.starts = [start for start in self.starts if start.has_ended]
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
        nodes, reset = self.plan.nodes, set(self.reset)
        # A node that was reset and has come to the same end again has its letter told, as "reset" says it is blocked.
        if old != new or reset:
            told = (i for i in range(len(new)) if old[i] != new[i] or (i in reset and new[i] != NodeState.BLOCKED))
            history["nodes"] = {nodes[i].name: new[i] for i in told}
        if self.follows:
            history["follows"] = self.follows
        if self.answers:
            history["guards"] = {nodes[i].name: answer for i, answer in sorted(self.answers.items())}
        if self.unevaluable:
            history["unevaluable"] = {nodes[i].name: why for i, why in sorted(self.unevaluable.items())}
        if self.counters != before.counters:
            history["counters"] = self.counters.encode()
        if self.reset:
            history["reset"] = [nodes[i].name for i in self.reset]
        return Transition(
            after,
            changes=list(self.changes.values()),
            starts=self.starts,
            stops_open_tasks=self.stops,
            signals=self.signals,
            taken=self.taken,
            result=self.result,
            restarts=self.restarts and self.status is RunStatus.RUNNING,
            history=history,
            ignored=self.ignored,
        )
