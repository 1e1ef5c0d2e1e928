"""A claim whose answer is lost: what the worker holds is read back, and nothing of it runs twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import anyio
import pytest

from composer import step, step_context, workflow
from composer.errors import StoreUnavailable
from composer.ports.store import ClaimedTask
from composer.postgres.store import PostgresStore
from tests.working import until, working

pytestmark = pytest.mark.anyio

_ran: Counter[str] = Counter()
_let_go = anyio.Event()


@step
async def held(n: int) -> int:
    """Runs until it is let go."""
    _ran[step_context().run_id] += 1
    await _let_go.wait()
    return n


@workflow
def holding(n: int) -> int:
    """One step."""
    return held(n)


class LosingStore(PostgresStore):
    """Loses the answer of one claim that found something, and is slow to read back."""

    loses = False
    read: list[str]

    async def claim_tasks(self, **asked: Any) -> list[ClaimedTask]:
        """Claims."""
        found = await super().claim_tasks(**asked)
        if self.loses and found:
            self.loses = False
            raise StoreUnavailable("the answer was lost")
        return found

    async def leased_to(self, owner: str, run_ids: Sequence[str] | None) -> list[ClaimedTask]:
        """Reads what is held, and answers once all that ran has ended."""
        found = await super().leased_to(owner, run_ids)
        self.read = [task.run.run_id for task in found]
        _let_go.set()
        ended: Collection[str] = ()

        async def first_has_ended() -> bool:
            nonlocal ended
            ends = await self.run_ends(self.read[:1])
            ended = [end.status for end in ends.values()]
            return ended == ["completed"]

        await until(first_has_ended, 5)
        return found


async def test_what_ended_while_it_was_read_back_does_not_run_again(database: str, namespace: str) -> None:
    """A body that ends, and is committed, between the reading back and its answer runs once; the lost task runs too."""
    global _let_go
    _let_go = anyio.Event()
    _ran.clear()
    store = LosingStore(database, namespace=namespace, connections=4)
    await store.open()
    try:
        async with working(database, namespace, [holding], store, poll_interval=0.05) as site:
            # Started elsewhere, so that it is claimed.
            first = await site.client.start(holding, 1, delay=0.05)
            await until(lambda: _ran[first.id] == 1)
            store.loses = True
            second = await site.client.start(holding, 2, delay=0.05)
            assert await second.result(timeout=10) == 2
            assert await first.result(timeout=10) == 1
            assert store.read[0] == first.id
            assert second.id in store.read
            await until(lambda: site.worker.loop.is_idle)
            assert _ran == {first.id: 1, second.id: 1}
            assert await site.verified() == []
    finally:
        await store.close()
