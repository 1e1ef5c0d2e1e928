"""C58: a worker that cannot find, or finds no, workflows."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
import pytest

from composer import AsyncClient
from tests.working import until

pytestmark = pytest.mark.anyio

FLOWS = """
from composer import step, workflow

@step
async def greet(name: str) -> str:
    return f"hello {name}"

@workflow(name="greeting_in_project")
def greeting(name: str) -> str:
    return greet(name)

both = [greeting]
number = 7
"""
ROOT = Path(__file__).parents[2]


def project(folder: Path, **files: str) -> Path:
    """An uninstalled project; `app__flows` is app/flows.py, `app__init` makes app a package."""
    for name, text in files.items():
        path = name.replace("__", "/")
        file = folder / f"{path.removesuffix('init')}__init__.py" if path.endswith("/init") else folder / f"{path}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


MODULE = [sys.executable, "-m", "composer.worker"]
SCRIPT = [str(Path(sys.executable).parent / "composer"), "worker"]
FORMS = [pytest.param(MODULE, id="python -m"), pytest.param(SCRIPT, id="console script")]


def environment(database: str, namespace: str) -> Mapping[str, str]:
    # The sources are found whatever the current folder is, as an installed package would be.
    return {
        **os.environ,
        "COMPOSER_DATABASE_URL": database,
        "COMPOSER_NAMESPACE": namespace,
        "PYTHONPATH": str(ROOT / "src"),
        "PYTHONSAFEPATH": "",
    }


async def serves(
    command: Sequence[str], folder: Path, database: str, namespace: str, awaited: str = "  workflow "
) -> str:
    """What a worker prints until it has printed what is awaited, and that it leaves with 0 when told."""
    log = folder / "worker.log"
    with log.open("wb") as file:
        process = subprocess.Popen(  # noqa: ASYNC220
            command, cwd=folder, env=environment(database, namespace), stdout=file, stderr=file, start_new_session=True
        )
    try:
        await until(lambda: awaited in log.read_text() or process.poll() is not None, 30)
        process.send_signal(signal.SIGTERM)
        assert await anyio.to_thread.run_sync(process.wait, 20) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
    return log.read_text()


async def refuses(command: Sequence[str], folder: Path, code: int = 2) -> str:
    """What a worker prints that does not start. It needs no database for that."""
    made = {**environment("postgresql://nowhere.invalid/none", "default")}
    done = await anyio.run_process(command, cwd=folder, env=made, check=False, stderr=subprocess.STDOUT)
    assert done.returncode == code, done.stdout.decode()
    return done.stdout.decode()


@pytest.mark.parametrize("command", FORMS)
async def test_the_project_root_works(database: str, namespace: str, tmp_path: Path, command: list[str]) -> None:
    """From an uninstalled project's root a worker starts and lists what it serves."""
    project(tmp_path, flows=FLOWS)
    printed = await serves([*command, "flows"], tmp_path, database, namespace)
    assert "workflow greeting_in_project (flows): greet" in printed
    assert "warning" not in printed


@pytest.mark.parametrize("command", FORMS)
async def test_a_folder_below_or_beside_is_told_where_the_module_is(tmp_path: Path, command: list[str]) -> None:
    """From elsewhere the error names what was searched and, where it can, the folder that has the module."""
    project(tmp_path / "shop", flows=FLOWS, src__inner=FLOWS)
    below = tmp_path / "shop" / "deep"
    below.mkdir()
    printed = await refuses([*command, "flows"], below)
    assert "there is no module 'flows'" in printed
    assert f"Looked in the current folder {below}" in printed
    assert f"{tmp_path / 'shop'} has it: start the worker there" in printed
    assert "Traceback" not in printed
    assert "install the project" in await refuses([*command, "flows"], tmp_path)
    assert "pip install -e ." in await refuses([*command, "inner"], tmp_path / "shop")


async def test_pyproject_names_the_modules(database: str, namespace: str, tmp_path: Path) -> None:
    """Without MODULE the nearest pyproject.toml is asked, from its folder or below."""
    project(tmp_path, app__init="", app__flows=FLOWS)
    (tmp_path / "pyproject.toml").write_text('[tool.composer]\nmodules = ["app.flows"]\n')
    (tmp_path / "deep").mkdir()
    for folder in (tmp_path, tmp_path / "deep"):
        assert "(app.flows)" in await serves(MODULE, folder, database, namespace)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "there is no pyproject.toml in"),
        ("[tool.other]\n", "has no [tool.composer] modules"),
        ("[tool.composer\n", "cannot be read"),
        ('[tool.composer]\nmodule = ["x"]\n', "did you mean `modules` with 'module'?"),
        ('[tool.composer]\nmodules = "x"\n', "expected a list of names"),
        ("[tool.composer]\nmodules = []\n", "expected a list of names"),
    ],
)
async def test_without_a_module_it_is_said_where_to_name_one(tmp_path: Path, text: str | None, said: str) -> None:
    """No module, no pyproject.toml, or one that says something else: exit code 2 and what to write."""
    if text is not None:
        (tmp_path / "pyproject.toml").write_text(text)
    assert said in await refuses(MODULE, tmp_path)


