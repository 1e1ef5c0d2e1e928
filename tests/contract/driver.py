"""A store under test, with what a test needs to say in one line: plans, starts, claims, commits, and time that passes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from composer.apply import Applied, Applier
from composer.client.starting import new_run
from composer.core.decide import decide
from composer.core.events import Event, Failure, FailureKind, StepCompleted, StepFailed
from composer.core.plan import INPUT, Node, Plan, ordered
from composer.core.transition import NeedValues, Transition
from composer.memory.store import MemoryStore
from composer.ports.store import (
    ClaimedTask,
    CommitAnswer,
    NewRun,
    RunCommit,
    RunHead,
    RunRecord,
    StartAnswer,
    Store,
    TaskRecord,
)
from composer.postgres.store import PostgresStore
from tests.servers import execute

S = TypeVar("S", bound=Store)


@asynccontextmanager
async def opened(store: S) -> AsyncIterator[S]:
    """The store, open within the block: a loop that ends while a pool is open hangs instead of showing the failure."""
    try:
        await store.open()
        yield store
    finally:
        await store.close()


def a_plan(
    nodes: Mapping[str, Sequence[str]] | None = None,
    *,
    workflow: str = "flow",
    options: Mapping[str, Mapping[str, Any]] | None = None,
    output: str | None = None,
    **whole: Any,
) -> Plan:
    """A plan of steps named as their nodes. `nodes` says what each one reads: "b", "settled:b", "after:b" or "input"."""
    reads = nodes or {"a": ["input"]}
    needs = {name: {each.rpartition(":")[2] for each in of} - {"input"} for name, of in reads.items()}
    names = ordered(needs)

    def node(name: str) -> dict[str, Any]:
        args: dict[str, Any] = {}
        after: list[dict[str, str]] = []
        for place, each in enumerate(reads[name]):
            how, _, of = each.rpartition(":")
            if how == "after":
                after.append({"ref": of})
            else:
                args[f"p{place}"] = {"$": {"settled": [{"ref": of}]} if how == "settled" else {"ref": of}}
        made: dict[str, Any] = {"name": name, "kind": "step", "step": name, "args": args}
        if after:
            made["after"] = after
        if options and name in options:
            made["options"] = options[name]
        return made

    body: dict[str, Any] = {
        "format": 1,
        "workflow": workflow,
        "nodes": [node(name) for name in names],
        "output": {"$": {"ref": output or names[-1]}},
    }
    if whole:
        body["options"] = whole
    return Plan(body)


def a_chain(length: int, **more: Any) -> Plan:
    """Steps s0, s1, ..., each of which reads the one before."""
    return a_plan({f"s{i}": [f"s{i - 1}"] if i else ["input"] for i in range(length)}, **more)


def a_diamond(**more: Any) -> Plan:
    """top, then left and right, then bottom."""
    return a_plan({"top": ["input"], "left": ["top"], "right": ["top"], "bottom": ["left", "right"]}, **more)


RETRIES: dict[str, Any] = {
    "retries": {
        "attempts": 3,
        "delay": 10.0,
        "backoff": 2.0,
        "max_delay": 60.0,
        "jitter": 0.0,
        "no_retry_on": [],
    }
}


def done(task: ClaimedTask, output: str = "1") -> StepCompleted:
    """The task's body returned."""
    return StepCompleted(task.task, output)


def failed(task: ClaimedTask, message: str = "no", **more: Any) -> StepFailed:
    """The task's body raised."""
    return StepFailed(task.task, Failure(FailureKind.ERROR, "ValueError", message), **more)


@dataclass
class TurnableClock:
    """A clock that a test turns."""

    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        """The moment it is."""
        return self.at


