"""The store in memory: one process, one thread, gone at the end. Held to the same contract suite as PostgreSQL.

Coarse on purpose: every operation is one uninterrupted piece of Python, so atomicity costs nothing and the code can be
read as the contract's plainest form. Its time comes from a clock that tests may turn.
"""

from __future__ import annotations

import json
import random
import uuid
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from composer.core.events import Delivery, MapCounts, StoredSignal
from composer.core.items import list_text, part_of
from composer.core.limits import MAX_PAYLOAD
from composer.core.outcomes import each_text
from composer.core.plan import INPUT, Node, Plan, Read, node_read
from composer.core.snapshot import Snapshot
from composer.core.states import ENDED_RUN, OPEN_TASK, NodeState, RunStatus, TaskState
from composer.core.transition import Fence, TaskChange
from composer.errors import TransactionError
from composer.ports.clock import Clock, SystemClock
from composer.ports.store import (
    SUSPECT,
    AuditedRun,
    Beat,
    BegunTask,
    Borrowed,
    ClaimedTask,
    CommitAnswer,
    CommitAnswers,
    Due,
    DueWait,
    HistoryRow,
    ItemAnswer,
    ItemCommit,
    ListedRun,
    MapPage,
    NewRun,
    Presence,
    Renewal,
    RunChanges,
    RunCommit,
    RunHead,
    RunPage,
    RunQuery,
    RunRecord,
    StartAnswer,
    StoredValues,
    TaskRecord,
    UnknownStep,
    Verdict,
    WorkerRecord,
)
from composer.ports.wakeups import RunEnd, Wakeups

_MAPS = frozenset({NodeState.MAPPING, NodeState.DRAINING})
_SETTLED_ITEM = (TaskState.COMPLETED, TaskState.FAILED, TaskState.WITHDRAWN)
_NOT_BEGUN = frozenset({TaskState.HELD, TaskState.READY, TaskState.DELAYED})
_NOT_CLAIMED_AGAIN = frozenset({TaskState.LEASED, TaskState.READY, TaskState.DELAYED, TaskState.HELD})


@dataclass
class _Task:
    node: int
    item: int
    step: str
    queue: str
    priority: int
    reads: tuple[int, ...]
    lease_seconds: float | None
    created_at: datetime
    state: TaskState = TaskState.READY
    attempt: int = 1
    delivery: int = 0
    failures: int = 0
    crashes: int = 0
    owner: str | None = None
    lease_expires_at: datetime | None = None
    wake_at: datetime | None = None
    output: str | None = None
    error: str | None = None
    details: str | None = None
    input: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None


@dataclass
class _Map:
    counts: MapCounts
    most_active: int | None
    digest: str = ""
    is_afresh: bool = False
    active: int = 0
    """Stored items that are neither held nor settled."""


@dataclass
class _Run:
    new: NewRun
    plan_id: int
    snapshot: Snapshot
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None = None
    starts_at: datetime | None = None
    deadline_at: datetime | None = None
    quarantine: str | None = None
    output: str | None = None
    error: str | None = None
    tasks: dict[tuple[int, int], _Task] = field(default_factory=dict[tuple[int, int], _Task])
    history: list[HistoryRow] = field(default_factory=list[HistoryRow])
    signals: list[StoredSignal] = field(default_factory=list[StoredSignal])
    maps: dict[int, _Map] = field(default_factory=dict[int, _Map])


def _outcome(item: _Task) -> tuple[str, str | None, str | None]:
    match item.state:
        case TaskState.COMPLETED:
            return "completed", item.output, None
        case TaskState.FAILED:
            return "failed", None, item.error
        case _:
            return "cancelled", None, None


_Waiting = tuple[int, int, int, str, _Run, _Task]
"""A task that can be claimed: its queue's place, its priority (smaller is sooner), its age, its run's id, run and task."""


def _items(run: _Run, node: int) -> list[_Task]:
    """A map's items, in index order."""
    return [run.tasks[key] for key in sorted(key for key in run.tasks if key[0] == node and key[1] >= 0)]


