"""Memory and PostgreSQL do the same with maps: random pages, results, withdrawals, stops and retries on both, compared after each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from composer.apply import Applier
from composer.coordinator import maps
from composer.coordinator.timers import fire_due
from composer.core.events import DeadlinePassed, LeaseExpired, RetryRequested
from composer.core.items import digest_of, item_changes, items_of, tolerance_of
from composer.core.plan import Plan, list_code, outcomes_code, part_code
from composer.core.values import Values
from composer.memory.store import MemoryStore
from composer.ports.store import ClaimedTask, ItemCommit, MapPage
from composer.postgres.store import PostgresStore
from composer.verify import Verified, verify
from tests.contract.driver import Driver, TurnableClock, done, failed, opened
from tests.contract.test_differential import DELAY, LEASE, PASSES, RETRY, Pair, outcome, told, told_delivery
from tests.servers import SERVERS

SEEN: Counter[str] = Counter()
"""What happened to maps over the seeds of one server: sequences that never drain one prove nothing."""
LEAST = {
    "M": 50,
    "D": 10,
    "C": 10,
    "F": 10,
    "X": 5,
    "page taken": 20,
    "page refused": 20,
    "withdrawn": 5,
    "kept": 2,
    "afresh": 2,
}


def mapped(workflow: str, *, each: bool = False, gate: bool = False, **options: Any) -> Plan:
    """items -> each -> reader. With a gate the list is made anew when a retry runs stale nodes again."""
    reads = {"settled_each": [{"ref": "each"}]} if each else {"ref": "each"}
    given = {"g": {"$": {"settled": [{"ref": "gate"}]}}} if gate else {}
    nodes: list[dict[str, Any]] = [{"name": "gate", "kind": "step", "step": "gate", "args": {}}] if gate else []
    nodes += [
        {"name": "items", "kind": "step", "step": "items", "args": given},
        {
            "name": "each", "kind": "map", "step": "each", "over": "x",
            "args": {"x": {"$": {"ref": "items"}}, "all": {"$": {"ref": "items"}}}, "options": options,
        },
        {"name": "reader", "kind": "step", "step": "reader", "args": {"xs": {"$": reads}, "one": 1 if each else {"$": {"ref": "each", "path": [0]}}}},
    ]  # fmt: skip
    return Plan({"format": 1, "workflow": workflow, "nodes": nodes, "output": {"$": {"ref": "reader"}}})


MAPS = (
    mapped("plain", **RETRY),
    mapped("window", max_concurrency=2, tolerate=1, **RETRY),
    mapped("each", each=True, max_concurrency=3),
    mapped("gated", gate=True, tolerate="50%"),
    mapped("gated too", gate=True, max_concurrency=4),
    mapped("strict", gate=True, max_concurrency=1, on_crash="fail"),
)


class MapPair(Pair):
    """The same operations about maps on two stores."""

    plans: dict[str, Plan]

    async def start(self) -> None:
        """Two runs with a map, whose lists are there and whose first page may be."""
        rng = self.rng
        self.plans = {}
        for run_id in await self.drivers[1].store.mint_run_ids(2):
            self.plans[run_id] = plan = rng.choice(MAPS)

            async def call(driver: Driver, run_id: str = run_id, plan: Plan = plan) -> Any:
                run = await driver.new(plan)
                run = type(run)(**{name: getattr(run, name) for name in run.__slots__} | {"run_id": run_id})
                return [answer.created for answer in await driver.store.start_runs([run])]

            await self.both(f"start {run_id} {plan.workflow}", call)
            self.runs.append(run_id)
        await self.lists()

    async def compare(self) -> None:
        """Both hold the same, down to every item, count and hand-out, and nothing is wrong with either."""
        await super().compare()
        held = []
        for driver in self.drivers:
            runs = await driver.store.audit(None, 100)
            held.append(
                {
                    run.record.head.run_id: (
                        sorted(told_row(t) for t in run.record.tasks), dict(run.record.maps), sorted(run.dispatched),
                    )
                    for run in runs
                }
            )  # fmt: skip
            assert [violation async for violation in verify(driver.store, Verified())] == [], self.log
        for run_id in self.runs:
            for one, other in zip(held[0][run_id], held[1][run_id], strict=True):
                assert one == other, (run_id, self.log)
        for run_id, plan in self.plans.items():
            letter = (await self.drivers[0].head(run_id)).snapshot.letters[plan.index["each"]].value
            SEEN[letter] += 1
            SEEN["withdrawn"] += any(counts.withdrawn for counts in held[0][run_id][1].values())

    # -- operations ------------------------------------------------------------------------------------------------
    async def lists(self) -> None:
        """The steps before the maps are through; a gate fails every time."""
        for _ in range(2):
            found: list[list[ClaimedTask]] = []

            async def call(driver: Driver, found: list[list[ClaimedTask]] = found) -> Any:
                found.append(await driver.claim(steps=["gate", "items"], owner="w0", lease=LEASE))
                return sorted(map(told, found[-1]))

            await self.both("claim lists", call)
            for task in sorted(found[0], key=lambda t: t.run.run_id):
                text = json.dumps(list(range(self.rng.choice([0, 1, 3, 5, 5, 7]))))
                event = failed(task) if task.step == "gate" else done(task, text)

                async def report(driver: Driver, task: ClaimedTask = task, event: Any = event) -> Any:
                    return outcome(await Applier(driver.store, owner="w0").apply({task.run.run_id: [event]}))

                await self.both(f"report {task.step} {event}", report)

    async def claim(self) -> None:
        """All that is ready of some of the steps."""
        steps = self.rng.choice([["each"], ["each", "reader"], ["reader"]])
        owner = f"w{self.rng.randint(0, 2)}"
        found: list[list[ClaimedTask]] = []

        async def call(driver: Driver) -> Any:
            found.append(await driver.claim(steps=steps, owner=owner, lease=LEASE))
            return sorted((*told(task), task.input) for task in found[-1])

        await self.both(f"claim {owner} {steps}", call)
        self.claimed += sorted(found[0], key=lambda t: (t.run.run_id, t.task.node, t.task.item))

    async def page(self) -> None:
        """A page of one or two items: the next one, or one that is stored already, comes too early, or is of another life."""
        rng = self.rng
        run_id = rng.choice(self.runs)
        plan, head = self.plans[run_id], await self.drivers[0].head(run_id)
        node = plan.nodes[plan.index["each"]]
        stored = (await self.drivers[0].store.load_values([(run_id, plan.index["items"])])).outputs
        if not stored:
            return
        values = Values("C" * len(plan.nodes), {plan.index["items"]: next(iter(stored.values()))})
        found = items_of(plan, node, values)
        counts = (await self.drivers[0].record(run_id)).maps.get(node.index)
        lives = head.snapshot.counters.retries
        first = counts.expanded if counts is not None and counts.retries == lives else 0
        if rng.random() < 0.3:
            first = rng.choice([0, max(0, first - 1), first + 1])
        retries = lives if rng.random() < 0.85 else rng.choice([lives + 1, max(0, lives - 1)])
        texts = found.texts[first : first + rng.randint(1, 2)]
        if not texts and found.texts:
            return
        total = len(found.texts)
        tolerance = tolerance_of(plan, node, total)
        page = MapPage(
            run_id,
            plan,
            node.index,
            first,
            total,
            texts,
            tolerance,
            retries,
            digest_of(found, node, values),
            head.priority,
        )
        taken = await self.both(f"page {first} +{len(texts)} {retries}", lambda driver: driver.store.expand_map(page))
        SEEN["page taken" if taken[0] else "page refused"] += 1
        if taken[0]:
            changes = (await self.drivers[0].store.history(run_id))[-1].changes["events"][0]
            SEEN["afresh"] += changes.get("afresh", False)
            SEEN["kept"] += lives > 0 and taken[1].completed > 0

    async def only_count(self) -> None:
        """Reports of items that are counted, and nobody decides what follows."""
        tasks = [task for task in self.claimed[-8:] if task.task.item >= 0]
        if not tasks:
            return
        task = self.rng.choice(tasks)
        run_id, plan = task.run.run_id, self.plans[task.run.run_id]
        mine = [each for each in tasks if each.run.run_id == run_id]
        by_item = {each.task.item: each for each in mine}
        reports = [self._report(each) for each in by_item.values()]
        commit = ItemCommit(run_id, plan, item_changes(plan, reports))  # type: ignore[arg-type]

        async def call(driver: Driver) -> Any:
            (answer,) = await driver.store.commit_items([commit])
            assert answer is not None
            return answer.head.snapshot, answer.applied, dict(answer.maps), answer.is_quarantined

        await self.both(f"count {reports}", call)

    async def withdraw(self) -> None:
        """Some items of a map that drains, or of one that does not."""
        states = {run_id: (await self.drivers[0].head(run_id)).snapshot.letters.text for run_id in self.runs}
        draining = [run_id for run_id in self.runs if "D" in states[run_id]]
        run_id, limit = self.rng.choice(draining or self.runs), self.rng.choice([1, 2, 100])
        node = self.plans[run_id].nodes[self.plans[run_id].index["each"]]
        await self.both(f"withdraw {limit}", lambda driver: driver.store.withdraw_items(run_id, node, limit))

    async def free(self) -> None:
        """Held items for which there may be room."""
        run_id = self.rng.choice(self.runs)
        index = self.plans[run_id].index["each"]
        await self.both(f"free {run_id}", lambda driver: driver.store.free_items(run_id, index))

    async def waits(self) -> None:
        """Time passes; whoever takes what is due has it for some time."""

        async def call(driver: Driver) -> Any:
            await driver.later(30.0)
            due = [await driver.store.take_due_waits(10, 10.0) for _ in range(2)]
            return [sorted((w.head.run_id, w.head.snapshot.version, w.node, w.counts) for w in each) for each in due]

        _, second = await self.both("waits", call)
        assert second == [], "nobody else gets them"

    async def retry(self) -> None:
        """A failed run begins again, and its lists with it; one that is in the middle of it is stopped."""
        heads = {run_id: (await self.drivers[0].head(run_id)).snapshot for run_id in self.runs}
        failed_ones = [run_id for run_id, snapshot in heads.items() if snapshot.status == "failed"]
        if not failed_ones:
            await self.deadline()
            failed_ones = self.runs
        run_id, event = self.rng.choice(failed_ones), RetryRequested(rerun_stale=self.rng.random() < 0.7)

        async def call(driver: Driver) -> Any:
            return outcome(await Applier(driver.store).apply({run_id: [event]}))

        await self.both(f"retry {run_id} {event}", call)
        await self.lists()

    async def deadline(self) -> None:
        """The run's time is over."""
        run_id = self.rng.choice(self.runs)

        async def call(driver: Driver) -> Any:
            return outcome(await Applier(driver.store).apply({run_id: [DeadlinePassed()]}))

        await self.both(f"deadline {run_id}", call)

    async def look(self) -> None:
        """Time passes; then a coordinator does all there is to do."""
        by = self.rng.choice(PASSES[:3])

        async def call(driver: Driver) -> Any:
            await driver.later(by)
            expired = sorted(await driver.store.expired_tasks(100), key=lambda each: (each[0].run_id, each[1].item))
            events: dict[str, list[Any]] = {}
            for head, delivery in expired:
                events.setdefault(head.run_id, []).append(LeaseExpired(delivery))
            swept = outcome(await Applier(driver.store).apply(events))
            moved, _ = await fire_due(driver.store)
            return [(head.run_id, told_delivery(delivery)) for head, delivery in expired], swept, moved

        await self.both(f"look {by}", call)

    async def ask(self) -> None:
        """Everything that can be read of a map, and who holds what."""

        async def call(driver: Driver) -> Any:
            wanted = [
                (run_id, code)
                for run_id, plan in self.plans.items()
                for at in (plan.index["each"],)
                for code in (at, list_code(at), outcomes_code(at), *(part_code(at, i) for i in range(-8, 8)))
            ]
            stored = await driver.store.load_values(wanted)
            held = sorted(told(task) for task in await driver.store.leased_to("w0", self.runs))
            return stored.outputs, stored.errors, held

        await self.both("ask", call)


