"""What both type checkers must say, and must not say, about a user's workflows.

bad.py has one mistake a line, marked with the checkers that find it; good.py and names.py have none. Each checker runs once
for all.
"""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
GOOD, NAMES, BAD = HERE / "good.py", HERE / "names.py", HERE / "bad.py"
CHECKERS = ("mypy", "pyright")

Lines = set[tuple[str, int]]


def marked(checker: str) -> Lines:
    """Lines of bad.py that the checker has to flag."""
    found: Lines = set()
    for number, line in enumerate(BAD.read_text(encoding="utf-8").splitlines(), 1):
        mark = re.search(r"# E: ([a-z ]+)$", line)
        if mark and checker in mark[1].split():
            found.add((BAD.name, number))
    return found


def run(*command: str) -> str:
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src"), "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def mypy(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], str]:
    cache = tmp_path_factory.mktemp("mypy")
    out = run("mypy", "--strict", "--output=json", f"--cache-dir={cache}", str(GOOD), str(NAMES), str(BAD))
    messages = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return {
        (Path(each["file"]).name, each["line"]): each["message"] for each in messages if each["severity"] == "error"
    }


@pytest.fixture(scope="module")
def pyright() -> dict[tuple[str, int], str]:
    out = run("pyright", "--outputjson", "--pythonpath", sys.executable, str(GOOD), str(NAMES), str(BAD))
    messages = json.loads(out)["generalDiagnostics"]
    return {
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1): each["message"]
        for each in messages
        if each["severity"] == "error"
    }


@pytest.mark.parametrize("module", ["composer", "composer.testing", "composer.draw"])
def test_every_public_name_is_checked(module: str) -> None:
    """What a user can import is used in good.py or names.py."""
    used = set(re.findall(r"\w+", GOOD.read_text(encoding="utf-8") + NAMES.read_text(encoding="utf-8")))
    assert set(importlib.import_module(module).__all__) - used == set()


@pytest.mark.parametrize("checker", CHECKERS)
def test_every_mistake_is_flagged_and_nothing_else(checker: str, request: pytest.FixtureRequest) -> None:
    flagged: dict[tuple[str, int], str] = request.getfixturevalue(checker)
    surplus = {place: text for place, text in flagged.items() if place not in marked(checker)}
    assert not surplus
    assert marked(checker) - set(flagged) == set()
    assert len(flagged) >= 50
