"""What all commands share: exit codes, --debug, JSON that a terminal cannot be steered by, pipes that close; and check."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from composer.cli.frame import frame, listed
from composer.cli.output import json_text, told
from composer.client.listing import RunSummary
from composer.client.views import MapProgress, NodeView, RunView
from composer.errors import ComposerError, QueryError, SettingsError, StoreUnavailable
from tests.surface.shell import COMPOSER, composer
from tests.surface.terminal import Terminal

GOOD = """
from composer import step, workflow

@step
async def double(n: int) -> int:
    return 2 * n

@workflow
def {name}(n: int) -> int:
    return double(n)
"""


def raising(error: BaseException) -> typer.Typer:
    """A command that raises it."""

    def command(as_json: bool = typer.Option(False, "--json")) -> None:
        raise error

    made = typer.Typer(pretty_exceptions_enable=False)
    made.command()(told(command))
    return made


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ComposerError("bad news"), 1), (SettingsError("wrong"), 2), (QueryError("wrong"), 2), (StoreUnavailable("away"), 3),
        (KeyboardInterrupt(), 130),
    ],
)  # fmt: skip
def test_each_error_has_its_exit_code_and_no_traceback(error: BaseException, code: int) -> None:
    """Errors end a command with a sentence on stderr and the code of the table; Ctrl-C with 130 and no word."""
    done = CliRunner().invoke(raising(error))
    assert done.exit_code == code
    assert done.stdout == ""
    assert done.stderr == ("" if code == 130 else f"composer: {error}\n")


def test_debug_shows_where_an_error_comes_from() -> None:
    """With --debug the traceback comes before the sentence; control characters in it are written out."""
    done = CliRunner().invoke(raising(ComposerError("red\x1b[31m")), ["--debug"])
    assert done.exit_code == 1
    assert "Traceback" in done.stderr
    assert "test_cli_output.py" in done.stderr
    assert "\x1b" not in done.stderr
    assert done.stderr.endswith("composer: red\\x1b[31m\n")


def test_json_errors_are_json_on_stderr() -> None:
    """With --json an error is one JSON document with its code, and stdout stays empty."""
    done = CliRunner().invoke(raising(SettingsError("wrong")), ["--json"])
    assert json.loads(done.stderr) == {"error": {"code": "settings-error", "message": "wrong"}}
    assert done.stdout == ""
    assert done.exit_code == 2


def test_json_is_one_line_that_reads_back() -> None:
    """Escapes, DEL, C1 controls, marks of direction, line separators and surrogates are escaped; all else stays readable."""
    value = {"text": "a\x1b\x7f\x9b\u202e\u2028\ud800\U000e0041 é漢🙂\n", "at": datetime(2026, 1, 2, tzinfo=UTC)}
    text = json_text(value)
    assert json.loads(text) == {**value, "at": "2026-01-02T00:00:00+00:00"}
    assert all(c.isprintable() for c in text)
    assert "é漢🙂" in text


def modules(folder: Path, **texts: str) -> Path:
    """A folder with these modules."""
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def test_check_tells_every_broken_module_with_its_line(tmp_path: Path) -> None:
    """A wrong workflow, a module that cannot be read and a missing one are all told; the good one is checked all the same."""
    folder = modules(
        tmp_path, good=GOOD.format(name="fine"), wrong=GOOD.format(name="odd").replace("double(n)\n", "double(n) if n else 0\n"),
        unreadable="x = 1\ndef (:\n",
    )  # fmt: skip
    done = composer("check", "good", "wrong", "unreadable", "missing", folder=folder)
    assert done.returncode == 2
    assert "workflow fine (1 node): good" in done.stdout
    assert "wrong.py:10" in done.stdout
    assert "[plan-error]" in done.stdout
    assert f"{folder}/unreadable.py:2: error in unreadable" in done.stdout
    assert "there is no module 'missing'" in done.stdout
    assert done.stderr == ""
    only = composer("check", "good", "wrong", "--json", folder=folder)
    found = json.loads(only.stdout)
    assert only.returncode == 1
    assert found["workflows"] == {"fine": []}
    assert [(each["module"], each["code"]) for each in found["errors"]] == [("wrong", "plan-error")]
    assert found["errors"][0]["where"] == f"{folder}/wrong.py:10"


def test_check_tells_what_modules_cannot_be_together(tmp_path: Path) -> None:
    """Two modules that define a workflow of one name are good each by itself and refused together."""
    folder = modules(tmp_path, one=GOOD.format(name="same"), two=GOOD.format(name="same"))
    assert composer("check", "one", folder=folder).returncode == 0
    together = composer("check", "one", "two", folder=folder)
    assert together.returncode == 1
    assert "two workflows are named 'same'" in together.stdout


def test_check_takes_the_projects_modules(tmp_path: Path) -> None:
    """Without a name the modules of pyproject.toml are checked, from a folder below too."""
    modules(tmp_path, good=GOOD.format(name="fine"))
    (tmp_path / "pyproject.toml").write_text('[tool.composer]\nmodules = ["good"]\n')
    (tmp_path / "below").mkdir()
    done = composer("check", folder=tmp_path / "below")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "workflow fine (1 node): good\n"


def test_terminals_that_lack_characters_get_them_written_out(tmp_path: Path) -> None:
    """With an encoding that has no arrows, graph prints all the same."""
    done = composer(
        "graph", "good:fine", folder=modules(tmp_path, good=GOOD.format(name="fine")), PYTHONIOENCODING="latin-1"
    )
    assert done.returncode == 0, done.stderr
    assert "\\u25a0 double" in done.stdout


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    """When what reads the output closes it, the command ends with 0 and says nothing."""
    folder = modules(tmp_path, good=GOOD.format(name="fine"))
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        done = subprocess.run(
            [*COMPOSER, "graph", "good:fine"], cwd=folder, stdout=closed, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)


def run_of(*nodes: NodeView, **facts: Any) -> RunView:
    """A run with these nodes."""
    given: dict[str, Any] = {
        "id": "r", "workflow": "flow", "status": "running", "namespace": "default", "priority": 0, "tags": {}, "input": None,
        "output": None, "error": None, "quarantine": None, "nodes": nodes, "created_at": NOW - timedelta(seconds=75), "updated_at": NOW,
        "finished_at": None, "starts_at": None, "deadline_at": None,
    }  # fmt: skip
    return RunView(**(given | facts))


def shown(run: RunView, width: int = 100, **how: Any) -> list[str]:
    """The lines of its table."""
    console = Console(record=True, width=width, file=open(os.devnull, "w"))  # noqa: SIM115
    with console.file:
        console.print(frame(run, now=NOW, **how))
    return console.export_text().splitlines()


def test_time_of_what_goes_on_goes_on() -> None:
    """A running node and an open run show how long they have taken up to now, a clock that lags shows no negative time."""
    lines = shown(
        run_of(
            NodeView(
                "a",
                "leased",
                "a",
                attempt=2,
                started_at=NOW - timedelta(seconds=12.34),
                error={"type": "E", "message": "m"},
            ),
            NodeView("b", "ready", "b", attempt=1, started_at=NOW - timedelta(seconds=5)),
            NodeView("c", "mapping", "c", started_at=NOW + timedelta(seconds=1), items=MapProgress(2000, 1500, 3, 0)),
        )
    )
    assert lines[0].rstrip() == "flow running  0/3 nodes  1 min 15 s  r"
    rows = {line.split()[0]: line for line in lines[1:] if line.strip()}
    assert "12.3 s" in rows["a"]
    assert "E: m" in rows["a"]
    assert " s " not in rows["b"]
    assert "0.00 s" in rows["c"]
    assert "1,500 of 2,000 items, 3 failed" in rows["c"]


def test_a_wide_run_fits_the_screen() -> None:
    """Of many nodes those that failed and go on are shown, in the plan's order, and the others counted."""
    states = ["completed"] * 40 + ["failed"] + ["blocked"] * 40 + ["leased"]
    lines = shown(run_of(*(NodeView(f"n{i}", state, "s") for i, state in enumerate(states))), most=5)
    rows = [line.split()[0] for line in lines[4:] if line.strip()]
    assert len(rows) == 6
    assert rows.index("n40") < rows.index("n81")
    assert lines[0].startswith("flow running  41/82 nodes")
    assert any("and 77 more" in line and "40 blocked, 37 completed" in line for line in lines)


