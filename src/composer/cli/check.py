"""`composer check`: imports modules, which builds their workflows, and says what is wrong and what is doubtful about them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from composer._startup import put_on_path
from composer.cli.output import AsJson, code_of, put, say
from composer.define.lint import Problem, problems
from composer.define.source import line_of
from composer.define.workflow import Workflow
from composer.errors import ComposerError
from composer.worker.discovery import discover, modules_of_project

Modules = Annotated[
    list[str] | None,
    typer.Argument(help="Modules that define workflows; those of [tool.composer] modules if none is named."),
]


@dataclass(frozen=True, slots=True)
class _Broken:
    """A module that cannot be served, or several that cannot be served together."""

    module: str
    code: str
    where: str
    text: str


def check(modules: Modules = None, as_json: AsJson = False) -> None:
    """Build the workflows of some modules and print what is wrong or doubtful about them.

    Every module is looked at, whatever is wrong with the others. Exit code 1 when there is something to mend, 2 when a module is
    missing or breaks while it is imported.
    """
    names = list(modules or [])
    if not names:
        folder, names = modules_of_project(Path.cwd())
        put_on_path(str(folder))
    broken: list[_Broken] = []
    code = 0
    good: list[str] = []
    for name in names:
        failure = _failure([name])
        if failure is None:
            good.append(name)
        else:
            broken.append(_told(name, failure))
            code = max(code, code_of(failure))
    flows: Sequence[Workflow[..., Any]] = ()
    warnings: Sequence[str] = ()
    if good:
        together = _failure(good)
        if together is None:
            found = discover(good)
            flows, warnings = found.workflows, found.warnings
        else:
            broken.append(_told(", ".join(good), together))
            code = max(code, code_of(together))
            flows = list({flow.declaration: flow for name in good for flow in discover([name]).workflows}.values())
    doubts = [(flow, problems(flow.plan)) for flow in flows]
    if any(some for _, some in doubts):
        code = max(code, 1)
    if as_json:
        put({"workflows": {flow.name: some for flow, some in doubts}, "errors": broken, "warnings": list(warnings)})
    else:
        _print(doubts, broken, warnings)
    sys.exit(code)


def _failure(names: list[str]) -> ComposerError | None:
    try:
        discover(names)
    except ComposerError as error:
        return error
    return None


def _told(name: str, error: ComposerError) -> _Broken:
    cause = error.__cause__
    where: str = getattr(error, "where", "")
    if isinstance(cause, SyntaxError):
        where = f"{cause.filename}:{cause.lineno}"
    elif cause is not None and not where:
        where = line_of(cause)
    # file:line, as editors read it; what the text says of it at its end is said once.
    text = str(error).removesuffix(f"\n  at {where}")
    return _Broken(name, error.code, where.partition(" in ")[0], text)


def _print(
    doubts: Sequence[tuple[Workflow[..., Any], Sequence[Problem]]], broken: Sequence[_Broken], warnings: Sequence[str]
) -> None:
    for warning in warnings:
        say(f"warning: {warning}")
    for flow, some in doubts:
        nodes = f"{len(flow.plan.nodes)} node{'' if len(flow.plan.nodes) == 1 else 's'}"
        say(f"workflow {flow.name} ({nodes}): {f'{len(some)} to look at' if some else 'good'}")
        for each in some:
            say(f"  {each}")
    for wrong in broken:
        first, *rest = wrong.text.split("\n")
        place = f"{wrong.where}: " if wrong.where else ""
        say("\n".join([f"{place}error in {wrong.module}: {first} [{wrong.code}]", *rest]))
