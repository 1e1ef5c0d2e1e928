"""A worker and a client on a database, for tests that run whole workflows in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio

from composer import AsyncClient, Settings, Worker
from composer.postgres.store import PostgresStore
from composer.verify import Verified, verify


@dataclass
class Site:
    """A worker at work, its client, and where they are."""

    worker: Worker
    client: AsyncClient
    settings: Settings

    async def verified(self) -> list[Any]:
        """Violations of the invariants among the runs here."""
        return [violation async for violation in verify(self.worker.store, Verified())]


@asynccontextmanager
async def working(
    database: str,
    namespace: str,
    flows: Sequence[Any],
    store: PostgresStore | None = None,
    *,
    lifespan: Any = None,
    around: Sequence[Any] = (),
    **settings: Any,
) -> AsyncIterator[Site]:
    """A worker for `flows` and a client that shares its store."""
    made = Settings(database_url=database, namespace=namespace, **{"grace": 5.0, **settings})
    async with (
        Worker(flows, made, store=store, lifespan=lifespan, around=around) as worker,
        AsyncClient(store=worker.store, settings=made) as client,
    ):
        yield Site(worker, client, made)


@asynccontextmanager
async def opened(database: str, namespace: str) -> AsyncIterator[PostgresStore]:
    """A store of its own."""
    store = PostgresStore(database, namespace=namespace, connections=4)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def until(condition: Callable[[], Any], limit: float = 10.0) -> None:
    """Returns once the condition holds (plain or async), which it must within `limit` seconds."""
    with anyio.fail_after(limit):
        while True:
            holds = condition()
            if hasattr(holds, "__await__"):
                holds = await holds
            if holds:
                return
            await anyio.sleep(0.01)
