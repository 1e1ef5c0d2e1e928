"""Starts within the application's own transaction: the order and its run are both there, or neither is."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import anyio
import anyio.to_thread
import asyncpg
import psycopg
import pytest
import sqlalchemy
import sqlalchemy.ext.asyncio
from sqlalchemy.pool import NullPool

from composer import AsyncClient, Client, IdempotencyConflict, RunNotFound, Settings, TransactionError, step, workflow
from composer.errors import SchemaError
from composer.memory.store import MemoryStore
from composer.postgres.migrate import migrate_at
from composer.postgres.within import WHICH_DATABASE, literal
from tests import servers
from tests.lenders import AWAITED, BLOCKING, ORDER, Abandoned, django_wrapper, in_transaction, sqlalchemy_url
from tests.servers import Server
from tests.working import until, working

pytestmark = pytest.mark.anyio

DRIVERS = [*AWAITED, *BLOCKING]
TABLES = ("runs", "tasks", "outbox", "history", "run_keys")


@step
async def wrap(text: str) -> str:
    """What an order asks for."""
    return f"<{text}>"


@workflow
def parcel(text: str) -> str:
    """One step."""
    return wrap(text)


@pytest.fixture(scope="module")
def shop(server: Server) -> Iterator[str]:
    """A database with the application's own table beside the runs."""
    url = server.database()
    servers.run(lambda: servers.execute(url, "create table orders (id int)"))
    yield url
    server.drop(url)


@pytest.fixture
async def client(shop: str, namespace: str) -> AsyncIterator[AsyncClient]:
    """A client of the shop's database, with no worker beside it."""
    async with AsyncClient(settings=Settings(database_url=shop, namespace=namespace)) as made:
        await servers.execute(shop, "truncate orders")
        yield made


@pytest.fixture
async def connection(shop: str) -> AsyncIterator[Any]:
    """A connection of the application's."""
    made = await asyncpg.connect(shop)
    yield made
    made.terminate()


@pytest.fixture
async def listener(shop: str) -> AsyncIterator[Any]:
    """Another one."""
    made = await asyncpg.connect(shop)
    yield made
    made.terminate()


@pytest.fixture(autouse=True)
def django_in_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Django refuses to work in a thread with a loop, unless it is told that this is meant."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")


async def rows(url: str, namespace: str) -> dict[str, int]:
    """How many rows of a namespace each table has, and how many orders there are."""
    found = {
        table: (await servers.query(url, f"select count(*) from composer.{table} where namespace = $1", namespace))[0][
            0
        ]
        for table in TABLES
    }
    return {**found, "orders": (await servers.query(url, "select count(*) from orders"))[0][0]}


NOTHING = {**dict.fromkeys(TABLES, 0), "orders": 0}


@pytest.mark.parametrize("driver", DRIVERS)
async def test_order_and_run_commit_together(driver: str, shop: str, namespace: str, client: AsyncClient) -> None:
    """With every driver, nothing is seen of order and run before the commit, and afterwards both are there and the run ends."""

    async def start(tx: Any) -> Any:
        handle = await client.start(parcel, 'a "b" \\ {c}, NULL %s', idempotency_key="order-1", within=tx)
        assert handle.created
        assert await rows(shop, namespace) == NOTHING
        with pytest.raises(RunNotFound, match="committed"):
            await handle.get()
        return handle

    handle = await in_transaction(driver, shop, start, commit=True)
    assert await rows(shop, namespace) == {**dict.fromkeys(TABLES, 1), "tasks": 2, "orders": 1}
    async with working(shop, namespace, [parcel]) as site:
        assert await handle.result(timeout=10) == '<a "b" \\ {c}, NULL %s>'
        assert await site.verified() == []


@pytest.mark.parametrize("driver", DRIVERS)
async def test_rolled_back_start_leaves_nothing(driver: str, shop: str, namespace: str, client: AsyncClient) -> None:
    """With every driver, a transaction that is rolled back leaves no order, run, task, hand-out, history or key."""

    async def start(tx: Any) -> Any:
        return await client.start_many(parcel, [("a",), ("b",)], idempotency_keys=["a", "b"], within=tx)

    first, _ = await in_transaction(driver, shop, start, commit=False)
    assert await rows(shop, namespace) == NOTHING
    with pytest.raises(RunNotFound):
        await first.result(timeout=5)


