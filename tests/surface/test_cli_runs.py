"""The command line on a real server: start, list, show, watch, explain, signal, cancel, retry; graph and check without one."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from composer import Settings
from composer.cli.text import one_line, printable
from tests.surface.cli_flows import asking, doubled, failing
from tests.surface.shell import Shell, composer
from tests.working import working

pytestmark = pytest.mark.anyio

FLOWS = "tests.surface.cli_flows"
ROOT = Path(__file__).parents[2]
UNKNOWN = "01a23008-0000-70aa-b127-f582caace7d8"


async def test_a_run_is_started_followed_and_looked_at(database: str, namespace: str) -> None:
    """start --follow shows every change and ends with the run; list, show, watch and explain tell of it."""
    async with working(database, namespace, [doubled]) as site:
        shell = Shell(site.settings)
        told = await shell("start", f"{FLOWS}:doubled", "--input", '{"n": 4}', "--tag", "customer=7", "--follow")
        first, *lines, last = told.splitlines()
        run_id = first.split()[1]
        assert first == f"run {run_id} of workflow doubled started"
        assert [line.split()[1] for line in lines] == [
            "started", "step-started", "step-completed", "step-started", "step-completed", "run-completed",
        ]  # fmt: skip
        assert last == "output: 16"
        assert (await shell.json("runs", "show", run_id))["output"] == 16
        shown = await shell("runs", "show", run_id)
        assert "doubled completed" in shown
        assert "output: 16" in shown
        watched = (await shell("runs", "watch", run_id)).splitlines()
        assert [line.split()[1:] for line in watched] == [line.split()[1:] for line in lines]
        assert [change["event"] for change in await shell.lines("runs", "watch", run_id)] == [
            line.split()[1] for line in lines
        ]
        assert "completed at" in await shell("runs", "explain", run_id)
        assert [run["id"] for run in await shell.lines("runs", "list", "--tag", "customer=7")] == [run_id]
        assert await shell("runs", "list", "--status", "failed") == "no runs\n"
        assert (await shell.json("verify"))["violations"] == []


async def test_follow_in_json_is_an_object_a_line(database: str, namespace: str) -> None:
    """start --follow --json prints the run and then each change, and nothing else."""
    async with working(database, namespace, [doubled]) as site:
        started, *changes = await Shell(site.settings).lines(
            "start", f"{FLOWS}:doubled", "--input", '{"n": 4}', "--follow"
        )
    assert started["created"] is True
    assert [change["event"] for change in changes][-1] == "run-completed"


async def test_the_release_is_printed() -> None:
    """--version prints the distribution's version."""
    assert await Shell()("--version") == f"composer {metadata.version('composer-workflows')}\n"


async def test_a_key_starts_once_and_arguments_come_from_anywhere(
    database: str, namespace: str, tmp_path: Path
) -> None:
    """Arguments are read from standard input and from a file; the second start with a key says that the run is there."""
    shell = Shell(Settings(database_url=database, namespace=namespace))
    file = tmp_path / "input.json"
    file.write_text('{"n": 1}')
    start = ("start", f"{FLOWS}:doubled", "--key", "k", "--input")
    assert "started" in await shell(*start, "-", stdin='{"n": 1}')
    assert "exists already" in await shell(*start, f"@{file}")
    assert (await shell.json(*start, '{"n": 1}'))["created"] is False


