"""Starts inside the caller's own transaction: on a connection that the application made, with its driver and its settings.

Each kind of connection has a link: it says whether a transaction can carry the start, and sends one statement. Links are
chosen by the names of the connection's classes, so that nothing is imported that the application has not imported. All
else is the same for every driver:

- Parameters travel as text and are cast in the statement, arrays as array literals. No driver's idea of types and no codec
  that the application has set stands between.
- Whoever falls asleep before the commit was not asleep when the statement ran: so the statement announces in any case, and
  PostgreSQL delivers that with the commit, or never.
- The engine's planner settings are not there. They make plans independent of statistics; what a statement does is the same.
- A connection is asked once which database it is in. Starting in another than the store's would look right and never run.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from inspect import isawaitable
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakKeyDictionary

from composer.errors import ComposerError, SchemaError, TransactionError
from composer.ports.store import NewRun, StartAnswer
from composer.postgres.encode import encode_start
from composer.postgres.statements import statements

T = TypeVar("T")
Rows = Sequence[Sequence[Any]]
Talk = Generator[Callable[[], Any], Any, T]
"""What is to be called on the connection, one after the other; each is sent what the one before came to."""

WHICH_DATABASE: Final = (
    "select (select system_identifier from pg_control_system())::text, "
    "(select oid from pg_database where datname = current_database())::text"
)
_ACCEPTED: Final = (
    "Give an asyncpg or psycopg connection, a SQLAlchemy Session, AsyncSession, Connection or AsyncConnection, or a Django "
    "connection or its alias."
)
_NO_SCHEMA: Final = frozenset({"42P01", "3F000", "42703", "42883"})
_places: WeakKeyDictionary[Any, tuple[str, str]] = WeakKeyDictionary()
"""Which database each connection is in, as far as it was asked."""


class Link(Protocol):
    """One kind of connection. Methods of one that is not blocking return awaitables."""

    is_blocking: bool

    @property
    def is_dollar(self) -> bool:
        """Whether parameters are $1, $2 and so on; else they are %s. Known once opened."""
        ...

    def open(self) -> Any:
        """The driver's own connection, which carries a transaction now, or will with the first statement.

        Raises TransactionError.
        """
        ...

    def fetch(self, text: str, values: Sequence[str | None]) -> Any:
        """The rows of a statement."""
        ...


class BorrowedConnection:
    """A caller's connection, for starts of one store's runs. See ports.store.Borrowed."""

    def __init__(
        self, link: Link, namespace: str, schema: str, which_database: Callable[[], Awaitable[tuple[str, str]]]
    ) -> None:
        self.is_blocking = link.is_blocking
        self._link, self._namespace, self._schema, self._which_database = link, namespace, schema, which_database
        self._home: tuple[str, str] | None = None

    async def prepare(self) -> None:
        """Asks the store which database it is in."""
        self._home = await self._which_database()

    def start_now(self, runs: Sequence[NewRun]) -> list[StartAnswer]:
        """Stores new runs, in the thread of a blocking connection."""
        talk = self._talk(runs)
        answer: Any = None
        while True:
            try:
                call = talk.send(answer)
            except StopIteration as end:
                answers: list[StartAnswer] = end.value
                return answers
            with self._explained():
                answer = call()

    async def start_runs(self, runs: Sequence[NewRun]) -> list[StartAnswer]:
        """Stores new runs."""
        talk = self._talk(runs)
        answer: Any = None
        while True:
            try:
                call = talk.send(answer)
            except StopIteration as end:
                answers: list[StartAnswer] = end.value
                return answers
            with self._explained():
                answer = call()
                if isawaitable(answer):
                    answer = await answer

    def _talk(self, runs: Sequence[NewRun]) -> Talk[list[StartAnswer]]:
        if not runs:
            return []
        link = self._link
        connection = yield link.open
        place = _remembered(connection)
        if place is None:
            place = tuple((yield partial(link.fetch, WHICH_DATABASE, ()))[0])
            with suppress(TypeError):
                _places[connection] = place
        if place != self._home:
            raise TransactionError(
                "the connection is in another database than the runs: what is started there never runs",
                "Give the client the URL of the connection's database, and bring Composer's schema there: `composer migrate`. "
                "One transaction cannot span two databases.",
            )
        text, order = start_statement(self._schema, dollar=link.is_dollar)
        literals = [literal(value) for value in encode_start(self._namespace, runs, "", 0.0, goes_on=True)]
        rows: Rows = yield partial(link.fetch, text, [literals[i] for i in order])
        return [StartAnswer(str(row[1]), bool(row[2]), str(row[3]), float(row[4])) for row in rows]

    @contextmanager
    def _explained(self) -> Generator[None]:
        """Names what only Composer knows the reason of. All else the caller's code knows how to handle as its driver's."""
        try:
            yield
        except ComposerError:
            raise
        except Exception as error:  # The caller's driver: there is no telling what it raises.
            words = str(error).partition("\n")[0]
            match sqlstate(error):
                case "25P02":
                    raise _failed_transaction() from error
                case "25006":
                    raise TransactionError(
                        f"the transaction is read-only ({words})", "Start in one that may write, on the primary server."
                    ) from error
                case "42501":
                    raise TransactionError(
                        f"the connection's role lacks a right ({words})",
                        f"Grant it usage of schema {self._schema} and select, insert, update on the tables there.",
                    ) from error
                case state if state in _NO_SCHEMA:
                    raise SchemaError(
                        f"the connection's database has no schema {self._schema!r} that fits this release ({words}); "
                        "run `composer migrate` with its URL"
                    ) from error
                case _:
                    raise


# -- the statement ------------------------------------------------------------------------------------------------
@cache
def start_statement(schema: str, *, dollar: bool) -> tuple[str, Sequence[int]]:
    """start.sql with every parameter sent as text, and which parameter (from 0) each value in turn is."""
    text = re.sub(r"\$(\d+)::(?!text\b(?!\[))", r"$\1::text::", statements(schema).start)
    numbers = [int(number) - 1 for number in re.findall(r"\$(\d+)", text)]
    if dollar:
        return text, range(max(numbers) + 1)
    return re.sub(r"\$\d+", "%s", text.replace("%", "%%")), numbers


def literal(value: Any) -> str | None:
    """A parameter as PostgreSQL's text for it; a list as the literal of an array."""
    match value:
        case None | str():
            return value
        case bool():
            return "true" if value else "false"
        case list():
            return "{" + ",".join(map(_element, value)) + "}"
        case datetime():
            return value.isoformat()
        case _:
            return repr(value)


