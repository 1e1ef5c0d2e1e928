"""The worker: claims tasks, runs their bodies, commits what they report.

Four things go on side by side, in one task group:

- the claimer leases ready tasks while slots are free, and sleeps while there is nothing to do;
- the bodies, one task each; plain functions in threads, or in processes (processes.py);
- the committer: while one commit is under way, finished steps gather, and the next commit takes them all. What a
  commit makes ready, this worker takes over at once where it can, without a claim;
- the keeper (leases.py), in a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import os
import socket
import time
from collections.abc import Mapping, Sequence
from types import CodeType
from typing import Any, Final

import anyio

from composer.apply import Applier, persistently
from composer.core.events import Delivery, Event, Report, StepCompleted, StepFailed, StepReleased, StepSnoozed
from composer.core.plan import Node
from composer.define.context import NO_LIFESPAN
from composer.define.step import Step
from composer.define.surroundings import Around
from composer.define.workflow import Workflow
from composer.errors import PlanError, StoreUnavailable
from composer.ports.store import SUSPECT, ClaimedTask, Renewal, Store, WorkerRecord
from composer.ports.wakeups import Bell
from composer.settings import Settings
from composer.worker.attempt import Attempt
from composer.worker.incarnation import boot_id, new_id, processes_alive, this_process_started
from composer.worker.leases import Keeper
from composer.worker.places import Places
from composer.worker.processes import ProcessPool

log = logging.getLogger("composer.worker")

MOST_CLAIMED: Final = 200
"""Tasks asked for in one claim."""
MOST_REPORTS: Final = 300
"""Reports in one commit: above it a commit grows without growing faster."""
MOST_COMMITTED: Final = 8_000_000
"""Characters of results and checkpoints in one commit, but for a single larger one: a statement is sent and read whole."""
MOST_IN_A_ROW: Final = 32
"""Tasks of one run a worker takes over one after the other, before the run queues with all others."""
_APART: Final = 0.05
"""Seconds between the beginnings of two bodies whose tasks have lost workers again and again."""
_SLEEP_TTL: Final = 30.0
_SLEEP_RENEWED: Final = 10.0
_LAST_WORDS: Final = 2.0
"""Seconds bodies get to end once they were told to, before their tasks are given back without them."""
_LAST_COMMIT: Final = 5.0
"""Seconds that commits get to reach the database when the worker closes."""
_MOST_REMEMBERED: Final = 10_000
"""Ended deliveries that are remembered: more than end while one answer is on its way."""
_OLD_THREAD: Final = 30.0
"""Seconds a body may outlive its attempt before it is warned about, and between warnings."""


_Key = tuple[int, int, int, int]


def _key(task: Delivery) -> _Key:
    """Which delivery of its run it is, whatever else two sources know of it."""
    return task.node, task.item, task.attempt, task.delivery


class WorkerLoop:
    """Runs steps of some workflows. `run` lasts until it is cancelled or drained."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        steps: Mapping[str, Step[..., Any]],
        *,
        resources: Any = NO_LIFESPAN,
        around: Sequence[Around] = (),
    ) -> None:
        self.id = new_id()
        """This incarnation."""
        self.resources = resources
        self.max_payload = store.max_payload
        self.around = around
        isolated = [step for step in steps.values() if step.isolation == "process"]
        self.processes = ProcessPool(isolated) if isolated else None
        self.draining = False
        self.closing = False
        self.executed = 0
        """Bodies started since the start."""
        self._store, self._settings, self._steps = store, settings, steps
        self._codes: dict[CodeType, str] = {step.fn.__code__: name for name, step in steps.items()}
        self._applier = Applier(store, owner=self.id, lease=settings.lease)
        self._attempts: set[Attempt] = set()
        self._by_run: dict[str, dict[_Key, Attempt]] = {}
        """What is under way here, by run and delivery: a map may have thousands of items in one run."""
        self._in_a_row: dict[str, int] = {}
        self._places = Places(
            steps,
            slots=settings.concurrency,
            threads=settings.threads,
            processes=settings.processes or os.cpu_count() or 1,
        )
        self._reports: list[tuple[Attempt, Report]] = []
        self._reported = Bell()
        self._freed = Bell()
        self._idle = Bell()
        self._committing = False
        self._commit_scope = anyio.CancelScope()
        self._last_moment = math.inf
        """When, on the loop's clock, a commit under way is given up."""
        self._claim_was_full = False
        self._over: dict[tuple[str, _Key], None] = {}
        """Deliveries that ended here lately."""
        self._asleep_until = 0.0
        self._bodies: set[asyncio.Task[None]] = set()
        self._keeper: Keeper | None = None
        self._context = contextvars.Context()
        """What bodies see of ContextVars: what was set when the worker started, and nothing of other bodies or callers."""

    # -- life ------------------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Works until drained (see `drain`) or cancelled; a cancelled worker gives back what it holds."""
        self._context = contextvars.copy_context()
        twin = self._store.twin()
        keeper = Keeper(
            twin or self._store,
            owner=self.id,
            lease=self._settings.lease,
            lost=self._lost,
            record=self.record,
            step_at=self._codes.get,
        )
        self._keeper = keeper
        await persistently(lambda: self._store.register_worker(self.record(), ttl=self._settings.lease * 2), 30.0)
        await self._expire_gone()
        try:
            with self._store.wakeups.on_stops(self._stopped):
                async with anyio.create_task_group() as group:
                    if twin is not None:
                        keeper.start()
                    else:
                        group.start_soon(keeper.keep)
                    self._store.wakeups.taker = self
                    group.start_soon(self._commit_loop)
                    group.start_soon(self._watch_bodies)
                    try:
                        await self._claim_loop()
                        await self._finish()
                    finally:
                        group.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(10):
                await self._release_all()
                if self.processes is not None:
                    await self.processes.close()
                await keeper.stop()
                await self._forget()

    def drain(self) -> None:
        """No new tasks from now on; running ones get the grace time, then they are given back, and `run` returns."""
        self._stop_taking()
        self._freed.ring()
        self._idle.ring()

    def _stop_taking(self) -> None:
        self.draining = True
        if self._store.wakeups.taker is self:
            self._store.wakeups.taker = None

    @property
    def lease(self) -> float:
        """Seconds of its leases."""
        return self._settings.lease

    @property
    def process_places(self) -> int:
        """How many process steps it runs at the same time."""
        return self._places.processes.limit

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs, waits to be committed or is being committed."""
        return not self._attempts and not self._reports and not self._committing

    def record(self) -> WorkerRecord:
        """What the store knows of this incarnation."""
        return WorkerRecord(
            self.id,
            socket.gethostname(),
            boot_id(),
            os.getpid(),
            this_process_started(),
            self._settings.queues,
            sorted(self._steps),
        )

    async def _expire_gone(self) -> None:
        """Work that an earlier process of this machine left behind need not wait for its lease to end."""
        boot = boot_id()

        async def expire() -> list[str]:
            # Looked up for each try: a process that started since must not be missing from it.
            alive = processes_alive()
            if alive is None or not boot:
                return []
            return await self._store.expire_leases_of_gone(socket.gethostname(), boot, alive)

        gone = await persistently(expire, 10.0)
        if gone:
            log.warning(
                "workers of this machine are gone; their leases end now", extra={"workers": gone, "count": len(gone)}
            )

    async def _forget(self) -> None:
        try:
            await self._store.forget_worker(self.id)
        except StoreUnavailable as error:
            log.info("the registration of this worker is left to expire", extra={"error": str(error)})

    # -- claiming ----------------------------------------------------------------------------------------------
    @property
    def _has_work(self) -> bool:
        return bool(self._reports) or self._committing or any(not attempt.reported for attempt in self._attempts)

    async def _claim_loop(self) -> None:
        settings = self._settings
        with self._store.wakeups.on_tasks(settings.queues) as ready:
            self._idle = ready
            while not self.draining:
                free = self._free_slots()
                if free <= 0:
                    await self._freed.wait(settings.poll_interval)
                    continue
                full = more = False
                for steps, limit in self._places.askable(min(free, MOST_CLAIMED)):
                    limit = min(limit, self._free_slots())
                    full = limit > 0 and await self._claim_and_begin(steps, limit)
                    more = more or full
                    if not full:
                        break
                self._claim_was_full = full
                if not more:
                    await self._sleep(ready)

    async def _claim_and_begin(self, steps: Sequence[str], limit: int) -> bool:
        """Whether there may be more: there were as many tasks as were asked for, or one that comes apart from its like."""
        with self._places.promised(limit):
            claimed = await self._claim(steps, limit)
        for task in claimed:
            self._in_a_row[task.run.run_id] = 0
            await self._begin(task)
        if any(task.task.crashes >= SUSPECT for task in claimed):
            # A moment in which a short body ends and is stored, before another one ends this process.
            await anyio.sleep(_APART)
            return True
        return len(claimed) == limit

    async def _claim(self, steps: Sequence[str], limit: int) -> list[ClaimedTask]:
        settings = self._settings
        was_lost = False

        def lost(_: StoreUnavailable) -> None:
            nonlocal was_lost
            was_lost = True

        claimed = await persistently(
            lambda: self._store.claim_tasks(
                queues=settings.queues, steps=steps, limit=limit, owner=self.id, lease=settings.lease
            ),
            None,
            lost,
        )
        if was_lost:
            # A claim whose answer was lost may have leased tasks all the same: they would wait for their leases to end.
            # Which of them are here already, or were, `_begin` knows.
            return await persistently(lambda: self._store.leased_to(self.id, None), None)
        return claimed

    async def _sleep(self, ready: Bell) -> None:
        """Waits for work. Others pay for a notification only while somebody is known to sleep."""
        now = time.monotonic()
        if now > self._asleep_until:
            self._asleep_until = now + _SLEEP_RENEWED
            await persistently(lambda: self._store.set_sleeping(self.id, asleep=True, ttl=_SLEEP_TTL), None)
            return  # What became ready before that was not announced: look once more.
        await ready.wait(self._settings.poll_interval)

    def _free_slots(self) -> int:
        if len(self._reports) >= MOST_REPORTS:
            # Bodies end faster than their results are stored: what is not stored is lost with this process.
            return 0
        return self._places.slots.free

    # -- bodies ------------------------------------------------------------------------------------------------
    async def _begin(self, claimed: ClaimedTask) -> None:
        """Starts the body of a leased task, unless it is here already, or was.

        After an answer was lost, the reading back and a claim whose answer is slow may both bring it; the body that one of
        them began may have ended by the time the other one comes.
        """
        try:
            plan = await self._applier.remember(claimed)
        except (PlanError, KeyError, ValueError) as error:
            # One run whose plan cannot be read must not stop the rest of its batch, nor the loop.
            await self._applier.quarantine(claimed.run, error)
            return
        run_id = claimed.run.run_id
        key = _key(claimed.task)
        if key in self._by_run.get(run_id, {}) or (run_id, key) in self._over:
            if run_id not in self._by_run:
                self._applier.forget(run_id)
            return
        step = self._steps[claimed.step]
        attempt = Attempt(self, claimed, plan, step)
        self._attempts.add(attempt)
        self._by_run.setdefault(run_id, {})[key] = attempt
        self._places.take(step)
        self.executed += 1
        assert self._keeper is not None
        self._keeper.hold(attempt)
        # Not in the task group: a body that swallows its cancellation must not keep the worker from ending. The set is
        # its parent instead, and `_release_all` ends what is in it, or leaves it behind with a warning.
        # In a context of its own: tasks come out of claims, commits and the calls of clients in this process.
        attempt.work = asyncio.create_task(
            attempt.run(), name=f"{claimed.step} of run {run_id}", context=self._context.copy()
        )
        self._bodies.add(attempt.work)
        attempt.work.add_done_callback(self._bodies.discard)
        # A task that is cancelled before its first step runs none of its own clean-up.
        attempt.work.add_done_callback(lambda _: attempt.ensure_over())

    def report(self, attempt: Attempt, event: Report) -> None:
        """Takes an attempt's report to the next commit."""
        self._reports.append((attempt, event))
        self._reported.ring()

    def body_ended(self, attempt: Attempt) -> None:
        """A body has really ended: its slot is free."""
        self._attempts.discard(attempt)
        was_wanted = self._places.leave(attempt.step)
        # One that ran out of time is still to be committed: until then its run is not forgotten, and it is known here.
        if attempt.stopped and not attempt.released and attempt.overtime is None:
            self._dismiss(attempt)
        self._freed.ring()
        if was_wanted:
            self._idle.ring()

    def beat(self, attempt: Attempt) -> None:
        """A sign of life from a body."""
        assert self._keeper is not None
        self._keeper.beat(attempt)

    def _dismiss(self, attempt: Attempt) -> None:
        """The attempt is over as far as the store is concerned."""
        assert self._keeper is not None
        self._keeper.drop(attempt)
        run_id = attempt.claimed.run.run_id
        self._over[run_id, _key(attempt.task)] = None
        if len(self._over) > _MOST_REMEMBERED:
            del self._over[next(iter(self._over))]
        here = self._by_run.get(run_id)
        if here is not None:
            here.pop(_key(attempt.task), None)
            if not here:
                del self._by_run[run_id]
                self._in_a_row.pop(run_id, None)
                self._applier.forget(run_id)

    # -- what ends attempts from outside -----------------------------------------------------------------------
    def _stopped(self, run_id: str) -> None:
        for attempt in tuple(self._by_run.get(run_id, {}).values()):
            if not attempt.reported:
                attempt.stop()

    def _lost(self, attempt: Attempt, answer: Renewal) -> None:
        if attempt.reported or attempt.stopped:
            return
        if answer is Renewal.LOST:
            log.warning(
                "a lease was lost: somebody else has the task now; the body is told to stop", extra=attempt.facts()
            )
        attempt.stop()

    async def _watch_bodies(self) -> None:
        """Names bodies that go on although nobody waits for them any more: they keep their slots."""
        while True:
            await anyio.sleep(1.0)
            now = time.monotonic()
            for attempt in tuple(self._attempts):
                if attempt.stopped and now - attempt.warned >= _OLD_THREAD:
                    attempt.warned = now
                    log.warning(
                        "a body goes on after its attempt ended, and keeps its slot",
                        extra={
                            **attempt.facts(),
                            "seconds": round(now - attempt.started, 1),
                            "in_thread": attempt.thread,
                        },
                    )

    # -- committing --------------------------------------------------------------------------------------------
    async def _commit_loop(self) -> None:
        while True:
            if not self._reports:
                await self._reported.wait(None)
                continue
            batch = self._next_batch()
            self._committing = True
            try:
                # A commit that was cut off in the middle would lose its reports. When the worker closes, its time is limited.
                with anyio.CancelScope(shield=True, deadline=self._last_moment) as self._commit_scope:
                    await self._commit(batch)
            finally:
                self._committing = False
                self._freed.ring()
                batch = ()  # Until the next commit the results in it would stay in memory.

    def _next_batch(self) -> Sequence[tuple[Attempt, Report]]:
        """Takes the reports of the next commit, in their order."""
        size = count = 0
        for _, report in self._reports[:MOST_REPORTS]:
            size += _size_of(report)
            if count and size > MOST_COMMITTED:
                break
            count += 1
        batch, self._reports = self._reports[:count], self._reports[count:]
        return batch

    async def _commit(self, batch: Sequence[tuple[Attempt, Report]]) -> None:
        granted: list[Node] = []

        def grant(run_id: str, node: Node) -> bool:
            given = self.grant(run_id, node)
            if given:
                granted.append(node)
            return given

        try:
            applied = await self._applier.apply(_by_run(batch), grant=grant)
        finally:
            self._places.unreserve(node.step for node in granted)
        for task in applied.handed:
            # What a commit handed over although its answer was lost was not granted, and is taken all the same.
            self._places.reserve(self._steps[task.step])
        await self.take(applied.handed)
        for ignored in applied.ignored:
            self._explain(
                ignored.run_id, ignored.event, ignored.reason, certain=ignored.run_id not in applied.uncertain
            )
        for attempt, _ in batch:
            self._dismiss(attempt)

    def grant(self, run_id: str, node: Node) -> bool:
        """Whether this worker takes a task that has just become ready, instead of leaving it to a claim."""
        step = self._steps.get(node.step)
        options = node.options
        if (
            step is None
            or self.draining
            or self._claim_was_full
            or self._in_a_row.get(run_id, 0) >= MOST_IN_A_ROW
            or options.concurrency is not None
            or options.rate_limit is not None
            or options.queue not in self._settings.queues
            or self._free_slots() <= 0
            or not self._places.has_place(step)
        ):
            return False
        self._places.reserve(step)
        return True

    async def take(self, tasks: Sequence[ClaimedTask]) -> None:
        """Runs tasks that were granted, and are leased to this worker already."""
        self._places.unreserve(task.step for task in tasks)
        if self.closing:
            # They come too late: nobody would commit what their bodies report.
            await self._give_back(_releases(tasks))
            return
        for task in tasks:
            run_id = task.run.run_id
            self._in_a_row[run_id] = self._in_a_row.get(run_id, 0) + 1
            await self._begin(task)

    def refuse(self, nodes: Sequence[Node]) -> None:
        """Tasks that were granted, and do not come after all."""
        self._places.unreserve(node.step for node in nodes)
        self._freed.ring()

    @staticmethod
    def _explain(run_id: str, event: Event, reason: str, *, certain: bool) -> None:
        if isinstance(event, Report):
            task = event.task
            # After a commit whose answer was lost, the second try finds what the first has done: nothing to worry about.
            log.log(
                logging.WARNING if certain else logging.INFO,
                f"a report was not applied: {reason}",
                extra={
                    "run_id": run_id,
                    "node": task.node,
                    "attempt": task.attempt,
                    "delivery": task.delivery,
                    "reason": reason,
                },
            )

    # -- the end -----------------------------------------------------------------------------------------------
    async def _finish(self) -> None:
        """Lets running bodies end, for the grace time; what is left is told to stop and given back."""
        with anyio.move_on_after(self._settings.grace):
            while self._has_work:
                await self._freed.wait(0.2)
        if any(not attempt.reported for attempt in self._attempts):
            log.warning("the grace time is over; unfinished steps are given back", extra={"count": len(self._attempts)})
        if self._has_work:
            # Also where all have ended: while the store is away a commit of their results would go on for ever.
            await self._release_all()

    async def _release_all(self) -> None:
        """Gives back every task this worker still holds, and commits what was reported."""
        self._stop_taking()
        self.closing = True
        for attempt in tuple(self._attempts):
            if not attempt.reported:
                attempt.stop(released=True)
        if self._bodies:
            # Bodies see their cancellation first: what they report instead of a release still counts.
            await asyncio.wait(self._bodies, timeout=_LAST_WORDS)
        for attempt in tuple(self._attempts):
            if not attempt.reported:
                attempt.give_back()
        if self._bodies:
            names = sorted(task.get_name() for task in self._bodies)
            log.warning("bodies go on although they were told to stop, and are left behind", extra={"bodies": names})
        self._last_moment = self._commit_scope.deadline = anyio.current_time() + _LAST_COMMIT
        with anyio.move_on_after(_LAST_COMMIT):
            while self._committing:
                await self._freed.wait(0.05)
        batch, self._reports = self._reports, []
        await self._give_back(_by_run(batch))

    async def _give_back(self, reports: Mapping[str, Sequence[Event]]) -> None:
        try:
            if reports:
                await self._applier.apply(reports, patience=_LAST_COMMIT)
        except StoreUnavailable as error:
            log.warning("tasks could not be given back; their leases end by themselves", extra={"error": str(error)})