@pytest.mark.parametrize("driver", BLOCKING)
async def test_sync_client_starts_in_the_thread_of_the_connection(driver: str, shop: str, namespace: str) -> None:
    """Client uses a blocking connection in the thread that calls it: those of Django work in no other."""
    await servers.execute(shop, "truncate orders")

    def use() -> str:
        with (
            Client(settings=Settings(database_url=shop, namespace=namespace)) as client,
            BLOCKING[driver](shop) as lent,
        ):
            lent.execute(ORDER)
            (handle,) = client.start_many(parcel, [("x",)], within=lent.within)
            return client.start(parcel, "y", tags={"like": handle.id}, within=lent.within).id

    last = await anyio.to_thread.run_sync(use)
    assert (await rows(shop, namespace))["runs"] == 2
    async with AsyncClient(settings=Settings(database_url=shop, namespace=namespace)) as client:
        assert len((await client.get(last)).tags["like"]) == len(last)


@pytest.mark.parametrize("driver", ["asyncpg", "sqlalchemy-asyncpg-session", "psycopg-async"])
async def test_sync_client_refuses_what_has_to_be_awaited(driver: str, shop: str, namespace: str) -> None:
    """A connection of an event loop given to Client is refused, and the error names AsyncClient."""
    settings = Settings(database_url=shop, namespace=namespace)

    def use(tx: Any) -> None:
        with Client(settings=settings) as client, pytest.raises(TransactionError, match="AsyncClient"):
            client.start(parcel, "x", within=tx)

    async def start(tx: Any) -> None:
        await anyio.to_thread.run_sync(use, tx)

    await in_transaction(driver, shop, start, commit=False)


async def test_commit_wakes_who_fell_asleep_after_the_start(
    shop: str, namespace: str, client: AsyncClient, connection: Any
) -> None:
    """A worker that was not there when the statement ran hears of the run at the commit, and does not poll for it."""
    transaction = connection.transaction()
    await transaction.start()
    handle = await client.start(parcel, "x", within=connection)
    async with working(shop, namespace, [parcel], poll_interval=60.0) as site:
        await site.worker.store.listening.wait()  # type: ignore[attr-defined]
        await until(lambda: servers.query(shop, "select from composer.sleepers where namespace = $1", namespace))
        await transaction.commit()
        assert await site.client.handle(parcel, handle.id).result(timeout=10) == "<x>"


async def test_announcement_comes_with_the_commit_or_never(
    shop: str, namespace: str, client: AsyncClient, connection: Any, listener: Any
) -> None:
    """Nobody hears of a start that is rolled back; one that commits is announced, with its timer however far away."""
    heard: list[Any] = []
    await listener.add_listener("composer", lambda *args: heard.append(json.loads(args[-1])))
    with suppress(Abandoned):
        async with connection.transaction():
            await client.start(parcel, "x", within=connection)
            raise Abandoned
    async with connection.transaction():
        await client.start_many(parcel, [("x",), ("y",)], delay="1h", within=connection)
        await connection.execute("select pg_notify('composer', '{\"last\": true}')")
    await until(lambda: heard and "last" in heard[-1])
    assert heard == [{"namespace": namespace, "ready": None, "timer": True}, {"last": True}]


async def test_nothing_runs_here_before_the_commit(shop: str, namespace: str, connection: Any) -> None:
    """A client that shares a worker's store does not hand the run over: it begins once it is committed."""
    async with working(shop, namespace, [parcel]) as site:
        async with connection.transaction():
            handle = await site.client.start(parcel, "x", within=connection)
            states = await connection.fetch(
                "select state, attempt, delivery, lease_owner from composer.tasks where run_id = $1 and node >= 0",
                handle.id,
            )
            assert [tuple(row) for row in states] == [("ready", 1, 0, None)]
        assert await handle.result(timeout=10) == "<x>"
        assert await site.verified() == []


async def test_a_key_means_the_same_run_as_with_start(
    shop: str, namespace: str, client: AsyncClient, connection: Any
) -> None:
    """Within a transaction a key finds the run that has it, of this transaction or of before, and refuses other input."""
    before = await client.start(parcel, "x", idempotency_key="k")
    async with connection.transaction():
        again = await client.start(parcel, "x", idempotency_key="k", within=connection)
        assert (again.id, again.created) == (before.id, False)
        with pytest.raises(IdempotencyConflict) as caught:
            await client.start(parcel, "y", idempotency_key="k", within=connection)
        assert caught.value.run_id == before.id
        mine = await client.start(parcel, "x", idempotency_key="mine", within=connection)
        twice = await client.start(parcel, "x", idempotency_key="mine", within=connection)
        assert (twice.id, mine.created, twice.created) == (mine.id, True, False)
    assert (await client.get(mine.id)).status == "running"


