"""The PostgreSQL servers that the tests run on, and databases on them."""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import os
import pathlib
import secrets
import shutil
import tempfile
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from composer.postgres.embedded import EmbeddedPostgres
from composer.postgres.migrate import migrate
from composer.postgres.partitions import make_partitions

T = TypeVar("T")

DATABASE_URL = os.environ.get("COMPOSER_TEST_DATABASE_URL")
PG15 = pathlib.Path(os.environ.get("COMPOSER_TEST_PG15_BIN", "/usr/lib/postgresql/15/bin"))

MAIN, OLDEST = "postgres", "postgres-15"
SERVERS = [MAIN, OLDEST] if os.access(PG15 / "initdb", os.X_OK) else [MAIN]
"""PostgreSQL 15 is the oldest that Composer supports; it is one more server where its programs are found."""


class Server:
    """A PostgreSQL server with a template database that holds Composer's schema."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._names = (f"test_{secrets.token_hex(4)}_{i}" for i in itertools.count())
        self._template: str | None = None
        self._made: list[str] = []

    def database(self, *, empty: bool = False) -> str:
        """The URL of a new database, with the schema and its partitions unless it shall be empty."""
        if empty:
            return self._create("template0")
        if self._template is None:
            url = self._create("template0")
            run(lambda: _with_schema(url))
            self._template = urlsplit(url).path[1:]
        return self._create(self._template)

    def drop(self, url: str) -> None:
        """Drops a database, whoever is connected to it."""
        name = urlsplit(url).path[1:]
        self._made.remove(name)
        run(lambda: execute(self.url, f"drop database {name} with (force)"))

    def close(self) -> None:
        """Drops what was made and is still there."""
        for name in reversed(self._made):
            run(lambda name=name: execute(self.url, f"drop database {name} with (force)"))

    def _create(self, template: str) -> str:
        name = next(self._names)
        run(lambda: execute(self.url, f"create database {name} template {template}"))
        self._made.append(name)
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{name}"))


class TestServer(Server):
    """A server of the tests' own, in a folder that goes with it."""

    __test__ = False

    def __init__(self, binaries: pathlib.Path | None = None, *, durable: bool = False) -> None:
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="composer-", dir="/tmp"))
        self.home.chmod(0o755)  # root's server runs as nobody, who has to get there
        self.embedded = EmbeddedPostgres(self.home, durable=durable)
        try:
            with _binaries(binaries):
                super().__init__(self.embedded.start())
        except BaseException:
            shutil.rmtree(self.home, ignore_errors=True)
            raise

    def close(self) -> None:
        """Ends the server, and all of its databases."""
        self.embedded.close()
        # Every process of the server holds it: once it is ours, nobody is left who writes to the folder.
        self.embedded._lock("server.lock", fcntl.LOCK_EX).close()
        shutil.rmtree(self.home, ignore_errors=True)


@contextmanager
def _binaries(folder: pathlib.Path | None) -> Any:
    before = os.environ.get("COMPOSER_PG_BIN")
    if folder is not None:
        os.environ["COMPOSER_PG_BIN"] = str(folder)
    try:
        yield
    finally:
        if folder is not None:
            del os.environ["COMPOSER_PG_BIN"]
            if before is not None:
                os.environ["COMPOSER_PG_BIN"] = before


def run(call: Callable[[], Awaitable[T]]) -> T:
    """What a coroutine returns, run in a thread of its own: the caller's event loop, if any, is not touched."""
    outcome: list[T] = []
    failure: list[BaseException] = []

    async def main() -> T:
        return await call()

    def target() -> None:
        try:
            outcome.append(asyncio.run(main()))
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]


async def execute(url: str, *statements: str) -> None:
    """Runs statements one by one on a connection of their own."""
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def query(url: str, text: str, *args: Any) -> Sequence[Any]:
    """Rows of one statement on a connection of its own."""
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetch(text, *args)
    finally:
        await connection.close()


async def _with_schema(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await migrate(connection)
        await make_partitions(connection, "composer")
    finally:
        await connection.close()
