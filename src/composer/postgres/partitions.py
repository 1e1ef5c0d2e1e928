"""Months of history, made ahead. A month is a range of run ids: a UUIDv7 begins with its milliseconds."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any, Final

AHEAD: Final = 3
"""Months made ahead of the current one."""
_LOCK: Final = 0x436F_6D71


def lower_bound(year: int, month: int) -> uuid.UUID:
    """The smallest run id of a month."""
    return uuid.UUID(int=int(datetime(year, month, 1, tzinfo=UTC).timestamp() * 1000) << 80)


def month_after(year: int, month: int, count: int = 1) -> tuple[int, int]:
    """The month `count` months later (or earlier)."""
    index = year * 12 + month - 1 + count
    return index // 12, index % 12 + 1


async def make_partitions(connection: Any, schema: str) -> list[str]:
    """Makes last month's, this month's and the next AHEAD months' partitions. Returns the names of the new ones.

    Runs under an advisory lock of its own transaction, so replicas may call it together.
    """
    made: list[str] = []
    async with connection.transaction():
        await connection.execute("select pg_advisory_xact_lock($1)", _LOCK)
        now: datetime = await connection.fetchval("select clock_timestamp()")
        now = now.astimezone(UTC)
        known = {
            row["relname"]
            for row in await connection.fetch(
                "select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid where i.inhparent = $1::regclass",
                f"{schema}.history",
            )
        }
        for ahead in range(-1, AHEAD + 1):
            year, month = month_after(now.year, now.month, ahead)
            name = f"history_{year:04}_{month:02}"
            if name in known:
                continue
            if not made:
                # Nobody may write into the default partition between the look at it and the new month.
                await connection.execute(f"lock table {schema}.history in access exclusive mode")
            await _make_month(
                connection, schema, name, lower_bound(year, month), lower_bound(*month_after(year, month))
            )
            made.append(name)
    return made


async def _make_month(connection: Any, schema: str, name: str, low: uuid.UUID, high: uuid.UUID) -> None:
    """Makes one month. Rows of it that lie in the default partition, because it was not there in time, move into it."""
    bounds = f"for values from ('{low}') to ('{high}')"
    if await connection.fetchval(
        f"select exists (select from {schema}.history_default where run_id >= $1 and run_id < $2)", low, high
    ):
        await connection.execute(f"create table {schema}.{name} (like {schema}.history including all)")
        await connection.execute(
            f"with moved as (delete from {schema}.history_default where run_id >= $1 and run_id < $2 returning *) "
            f"insert into {schema}.{name} select * from moved",
            low,
            high,
        )
        await connection.execute(f"alter table {schema}.history attach partition {schema}.{name} {bounds}")
    else:
        await connection.execute(f"create table {schema}.{name} partition of {schema}.history {bounds}")