def _element(value: Any) -> str:
    text = literal(value)
    if text is None:
        return "NULL"
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def sqlstate(error: BaseException) -> str | None:
    """The database's code for an error, however deep the layers above the driver have wrapped it."""
    seen: set[int] = set()
    at: Any = error
    while isinstance(at, BaseException) and id(at) not in seen:
        seen.add(id(at))
        for name in ("sqlstate", "pgcode"):
            code = getattr(at, name, None)
            if isinstance(code, str):
                return code
        at = getattr(at, "orig", None) or at.__cause__
    return None


def _remembered(connection: object) -> tuple[str, str] | None:
    try:
        return _places.get(connection)
    except TypeError:
        return None  # A driver written in C may allow no weak references: such a connection is asked each time.


# -- links --------------------------------------------------------------------------------------------------------
def link_to(connection: object) -> Link:
    """The link for a connection. Raises TransactionError for what is none."""
    if isinstance(connection, str):
        return _Django(connection)
    for each in type(connection).__mro__:
        make = _LINKS.get((each.__module__.partition(".")[0], each.__qualname__))
        if make is not None:
            return make(connection)
    raise TransactionError(
        f"{type(connection).__module__}.{type(connection).__qualname__} is not known here", _ACCEPTED
    )


@dataclass
class _Asyncpg:
    connection: Any
    is_blocking = False
    is_dollar = True

    def open(self) -> Any:
        if self.connection.is_closed():
            raise _closed()
        if not self.connection.is_in_transaction():
            raise _no_transaction("Start inside `async with connection.transaction():`.")
        # A pool lends the same connection in ever new wrappers.
        return getattr(self.connection, "_con", self.connection)

    def fetch(self, text: str, values: Sequence[str | None]) -> Any:
        return self.connection.fetch(text, *values)


@dataclass
class _Psycopg:
    connection: Any
    is_blocking = True
    is_dollar = False

    def open(self) -> Any:
        connection = self.connection
        if connection.closed:
            raise _closed()
        status = connection.info.transaction_status.name
        if status == "INERROR":
            raise _failed_transaction()
        if status != "INTRANS" and connection.autocommit:
            raise _no_transaction(
                "The connection is in autocommit mode: start inside `with connection.transaction():`."
            )
        return connection

    def fetch(self, text: str, values: Sequence[str | None]) -> Any:
        # Its own cursor: that of the application may want other placeholders, or give rows of another shape.
        with importlib.import_module("psycopg").Cursor(self.connection, row_factory=_as_tuple) as cursor:
            return cursor.execute(text, values).fetchall()


class _PsycopgAsync(_Psycopg):
    is_blocking = False

    async def fetch(self, text: str, values: Sequence[str | None]) -> Any:
        async with importlib.import_module("psycopg").AsyncCursor(self.connection, row_factory=_as_tuple) as cursor:
            await cursor.execute(text, values)
            return await cursor.fetchall()


def _as_tuple(_cursor: object) -> type[tuple[Any, ...]]:
    return tuple


