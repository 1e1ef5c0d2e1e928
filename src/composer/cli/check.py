"""`composer check`: imports modules, which builds their workflows, and says what is doubtful about them."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from composer.cli.examine import AsJson
from composer.cli.text import printable
from composer.define.lint import problems
from composer.worker.discovery import discover

Modules = Annotated[
    list[str] | None,
    typer.Argument(help="Modules that define workflows; those of [tool.composer] modules if none is named."),
]


def check(modules: Modules = None, as_json: AsJson = False) -> None:
    """Build the workflows of some modules and print what is doubtful about them. Exit code 1 when something is.

    What is certainly wrong keeps a workflow from being built, and is said with its line, as it is when the worker starts.
    """
    found = discover(modules or [])
    doubts = {flow.name: problems(flow.plan) for flow in found.workflows}
    if as_json:
        told = {name: [asdict(each) for each in some] for name, some in doubts.items()}
        typer.echo(json.dumps({"workflows": told, "warnings": list(found.warnings)}))
    else:
        for warning in found.warnings:
            typer.echo(printable(f"warning: {warning}"))
        for flow in found.workflows:
            some = doubts[flow.name]
            nodes = f"{len(flow.plan.nodes)} node{'' if len(flow.plan.nodes) == 1 else 's'}"
            typer.echo(f"workflow {flow.name} ({nodes}): {f'{len(some)} to look at' if some else 'good'}")
            for each in some:
                typer.echo(printable(f"  {each}"))
    sys.exit(1 if any(doubts.values()) else 0)
