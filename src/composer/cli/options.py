"""Options that most commands share, and what becomes of them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from composer.cli.output import with_signature
from composer.settings import read_settings

DatabaseUrl = Annotated[
    str | None,
    typer.Option("--database-url", help="PostgreSQL 15 or newer; default: COMPOSER_DATABASE_URL, else embedded."),
]
Home = Annotated[
    Path | None, typer.Option("--home", help="Folder of the embedded server; default: COMPOSER_HOME, else .composer.")
]
Namespace = Annotated[
    str | None, typer.Option("--namespace", help="Whose runs; default: COMPOSER_NAMESPACE, else 'default'.")
]
JsonLogs = Annotated[bool, typer.Option("--json-logs", help="One JSON object a log line.")]


def on_database(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options that name a database and a namespace; it is given their settings as its first argument."""

    @functools.wraps(command)
    def wrapped(
        *, database_url: str | None = None, home: Path | None = None, namespace: str | None = None, **given: Any
    ) -> None:
        command(read_settings(database_url=database_url, home=home, namespace=namespace), **given)

    _, *own, last = inspect.signature(command, eval_str=True).parameters.values()
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in (("database_url", DatabaseUrl), ("home", Home), ("namespace", Namespace))
    ]
    # --json is the last of every command's own, and stays it in --help.
    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (*own, *options, last)]
    return with_signature(wrapped, parameters)
