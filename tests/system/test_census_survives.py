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

from composer import AsyncClient, Settings, StoreUnavailable
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


async def in_the_middle(client: AsyncClient, run_id: str) -> None:
    """Returns once some files are read and others are not."""

    async def reached() -> bool:
        items = {node.name: node.items for node in (await client.get(run_id)).nodes}["read_file"]
        return items is not None and items.completed >= 10 and items.open > 10

    await until(reached, 30)


async def files_read(client: AsyncClient, run_id: str) -> dict[int, tuple[object, int]]:
    """When and at which delivery each file was read, by item."""
    for run in await client.store.audit(None, 10):
        if run.record.head.run_id == run_id:
            tasks = [task for task in run.record.tasks if task.item >= 0 and task.state == "completed"]
            return {task.item: (task.started_at, task.delivery) for task in tasks}
    return {}


@pytest.mark.parametrize("whole", [False, True], ids=["worker", "worker and server"])
async def test_a_census_survives(site: Census, whole: bool) -> None:
    """After kill -9 in the middle a new worker ends it within seconds, and no finished file is read twice."""
    first = site.worker()
    root = str(Path(sysconfig.get_path("stdlib")) / "encodings")
    async with AsyncClient(settings=Settings(home=site.home)) as client:
        handle = await client.start(census, root)
        await in_the_middle(client, handle.id)
        first.kill()
        first.wait(10)
        if whole:
            site.kill_server()
        at = time.monotonic()
        site.worker()
        done: dict[int, tuple[object, int]] = {}

        async def is_back() -> bool:
            with contextlib.suppress(StoreUnavailable):
                done.update(await files_read(client, handle.id))
            return bool(done)

        await until(is_back, 20)
        await handle.result(timeout=60)
        assert time.monotonic() - at < 30
        completions: dict[tuple[str, int], int] = {}
        for row in await client.history(handle.id):
            for entry in row.changes["events"]:
                if entry.get("outcome") == "completed":
                    key = (entry["node"], entry.get("item", -1))
                    completions[key] = completions.get(key, 0) + 1
        assert set(completions.values()) == {1}
        now = await files_read(client, handle.id)
        assert len(done) >= 10
        assert {item: now[item] for item in done} == done, "a finished file was read again"
        assert all(node.attempt <= 1 for node in (await handle.get()).nodes)
        assert [violation async for violation in verify(client.store, Verified())] == []
