"""The sample `approval`: in virtual time, and on the embedded server as its readers run it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from composer.testing import Later, run_workflow
from samples.approval.workflow import MANAGER, REVIEWER, Decision, Document, Verdict, approval

pytestmark = pytest.mark.anyio

DOCUMENT = Document("Budget", author="ann", reviewer="rob", manager="mia")
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("signals", "verdict", "took"),
    [
        ({REVIEWER: Later("1h", Decision(True, "rob", "fine"))}, Verdict("Budget", True, "rob", "fine"), "1h"),
        ({REVIEWER: Later("47h", Decision(False, "rob", "no"))}, Verdict("Budget", False, "rob", "no"), "47h"),
        ({MANAGER: Later("50h", Decision(True, "mia"))}, Verdict("Budget", True, "mia", ""), "50h"),
        ({REVIEWER: Later("49h", Decision(True, "rob"))}, Verdict("Budget", False, "nobody", "nobody answered in time"), "72h"),
        ({}, Verdict("Budget", False, "nobody", "nobody answered in time"), "72h"),
    ],
    ids=["reviewer in time", "reviewer says no", "manager", "reviewer too late", "nobody"],
)  # fmt: skip
async def test_document_waits_and_goes_up_the_line(signals: dict[str, Any], verdict: Verdict, took: str) -> None:
    """Whoever answers in time decides; two days go to the reviewer, one more to the manager, then it is turned down."""
    result = await run_workflow(approval, DOCUMENT, signals=signals)
    assert result.value == verdict
    assert abs(result.elapsed - timedelta(hours=int(took.removesuffix("h")))) < timedelta(seconds=1)
    assert (result.ran("ask"), result.ran("publish") + result.ran("turn_down")) == (1, 1)
    assert result.ran("ask-manager") == (0 if took in ("1h", "47h") else 1)


def test_sample_runs_on_the_embedded_server() -> None:
    """`python -m samples.approval` starts a server, escalates when the reviewer is silent, and publishes on the manager's word."""
    with tempfile.TemporaryDirectory(prefix="ca-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o755)
        env = {**os.environ, "COMPOSER_HOME": f"{folder}/pg"}
        env.pop("COMPOSER_DATABASE_URL", None)
        made = subprocess.run(
            [sys.executable, "-m", "samples.approval"], cwd=ROOT, env=env, capture_output=True, text=True, timeout=90
        )
    assert made.returncode == 0, made.stderr
    lines = made.stdout.splitlines()
    assert lines[-2:] == [
        "rob gave no answer; now it waits for mia", "'Budget 2027' was published by mia",
    ]  # fmt: skip
