"""A small seeded run of `make torture`: real processes, real faults, the whole verdict."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def _tortured(*arguments: str, timeout: float) -> tuple[int, dict[str, Any], str]:
    """Exit code, report and all of the output of `python -m tests.torture`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.torture", *arguments],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.terminate()  # it cleans up after itself
        output, _ = process.communicate(timeout=30)
        pytest.fail(f"the torture did not end within {timeout:g} s:\n{output[-4000:]}")
    last = output.rstrip().splitlines()[-1]
    assert last.startswith("{"), output[-4000:]
    return process.returncode, json.loads(last), output


def test_a_small_seeded_torture_ends_every_run_as_the_interpreter_says() -> None:
    """After kills, stops, crashes of the server and cut commits, every run has ended with the predicted values."""
    code, report, output = _tortured("--seed", "20", "--runs", "80", "--seconds", "15", "--heal", "30", timeout=90)
    assert report["violations"] == 0 and report["floors_missed"] == [] and code == 0, output[-4000:]
    assert report["runs"] >= 72 and report["executions"] > report["runs"]
    assert sum(report["statuses"].values()) == report["runs"]
    assert set(report["statuses"]) <= {"completed", "failed", "cancelled"}
    for fault in ("kill_worker", "kill_coordinator", "stop_worker", "crash_database"):
        assert report["faults"][fault] >= 1
    assert report["commit_cuts"]["before"] >= 5 and report["commit_cuts"]["after"] >= 5
    assert report["deadlocks"] == 0


def test_a_torture_that_came_to_nothing_is_not_green() -> None:
    """Without runs and without faults nothing is violated, and the exit code is 1 all the same."""
    code, report, output = _tortured("--seed", "20", "--runs", "0", "--no-faults", "--seconds", "1", timeout=60)
    assert report["violations"] == 0, output[-4000:]
    assert report["floors_missed"] and code == 1
