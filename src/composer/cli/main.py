"""The `composer` command: which commands there are. Exit codes stand in output.py."""

from __future__ import annotations

import anyio
import typer

from composer.app import migrate as migrate_schema
from composer.cli import examine, serve
from composer.cli.check import check
from composer.cli.graph import graph
from composer.cli.output import AsJson, put, say, told
from composer.cli.runs import COMMANDS, runs_app, start
from composer.settings import read_settings


def migrate(database_url: serve.DatabaseUrl = None, home: serve.Home = None, as_json: AsJson = False) -> None:
    """Bring the database's schema up to this release. Safe to run from many places at once."""
    settings = read_settings(database_url=database_url, home=home)
    applied = anyio.run(migrate_schema, settings)
    if as_json:
        put({"applied": applied})
    else:
        say("\n".join(f"applied {name}" for name in applied) or "the schema is up to date")


app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="Durable workflows for Python."
)
worker_app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
coordinator_app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
worker_app.command()(told(serve.worker))
coordinator_app.command()(told(serve.coordinator))
app.command("worker")(told(serve.worker))
app.command("coordinator")(told(serve.coordinator))
app.command("migrate")(told(migrate))
app.command("verify")(told(examine.verify))
app.command("doctor")(told(examine.doctor))
app.command("check")(told(check))
app.command("graph")(told(graph))
app.command("start")(told(start))
for name, command in COMMANDS.items():
    runs_app.command(name)(told(command))
app.add_typer(runs_app, name="runs")
