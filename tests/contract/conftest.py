"""Every store, one after the other, for one suite."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from composer.memory.store import MemoryStore
from composer.postgres.store import PostgresStore
from tests.contract.driver import Driver, TurnableClock
from tests.servers import SERVERS, Server

MEMORY = "memory"


@pytest.fixture(scope="session")
def contract_database(start_server: Callable[[str], Server]) -> Iterator[Callable[[str], str]]:
    """Gives the database of the contract tests on a server: one for all of them, since each has its own namespace."""
    urls: dict[str, str] = {}

    def database(name: str) -> str:
        if name not in urls:
            urls[name] = start_server(name).database()
        return urls[name]

    yield database
    for name, url in urls.items():
        start_server(name).drop(url)


@pytest.fixture(params=[MEMORY, *SERVERS])
async def driver(
    request: pytest.FixtureRequest, contract_database: Callable[[str], str], namespace: str
) -> AsyncIterator[Driver]:
    """A driver of each store in turn."""
    if request.param == MEMORY:
        yield Driver(MemoryStore(namespace=namespace, clock=TurnableClock()))
        return
    store = PostgresStore(contract_database(request.param), namespace=namespace, connections=4)
    await store.open()
    yield Driver(store)
    await store.close()