class Driver:
    """A store, and time that passes when the test says so."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._plans: dict[int, Plan] = {}

    @property
    def is_postgres(self) -> bool:
        """Whether the store is the one on PostgreSQL."""
        return isinstance(self.store, PostgresStore)

    async def later(self, seconds: float) -> None:
        """Time passes, as far as this namespace is concerned: on PostgreSQL every moment moves back instead."""
        store = self.store
        if isinstance(store, MemoryStore):
            clock = store._clock
            assert isinstance(clock, TurnableClock)
            clock.at += timedelta(seconds=seconds)
            return
        assert isinstance(store, PostgresStore)
        by, where = f"interval '{seconds} s'", f"where namespace = '{store.namespace}'"
        await execute(
            store._url,
            f"update composer.tasks set lease_expires_at = lease_expires_at - {by}, wake_at = wake_at - {by} {where}",
            f"update composer.runs set starts_at = starts_at - {by}, deadline_at = deadline_at - {by}, "
            f"updated_at = updated_at - {by} {where}",
            f"update composer.workers set expires_at = expires_at - {by} {where}",
        )

    # -- starting ----------------------------------------------------------------------------------------------
    async def new(
        self,
        plan: Plan | None = None,
        text: str = "{}",
        *,
        key: str | None = None,
        priority: int = 0,
        tags: Mapping[str, str] | None = None,
        starts: tuple[float | None, datetime | None] = (None, None),
    ) -> NewRun:
        """A run that is ready to be stored."""
        plan = plan or a_plan()
        plan_id = await self.store.register_plan(plan)
        self._plans[plan_id] = plan
        (run_id,) = await self.store.mint_run_ids(1)
        return new_run(
            run_id, plan.workflow, plan, plan_id, text, key=key, priority=priority, tags=tags or {}, starts=starts
        )

    async def start_answer(self, plan: Plan | None = None, text: str = "{}", **more: Any) -> StartAnswer:
        """Starts a run."""
        (answer,) = await self.store.start_runs([await self.new(plan, text, **more)])
        return answer

    async def start(self, plan: Plan | None = None, text: str = "{}", **more: Any) -> str:
        """Starts a run; returns its id."""
        return (await self.start_answer(plan, text, **more)).run_id

    # -- working -----------------------------------------------------------------------------------------------
    async def claim(
        self,
        limit: int = 100,
        *,
        owner: str = "w",
        queues: Sequence[str] = ("default",),
        steps: Collection[str] | None = None,
        lease: float = 15.0,
    ) -> list[ClaimedTask]:
        """Claims tasks; of every step that any plan here has, unless told otherwise."""
        if steps is None:
            steps = {node.step for plan in self._plans.values() for node in plan.nodes}
        return await self.store.claim_tasks(queues=queues, steps=steps, limit=limit, owner=owner, lease=lease)

    async def claim_one(self, **more: Any) -> ClaimedTask:
        """Claims the one task there is."""
        (task,) = await self.claim(2, **more)
        return task

    async def apply(
        self,
        run_id: str,
        *events: Event,
        owner: str = "w",
        lease: float = 15.0,
        grant: Callable[[Node], bool] | None = None,
    ) -> Applied:
        """Applies events as a worker does."""
        return await Applier(self.store, owner=owner, lease=lease).apply({run_id: events}, grant=grant, patience=0)

    async def head(self, run_id: str) -> RunHead:
        """The run as it is now."""
        return (await self.store.load_heads([run_id]))[run_id]

    async def decided(self, head: RunHead, *events: Event) -> Transition:
        """What the events make of the run as `head` says it is."""
        plan, values, errors = self._plans[head.plan_id], dict[int, str](), dict[int, str]()
        while isinstance(made := decide(plan, head.snapshot, events, values, errors), NeedValues):
            found = await self.store.load_values([(head.run_id, node) for node in made.nodes])
            values.update({node: text for (_, node), text in found.outputs.items()})
            errors.update({node: text for (_, node), text in found.errors.items()})
        return made

    async def commit_of(
        self, head: RunHead, *events: Event, leased: Collection[str] = (), deadline_in: float | None = None
    ) -> RunCommit:
        """A commit of what the events make of the run as `head` says it is; `leased` names nodes to hand over."""
        plan = self._plans[head.plan_id]
        made = await self.decided(head, *events)
        nodes = frozenset(plan.index[name] for name in leased)
        return RunCommit(head.run_id, head.plan_id, plan, made, head.priority, nodes, deadline_in)

    async def commit(
        self, head: RunHead, *events: Event, leased: Collection[str] = (), owner: str = "w", lease: float = 15.0
    ) -> CommitAnswer:
        """Commits what the events make of the run as `head` says it is."""
        commit = await self.commit_of(head, *events, leased=leased)
        return (await self.store.commit([commit], owner=owner, lease=lease)).answers[0]

    # -- looking -----------------------------------------------------------------------------------------------
    async def record(self, run_id: str) -> RunRecord:
        """The run's record."""
        record = await self.store.get_run(run_id)
        assert record is not None
        return record

    async def task(self, run_id: str, name: str = "a") -> TaskRecord:
        """A task's record, by its node's name."""
        record = await self.record(run_id)
        index = self._plans[record.head.plan_id].index[name]
        return next(task for task in record.tasks if task.node == index)

    async def states(self, run_id: str) -> dict[str, str]:
        """State of every task, by node name."""
        record = await self.record(run_id)
        nodes = self._plans[record.head.plan_id].nodes
        return {nodes[task.node].name: task.state for task in record.tasks}

    async def dump(self, run_ids: Sequence[str]) -> list[Any]:
        """Everything about the runs that does not depend on the clock or on their ids."""
        out: list[Any] = []
        for run_id in run_ids:
            record = await self.record(run_id)
            snapshot = record.head.snapshot
            out.append(
                {
                    "run": (
                        snapshot.status.value, snapshot.version, snapshot.letters.text, snapshot.counters.encode(), record.priority,
                        record.quarantine, record.input, record.output, record.error, record.finished_at is None,
                        record.starts_at is None, record.deadline_at is None, dict(record.tags),
                    ),
                    "tasks": [
                        (
                            t.node, t.item, t.state, t.attempt, t.delivery, t.failures, t.crashes, t.queue, t.owner, t.output, t.error,
                            t.details, t.started_at is None, t.finished_at is None, t.wake_at is None, t.lease_expires_at is None,
                        )
                        for t in record.tasks
                    ],
                    "history": [(row.version, without_times(row.changes)) for row in await self.store.history(run_id)],
                }
            )  # fmt: skip
        return out


def without_times(value: Any) -> Any:
    """History without the moments in it."""
    if isinstance(value, Mapping):
        return {name: without_times(each) for name, each in value.items() if name not in ("claimed_at", "ended_at")}
    return [without_times(each) for each in value] if isinstance(value, list) else value


__all__ = ["INPUT", "RETRIES", "Driver", "TurnableClock", "a_chain", "a_diamond", "a_plan", "done", "failed"]
