"""Load, decide, commit, repeat on conflict: the only place where a run changes.

Workers, coordinators and clients all bring their events here. A batch holds events of many runs; each run is decided
for itself, and all go into one commit. Who loses a race decides again on what the winner left, which the commit's
answer already says, so that a lost race costs one more statement.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar

import anyio

from composer.core.decide import decide, one_report_a_task
from composer.core.events import Delivery, Event, ItemsSettled, Report, RetryRequested, StoredSignal
from composer.core.items import ItemChange, item_changes
from composer.core.plan import Node, Plan, node_of, node_read
from composer.core.states import ENDED_RUN, NodeState, TaskState
from composer.core.transition import NeedValues, Transition
from composer.core.values import Values, absent_parts
from composer.errors import PlanError, RunNotFound, StoreError, StoreUnavailable
from composer.ports.store import ClaimedTask, CommitAnswer, ItemAnswer, ItemCommit, RunCommit, RunHead, Store, Verdict

log = logging.getLogger("composer.apply")

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0
_MOST_ROUNDS: Final = 200
"""Lost races before a run's events are given up. Each loss is another's gain, so this many means a defect."""

T = TypeVar("T")
QUARANTINED: Final = "the run is quarantined"
"""Reason of events that a run taken aside did not hear."""
Grant = Callable[[str, Node], bool]
"""Asked for every task that becomes ready, by run id and node: whether the committing worker takes it at once."""


@dataclass(frozen=True, slots=True)
class Ignored:
    """An event that changed nothing, and why."""

    run_id: str
    event: Event
    reason: str


@dataclass(slots=True)
class Applied:
    """What became of a batch."""

    heads: dict[str, RunHead] = field(default_factory=dict[str, RunHead])
    """The runs afterwards, as far as known."""
    transitions: dict[str, Transition] = field(default_factory=dict[str, Transition])
    """What was committed, by run."""
    handed: list[ClaimedTask] = field(default_factory=list[ClaimedTask])
    """Tasks the committing worker got at once."""
    ignored: list[Ignored] = field(default_factory=list[Ignored])
    items: int = 0
    """Reports about map items that were applied."""
    uncertain: set[str] = field(default_factory=set[str])
    """Runs of commits whose answer was lost at least once."""


@dataclass(slots=True)
class _Known:
    """A run as this process last saw it, and the outputs it has at hand."""

    head: RunHead
    plan: Plan
    values: dict[int, str]
    errors: dict[int, str] = field(default_factory=dict[int, str])
    """Errors of failed nodes, where they are read."""

    signals: dict[str, Sequence[StoredSignal]] = field(default_factory=dict[str, Sequence[StoredSignal]])
    """Signals of the run, by name, as they were at its version."""

    def forget_values(self) -> None:
        """The run was opened again: what is at hand may be of its earlier life."""
        self.values.clear()
        self.errors.clear()


@dataclass(slots=True)
class _Round:
    """One run's share of the next commit."""

    known: _Known
    events: list[Event]
    transition: Transition
    leased: frozenset[int]


