"""The `composer` command: which commands there are. Exit codes stand in output.py."""

from __future__ import annotations

from importlib import metadata
from typing import Annotated

import anyio
import typer

from composer.app import migrate as migrate_schema
from composer.cli import examine, serve
from composer.cli.check import check
from composer.cli.graph import graph
from composer.cli.options import DatabaseUrl, Home, on_database
from composer.cli.output import AsJson, put, say, told
from composer.cli.runs import COMMANDS, runs_app, start
from composer.settings import read_settings


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"composer {metadata.version('composer-workflows')}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the release and end.")
]


def composer(version: Version = False) -> None:
    """Durable workflows for Python."""


def migrate(database_url: DatabaseUrl = None, home: Home = None, as_json: AsJson = False) -> None:
    """Bring the database's schema up to this release. Safe to run from many places at once."""
    settings = read_settings(database_url=database_url, home=home)
    applied = anyio.run(migrate_schema, settings)
    if as_json:
        put({"applied": applied})
    else:
        say("\n".join(f"applied {name}" for name in applied) or "the schema is up to date")


app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
worker_app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
coordinator_app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.callback()(composer)
worker_app.command()(told(serve.worker))
coordinator_app.command()(told(serve.coordinator))
app.command("worker")(told(serve.worker))
app.command("coordinator")(told(serve.coordinator))
app.command("migrate")(told(migrate))
app.command("verify")(told(on_database(examine.verify)))
app.command("doctor")(told(on_database(examine.doctor)))
app.command("check")(told(check))
app.command("graph")(told(on_database(graph)))
app.command("start")(told(on_database(start)))
for name, command in COMMANDS.items():
    runs_app.command(name)(told(on_database(command)))
app.add_typer(runs_app, name="runs")
