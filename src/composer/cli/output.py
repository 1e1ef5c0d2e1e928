"""What all commands share on their way out: exit codes, JSON, a console, and errors as sentences.

Exit codes: 0 done, 1 the answer is bad news, 2 wrong use, 3 the database is away, 128 + n ended by signal n.
"""

from __future__ import annotations

import functools
import inspect
import io
import json
import os
import signal
import sys
import traceback
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime
from enum import IntEnum
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from composer.cli.text import UNSEEN, printable
from composer.errors import ComposerError, QueryError, SettingsError, StoreUnavailable


class Exit(IntEnum):
    """What a command's exit code says, but for those of signals."""

    DONE = 0
    BAD_NEWS = 1
    WRONG_USE = 2
    AWAY = 3


AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")]


def code_of(error: ComposerError) -> Exit:
    """The exit code that an error ends its command with."""
    if isinstance(error, StoreUnavailable):
        return Exit.AWAY
    return Exit.WRONG_USE if isinstance(error, SettingsError | QueryError) else Exit.BAD_NEWS


def told(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with Composer's own errors as text on stderr and an exit code, and with --debug for their traceback.

    Ctrl-C ends it with 130, a reader that has enough (`composer runs list | head`) with 0, both without a word.
    """

    @functools.wraps(command)
    def wrapped(*args: Any, debug: bool = False, **kwargs: Any) -> None:
        _write_whatever_comes()
        try:
            command(*args, **kwargs)
        except ComposerError as error:
            _tell(error, debug=debug, as_json=bool(kwargs.get("as_json")))
            sys.exit(code_of(error))
        except BrokenPipeError:
            _leave_reader()
        except KeyboardInterrupt:
            sys.exit(128 + signal.SIGINT)

    option = inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Debug)
    return with_signature(wrapped, [*inspect.signature(command, eval_str=True).parameters.values(), option])


def with_signature(command: Callable[..., None], parameters: Sequence[inspect.Parameter]) -> Callable[..., None]:
    """The command, which typer will take to have these parameters. Their annotations are no text: typer evaluates nothing."""
    command.__signature__ = inspect.Signature(parameters, return_annotation=None)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def _tell(error: ComposerError, *, debug: bool, as_json: bool) -> None:
    if debug:
        typer.echo(printable("".join(traceback.format_exception(error))), err=True, nl=False)
    if as_json:
        typer.echo(json_text({"error": {"code": error.code, "message": str(error)}}), err=True)
    else:
        typer.echo(printable(f"composer: {error}"), err=True)


def _write_whatever_comes() -> None:
    """Has characters that the terminal's encoding lacks written out, instead of ending the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _leave_reader() -> NoReturn:
    """Ends the process when nobody reads its output, and has nothing said about what is still in the buffer."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(Exit.DONE)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        _leave_reader()


def console() -> Console:
    """Where tables are printed. Without colour when NO_COLOR is set or nobody sees it."""
    return _Console()


def say(text: str) -> None:
    """Prints text of which parts may come from users: what a terminal would act on is written out."""
    typer.echo(printable(text))


def put(value: Any) -> None:
    """Prints one JSON document in one line."""
    typer.echo(json_text(value))


def json_text(value: Any) -> str:
    """JSON in one line. Characters that a terminal would act on are escaped, as JSON has an escape for each."""
    text = json.dumps(plain(value), ensure_ascii=False)
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(c) if unicodedata.category(c) in UNSEEN else c for c in text)


def _escaped(c: str) -> str:
    # DEL is ASCII, so json leaves it as it is.
    return json.dumps(c)[1:-1] if c != "\x7f" else "\\u007f"


def plain(value: Any) -> Any:
    """A value as JSON can hold it: dataclasses as objects, moments as ISO 8601 text."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain(each) for name, each in asdict(value).items()}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value
