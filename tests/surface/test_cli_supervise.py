"""`composer worker --processes` and `--reload` with real processes: killed children, forwarded signals, edited files."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from composer import AsyncClient, Settings
from composer.cli import supervise
from composer.cli.supervise import Supervisor, project_files
from tests.system import flows
from tests.system.processes import Process, Yard, yard
from tests.working import until

pytestmark = pytest.mark.anyio

FLOW = """
from composer import step, workflow

@step
async def answer(n: int) -> int:
    return n + {addend}

@workflow
def answered(n: int) -> int:
    return answer(n)
"""


@pytest.fixture
def site(database: str, namespace: str, tmp_path: Path) -> Iterator[Yard]:
    """Processes on this module's database."""
    with yard(database, namespace, tmp_path) as made:
        yield made


def children(pid: int) -> set[int]:
    """Process ids of the children that have not ended."""
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid and fields[0] != "Z":
                found.add(int(entry.name))
    return found


def is_alive(pid: int) -> bool:
    """Whether the process has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def serving(process: Process) -> int:
    """How many workers have said what they serve."""
    return sum(line.startswith("worker ") for line in process.log.read_text().splitlines())


async def test_a_killed_child_has_a_successor_and_its_run_completes(site: Yard, database: str, namespace: str) -> None:
    """Of two worker processes the one at work is killed: another starts, the run goes on, and SIGTERM ends all with 0."""
    async with AsyncClient(settings=Settings(database_url=database, namespace=namespace)) as client:
        parent = site.worker("--processes", "2")
        await until(lambda: serving(parent) == 2, 30)
        first = children(parent.popen.pid)
        assert len(first) == 2
        handle = await client.start(flows.napping, 1, 2.0)
        await until(lambda: site.starts()["naps"] == 1, 20)
        victim = site.entries(phase="start", node="naps")[0]["pid"]
        assert victim in first
        os.kill(victim, signal.SIGKILL)
        await until(lambda: parent.said("killed by SIGKILL"), 10)
        assert await handle.result(timeout=30) == 4
        await until(lambda: serving(parent) == 3, 20)
        now = children(parent.popen.pid)
        assert len(now) == 2
        assert victim not in now
        parent.send(signal.SIGTERM)
        await until(lambda: not parent.is_running, 20)
        assert parent.popen.returncode == 0
        assert not any(map(is_alive, now))


async def test_children_drain_when_their_parent_is_killed(site: Yard) -> None:
    """A parent that is gone without a word leaves no workers behind."""
    parent = site.worker("--processes", "2")
    await until(lambda: serving(parent) == 2, 30)
    left = children(parent.popen.pid)
    assert len(left) == 2
    parent.kill()
    await until(lambda: not any(map(is_alive, left)), 20)


async def test_a_second_signal_ends_parent_and_children_at_once(site: Yard, database: str, namespace: str) -> None:
    """Told twice, the children do not wait for their steps and the parent's code is that of the signal."""
    async with AsyncClient(settings=Settings(database_url=database, namespace=namespace)) as client:
        parent = site.worker("--processes", "2", "--grace", "60")
        await until(lambda: serving(parent) == 2, 30)
        handle = await client.start(flows.napping, 1, 60.0)
        await until(lambda: site.starts()["naps"] == 1, 20)
        parent.send(signal.SIGINT)
        await until(lambda: len(parent.said("stopping: no new tasks")) == 2, 10)
        assert parent.is_running

        def is_ended_by_telling() -> bool:
            parent.send(signal.SIGINT)
            return not parent.is_running

        # In the first half second it is the same word.
        await until(is_ended_by_telling, 10)
        assert parent.popen.returncode == 128 + signal.SIGINT
        await handle.cancel()


async def test_what_is_wrong_for_all_children_ends_the_parent(site: Yard) -> None:
    """A module that is missing is said once, by one child, and its exit code is the parent's."""
    parent = site.worker("--processes", "3", module="tests.system.nowhere")
    await until(lambda: not parent.is_running, 20)
    assert parent.popen.returncode == 2
    assert parent.log.read_text().count("there is no module 'tests.system.nowhere'") == 1


async def test_reload_serves_what_the_files_say_now(database: str, namespace: str, tmp_path: Path) -> None:
    """An edited module is served anew; one that broke is waited for until it is mended."""
    async with AsyncClient(settings=Settings(database_url=database, namespace=namespace)) as client:
        project = tmp_path / "project"
        project.mkdir()
        file = project / "reloaded_flows.py"
        file.write_text(FLOW.format(addend=1))
        where = ("--database-url", database, "--namespace", namespace, "--json-logs", "--lease", "2")
        parent = Process(
            "composer.worker", "reloaded_flows", "--reload", *where,
            ledger=tmp_path / "ledger", log=tmp_path / "log", folder=project,
        )  # fmt: skip
        try:
            await until(lambda: serving(parent) == 1, 30)
            assert await (await client.start("answered", {"n": 1})).result(timeout=20) == 2
            file.write_text(FLOW.format(addend=10))
            await until(lambda: serving(parent) == 2, 30)
            assert await (await client.start("answered", {"n": 1})).result(timeout=20) == 11
            file.write_text("def (:")
            await until(lambda: parent.said("the worker did not start"), 30)
            assert "SyntaxError" in parent.log.read_text()
            assert parent.is_running
            file.write_text(FLOW.format(addend=100))
            await until(lambda: serving(parent) == 3, 30)
            assert await (await client.start("answered", {"n": 1})).result(timeout=20) == 101
            parent.send(signal.SIGTERM)
            await until(lambda: not parent.is_running, 20)
            assert parent.popen.returncode == 0
        finally:
            parent.close()