class MemoryStore:
    """Runs of one namespace, in this process."""

    def __init__(self, *, namespace: str = "default", clock: Clock | None = None) -> None:
        self.namespace, self.max_payload = namespace, MAX_PAYLOAD
        self.wakeups = Wakeups()
        self._clock = clock or SystemClock()
        self._plans: dict[int, Plan] = {}
        self._runs: dict[str, _Run] = {}
        self._keys: dict[tuple[str, str], tuple[str, str]] = {}
        self._outbox: dict[tuple[str, int, int], int] = {}
        self._count = 0
        self._last_id = 0
        self._workers: dict[str, WorkerRecord] = {}
        self._workers_until: dict[str, datetime] = {}

    async def open(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Nothing to give back."""

    def twin(self) -> None:
        """One loop only."""

    async def listen(self) -> None:
        """There are no other processes."""

    async def mint_run_ids(self, count: int) -> list[str]:
        """New run ids, rising."""
        ids: list[str] = []
        for _ in range(count):
            self._last_id = max(int(self._clock.now().timestamp() * 1000) << 12, self._last_id + 1)
            value = (
                (self._last_id >> 12 << 80)
                | (7 << 76)
                | ((self._last_id & 0xFFF) << 64)
                | (2 << 62)
                | random.getrandbits(62)
            )
            ids.append(str(uuid.UUID(int=value)))
        return ids

    async def register_plan(self, plan: Plan) -> int:
        """The plan's id here."""
        for plan_id, known in self._plans.items():
            if known is plan or known.text == plan.text:
                return plan_id
        self._plans[len(self._plans) + 1] = plan
        return len(self._plans)

    async def load_plan(self, plan_id: int) -> Plan:
        """A stored plan."""
        return self._plans[plan_id]

    async def current_plan(self, workflow: str, shape: str) -> int | None:
        """The plan of this shape registered last."""
        ids = [i for i, plan in self._plans.items() if (plan.workflow, plan.shape) == (workflow, shape)]
        return max(ids, default=None)

    async def named_plan(self, workflow: str) -> int | None:
        """The plan of this workflow registered last."""
        return max((i for i, plan in self._plans.items() if plan.workflow == workflow), default=None)

    async def workflow_names(self, limit: int) -> list[str]:
        """Names of the workflows here."""
        return sorted({plan.workflow for plan in self._plans.values()})[:limit]

    # -- runs --------------------------------------------------------------------------------------------
    async def start_runs(self, runs: Sequence[NewRun], *, owner: str = "", lease: float = 0.0) -> list[StartAnswer]:
        """Stores new runs with their root tasks."""
        now = self._clock.now()
        answers: list[StartAnswer] = []
        for new in runs:
            holder, digest = new.run_id, new.digest
            if new.key is not None:
                holder, digest = self._keys.setdefault((new.workflow, new.key), (new.run_id, new.digest))
            created = holder == new.run_id and new.run_id not in self._runs
            answers.append(StartAnswer(holder, created, digest, now.timestamp()))
            if not created:
                continue
            made = new.transition
            run = _Run(new, new.plan_id, made.run, now, now)
            if new.is_scheduled:
                run.starts_at = new.starts_at or now + timedelta(seconds=new.starts_in or 0.0)
            elif new.plan.timeout is not None:
                run.deadline_at = now + timedelta(seconds=new.plan.timeout)
            if made.result is not None:
                run.output, run.error = made.result.output, made.result.error
            if made.ends_run:
                run.finished_at = now
            self._runs[new.run_id] = run
            run.history.append(HistoryRow(1, now, made.history))
            self._open_tasks(new.run_id, run, made.starts, new.leased, owner, lease)
            if run.starts_at or run.deadline_at:
                self.wakeups.timer_set()
        return answers

    def borrow(self, connection: object) -> Borrowed:
        """Refused: what is in memory commits with nothing."""
        raise TransactionError(
            f"these runs are kept in memory, where no transaction of {type(connection).__qualname__} reaches",
            "Use a client of the database the transaction is in, or start without within=.",
        )

    def _open_tasks(
        self, run_id: str, run: _Run, starts: Sequence[Any], leased: Collection[int], owner: str, lease: float
    ) -> None:
        now = self._clock.now()
        plan = self._plans[run.plan_id]
        for start in starts:
            node = plan.nodes[start.node]
            old = run.tasks.get((start.node, start.item))
            priority = max(-100, min(100, node.options.priority + run.new.priority))
            task = _Task(
                start.node,
                start.item,
                node.step,
                node.options.queue,
                priority,
                node.reads,
                node.options.heartbeat_timeout,
                now,
            )
            if old is not None:
                task.attempt, task.delivery, task.created_at = old.attempt + 1, old.delivery, old.created_at
            run.tasks[start.node, start.item] = task
            if start.output is not None:
                task.state, task.output, task.finished_at = TaskState.COMPLETED, start.output, now
            elif start.error is not None:
                task.state, task.error, task.finished_at = TaskState.FAILED, start.error, now
            elif start.waits:
                task.state = TaskState.WAITING
                if start.wake_at is not None:
                    task.wake_at = datetime.fromisoformat(start.wake_at)
                elif start.wake_in is not None:
                    task.wake_at = now + timedelta(seconds=start.wake_in)
                if task.wake_at is not None:
                    self.wakeups.timer_set()
            elif start.node in leased:
                self._lease(task, owner, lease)
            else:
                self._put_out(run_id, task)

    def _put_out(self, run_id: str, task: _Task) -> None:
        self._count += 1
        self._outbox[run_id, task.node, task.item] = self._count
        self.wakeups.tasks_ready((task.queue,))

    def _lease(self, task: _Task, owner: str, lease: float) -> None:
        now = self._clock.now()
        task.state, task.owner = TaskState.LEASED, owner
        task.delivery += 1
        task.started_at = now
        task.lease_expires_at = now + timedelta(seconds=task.lease_seconds or lease)

    async def claim_tasks(
        self, *, queues: Sequence[str], steps: Collection[str], limit: int, owner: str, lease: float
    ) -> list[ClaimedTask]:
        """Leases ready tasks."""
        now = self._clock.now()
        waiting: list[_Waiting] = []
        for (run_id, node, item), order in list(self._outbox.items()):
            run = self._runs[run_id]
            task = run.tasks[node, item]
            if task.state is not TaskState.READY:
                del self._outbox[run_id, node, item]
            elif (
                task.queue in queues
                and task.step in steps
                and run.quarantine is None
                and (run.deadline_at is None or run.deadline_at > now)
            ):
                waiting.append((queues.index(task.queue), -task.priority, order, run_id, run, task))
        claimed: list[ClaimedTask] = []
        waiting.sort(key=lambda each: each[:3])
        has_suspect = False
        for _, _, _, run_id, run, task in self._fairly(waiting, limit):
            if task.crashes >= SUSPECT:
                if has_suspect:
                    continue
                has_suspect = True
            del self._outbox[run_id, task.node, task.item]
            self._lease(task, owner, lease)
            claimed.append(self._claimed(run_id, run, task))
        return claimed

    @staticmethod
    def _fairly(waiting: list[_Waiting], limit: int) -> list[_Waiting]:
        """The first of these, but up to half of them plain steps, so that a big map delays nobody of its priority."""
        top: dict[int, int] = {}
        for queue, priority, *_ in waiting:
            top.setdefault(queue, priority)
        plain = [each for each in waiting if each[5].item < 0 and each[1] <= top[each[0]]][: (limit + 1) // 2]
        rest = [each for each in waiting if not any(each is one for one in plain)]
        return [*plain, *rest[: limit - len(plain)]]

    def _claimed(self, run_id: str, run: _Run, task: _Task) -> ClaimedTask:
        values = {node: text for node in task.reads if (text := self._value(run, node)) is not None}
        errors = {node: text for code in task.reads for node, text in self._error(run, code).items()}
        return ClaimedTask(
            self._head(run_id, run), self._delivery(task), task.step, values, task.input, task.details, errors
        )

    @staticmethod
    def _value(run: _Run, code: int) -> str | None:
        node, what, index = node_read(code)
        if node == INPUT:
            return run.new.input
        if what is Read.OUTPUT:
            task = run.tasks.get((node, -1))
            return task.output if task is not None and task.state is TaskState.COMPLETED else None
        items = _items(run, node)
        if what is Read.OUTCOMES:
            return each_text(_outcome(item) for item in items if item.state is not TaskState.CANCELLED)
        outputs = [t.output or "" for t in items if t.state is TaskState.COMPLETED]
        return list_text(outputs) if what is Read.LIST else part_of(outputs, index)

    @staticmethod
    def _error(run: _Run, code: int) -> dict[int, str]:
        node = node_read(code)[0]
        task = run.tasks.get((node, -1)) if code != INPUT else None
        return {node: task.error or ""} if task is not None and task.state is TaskState.FAILED else {}

    @staticmethod
    def _head(run_id: str, run: _Run) -> RunHead:
        return RunHead(run_id, run.plan_id, run.snapshot, run.new.priority)

    @staticmethod
    def _delivery(task: _Task) -> Delivery:
        at = task.started_at.timestamp() if task.started_at else 0.0
        return Delivery(
            task.node, task.attempt, task.delivery, task.item, task.failures, task.crashes, task.owner or "", at
        )

    async def commit(self, commits: Sequence[RunCommit], *, owner: str = "", lease: float = 0.0) -> CommitAnswers:
        """Applies transitions, each guarded by its run's version and its tasks' fences."""
        answers = [self._commit(commit, owner, lease) for commit in commits]
        return CommitAnswers(answers, self._clock.now().timestamp())

    def _commit(self, commit: RunCommit, owner: str, lease: float) -> CommitAnswer:
        run_id, made = commit.run_id, commit.transition
        run = self._runs.get(run_id)
        if run is None:
            return CommitAnswer(run_id, Verdict.GONE)
        if run.quarantine is not None:
            return CommitAnswer(run_id, Verdict.QUARANTINED)
        if run.snapshot.version != made.run.version - 1:
            return CommitAnswer(run_id, Verdict.LOST, run.snapshot)
        stale = frozenset((c.node, c.item) for c in made.changes if not self._holds(run, c, rare=made.is_rare))
        if stale:
            return CommitAnswer(run_id, Verdict.STALE, run.snapshot, stale)
        late = any(
            run.tasks[c.node, c.item].state is not TaskState.LEASED for c in made.changes if c.fence is Fence.REPORT
        )
        now = self._clock.now()
        run.snapshot, run.updated_at, run.plan_id = made.run, now, commit.plan_id
        self.wakeups.run_changed(run_id)
        run.finished_at = now if made.ends_run else None
        if made.restarts:
            self.wakeups.run_reopened(run_id)
            run.deadline_at = None if commit.deadline_in is None else now + timedelta(seconds=commit.deadline_in)
        if made.result is not None:
            run.output, run.error = made.result.output, made.result.error
        timer = commit.deadline_in is not None
        for change in made.changes:
            self._change(run_id, run, change)
        for number, signal in enumerate(run.signals):
            node = next((node for taken, node in made.taken if taken == signal.id), None)
            run.signals[number] = signal if node is None else replace(signal, node=node)
        for new in made.signals:
            run.signals.append(StoredSignal(len(run.signals) + 1, new.name, new.payload, new.dedupe, new.node))
        if made.stops_open_tasks:
            for task in run.tasks.values():
                if task.state in OPEN_TASK:
                    self._outbox.pop((run_id, task.node, task.item), None)
                    task.state, task.owner, task.lease_expires_at, task.wake_at = TaskState.CANCELLED, None, None, None
                    task.finished_at = now
            self.wakeups.run_stopped(run_id)
        # A rare commit and a late report hand nothing over, as on PostgreSQL: a task opened again is not at its first attempt.
        leased = frozenset[int]() if made.is_rare or late else commit.leased
        self._open_tasks(run_id, run, made.starts, leased, owner, lease)
        run.history.append(HistoryRow(made.run.version, now, made.history))
        if timer:
            self.wakeups.timer_set()
        if made.ends_run:
            self.wakeups.run_ended(run_id, RunEnd(run_id, made.run.status.value, run.output, run.error))
        return CommitAnswer(run_id, Verdict.WON, leased=leased)

    def _change(self, run_id: str, run: _Run, change: TaskChange) -> None:
        now, task = self._clock.now(), run.tasks[change.node, change.item]
        self._outbox.pop((run_id, task.node, task.item), None)
        task.state, task.owner, task.lease_expires_at = change.state, None, None
        task.attempt += change.attempt_add
        task.delivery += change.delivery_add
        task.failures += change.failures_add
        task.crashes += change.crashes_add
        task.output, task.error = change.output, change.error
        task.details = change.details or task.details
        task.wake_at = None if change.delay is None else now + timedelta(seconds=change.delay)
        task.finished_at = None if task.state in OPEN_TASK else now
        if task.state is TaskState.READY:
            self._put_out(run_id, task)
        if change.delay is not None:
            self.wakeups.timer_set()

    def _holds(self, run: _Run, change: TaskChange, *, rare: bool) -> bool:
        task = run.tasks.get((change.node, change.item))
        if change.fence is Fence.WAITING:
            return task is not None and task.state is TaskState.WAITING and change.attempt in (0, task.attempt)
        if task is None or (task.attempt, task.delivery) != (change.attempt, change.delivery):
            return False
        if change.fence is Fence.EXPIRY:
            return (
                task.state is TaskState.LEASED
                and task.lease_expires_at is not None
                and task.lease_expires_at < self._clock.now()
            )
        return task.state in _NOT_CLAIMED_AGAIN

    # -- maps ------------------------------------------------------------------------------------------------
    async def commit_items(self, commits: Sequence[ItemCommit]) -> list[ItemAnswer | None]:
        """Applies reports about map items."""
        return [self._commit_items(each) for each in commits]

    def _commit_items(self, commit: ItemCommit) -> ItemAnswer | None:
        run_id, run = commit.run_id, self._runs.get(commit.run_id)
        if run is None:
            return None
        applied: list[tuple[int, int]] = []
        entries: list[dict[str, Any]] = []
        if run.snapshot.status is RunStatus.RUNNING and run.quarantine is None:
            for item in commit.changes:
                change, letter = item.change, run.snapshot.letters[item.change.node]
                if letter not in _MAPS or not self._holds(run, change, rare=True):
                    continue
                # A map that drains begins nothing again: what would be tried once more is withdrawn.
                drains = letter is NodeState.DRAINING and change.state in (TaskState.READY, TaskState.DELAYED)
                if drains:
                    change = replace(change, state=TaskState.WITHDRAWN, delay=None)
                self._change(run_id, run, change)
                applied.append((change.node, change.item))
                entries.append(json.loads(item.entry) | ({"withdrawn": True} if drains else {}))
        nodes = {node for node, _ in applied}
        for node in nodes:
            self._add_up(run, node, [run.tasks[key] for key in applied if key[0] == node])
            self._free(run_id, run, node)
        if applied:
            self._next_version(run, {"events": entries})
        return ItemAnswer(
            self._head(run_id, run), frozenset(applied), {node: run.maps[node].counts for node in nodes},
            is_quarantined=run.quarantine is not None,
        )  # fmt: skip

    def _add_up(self, run: _Run, node: int, items: Sequence[_Task]) -> None:
        """Adds what has settled to the map's counts."""
        states = Counter(item.state for item in items)
        kept = run.maps[node]
        before = kept.counts
        first = min((t for t in items if t.state is TaskState.FAILED), key=lambda t: t.item, default=None)
        kept.active -= sum(states[state] for state in _SETTLED_ITEM)
        kept.counts = counts = replace(
            before,
            completed=before.completed + states[TaskState.COMPLETED],
            failed=before.failed + states[TaskState.FAILED],
            withdrawn=before.withdrawn + states[TaskState.WITHDRAWN],
        )
        if first is not None and before.first_failed < 0:
            kept.counts = replace(counts, first_failed=first.item, error=first.error or "")
        if kept.counts.has_ended or kept.counts.has_failed:
            due = run.tasks[node, -1].wake_at
            self._wake_map(run, node, 5.0)
            run.tasks[node, -1].wake_at = min(filter(None, (due, run.tasks[node, -1].wake_at)))

    def _wake_map(self, run: _Run, node: int, wake_in: float | None) -> None:
        task = run.tasks[node, -1]
        task.wake_at = None if wake_in is None else self._clock.now() + timedelta(seconds=wake_in)
        if wake_in is not None:
            self.wakeups.timer_set()

    def _free(self, run_id: str, run: _Run, node: int) -> None:
        """Makes held items ready while the map has room."""
        kept = run.maps[node]
        if kept.most_active is None or run.snapshot.letters[node] is not NodeState.MAPPING:
            return
        held = (task for task in _items(run, node) if task.state is TaskState.HELD)
        while kept.counts.held and kept.active < kept.most_active:
            task = next(held)
            task.state = TaskState.READY
            self._put_out(run_id, task)
            kept.active += 1
            kept.counts = replace(kept.counts, held=kept.counts.held - 1)

    def _next_version(self, run: _Run, changes: dict[str, Any]) -> None:
        run.snapshot = replace(run.snapshot, version=run.snapshot.version + 1)
        run.updated_at = self._clock.now()
        run.history.append(HistoryRow(run.snapshot.version, run.updated_at, changes))
        self.wakeups.run_changed(run.new.run_id)

    async def expand_map(self, page: MapPage) -> tuple[bool, MapCounts | None]:
        """Stores the page if it is the map's next one."""
        run = self._runs.get(page.run_id)
        old = run.maps.get(page.node) if run is not None else None
        if (
            run is None
            or run.quarantine is not None
            or run.snapshot.status is not RunStatus.RUNNING
            or run.snapshot.letters[page.node] is not NodeState.MAPPING
            or run.snapshot.counters.retries != page.retries
        ):
            return False, None
        is_new = old is None or old.counts.retries < page.retries
        if page.first != 0 if is_new else (old is not None and old.counts.expanded != page.first):
            return False, old.counts if old else None
        node = page.plan.nodes[page.node]
        if is_new:
            counts = MapCounts(page.total, tolerance=page.tolerance, retries=page.retries)
            is_afresh = old is not None and old.digest != page.digest
            run.maps[page.node] = _Map(counts, node.options.max_concurrency, page.digest, is_afresh)
            if is_afresh:
                # What items gave of the old list is no part of this one. Their rows stay: no delivery is counted anew.
                for task in [t for t in _items(run, page.node) if t.item >= len(page.inputs)]:
                    task.state, task.output, task.error, task.wake_at = TaskState.CANCELLED, None, None, None
                    task.finished_at = self._clock.now()
        kept = run.maps[page.node]
        now, completed, held = self._clock.now(), 0, 0
        priority = max(-100, min(100, node.options.priority + run.new.priority))
        for item, text in enumerate(page.inputs, page.first):
            before = run.tasks.get((page.node, item))
            if before is not None and before.state is TaskState.COMPLETED and not kept.is_afresh:
                completed += 1
                continue
            task = _Task(
                page.node, item, node.step, node.options.queue, priority, node.reads, node.options.heartbeat_timeout, now, input=text,
            )  # fmt: skip
            if before is not None:
                task.attempt, task.delivery, task.created_at = before.attempt + 1, before.delivery, before.created_at
            run.tasks[page.node, item] = task
            if kept.most_active is not None and kept.active >= kept.most_active:
                task.state = TaskState.HELD
                held += 1
            else:
                kept.active += 1
                self._put_out(page.run_id, task)
        counts = kept.counts
        kept.counts = counts = replace(
            counts,
            expanded=counts.expanded + len(page.inputs),
            completed=counts.completed + completed,
            held=counts.held + held,
        )
        run.tasks[page.node, -1].delivery = max(1, run.tasks[page.node, -1].delivery)
        ended = 5.0 if counts.has_ended or counts.has_failed else None
        self._wake_map(run, page.node, 10.0 if counts.expanded < counts.total else ended)
        entry: dict[str, Any] = {
            "event": "items-expanded", "node": node.name, "from": page.first, "to": page.first + len(page.inputs),
        }  # fmt: skip
        self._next_version(run, {"events": [entry | ({"afresh": True} if kept.is_afresh else {})]})
        return True, counts

    async def withdraw_items(self, run_id: str, node: Node, limit: int) -> tuple[int, MapCounts | None]:
        """Withdraws items of a draining map that have not begun."""
        run = self._runs.get(run_id)
        if (
            run is None
            or run.quarantine is not None
            or run.snapshot.status is not RunStatus.RUNNING
            or run.snapshot.letters[node.index] is not NodeState.DRAINING
        ):
            return 0, None
        kept = run.maps[node.index]
        counts = kept.counts
        found = [task for task in _items(run, node.index) if task.state in _NOT_BEGUN][:limit]
        held = sum(task.state is TaskState.HELD for task in found)
        for task in found:
            self._outbox.pop((run_id, task.node, task.item), None)
            task.state, task.wake_at, task.finished_at = TaskState.WITHDRAWN, None, self._clock.now()
        withdrawn = len(found) + counts.total - counts.expanded
        kept.active -= len(found) - held
        kept.counts = counts = replace(
            counts, withdrawn=counts.withdrawn + withdrawn, held=counts.held - held, expanded=counts.total
        )
        self._wake_map(run, node.index, 10.0 if len(found) >= limit else 5.0 if counts.has_ended else None)
        if withdrawn:
            self._next_version(run, {"events": [{"event": "items-withdrawn", "node": node.name, "count": withdrawn}]})
        return len(found), counts

    async def free_items(self, run_id: str, node: int) -> None:
        """Makes held items ready for which a map has room."""
        run = self._runs.get(run_id)
        kept = run.maps.get(node) if run is not None else None
        if (
            run is None
            or kept is None
            or run.quarantine is not None
            or run.snapshot.status is not RunStatus.RUNNING
            or run.snapshot.letters[node] is not NodeState.MAPPING
            or kept.most_active is None
            or not (kept.counts.held and kept.active < kept.most_active)
        ):
            return
        self._wake_map(run, node, None)
        self._free(run_id, run, node)

    async def load_signals(self, run_id: str, names: Sequence[str] | None = None) -> list[StoredSignal]:
        """The run's signals, in the order they came."""
        run = self._runs.get(run_id)
        return [] if run is None else [each for each in run.signals if names is None or each.name in names]

    async def take_due_waits(self, limit: int, pause: float) -> list[DueWait]:
        """Waiting tasks that are due."""
        now = self._clock.now()
        due = [
            (task.wake_at, run_id, run, task)
            for run_id, run in self._runs.items()
            for task in run.tasks.values()
            if task.state is TaskState.WAITING and task.wake_at is not None and task.wake_at <= now
        ]
        due.sort(key=lambda each: each[0])
        for _, _, _, task in due[:limit]:
            task.wake_at = now + timedelta(seconds=pause)
        return [
            DueWait(
                self._head(run_id, run),
                task.node,
                run.maps[task.node].counts if task.node in run.maps else None,
                task.attempt,
                now.isoformat(),
            )
            for _, run_id, run, task in due[:limit]
            if run.quarantine is None
        ]

    async def load_heads(self, run_ids: Sequence[str]) -> dict[str, RunHead]:
        """Runs as they are now."""
        return {run_id: self._head(run_id, self._runs[run_id]) for run_id in run_ids if run_id in self._runs}

    async def load_values(self, wanted: Sequence[tuple[str, int]]) -> StoredValues:
        """What read codes give, and the errors of nodes among them that failed."""
        known = [(run_id, code) for run_id, code in wanted if run_id in self._runs]
        return StoredValues(
            {(i, code): text for i, code in known if (text := self._value(self._runs[i], code)) is not None},
            {(i, node): text for i, code in known for node, text in self._error(self._runs[i], code).items()},
        )

    async def leased_to(self, owner: str, run_ids: Sequence[str] | None) -> list[ClaimedTask]:
        """Tasks of these runs, or of all, that `owner` holds."""
        return [
            self._claimed(run_id, self._runs[run_id], task)
            for run_id in (self._runs if run_ids is None else run_ids)
            if run_id in self._runs
            for task in self._runs[run_id].tasks.values()
            if task.state is TaskState.LEASED and task.owner == owner
        ]

    async def renew(self, beats: Sequence[Beat], *, owner: str) -> list[Renewal]:
        """Extends leases and keeps heartbeat details."""
        return [self._renew(beat) for beat in beats]

    def _renew(self, beat: Beat) -> Renewal:
        run = self._runs.get(beat.run_id)
        task = run.tasks.get((beat.task.node, beat.task.item)) if run else None
        if task is None:
            return Renewal.LOST
        current = (task.attempt, task.delivery) == (beat.task.attempt, beat.task.delivery)
        if current and task.state is TaskState.LEASED:
            task.lease_expires_at = self._clock.now() + timedelta(seconds=beat.lease)
            task.details = beat.details if beat.details is not None else task.details
            return Renewal.OWNED
        if current and task.state in _NOT_CLAIMED_AGAIN:
            return Renewal.EXPIRED
        return Renewal.CANCELLED if task.state is TaskState.CANCELLED else Renewal.LOST

    # -- what the coordinator's loops ask -----------------------------------------------------------------
    async def expired_tasks(self, limit: int) -> list[tuple[RunHead, Delivery]]:
        """Leased tasks whose lease is over."""
        now = self._clock.now()
        found = [
            (task.lease_expires_at, run_id, run, task)
            for run_id, run in self._runs.items()
            if run.quarantine is None
            for task in run.tasks.values()
            if task.state is TaskState.LEASED and task.lease_expires_at is not None and task.lease_expires_at < now
        ]
        found.sort(key=lambda each: each[0])
        return [(self._head(run_id, run), self._delivery(task)) for _, run_id, run, task in found[:limit]]

    async def move_due_tasks(self, limit: int) -> int:
        """Makes delayed tasks that are due ready."""
        now, moved = self._clock.now(), 0
        for run_id, run in self._runs.items():
            for task in run.tasks.values():
                if (
                    task.state is TaskState.DELAYED
                    and task.wake_at is not None
                    and task.wake_at <= now
                    and moved < limit
                ):
                    task.state, task.wake_at = TaskState.READY, None
                    self._put_out(run_id, task)
                    moved += 1
        return moved

    async def due_runs(self, limit: int) -> list[Due]:
        """Runs whose start or deadline has come."""
        now = self._clock.now()
        due: list[Due] = []
        for run_id, run in self._runs.items():
            if run.quarantine is not None:
                continue
            status = run.snapshot.status
            if status is RunStatus.SCHEDULED and run.starts_at is not None and run.starts_at <= now:
                due.append(Due(self._head(run_id, run), "start"))
            elif status is RunStatus.RUNNING and run.deadline_at is not None and run.deadline_at <= now:
                due.append(Due(self._head(run_id, run), "deadline"))
        return due[:limit]

    async def next_due_in(self) -> float | None:
        """Seconds until the next thing comes due."""
        moments: list[datetime | None] = []
        for run in self._runs.values():
            status = run.snapshot.status
            if run.quarantine is not None or status in ENDED_RUN:
                continue
            moments.append(run.starts_at if status is RunStatus.SCHEDULED else run.deadline_at)
            moments += [task.wake_at for task in run.tasks.values()]
        known = [moment for moment in moments if moment is not None]
        return max(0.0, (min(known) - self._clock.now()).total_seconds()) if known else None

    # -- what tests ask beyond the port ---------------------------------------------------------------------
    def next_lease_end_in(self) -> float | None:
        """Seconds until the next lease ends; None when nothing is leased."""
        tasks = [task for run in self._runs.values() for task in run.tasks.values()]
        ends = [task.lease_expires_at for task in tasks if task.lease_expires_at is not None]
        return max(0.0, (min(ends) - self._clock.now()).total_seconds()) if ends else None

    def version_of(self, run_id: str) -> int:
        """The run's version."""
        return self._runs[run_id].snapshot.version

    def keep_details(self, run_id: str, task: Delivery, details: str) -> None:
        """Stores a checkpoint at once, as a renewal would."""
        kept = self._runs[run_id].tasks[task.node, task.item]
        if (kept.attempt, kept.delivery) == (task.attempt, task.delivery):
            kept.details = details

    async def repair_outbox(self, limit: int, older_than: float) -> tuple[int, int]:
        """Puts lost dispatches back, removes dead ones."""
        put = removed = 0
        before = self._clock.now() - timedelta(seconds=older_than)
        for run_id, run in self._runs.items():
            for (node, item), task in run.tasks.items():
                key = (run_id, node, item)
                if task.state is not TaskState.READY and key in self._outbox:
                    del self._outbox[key]
                    removed += 1
                elif (
                    task.state is TaskState.READY
                    and key not in self._outbox
                    and run.quarantine is None
                    and run.updated_at < before
                    and put < limit
                ):
                    self._put_out(run_id, task)
                    put += 1
        return put, removed

    async def quarantine(self, run_id: str, version: int, reason: str) -> bool:
        """Takes a run out of every loop."""
        run = self._runs.get(run_id)
        if run is None or run.snapshot.version != version or run.quarantine is not None:
            return False
        run.quarantine = reason
        for key in [key for key in self._outbox if key[0] == run_id]:
            del self._outbox[key]
        return True

    async def release(self, run_id: str) -> bool:
        """Ends a quarantine."""
        run = self._runs.get(run_id)
        if run is None or run.quarantine is None:
            return False
        run.quarantine = None
        for task in run.tasks.values():
            if task.state is TaskState.READY:
                self._put_out(run_id, task)
        self.wakeups.timer_set()
        return True

    # -- what people ask -----------------------------------------------------------------------------------
    async def run_ends(self, run_ids: Sequence[str]) -> dict[str, RunEnd]:
        """Status, output and error of runs."""
        runs = {run_id: self._runs[run_id] for run_id in run_ids if run_id in self._runs}
        return {i: RunEnd(i, run.snapshot.status.value, run.output, run.error) for i, run in runs.items()}

    async def get_run(self, run_id: str) -> RunRecord | None:
        """A run with its tasks."""
        run = self._runs.get(run_id)
        if run is None:
            return None
        return RunRecord(
            head=self._head(run_id, run),
            workflow=run.new.workflow,
            namespace=self.namespace,
            priority=run.new.priority,
            tags=dict(run.new.tags),
            quarantine=run.quarantine,
            created_at=run.created_at,
            updated_at=run.updated_at,
            finished_at=run.finished_at,
            starts_at=run.starts_at,
            deadline_at=run.deadline_at,
            input=run.new.input,
            output=run.output,
            error=run.error,
            tasks=[self._record(run.tasks[key]) for key in sorted(run.tasks) if key[1] < 0],
            maps={node: each.counts for node, each in sorted(run.maps.items())},
        )

    async def list_runs(self, query: RunQuery, after: str | None, limit: int) -> RunPage:
        """The next runs behind `after`."""
        led = [
            run_id
            for run_id in sorted(self._runs, reverse=query.newest_first)
            if (run := self._runs[run_id])
            and query.workflow in (None, run.new.workflow)
            and (not query.statuses or run.snapshot.status in query.statuses)
            and (after is None or (run_id < after if query.newest_first else run_id > after))
        ]
        page = led[:limit]
        runs = [self._listed(run_id) for run_id in page if self._fits(self._runs[run_id], query)]
        return RunPage(runs, page[-1] if len(page) == limit else None)

    @staticmethod
    def _fits(run: _Run, query: RunQuery) -> bool:
        error: dict[str, Any] = {}
        if query.error_code is not None and run.snapshot.status in (RunStatus.FAILED, RunStatus.CANCELLED):
            error = json.loads(run.error or "{}")
        return (
            query.tags.items() <= run.new.tags.items()
            and query.error_code in (None, error.get("code"), error.get("kind"))
            and (query.since is None or run.created_at >= query.since)
            and (query.until is None or run.created_at < query.until)
        )

    def _listed(self, run_id: str) -> ListedRun:
        run = self._runs[run_id]
        has_error = run.snapshot.status in (RunStatus.FAILED, RunStatus.CANCELLED)
        return ListedRun(
            self._head(run_id, run), run.new.workflow, dict(run.new.tags), run.quarantine, run.created_at, run.finished_at,
            run.error if has_error else None,
        )  # fmt: skip

    async def changes(self, run_id: str, after_version: int, limit: int) -> RunChanges | None:
        """A run and its transitions above a version."""
        run = self._runs.get(run_id)
        if run is None:
            return None
        begun = [
            BegunTask(
                task.node, task.attempt, task.delivery, task.state is TaskState.CANCELLED, task.owner, task.started_at
            )
            for task in run.tasks.values()
            if task.item < 0 and task.state in (TaskState.LEASED, TaskState.CANCELLED) and task.started_at is not None
        ]
        history = [row for row in run.history if row.version > after_version][:limit]
        return RunChanges(self._head(run_id, run), history, sorted(begun, key=lambda each: each.node))

    async def audit(self, after: str | None, limit: int) -> list[AuditedRun]:
        """Runs with all there is of them."""
        found: list[AuditedRun] = []
        for run_id in sorted(run_id for run_id in self._runs if after is None or run_id > after)[:limit]:
            record = await self.get_run(run_id)
            assert record is not None
            tasks = self._runs[run_id].tasks
            record = replace(record, tasks=[self._record(tasks[key]) for key in sorted(tasks)])
            dispatched = frozenset((node, item) for run, node, item in self._outbox if run == run_id)
            found.append(AuditedRun(record, list(self._runs[run_id].history), dispatched))
        return found

    @staticmethod
    def _record(task: _Task) -> TaskRecord:
        return TaskRecord(
            node=task.node, item=task.item, state=task.state.value, attempt=task.attempt, delivery=task.delivery,
            failures=task.failures, crashes=task.crashes, queue=task.queue, owner=task.owner, output=task.output,
            error=task.error, details=task.details, created_at=task.created_at, started_at=task.started_at,
            finished_at=task.finished_at, wake_at=task.wake_at, lease_expires_at=task.lease_expires_at,
        )  # fmt: skip

    async def history(self, run_id: str) -> list[HistoryRow]:
        """Every transition of the run."""
        return list(self._runs[run_id].history) if run_id in self._runs else []

    # -- who is alive: nobody else can be in this process -------------------------------------------------
    async def register_worker(self, worker: WorkerRecord, *, ttl: float) -> None:
        """Remembers the worker."""
        self._workers[worker.worker_id] = worker
        self._workers_until[worker.worker_id] = self._clock.now() + timedelta(seconds=ttl)

    async def presence(self) -> Presence:
        """The workers of this process."""
        now = self._clock.now()
        alive = [self._workers[name] for name in sorted(self._workers) if self._workers_until[name] > now]
        return Presence(now, alive)

    async def forget_worker(self, worker_id: str) -> None:
        """Forgets the worker."""
        self._workers.pop(worker_id, None)

    async def unknown_steps(
        self, *, queues: Sequence[str], steps: Collection[str], limit: int = 10_000
    ) -> list[UnknownStep]:
        """Steps that wait and that nobody knows."""
        now = self._clock.now()
        alive = [worker for worker in self._workers.values() if self._workers_until[worker.worker_id] > now]
        known = {*steps, *(step for worker in alive for step in worker.steps)}
        waiting: dict[str, list[str]] = {}
        for run_id, node, item in sorted(self._outbox, key=self._outbox.__getitem__):
            task = self._runs[run_id].tasks[node, item]
            if task.queue in queues and task.step not in known:
                waiting.setdefault(task.step, []).append(run_id)
        return [UnknownStep(step, len(runs), runs[0]) for step, runs in sorted(waiting.items())]

    async def expire_leases_of_gone(self, host: str, boot_id: str, alive: Collection[tuple[int, float]]) -> list[str]:
        """Ends at once the leases of registered workers that are gone."""
        gone = [
            worker.worker_id
            for worker in self._workers.values()
            if (worker.host, worker.boot_id) == (host, boot_id)
            and not any(pid == worker.pid and abs(start - worker.started_at) < 0.5 for pid, start in alive)
        ]
        for worker_id in gone:
            del self._workers[worker_id]
            for run in self._runs.values():
                for task in run.tasks.values():
                    if task.state is TaskState.LEASED and task.owner == worker_id:
                        task.lease_expires_at = datetime.fromtimestamp(0, self._clock.now().tzinfo)
        return gone

    async def set_sleeping(self, sleeper: str, *, asleep: bool, ttl: float) -> None:
        """Everybody who sleeps here is rung directly."""

    async def make_partitions(self) -> None:
        """Nothing to partition."""
