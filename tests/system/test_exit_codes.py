"""What the exit code of a worker says."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from composer import AsyncClient
from tests.system import flows
from tests.system.processes import ROOT, Yard
from tests.working import until

pytestmark = pytest.mark.anyio


def worker(*args: str) -> subprocess.CompletedProcess[str]:
    """A worker that does not stay."""
    command = [sys.executable, "-m", "composer.worker", *args]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_wrong_use_is_two_and_a_database_that_is_away_is_three(tmp_path: Path) -> None:
    """Options, settings and modules that are wrong end with 2, an unreachable database with 3, each with one message."""
    away = ("--database-url", f"postgresql:///x?host={tmp_path}")
    for args, code, said in (
        (("tests.system.flows", "--concurency", "3"), 2, "--concurency"),
        (("tests.system.flows", "--concurrency", "0"), 2, "concurrency=0: expected 1 or more"),
        (("tests.system.flows", "--step-processes", "0"), 2, "processes=0: expected 1 or more"),
        (("tests.system.nowhere",), 2, "there is no module 'tests.system.nowhere'"),
        (("tests.system.flows", *away), 3, "composer:"),
    ):
        done = worker(*args)
        assert done.returncode == code, done.stderr
        assert said in done.stderr
        assert "Traceback" not in done.stderr


async def test_a_second_signal_ends_a_worker_at_once_with_its_number(site: Yard, client: AsyncClient) -> None:
    """Told twice it does not wait for its step, and the code is that of the signal."""
    process = site.worker("--grace", "60")
    handle = await client.start(flows.napping, 1, 60.0)
    await until(lambda: site.starts()["naps"] == 1, 20)

    def insist() -> bool:
        process.send(signal.SIGTERM)
        return not process.is_running

    await until(insist, 10)
    assert process.popen.returncode == 128 + signal.SIGTERM
    await handle.cancel()


async def test_one_word_that_comes_twice_is_one_word(site: Yard, client: AsyncClient) -> None:
    """Two signals in the same moment, as when a whole group is stopped and its leader too, let a step end in its own time."""
    process = site.worker("--grace", "60")
    handle = await client.start(flows.napping, 1, 1.0)
    await until(lambda: site.starts()["naps"] == 1, 20)
    # Two of one kind may be one before anybody has heard either.
    for number in (signal.SIGTERM, signal.SIGINT):
        process.send(number)
    await until(lambda: not process.is_running, 20)
    assert process.popen.returncode == 0
    assert (await handle.get()).nodes[0].state == "completed"
