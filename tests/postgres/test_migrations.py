"""Migrations: once, whole, in order, by however many processes at once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import asyncpg
import pytest

from composer.app import open_store
from composer.errors import SchemaError, StoreError
from composer.postgres.migrate import check_schema, migrate
from composer.postgres.statements import migrations
from composer.postgres.store import PostgresStore
from composer.settings import Settings
from tests.contract.driver import Driver, done, opened
from tests.servers import execute, query

ALL = [f"{version:04}_{name}" for version, name, _ in migrations()]
MIGRATE = """
import asyncio, sys, asyncpg
from composer.postgres.migrate import migrate

async def main():
    connection = await asyncpg.connect(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    print(*await migrate(connection), flush=True)

asyncio.run(main())
"""


async def on_connection(url: str, call: Callable[[Any], Any]) -> Any:
    """What a call on a connection of its own returns."""
    connection = await asyncpg.connect(url)
    try:
        return await call(connection)
    finally:
        await connection.close()


def test_five_processes_migrate_at_once(empty_database: str) -> None:
    """Of five processes that migrate an empty database at the same time one does it all, and the others find it done."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", MIGRATE, empty_database],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for _ in range(5)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    outputs = []
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        output, _ = process.communicate(timeout=30)
        assert process.returncode == 0
        outputs.append(output.split())
    assert sorted(outputs) == [[]] * 4 + [ALL]


async def test_migrating_again_does_nothing(fresh_database: str) -> None:
    """A database that is up to date is left alone, and passes the check."""
    before = await query(fresh_database, "select * from composer.migrations")
    assert await on_connection(fresh_database, migrate) == []
    assert await query(fresh_database, "select * from composer.migrations") == before
    await on_connection(fresh_database, check_schema)


async def test_database_of_a_newer_release_is_refused(fresh_database: str) -> None:
    """A migration that this release does not know makes both the check and a migration fail, with the advice to upgrade."""
    await execute(fresh_database, "insert into composer.migrations (version, name, digest) values (9000, 'later', 'x')")
    for call in (check_schema, migrate):
        with pytest.raises(SchemaError, match="9000, which this release does not know; upgrade"):
            await on_connection(fresh_database, call)
    with pytest.raises(SchemaError):
        await PostgresStore(fresh_database).open()


async def test_edited_migration_is_refused(fresh_database: str) -> None:
    """A migration that was changed after it had been applied makes both the check and a migration fail."""
    await execute(fresh_database, "update composer.migrations set digest = 'of another text' where version = 1")
    for call in (check_schema, migrate):
        with pytest.raises(SchemaError, match="0001 of schema 'composer' is not the one this release ships"):
            await on_connection(fresh_database, call)


async def test_missing_migration_is_named(fresh_database: str) -> None:
    """A schema that lacks a migration is refused with its name and the command that helps."""
    await execute(fresh_database, "delete from composer.migrations where version = 1")
    with pytest.raises(SchemaError, match="lacks everything; run `composer migrate`"):
        await on_connection(fresh_database, check_schema)


async def test_migration_that_fails_leaves_nothing_behind(empty_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A migration that fails in the middle is rolled back whole, its lock is free again, and a later one begins anew."""
    broken = [(1, "first", "create table composer.half (id int); select 1 / 0")]
    with monkeypatch.context() as patch:
        patch.setattr("composer.postgres.migrate.migrations", lambda: broken)
        with pytest.raises(StoreError):
            await on_connection(empty_database, migrate)
    assert (await query(empty_database, "select to_regclass('composer.half')"))[0][0] is None
    with anyio.fail_after(10):
        assert await on_connection(empty_database, migrate) == ALL


async def test_release_with_one_migration_more_brings_an_older_schema_up(
    fresh_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schema of the release before gets the new migration only, and is refused until then."""
    more = [*migrations(), (9000, "more", "alter table composer.runs add column more int")]
    monkeypatch.setattr("composer.postgres.migrate.migrations", lambda: more)
    with pytest.raises(SchemaError, match="lacks 9000_more"):
        await on_connection(fresh_database, check_schema)
    assert await on_connection(fresh_database, migrate) == ["9000_more"]
    await on_connection(fresh_database, check_schema)
    await execute(fresh_database, "select more from composer.runs")


async def test_another_schema_holds_everything(empty_database: str) -> None:
    """With another schema's name everything lies there, and a run goes from its start to its end."""
    await on_connection(empty_database, lambda connection: migrate(connection, "elsewhere"))
    async with opened(PostgresStore(empty_database, schema="elsewhere")) as store:
        await store.make_partitions()
        driver = Driver(store)
        run_id = await driver.start(key="k")
        await driver.apply(run_id, done(await driver.claim_one()))
        assert (await driver.head(run_id)).snapshot.status == "completed"
        assert len(await store.history(run_id)) == 2
    schemas = await query(
        empty_database,
        "select distinct schemaname from pg_tables where schemaname not in ('pg_catalog', 'information_schema')",
    )
    assert [row[0] for row in schemas] == ["elsewhere"]


async def test_embedded_server_is_migrated_without_being_asked(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A store on the embedded server of an empty folder has its schema at once."""
    home = Path(tmp_path_factory.mktemp("home"))
    async with open_store(Settings(home=home)) as store:
        assert await store.expired_tasks(1) == []
        assert [version for version, _, _ in migrations()] == [
            row["version"] for row in await query(store._url, "select version from composer.migrations order by 1")
        ]
