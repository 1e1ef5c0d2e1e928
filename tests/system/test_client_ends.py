"""Clients in processes that fork, and in processes that end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process

from tests.servers import query
from tests.system.client_ends import CHILDREN, RUNS, once
from tests.system.processes import ROOT
from tests.tls import TlsServer, tls
from tests.working import until, working

pytestmark = pytest.mark.anyio


@pytest.fixture
async def served(database: str, namespace: str) -> AsyncIterator[None]:
    """A worker for the programs' runs."""
    async with working(database, namespace, [once]):
        yield


@pytest.fixture
async def behind_tls(database: str, tmp_path: Path) -> AsyncIterator[TlsServer]:
    """The database, through TLS."""
    async with tls(database, tmp_path) as server:
        yield server


@asynccontextmanager
async def program(name: str, url: str, namespace: str) -> AsyncIterator[Process]:
    """One of client_ends, with all warnings of what was left open; killed at the end, if it is still there."""
    environment = {**os.environ, "COMPOSER_DATABASE_URL": url, "COMPOSER_NAMESPACE": namespace}
    process = await anyio.open_process(
        [sys.executable, "-W", "always", "-W", "ignore::DeprecationWarning", "-m", "tests.system.client_ends", name],
        cwd=ROOT, env=environment, stdin=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await process.aclose()


async def everything(process: Process, limit: float) -> tuple[int, list[str], str]:
    """Exit code, lines and complaints of a program that ends within the limit."""
    said: dict[str, bytes] = {"out": b"", "err": b""}

    async def read(name: str, stream: anyio.abc.ByteReceiveStream) -> None:
        async for data in stream:
            said[name] += data

    assert process.stdout is not None and process.stderr is not None
    with anyio.fail_after(limit):
        async with anyio.create_task_group() as group:
            group.start_soon(read, "out", process.stdout)
            group.start_soon(read, "err", process.stderr)
        code = await process.wait()
    return code, said["out"].decode().splitlines(), said["err"].decode()


async def line_of(process: Process) -> str:
    """The next line a program says."""
    assert process.stdout is not None
    with anyio.fail_after(30):
        return (await process.stdout.receive()).decode().strip()


async def connections(database: str) -> int:
    """Connections through TCP, as the programs' are: those of the tests come through the socket."""
    rows = await query(
        database,
        "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'composer'",
    )
    count: int = rows[0][0]
    return count


async def test_forked_children_refuse_the_parents_client_and_open_their_own(
    served: None, behind_tls: TlsServer, namespace: str
) -> None:
    """With an open client over TLS, four forked children are told why it is not theirs, run 50 runs each by a client of their own
    or by opening it again, and end; the parent's client works all the while, and nobody complains."""
    async with program("forks", behind_tls.url, namespace) as process:
        code, lines, complaints = await everything(process, 90)
    assert complaints == ""
    parent = [f"parent {[0] * CHILDREN} {2 * RUNS} True", "waited: run-cancelled"]
    assert sorted(lines) == [*[f"child 3 {RUNS}"] * CHILDREN, *parent]
    assert code == 0
    assert behind_tls.handshakes > CHILDREN


async def test_a_forked_child_does_not_keep_its_parents_connections(database: str, namespace: str) -> None:
    """When a process with an open client is killed, its connections end although a child it forked off lives on."""
    before = await connections(database)
    async with program("forks_and_waits", database, namespace) as process:
        child = int(await line_of(process))
        assert await connections(database) > before
        process.kill()
        await until(lambda: _is(connections(database), before), 5)
        os.kill(child, 0)
        assert process.stdin is not None
        await process.stdin.aclose()


async def _is(count: object, wanted: int) -> bool:
    return await count == wanted  # type: ignore[misc]


async def test_a_client_that_nobody_closes_is_closed_when_the_program_ends(
    served: None, database: str, namespace: str
) -> None:
    """A program that leaves its client open ends at once, without a complaint, and takes back its word that it sleeps."""
    async with program("leaves_open", database, namespace) as process:
        await line_of(process)
        sleepers = f"select id from composer.sleepers where namespace = '{namespace}' and id like 'client-%'"
        await until(lambda: _has(query(database, sleepers)))
        assert process.stdin is not None
        await process.stdin.aclose()
        code, _, complaints = await everything(process, 5)
    assert (code, complaints) == (0, "")
    assert await query(database, sleepers) == []


async def _has(rows: object) -> bool:
    return bool(await rows)  # type: ignore[misc]


async def test_a_program_ends_although_the_database_does_not_answer(
    served: None, behind_tls: TlsServer, namespace: str
) -> None:
    """A program that leaves its client open ends within seconds when nothing comes from the database any more."""
    async with program("leaves_open", behind_tls.url, namespace) as process:
        await line_of(process)
        behind_tls.is_frozen = True
        assert process.stdin is not None
        await process.stdin.aclose()
        code, _, _ = await everything(process, 8)
    assert code == 0


async def test_a_program_that_exits_inside_the_block_ends_its_other_threads_calls(
    database: str, namespace: str
) -> None:
    """sys.exit() within the block closes the client: a thread that waits for a run is told, and the exit code is kept."""
    async with program("exits_inside", database, namespace) as process:
        code, lines, complaints = await everything(process, 15)
    assert (code, complaints) == (7, "")
    assert lines[-1] == "waited: client-error"
