"""The main job under kill -9: of its worker, and of everything together, the embedded server included."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import pytest

from composer import AsyncClient, RunView, Settings
from composer.verify import Verified, verify
from samples.census.workflow import census
from tests.system.processes import ROOT
from tests.working import until

pytestmark = pytest.mark.anyio


class Census:
    """Workers of the census on an embedded server of their own."""

    def __init__(self, home: Path, log: Path) -> None:
        self.home, self.log = home, log
        self.workers: list[subprocess.Popen[bytes]] = []

    def worker(self) -> subprocess.Popen[bytes]:
        """A worker process."""
        with self.log.open("ab") as log:
            command = [
                sys.executable,
                "-m",
                "composer.worker",
                "samples.census.workflow",
                "--home",
                str(self.home),
                "--lease",
                "30",
            ]
            process = subprocess.Popen(
                command, cwd=ROOT, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
        self.workers.append(process)
        return process

    def kill_server(self) -> None:
        """kill -9 of the postmaster and all its children."""
        postmaster = int((self.home / "data" / "postmaster.pid").read_text().splitlines()[0])
        children = [int(pid) for pid in Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()]
        for pid in (postmaster, *children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """Ends every worker."""
        for process in self.workers:
            process.kill()
            process.wait(10)


@pytest.fixture
def site():
    """A home that the server's account can reach, and its workers."""
    folder = Path(tempfile.mkdtemp(prefix="cz-"))
    folder.chmod(0o755)
    made = Census(folder / "pg", folder / "log")
    yield made
    made.close()
    shutil.rmtree(folder, ignore_errors=True)


async def in_the_middle(client: AsyncClient, run_id: str) -> RunView:
    """The run as it is once the files are found and an analysis is under way."""
    seen: list[RunView] = []

    async def reached() -> bool:
        seen[:] = [await client.get(run_id)]
        return {node.name: node.state for node in seen[0].nodes}["find_files"] == "completed"

    await until(reached, 30)
    return seen[0]


@pytest.mark.parametrize("whole", [False, True], ids=["worker", "worker and server"])
async def test_a_census_survives(site: Census, whole: bool) -> None:
    """After kill -9 in the middle a new worker ends it within seconds, and no completed step runs again."""
    first = site.worker()
    root = str(Path(sysconfig.get_path("stdlib")) / "encodings")
    async with AsyncClient(settings=Settings(home=site.home)) as client:
        handle = await client.start(census, root)
        before = await in_the_middle(client, handle.id)
        first.kill()
        first.wait(10)
        if whole:
            site.kill_server()
        at = time.monotonic()
        site.worker()
        await handle.result(timeout=60)
        assert time.monotonic() - at < 30
        completions: dict[str, int] = {}
        for row in await client.history(handle.id):
            for entry in row.changes["events"]:
                if entry.get("outcome") == "completed":
                    completions[entry["node"]] = completions.get(entry["node"], 0) + 1
        assert set(completions.values()) == {1}
        done = {node.name: node.started_at for node in before.nodes if node.state == "completed"}
        now = {node.name: node for node in (await handle.get()).nodes}
        assert done
        assert all(now[name].started_at == started for name, started in done.items()), "a completed step ran again"
        assert all(node.attempt == 1 for node in now.values())
        assert [violation async for violation in verify(client.store, Verified())] == []