async def test_key_of_a_transaction_that_rolls_back_is_free(
    shop: str, namespace: str, client: AsyncClient, connection: Any
) -> None:
    """Who starts with a key that an open transaction holds waits for its end, and makes the run when that rolls back."""
    transaction = connection.transaction()
    await transaction.start()
    lost = await client.start(parcel, "x", idempotency_key="k", within=connection)
    handles: list[Any] = []

    async def start() -> None:
        handles.append(await client.start(parcel, "x", idempotency_key="k"))

    async with anyio.create_task_group() as group:
        group.start_soon(start)
        waiting = "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        await until(lambda: servers.query(shop, waiting))
        assert not handles
        await transaction.rollback()
    assert handles[0].created and handles[0].id != lost.id


async def test_savepoint_takes_its_starts_back(shop: str, namespace: str, client: AsyncClient, connection: Any) -> None:
    """A start inside a savepoint goes with the savepoint; the rest of the transaction stays."""
    async with connection.transaction():
        kept = await client.start(parcel, "kept", within=connection)
        with suppress(Abandoned):
            async with connection.transaction():
                lost = await client.start(parcel, "lost", within=connection)
                raise Abandoned
    assert (await client.get(kept.id)).status == "running"
    with pytest.raises(RunNotFound):
        await client.get(lost.id)


async def test_another_schema_is_written_to(server: Server, namespace: str) -> None:
    """A client of another schema and namespace writes to those, and to no `composer`."""
    url = server.database(empty=True)
    await migrate_at(url, "flows")
    async with AsyncClient(settings=Settings(database_url=url, namespace=namespace, schema="flows")) as client:
        connection = await asyncpg.connect(url)
        async with connection.transaction():
            handle = await client.start(parcel, "x", within=connection)
            found = await connection.fetch("select namespace from flows.runs where id = $1", handle.id)
            assert [row["namespace"] for row in found] == [namespace]
        await connection.close()
        assert (await client.get(handle.id)).status == "running"
    server.drop(url)


async def test_engine_settings_are_left_alone(shop: str, client: AsyncClient, connection: Any) -> None:
    """The connection's own settings are as they were, and codecs that the application has set do not matter."""
    for name in ("uuid", "timestamptz", "float8", "bool"):
        await connection.set_type_codec(name, schema="pg_catalog", encoder=_useless, decoder=lambda text: text)
    before = await connection.fetch("select name, setting from pg_settings order by name")
    async with connection.transaction():
        handle = await client.start(parcel, "x", delay="1m", within=connection)
    assert await connection.fetch("select name, setting from pg_settings order by name") == before
    assert (await client.get(handle.id)).status == "scheduled"


def _useless(value: object) -> str:
    raise AssertionError(f"asked to encode {value!r}")


# -- what is refused --------------------------------------------------------------------------------------------
Use = Callable[[AsyncClient, str], Awaitable[None]]


