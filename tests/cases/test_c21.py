"""C21: early, late, double and null events."""

from __future__ import annotations

import pytest

from composer import Outcome, PayloadError, RunEnded, UnknownEvent, settled, step, wait_for_event, workflow
from tests.working import until, working

pytestmark = pytest.mark.anyio


@step
async def told(outcome: Outcome[int | None]) -> str:
    """How a wait ended."""
    return f"{outcome.state} {outcome.value}"


@workflow
def in_turn(n: int) -> list[int]:
    """A, then B."""
    a = wait_for_event("a", int)
    return [a, wait_for_event("b", int, after=a)]


@workflow
def twice(n: int) -> list[int | None]:
    """Two waits on one name, the second after the first."""
    one = wait_for_event("go", int, timeout="150ms", on_timeout=None)
    return [one, wait_for_event("go", int | None, timeout="10s", after=one, name="second")]


@workflow
def nothing_or_null(n: int) -> str:
    """A payload that may be null."""
    return told(settled(wait_for_event("go", int | None, timeout="200ms", on_timeout=None)))


async def test_early_event_waits_for_its_wait(database: str, namespace: str) -> None:
    """(a) B is sent before A has come: B's wait is satisfied at once when it is reached, with the right payload."""
    async with working(database, namespace, [in_turn]) as site:
        handle = await site.client.start(in_turn, 1)
        early = await handle.signal("b", 2)
        assert early.node is None, "it is kept"
        assert (await handle.signal("a", 1)).node == "a"
        assert await handle.result(timeout=10) == [1, 2]
        signals = await site.client.store.load_signals(handle.id)
        assert [(s.name, s.node is not None) for s in signals] == [("b", True), ("a", True)]


async def test_event_after_a_timeout_is_for_the_next_wait(database: str, namespace: str) -> None:
    """(b) The first wait timed out and eats nothing; the second one gets the event."""
    async with working(database, namespace, [twice]) as site:
        handle = await site.client.start(twice, 1)

        async def second_waits() -> bool:
            return {node.name: node.state for node in (await handle.get()).nodes}["second"] == "waiting"

        await until(second_waits)
        assert (await handle.signal("go", 7)).node == "second"
        assert await handle.result(timeout=10) == [None, 7]


async def test_null_is_a_payload(database: str, namespace: str) -> None:
    """(c) A null that was sent is success with None, and told from a timeout."""
    async with working(database, namespace, [nothing_or_null]) as site:
        sent = await site.client.start(nothing_or_null, 1)
        await sent.signal("go", None)
        silent = await site.client.start(nothing_or_null, 2)
        assert await sent.result(timeout=10) == "completed None"
        assert await silent.result(timeout=10) == "timed-out None"


async def test_repeated_event_counts_once_with_a_dedupe_id(database: str, namespace: str) -> None:
    """(d) Of one dedupe id the first counts; without one each is an event, of which a wait takes one and the next is kept."""
    async with working(database, namespace, [in_turn]) as site:
        handle = await site.client.start(in_turn, 1)
        first = await handle.signal("a", 1, dedupe_id="once")
        again = await handle.signal("a", 99, dedupe_id="once")
        assert (first.node, again.node, again.is_duplicate) == ("a", "a", True)
        assert (await handle.signal("a", 5)).node is None
        assert (await handle.signal("a", 5)).node is None
        await handle.signal("b", 2)
        assert await handle.result(timeout=10) == [1, 2]
        kept = [s for s in await site.client.store.load_signals(handle.id) if s.node is None]
        assert [(s.name, s.payload) for s in kept] == [("a", "5"), ("a", "5")]


async def test_event_that_nobody_will_take_is_refused(database: str, namespace: str) -> None:
    """(e), (f) After the end, and for a name the workflow never waits for, the caller is told, and nothing is stored."""
    async with working(database, namespace, [in_turn]) as site:
        handle = await site.client.start(in_turn, 1)
        with pytest.raises(UnknownEvent, match="It waits for 'a', 'b'"):
            await handle.signal("c", 1)
        await handle.signal("a", 1)
        await handle.signal("b", 2)
        assert await handle.result(timeout=10) == [1, 2]
        with pytest.raises(RunEnded) as caught:
            await handle.signal("a", 3)
        assert caught.value.status == "completed"
        assert len(await site.client.store.load_signals(handle.id)) == 2


async def test_event_of_the_wrong_shape_is_refused_where_it_is_sent(database: str, namespace: str) -> None:
    """A payload that does not fit the wait's type raises with its path, nothing is stored, and the run goes on waiting."""
    async with working(database, namespace, [in_turn]) as site:
        handle = await site.client.start(in_turn, 1)
        for wrong in ("1", None, {"n": 1}, 1.5, float("nan")):
            with pytest.raises(PayloadError, match="event 'a' of workflow 'in_turn'"):
                await handle.signal("a", wrong)
        assert await site.client.store.load_signals(handle.id) == []
        await handle.signal("a", 1)
        await handle.signal("b", 2)
        assert await handle.result(timeout=10) == [1, 2]
