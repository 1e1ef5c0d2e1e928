"""C25: joins after skipped branches."""

from __future__ import annotations

from collections import Counter

import anyio
import pytest

from composer import either, maybe, otherwise, step, step_context, when, workflow
from tests.working import working

pytestmark = pytest.mark.anyio

_ran: Counter[str] = Counter()
_order: list[str] = []


@step
async def decides(n: int, seconds: float) -> int:
    """Takes a while."""
    await anyio.sleep(seconds)
    _order.append(step_context().node)
    return n


@step
async def work(n: int) -> int:
    """Counts where it ran."""
    _ran[step_context().node] += 1
    return n


@step
async def total(found: list[int]) -> int:
    """The sum."""
    _ran[step_context().node] += 1
    return sum(found)


@step
async def both(x: int, y: int) -> int:
    """Needs both."""
    _ran[step_context().node] += 1
    return x + y


@workflow
def slow_and_fast(n: int) -> tuple[int | None, int | None]:
    """The slow one picks x, the fast one turns away from y."""
    with when(decides.named("slow")(n, 0.5) > 0):
        x = work.named("x")(n)
    with when(decides.named("fast")(n, 0.0) < 0):
        y = work.named("y")(n)
    joined = work.named("any")(either(x, y, overlap=True))
    return maybe(joined), maybe(both.named("all")(x, y))


async def test_join_waits_for_the_slow_branch(database: str, namespace: str) -> None:
    """(a) The join of any waits for the slow branch and runs once with its output; the join of all is skipped after both have settled."""
    _ran.clear()
    _order.clear()
    async with working(database, namespace, [slow_and_fast]) as site:
        handle = await site.client.start(slow_and_fast, 7)
        assert await handle.result(timeout=10) == (7, None)
        assert {node.name: node.state for node in (await handle.get()).nodes}["all"] == "skipped"
        history = await site.client.history(handle.id)
        skipped = next(row.version for row in history if row.changes.get("nodes", {}).get("all") == "S")
        assert all(
            skipped >= row.version
            for row in history
            for name in ("when", "when-2")
            if name in row.changes.get("guards", {})
        )
    assert _order == ["fast", "slow"]
    assert _ran == {"x": 1, "any": 1}


@workflow
def long_way_round(n: int) -> int:
    """An untaken path of five steps, with a branch and a map in it, then a join with the taken one."""
    with when(n < 0):
        one = work.named("one")(n)
        two = work.named("two")(one)
        with when(two > 5):
            three = work.named("three")(two)
        with otherwise():
            other = work.named("other")(two)
        four = total.named("four")(work.named("each").map([1, 2, 3]))
        long = both.named("five")(either(three, other), four)
    with otherwise():
        short = work.named("short")(n)
    return work.named("join")(either(long, short))


async def test_every_step_of_an_untaken_path_is_shown_as_skipped(database: str, namespace: str) -> None:
    """(b) None stays pending, no item runs, the join runs once and the run succeeds; taken, the path runs whole."""
    _ran.clear()
    async with working(database, namespace, [long_way_round]) as site:
        handle = await site.client.start(long_way_round, 3)
        assert await handle.result(timeout=10) == 3
        states = {node.name: node.state for node in (await handle.get()).nodes}
        untaken = ("one", "two", "three", "other", "each", "four", "five")
        assert {states[name] for name in untaken} == {"skipped"}
        assert set(states.values()) == {"skipped", "completed"}
        assert _ran == {"short": 1, "join": 1}
        assert await (await site.client.start(long_way_round, -4)).result(timeout=10) == -4 + 6
        assert await site.verified() == []


@workflow
def nothing_taken(n: int) -> int | None:
    """A join of nothing but skipped branches."""
    with when(n > 5):
        x = work.named("x")(n)
    with when(n < -5):
        y = work.named("y")(n)
    return maybe(work.named("any")(either(x, y, overlap=True)))


async def test_join_of_nothing_is_skipped(database: str, namespace: str) -> None:
    """(c) It is skipped, and the run settles."""
    _ran.clear()
    async with working(database, namespace, [nothing_taken]) as site:
        handle = await site.client.start(nothing_taken, 1)
        assert await handle.result(timeout=10) is None
        assert {node.name: node.state for node in (await handle.get()).nodes}["any"] == "skipped"
    assert not _ran