async def test_a_failed_run_is_told_of_and_retried(database: str, namespace: str) -> None:
    """A run that fails ends --follow with 1; what its error says cannot steer the terminal; its traceback has lines."""
    async with working(database, namespace, [failing]) as site:
        shell = Shell(site.settings, COLUMNS="60")
        given = '{"text": "no\\u001b[31m way \\u009b\\u202e' + 60 * "x" + '"}'
        told = await shell("start", f"{FLOWS}:failing", "--input", given, "--follow", code=1)
        run_id = told.split()[1]
        shown = await shell("runs", "show", run_id)
        listed = await shell("runs", "list", "--status", "failed")
        for text in (told, shown, listed):
            assert r"no\x1b[31m way \x9b\u202exxx" in text.replace("\n", "").replace(" " * 36, "")
            assert not set("\x1b\x9b\u202e") & set(text)
        assert all(len(line) <= 60 for line in shown.splitlines())
        assert "\nTraceback (most recent call last):\n" in shown
        assert "\n    raise NonRetryable(text)\n" in shown
        # Not in a terminal: a line a run, whole.
        assert [line.split()[0] for line in listed.splitlines()] == ["run", run_id]
        assert "broken: it has failed" in await shell("runs", "retry", run_id, "--dry-run")
        assert (await shell.json("runs", "retry", run_id))["dry_run"] is False


async def test_a_waiting_run_is_explained_signalled_and_cancelled(database: str, namespace: str) -> None:
    """explain says what a run waits for, a signal is taken by its node, a cancel is safe to repeat and may come too late."""
    async with working(database, namespace, [asking]) as site:
        shell = Shell(site.settings)
        first, second = [(await shell.json("start", f"{FLOWS}:asking", "--input", '{"n": 1}'))["id"] for _ in range(2)]
        assert "it waits for event 'go'" in await shell("runs", "explain", first)
        assert "taken by node go" in await shell("runs", "signal", first, "go", "7")
        await site.client.wait(first, timeout=10)
        assert await shell.json("runs", "cancel", first, code=1) == {"accepted": False, "status": "completed"}
        assert await shell("runs", "cancel", second) == "the run is cancelled\n"
        assert await shell("runs", "cancel", second) == "the run is cancelled\n"
        assert await shell("runs", "release", second, code=1) == "the run was not quarantined\n"


async def test_show_has_an_output_that_is_nothing_much(database: str, namespace: str) -> None:
    """An output such as 0 is an output."""
    async with working(database, namespace, [asking]) as site:
        shell = Shell(site.settings)
        run_id = (await shell.json("start", f"{FLOWS}:asking", "--input", '{"n": 1}'))["id"]
        await shell("runs", "signal", run_id, "go", "0")
        await site.client.wait(run_id, timeout=10)
        assert "output: 0\n" in await shell("runs", "show", run_id)


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("start", FLOWS), 2, "write module:workflow"), (("start", f"{FLOWS}:doubld"), 2, "Did you mean 'doubled'"),
        (("start", f"{FLOWS}:doubled", "--input", "{"), 2, "--input is no JSON"),
        (("start", f"{FLOWS}:doubled", "--input", "@nowhere.json"), 2, "nowhere.json: No such file"),
        (("start", f"{FLOWS}:doubled", "--input", "[1]"), 2, "JSON object"),
        (("start", f"{FLOWS}:doubled", "--input", "[" * 100_000), 2, "nested too deeply"),
        (("start", f"{FLOWS}:doubled", "--input", '{"n": "x"}'), 2, "n does not fit"), (("start", f"{FLOWS}:doubled", "--input", '{"m": 1}'), 2, "m"),
        (("start", f"{FLOWS}:doubled", "--tag", "x"), 2, "name=value"), (("start", f"{FLOWS}:doubled", "--tag", "=x"), 2, "name=value"),
        (("start", f"{FLOWS}:doubled", "--input", '{"n": 1}', "--delay", "5 parsecs"), 2, "5 parsecs"),
        (("start", f"{FLOWS}:doubled", "--input", '{"n": 1}', "--priority", "500"), 2, "500"),
        (("runs", "list", "--status", "faild"), 2, "did you mean 'failed'"), (("runs", "list", "--limit", "0"), 2, "--limit"),
        (("runs", "signal", "x", "go", "{"), 2, "the payload is no JSON"), (("runs", "signal", "x", "go", "[" * 100_000), 2, "nested too deeply"),
        *((("runs", command, UNKNOWN), 1, f"run {UNKNOWN} does not exist") for command in ("show", "watch", "explain", "cancel", "retry", "release")),
        (("runs", "signal", UNKNOWN, "go"), 1, f"run {UNKNOWN} does not exist"), (("runs", "show", "x\x1b[31m"), 1, r"run x\x1b[31m does not exist"),
        (("graph", f"{FLOWS}:doubled", "--run", UNKNOWN), 1, f"run {UNKNOWN} does not exist"),
    ],
)  # fmt: skip
async def test_what_is_wrong_is_said_in_a_sentence(
    database: str, namespace: str, args: tuple[str, ...], code: int, words: str
) -> None:
    """Wrong use exits with 2, what is not there with 1, each with a sentence and no traceback; nothing is started."""
    shell = Shell(Settings(database_url=database, namespace=namespace))
    said = await shell(*args, code=code)
    assert words in said
    assert "\x1b" not in said
    assert await shell.lines("runs", "list") == []


