"""Fixtures for every test: a real PostgreSQL, never skipped, and databases and stores on it.

The server is COMPOSER_TEST_DATABASE_URL when that is set (the user must be allowed to create databases), else the
embedded one in a temporary folder. PostgreSQL 15, the oldest supported, is a second server where its programs are found:
in COMPOSER_TEST_PG15_BIN, else where Debian puts them.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from composer.errors import ComposerError
from composer.postgres.store import PostgresStore
from tests import servers
from tests.servers import DATABASE_URL, MAIN, OLDEST, PG15, SERVERS, Server, TestServer

_running: dict[str, Server] = {}


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Async tests run on asyncio with uvloop, as workers do."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="session")
def start_server() -> Iterator[Callable[[str], Server]]:
    """Gives a server by its name in SERVERS, started when it is first asked for. A server that cannot run ends the session."""

    def start(name: str) -> Server:
        if name not in _running:
            try:
                if name == OLDEST:
                    _running[name] = TestServer(PG15)
                elif DATABASE_URL:
                    server = Server(DATABASE_URL)
                    servers.run(lambda: servers.query(server.url, "select 1"))
                    _running[name] = server
                else:
                    _running[name] = TestServer()
            except (ComposerError, OSError, servers.asyncpg.PostgresError) as error:
                where = "COMPOSER_TEST_DATABASE_URL" if DATABASE_URL and name == MAIN else "the embedded server"
                pytest.exit(
                    f"these tests need a real PostgreSQL, and {where} ({name}) is not to be had: {error}\n"
                    "Set COMPOSER_TEST_DATABASE_URL, or install the development dependencies: make install",
                    returncode=3,
                )
        return _running[name]

    yield start
    for server in _running.values():
        server.close()
    _running.clear()


@pytest.fixture(scope="session")
def server(start_server: Callable[[str], Server]) -> Server:
    """The server that tests run on when one is enough."""
    return start_server(MAIN)


@pytest.fixture(scope="session", params=SERVERS)
def each_server(request: pytest.FixtureRequest, start_server: Callable[[str], Server]) -> Server:
    """Each server in turn."""
    return start_server(request.param)


@pytest.fixture(scope="module")
def database(server: Server) -> Iterator[str]:
    """URL of a database of this module's own, with the schema."""
    url = server.database()
    yield url
    server.drop(url)


@pytest.fixture
def fresh_database(server: Server) -> Iterator[str]:
    """URL of a database of this test's own, with the schema."""
    url = server.database()
    yield url
    server.drop(url)


@pytest.fixture
def empty_database(server: Server) -> Iterator[str]:
    """URL of a database of this test's own, without a schema."""
    url = server.database(empty=True)
    yield url
    server.drop(url)


@pytest.fixture
def namespace() -> str:
    """A namespace that nobody else uses."""
    return f"n{secrets.token_hex(6)}"


@pytest.fixture
async def postgres_store(database: str, namespace: str) -> AsyncIterator[PostgresStore]:
    """An open store on PostgreSQL, in a namespace of its own."""
    store = PostgresStore(database, namespace=namespace, connections=4)
    await store.open()
    yield store
    await store.close()
