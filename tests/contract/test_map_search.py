"""Small maps, every order of everything: workers, late bodies, coordinators that die in between, stops and retries.

The memory store stands for all of them: what it answers is what PostgreSQL answers (test_differential.py). Time is abstract:
a lease can end and a moment come at any time. Pages hold one item, so that all that can happen between two of them does.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Coroutine, Iterator
from copy import copy
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from composer.apply import Applier
from composer.client.starting import new_run
from composer.coordinator import maps
from composer.coordinator.timers import fire_due
from composer.core.events import CancelRequested, DeadlinePassed, Event, LeaseExpired, Report, RetryRequested
from composer.core.items import item_changes, items_of, tolerance_of
from composer.core.plan import Plan, outcomes_code
from composer.core.states import ENDED_RUN, NodeState, RunStatus, TaskState
from composer.core.values import Values
from composer.memory.store import MemoryStore
from composer.ports.store import ClaimedTask, ItemCommit, MapPage
from composer.verify import violations_of
from tests.contract.driver import TurnableClock, done, failed
from tests.search import explore

WORKERS = 2


def over(items: int, *, each: bool = False, attempts: int = 1, **options: Any) -> Plan:
    """A map over a constant list, and a reader."""
    if attempts > 1:
        options["retries"] = {
            "attempts": attempts,
            "delay": 1.0,
            "backoff": 1.0,
            "max_delay": 1.0,
            "jitter": 0.0,
            "no_retry_on": [],
        }
    reads = {"settled_each": [{"ref": "each"}]} if each else {"ref": "each"}
    nodes: list[dict[str, Any]] = [
        {
            "name": "each", "kind": "map", "step": "each", "over": "x", "args": {"x": list(range(items))},
            "options": {"max_crashes": 2, **options},
        },
        {"name": "reader", "kind": "step", "step": "reader", "args": {"xs": {"$": reads}}},
    ]  # fmt: skip
    return Plan({"format": 1, "workflow": "search", "nodes": nodes, "output": {"$": {"ref": "reader"}}})


PLANS = {
    "two items": over(2, max_crashes=1),
    "a window of one": over(2, max_concurrency=1, max_crashes=1),
    "a window, and one may fail": over(2, max_concurrency=1, tolerate=1, max_crashes=1),
    "tried twice": over(1, attempts=2),
    "item by item": over(2, each=True, max_crashes=1),
}
"""Small enough for a search to its end in seconds: a third item, or a second crash of two, makes five times the states."""
LEAST = {
    "two items": 1_500, "a window of one": 1_300, "a window, and one may fail": 2_000, "tried twice": 1_600, "item by item": 3_000,
}  # fmt: skip


def now(call: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns that waits for nothing: in memory nothing does."""
    try:
        call.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


def copied(store: MemoryStore) -> MemoryStore:
    """A store that goes its own way from here."""
    clock = store._clock
    assert isinstance(clock, TurnableClock)
    made = MemoryStore(clock=TurnableClock(clock.at))
    made._plans, made._outbox, made._count = store._plans, dict(store._outbox), store._count
    made._runs = {
        run_id: replace(
            run,
            tasks={key: copy(task) for key, task in run.tasks.items()},
            maps={node: copy(each) for node, each in run.maps.items()},
            history=list(run.history),
            signals=list(run.signals),
        )
        for run_id, run in store._runs.items()
    }
    return made