class Applier:
    """Applies events to runs through one store, on behalf of one owner."""

    def __init__(self, store: Store, *, owner: str = "", lease: float = 15.0) -> None:
        self._store, self._owner, self._lease = store, owner, lease
        self._known: dict[str, _Known] = {}
        self._adopted: dict[str, int] = {}
        """Plans that runs are about to go on with."""

    # -- what a worker knows of the runs it works on ---------------------------------------------------------
    async def remember(self, task: ClaimedTask) -> Plan:
        """Keeps the run of a claimed task at hand, until `forget`. Returns its plan."""
        run_id = task.run.run_id
        known = self._known.get(run_id)
        if known is None or known.head.plan_id != task.run.plan_id:
            plan = await self._load_plan(task.run.plan_id, None)
            self._known[run_id] = known = _Known(task.run, plan, dict(task.values), dict(task.errors))
        else:
            if task.run.snapshot.version > known.head.snapshot.version:
                if task.run.snapshot.counters.retries != known.head.snapshot.counters.retries:
                    known.forget_values()
                known.head = task.run
                known.signals.clear()
            known.values.update(task.values)
            known.errors.update(task.errors)
        return known.plan

    def forget(self, run_id: str) -> None:
        """Nothing of the run is being worked on here any more."""
        self._known.pop(run_id, None)

    # -- applying --------------------------------------------------------------------------------------------
    async def apply(
        self, batch: Mapping[str, Sequence[Event]], *, grant: Grant | None = None, patience: float | None = None
    ) -> Applied:
        """Applies the events of each run, in order. Runs that do not exist have their events ignored.

        When the store is away it is tried again for `patience` seconds (None: until cancelled), then StoreUnavailable
        is raised: the events may or may not have been applied, and applying them again is safe.
        """
        applied = Applied()
        waiting = {run_id: list(events) for run_id, events in batch.items()}
        fresh = await self._load(waiting, applied, patience)
        uncertain = applied.uncertain
        await self._apply_items(waiting, applied, patience)
        for _ in range(_MOST_ROUNDS):
            rounds = {
                run_id: made
                for run_id, events in waiting.items()
                if (made := await self._decide(run_id, events, applied, grant))
            }
            if not rounds:
                break
            commits = [
                RunCommit(
                    run_id,
                    each.known.head.plan_id,
                    each.known.plan,
                    each.transition,
                    priority=each.known.head.priority,
                    leased=each.leased,
                    deadline_in=each.known.plan.timeout if each.transition.restarts else None,
                )
                for run_id, each in rounds.items()
            ]
            answers, at = await self._commit(commits, uncertain, patience)
            waiting = {}
            for answer in answers:
                rest = self._answered(answer, rounds[answer.run_id], applied, at)
                if rest:
                    waiting[answer.run_id] = rest
            if not waiting:
                break
        else:
            log.error("runs lost every race; their events are dropped", extra={"runs": sorted(waiting)})
        if uncertain and self._owner:
            # A commit whose answer was lost may have handed tasks over all the same.
            handed = {(t.run.run_id, t.task.node, t.task.item) for t in applied.handed}
            for task in await persistently(lambda: self._store.leased_to(self._owner, sorted(uncertain)), patience):
                if (task.run.run_id, task.task.node, task.task.item) not in handed:
                    applied.handed.append(task)
        await self._complete_handed(applied)
        for run_id in fresh:
            self._known.pop(run_id, None)
        return applied

    async def apply_one(self, run_id: str, event: Event, *, patience: float | None = 10.0) -> Applied:
        """Applies one event to one run. Raises RunNotFound. A retry that adopts a plan is decided by that plan."""
        if isinstance(event, RetryRequested) and event.adopted_plan is not None:
            self._adopted[run_id] = event.adopted_plan
        try:
            applied = await self.apply({run_id: [event]}, patience=patience)
        finally:
            self._adopted.pop(run_id, None)
        if run_id not in applied.heads:
            raise RunNotFound(run_id, self._store.namespace)
        return applied

    async def _load(self, waiting: dict[str, list[Event]], applied: Applied, patience: float | None) -> list[str]:
        """Looks up the runs not at hand, for this call only: a worker says what it wants remembered. Returns their ids."""
        unknown = [run_id for run_id in waiting if run_id not in self._known]
        if not unknown:
            return []
        heads = await persistently(lambda: self._store.load_heads(unknown), patience)
        for run_id in unknown:
            head = heads.get(run_id)
            if head is None:
                self._ignore(applied, run_id, waiting.pop(run_id), "there is no such run")
                continue
            head = applied.heads[run_id] = replace(head, plan_id=self._adopted.get(run_id, head.plan_id))
            try:
                plan = await self._load_plan(head.plan_id, patience)
            except (PlanError, KeyError, ValueError) as error:
                # One run whose plan cannot be read must not stop the others of its batch, nor the loop.
                await self.quarantine(head, error)
                self._ignore(applied, run_id, waiting.pop(run_id), QUARANTINED)
                continue
            self._known[run_id] = _Known(head, plan, {})
        return unknown

    async def _apply_items(self, waiting: dict[str, list[Event]], applied: Applied, patience: float | None) -> None:
        """Takes reports about map items out of the batch and has them counted; puts in what the counts have come to."""
        reports: dict[str, list[Report]] = {}
        for run_id, events in list(waiting.items()):
            mine = [event for event in events if isinstance(event, Report) and event.task.item >= 0]
            if mine:
                reports[run_id] = mine
                rest = [event for event in events if not (isinstance(event, Report) and event.task.item >= 0)]
                waiting.pop(run_id)
                if rest:
                    waiting[run_id] = rest
        if not reports:
            return
        commits = [
            ItemCommit(run_id, self._known[run_id].plan, self._item_changes(run_id, mine, applied))
            for run_id, mine in reports.items()
        ]
        for commit, answer in zip(commits, await self._commit_items(commits, applied.uncertain, patience), strict=True):
            run_id, known = commit.run_id, self._known[commit.run_id]
            if answer is None:
                self._ignore(applied, run_id, reports[run_id], "there is no such run any more")
                continue
            self._refresh(known, answer.head)
            applied.heads[run_id] = known.head
            applied.items += len(answer.applied)
            for report in reports[run_id]:
                if (report.task.node, report.task.item) not in answer.applied:
                    self._ignore(applied, run_id, [report], _why_not_applied(answer, known.plan, report))
            ends = [
                ItemsSettled(node, counts)
                for node, counts in answer.maps.items()
                if counts.has_ended or counts.has_failed
            ]
            if ends:
                waiting[run_id] = [*ends, *waiting.get(run_id, ())]

    def _item_changes(self, run_id: str, reports: Sequence[Report], applied: Applied) -> list[ItemChange]:
        kept, outdone = one_report_a_task(reports)
        for report in outdone:
            self._ignore(applied, run_id, [report], "another report of the task is in the same batch")
        return item_changes(self._known[run_id].plan, kept)

    async def _commit_items(
        self, commits: list[ItemCommit], uncertain: set[str], patience: float | None
    ) -> list[ItemAnswer | None]:
        def lost(_: StoreUnavailable) -> None:
            uncertain.update(commit.run_id for commit in commits)

        try:
            return await persistently(lambda: self._store.commit_items(commits), patience, lost)
        except StoreError as error:
            # One run that the database will not have must not stop the others of its batch, nor the loop.
            if len(commits) > 1:
                return [
                    answer for commit in commits for answer in await self._commit_items([commit], uncertain, patience)
                ]
            run_id = commits[0].run_id
            known = self._known[run_id]
            # Others report items of the same run: its version is another one by now.
            heads = await persistently(lambda: self._store.load_heads([run_id]), patience)
            if run_id not in heads:
                return [None]
            self._refresh(known, heads[run_id])
            await self.quarantine(known.head, error)
            return [ItemAnswer(known.head, frozenset(), is_quarantined=True)]

    @staticmethod
    def _refresh(known: _Known, head: RunHead) -> None:
        """The run as a store has just said it is."""
        if head.snapshot.counters.retries != known.head.snapshot.counters.retries:
            known.forget_values()
        known.signals.clear()
        if head.snapshot.version >= known.head.snapshot.version:
            known.head = replace(head, plan_id=known.head.plan_id)

    async def _load_plan(self, plan_id: int, patience: float | None) -> Plan:
        return await persistently(lambda: self._store.load_plan(plan_id), patience)

    async def _decide(self, run_id: str, events: list[Event], applied: Applied, grant: Grant | None) -> _Round | None:
        known = self._known[run_id]
        applied.heads[run_id] = known.head
        while True:
            try:
                decision = decide(
                    known.plan,
                    known.head.snapshot,
                    events,
                    known.values,
                    known.errors,
                    known.signals,
                    max_payload=self._store.max_payload,
                )
            except Exception as error:
                # One run that cannot be decided must not stop the others of its batch, nor the loop.
                await self.quarantine(known.head, error)
                self._ignore(applied, run_id, events, QUARANTINED)
                return None
            if not isinstance(decision, NeedValues):
                break
            if decision.signals:
                # Whoever stores one makes a new version, so that they cannot be older than the run when its commit wins.
                stored = await persistently(partial(self._store.load_signals, run_id, decision.signals), None)
                for name in decision.signals:
                    known.signals[name] = [each for each in stored if each.name == name]
            wanted = [(run_id, code) for code in decision.nodes]
            if not wanted:
                continue
            found = await persistently(partial(self._store.load_values, wanted), None)
            known.values.update({code: text for (_, code), text in found.outputs.items()})
            known.errors.update({node: text for (_, node), text in found.errors.items()})
            # That a list has no such item is for the decision to say; that an output is gone is for nobody.
            known.values.update(absent_parts(decision.nodes, known.values))
            missing = [
                code for code in decision.nodes if code not in known.values and node_read(code)[0] not in known.errors
            ]
            if missing:
                # Nobody has them: either what is known of the run is out of date, or something is lost.
                heads = await persistently(partial(self._store.load_heads, [run_id]), None)
                now = heads.get(run_id)
                if now is not None and now.snapshot.version > known.head.snapshot.version:
                    known.head = applied.heads[run_id] = replace(now, plan_id=known.head.plan_id)
                    known.forget_values()
                    known.signals.clear()
                    continue
                await self.quarantine(known.head, LookupError(f"stored values {missing} are missing"))
                self._ignore(applied, run_id, events, QUARANTINED)
                return None
        if decision.is_empty:
            for event, reason in decision.ignored:
                self._ignore(applied, run_id, [event], reason)
            return None
        nodes = known.plan.nodes
        taken = (
            start.node
            for start in decision.starts
            if grant is not None and start.is_ready and grant(run_id, nodes[start.node])
        )
        return _Round(known, events, decision, frozenset(taken))

    async def _commit(
        self, commits: list[RunCommit], uncertain: set[str], patience: float | None
    ) -> tuple[Sequence[CommitAnswer], float]:
        def lost(_: StoreUnavailable) -> None:
            # The same statement again: it queues behind a ghost that is still committing, and the fence answers.
            uncertain.update(commit.run_id for commit in commits)

        try:
            answers = await persistently(
                lambda: self._store.commit(commits, owner=self._owner, lease=self._lease), patience, lost
            )
        except StoreError as error:
            # One run that the database will not have must not stop the others of its batch, nor the loop.
            if len(commits) > 1:
                each = [await self._commit([commit], uncertain, patience) for commit in commits]
                return [answer for answers, _ in each for answer in answers], each[-1][1]
            await self.quarantine(self._known[commits[0].run_id].head, error)
            return [CommitAnswer(commits[0].run_id, Verdict.QUARANTINED)], 0.0
        return answers.answers, answers.at

    def _answered(self, answer: CommitAnswer, made: _Round, applied: Applied, at: float) -> list[Event]:
        """Takes one answer in; returns the events that have to be decided again."""
        run_id, known = answer.run_id, made.known
        match answer.verdict:
            case Verdict.WON:
                known.head = RunHead(run_id, known.head.plan_id, made.transition.run, known.head.priority)
                known.signals.clear()
                applied.heads[run_id] = known.head
                applied.transitions[run_id] = made.transition
                # Only now: had the commit lost, what was ignored would have been decided again too.
                for event, reason in made.transition.ignored:
                    self._ignore(applied, run_id, [event], reason)
                for change in made.transition.changes:
                    if change.output is not None:
                        known.values[change.node] = change.output
                    elif change.error is not None and change.state is TaskState.FAILED:
                        known.errors[change.node] = change.error
                for node in sorted(answer.leased):
                    delivery = Delivery(node, 1, 1, worker=self._owner, claimed_at=at)
                    applied.handed.append(ClaimedTask(known.head, delivery, known.plan.nodes[node].step, {}))
                return []
            case Verdict.LOST | Verdict.STALE:
                assert answer.now is not None
                known.signals.clear()
                if answer.now.counters.retries != known.head.snapshot.counters.retries:
                    known.forget_values()
                known.head = RunHead(run_id, known.head.plan_id, answer.now, known.head.priority)
                if answer.now.status in ENDED_RUN:
                    self._store.wakeups.run_ended(run_id, None)
                if not answer.stale:
                    return made.events
                keep: list[Event] = []
                for event in made.events:
                    if isinstance(event, Report) and (event.task.node, event.task.item) in answer.stale:
                        self._ignore(
                            applied, run_id, [event], "the task was handed out again, or ended, since this delivery"
                        )
                    else:
                        keep.append(event)
                return keep
            case Verdict.GONE:
                self._ignore(applied, run_id, made.events, "there is no such run any more")
                applied.heads.pop(run_id, None)
            case Verdict.QUARANTINED:
                self._ignore(applied, run_id, made.events, QUARANTINED)
        return []

    async def _complete_handed(self, applied: Applied) -> None:
        """Gives every task handed over the outputs its arguments read: mostly at hand, else one read for all."""
        if not applied.handed:
            return
        missing: list[tuple[str, int]] = []
        for task in applied.handed:
            known = self._known[task.run.run_id]
            known.values.update(task.values)
            known.errors.update(task.errors)
            node = known.plan.nodes[task.task.node]
            at_hand = Values.of(known.head.snapshot, known.values, known.errors)
            missing += [(task.run.run_id, index) for index in at_hand.lacking(node.reads, node.reads_settled)]
        if missing:
            found = await persistently(lambda: self._store.load_values(missing), None)
            for (run_id, index), text in found.outputs.items():
                self._known[run_id].values[index] = text
            for (run_id, index), text in found.errors.items():
                self._known[run_id].errors[index] = text
        completed: list[ClaimedTask] = []
        for task in applied.handed:
            known = self._known[task.run.run_id]
            reads = known.plan.nodes[task.task.node].reads
            values = {n: known.values[n] for n in reads if n in known.values}
            errors = {n: known.errors[n] for n in map(node_of, reads) if n in known.errors}
            completed.append(ClaimedTask(known.head, task.task, task.step, values, task.input, task.details, errors))
        applied.handed = completed

    async def quarantine(self, head: RunHead, error: BaseException) -> None:
        """Takes a run aside that cannot be decided, with the reason, and says so in the log."""
        reason = f"{type(error).__name__}: {error}"
        log.error(
            "a run cannot be decided and is quarantined",
            extra={"run_id": head.run_id, "version": head.snapshot.version, "reason": reason},
            exc_info=error,
        )
        await persistently(lambda: self._store.quarantine(head.run_id, head.snapshot.version, reason), None)

    @staticmethod
    def _ignore(applied: Applied, run_id: str, events: Sequence[Event], reason: str) -> None:
        applied.ignored += [Ignored(run_id, event, reason) for event in events]


