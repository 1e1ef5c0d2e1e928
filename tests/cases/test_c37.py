"""C37: fifty starts with one key at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from composer import AsyncClient, IdempotencyConflict
from tests.cases.starts_c37 import STARTS, Answer
from tests.servers import query
from tests.system import flows
from tests.system.fixtures import clean
from tests.system.processes import ROOT, Yard

pytestmark = pytest.mark.anyio

PROCESSES = 10
KEY = "order-7"


@pytest.fixture
def starters(database: str, namespace: str, tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Ten processes, by turns with tasks and with threads; each waits for its word."""
    environment = {**os.environ, "COMPOSER_DATABASE_URL": database, "COMPOSER_NAMESPACE": namespace}
    with (tmp_path / "complaints").open("w") as complaints:
        made = [
            subprocess.Popen(
                [sys.executable, "-W", "always", "-W", "ignore::DeprecationWarning", "-m", "tests.cases.starts_c37", KEY, how],
                cwd=ROOT, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints,
            )
            for how in ("async", "threads") * (PROCESSES // 2)
        ]  # fmt: skip
        yield made
        for process in made:
            process.kill()
            process.communicate()


def answers(starters: list[subprocess.Popen[str]]) -> list[Answer]:
    """What all of them got, once all were open and were told to start in one moment."""
    for process in starters:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
    for process in starters:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    found: list[Answer] = []
    for process in starters:
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        found += [tuple(each) for each in json.loads(out)]
    return found


async def test_fifty_starts_with_one_key_make_one_run(
    database: str,
    namespace: str,
    site: Yard,
    client: AsyncClient,
    starters: list[subprocess.Popen[str]],
    tmp_path: Path,
) -> None:
    """Ten processes start a run of three seconds five times each at once: one run, made by one of them, whose steps run once;
    every caller gets its id and its result and nobody an error; a start after its end finds it, with another input none."""
    site.worker()
    found = await anyio.to_thread.run_sync(answers, starters)
    assert (tmp_path / "complaints").read_text() == ""
    assert len(found) == PROCESSES * STARTS
    (run_id,) = {each[0] for each in found}
    assert [each[1] for each in found].count(True) == 1
    assert {each[2] for each in found} == {4}
    rows = await query(database, f"select id::text, status from composer.runs where namespace = '{namespace}'")
    assert [(row["id"], row["status"]) for row in rows] == [(run_id, "completed")]
    assert site.starts() == {"quick": 1, "naps": 1, "quick-2": 1}

    late = await client.start(flows.napping, 1, 3.0, idempotency_key=KEY)
    assert (late.id, late.created, await late.result(timeout=5)) == (run_id, False, 4)
    with pytest.raises(IdempotencyConflict) as caught:
        await client.start(flows.napping, 2, 3.0, idempotency_key=KEY)
    assert caught.value.run_id == run_id
    assert len(site.entries(phase="start")) == 3, "nothing ran again"
    assert await clean(client)
