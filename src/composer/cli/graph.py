"""`composer graph`: a workflow's plan, drawn as text, as Mermaid or as SVG."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

import typer

from composer import draw
from composer.cli.output import AsJson, put, say
from composer.cli.runs import workflow_of
from composer.client.client import Client
from composer.core.plan import Plan
from composer.errors import QueryError
from composer.settings import Settings


class Form(StrEnum):
    """How a plan is drawn."""

    TEXT = "text"
    MERMAID = "mermaid"
    SVG = "svg"


_DRAWN = {Form.TEXT: draw.text, Form.MERMAID: draw.mermaid, Form.SVG: draw.svg}


def graph(
    settings: Settings,
    workflow: Annotated[str, typer.Argument(metavar="MODULE:WORKFLOW", help="The workflow.", show_default=False)],
    form: Annotated[Form, typer.Option("--format", help="How it is drawn.")] = Form.TEXT,
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="RUN", help="With the states of this run's nodes.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draw what a workflow does. With --json the plan itself."""
    plan = workflow_of(workflow).plan
    states: Mapping[str, str] | None = None
    if run is not None:
        with Client(settings=settings) as client:
            found = client.get(run)
        states = {node.name: node.state for node in found.nodes}
        _refuse_another(plan, found.workflow, run, states)
    if as_json:
        put(plan.body)
    else:
        say(_DRAWN[form](plan, states))


def _refuse_another(plan: Plan, workflow: str, run: str, states: Mapping[str, str]) -> None:
    if workflow != plan.workflow:
        raise QueryError(f"run {run} is of workflow {workflow}, not of {plan.workflow}")
    differing = sorted(states.keys() ^ {node.name for node in plan.nodes})
    if differing:
        raise QueryError(
            f"run {run} has other nodes than workflow {workflow} of this code: {', '.join(differing[:5])} "
            f"{'stands' if len(differing) == 1 else 'stand'} in one of the two only\n  "
            "It keeps the plan it was started with: composer runs show has its nodes.",
        )