def told_row(task: Any) -> tuple[Any, ...]:
    """A task row without its moments."""
    return (
        task.node, task.item, task.state, task.attempt, task.delivery, task.failures, task.crashes, task.owner or "", task.output or "",
        task.error or "", task.details or "", task.started_at is None, task.finished_at is None, task.wake_at is None,
        task.lease_expires_at is None,
    )  # fmt: skip


@pytest.mark.parametrize("name", SERVERS)
async def test_memory_and_postgres_do_the_same_with_maps(
    contract_database: Callable[[str], str], namespace: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random histories of pages, results, withdrawals, stops and retries leave both stores alike after every step, and sound."""
    monkeypatch.setattr(maps, "PAGE", 2)
    SEEN.clear()
    url = contract_database(name)
    for i in range(32):
        seed = 1000 * SERVERS.index(name) + 100 * (i // 8) + i % 8
        async with opened(PostgresStore(url, namespace=f"{namespace}_{i}", connections=2)) as store:
            memory = MemoryStore(namespace=store.namespace, clock=TurnableClock())
            pair = MapPair(Driver(memory), Driver(store), seed)
            pair.log.append(f"seed {seed}")
            await pair.start()
            operations = (
                pair.page, pair.page, pair.claim, pair.claim, pair.report, pair.report, pair.report, pair.only_count,
                pair.withdraw, pair.withdraw, pair.free, pair.waits, pair.look, pair.lists, pair.ask, pair.retry, pair.retry,
            )  # fmt: skip
            for _ in range(36):
                await pair.rng.choice(operations)()
                await pair.compare()
                if pair.rng.random() < 0.02:
                    await pair.steer()
            await pair.ask()
    print("\n", dict(SEEN))
    assert {word: SEEN[word] for word, least in LEAST.items() if SEEN[word] < least} == {}


assert min(PASSES) > DELAY
