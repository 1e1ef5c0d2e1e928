"""Memory and PostgreSQL do the same: random operations on both, answers and everything stored compared after each."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from composer.apply import Applied, Applier
from composer.core.events import (
    CancelRequested,
    DeadlinePassed,
    Delivery,
    Event,
    LeaseExpired,
    RetryRequested,
    Started,
    StepReleased,
    StepSnoozed,
)
from composer.memory.store import MemoryStore
from composer.ports.store import Beat, ClaimedTask
from composer.postgres.store import PostgresStore
from tests.builders import a_plan as built_plan
from tests.builders import says
from tests.contract.driver import Driver, TurnableClock, a_chain, a_diamond, a_plan, done, failed, opened
from tests.servers import SERVERS

# Every moment is far from every other, so that the milliseconds which pass on PostgreSQL beside decide nothing.
LEASE, DELAY, DEADLINE = 100.0, 10.0, 10_000.0
PASSES = (30.0, 30.0, 130.0, DEADLINE + 100.0)
RETRY = {
    "retries": {"attempts": 2, "delay": DELAY, "backoff": 1.0, "max_delay": DELAY, "jitter": 0.0, "no_retry_on": []}
}
PLANS = (
    a_chain(3, workflow="chain", options={"s1": RETRY}),
    a_diamond(workflow="diamond", options={"left": RETRY, "right": {"queue": "side", "priority": 2}}, timeout=DEADLINE),
    a_plan(
        {"a": ["input"], "b": ["settled:a"], "c": ["b", "after:a"], "d": []},
        workflow="settles",
        options={"a": {"on_crash": "fail", "retries": RETRY["retries"]}, "b": {"max_crashes": 1}},
        output="b",
    ),
    a_plan({"x": [], "y": [], "z": ["x", "y"]}, workflow="fast", options={"x": RETRY}, fail_fast=True),
    built_plan(
        {
            "a": ["input"],
            "b": [],
            "g": [],
            "h": ["when:g"],
            "c": ["when:h", "maybe:a"],
            "d": ["unless:g", "settled:a"],
            "e": ["either:c,d"],
        },
        workflow="guarded",
        guards={
            "g": says(
                "and",
                says("eq", "settled:a/state", ("completed",), kind="text"),
                says("eq", "input", ({},), kind="json"),
            ),
            "h": says("gt", "b", 1, kind="number"),
        },
        output="maybe:e",
    ),
)
STEPS = sorted({node.step for plan in PLANS for node in plan.nodes if node.kind == "step"})


class Pair:
    """The same operations on two stores. Every method fails unless both answer alike."""

    def __init__(self, memory: Driver, postgres: Driver, seed: int) -> None:
        self.drivers = (memory, postgres)
        self.rng = random.Random(seed)
        self.log: list[str] = []
        self.runs: list[str] = []
        self.keys: dict[str, str] = {}
        self.claimed: list[ClaimedTask] = []
        """Everything that was ever handed out, so that old deliveries are reported too."""

    async def both(self, what: str, call: Callable[[Driver], Any]) -> Any:
        """What both answer."""
        self.log.append(what)
        memory, postgres = [await call(driver) for driver in self.drivers]
        assert memory == postgres, self.log
        return memory

    async def compare(self) -> None:
        """Both hold the same."""
        memory, postgres = [await driver.dump(self.runs) for driver in self.drivers]
        for run_id, one, other in zip(self.runs, memory, postgres, strict=True):
            for part in one:
                assert one[part] == other[part], (part, run_id, self.log)

    # -- operations ------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """One to three runs, some with a key, some scheduled, some with their first tasks handed over."""
        rng = self.rng
        choices = []
        for run_id in await self.drivers[1].store.mint_run_ids(rng.randint(1, 3)):
            plan = rng.choice(PLANS)
            key = rng.choice([None, None, "k1", "k2"])
            starts = (DELAY, None) if rng.random() < 0.2 else (None, None)
            leased = frozenset(plan.roots) if rng.random() < 0.2 and starts == (None, None) else frozenset[int]()
            choices.append((run_id, plan, rng.choice(["{}", '{"v": 1}']), key, rng.randint(-2, 2), starts, leased))

        async def call(driver: Driver) -> Any:
            runs = []
            for run_id, plan, text, key, priority, starts, leased in choices:
                run = await driver.new(plan, text, key=key, priority=priority, starts=starts, tags={"p": plan.workflow})
                runs.append(replace(run, run_id=run_id, leased=leased))
            answers = await driver.store.start_runs(runs, owner="w0", lease=LEASE)
            return [(answer.run_id, answer.created, answer.digest) for answer in answers]

        answers = await self.both(f"start {choices}", call)
        self.runs += [run_id for run_id, created, _ in answers if created]
        created = {run_id for run_id, made, _ in answers if made}
        for run_id, plan, *_, leased in choices:
            if run_id in created:
                for node in leased:
                    head = await self.drivers[0].head(run_id)
                    self.claimed.append(ClaimedTask(head, Delivery(node, 1, 1, worker="w0"), plan.nodes[node].step, {}))

    async def claim(self) -> None:
        """All that is ready of some steps and queues."""
        rng = self.rng
        steps = rng.sample(STEPS, rng.randint(len(STEPS) // 2, len(STEPS)))
        queues = rng.choice([("default", "side"), ("side", "default"), ("default",)])
        owner = f"w{rng.randint(0, 2)}"
        found: list[list[ClaimedTask]] = []

        async def call(driver: Driver) -> Any:
            tasks = await driver.claim(queues=queues, steps=steps, owner=owner, lease=LEASE)
            found.append(tasks)
            return sorted(map(told, tasks))

        await self.both(f"claim {owner} {queues} {steps}", call)
        self.claimed += found[0]

    def _report(self, task: ClaimedTask) -> Event:
        rng = self.rng
        match rng.randrange(8):
            case 0:
                return failed(task, f"e{rng.randint(0, 9)}", details=rng.choice([None, '"d"']))
            case 1:
                return failed(task, retryable=False)
            case 2:
                return StepSnoozed(task.task, DELAY)
            case 3:
                return StepReleased(task.task, rng.choice([None, '"r"']))
            case _:
                return done(task, f'"{rng.randint(0, 99)}"')

    async def report(self) -> None:
        """Reports of one to four deliveries, new and old, with whatever may become ready granted or not."""
        if not self.claimed:
            return
        rng = self.rng
        recent = self.claimed[-6:] if rng.random() < 0.8 else self.claimed
        tasks = rng.sample(recent, min(len(recent), rng.randint(1, 4)))
        batch: dict[str, list[Event]] = {}
        for task in tasks:
            batch.setdefault(task.run.run_id, []).append(self._report(task))
        grants = rng.random() < 0.5
        handed: list[list[ClaimedTask]] = []

        async def call(driver: Driver) -> Any:
            applied = await Applier(driver.store, owner="w0", lease=LEASE).apply(
                batch, grant=(lambda run_id, node: True) if grants else None
            )
            handed.append(applied.handed)
            return outcome(applied)

        await self.both(f"report {batch} grants={grants}", call)
        self.claimed += handed[0]

    async def steer(self) -> None:
        """A cancel or a retry of some run, ended or not."""
        if not self.runs:
            return
        rng = self.rng
        run_id = rng.choice(self.runs)
        event: Event = rng.choice(
            [CancelRequested("c"), RetryRequested(), RetryRequested(), RetryRequested(rerun_stale=True)]
        )

        async def call(driver: Driver) -> Any:
            return outcome(await Applier(driver.store).apply({run_id: [event]}))

        await self.both(f"steer {run_id} {event}", call)

    async def pass_time(self) -> None:
        """Time passes; then what a coordinator does."""
        by = self.rng.choice(PASSES)

        async def call(driver: Driver) -> Any:
            await driver.later(by)
            store = driver.store
            expired = sorted(await store.expired_tasks(100), key=lambda each: (each[0].run_id, each[1].node))
            events: dict[str, list[Event]] = {}
            for head, delivery in expired:
                events.setdefault(head.run_id, []).append(LeaseExpired(delivery))
            swept = outcome(await Applier(store).apply(events))
            moved = await store.move_due_tasks(100)
            due = sorted((each.head.run_id, each.kind) for each in await store.due_runs(100))
            fired = outcome(
                await Applier(store).apply(
                    {run_id: [Started() if kind == "start" else DeadlinePassed()] for run_id, kind in due}
                )
            )
            due_in = await store.next_due_in()
            # Rounded to ten seconds: the moments are further apart.
            next_due = None if due_in is None else round(due_in, -1)
            return (
                [(head.run_id, told_delivery(delivery)) for head, delivery in expired],
                swept,
                moved,
                due,
                fired,
                next_due,
            )

        await self.both(f"later {by}", call)

    async def renew(self) -> None:
        """Renewals of deliveries old and new, some with details."""
        if not self.claimed:
            return
        rng = self.rng
        tasks = {(t.run.run_id, t.task.node): t for t in rng.sample(self.claimed, min(3, len(self.claimed)))}
        details = {key: rng.choice([None, f'"{rng.randint(0, 9)}"']) for key in tasks}

        async def call(driver: Driver) -> Any:
            beats = [Beat(task.run.run_id, task.task, LEASE, details[key]) for key, task in tasks.items()]
            return await driver.store.renew(beats, owner="w0")

        await self.both(f"renew {details}", call)

    async def ask(self) -> None:
        """What people and workers ask."""

        async def call(driver: Driver) -> Any:
            store = driver.store
            values = await store.load_values([(run_id, node) for run_id in self.runs for node in range(-1, 4)])
            held = sorted(told(task) for task in await store.leased_to("w0", self.runs))
            return values, await store.run_ends(self.runs), held

        await self.both("ask", call)


def told_delivery(task: Delivery) -> tuple[Any, ...]:
    return task.node, task.item, task.attempt, task.delivery, task.failures, task.crashes, task.worker


def told(task: ClaimedTask) -> tuple[Any, ...]:
    """What a claim says, without moments and plan ids."""
    head = task.run
    return (
        head.run_id, *told_delivery(task.task), task.step, sorted(task.values.items()), sorted(task.errors.items()),
        task.details or "",
        head.snapshot.version, head.snapshot.letters.text, head.snapshot.status.value, head.priority,
    )  # fmt: skip


def outcome(applied: Applied) -> Any:
    """What became of a batch, without moments and plan ids."""
    return (
        sorted((each.run_id, type(each.event).__name__, each.reason) for each in applied.ignored),
        {run_id: head.snapshot for run_id, head in applied.heads.items()},
        sorted(applied.transitions),
        sorted(map(told, applied.handed)),
    )


@pytest.mark.parametrize("block", range(4))
@pytest.mark.parametrize("name", SERVERS)
async def test_memory_and_postgres_do_the_same(
    contract_database: Callable[[str], str], namespace: str, name: str, block: int
) -> None:
    """Ten random histories of starts, claims, reports old and new, stops, retries and passing time leave both stores alike after every step."""
    url = contract_database(name)
    for i in range(10):
        seed = 1000 * SERVERS.index(name) + 100 * block + i
        async with opened(PostgresStore(url, namespace=f"{namespace}_{i}", connections=2)) as store:
            memory = MemoryStore(namespace=store.namespace, clock=TurnableClock())
            pair = Pair(Driver(memory), Driver(store), seed)
            operations = (
                pair.claim,
                pair.report,
                pair.report,
                pair.report,
                pair.steer,
                pair.pass_time,
                pair.renew,
                pair.start,
            )
            pair.log.append(f"seed {seed}")
            await pair.start()
            await pair.claim()
            for _ in range(16):
                await pair.rng.choice(operations)()
                await pair.compare()
            await pair.ask()
