"""What processes that were killed leave behind in the tables of the living."""

from __future__ import annotations

import pytest

from composer.ports.store import WorkerRecord
from composer.postgres.store import PostgresStore
from tests.servers import execute, query

pytestmark = pytest.mark.anyio


async def ids(store: PostgresStore, table: str) -> set[str]:
    """Whose rows are there."""
    rows = await query(store._url, f"select id from composer.{table} where namespace = '{store.namespace}'")
    return {row["id"] for row in rows}


async def test_the_word_of_killed_sleepers_does_not_pile_up(postgres_store: PostgresStore) -> None:
    """Every commit looks through the sleepers, so those that have long lapsed go when another one lies down."""
    store = postgres_store
    await store.set_sleeping("alive", asleep=True, ttl=-3600.0)
    await store.set_sleeping("alive", asleep=True, ttl=30.0)  # its own lapsed word is renewed
    for n in range(5):
        await store.set_sleeping(f"killed-{n}", asleep=True, ttl=-3600.0)
    await store.set_sleeping("new", asleep=True, ttl=30.0)
    assert await ids(store, "sleepers") == {"alive", "new"}


async def test_workers_that_were_killed_long_ago_are_forgotten(postgres_store: PostgresStore) -> None:
    """A registration that lapsed a day ago goes with the next one; a younger one stays, as its tasks may still be leased."""
    store = postgres_store
    for name in ("old", "young"):
        await store.register_worker(WorkerRecord(name, "elsewhere", "b", 1, 1.0, ["default"], ["a"]), ttl=-60.0)
    await execute(
        store._url,
        f"update composer.workers set expires_at = now() - interval '2 days' where namespace = '{store.namespace}' and id = 'old'",
    )
    await store.register_worker(WorkerRecord("new", "here", "b", 1, 1.0, ["default"], ["a"]), ttl=30.0)
    assert await ids(store, "workers") == {"young", "new"}
