"""Fixtures of tests that start real processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from composer import AsyncClient, Settings
from composer.verify import Verified, verify
from tests.system.processes import Yard, yard


@pytest.fixture
def site(database: str, namespace: str, tmp_path: Path) -> Iterator[Yard]:
    """Processes on this module's database."""
    with yard(database, namespace, tmp_path) as made:
        yield made


@pytest.fixture
async def client(database: str, namespace: str) -> AsyncIterator[AsyncClient]:
    """A client on the same."""
    async with AsyncClient(settings=Settings(database_url=database, namespace=namespace)) as made:
        yield made


async def clean(client: AsyncClient) -> bool:
    """Whether every invariant holds."""
    return [violation async for violation in verify(client.store, Verified())] == []
