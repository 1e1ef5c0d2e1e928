"""One run that cannot be stored, or one answer that is lost, does not touch the rest."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import anyio
import pytest

from composer import AsyncClient, RunQuarantined, Settings, Worker, step, workflow
from composer.errors import StoreUnavailable
from composer.memory.store import MemoryStore
from composer.ports.store import ClaimedTask, CommitAnswers, RunCommit, RunHead
from composer.postgres.store import PostgresStore
from tests.servers import execute
from tests.working import opened, until, working

pytestmark = pytest.mark.anyio


@step
async def plus(n: int) -> int:
    """One more."""
    return n + 1


@workflow
def twice(n: int) -> int:
    """Two steps."""
    return plus(plus(n))


async def test_a_run_the_database_refuses_is_taken_aside_alone(fresh_database: str, namespace: str) -> None:
    """Of ten runs in one commit the bad one is quarantined, the others complete; released after the cure it goes on."""
    async with AsyncClient(fresh_database, namespace=namespace) as client:
        handles = await client.start_many(twice, [(n,) for n in range(10)])
        bad = handles[3]
        await execute(
            fresh_database,
            "create function composer.refuse() returns trigger language plpgsql as $$ begin "
            f"if new.run_id = '{bad.id}' then raise exception 'not this one'; end if; return new; end $$; "
            "create trigger refuse before insert on composer.history for each row execute function composer.refuse()",
        )
        # Nobody works before the trigger is there.
        async with working(fresh_database, namespace, [twice], lease=1.0) as site:
            for n, handle in enumerate(handles):
                if handle is not bad:
                    assert await handle.result(timeout=20) == n + 2
            await until(lambda: quarantined(site, bad.id))
            with pytest.raises(RunQuarantined, match="not this one"):
                await bad.cancel()
            await execute(fresh_database, "drop trigger refuse on composer.history")
            assert await client.release(bad.id)
            assert not await client.release(bad.id)
            assert await bad.result(timeout=20) == 5
            assert await site.verified() == []


async def quarantined(site, run_id: str) -> bool:
    """Whether the run was taken aside."""
    return (await site.client.get(run_id)).quarantine is not None


class LosesAnswers(PostgresStore):
    """A store whose first claim that brought something loses its answer on the way back."""

    lost = 0

    async def claim_tasks(
        self, *, queues: Sequence[str], steps: Collection[str], limit: int, owner: str, lease: float
    ) -> list[ClaimedTask]:
        claimed = await super().claim_tasks(queues=queues, steps=steps, limit=limit, owner=owner, lease=lease)
        if claimed and not self.lost:
            self.lost = len(claimed)
            raise StoreUnavailable("the answer was lost")
        return claimed


async def test_tasks_of_a_lost_claim_are_not_left_to_their_leases(database: str, namespace: str) -> None:
    """What a claim had leased when its answer was lost starts at once, as the delivery it was, and costs no crash."""
    store = LosesAnswers(database, namespace=namespace)
    await store.open()
    try:
        async with working(database, namespace, [], store=store) as idle:
            handles = await idle.client.start_many(twice, [(n,) for n in range(20)])
        async with working(database, namespace, [twice], store=store, lease=60.0) as site:
            for n, handle in enumerate(handles):
                assert await site.client.handle(twice, handle.id).result(timeout=20) == n + 2
            assert store.lost
            nodes = [node for handle in handles for node in (await site.client.get(handle.id)).nodes]
            assert {(node.attempt, node.crashes) for node in nodes} == {(1, 0)}
            assert site.worker.loop.executed == 40
            assert await site.verified() == []
    finally:
        await store.close()


class LooksTwice(MemoryStore):
    """A store that is away when a worker first asks whose processes are gone; keeps what it was told lives."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Collection[tuple[int, float]]] = []

    async def expire_leases_of_gone(self, host: str, boot_id: str, alive: Collection[tuple[int, float]]) -> list[str]:
        self.told.append(alive)
        if len(self.told) == 1:
            raise StoreUnavailable("away")
        return []


async def test_a_process_that_started_meanwhile_is_not_taken_for_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which processes live is looked up anew for every try, so one that starts while the database is away is among them."""
    seen = iter([[(1, 1.0)], [(1, 1.0), (2, 2.0)]])
    monkeypatch.setattr("composer.worker.loop.processes_alive", lambda: next(seen))
    store = LooksTwice()
    async with Worker([twice], Settings(coordinator=False), store=store):
        await until(lambda: len(store.told) == 2)
    assert store.told[1] == [(1, 1.0), (2, 2.0)]


class GoesAway(MemoryStore):
    """A store that is away for good once it is told to."""

    is_away = False
    tried = 0

    async def load_heads(self, run_ids: Sequence[str]) -> dict[str, RunHead]:
        if self.is_away:
            self.tried += 1
            raise StoreUnavailable("away")
        return await super().load_heads(run_ids)

    async def commit(self, commits: Sequence[RunCommit], *, owner: str = "", lease: float = 0.0) -> CommitAnswers:
        if self.is_away:
            self.tried += 1
            raise StoreUnavailable("away")
        return await super().commit(commits, owner=owner, lease=lease)


async def test_a_result_that_nobody_takes_does_not_keep_a_worker_that_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Told to stop while the database is away, a worker whose step has ended tries for its grace time and a bit more, then ends."""
    monkeypatch.setattr("composer.worker.loop._LAST_COMMIT", 0.2)
    store = GoesAway()
    begun, may_end = anyio.Event(), anyio.Event()

    @step
    async def held(n: int) -> int:
        begun.set()
        await may_end.wait()
        return n

    @workflow
    def holding(n: int) -> int:
        return held(n)

    settings = Settings(coordinator=False, grace=0.2)
    async with (
        Worker([holding], settings, store=store) as worker,
        AsyncClient(store=store, settings=settings) as client,
    ):
        await client.start(holding, 1)
        with anyio.fail_after(10):
            await begun.wait()
        store.is_away = True
        may_end.set()
        await until(lambda: store.tried)
        worker.drain()
        with anyio.move_on_after(10) as patience:
            await worker.wait_stopped()
        # Or a worker that goes on would do so for ever.
        store.is_away = False
    assert not patience.cancelled_caught


@workflow
def in_many_queues(n: int) -> int:
    """Sixty branches, each in a queue with a long name of its own."""
    for i in range(60):
        plus.options(queue=f"{i:03}-{'q' * 190}")(n)
    return n


async def test_an_announcement_too_long_for_postgresql_is_shortened(database: str, namespace: str) -> None:
    """A start of tasks in sixty long-named queues is stored, and wakes whoever sleeps for any queue."""
    async with (
        opened(database, namespace) as store,
        opened(database, namespace) as elsewhere,
        anyio.create_task_group() as group,
        AsyncClient(store=store) as client,
    ):
        group.start_soon(elsewhere.listen)
        await elsewhere.listening.wait()
        await elsewhere.set_sleeping("me", asleep=True, ttl=30.0)
        with elsewhere.wakeups.on_tasks(["one of them"]) as bell:
            await client.start(in_many_queues, 1)
            await client.start_many(in_many_queues, [(n,) for n in range(3)])
            assert await bell.wait(5.0)
        group.cancel_scope.cancel()