@dataclass
class World:
    """A run, and the bodies that still go on somewhere, whatever became of their leases."""

    plan: Plan
    store: MemoryStore
    run_id: str
    bodies: tuple[ClaimedTask, ...] = ()
    sent: tuple[Report, ...] = ()
    stopped: bool = False
    retried: bool = False

    @classmethod
    def of(cls, plan: Plan) -> World:
        """A run that has just begun."""
        store = MemoryStore(clock=TurnableClock())
        plan_id = now(store.register_plan(plan))
        (run_id,) = now(store.mint_run_ids(1))
        run = new_run(run_id, "search", plan, plan_id, "{}", key=None, priority=0, tags={}, starts=(None, None))
        now(store.start_runs([run]))
        return cls(plan, store, run_id)

    @property
    def has_ended(self) -> bool:
        return self.run.snapshot.status in ENDED_RUN

    @property
    def run(self) -> Any:
        return self.store._runs[self.run_id]

    def key(self) -> tuple[object, ...]:
        """What of it can make a difference later. The workers are interchangeable, and a moment has been set or not."""
        run = self.run
        rows = tuple(
            (
                *key,
                t.state.value,
                t.failures,
                t.crashes,
                t.output,
                t.wake_at is None,
                (self.run_id, *key) in self.store._outbox,
            )
            for key, t in sorted(run.tasks.items())
        )
        counts = tuple((each.counts, each.active) for each in run.maps.values())
        bodies = sorted((b.task.node, b.task.item, self.is_current(b)) for b in self.bodies)
        snapshot = run.snapshot
        return (
            snapshot.status,
            snapshot.letters.text,
            snapshot.counters,
            rows,
            counts,
            tuple(bodies),
            self.stopped,
            self.retried,
        )

    def is_current(self, body: ClaimedTask) -> bool:
        task = self.run.tasks[body.task.node, body.task.item]
        return (task.attempt, task.delivery) == (body.task.attempt, body.task.delivery)

    def then(self, **changes: Any) -> World:
        """The same a moment later, with a store of its own."""
        return replace(self, store=copied(self.store), **changes)

    def applied(self, *events: Event, **changes: Any) -> World:
        """As a worker or a client applies it, with what follows decided at once."""
        after = self.then(**changes)
        now(Applier(after.store).apply({after.run_id: events}))
        return after

    def without(self, body: ClaimedTask) -> tuple[ClaimedTask, ...]:
        return tuple(each for each in self.bodies if each is not body)

    def page(self, first: int, retries: int) -> MapPage:
        found = items_of(self.plan, self.plan.nodes[0], Values("..", {}))
        texts = found.texts[first : first + 1]
        tolerance = tolerance_of(self.plan, self.plan.nodes[0], len(found.texts))
        return MapPage(self.run_id, self.plan, 0, first, len(found.texts), texts, tolerance, retries, found.digest)

    def moves(self) -> Iterator[tuple[str, World]]:
        """Everything that can happen next."""
        run = self.run
        if len(self.bodies) < WORKERS:
            after = self.then()
            claimed = now(
                after.store.claim_tasks(queues=["default"], steps=["each", "reader"], limit=1, owner="w", lease=1e9)
            )
            if claimed:
                yield f"claim {claimed[0].task.item}", replace(after, bodies=(*self.bodies, claimed[0]))
        for body in self.bodies:
            item, rest = body.task.item, self.without(body)
            output = f'"{item}"' if item >= 0 else '"end"'
            for word, report in (("complete", done(body, output)), ("fail", failed(body))):
                yield f"{word} {item}", self.applied(report, bodies=rest, sent=(*self.sent, report))
                if item >= 0:
                    # The worker dies after the results are counted, before it has decided what follows.
                    after = self.then(bodies=rest, sent=(*self.sent, report))
                    now(
                        after.store.commit_items(
                            [ItemCommit(self.run_id, self.plan, item_changes(self.plan, [report]))]
                        )
                    )
                    yield f"{word} {item} and die", after
        for (node, item), task in run.tasks.items():
            if task.state is TaskState.LEASED:
                after = self.then()
                lost = after.run.tasks[node, item]
                lost.lease_expires_at = after.store._clock.now() - timedelta(seconds=1)
                now(Applier(after.store).apply({self.run_id: [LeaseExpired(after.store._delivery(lost))]}))
                yield f"expire {item}", after
        if run.snapshot.letters[0] is NodeState.MAPPING:
            kept = run.maps.get(0)
            retries = run.snapshot.counters.retries
            first = kept.counts.expanded if kept is not None and kept.counts.retries == retries else 0
            after = self.then()
            if now(after.store.expand_map(self.page(first, retries)))[0]:
                # The coordinator dies after this page.
                yield f"page {first}", after
        if run.snapshot.letters[0] is NodeState.DRAINING:
            after = self.then()
            now(after.store.withdraw_items(self.run_id, self.plan.nodes[0], 1))
            yield "withdraw one and die", after
        if any(task.wake_at is not None for task in run.tasks.values()):
            after = self.then()
            clock = after.store._clock
            assert isinstance(clock, TurnableClock)
            clock.at += timedelta(seconds=60)
            now(fire_due(after.store))
            yield "look", after
        if not self.stopped and run.snapshot.status is RunStatus.RUNNING:
            yield "cancel", self.applied(CancelRequested(), stopped=True)
            yield "deadline", self.applied(DeadlinePassed(), stopped=True)
        if not self.retried and run.snapshot.status is RunStatus.FAILED:
            yield "retry", self.applied(RetryRequested(), retried=True)

    def check(self) -> None:
        """The invariants; the window; results that count once; and that late pages and reports change nothing."""
        (audited,) = now(self.store.audit(None, 10))
        assert violations_of(audited, self.plan) == []
        run = self.run
        most = self.plan.nodes[0].options.max_concurrency
        states = [task.state for (node, item), task in run.tasks.items() if node == 0 and item >= 0]
        under_way = sum(state in (TaskState.READY, TaskState.LEASED, TaskState.DELAYED) for state in states)
        assert most is None or under_way <= most, "more items are under way than the window has room for"
        if run.snapshot.letters[0] is NodeState.MAPPING:
            kept = run.maps.get(0)
            if kept is not None and kept.counts.retries == run.snapshot.counters.retries:
                assert kept.active == under_way, "the count of items under way is wrong"
                if most is not None and kept.counts.held:
                    assert under_way == most, "there is room, and an item is held"
        for report in self.sent:
            again = self.then()
            version = again.run.snapshot.version
            applied = now(Applier(again.store).apply({self.run_id: [report]}))
            assert applied.items == 0, f"{report} counted twice"
            assert again.run.snapshot.version == version or again.run.snapshot.letters[0] in "CFD"
        if run.snapshot.status is RunStatus.COMPLETED:
            self.check_result(run.output)

    def check_result(self, output: str) -> None:
        """The reader had what the items gave, in order, and failed ones are left out or told of."""
        assert output == '"end"'
        outcomes = json.loads(
            now(self.store.load_values([(self.run_id, outcomes_code(0))])).outputs[self.run_id, outcomes_code(0)]
        )
        assert [each["value"] for each in outcomes if each["state"] == "completed"] == [
            str(i) for i, each in enumerate(outcomes) if each["state"] == "completed"
        ]
        failures = sum(each["state"] == "failed" for each in outcomes)
        assert failures <= tolerance_of(self.plan, self.plan.nodes[0], len(outcomes))


