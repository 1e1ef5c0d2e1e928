"""What docs/cli.md shows is what the commands print: each block with an output is compared with a real one."""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from composer import Settings
from tests.surface.shell import COMPOSER, Shell, composer
from tests.surface.terminal import Terminal
from tests.system.processes import Process
from tests.working import until

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
WIDTH = 100
_CONSOLE = re.compile(r"^```console\n\$ composer (.*)\n((?:(?!```|\$ ).*\n)+)```$", re.MULTILINE)


def shown() -> dict[str, tuple[list[str], str]]:
    """The commands of the page that are shown with their output, by name: the words after `composer`, the output."""
    found: dict[str, tuple[list[str], str]] = {}
    for command, output in _CONSOLE.findall((ROOT / "docs/cli.md").read_text("utf-8")):
        words = shlex.split(command)
        found[" ".join(words[: 2 if words[0] == "runs" else 1])] = (words, output)
    return found


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the page's project where a path is short, so that lines which name one are folded as on the page: not."""
    # For the samples, one of which is among its workflows.
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    folder = Path(tempfile.mkdtemp(prefix="cli-", dir="/tmp")).resolve()
    shutil.copytree(ROOT / "tests/surface/pages", folder, dirs_exist_ok=True)
    yield folder
    shutil.rmtree(folder)


def plain(text: str) -> str:
    """The text without what differs from one run to the next: ids, moments, durations, counts of a map, and space for them."""
    for pattern, instead in (
        (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "RUN"), (r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d(\.\d+)?( UTC|\+00:00)", "MOMENT"),
        (r"\d+\.\d+ s\b", "TIME"), (r"\d[\d,]* of (?=\d+ items)", "SOME of "), ("─+", "─"), (" {2,}", "  "), (r"(?m)\s+$", ""),
    ):  # fmt: skip
        text = re.sub(pattern, instead, text)
    return text.strip()


SHOWN = shown()


def test_every_output_of_the_page_is_compared() -> None:
    """The tests below compare all that the page shows a command to print."""
    assert SHOWN.keys() == {"graph", "check", "start", "runs show", "runs explain"}
    assert "```text" not in (ROOT / "docs/cli.md").read_text("utf-8")


@pytest.mark.parametrize(("name", "code"), [("graph", 0), ("check", 1)])
def test_what_needs_no_database_is_printed(project: Path, name: str, code: int) -> None:
    """graph and check print what the page shows."""
    words, output = SHOWN[name]
    done = composer(*words, folder=project)
    assert (plain(done.stdout.replace(str(project), "")), done.stderr) == (plain(output), "")
    assert done.returncode == code


async def test_a_run_is_shown_as_it_goes_on(
    project: Path, database: str, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """start --follow draws the page's picture on its way; then runs show and runs explain print what stands there."""
    goes_on = tmp_path / "goes-on"
    monkeypatch.setenv("GALLERY_GOES_ON", str(goes_on))
    where = ("--database-url", database, "--namespace", namespace)
    worker = Process(
        "composer.worker", "app.flows", *where, ledger=tmp_path / "ledger", log=tmp_path / "log", folder=project
    )
    shell = Shell(Settings(database_url=database, namespace=namespace), COLUMNS=str(WIDTH))
    words, output = SHOWN["start"]
    wanted = plain(output)
    try:
        await until(lambda: "worker " in worker.log.read_text(), 30)
        with Terminal([*COMPOSER, *words, *where], folder=project, width=WIDTH) as terminal:
            await anyio.to_thread.run_sync(
                terminal.until, lambda _: wanted in (plain(frame) for frame in terminal.frames)
            )
            run_id = terminal.frames[-1].split()[1]
            terminal.popen.send_signal(signal.SIGINT)
            assert terminal.ended() == 130
        goes_on.touch()
        for name in ("runs show", "runs explain"):
            wanted = plain(SHOWN[name][1])
            last = ""

            async def is_printed(name: str = name, wanted: str = wanted) -> bool:
                nonlocal last
                last = plain((await shell(*name.split(), run_id)).replace(str(project), ""))
                return last == wanted

            with contextlib.suppress(TimeoutError):
                await until(is_printed, 20)
            assert last == wanted
    finally:
        worker.close()