async def test_a_worker_waits_for_its_missing_module(database: str, namespace: str, tmp_path: Path) -> None:
    """With --reload a module that is not there yet is served once it comes; files that are no Python start nothing anew."""
    parent = Process(
        "composer.worker", "coming_flows", "--reload", "--database-url", database, "--namespace", namespace, "--json-logs",
        ledger=tmp_path / "ledger", log=tmp_path / "log", folder=tmp_path,
    )  # fmt: skip
    try:
        await until(lambda: parent.said("the worker did not start"), 30)
        (tmp_path / "notes.txt").write_text("to do")
        await _looks(parent)
        (tmp_path / "coming_flows.py").write_text(FLOW.format(addend=1))
        await until(lambda: serving(parent) == 1, 30)
        assert len(parent.said("starting anew")) == 1
        assert len(parent.said("the worker did not start")) == 1
    finally:
        parent.close()


async def _looks(parent: Process) -> None:
    """Returns once the parent has looked at the files at least once more: it asks nothing else of the processor."""

    def spent() -> int:
        fields = Path(f"/proc/{parent.popen.pid}/schedstat").read_text().split()
        return int(fields[2])

    before = spent()
    await until(lambda: spent() > before + 3, 10)


async def test_a_ctrl_c_of_the_terminal_reaches_each_child_once(site: Yard) -> None:
    """A signal to the parent's whole process group, as a terminal sends it, lets the children drain."""
    parent = site.worker("--processes", "2")
    await until(lambda: serving(parent) == 2, 30)
    os.killpg(parent.popen.pid, signal.SIGINT)
    await until(lambda: not parent.is_running, 20)
    assert parent.popen.returncode == 0
    assert not parent.said("told twice")


class Parent:
    """A supervisor in this process, of children that write when they begin and do what a script says."""

    def __init__(self, folder: Path, script: str, count: int = 1, *, reload: bool = False) -> None:
        self._file = folder / "begun"
        self._file.touch()
        begin = f"import os, sys, time\nopen({str(self._file)!r}, 'a').write(f'{{time.time()}}\\n')\nline = int(sys.argv[-1])\n"
        self.supervisor = Supervisor([sys.executable, "-c", begin + script], count, reload=reload)

    def begun(self) -> list[float]:
        """When each child began."""
        return [float(line) for line in self._file.read_text().splitlines()]

    async def run_until_begun(self, count: int) -> None:
        """Runs it until so many children have begun, then tells it to stop."""
        async with anyio.create_task_group() as group:
            group.start_soon(self.supervisor.run)
            await until(lambda: len(self.begun()) >= count, 30)
            # It hears signals for as long as it runs.
            signal.raise_signal(signal.SIGTERM)


SERVES = "os.write(line, b'{\"serves\": true}\\n')\n"


async def test_children_that_keep_dying_are_started_ever_more_slowly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pause before a successor doubles, up to the longest."""
    monkeypatch.setattr(supervise, "_FIRST_PAUSE", 0.1)
    monkeypatch.setattr(supervise, "_LONGEST_PAUSE", 0.4)
    parent = Parent(tmp_path, SERVES + "sys.exit(3)")
    await parent.run_until_begun(9)
    gaps = [later - earlier for earlier, later in itertools.pairwise(parent.begun()[:9])]
    # A child takes time too, but never less than the pause before it.
    assert all(gap >= pause for gap, pause in zip(gaps, (0.1, 0.2, *[0.4] * 6), strict=True)), gaps
    # Doubled without an end, the last pause would be 12.8 s.
    assert max(gaps) < 5


async def test_a_child_that_worked_has_its_successor_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a child has served for a while, the pauses begin with the shortest again."""
    monkeypatch.setattr(supervise, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(supervise, "_LONGEST_PAUSE", 60.0)
    monkeypatch.setattr(supervise, "_STEADY", 0.0)
    parent = Parent(tmp_path, SERVES + "sys.exit(3)")
    # Doubled each time, the pauses would take more than the limit: 0.01 s * 2**13 is over a minute.
    await parent.run_until_begun(14)


@pytest.mark.parametrize(("script", "code"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 137), ("sys.exit(0)", 1)])
async def test_the_first_childs_end_is_the_parents(tmp_path: Path, script: str, code: int) -> None:
    """The first of several that ends before it serves is the only one: the exit code is its own, 128 + n after a signal, never 0."""
    parent = Parent(tmp_path, script, 3)
    with anyio.fail_after(20):
        assert await parent.supervisor.run() == code
    assert len(parent.begun()) == 1


