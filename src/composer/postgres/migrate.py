"""Schema migrations: numbered SQL files, applied under an advisory lock, each in the transaction that records it."""

from __future__ import annotations

import hashlib
from typing import Any

import asyncpg

from composer.errors import SchemaError
from composer.postgres.errors import mapped
from composer.postgres.partitions import make_partitions
from composer.postgres.statements import for_schema, migrations

_LOCK = 0x436F_6D70  # "Comp": one key for every Composer schema of a database; migrations are rare and short


async def migrate(connection: Any, schema: str = "composer") -> list[str]:
    """Brings the schema up to this release. Returns the names of the migrations applied, in order.

    Safe to call from many processes at once: one does the work, the others find it done. Raises SchemaError when the
    database is of a newer release or a migration was changed after it had been applied.
    """
    with mapped("migrating"):
        # Two sessions that create one schema at once would both fail on the catalogue's own unique index.
        await connection.execute("select pg_advisory_lock($1)", _LOCK)
        try:
            await connection.execute(f"create schema if not exists {schema}")
            await connection.execute(
                f"create table if not exists {schema}.migrations "
                "(version int primary key, name text not null, digest text not null, applied_at timestamptz not null default now())"
            )
            applied: list[str] = []
            known = await _applied(connection, schema)
            _check(known, schema)
            for version, name, text in migrations():
                if version in known:
                    continue
                async with connection.transaction():
                    await connection.execute(for_schema(text, schema))
                    await connection.execute(
                        f"insert into {schema}.migrations (version, name, digest) values ($1, $2, $3)",
                        version,
                        name,
                        _digest(text),
                    )
                applied.append(f"{version:04}_{name}")
            # A client may start runs before any coordinator has been there.
            await make_partitions(connection, schema)
            return applied
        finally:
            await connection.execute("select pg_advisory_unlock($1)", _LOCK)


async def migrate_at(url: str, schema: str = "composer") -> list[str]:
    """migrate(), on a connection of its own. Raises StoreUnavailable too."""
    with mapped("connecting"):
        connection = await asyncpg.connect(url, timeout=10)
    try:
        return await migrate(connection, schema)
    finally:
        await connection.close()


async def check_schema(connection: Any, schema: str = "composer") -> None:
    """Raises SchemaError unless the database holds exactly this release's schema."""
    with mapped("checking the schema"):
        exists = await connection.fetchval("select to_regclass($1) is not null", f"{schema}.migrations")
        known = await _applied(connection, schema) if exists else {}
    _check(known, schema)
    missing = [f"{version:04}_{name}" for version, name, _ in migrations() if version not in known]
    if missing:
        raise SchemaError(
            f"schema {schema!r} lacks {'everything' if not known else ', '.join(missing)}; run `composer migrate` with this database's URL"
        )


async def _applied(connection: Any, schema: str) -> dict[int, str]:
    return {
        row["version"]: row["digest"]
        for row in await connection.fetch(f"select version, digest from {schema}.migrations")
    }


def _check(known: dict[int, str], schema: str) -> None:
    ours = {version: _digest(text) for version, _, text in migrations()}
    newer = sorted(known.keys() - ours.keys())
    if newer:
        raise SchemaError(
            f"schema {schema!r} has migration {newer[-1]}, which this release does not know; upgrade this process"
        )
    changed = [version for version, digest in known.items() if ours[version] != digest]
    if changed:
        raise SchemaError(
            f"migration {changed[0]:04} of schema {schema!r} is not the one this release ships; was it edited?"
        )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
