"""The command line on a real server: start, list, show, watch, explain, signal, cancel, retry; graph and check without one."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from rich.console import Console

from composer import NonRetryable, Settings, step, wait_for_event, workflow
from composer.cli.frame import frame
from composer.cli.text import one_line, printable
from tests.working import until, working

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
FLOWS = """
from composer import NonRetryable, sleep, step, wait_for_event, when, workflow

@step
async def double(n: int) -> int:
    return 2 * n

@step
async def broken(text: str) -> str:
    raise NonRetryable(text)

@workflow
def doubled(n: int) -> int:
    return double(double(n))

@workflow
def failing(text: str) -> str:
    return broken(text)

@workflow
def doubtful(n: int) -> int:
    sleep("1h")
    return wait_for_event("go", int)

@workflow
def asking(n: int) -> int:
    return wait_for_event("go", int, timeout="1d")
"""


@step
async def double(n: int) -> int:
    """Twice the number."""
    return 2 * n


@step
async def broken(text: str) -> str:
    """Fails for good."""
    raise NonRetryable(text)


@workflow
def doubled(n: int) -> int:
    """Four times the number."""
    return double(double(n))


@workflow
def failing(text: str) -> str:
    """Fails."""
    return broken(text)


@workflow
def asking(n: int) -> int:
    """Waits."""
    return wait_for_event("go", int, timeout="1d")


class Shell:
    """Runs `composer` in a folder with a module of workflows."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder, self.settings = folder, settings
        (folder / "cli_flows.py").write_text(FLOWS)

    async def __call__(self, *args: str, code: int = 0, store: bool = True, stdin: str = "") -> str:
        """What it prints. It must end with `code`."""
        where = (
            ["--database-url", str(self.settings.database_url), "--namespace", self.settings.namespace] if store else []
        )
        command = [sys.executable, "-c", "from composer.cli.main import app; app()", *args, *where]

        def run() -> subprocess.CompletedProcess[str]:
            return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, input=stdin, timeout=60)

        made = await anyio.to_thread.run_sync(run)
        assert made.returncode == code, made.stdout + made.stderr
        return made.stdout if code < 2 else made.stderr

    async def json(self, *args: str, code: int = 0, store: bool = True) -> Any:
        """The one document it prints."""
        return json.loads(await self(*args, "--json", code=code, store=store))


async def test_runs_are_started_looked_at_and_steered(database: str, namespace: str, tmp_path: Path) -> None:
    """start --follow shows every change and ends with the run; list, show, watch and explain tell of it; failures exit with 1."""
    async with working(database, namespace, [doubled, failing, asking]) as site:
        shell = Shell(tmp_path, site.settings)
        told = await shell("start", "cli_flows:doubled", "--input", '{"n": 4}', "--tag", "customer=7", "--follow")
        lines = told.splitlines()
        run_id = lines[0].split()[1]
        assert lines[0] == f"run {run_id} of workflow doubled started"
        assert [line.split()[1] for line in lines[1:]] == [
            "started", "step-started", "step-completed", "step-started", "step-completed", "run-completed",
        ]  # fmt: skip
        assert (await shell.json("runs", "show", run_id))["output"] == 16
        shown = await shell("runs", "show", run_id)
        assert "doubled completed" in shown
        assert "output: 16" in shown
        assert "step-completed" in await shell("runs", "watch", run_id)
        assert "completed at" in await shell("runs", "explain", run_id)
        again = await shell("start", "cli_flows:doubled", "--input", "-", "--key", "k", stdin='{"n": 1}')
        assert "started" in again
        assert "exists already" in await shell("start", "cli_flows:doubled", "--input", '{"n": 1}', "--key", "k")

        failed = await shell(
            "start", "cli_flows:failing", "--input", '{"text": "no\\u001b[31m way"}', "--follow", code=1
        )
        assert "\x1b" not in failed
        assert "\\x1b[31m" in failed
        bad_id = failed.split()[1]
        listed = [
            json.loads(line) for line in (await shell("runs", "list", "--status", "failed", "--json")).splitlines()
        ]
        assert [run["id"] for run in listed] == [bad_id]
        assert [
            json.loads(line)["id"]
            for line in (await shell("runs", "list", "--tag", "customer=7", "--json")).splitlines()
        ] == [run_id]
        assert "broken: it has failed" in await shell("runs", "retry", bad_id, "--dry-run")

        waiting = (await shell.json("start", "cli_flows:asking", "--input", '{"n": 1}'))["id"]
        assert "it waits for event 'go'" in await shell("runs", "explain", waiting)
        assert "taken by node go" in await shell("runs", "signal", waiting, "go", "7")
        await site.client.wait(waiting, timeout=10)
        assert await shell.json("runs", "cancel", waiting, code=1) == {"accepted": False, "status": "completed"}


