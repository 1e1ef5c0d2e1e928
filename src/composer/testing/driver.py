"""run_workflow(): a whole run in this process, with the engine's own decisions, attempts and recovery.

The driver stands in for worker and coordinator: it claims, runs bodies for real, commits what they report, and when
nothing is left to do it turns the clock to the next moment something is due. A wait of days takes no time.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Generic, TypeVar

import anyio
from typing_extensions import TypeVarTuple, Unpack

from composer.apply import Applier
from composer.client.signals import checked_payload
from composer.client.starting import checked_workflow, encoded_input, new_run
from composer.client.views import NodeView, RunView, failure_of, view
from composer.coordinator.recovery import recover
from composer.coordinator.timers import fire_due
from composer.core.durations import seconds
from composer.core.events import Report, Signalled
from composer.core.limits import MAX_PAYLOAD
from composer.core.states import RunStatus
from composer.define.context import NO_LIFESPAN
from composer.define.step import Step
from composer.define.surroundings import Around
from composer.define.workflow import Startable, Workflow
from composer.errors import ComposerError
from composer.memory.store import MemoryStore
from composer.ports.store import ClaimedTask, HistoryRow
from composer.testing.clock import VirtualClock
from composer.worker.attempt import Attempt
from composer.worker.processes import ProcessPool

R = TypeVar("R")
Ts = TypeVarTuple("Ts")

LEASE: Final = 15.0
_MOST_TURNS: Final = 100_000


class WorkflowStuck(ComposerError):
    """The run has not ended, and nothing will ever move it. Lists the nodes that are open."""

    code = "workflow-stuck"


@dataclass(frozen=True, slots=True)
class Later:
    """A signal's payload in run_workflow(signals=...) that is sent `delay` seconds after the run's start, on its own clock."""

    delay: float | timedelta | str
    payload: Any = None


@dataclass(frozen=True, slots=True)
class StepExecution:
    """One body that ran."""

    node: str
    step: str
    attempt: int
    delivery: int


@dataclass(frozen=True, slots=True)
class WorkflowResult(Generic[R]):
    """How a run went. `status` is "completed", "failed" or "cancelled"."""

    status: str
    run: RunView
    history: Sequence[HistoryRow]
    executions: Sequence[StepExecution]
    """Every body that ran, in the order they started; one that crashed is among them."""
    elapsed: timedelta
    """How long the run took on its own clock."""
    _workflow: Workflow[..., R] = field(repr=False)
    _output: str | None = field(repr=False)
    _error: str | None = field(repr=False)

    @property
    def value(self) -> R:
        """The workflow's result. Raises RunFailed or RunCancelled when it has none."""
        if self.status != RunStatus.COMPLETED:
            raise failure_of(self.run.id, self.run.workflow, self.status, self._error)
        return self._workflow.decode_result(self._output or "null")

    @property
    def error(self) -> Mapping[str, Any] | None:
        """Why it did not complete: code, node, kind, type, message."""
        return self.run.error

    def node(self, name: str) -> NodeView:
        """One node of the run. Raises KeyError."""
        return {each.name: each for each in self.run.nodes}[name]

    def ran(self, node: str) -> int:
        """How many bodies of the node ran."""
        return sum(each.node == node for each in self.executions)


async def run_workflow(
    workflow: Startable[Callable[[Unpack[Ts]], R]],
    /,
    *args: Unpack[Ts],
    replace: Mapping[Step[..., Any], Callable[..., Any]] | None = None,
    crash: Step[..., Any] | Mapping[Step[..., Any], int] | None = None,
    crash_after: int | None = None,
    clock: VirtualClock | None = None,
    signals: Mapping[str, Any] | None = None,
    resources: Any = NO_LIFESPAN,
    around: Sequence[Around] = (),
) -> WorkflowResult[R]:
    """Runs a workflow to its end, in memory, on a virtual clock.

    `replace` gives steps other bodies (same parameters; plain or async). `crash` names a step whose worker dies with
    the first body of it, or with the first n: after the body has run, before its result is stored. `crash_after=n`
    kills the worker right after the nth transition of the run. `signals` are payloads by event, sent right after the start
    or, with Later(delay, payload), some time after it; a list sends several. `resources` is what steps find in
    step_context().resources, `around` what stands around each attempt, as @around_step does in a worker. Steps with
    isolation="process" run in threads here. Raises PayloadError, UnknownEvent for signals the workflow does not wait for,
    WorkflowStuck when the run can never end.
    """
    flow: Workflow[..., R] = checked_workflow(workflow)
    crashes = dict(crash) if isinstance(crash, Mapping) else {crash: 1} if crash is not None else {}
    driver = _Driver(
        flow,
        dict(replace or {}),
        {step.name: n for step, n in crashes.items()},
        crash_after,
        clock or VirtualClock(),
        signals or {},
    )
    driver.resources, driver.around = resources, around
    return await driver.run(args)