class _Sqlalchemy:
    """A Session or a Connection. Both begin a transaction with their first statement, which the caller commits."""

    is_blocking = True
    is_dollar = False

    def __init__(self, given: Any) -> None:
        self._given = given
        self._connection: Any = None

    def open(self) -> Any:
        given = self._given
        self._connection = given if hasattr(given, "exec_driver_sql") else given.connection()
        return self._checked(self._connection)

    def _checked(self, connection: Any) -> Any:
        if connection.dialect.name != "postgresql":
            raise TransactionError(f"the connection is to {connection.dialect.name}, and runs are in PostgreSQL")
        self.is_dollar = connection.dialect.paramstyle == "numeric_dollar"
        lent = connection.connection
        if getattr(lent.dbapi_connection, "autocommit", False) is True:
            raise _no_transaction("The engine's isolation level is AUTOCOMMIT: start on one with another.")
        return lent.driver_connection

    def fetch(self, text: str, values: Sequence[str | None]) -> Any:
        return self._connection.exec_driver_sql(text, tuple(values) or None).fetchall()


class _SqlalchemyAsync(_Sqlalchemy):
    is_blocking = False

    async def open(self) -> Any:
        given = self._given
        self._connection = given if hasattr(given, "exec_driver_sql") else await given.connection()
        if self._connection.sync_connection is None:
            raise _closed()
        return self._checked(self._connection.sync_connection)

    async def fetch(self, text: str, values: Sequence[str | None]) -> Any:
        return (await self._connection.exec_driver_sql(text, tuple(values) or None)).fetchall()


class _Django:
    """Django's connection of the calling thread, given itself or by its alias."""

    is_blocking = True
    is_dollar = False

    def __init__(self, given: Any) -> None:
        self._given = given
        self._connection: Any = None

    def open(self) -> Any:
        self._connection = connection = self._of_alias() if isinstance(self._given, str) else self._given
        if connection.vendor != "postgresql":
            raise TransactionError(f"the connection is to {connection.vendor}, and runs are in PostgreSQL")
        if connection.needs_rollback:
            raise _failed_transaction()
        if not connection.in_atomic_block and connection.get_autocommit():
            raise _no_transaction("Start inside `with transaction.atomic():`.")
        return connection.connection

    def _of_alias(self) -> Any:
        django = sys.modules.get("django.db")
        if django is None:
            raise TransactionError(
                f"{self._given!r} is text, and Django, which has aliases, is not in use here", _ACCEPTED
            )
        if self._given not in django.connections:
            raise TransactionError(
                f"Django has no database {self._given!r}", f"It has {', '.join(map(repr, django.connections))}."
            )
        return django.connections[self._given]

    def fetch(self, text: str, values: Sequence[str | None]) -> Any:
        with self._connection.cursor() as cursor:
            cursor.execute(text, values)
            return cursor.fetchall()


def _no_transaction(advice: str) -> TransactionError:
    return TransactionError("no transaction is in progress: the start would commit by itself", advice)


def _failed_transaction() -> TransactionError:
    return TransactionError(
        "the transaction has failed already, and PostgreSQL takes nothing more in it", "Roll it back, and begin again."
    )


def _closed() -> TransactionError:
    return TransactionError("the connection is closed", "Start on an open one.")


def _bare_asyncpg(_: Any) -> Link:
    raise TransactionError("an asyncpg transaction does not say whose it is", "Give its connection.")


_LINKS: Final[dict[tuple[str, str], Callable[[Any], Link]]] = {
    ("asyncpg", "Connection"): _Asyncpg,
    ("asyncpg", "PoolConnectionProxy"): _Asyncpg,
    ("asyncpg", "Transaction"): _bare_asyncpg,
    ("psycopg", "Connection"): _Psycopg,
    ("psycopg", "AsyncConnection"): _PsycopgAsync,
    ("psycopg", "Transaction"): lambda given: _Psycopg(given.connection),
    ("psycopg", "AsyncTransaction"): lambda given: _PsycopgAsync(given.connection),
    ("sqlalchemy", "Session"): _Sqlalchemy,
    ("sqlalchemy", "scoped_session"): _Sqlalchemy,
    ("sqlalchemy", "SessionTransaction"): lambda given: _Sqlalchemy(given.session),
    ("sqlalchemy", "Connection"): _Sqlalchemy,
    ("sqlalchemy", "Transaction"): lambda given: _Sqlalchemy(given.connection),
    ("sqlalchemy", "AsyncSession"): _SqlalchemyAsync,
    ("sqlalchemy", "async_scoped_session"): _SqlalchemyAsync,
    ("sqlalchemy", "AsyncSessionTransaction"): lambda given: _SqlalchemyAsync(given.session),
    ("sqlalchemy", "AsyncConnection"): _SqlalchemyAsync,
    ("sqlalchemy", "AsyncTransaction"): lambda given: _SqlalchemyAsync(given.connection),
    ("django", "BaseDatabaseWrapper"): _Django,
    ("django", "ConnectionProxy"): _Django,
}
"""By the package and name of a class of the connection, its own or one it inherits from."""