@pytest.mark.parametrize("command", FORMS)
@pytest.mark.parametrize("name", ["queue", "enum", "random", "select", "typing", "logging"])
async def test_a_projects_own_queue_does_not_replace_the_standard_one(
    database: str, namespace: str, tmp_path: Path, command: list[str], name: str
) -> None:
    """A file named as a standard module breaks neither the engine nor the project, and the log says which one counts."""
    project(tmp_path, **{name: "raise RuntimeError('the project own one')"}, flows=FLOWS)
    printed = await serves([*command, "flows"], tmp_path, database, namespace)
    assert "workflow greeting_in_project" in printed
    assert f"{tmp_path / name}.py has the name of a module of Python's standard library" in printed


async def test_code_that_needs_its_own_queue_is_told_which_one_it_got(tmp_path: Path) -> None:
    """An import that meant the project's file, and the project's file as MODULE, fail with the reason."""
    project(tmp_path, queue="class Job: ...\n" + FLOWS, flows="from queue import Job\n" + FLOWS)
    printed = await refuses([*MODULE, "flows"], tmp_path)
    assert "cannot import name 'Job' from 'queue'" in printed
    assert f"{tmp_path / 'queue'}.py cannot be imported by that name" in printed
    assert "Rename" in await refuses([*MODULE, "queue"], tmp_path)


async def test_a_module_that_breaks_shows_the_users_own_lines(tmp_path: Path) -> None:
    """An inner import that fails, any other exception and a sys.exit are told apart from a module that is not there."""
    project(
        tmp_path,
        inner="import not_there_at_all\n" + FLOWS,
        outer="import inner\n",
        divides="def f():\n    return 1 / 0\nf()\n",
        exits="import sys\nsys.exit(5)\n",
        app__init="import app.gone\n",
        syntax="def f(:\n",
    )
    printed = await refuses([*MODULE, "outer"], tmp_path)
    assert "module outer" in printed
    assert "fails while it is imported" in printed
    assert "No module named 'not_there_at_all'" in printed
    assert f'File "{tmp_path / "inner.py"}", line 1' in printed
    assert "importlib" not in printed
    assert "discovery.py" not in printed
    printed = await refuses([*MODULE, "divides"], tmp_path)
    assert "ZeroDivisionError" in printed
    assert "line 2, in f" in printed
    assert "sys.exit(5)" in await refuses([*MODULE, "exits"], tmp_path)
    assert "No module named 'app.gone'" in await refuses([*MODULE, "app.flows"], tmp_path)
    assert "SyntaxError" in await refuses([*MODULE, "syntax"], tmp_path)


async def test_a_mistake_in_a_workflow_is_told_as_itself(tmp_path: Path) -> None:
    """A PlanError of a module passes with its own text and place."""
    project(tmp_path, flows="from composer import step\n@step\ndef f(n):\n    return n\n")
    printed = await refuses([*MODULE, "flows"], tmp_path, code=1)
    assert "parameter 'n' has no annotation" in printed
    assert "flows.py:" in printed


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("app", "Did you mean app.flows?"),
        ("app.plain", "It has functions helper and modules os."),
        ("app.empty", "It is empty"),
        ("app.flow", "Did you mean 'flows'?"),
        ("app.flows.greeting", "For something in it: app.flows:greeting"),
        ("app.flows:greetin", "Did you mean 'greeting'?"),
        ("app.flows:number", "app.flows:number is int, and not a @workflow, a @step or a list of them"),
        ("app/flows.py", "Give its dotted name and not its path: app.flows"),
        ("ap", "Did you mean 'app'?"),
    ],
)
async def test_a_name_that_leads_to_nothing_says_what_is_there(tmp_path: Path, name: str, said: str) -> None:
    """A package without its submodules, a module without workflows, a typo, a path: exit code 2 and the likely name."""
    project(
        tmp_path,
        app__init="",
        app__flows=FLOWS,
        app__plain="import os\ndef helper(): ...\n",
        app__empty="",
    )
    assert said in await refuses([*MODULE, name], tmp_path)


async def test_an_attribute_is_served_alone(database: str, namespace: str, tmp_path: Path) -> None:
    """`module:attribute` names one workflow, one step or a list of them."""
    project(tmp_path, flows=FLOWS)
    for attribute in ("greeting", "both"):
        printed = await serves([*MODULE, f"flows:{attribute}"], tmp_path, database, namespace)
        assert "workflow greeting_in_project (flows): greet" in printed


