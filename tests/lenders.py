"""Transactions of applications, one for each driver that a start can join, and their table of orders."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import psycopg
import psycopg.rows
import sqlalchemy
import sqlalchemy.ext.asyncio
import sqlalchemy.orm
from sqlalchemy.pool import NullPool

ORDER = "insert into orders (id) values (1)"


@dataclass
class Lent:
    """What goes into within=, and how the application itself sends a statement in the same transaction."""

    within: Any
    execute: Callable[[str], Any]


class Abandoned(Exception):
    """The application thinks better of it."""


def sqlalchemy_url(url: str, driver: str) -> sqlalchemy.URL:
    """The URL for SQLAlchemy: a Unix socket's folder goes into the query for every driver."""
    parts = urlsplit(url)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    return sqlalchemy.URL.create(
        f"postgresql+{driver}", parts.username, parts.password, parts.hostname, parts.port, parts.path[1:], query
    )


# -- to be awaited ------------------------------------------------------------------------------------------------
@asynccontextmanager
async def asyncpg_connection(url: str) -> AsyncIterator[Lent]:
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            yield Lent(connection, connection.execute)
    finally:
        await connection.close()


@asynccontextmanager
async def asyncpg_pooled(url: str) -> AsyncIterator[Lent]:
    async with asyncpg.create_pool(url, min_size=0) as pool, pool.acquire() as connection, connection.transaction():
        yield Lent(connection, connection.execute)


@asynccontextmanager
async def psycopg_async(url: str) -> AsyncIterator[Lent]:
    async with await psycopg.AsyncConnection.connect(url, row_factory=psycopg.rows.dict_row) as connection:
        yield Lent(connection, connection.execute)


@asynccontextmanager
async def psycopg_async_transaction(url: str) -> AsyncIterator[Lent]:
    async with (
        await psycopg.AsyncConnection.connect(
            url, autocommit=True, cursor_factory=psycopg.AsyncRawCursor
        ) as connection,
        connection.transaction() as transaction,
    ):
        yield Lent(transaction, connection.execute)


def async_session(driver: str) -> Callable[[str], Any]:
    @asynccontextmanager
    async def lend(url: str) -> AsyncIterator[Lent]:
        engine = sqlalchemy.ext.asyncio.create_async_engine(sqlalchemy_url(url, driver), poolclass=NullPool)
        async with sqlalchemy.ext.asyncio.AsyncSession(engine) as session, session.begin():
            yield Lent(session, lambda text: session.execute(sqlalchemy.text(text)))

    return lend


def async_connection(driver: str) -> Callable[[str], Any]:
    @asynccontextmanager
    async def lend(url: str) -> AsyncIterator[Lent]:
        engine = sqlalchemy.ext.asyncio.create_async_engine(sqlalchemy_url(url, driver), poolclass=NullPool)
        async with engine.begin() as connection:
            yield Lent(connection, connection.exec_driver_sql)

    return lend


@asynccontextmanager
async def async_session_transaction(url: str) -> AsyncIterator[Lent]:
    engine = sqlalchemy.ext.asyncio.create_async_engine(sqlalchemy_url(url, "asyncpg"), poolclass=NullPool)
    async with sqlalchemy.ext.asyncio.AsyncSession(engine) as session, session.begin() as transaction:
        yield Lent(transaction, lambda text: session.execute(sqlalchemy.text(text)))


AWAITED: dict[str, Callable[[str], Any]] = {
    "asyncpg": asyncpg_connection,
    "asyncpg-pool": asyncpg_pooled,
    "psycopg-async": psycopg_async,
    "psycopg-async-transaction": psycopg_async_transaction,
    "sqlalchemy-asyncpg-session": async_session("asyncpg"),
    "sqlalchemy-asyncpg-connection": async_connection("asyncpg"),
    "sqlalchemy-psycopg-session": async_session("psycopg_async"),
    "sqlalchemy-psycopg-connection": async_connection("psycopg_async"),
    "sqlalchemy-session-transaction": async_session_transaction,
}


# -- blocking -----------------------------------------------------------------------------------------------------
@contextmanager
def psycopg_connection(url: str) -> Iterator[Lent]:
    with psycopg.connect(url, row_factory=psycopg.rows.dict_row, cursor_factory=psycopg.ClientCursor) as connection:
        yield Lent(connection, connection.execute)


@contextmanager
def psycopg_transaction(url: str) -> Iterator[Lent]:
    with psycopg.connect(url, autocommit=True) as connection, connection.transaction() as transaction:
        yield Lent(transaction, connection.execute)


