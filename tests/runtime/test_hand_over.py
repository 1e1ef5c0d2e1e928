"""Tasks that a worker was promised with a start, and that come when it has gone."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest

from composer import AsyncClient, Settings, Worker, step, workflow
from composer.memory.store import MemoryStore
from composer.ports.store import NewRun, StartAnswer
from tests.working import until

pytestmark = pytest.mark.anyio

ran: list[int] = []


@step
async def plus(n: int) -> int:
    """One more."""
    ran.append(n)
    return n + 1


@workflow
def once(n: int) -> int:
    """One step."""
    return plus(n)


class SlowAnswer(MemoryStore):
    """A store whose start is durable some time before its answer arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.stored, self.answer = anyio.Event(), anyio.Event()

    async def start_runs(self, runs: Sequence[NewRun], *, owner: str = "", lease: float = 0.0) -> list[StartAnswer]:
        answers = await super().start_runs(runs, owner=owner, lease=lease)
        self.stored.set()
        await self.answer.wait()
        return answers


async def test_what_comes_to_a_worker_that_has_gone_is_given_back() -> None:
    """A task that was promised to a worker which ended meanwhile runs no body nobody hears, and waits for no lease."""
    store = SlowAnswer()
    settings = Settings(grace=0.0, lease=60.0)
    started: list[str] = []
    async with AsyncClient(store=store, settings=settings) as client, anyio.create_task_group() as group:

        async def start() -> None:
            started.append((await client.start(once, 1)).id)

        async with Worker([once], settings, store=store):
            await until(lambda: store.wakeups.taker is not None)
            group.start_soon(start)
            await store.stored.wait()
        store.answer.set()
        await until(lambda: started)
        assert ran == []
        (node,) = (await client.get(started[0])).nodes
        assert (node.state, node.attempt, node.crashes) == ("ready", 1, 0)
        async with Worker([once], settings, store=store):
            end = await client.wait(started[0], timeout=5)
    assert (end.status, ran) == ("completed", [1])