def _why_not_applied(answer: ItemAnswer, plan: Plan, report: Report) -> str:
    run = answer.head.snapshot
    if answer.is_quarantined:
        return QUARANTINED
    if run.status in ENDED_RUN:
        return f"the run is {run.status.value}"
    letter = run.letters[report.task.node]
    if letter not in (NodeState.MAPPING, NodeState.DRAINING):
        return f"node {plan.nodes[report.task.node].name} is {letter.word}"
    return "the item was handed out again, or ended, since this delivery"


async def persistently(
    call: Callable[[], Awaitable[T]], patience: float | None, lost: Callable[[StoreUnavailable], None] | None = None
) -> T:
    """What `call` returns, trying again with growing pauses while the store is away, for `patience` seconds at most.

    `lost` hears of every failed try. Raises the last StoreUnavailable once patience is spent.
    """
    pause, spent = _FIRST_PAUSE, 0.0
    while True:
        try:
            return await call()
        except StoreUnavailable as error:
            if lost is not None:
                lost(error)
            if patience is not None and spent >= patience:
                raise
            log.warning("the store is away; trying again", extra={"error": str(error), "pause": round(pause, 2)})
        # Full jitter above half, so that many processes do not come back in step.
        wait = pause * (0.5 + random.random() / 2)
        await anyio.sleep(wait)
        spent += wait
        pause = min(pause * 2, _LONGEST_PAUSE)