@contextmanager
def session(url: str) -> Iterator[Lent]:
    engine = sqlalchemy.create_engine(sqlalchemy_url(url, "psycopg"), poolclass=NullPool)
    with sqlalchemy.orm.Session(engine) as made, made.begin():
        yield Lent(made, lambda text: made.execute(sqlalchemy.text(text)))


@contextmanager
def scoped_session(url: str) -> Iterator[Lent]:
    engine = sqlalchemy.create_engine(sqlalchemy_url(url, "psycopg"), poolclass=NullPool)
    made = sqlalchemy.orm.scoped_session(sqlalchemy.orm.sessionmaker(engine))
    try:
        yield Lent(made, lambda text: made.execute(sqlalchemy.text(text)))
        made.commit()
    finally:
        made.remove()


@contextmanager
def connection(url: str) -> Iterator[Lent]:
    with sqlalchemy.create_engine(sqlalchemy_url(url, "psycopg"), poolclass=NullPool).begin() as made:
        yield Lent(made, made.exec_driver_sql)


@contextmanager
def connection_transaction(url: str) -> Iterator[Lent]:
    engine = sqlalchemy.create_engine(sqlalchemy_url(url, "psycopg"), poolclass=NullPool)
    with engine.connect() as made, made.begin() as transaction:
        yield Lent(transaction, made.exec_driver_sql)


@contextmanager
def django_wrapper(url: str) -> Iterator[Any]:
    """Django's connection of this thread to the database, which is its alias `orders` meanwhile."""
    import django
    from django.conf import settings
    from django.db import connections

    if not settings.configured:
        settings.configure(DATABASES={"default": {}}, TIME_ZONE="UTC", LOGGING_CONFIG=None)
        django.setup()
    parts = urlsplit(url)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    connections.databases["orders"] = connections.configure_settings(
        {
            "default": {},
            "orders": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": parts.path[1:],
                "USER": parts.username or "",
                "PASSWORD": parts.password or "",
                "HOST": parts.hostname or query.get("host", ""),
                "PORT": str(parts.port or query.get("port", "")),
            },
        }
    )["orders"]
    made = connections["orders"]
    try:
        yield made
    finally:
        made.close()
        del connections["orders"]
        del connections.databases["orders"]


def django_atomic(*, alias: bool) -> Callable[[str], Any]:
    @contextmanager
    def lend(url: str) -> Iterator[Lent]:
        from django.db import transaction

        with django_wrapper(url) as made, transaction.atomic(using="orders"):

            def execute(text: str) -> None:
                with made.cursor() as cursor:
                    cursor.execute(text)

            yield Lent("orders" if alias else made, execute)

    return lend


BLOCKING: dict[str, Callable[[str], Any]] = {
    "psycopg": psycopg_connection,
    "psycopg-transaction": psycopg_transaction,
    "sqlalchemy-session": session,
    "sqlalchemy-scoped-session": scoped_session,
    "sqlalchemy-connection": connection,
    "sqlalchemy-transaction": connection_transaction,
    "django": django_atomic(alias=False),
    "django-alias": django_atomic(alias=True),
}


async def in_transaction(name: str, url: str, act: Callable[[Any], Awaitable[Any]], *, commit: bool) -> Any:
    """An order and what `act` does, in one transaction of this driver, all on this loop. Returns what `act` returns."""
    result: Any = None
    with suppress(Abandoned):
        async with AWAITED[name](url) if name in AWAITED else _in_this_loop(BLOCKING[name](url)) as lent:
            await lent.execute(ORDER)
            result = await act(lent.within)
            if not commit:
                raise Abandoned
    return result


@asynccontextmanager
async def _in_this_loop(blocking: Any) -> AsyncIterator[Lent]:
    """A blocking transaction where others are awaited."""
    with blocking as lent:

        async def execute(text: str) -> None:
            lent.execute(text)

        yield Lent(lent.within, execute)


def main() -> None:
    """Starts runs within transactions, says so, and waits to be killed before any commits. URL, namespace, how many."""
    from composer import Client, Settings
    from tests.system.flows import short

    url, namespace, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with Client(settings=Settings(database_url=url, namespace=namespace)) as client:
        held = [psycopg.connect(url) for _ in range(count)]
        for n, each in enumerate(held):
            each.execute(ORDER)
            client.start(short, n, idempotency_key=f"order-{n}", within=each)
        print("started", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