async def test_a_missing_database_is_three(namespace: str) -> None:
    """Where no server answers, the exit code says so."""
    away = Shell(Settings(database_url="postgresql://127.0.0.1:1/x", namespace=namespace))
    assert (await away.json("runs", "list", code=3))["error"]["code"] == "store-unavailable"


async def test_the_drawing_of_a_run_is_of_its_workflow(database: str, namespace: str) -> None:
    """graph --run has the states of the run's nodes, and refuses a run of another workflow."""
    async with working(database, namespace, [doubled]) as site:
        shell = Shell(site.settings)
        handle = await site.client.start(doubled, 1)
        await handle.result(timeout=10)
        assert "double-2  completed" in await shell("graph", f"{FLOWS}:doubled", "--run", handle.id)
        said = await shell("graph", f"{FLOWS}:again", "--run", handle.id, code=2)
        assert f"run {handle.id} is of workflow doubled, not of again" in said


async def test_graph_draws_and_check_doubts() -> None:
    """graph prints every node with what it needs, and the plan as JSON; check names doubts with their line and exits with 1."""
    shell = Shell()
    text = await shell("graph", f"{FLOWS}:doubled")
    assert "double-2" in text
    assert "← double" in text
    mermaid = await shell("graph", f"{FLOWS}:doubled", "--format", "mermaid")
    assert mermaid.splitlines() == ["flowchart TD", '  n0["double"]', '  n1["double-2"]', "  n0 --> n1"]
    plan = await shell.json("graph", f"{FLOWS}:doubled")
    assert [node["name"] for node in plan["nodes"]] == ["double", "double-2"]
    doubts = await shell("check", FLOWS, code=1)
    assert "workflow doubled (2 nodes): good" in doubts
    line = 1 + (ROOT / "tests/surface/cli_flows.py").read_text().splitlines().index('    sleep("1h")')
    assert f"cli_flows.py:{line}" in doubts
    assert "[idle-sleep]" in doubts
    assert "[waits-for-ever]" in doubts
    found = await shell.json("check", FLOWS, code=1)
    assert [each["code"] for each in found["workflows"]["doubtful"]] == ["waits-for-ever", "idle-sleep"]


def test_the_command_is_installed_and_says_the_same(database: str, namespace: str) -> None:
    """In a process of its own a command reads the environment, prints and exits as it does here."""
    done = composer("runs", "show", UNKNOWN, folder=ROOT, COMPOSER_DATABASE_URL=database, COMPOSER_NAMESPACE=namespace)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"composer: run {UNKNOWN} does not exist in namespace '{namespace}'\n")


def test_text_of_users_cannot_steer_a_terminal() -> None:
    """Escapes, controls, surrogates, line separators and marks of direction are written out; other scripts and emoji stay."""
    assert printable("a\x1b[2Jb\x07\x9b\u202ec\u200f\u2028") == "a\\x1b[2Jb\\x07\\x9b\\u202ec\\u200f\\u2028"
    assert printable("é 漢字 🙂\n\tx") == "é 漢字 🙂\n\tx"
    assert one_line("a\nb " + "c" * 50, 10) == "a b ccccc…"