DRAINS = """
import json, signal
folder = {folder!r}
signal.signal(signal.SIGTERM, lambda *_: open(folder + "/told", "a").write("x"))
stamps = {{}}
for name in ("one.py", "other.py"):
    found = os.stat(folder + "/" + name)
    stamps[folder + "/" + name] = [found.st_mtime_ns, found.st_size]
os.write(line, json.dumps({{"files": stamps, "serves": True}}).encode() + b"\\n")
while not os.path.exists(folder + "/told"):
    time.sleep(0.01)
time.sleep({drains})
"""


async def test_a_child_that_drains_for_a_reload_is_not_hastened(tmp_path: Path) -> None:
    """A first signal to the parent leaves a child alone that was told already: a second would end it at once."""
    (tmp_path / "one.py").touch()
    (tmp_path / "other.py").touch()
    parent = Parent(tmp_path, DRAINS.format(folder=str(tmp_path), drains=1.0), reload=True)
    told = tmp_path / "told"
    async with anyio.create_task_group() as group:
        group.start_soon(parent.supervisor.run)
        await until(lambda: parent.supervisor._serves.is_set(), 20)
        (tmp_path / "one.py").write_text("x = 1")
        await until(told.exists, 20)
        signal.raise_signal(signal.SIGTERM)
    assert told.read_text() == "x"
    assert len(parent.begun()) == 1


async def test_two_signals_in_one_moment_are_one(tmp_path: Path) -> None:
    """A parent that is told twice at once tells its child once, and waits for it."""
    (tmp_path / "one.py").touch()
    (tmp_path / "other.py").touch()
    parent = Parent(tmp_path, DRAINS.format(folder=str(tmp_path), drains=0.2))
    codes: list[int] = []

    async def run() -> None:
        codes.append(await parent.supervisor.run())

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await until(lambda: parent.supervisor._serves.is_set(), 20)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    assert (tmp_path / "told").read_text() == "x"
    assert codes == [0]


async def test_a_second_signal_ends_a_child_that_hears_none(tmp_path: Path) -> None:
    """A child that cannot hear, as when a step holds up its loop, is ended by the second signal all the same."""
    deaf = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SERVES
    parent = Parent(tmp_path, deaf + "time.sleep(60)")
    codes: list[int] = []

    async def run() -> None:
        codes.append(await parent.supervisor.run())

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await until(lambda: parent.supervisor._serves.is_set())
            signal.raise_signal(signal.SIGTERM)
            await until(lambda: parent.supervisor._stop.is_set())
            # Not a wait for anything: what comes sooner is the first signal again. Twice that, as a loop's clock is coarse.
            await anyio.sleep(2 * supervise.SAME_WORD)
            signal.raise_signal(signal.SIGTERM)
    assert codes == [128 + signal.SIGTERM]


async def test_files_that_are_written_one_after_the_other_are_one_reload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change is waited after: nothing starts anew while files still change."""
    monkeypatch.setattr(supervise, "_LOOK", 0.05)
    monkeypatch.setattr(supervise, "_QUIET", 1.0)
    (tmp_path / "one.py").touch()
    (tmp_path / "other.py").touch()
    looks: list[set[str]] = []
    parent = Parent(tmp_path, DRAINS.format(folder=str(tmp_path), drains=0), reload=True)
    look = parent.supervisor._look

    def noted() -> set[str]:
        looks.append(look())
        return looks[-1]

    monkeypatch.setattr(parent.supervisor, "_look", noted)
    async with anyio.create_task_group() as group:
        group.start_soon(parent.supervisor.run)
        await until(lambda: parent.supervisor._serves.is_set(), 20)
        (tmp_path / "one.py").write_text("x = 1")
        await until(lambda: any(looks), 20)
        assert not (tmp_path / "told").exists()
        (tmp_path / "other.py").write_text("x = 1")
        await until(lambda: len(parent.begun()) == 2, 20)
        signal.raise_signal(signal.SIGTERM)
    assert sum(map(bool, looks)) == 2, looks
    assert (tmp_path / "told").read_text()[0] == "x"


async def test_a_child_that_starts_while_the_parent_is_told_is_told_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal between the decision to start a child and its start reaches it all the same."""
    parent = Parent(tmp_path, "time.sleep(60)")
    begin = asyncio.create_subprocess_exec

    async def told_first(*args: Any, **how: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        await until(lambda: parent.supervisor._stop.is_set())
        return await begin(*args, **how)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", told_first)
    with anyio.fail_after(20):
        assert await parent.supervisor.run() == 0


def test_project_files_are_the_projects(tmp_path: Path) -> None:
    """Files in environments, hidden folders and caches are not looked at."""
    for name in ("a.py", "pkg/b.py", ".git/c.py", "env/pyvenv.cfg", "env/d.py", "__pycache__/e.py", "pkg/f.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert sorted(project_files(tmp_path)) == [str(tmp_path / "a.py"), str(tmp_path / "pkg/b.py")]
