"""Large results of many steps at once: what one statement carries stays small, and each is stored once."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest

from composer import AsyncClient, Settings, Worker, step, workflow
from composer.memory.store import MemoryStore
from composer.ports.store import CommitAnswers, RunCommit
from composer.worker.loop import MOST_COMMITTED

pytestmark = pytest.mark.anyio

SIZE = 1_900_000
RUNS = 12
begun: list[int] = []
all_begun = anyio.Event()


@step
async def large(n: int) -> str:
    """Ends together with all the others."""
    begun.append(n)
    if len(begun) == RUNS:
        all_begun.set()
    await all_begun.wait()
    return "x" * SIZE


@step
async def size(text: str) -> int:
    """How much there is."""
    return len(text)


@workflow
def measured(n: int) -> int:
    """A large result, read by another step."""
    return size(large(n))


class Weighing(MemoryStore):
    """Keeps how much the results of each commit have."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[int] = []

    async def commit(self, commits: Sequence[RunCommit], *, owner: str = "", lease: float = 0.0) -> CommitAnswers:
        self.weights.append(sum(len(change.output or "") for commit in commits for change in commit.transition.changes))
        return await super().commit(commits, owner=owner, lease=lease)


async def test_one_commit_carries_a_bounded_size() -> None:
    """Twelve results of almost 2 MB come at once and go in several commits; none is lost."""
    store, settings = Weighing(), Settings(concurrency=RUNS)
    async with AsyncClient(store=store, settings=settings) as client, Worker([measured], settings, store=store):
        runs = await client.start_many(measured, [(n,) for n in range(RUNS)])
        assert [await run.result(timeout=30) for run in runs] == [SIZE] * RUNS
    assert sum(store.weights) >= RUNS * SIZE
    assert max(store.weights) <= MOST_COMMITTED
