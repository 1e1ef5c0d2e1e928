"""The documentation does what it says: its code runs, its commands exist, and it names everything that is public.

Python blocks of a page run in the page's order, in one module, against a real embedded server; while a block runs, a
worker serves the workflows of the blocks above it. A comment right above a block says more about it, where neither
mkdocs nor GitHub show it:

    fragment     not complete by itself: only compiled
    file=NAME    a file the reader is told to save: run by the page's own commands, in a test of its own
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import anyio
import pytest
import typer.main

import composer
from composer import Settings, Step, Worker, Workflow
from composer.cli.main import app, coordinator_app, worker_app
from composer.settings import ENVIRONMENT

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/errors").glob("*.md"))]
PROSE = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs/internals").rglob("*.md"))]


class Block(NamedTuple):
    """A fenced block of a page; `line` is that of its first line of code."""

    page: Path
    line: int
    language: str
    words: list[str]
    text: str

    def compiled(self) -> Any:
        """Code whose tracebacks name the page and its line."""
        # A fragment may await outside of a function, as a cell of a notebook does.
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if "fragment" in self.words else 0
        return compile("\n" * (self.line - 1) + self.text, str(self.page), "exec", flags, dont_inherit=True)


def blocks_of(page: Path) -> list[Block]:
    """Every fenced block of a page, in order. A fence that is not closed is an error."""
    found: list[Block] = []
    opened: tuple[int, str] | None = None
    lines = page.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        if not line.startswith("```"):
            continue
        if opened is None:
            opened = number + 1, line[3:].strip()
            continue
        start, info = opened
        # Words after the language would make a paragraph of the block, and a block of what follows.
        assert " " not in info, f"{page.name}:{start - 1}: {info!r}"
        above = re.fullmatch("<!-- (.*) -->", lines[start - 3]) if start > 2 else None
        words = above[1].split() if above else []
        found.append(Block(page, start, info, words, "\n".join(lines[start - 1 : number - 1]) + "\n"))
        opened = None
    assert opened is None, f"{page.name}:{opened} is not closed"
    return found


BLOCKS = {page: blocks_of(page) for page in PAGES}
RUNNABLE = [page for page, blocks in BLOCKS.items() if any(block.language == "python" for block in blocks)]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """The folder of an embedded server that all pages share, as `COMPOSER_HOME`."""
    folder = Path(tempfile.mkdtemp(prefix="composer-docs-", dir="/tmp"))
    folder.chmod(0o755)  # root's server runs as nobody, who has to get there
    with pytest.MonkeyPatch.context() as patch:
        for variable in ENVIRONMENT.values():
            patch.delenv(variable, raising=False)
        patch.setenv("COMPOSER_HOME", str(folder / "home"))
        # One share for all pages, so that the server does not stop between two of them.
        from composer.postgres.embedded import EmbeddedPostgres

        server = EmbeddedPostgres(folder / "home")
        # For pages about programs that have tables of their own beside Composer's.
        patch.setenv("DATABASE_URL", server.start())
        try:
            yield folder
        finally:
            server.close()
            server._lock("server.lock", 2).close()  # LOCK_EX: ours once every process of the server is gone
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def a_worker(module: ModuleType, namespace: str) -> Iterator[None]:
    """A worker, in a thread of its own, for the workflows and steps a module has so far."""
    workflows = {value.name: value for value in vars(module).values() if isinstance(value, Workflow)}
    steps = [value for value in vars(module).values() if isinstance(value, Step)]
    ready, stop = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    async def work() -> None:
        settings = Settings(home=Path(os.environ["COMPOSER_HOME"]), namespace=namespace)
        async with Worker(list(workflows.values()), settings, steps=steps):
            ready.set()
            await anyio.to_thread.run_sync(stop.wait)

    def run() -> None:
        try:
            anyio.run(work)
        except BaseException as error:
            failures.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run, name="docs-worker")
    thread.start()
    ready.wait()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if failures:
        raise failures[0]


@pytest.mark.parametrize("page", RUNNABLE, ids=name_of)
def test_python_blocks_of_a_page_run(page: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python block of a page runs, and so does every test that is defined in one."""
    monkeypatch.chdir(home)
    namespace = re.sub(r"\W", "-", name_of(page))
    monkeypatch.setenv("COMPOSER_NAMESPACE", namespace)
    # A module of its own: annotations are looked up there.
    module = ModuleType(f"docs_{namespace.replace('-', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in BLOCKS[page]:
        if block.language != "python":
            continue
        code = block.compiled()
        if "fragment" in block.words:
            continue
        # Only where a client may wait for one: a worker takes a tenth of a second.
        serves = a_worker(module, namespace) if "with Client(" in block.text and not _is_file(block) else None
        with serves or contextlib.nullcontext():
            exec(code, vars(module))
    for name, value in list(vars(module).items()):
        if name.startswith("test_") and inspect.iscoroutinefunction(value):
            anyio.run(value)


def _is_file(block: Block) -> bool:
    return any(word.startswith("file=") for word in block.words)


def test_readme_example_runs_as_written(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's file, its worker command and its client command give the line the README prints."""
    monkeypatch.chdir(home)
    monkeypatch.setenv("COMPOSER_NAMESPACE", "readme-as-written")
    blocks = BLOCKS[ROOT / "README.md"]
    example = next(block for block in blocks if _is_file(block))
    assert len(example.text.splitlines()) <= 40
    (home / example.words[0].removeprefix("file=")).write_text(example.text)
    after = [block for block in blocks if block.line > example.line and block.language == "console"]
    worker_command, client_command = (shlex.split(block.text.removeprefix("$ ")) for block in after[:2])
    assert worker_command[0] == client_command[0] == "python"
    with subprocess.Popen([sys.executable, *worker_command[1:]], cwd=home, stderr=subprocess.PIPE, text=True) as worker:
        try:
            printed = [
                subprocess.run(
                    [sys.executable, *client_command[1:]], cwd=home, capture_output=True, text=True, check=True
                ).stdout
                for _ in range(2)
            ]
        finally:
            worker.send_signal(signal.SIGTERM)
            _, errors = worker.communicate(timeout=20)
    assert worker.returncode == 0, errors
    run_id, _, result = printed[0].strip().partition(" ")
    assert f"`{result}`" in (ROOT / "README.md").read_text()
    assert printed[1].split()[0] == run_id, "the same key is the same run"


def command_lines() -> list[tuple[str, list[str]]]:
    """Every command of the console blocks, and of the first column of tables, with where it stands."""
    found: list[tuple[str, list[str]]] = []
    for page in PROSE:
        for block in blocks_of(page):
            if block.language == "console":
                for offset, line in enumerate(block.text.splitlines()):
                    if line.startswith("$ "):
                        words = shlex.split(line[2:], comments=True)
                        found.append((f"{name_of(page)}:{block.line + offset}", words))
        for number, line in enumerate(page.read_text().splitlines(), 1):
            for command in re.findall(r"`((?:python -m |composer )[^`]+)`", line):
                found.append((f"{name_of(page)}:{number}", shlex.split(command)))
    return found


COMMANDS = command_lines()


def options_of(command: Any) -> set[str]:
    return {option for each in command.params for option in (*each.opts, *each.secondary_opts)} | {"--help"}


def known_options(words: list[str]) -> set[str] | None:
    """Options of one of our own commands; None for anybody else's. Raises AssertionError for one of ours that is not there."""
    program, rest = words[0].removeprefix(".venv/bin/"), words[1:]
    if program == "composer":
        commands: dict[str, Any] = vars(typer.main.get_command(app))["commands"]
        assert rest[0] in commands, f"there is no `composer {rest[0]}`"
        found = commands[rest[0]]
        if "commands" in vars(found):
            assert rest[1] in found.commands, f"there is no `composer {rest[0]} {rest[1]}`"
            found = found.commands[rest[1]]
        return options_of(found)
    if program == "python" and rest[:1] == ["-m"]:
        module = rest[1]
        if module == "composer.worker":
            return options_of(typer.main.get_command(worker_app))
        if module == "composer.coordinator":
            return options_of(typer.main.get_command(coordinator_app))
        if module.startswith(("bench.", "samples.")):
            assert importlib.util.find_spec(module), f"there is no module {module}"
        if module.startswith("bench."):
            importlib.import_module("bench._common")
            return set(re.findall(r'add_argument\(\s*"(--[\w-]+)"', (ROOT / "bench/_common.py").read_text()))
    if program == "make":
        targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        assert targets.issuperset(word for word in rest if "=" not in word), f"no such target: {words}"
    return None


@pytest.mark.parametrize(("where", "words"), COMMANDS, ids=[f"{where} {' '.join(words)}" for where, words in COMMANDS])
def test_commands_exist_with_their_options(where: str, words: list[str]) -> None:
    """Every command that the documentation shows is there, and takes the options shown."""
    known = known_options(words)
    if known is not None:
        given = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert given <= known, where


@pytest.mark.parametrize("name", composer.__all__)
def test_public_names_are_explained(name: str) -> None:
    """A name of composer.__all__ has a docstring of its own and stands in the documentation."""
    value = getattr(composer, name)
    doc = inspect.getdoc(value)
    assert doc and not doc.startswith(f"{name}("), f"{name} has no docstring"
    if inspect.isclass(value):
        assert "__doc__" in vars(value) and value.__doc__, f"{name} has only the docstring of its parent"
    pattern = re.compile(rf"`[^`]*\b{name}\b[^`]*`")
    code = "\n".join(block.text for blocks in BLOCKS.values() for block in blocks if block.language == "python")
    assert any(pattern.search(page.read_text()) for page in PAGES) or re.search(rf"\b{name}\b", code), (
        f"{name} stands in no page"
    )


def test_settings_page_lists_every_setting_with_its_default() -> None:
    """docs/settings.md has a row a setting, with its environment variable and its default."""
    rows = {
        cells[0].strip("`"): cells
        for line in (ROOT / "docs/settings.md").read_text().splitlines()
        if line.startswith("| `") and not line.startswith("| `Settings`")
        for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
    }
    defaults = Settings()
    assert rows.keys() == {each.name for each in fields(Settings)}
    worker = options_of(typer.main.get_command(worker_app))
    for name, (_, option, variable, default, _) in rows.items():
        assert variable.strip("`") == ENVIRONMENT.get(name, "")
        value = getattr(defaults, name)
        if isinstance(value, float):
            assert float(default) == value
        else:
            assert default.strip("`").replace('"', "'") == ("none" if value is None else str(value))
        if option:
            assert option.partition(",")[0].strip("`") in worker


def test_links_between_files_lead_somewhere() -> None:
    """Links of the files outside of docs/ lead to files; mkdocs checks those inside."""
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"):
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            assert target.startswith("https://") or (ROOT / target).exists(), f"{page.name} links to {target}"


def test_site_builds_strictly(tmp_path: Path) -> None:
    """mkdocs builds the documentation without a warning, and every fence has become a block."""
    done = subprocess.run(
        # Not --quiet: with it a warning is neither shown nor counted.
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path / "site")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {page.name: page.read_text() for page in (tmp_path / "site").rglob("*.html")}
    assert pages
    assert [name for name, text in pages.items() if "```" in text] == []