async def test_what_is_wrong_is_said_without_a_traceback(database: str, namespace: str, tmp_path: Path) -> None:
    """Wrong use exits with 2 or 1, a missing database with 3, each with a sentence and no traceback."""
    settings = Settings(database_url=database, namespace=namespace)
    shell = Shell(tmp_path, settings)
    for args, code, words in (
        (("start", "cli_flows"), 2, "write module:workflow"),
        (("start", "cli_flows:doubled", "--input", "{"), 2, "--input is no JSON"),
        (("runs", "list", "--status", "faild"), 2, "did you mean 'failed'"),
        (("runs", "signal", "x", "go", "{"), 2, "the payload is no JSON"),
    ):
        assert words in await shell(*args, code=code)
    away = Shell(tmp_path, Settings(database_url="postgresql://127.0.0.1:1/x", namespace=namespace))
    assert "Traceback" not in await away("runs", "list", code=3)


async def test_graph_draws_and_check_doubts(tmp_path: Path, database: str) -> None:
    """graph prints every node with what it needs, and the plan as JSON; check names doubts with their line and exits with 1."""
    shell = Shell(tmp_path, Settings(database_url=database))
    text = await shell("graph", "cli_flows:doubled", store=False)
    assert "double-2" in text
    assert "← double" in text
    mermaid = await shell("graph", "cli_flows:doubled", "--format", "mermaid", store=False)
    assert mermaid.splitlines() == ["flowchart TD", '  n0["double"]', '  n1["double-2"]', "  n0 --> n1"]
    plan = await shell.json("graph", "cli_flows:doubled", store=False)
    assert [node["name"] for node in plan["nodes"]] == ["double", "double-2"]
    doubts = await shell("check", "cli_flows", code=1, store=False)
    assert "workflow doubled (2 nodes): good" in doubts
    assert "cli_flows.py:23" in doubts
    assert "[idle-sleep]" in doubts
    assert "[waits-for-ever]" in doubts
    found = await shell.json("check", "cli_flows", code=1, store=False)
    assert [each["code"] for each in found["workflows"]["doubtful"]] == ["waits-for-ever", "idle-sleep"]


async def test_frame_of_a_run_fits_a_terminal(database: str, namespace: str) -> None:
    """The table has a line a node with its state and what there is to say, within the width."""
    async with working(database, namespace, [doubled, failing]) as site:
        handle = await site.client.start(failing, "x" * 300)
        await site.client.wait(handle.id, timeout=10)

        async def has_ended() -> bool:
            return (await handle.get()).status == "failed"

        await until(has_ended)
        console = Console(record=True, width=100, file=io.StringIO())
        console.print(frame(await handle.get()))
        lines = console.export_text().splitlines()
    assert lines[0].startswith("failing failed")
    assert any(line.split()[:2] == ["broken", "failed"] for line in lines)
    assert "…" in "".join(lines)
    assert all(len(line) <= 100 for line in lines)


def test_text_of_users_cannot_steer_a_terminal() -> None:
    """Escapes, controls, surrogates and marks of direction are written out; other scripts and emoji stay."""
    assert printable("a\x1b[2Jb\x07\x9b\u202ec\u200f") == "a\\x1b[2Jb\\x07\\x9b\\u202ec\\u200f"
    assert printable("é 漢字 🙂\n\tx") == "é 漢字 🙂\n\tx"
    assert one_line("a\nb " + "c" * 50, 10) == "a b ccccc…"
