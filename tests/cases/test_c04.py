"""C04: A LISTEN connection that is dropped comes back."""

from __future__ import annotations

import time

import asyncpg
import pytest

from composer import AsyncClient
from tests.system import flows
from tests.system.processes import Yard
from tests.working import until

pytestmark = pytest.mark.anyio


async def test_a_lost_listener_comes_back_and_hears(site: Yard, client: AsyncClient, database: str) -> None:
    """C04: after its LISTEN backend was terminated a worker hears again; no run waits for a poll."""
    worker = site.worker()
    await (await client.start(flows.short, 1)).result(timeout=20)
    connection = await asyncpg.connect(database)
    try:
        listening = "select pid from pg_stat_activity where datname = current_database() and query ilike 'listen %'"
        before = {row["pid"] for row in await connection.fetch(listening)}
        assert before
        await connection.execute("select pg_terminate_backend(pid) from unnest($1::int[]) as x(pid)", list(before))

        async def back() -> bool:
            now = {row["pid"] for row in await connection.fetch(listening)}
            return bool(now) and not now & before

        await until(back, 5)
        took: list[float] = []
        for n in range(20):
            at = time.monotonic()
            assert await (await client.start(flows.short, n)).result(timeout=10) == n + 2
            took.append(time.monotonic() - at)
        assert sorted(took)[10] < 0.3
        assert worker.is_running
    finally:
        await connection.close()