@pytest.mark.parametrize("name", PLANS)
def test_every_state_of_a_map_keeps_the_invariants_and_can_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every state that two workers and dying coordinators can bring a small map to the invariants hold, and the run can end from it."""
    monkeypatch.setattr(maps, "PAGE", 1)
    explored = explore(World.of(PLANS[name]))
    print(f"\n{name}: {explored}")
    assert explored.states >= LEAST[name]


LARGER = {
    "a window, tried twice": over(7, max_concurrency=2, tolerate=1, attempts=2),
    "one may fail in five": over(6, tolerate="20%", attempts=2),
    "item by item": over(5, each=True, max_concurrency=3, attempts=2),
}


@pytest.mark.parametrize("name", LARGER)
def test_long_ways_through_larger_maps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On ten random ways of sixty moves through a larger map, retried as often as it fails, every state is sound, and each way can be ended."""
    monkeypatch.setattr(maps, "PAGE", 2)
    ends: Counter[str] = Counter()
    for seed in range(10):
        draw = random.Random(f"{name} {seed}")
        world = World.of(LARGER[name])
        way: list[str] = []

        def go(world: World, liked: tuple[str, ...], draw: random.Random = draw, way: list[str] = way) -> World | None:
            moves = [(word, after) for word, after in world.moves() if liked == () or word.split()[0] in liked]
            if not moves:
                return None
            rare = ("cancel", "deadline")
            word, after = draw.choice([each for each in moves if each[0] not in rare or draw.random() < 0.01] or moves)
            way.append(word)
            try:
                after.check()
            except AssertionError as error:
                raise AssertionError(f"{error}\nafter {' > '.join(way)}") from error
            return replace(after, stopped=False, retried=False, sent=after.sent[-6:])

        for _ in range(60):
            after = go(world, ())
            if after is None:
                break
            world = after
        for _ in range(400):
            if world.run.snapshot.status in ENDED_RUN:
                break
            after = go(world, ("look", "claim", "complete"))
            assert after is not None, f"nothing moves it after {' > '.join(way)}"
            world = after
        assert world.run.snapshot.status in ENDED_RUN, f"it never ends after {' > '.join(way)}"
        ends[world.run.snapshot.status] += 1
    print(name, dict(ends))
    assert ends["completed"] >= 1
