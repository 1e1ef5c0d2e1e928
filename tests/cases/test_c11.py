"""C11: a cancel that races a completion, or hits nothing, says what it did."""

from __future__ import annotations

import random

import anyio
import pytest

from composer import RunNotFound, step, workflow
from tests.working import working

pytestmark = pytest.mark.anyio

after_ran: set[str] = set()


@step
async def works(name: str) -> str:
    """A moment."""
    await anyio.sleep(0.1)
    return name


@step
async def after(name: str) -> str:
    """The successor."""
    after_ran.add(name)
    return name


@workflow
def work(name: str) -> str:
    """Two steps."""
    return after(works(name))


async def test_a_cancel_agrees_with_what_became_of_the_run(database: str, namespace: str) -> None:
    """200 cancels around the completion: accepted means cancelled, refused means completed; nothing starts after one."""
    chance = random.Random(11)
    outcomes: dict[str, int] = {}
    async with working(database, namespace, [work], concurrency=300) as site:

        async def one(n: int) -> None:
            handle = await site.client.start(work, f"{namespace} {n}")
            await anyio.sleep(chance.uniform(0.0, 0.6))
            result = await handle.cancel()
            end = await site.client.wait(handle.id, timeout=20)
            assert end.status == result.status
            assert result.accepted == (end.status == "cancelled")
            view = await handle.get()
            if end.status == "cancelled":
                assert all(node.state != "ready" for node in view.nodes)
            outcomes[end.status] = outcomes.get(end.status, 0) + 1

        async with anyio.create_task_group() as group:
            for n in range(200):
                group.start_soon(one, n)
        assert sum(outcomes.values()) == 200
        assert len(outcomes) == 2, f"the race was not reached: {outcomes}"
        assert await site.verified() == []


async def test_a_cancel_of_what_has_ended_or_is_unknown_changes_nothing(database: str, namespace: str) -> None:
    """A finished run stays finished, an unknown id is not found and leaves no mark, twice is as once."""
    async with working(database, namespace, [work]) as site:
        handle = await site.client.start(work, "x", idempotency_key="k")
        await handle.result(timeout=10)
        refused = await handle.cancel()
        assert (refused.accepted, refused.status) == (False, "completed")
        assert await handle.result(timeout=5) == "x"
        unknown = (await site.client.store.mint_run_ids(1))[0]
        with pytest.raises(RunNotFound):
            await site.client.cancel(unknown)
        assert await (await site.client.start(work, "y", idempotency_key="k2")).result(timeout=10) == "y"
        stopped = await site.client.start(work, "z", delay=60)
        first, second = await stopped.cancel("a"), await stopped.cancel("b")
        assert first == second
        assert len(await site.client.history(stopped.id)) == 2, "the second cancel wrote nothing"
