"""C54: fork, spawn and no signal handlers: (b), (c), and processes of steps. (a), clients, is tests/system/test_client_ends.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import anyio
import pytest

from composer import AsyncClient, RunFailed
from tests.system import flows, isolated
from tests.system.fixtures import clean
from tests.system.processes import ROOT, Yard
from tests.working import until, working

pytestmark = pytest.mark.anyio

WITHOUT_SIGNALS = """
import asyncio, sys
import composer.cli.serve as serve
from composer.cli.main import worker_app

def refuse(self, *args):
    raise NotImplementedError

asyncio.SelectorEventLoop.add_signal_handler = refuse
asyncio.SelectorEventLoop.remove_signal_handler = refuse
serve._has_uvloop = lambda: False
worker_app()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_loop_without_signal_handlers_still_drains(
    database: str, namespace: str, site: Yard, client: AsyncClient, number: signal.Signals
) -> None:
    """Where loop.add_signal_handler is not implemented the worker starts, and a signal lets its step finish."""
    command = [sys.executable, "-c", WITHOUT_SIGNALS, "tests.system.flows", "--grace", "10"]
    where = ["--database-url", database, "--namespace", namespace]
    environment = {**os.environ, "LEDGER": str(site.ledger)}
    process = await anyio.open_process([*command, *where], cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
    try:
        handle = await client.start(flows.napping, 1, 1.0)
        await until(lambda: site.starts()["naps"] == 1, 20)
        process.send_signal(number)
        with anyio.fail_after(15):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
        await process.aclose()
    assert len(site.entries(phase="end", node="naps")) == 1, "the running step was let finish"
    assert await clean(client)
    await handle.cancel()


async def test_four_worker_processes_are_new_interpreters_and_all_work(
    database: str, namespace: str, site: Yard, client: AsyncClient
) -> None:
    """(b) `--processes 4` forks nothing and pickles nothing: each process imports the module, takes its share, and drains."""
    parent = site.worker("--processes", "4", "--concurrency", "5")
    await until(lambda: sum(line.startswith("worker ") for line in parent.log.read_text().splitlines()) == 4, 60)
    handles = await client.start_many(flows.napping, [(1, 2.0)] * 20)
    for handle in handles:
        assert await handle.result(timeout=60) == 4
    pids = {entry["pid"] for entry in site.entries(phase="start", node="naps")}
    assert parent.popen.pid not in pids
    assert len(pids) == 4, "20 naps at once are five in each"
    parent.send(signal.SIGTERM)
    assert await anyio.to_thread.run_sync(parent.popen.wait, 20) == 0
    assert "pickle" not in parent.log.read_text()
    assert await clean(client)


@pytest.mark.parametrize("method", ["fork", "spawn"])
async def test_a_process_step_may_have_processes_of_its_own(database: str, namespace: str, method: str) -> None:
    """multiprocessing works inside of a process step, by fork and by spawn."""
    async with working(database, namespace, [isolated.pooled_flow]) as site:
        assert await (await site.client.start(isolated.pooled_flow, method)).result(timeout=60) == [0, 1, 4, 9]


async def test_a_forked_process_does_not_hide_the_death_of_its_step(database: str, namespace: str) -> None:
    """The death of a step that leaves a forked process behind, with the socket, is noticed at once."""
    async with working(database, namespace, [isolated.orphaning]) as site:
        handle = await site.client.start(isolated.orphaning, str(os.getpid()))
        with pytest.raises(RunFailed, match="exit code 7") as caught:
            await handle.result(timeout=20)
        assert caught.value.error_type == "ProcessDied"
