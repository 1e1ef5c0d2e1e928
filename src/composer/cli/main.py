"""The `composer` command. Exit codes: 0 done, 1 the answer is bad news, 2 wrong use, 3 the database is away."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import anyio
import typer

from composer.app import migrate as migrate_schema
from composer.cli import examine, serve
from composer.cli.check import check
from composer.cli.graph import graph
from composer.cli.runs import COMMANDS, runs_app, start
from composer.errors import ComposerError, QueryError, SettingsError, StoreUnavailable
from composer.settings import read_settings


def _told(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with Composer's own errors as text on stderr and an exit code."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except ComposerError as error:
            typer.echo(f"composer: {error}", err=True)
            sys.exit(
                3 if isinstance(error, StoreUnavailable) else 2 if isinstance(error, SettingsError | QueryError) else 1
            )
        except BrokenPipeError:
            # Whoever read the output has enough of it: `composer runs list | head`.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)

    return wrapped


def migrate(database_url: serve.DatabaseUrl = None, home: serve.Home = None) -> None:
    """Bring the database's schema up to this release. Safe to run from many places at once."""
    settings = read_settings(database_url=database_url, home=home)

    applied = anyio.run(migrate_schema, settings)
    typer.echo("\n".join(f"applied {name}" for name in applied) or "the schema is up to date")


app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="Durable workflows for Python."
)
worker_app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
coordinator_app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
worker_app.command()(_told(serve.worker))
coordinator_app.command()(_told(serve.coordinator))
app.command("worker")(_told(serve.worker))
app.command("coordinator")(_told(serve.coordinator))
app.command("migrate")(_told(migrate))
app.command("verify")(_told(examine.verify))
app.command("doctor")(_told(examine.doctor))
app.command("check")(_told(check))
app.command("graph")(_told(graph))
app.command("start")(_told(start))
for name, command in COMMANDS.items():
    runs_app.command(name)(_told(command))
app.add_typer(runs_app, name="runs")