def test_on_a_screen_a_node_is_a_line() -> None:
    """On a narrow screen a frame is as high as it has nodes, with states whole; elsewhere it is folded and keeps every word."""
    error = {"type": "ConnectionError", "message": "nobody answers at " + "x" * 40}
    soon = NOW + timedelta(seconds=30)
    run = run_of(NodeView("reserve-a-place", "delayed", "s", attempt=2, error=error, next_attempt_at=soon), id="i" * 36)
    cut = shown(run, width=60, most=9)
    assert [line[0:1] for line in cut if line.strip()] == ["f", " ", " ", " "]
    assert all(len(line) <= 60 for line in cut)
    assert "reserve-a-place   delayed" in cut[4]
    whole = "".join("".join(shown(run, width=60)).split())
    assert "x" * 40 in whole
    assert "delayed" in whole
    assert "i" * 36 in whole


def test_a_long_name_gives_way_to_its_state() -> None:
    """Where there is room for one of them only, a name is cut, and not what became of it."""
    run = run_of(
        NodeView("left-hand-side-with-a-long-name", "completed", "s", attempt=1, started_at=NOW, finished_at=NOW)
    )
    (row,) = [line for line in shown(run, width=60, most=9) if line.startswith(" left")]
    assert "…" in row
    assert row.split()[1:] == ["completed", "1", "0.00", "s"]