async def _asyncpg_idle(client: AsyncClient, url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await client.start(parcel, "x", within=connection)
    finally:
        await connection.close()


async def _asyncpg_closed(client: AsyncClient, url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.close()
    await client.start(parcel, "x", within=connection)


async def _asyncpg_failed(client: AsyncClient, url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            with pytest.raises(asyncpg.DivisionByZeroError):
                await connection.execute("select 1 / 0")
            await client.start(parcel, "x", within=connection)
    finally:
        await connection.close()


async def _asyncpg_transaction(client: AsyncClient, url: str) -> None:
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    try:
        await client.start(parcel, "x", within=transaction)
    finally:
        await connection.close()


async def _psycopg_autocommit(client: AsyncClient, url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        await client.start(parcel, "x", within=connection)


async def _psycopg_failed(client: AsyncClient, url: str) -> None:
    with psycopg.connect(url) as connection:
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("select 1 / 0")
        await client.start(parcel, "x", within=connection)


async def _psycopg_closed(client: AsyncClient, url: str) -> None:
    connection = psycopg.connect(url)
    connection.close()
    await client.start(parcel, "x", within=connection)


def _sqlalchemy_autocommit(driver: str) -> Use:
    async def use(client: AsyncClient, url: str) -> None:
        engine = sqlalchemy.ext.asyncio.create_async_engine(
            sqlalchemy_url(url, driver), poolclass=NullPool, isolation_level="AUTOCOMMIT"
        )
        async with sqlalchemy.ext.asyncio.AsyncSession(engine) as session:
            await client.start(parcel, "x", within=session)

    return use


async def _sqlalchemy_failed(client: AsyncClient, url: str) -> None:
    engine = sqlalchemy.create_engine(sqlalchemy_url(url, "psycopg"), poolclass=NullPool)
    with engine.connect() as connection:
        with pytest.raises(sqlalchemy.exc.DataError):
            connection.exec_driver_sql("select 1 / 0")
        await client.start(parcel, "x", within=connection)


async def _sqlalchemy_unopened(client: AsyncClient, url: str) -> None:
    engine = sqlalchemy.ext.asyncio.create_async_engine(sqlalchemy_url(url, "asyncpg"), poolclass=NullPool)
    await client.start(parcel, "x", within=engine.connect())


async def _sqlite(client: AsyncClient, url: str) -> None:
    with sqlalchemy.create_engine("sqlite://").begin() as connection:
        await client.start(parcel, "x", within=connection)


async def _engine(client: AsyncClient, url: str) -> None:
    await client.start(parcel, "x", within=sqlalchemy.create_engine(sqlalchemy_url(url, "psycopg")))


async def _django_autocommit(client: AsyncClient, url: str) -> None:
    with django_wrapper(url) as wrapper:
        await client.start(parcel, "x", within=wrapper)


async def _django_failed(client: AsyncClient, url: str) -> None:
    from django.db import transaction

    with django_wrapper(url), transaction.atomic(using="orders"):
        transaction.set_rollback(True, using="orders")
        await client.start(parcel, "x", within="orders")


async def _django_alias(client: AsyncClient, url: str) -> None:
    with django_wrapper(url):
        await client.start(parcel, "x", within="order")


async def _not_a_connection(client: AsyncClient, url: str) -> None:
    await client.start(parcel, "x", within=object())


async def _read_only(client: AsyncClient, url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.read_only = True
        await client.start(parcel, "x", within=connection)


async def _without_rights(client: AsyncClient, url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("create role visitor")
        connection.execute("set local role visitor")
        try:
            await client.start(parcel, "x", within=connection)
        finally:
            connection.rollback()


REFUSED: dict[str, tuple[Use, str]] = {
    "asyncpg-idle": (_asyncpg_idle, "no transaction is in progress.*\n.*connection.transaction"),
    "asyncpg-closed": (_asyncpg_closed, "the connection is closed"),
    "asyncpg-failed": (_asyncpg_failed, "has failed already"),
    "asyncpg-transaction": (_asyncpg_transaction, "Give its connection"),
    "psycopg-autocommit": (_psycopg_autocommit, "no transaction is in progress.*\n.*autocommit"),
    "psycopg-failed": (_psycopg_failed, "has failed already"),
    "psycopg-closed": (_psycopg_closed, "the connection is closed"),
    "sqlalchemy-asyncpg-autocommit": (_sqlalchemy_autocommit("asyncpg"), "AUTOCOMMIT"),
    "sqlalchemy-psycopg-autocommit": (_sqlalchemy_autocommit("psycopg_async"), "AUTOCOMMIT"),
    "sqlalchemy-failed": (_sqlalchemy_failed, "has failed already"),
    "sqlalchemy-unopened": (_sqlalchemy_unopened, "the connection is closed"),
    "sqlite": (_sqlite, "is to sqlite"),
    "engine": (_engine, "Engine is not known here.*\n.*Session"),
    "django-autocommit": (_django_autocommit, "no transaction is in progress.*\n.*atomic"),
    "django-failed": (_django_failed, "has failed already"),
    "django-alias": (_django_alias, "no database 'order'.*\n.*'orders'"),
    "not-a-connection": (_not_a_connection, "builtins.object is not known here"),
    "read-only": (_read_only, "read-only"),
    "without-rights": (_without_rights, "lacks a right.*\n.*Grant"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_cannot_carry_a_start_is_refused(name: str, shop: str, namespace: str, client: AsyncClient) -> None:
    """Each is refused with its reason and what to do, and nothing is started."""
    use, pattern = REFUSED[name]
    with pytest.raises(TransactionError, match=pattern):
        await use(client, shop)
    assert await rows(shop, namespace) == NOTHING


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg", "sqlalchemy-asyncpg-session", "sqlalchemy-session", "django"])
async def test_another_database_is_refused(
    driver: str, server: Server, shop: str, namespace: str, client: AsyncClient
) -> None:
    """A transaction in another database than the runs, with a schema too, is refused before anything is written there."""
    other = server.database()
    await servers.execute(other, "create table orders (id int)")

    async def start(tx: Any) -> None:
        for _ in range(2):  # asked, and then remembered
            with pytest.raises(TransactionError, match="another database"):
                await client.start(parcel, "x", within=tx)

    await in_transaction(driver, other, start, commit=True)
    assert await rows(other, namespace) == {**NOTHING, "orders": 1}
    server.drop(other)


async def test_memory_is_refused(shop: str, connection: Any) -> None:
    """Runs in memory commit with nothing, and the error says so."""
    async with AsyncClient(store=MemoryStore()) as client, connection.transaction():
        with pytest.raises(TransactionError, match="in memory"):
            await client.start(parcel, "x", within=connection)


async def test_missing_table_is_a_schema_error(shop: str, client: AsyncClient) -> None:
    """Tables that are not there, for this transaction, name the command that brings them."""
    with psycopg.connect(shop) as connection:
        connection.execute("alter table composer.run_keys rename to elsewhere")
        # The engine registers no plan meanwhile: the table it needs is another one, and so is the lock.
        with pytest.raises(SchemaError, match="composer migrate"):
            await client.start(parcel, "x", within=connection)
        connection.rollback()


async def test_other_errors_are_the_drivers_own(shop: str, client: AsyncClient, connection: Any) -> None:
    """A conflict of serializable transactions reaches the application as its driver raises it, so that it can try again."""
    transaction = connection.transaction(isolation="repeatable_read")
    await transaction.start()
    await connection.fetch("select 1")
    await client.start(parcel, "x", idempotency_key="k")
    with pytest.raises(asyncpg.SerializationError):
        await client.start(parcel, "x", idempotency_key="k", within=connection)
    await transaction.rollback()


# -- what it costs ----------------------------------------------------------------------------------------------
async def test_one_statement_a_start(shop: str, client: AsyncClient) -> None:
    """A start within a transaction is one statement, of one run or a hundred; a connection is asked once where it is."""
    pool = await asyncpg.create_pool(shop, min_size=1, max_size=1)
    sent: list[str] = []
    for _ in range(3):
        async with pool.acquire() as connection, connection.transaction():
            with connection.query_logger(lambda record: sent.append(record.query)):
                await client.start(parcel, "x", within=connection)
                await client.start_many(parcel, [(str(n),) for n in range(100)], within=connection)
                assert await client.start_many(parcel, [], within=connection) == []
    await pool.close()
    assert sent.count(WHICH_DATABASE) == 1
    assert len(sent) == 1 + 6


async def test_nothing_is_imported_that_the_application_has_not(shop: str) -> None:
    """A start within an asyncpg transaction loads neither psycopg nor SQLAlchemy nor Django."""
    code = (
        "import sys, anyio, asyncpg\n"
        "from composer import AsyncClient, Settings\n"
        "from tests.system.flows import short\n"
        "async def main(url):\n"
        "    async with AsyncClient(settings=Settings(database_url=url)) as client:\n"
        "        connection = await asyncpg.connect(url)\n"
        "        async with connection.transaction():\n"
        "            await client.start(short, 1, within=connection)\n"
        "        await connection.close()\n"
        "anyio.run(main, sys.argv[1])\n"
        "print(sorted({'psycopg', 'sqlalchemy', 'django'} & set(sys.modules)))"
    )
    done = await anyio.run_process([sys.executable, "-c", code, shop])
    assert done.stdout.decode().strip() == "[]"


def test_array_literals_are_read_back_as_they_were(server: Server) -> None:
    """Text of every nasty kind, null among it, comes through an array literal unchanged."""
    texts = ["", "NULL", None, '"', "\\", '\\"', "{", "}", ",", " a ", "\n\t", "'", "é😀", "%s", "$1", "{1,2}"]
    numbers = [0.1, 1e-7, 1e300, None, 3.0]
    found = servers.run(
        lambda: servers.query(
            server.url,
            "select $1::text::text[], $2::text::float8[], $3::text::bool",
            literal(texts),
            literal(numbers),
            "true",
        )
    )
    assert found[0][0] == texts
    assert found[0][1] == numbers
