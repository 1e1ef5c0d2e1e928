"""What docs/cli.md shows is what the tool prints: commands are run, and ids, times, durations and widths left out of the comparison."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.surface import docs_flows
from tests.surface.docs_flows import HELD, gallery
from tests.surface.shell import COMPOSER, Shell, composer
from tests.surface.terminal import Terminal
from tests.surface.test_docs import BLOCKS, ROOT
from tests.working import until, working

pytestmark = pytest.mark.anyio

GRAPH, CHECK, FOLLOW, SHOW, EXPLAIN = [block for block in BLOCKS[ROOT / "docs/cli.md"] if block.language == "text"]
WIDTH = 100

FLOWS = """\
from composer import sleep, step, wait_for_event, workflow


@step
async def double(n: int) -> int:
    return 2 * n


@workflow
def doubled(n: int) -> int:
    return double(double(n))


@workflow
def doubtful(n: int) -> int:
    sleep("1h")
    return wait_for_event("go", int)
"""
MORE = """\
from app.flows import double
from composer import workflow


@workflow
def odd(n: int) -> int:
    d = double(n)
    return double(d) if d else d
"""


def essence(text: str) -> list[str]:
    """The lines without what differs from run to run."""
    for pattern, word in (
        (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID"), (r"\d{4}-\d\d-\d\d", "DATE"), (r"\d\d:\d\d:\d\d", "TIME"),
        (r"\d+\.\d+ s\b", "DURATION"), (r"─+", "─"), (r"\bline \d+", "line N"), (r"[ \t]+", " "),
    ):  # fmt: skip
        text = re.sub(pattern, word, text)
    return [line.strip() for line in text.strip().splitlines() if line.strip()]


def test_graph_is_as_shown() -> None:
    """The workflow of a sample, drawn."""
    done = composer("graph", "samples.approval.workflow:approval", folder=ROOT)
    assert done.stdout == GRAPH.text, done.stdout + done.stderr


def test_check_is_as_shown(tmp_path: Path) -> None:
    """A good workflow, a doubtful one and a broken one."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app/flows.py").write_text(FLOWS)
    (tmp_path / "app/more.py").write_text(MORE)
    done = composer("check", "app.flows", "app.more", folder=tmp_path)
    said = done.stdout.replace(str(tmp_path), "")
    assert said == CHECK.text, said + done.stderr


async def test_a_run_is_as_shown(database: str, namespace: str) -> None:
    """A run in the middle of its work, followed in a terminal; and one of which a step has failed, shown and explained."""
    HELD.passing = 107
    where = ("--database-url", database, "--namespace", namespace)
    start = ("start", f"{docs_flows.__name__}:gallery", "--input")

    async with working(database, namespace, [gallery], concurrency=300) as site:
        command = [*COMPOSER, *start, '{"folder": "holidays"}', "--follow", *where]
        with Terminal(command, folder=ROOT, width=WIDTH) as terminal:
            picture: list[str] = []

            def is_drawn() -> bool:
                terminal.poll()
                # The last one may be drawn in part.
                frames = terminal.words.split("gallery running")[1:-1]
                found = [each for each in frames if "107 of 240" in each and re.search(r"reserve +delayed +3 ", each)]
                picture[:] = found[-1:]
                return bool(found)

            await until(is_drawn, 60)
        followed = "gallery running" + picture[0]
        assert essence(followed) == essence(FOLLOW.text), followed

        HELD.passing = 240
        shell = Shell(site.settings, COLUMNS=str(WIDTH))
        run_id = (await shell.json(*start, '{"folder": "a wedding"}'))["id"]

        async def is_still() -> bool:
            states = {node.name: node.state for node in (await site.client.get(run_id)).nodes}
            return states["reserve"] == "failed" and states["resize"] == "completed"

        await until(is_still, 60)
        shown = (await shell("runs", "show", run_id)).replace(str(docs_flows.__file__), "/app/gallery.py")
        assert essence(shown) == essence(SHOW.text), shown
        explained = await shell("runs", "explain", run_id)
        assert essence(explained) == essence(EXPLAIN.text), explained
