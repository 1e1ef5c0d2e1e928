"""What a watch tells, over random lives of runs: the same, however often it looks and wherever it begins."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Set
from typing import Any

import pytest

from composer.client.watching import Change, Merge
from composer.core.events import CancelRequested, Event, LeaseExpired, RetryRequested, StepReleased, StepSnoozed
from composer.core.plan import Plan
from composer.core.states import ENDED_RUN
from composer.memory.store import MemoryStore
from composer.ports.store import ClaimedTask
from tests.contract.driver import Driver, TurnableClock, a_diamond, a_plan, done, failed

pytestmark = pytest.mark.anyio

RETRY = {
    "retries": {"attempts": 2, "delay": 1.0, "backoff": 1.0, "max_delay": 1.0, "jitter": 0.0, "no_retry_on": []},
}
PLANS = (
    a_diamond(options={"left": RETRY, "top": RETRY}),
    a_plan({"a": ["input"], "b": ["settled:a"], "c": ["b", "after:a"], "d": []}, options={"a": RETRY}, output="b"),
)


class Follower:
    """One watch, which looks when it is told to."""

    def __init__(self, driver: Driver, plan: Plan, run_id: str, after: int = 0, page: int = 100) -> None:
        self.driver, self.plan, self.run_id, self.page = driver, plan, run_id, page
        self.merge = Merge(after)
        self.told: list[Change] = []

    async def look(self) -> None:
        """Reads until it knows everything there is."""
        while True:
            found = await self.driver.store.changes(self.run_id, self.merge.version, self.page)
            assert found is not None
            is_all = len(found.history) < self.page
            self.told += self.merge.take(self.plan, found, is_all=is_all)
            if is_all:
                return


def apart(changes: list[Change]) -> tuple[list[Change], Counter[tuple[str | None, int | None]]]:
    """What is history, in order, and how often which delivery was told to start."""
    starts = Counter((each.node, each.delivery) for each in changes if each.event == "step-started")
    return [each for each in changes if each.event != "step-started"], starts


async def live(driver: Driver, plan: Plan, rng: random.Random, watchers: list[Follower], run_id: str) -> list[int]:
    """A random life, with looks in between. Returns every delivery's number in the order of the claims."""
    claimed: list[ClaimedTask] = []
    for _ in range(60):
        head = await driver.head(run_id)
        if head.snapshot.status in ENDED_RUN and rng.random() < 0.5:
            break
        events: list[Event] = []
        task: Any = rng.choice(claimed) if claimed else None
        match rng.randrange(9):
            case 0 | 1 | 2:
                claimed += await driver.claim(rng.randint(1, 3), lease=5.0)
            case 3 if task:
                events = [failed(task, retryable=rng.random() < 0.8)]
            case 4 if task:
                events = [rng.choice([StepReleased(task.task), StepSnoozed(task.task, 1.0)])]
            case 5 if rng.random() < 0.15:
                events = [CancelRequested("enough")]
            case 6:
                await driver.later(rng.choice([0.5, 2.0, 10.0]))
                await driver.store.move_due_tasks(10)
                for _, delivery in await driver.store.expired_tasks(10):
                    await driver.apply(run_id, LeaseExpired(delivery))
            case 7 if head.snapshot.status == "failed":
                events = [RetryRequested()]
            case _ if task:
                events = [done(task)]
            case _:
                pass
        if events:
            await driver.apply(run_id, *events)
        await driver.later(0.001)
        for watcher in watchers:
            if rng.random() < 0.4:
                await watcher.look()
    return [task.task.delivery for task in claimed]


@pytest.mark.parametrize("seed", range(120))
async def test_a_watch_tells_everything_once_and_in_order(seed: int) -> None:
    """A watch that looks now and then, one that looks at the end and one that reads two transitions at a time tell the same
    history; a delivery starts once, before it ends, and none is made up; from a version on a watch tells the rest."""
    rng = random.Random(seed)
    driver, plan = Driver(MemoryStore(clock=TurnableClock())), rng.choice(PLANS)
    run_id = await driver.start(plan)
    often = Follower(driver, plan, run_id)
    pages = Follower(driver, plan, run_id, page=2)
    claims = await live(driver, plan, rng, [often, pages], run_id)
    late = Follower(driver, plan, run_id)
    for watcher in (often, pages, late):
        await watcher.look()
    full, _ = apart(late.told)
    assert [change.version for change in full] == sorted(change.version for change in full)
    assert {change.version for change in full} == set(range(1, (await driver.head(run_id)).snapshot.version + 1))
    for watcher in (often, pages, late):
        history, starts = apart(watcher.told)
        assert history == full
        check_starts(watcher.told, starts, len(claims))

    after = rng.randint(0, full[-1].version)
    rest = Follower(driver, plan, run_id, after)
    await rest.look()
    history, starts = apart(rest.told)
    assert history == [change for change in full if change.version > after]
    # One that had ended before may be heard of again: a report that comes after its lease was swept.
    known = {(change.node, change.delivery) for change in full if change.version <= after}
    check_starts(rest.told, starts, len(claims), known)
    assert all(change.version >= after for change in rest.told)


def check_starts(
    told: list[Change],
    starts: Counter[tuple[str | None, int | None]],
    claims: int,
    known: Set[tuple[str | None, int | None]] = frozenset(),
) -> None:
    """Every delivery that ended was told to start, once, before that; versions never fall."""
    assert not starts or max(starts.values()) == 1
    assert len(starts) <= claims
    assert [change.version for change in told] == sorted(change.version for change in told)
    begun = set(known)
    for change in told:
        if change.event == "step-started":
            begun.add((change.node, change.delivery))
        elif change.delivery is not None:
            assert (change.node, change.delivery) in begun
