"""What a database's settings and state mean for Composer's promises."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import asyncpg

from composer.errors import ComposerError
from composer.postgres.errors import mapped
from composer.postgres.migrate import check_schema
from composer.postgres.partitions import AHEAD, month_after


class Level(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: what it is, and what to do if it is not well."""

    name: str
    level: Level
    value: str
    advice: str = ""


async def examine(url: str, *, schema: str = "composer", namespace: str = "default") -> list[Finding]:
    """Looks at everything. Raises StoreUnavailable when the database cannot be reached."""
    with mapped("connecting"):
        connection = await asyncpg.connect(url, timeout=10, statement_cache_size=0)
    try:
        with mapped("examining the database"):
            found = [
                await _version(connection),
                *await _durability(connection),
                await _clock(connection),
                await _pooler(url, connection),
            ]
            try:
                await check_schema(connection, schema)
            except ComposerError as error:
                return [*found, Finding("schema", Level.PROBLEM, str(error), "Run `composer migrate`.")]
            found.append(Finding("schema", Level.OK, "is this release's"))
            found += await _state(connection, schema, namespace)
            return found
    finally:
        await connection.close()


async def _version(connection: Any) -> Finding:
    number = int(await connection.fetchval("select current_setting('server_version_num')"))
    text = f"PostgreSQL {await connection.fetchval('show server_version')}"
    if number < 150000:
        return Finding("version", Level.PROBLEM, text, "Composer needs PostgreSQL 15 or newer.")
    return Finding("version", Level.OK, text)


_DURABLE = {
    "fsync": ("on", "A crash of the machine can corrupt the database: nothing Composer promises holds."),
    "full_page_writes": ("on", "A crash of the machine can tear pages: nothing Composer promises holds."),
    "synchronous_commit": (
        "on",
        "The last commits before a crash may be lost: an acknowledged start can vanish, steps can run again; no result is applied twice.",
    ),
}


async def _durability(connection: Any) -> list[Finding]:
    found: list[Finding] = []
    for name, (wanted, meaning) in _DURABLE.items():
        value = await connection.fetchval("select current_setting($1)", name)
        durable = value in (wanted, "remote_write", "remote_apply")
        level = Level.OK if durable else Level.WARNING if name == "synchronous_commit" else Level.PROBLEM
        found.append(Finding(name, level, value, "" if durable else meaning))
    if await connection.fetchval(
        "select pg_is_in_recovery() or current_setting('default_transaction_read_only')::bool"
    ):
        found.append(
            Finding(
                "read-only",
                Level.PROBLEM,
                "the server takes no writes",
                "It is a standby, or was failed over: use the primary.",
            )
        )
    return found


async def _clock(connection: Any) -> Finding:
    before = time.time()
    there = float(await connection.fetchval("select extract(epoch from clock_timestamp())"))
    offset = there - (before + time.time()) / 2
    text = f"the database's clock is {offset * 1000:+.0f} ms from this machine's"
    if abs(offset) > 5:
        return Finding(
            "clock",
            Level.WARNING,
            text,
            "Only the database's clock decides; start_at= given by this machine is off by that much.",
        )
    return Finding("clock", Level.OK, text)


async def _pooler(url: str, connection: Any) -> Finding:
    """Two connections that are served by one process of the server are no connections of their own."""
    other = await asyncpg.connect(url, timeout=10, statement_cache_size=0)
    try:
        seen = [{await each.fetchval("select pg_backend_pid()") for _ in range(3)} for each in (connection, other)]
    finally:
        await other.close()
    if seen[0] & seen[1] or len(seen[0]) > 1:
        return Finding(
            "pooler",
            Level.WARNING,
            "the URL leads through a pooler in transaction mode",
            "Set COMPOSER_POOLER=true, and give the engine's role the planner settings of docs/operations.md.",
        )
    return Finding("pooler", Level.OK, "each connection is a session of its own")


async def _state(connection: Any, schema: str, namespace: str) -> list[Finding]:
    s = schema
    found: list[Finding] = []
    stray = await connection.fetchval(f"select count(*) from {s}.history_default")
    found.append(
        Finding(
            "default partition",
            Level.WARNING if stray else Level.OK,
            f"{stray} rows",
            "Months are not made ahead: is a coordinator running?" if stray else "",
        )
    )
    now = await connection.fetchval("select clock_timestamp()")
    year, month = month_after(now.year, now.month, AHEAD)
    ahead = await connection.fetchval("select to_regclass($1) is not null", f"{s}.history_{year:04}_{month:02}")
    found.append(
        Finding(
            "partitions",
            Level.OK if ahead else Level.WARNING,
            f"{AHEAD} months ahead are {'there' if ahead else 'missing'}",
            "" if ahead else "Run a coordinator.",
        )
    )
    row = await connection.fetchrow(
        f"select count(*) as waiting, coalesce(extract(epoch from clock_timestamp() - min(r.updated_at)), 0)::float8 as oldest "
        f"from {s}.outbox o join {s}.runs r on r.namespace = o.namespace and r.id = o.run_id where o.namespace = $1",
        namespace,
    )
    slow = row["waiting"] and row["oldest"] > 60
    found.append(
        Finding(
            "backlog", Level.WARNING if slow else Level.OK, f"{row['waiting']} tasks wait for a worker, the oldest for {row['oldest']:.0f} s",
            "Are enough workers running, and do they know the steps and serve the queues?" if slow else "",
        )
    )  # fmt: skip
    expired = await connection.fetchval(
        f"select count(*) from {s}.tasks where namespace = $1 and state = 'leased' and lease_expires_at < now() - interval '30 s'",
        namespace,
    )
    found.append(
        Finding(
            "expired leases",
            Level.PROBLEM if expired else Level.OK,
            f"{expired} for more than 30 s",
            "No coordinator is running." if expired else "",
        )
    )
    unknown = await connection.fetch(
        f"select distinct o.step from {s}.outbox o where o.namespace = $1 and not exists (select from {s}.workers w "
        "where w.namespace = $1 and w.expires_at > now() and o.step = any (w.steps)) order by 1 limit 10",
        namespace,
    )
    names = ", ".join(each["step"] for each in unknown)
    if names:
        advice = "Start a worker with the module that defines them."
        found.append(Finding("steps", Level.WARNING, f"no live worker knows: {names}", advice))
    else:
        found.append(Finding("steps", Level.OK, "live workers know every step that waits"))
    held = await connection.fetchval(
        f"select count(*) from {s}.runs where namespace = $1 and quarantine is not null", namespace
    )
    found.append(
        Finding(
            "quarantine",
            Level.WARNING if held else Level.OK,
            f"{held} runs",
            "Each says its reason in the column `quarantine`." if held else "",
        )
    )
    oldest = await connection.fetchval(
        "select coalesce(max(extract(epoch from clock_timestamp() - xact_start)), 0)::float8 from pg_stat_activity "
        "where datname = current_database() and pid <> pg_backend_pid() and state <> 'idle'"
    )
    found.append(
        Finding(
            "oldest transaction", Level.WARNING if oldest > 300 else Level.OK, f"{oldest:.0f} s",
            "A transaction held open keeps dead rows: claims grow slower." if oldest > 300 else "",
        )
    )  # fmt: skip
    return found