def _size_of(report: Report) -> int:
    match report:
        case StepCompleted():
            return len(report.output)
        case StepFailed() | StepSnoozed() | StepReleased():
            return len(report.details or "")
        case _:
            return 0


def _by_run(batch: Sequence[tuple[Attempt, Report]]) -> dict[str, list[Event]]:
    events: dict[str, list[Event]] = {}
    for attempt, event in batch:
        events.setdefault(attempt.claimed.run.run_id, []).append(event)
    return events


def _releases(tasks: Sequence[ClaimedTask]) -> dict[str, list[Event]]:
    events: dict[str, list[Event]] = {}
    for task in tasks:
        events.setdefault(task.run.run_id, []).append(StepReleased(task.task))
    return events


def steps_of(
    workflows: Sequence[Workflow[..., Any]], steps: Sequence[Step[..., Any]] = ()
) -> dict[str, Step[..., Any]]:
    """Every step the workflows use, and those given, by name. Raises PlanError when two of one name differ."""
    found: dict[str, Step[..., Any]] = {}
    for step in (*steps, *(step for workflow in workflows for step in workflow.steps.values())):
        other = found.setdefault(step.name, step)
        if other.fn is not step.fn:
            raise PlanError(
                f"two steps are named {step.name!r}: one at {other.declaration.where}, one at {step.declaration.where}",
                "A step's name is how workers know it: give one another with @step(name=...).",
            )
    return found
