"""Months of history: made ahead, by anybody, and the default partition stays empty."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import asyncpg
import pytest

from composer import AsyncClient, Settings, Worker, step, workflow
from composer.postgres import partitions
from composer.postgres.ids import RunIds
from composer.postgres.migrate import migrate
from composer.postgres.partitions import AHEAD, lower_bound, make_partitions, month_after
from composer.postgres.store import PostgresStore
from tests.contract.driver import Driver, done, opened
from tests.servers import query

WHERE = "select relname::text from pg_class c where c.oid = history.tableoid"


@step
async def same(value: int) -> int:
    """What it is given."""
    return value


@workflow
def one_step(value: int) -> int:
    """One step."""
    return same(value)


async def partitions_of(url: str) -> list[str]:
    """Names of the months there are, the default left out."""
    rows = await query(
        url,
        "select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid "
        "where i.inhparent = 'composer.history'::regclass and c.relname <> 'history_default' order by 1",
    )
    return [row[0] for row in rows]


async def make(url: str) -> list[str]:
    """Makes what is missing; returns what was made."""
    connection = await asyncpg.connect(url)
    try:
        return await make_partitions(connection, "composer")
    finally:
        await connection.close()


def expected(now: datetime) -> list[str]:
    """The months that there should be at a moment."""
    months = [month_after(now.year, now.month, ahead) for ahead in range(-1, AHEAD + 1)]
    return [f"history_{year:04}_{month:02}" for year, month in months]


@pytest.fixture
async def migrated(empty_database: str) -> str:
    """A database with the schema and nothing else."""
    connection = await asyncpg.connect(empty_database)
    await migrate(connection)
    await connection.close()
    return empty_database


async def test_months_ahead_are_made_once(migrated: str) -> None:
    """The month before, this one and the next three are made, and made only once."""
    # Unless a migration has made them already.
    before = await partitions_of(migrated)
    made = await make(migrated)
    assert sorted([*before, *made]) == expected(datetime.now(UTC)) == await partitions_of(migrated)
    assert await make(migrated) == []


async def test_replicas_make_months_together(migrated: str) -> None:
    """Of five replicas that make partitions at once none fails, and each month is made once."""
    before = await partitions_of(migrated)
    made: list[str] = []

    async def replica() -> None:
        made.extend(await make(migrated))

    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(replica)
    assert sorted([*before, *made]) == expected(datetime.now(UTC))


async def test_history_goes_into_its_month(fresh_database: str) -> None:
    """History of a run started now lies in this month's partition, and the default partition stays empty."""
    async with opened(PostgresStore(fresh_database)) as store:
        driver = Driver(store)
        run_id = await driver.start()
        await driver.apply(run_id, done(await driver.claim_one()))
    rows = await query(fresh_database, f"select ({WHERE}) from composer.history")
    assert [row[0] for row in rows] == [f"history_{datetime.now(UTC):%Y_%m}"] * 2


async def test_worker_starts_after_runs_that_were_started_before_there_were_months(migrated: str) -> None:
    """Runs started before any worker or coordinator ran do not keep one from starting, complete, and leave the default partition empty."""
    for name in await partitions_of(migrated):
        await query(migrated, f"drop table composer.{name}")
    async with opened(PostgresStore(migrated)) as store, AsyncClient(store=store) as client:
        handles = await client.start_many(one_step, [(i,) for i in range(3)])
        async with Worker([one_step], Settings(), store=store):
            assert [await handle.result(timeout=10) for handle in handles] == [0, 1, 2]
        for handle in handles:
            assert [row.version for row in await store.history(handle.id)] == [1, 2]
    assert (await query(migrated, "select count(*) from composer.history_default"))[0][0] == 0
    assert await partitions_of(migrated) == expected(datetime.now(UTC))


async def test_months_are_made_while_runs_are_started(migrated: str) -> None:
    """A commit under way while partitions are made, which writes into the default partition, makes neither fail; its row moves too."""
    for name in await partitions_of(migrated):
        await query(migrated, f"drop table composer.{name}")
    ids = RunIds()
    ids.heard(datetime.now(UTC).timestamp())
    under_way = await asyncpg.connect(migrated)
    made: list[str] = []

    async def make_them() -> None:
        made.extend(await make(migrated))

    waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    async with anyio.create_task_group() as group, under_way.transaction():
        await under_way.execute(
            "insert into composer.history (namespace, run_id, version, changes) values ('n', $1, 1, '{}')",
            ids.mint(),
        )
        group.start_soon(make_them)
        with anyio.fail_after(10):
            while not (await query(migrated, waiting))[0][0]:
                await anyio.sleep(0.01)
    await under_way.close()
    assert made == expected(datetime.now(UTC))
    rows = await query(migrated, f"select ({WHERE}) from composer.history")
    assert [row[0] for row in rows] == [f"history_{datetime.now(UTC):%Y_%m}"]


async def test_rows_of_other_months_stay_in_the_default_partition(migrated: str) -> None:
    """Making a month moves that month's rows out of the default partition, and no others."""
    old = uuid.UUID(int=int(datetime(2001, 1, 1, tzinfo=UTC).timestamp() * 1000) << 80)
    await query(
        migrated,
        "insert into composer.history (namespace, run_id, version, changes) values ('n', $1, 1, '{}')",
        old,
    )
    await make(migrated)
    rows = await query(migrated, f"select run_id, ({WHERE}) from composer.history")
    assert [tuple(row) for row in rows] == [(old, "history_default")]


@pytest.mark.parametrize("moment", ["2026-12-31T23:59:59.999+00:00", "2027-01-01T00:00:00+00:00"])
async def test_year_ends_in_the_right_partition(migrated: str, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """The last moment of a year and the first of the next fall into the partitions of their months."""
    now = datetime.fromisoformat(moment)

    class Then(asyncpg.Connection):
        async def fetchval(self, query: str, *args: Any, **more: Any) -> Any:
            if query == "select clock_timestamp()":
                return now
            return await super().fetchval(query, *args, **more)

    connection = await asyncpg.connect(migrated, connection_class=Then)
    await make_partitions(connection, "composer")
    assert set(expected(now)) <= set(await partitions_of(migrated))
    ids = RunIds()
    monkeypatch.setattr("composer.postgres.ids.time.monotonic", lambda: 0.0)
    ids.heard(now.timestamp())
    await connection.execute(
        "insert into composer.history (namespace, run_id, version, changes) values ('n', $1, 1, '{}')", ids.mint()
    )
    rows = await connection.fetch(f"select ({WHERE}) from composer.history")
    assert [row[0] for row in rows] == [f"history_{now:%Y_%m}"]
    await connection.close()


def test_months_follow_each_other_without_a_gap() -> None:
    """Twelve months on or back is a year, and the smallest id of a month is larger than every id before it."""
    assert month_after(2026, 12) == (2027, 1)
    assert month_after(2027, 1, -1) == (2026, 12)
    assert month_after(2026, 6, 12) == (2027, 6)
    assert month_after(2026, 6, -18) == (2024, 12)
    for year in (2025, 2026, 2028):
        for month in range(1, 13):
            first = datetime(year, month, 1, tzinfo=UTC)
            bound = lower_bound(year, month)
            last_before = (int((first - timedelta(milliseconds=1)).timestamp() * 1000) << 80) | ((1 << 80) - 1)
            assert last_before == bound.int - 1
            assert lower_bound(*month_after(year, month)) > bound
    assert partitions.AHEAD >= 2