async def test_one_file_under_two_names_is_refused(tmp_path: Path) -> None:
    """Two modules of one file, or a file that its own project imports by another name, are named."""
    project(tmp_path, app__init="", app__flows=FLOWS, app__outer=f"import app.flows\n{FLOWS}")
    (tmp_path / "link.py").symlink_to(tmp_path / "app" / "flows.py")
    printed = await refuses([*MODULE, "app.flows", "link"], tmp_path, code=1)
    assert "is imported under two names, 'app.flows' and 'link'" in printed
    project(tmp_path / "inside", pkg__init="", pkg__flows=FLOWS, pkg__steps="")
    (tmp_path / "inside" / "flows.py").write_text("import sys\nsys.path.insert(0, 'pkg')\n" + FLOWS)
    project(tmp_path / "two", pkg__init="", pkg__flows="import sys; sys.path.append('pkg')\nimport steps\n" + FLOWS)
    project(tmp_path / "two", pkg__steps=FLOWS.replace("greet", "other"))
    (tmp_path / "two" / "main.py").write_text("import pkg.flows\nfrom pkg.steps import othering, other\n")
    printed = await refuses([*MODULE, "main"], tmp_path / "two", code=1)
    assert "two names, 'pkg.steps' and 'steps'" in printed


async def test_two_of_one_name_are_named_with_their_places(tmp_path: Path) -> None:
    """Two steps, two workflows or two lifespans of one worker are refused, both places given."""
    lifespan = "from composer import lifespan\n@lifespan\nasync def pool():\n    yield 1\n"
    project(
        tmp_path,
        one=FLOWS + lifespan,
        two=FLOWS.replace("greeting_in_project", "other"),
        three=FLOWS.replace("def greet(", "def meet(")
        .replace("= greet(", "= meet(")
        .replace("return greet", "return meet"),
        four="from one import greeting\n" + lifespan,
    )
    for names, said in (
        (("one", "two"), "two steps are named 'greet'"),
        (("one", "three"), "two workflows are named 'greeting_in_project'"),
        (("one", "four"), "a worker has one @lifespan"),
    ):
        printed = await refuses([*MODULE, *names], tmp_path, code=1)
        assert said in printed
        for name in names:
            assert f"{tmp_path / name}.py:" in printed


async def test_runs_that_wait_for_a_step_nobody_has_are_named_at_the_start(
    database: str, namespace: str, tmp_path: Path
) -> None:
    """A worker says which waiting step no live worker knows, and nothing when there is none."""
    project(tmp_path, flows=FLOWS, others=FLOWS.replace("greet", "wave"))
    async with AsyncClient(database_url=database, namespace=namespace) as client:
        from tests.system import flows

        handle = await client.start(flows.short, 1)
        printed = await serves([*MODULE, "flows"], tmp_path, database, namespace)
        assert "1 task waits for step quick, which no live worker knows" in printed
        assert handle.id in printed
        await handle.cancel()
        assert "no live worker" not in await serves([*MODULE, "flows"], tmp_path, database, namespace)


LIFESPAN = """
import logging
from collections.abc import AsyncIterator
from composer import around_step, lifespan
log = logging.getLogger("shop")

@lifespan
async def pools() -> AsyncIterator[str]:
    log.info("pools are opened")
    %s
    yield "pool"
    log.info("pools are closed")

@around_step
async def tenants(ctx, call):
    log.info("in the step")
    return await call()
"""


async def test_lifespan_and_around_step_are_found_in_the_module(database: str, namespace: str, tmp_path: Path) -> None:
    """What the module defines around its steps is used and listed; its own log lines are printed, with their facts."""
    project(tmp_path, flows=FLOWS + LIFESPAN % "")
    async with AsyncClient(database_url=database, namespace=namespace) as client:
        sys.path.insert(0, str(tmp_path))
        try:
            greeting = importlib.import_module("flows").greeting
        finally:
            sys.path.remove(str(tmp_path))
            del sys.modules["flows"]
        handle = await client.start(greeting, "you")
        printed = await serves([*MODULE, "flows"], tmp_path, database, namespace, "in the step")
        assert await handle.result(timeout=10) == "hello you"
    assert "lifespan pools" in printed
    assert "around each step: tenants" in printed
    assert printed.index("pools are opened") < printed.index("in the step") < printed.index("pools are closed")
    (line,) = [line for line in printed.splitlines() if "in the step" in line]
    assert f"run_id={handle.id} workflow=greeting_in_project node=greet attempt=1" in line


async def test_a_lifespan_that_fails_ends_the_worker(database: str, namespace: str, tmp_path: Path) -> None:
    """Exit code 1, the lifespan's name, cause and line, and no traceback."""
    project(tmp_path, flows=FLOWS + LIFESPAN % "raise OSError('connection refused')")
    done = await anyio.run_process(
        [*MODULE, "flows"],
        cwd=tmp_path,
        env=environment(database, namespace),
        check=False,
        stderr=subprocess.STDOUT,
    )
    printed = done.stdout.decode()
    assert done.returncode == 1
    assert "lifespan pools of flows failed while opening: OSError: connection refused" in printed
    assert f"at {tmp_path / 'flows.py'}:" in printed
    assert "Traceback" not in printed