def test_a_small_table_does_not_fold_its_heading() -> None:
    """However narrow the table, what stands above it takes the width of the terminal."""
    assert shown(run_of(NodeView("a", "ready", "a"), id="i" * 36))[0].rstrip().endswith("i" * 36)


def summary(**facts: Any) -> RunSummary:
    """A line of a list."""
    given: dict[str, Any] = {
        "id": "i" * 36, "workflow": "flow", "status": "failed", "priority": 0, "tags": {}, "created_at": NOW, "finished_at": NOW,
        "error_code": "node-failed", "error_message": "E: " + "x" * 90, "quarantine": None, "nodes_settled": 1, "nodes_total": 2,
    }  # fmt: skip
    return RunSummary(**(given | facts))


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_list_fits_its_terminal(width: int) -> None:
    """No line is wider than the terminal, ids and statuses are whole, and an error has a line of its own."""
    lines = [line.plain for line in listed([summary(), summary(error_code=None, status="running")], width)]
    assert all(len(line) <= width for line in lines)
    assert [line.split()[0] for line in lines] == ["run", "i" * 36, "node-failed:", "i" * 36]
    assert lines[1].split()[1:3] == ["flow", "failed"]
    assert ("created" in lines[0]) is (width == 100)


def test_follow_in_a_terminal_redraws_and_ctrl_c_leaves_the_run(tmp_path: Path, database: str, namespace: str) -> None:
    """start --follow draws a table in a terminal; Ctrl-C ends it with 130, says that the run goes on, and it does."""
    folder = modules(tmp_path, good=GOOD.format(name="fine"))
    where = ("--database-url", database, "--namespace", namespace)
    command = [*COMPOSER, "start", "good:fine", "--input", '{"n": 1}', "--follow", *where]
    with Terminal(command, folder=folder, environment={"NO_COLOR": "1"}) as terminal:
        # No worker: the node stays ready, and the frame is drawn again and again.
        terminal.until(lambda seen: seen.count("ready") >= 2)
        terminal.popen.send_signal(signal.SIGINT)
        assert terminal.ended() == 130
        seen = terminal.seen
    run_id = seen.split("run ", 1)[1].split()[0]
    assert "0/1 nodes" in seen
    assert f"the run goes on: composer runs watch {run_id}" in seen
    assert "\x1b[3" not in seen  # no colour
    assert "Traceback" not in seen
    shown_run = json.loads(composer("runs", "show", run_id, "--json", *where, folder=folder).stdout)
    assert shown_run["status"] == "running"