async def crash_everywhere(
    workflow: Startable[Callable[[Unpack[Ts]], R]],
    /,
    *args: Unpack[Ts],
    replace: Mapping[Step[..., Any], Callable[..., Any]] | None = None,
    signals: Mapping[str, Any] | None = None,
    resources: Any = NO_LIFESPAN,
    around: Sequence[Around] = (),
) -> list[WorkflowResult[R]]:
    """The run without a crash first, then once more for each of its transitions, with the worker killed right after it."""

    async def run(crash_after: int | None) -> WorkflowResult[R]:
        return await run_workflow(
            workflow,
            *args,
            replace=replace,
            crash_after=crash_after,
            resources=resources,
            around=around,
            signals=signals,
        )

    calm = await run(None)
    transitions = calm.run.has_ended and len(calm.history)
    return [calm, *[await run(n) for n in range(1, int(transitions))]]


class _Driver:
    """Worker and coordinator of one run."""

    resources: Any
    around: Sequence[Around]
    processes: ProcessPool | None = None
    max_payload = MAX_PAYLOAD
    closing = False

    def __init__(
        self,
        flow: Workflow[..., Any],
        replace: Mapping[Step[..., Any], Callable[..., Any]],
        crashes: dict[str, int],
        crash_after: int | None,
        clock: VirtualClock,
        signals: Mapping[str, Any],
    ) -> None:
        bodies = {step.name: body for step, body in replace.items()}
        self._flow = flow
        self._steps: dict[str, Any] = {
            name: _Replaced(step, bodies[name]) if name in bodies else step for name, step in flow.steps.items()
        }
        unknown = bodies.keys() - self._steps.keys()
        if unknown:
            raise ValueError(
                f"replace= names steps that workflow {flow.name} does not use: {', '.join(sorted(unknown))}"
            )
        self._crashes, self._crash_after, self._clock = crashes, crash_after, clock
        self._given = signals
        self._signals: list[tuple[float, str, str]] = []
        """Signals to be sent, each with its moment on the run's clock."""
        self._store = MemoryStore(clock=clock)
        self._applier = Applier(self._store, owner="test", lease=LEASE)
        self._attempts: set[Attempt] = set()
        self._lost: set[Attempt] = set()
        self._reports: list[tuple[Attempt, Report]] = []
        self._reported = anyio.Event()
        self._executions: list[StepExecution] = []

    async def run(self, args: Sequence[Any]) -> WorkflowResult[Any]:
        store, flow = self._store, self._flow
        text = encoded_input(flow, args)
        plan_id = await store.register_plan(flow.plan)
        run_id = (await store.mint_run_ids(1))[0]
        new = new_run(run_id, flow.name, flow.plan, plan_id, text, key=None, priority=0, tags={}, starts=(None, None))
        for event, given in self._given.items():
            for each in given if isinstance(given, list) else [given]:
                later = each if isinstance(each, Later) else Later(0.0, each)
                payload = checked_payload(run_id, flow.plan, event, later.payload)
                self._signals.append((seconds(later.delay, what="Later(delay)"), event, payload))
        self._signals.sort(key=lambda each: each[0])
        await store.start_runs([new])
        try:
            with store.wakeups.on_stops(self._stopped):
                for _ in range(_MOST_TURNS):
                    if await self._turn(run_id):
                        break
        finally:
            for attempt in tuple(self._attempts):
                attempt.stop()
        record = await store.get_run(run_id)
        assert record is not None
        return WorkflowResult(
            record.head.snapshot.status.value,
            view(record, flow.plan),
            await store.history(run_id),
            self._executions,
            self._clock.elapsed,
            flow,
            record.output,
            record.error,
        )

    async def _turn(self, run_id: str) -> bool:
        """One thing that can be done now. Returns whether the run has ended."""
        store = self._store
        if (await store.run_ends([run_id]))[run_id].status in ("completed", "failed", "cancelled"):
            return True
        if self._signals and self._signals[0][0] <= self._clock.elapsed.total_seconds():
            _, event, payload = self._signals.pop(0)
            await self._applier.apply({run_id: [Signalled(event, payload)]})
            return False
        claimed = await store.claim_tasks(
            queues=self._queues(), steps=self._steps, limit=1_000, owner="test", lease=LEASE
        )
        for task in claimed:
            await self._begin(task)
        if self._reports:
            await self._commit()
        elif self._attempts:
            await self._reported.wait()
        elif not claimed:
            await self._turn_clock(run_id)
        return False

    def _queues(self) -> list[str]:
        return sorted({node.options.queue for node in self._flow.plan.nodes})

    async def _begin(self, task: ClaimedTask) -> None:
        plan = await self._applier.remember(task)
        attempt = Attempt(self, task, plan, self._steps[task.step])
        self._attempts.add(attempt)
        delivery = task.task
        self._executions.append(StepExecution(attempt.node.name, task.step, delivery.attempt, delivery.delivery))
        if self._crashes.get(task.step, 0) > 0:
            self._crashes[task.step] -= 1
            self._lost.add(attempt)
        attempt.work = asyncio.create_task(attempt.run())

    async def _commit(self) -> None:
        batch, self._reports = self._reports, []
        self._reported = anyio.Event()
        for attempt, event in batch:
            await self._applier.apply({attempt.claimed.run.run_id: [event]})
            version = self._applier_version(attempt)
            if self._crash_after is not None and version >= self._crash_after:
                self._crash_after = None
                self._die()
                return

    def _applier_version(self, attempt: Attempt) -> int:
        return self._store.version_of(attempt.claimed.run.run_id)

    def _die(self) -> None:
        """The worker is gone with all it knew; what it had leased is found by recovery."""
        for attempt in tuple(self._attempts):
            self._lost.add(attempt)
            attempt.stop()
        self._reports.clear()
        self._applier = Applier(self._store, owner="test", lease=LEASE)

    async def _turn_clock(self, run_id: str) -> None:
        """Nothing is left to do at this moment: on to the next."""
        store = self._store
        signal_in = self._signals[0][0] - self._clock.elapsed.total_seconds() if self._signals else None
        possible = (await store.next_due_in(), store.next_lease_end_in(), signal_in)
        moments = [moment for moment in possible if moment is not None]
        if not moments:
            raise WorkflowStuck(await self._why_stuck(run_id))
        # A lease is over once its end has passed, hence a little more than the distance to it.
        self._clock.advance(min(moments) + 0.001)
        await fire_due(store)
        await recover(store)

    async def _why_stuck(self, run_id: str) -> str:
        record = await self._store.get_run(run_id)
        assert record is not None
        open_nodes = [
            f"{node.name} is {node.state}" for node in view(record, self._flow.plan).nodes if node.state not in _ENDS
        ]
        return f"run {run_id} of workflow {self._flow.name} can never end: {'; '.join(open_nodes) or record.quarantine}"

    # -- what an attempt needs of its host -------------------------------------------------------------------
    def report(self, attempt: Attempt, event: Report) -> None:
        if attempt not in self._lost:
            self._reports.append((attempt, event))
        self._reported.set()

    def body_ended(self, attempt: Attempt) -> None:
        self._attempts.discard(attempt)
        self._reported.set()

    def beat(self, attempt: Attempt) -> None:
        if attempt.details is not None:
            self._store.keep_details(attempt.claimed.run.run_id, attempt.task, attempt.details)

    def _stopped(self, run_id: str) -> None:
        for attempt in tuple(self._attempts):
            if not attempt.reported:
                attempt.stop()


_ENDS: Final = ("completed", "failed", "skipped", "cancelled")


class _Replaced:
    """A step with another body."""

    def __init__(self, step: Step[..., Any], body: Callable[..., Any]) -> None:
        self._step = step
        self.fn = body
        self.is_async = inspect.iscoroutinefunction(body)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)
