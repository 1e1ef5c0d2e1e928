"""A watch while the database is killed and comes back."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import anyio
import pytest

from composer import AsyncClient, Change, step, workflow
from composer.errors import StoreUnavailable
from composer.ports.store import RunChanges
from composer.postgres import embedded_reaper
from tests.servers import TestServer
from tests.working import until, working

pytestmark = pytest.mark.anyio

_go = anyio.Event()


@step
async def plus(n: int) -> int:
    """One more."""
    return n + 1


@step
async def held(n: int) -> int:
    """Waits until it is let go."""
    await _go.wait()
    return n


@workflow
def holding(n: int) -> int:
    """Two steps before, two after one that is held."""
    return plus(plus(held(plus(plus(n)))))


@pytest.fixture
def mortal() -> Iterator[TestServer]:
    """A server that is killed."""
    server = TestServer(durable=True)
    yield server
    server.close()


async def test_a_watch_goes_on_after_the_database_was_killed(
    mortal: TestServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -9 of PostgreSQL under a watch, for longer than a call of the client would wait: nothing is missed or told twice."""
    global _go
    _go = anyio.Event()
    url = mortal.database()
    seen: list[Change] = []
    refused: list[StoreUnavailable] = []
    async with working(url, namespace, [holding]) as site, AsyncClient(url, namespace=namespace) as watcher:
        handle = await site.client.start(holding, 1)
        monkeypatch.setattr("composer.client.async_client.PATIENCE", 0.0)

        look = watcher.store.changes

        async def telling(run_id: str, after: int, limit: int) -> RunChanges | None:
            try:
                return await look(run_id, after, limit)
            except StoreUnavailable as error:
                refused.append(error)
                raise

        monkeypatch.setattr(watcher.store, "changes", telling)

        async def follow() -> None:
            async for change in watcher.watch(handle.id):
                seen.append(change)

        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            await until(lambda: [change.node for change in seen][-1:] == ["held"])
            postmaster = embedded_reaper.find_server(str(mortal.embedded.data))
            assert postmaster is not None
            os.kill(postmaster, signal.SIGKILL)
            _go.set()
            try:
                await until(lambda: len(refused) >= 2, 30)
            finally:
                # A watch that gives up cancels this. A worker, though, leaves no sooner than its database is back.
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(mortal.embedded.start)
            await until(lambda: seen[-1].event == "run-completed", 30)
        again = [change async for change in site.client.watch(handle.id)]
    assert [(change.version, change.event, change.node) for change in seen] == [
        (change.version, change.event, change.node) for change in again
    ]
    assert [change.event for change in seen].count("step-completed") == 5
