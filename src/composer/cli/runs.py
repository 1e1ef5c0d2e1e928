"""`composer start` and `composer runs ...`: starting and steering runs from a shell."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from composer.cli.frame import change_line, frame, listed, outcome, rest
from composer.cli.output import AsJson, console, put
from composer.cli.text import printable
from composer.client.client import Client
from composer.client.views import RunView
from composer.define.workflow import Workflow
from composer.errors import PayloadError, PlanError, SettingsError, StoreUnavailable
from composer.settings import Settings
from composer.worker.discovery import discover

RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.", show_default=False)]

_FRAMES: Final = 5
"""Frames a second."""

runs_app = typer.Typer(no_args_is_help=True, help="Look at runs and steer them.")


def start(
    settings: Settings,
    workflow: Annotated[str, typer.Argument(metavar="MODULE:WORKFLOW", help="The workflow.", show_default=False)],
    given: Annotated[
        str | None,
        typer.Option("--input", help="Arguments as a JSON object by name; @file reads a file, - standard input."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="Idempotency key.")] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="name=value; repeatable.")] = None,
    delay: Annotated[str | None, typer.Option("--delay", help='For example "5m".')] = None,
    priority: Annotated[int, typer.Option("--priority", help="-100 to 100; larger is sooner.")] = 0,
    follow: Annotated[bool, typer.Option("--follow", help="Show its nodes until it has ended.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start a run. With --follow the exit code is 1 when it does not complete."""
    flow = workflow_of(workflow)
    arguments = _arguments(given)
    tags = _tags(tag or [])
    bound = _bound(flow, arguments)
    with Client(settings=settings) as client:
        try:
            handle = client.start(bound, idempotency_key=key, tags=tags, delay=delay, priority=priority)
        except PlanError as error:
            # The plan is made already: it can only be one of the options.
            raise SettingsError(str(error)) from error
        if as_json:
            put({"id": handle.id, "workflow": flow.name, "created": handle.created})
        else:
            typer.echo(f"run {handle.id} of workflow {flow.name} {'started' if handle.created else 'exists already'}")
        if follow:
            out = console()
            run = follow_run(client, handle.id, out, as_json=as_json)
            for line in () if as_json else outcome(run):
                out.print(line, soft_wrap=not out.is_terminal)
            sys.exit(0 if run.status == "completed" else 1)


def workflow_of(name: str) -> Workflow[..., Any]:
    if ":" not in name:
        raise SettingsError(f"{name!r} names no workflow: write module:workflow, for example app.flows:fulfil")
    found = discover([name]).workflows
    if len(found) != 1:
        raise SettingsError(f"{name} is no workflow, but {len(found)} of them: name one")
    return found[0]


def _arguments(given: str | None) -> dict[str, Any]:
    if given is None:
        return {}
    try:
        text = sys.stdin.read() if given == "-" else Path(given[1:]).read_text("utf-8") if given[:1] == "@" else given
    except OSError as error:
        raise SettingsError(f"--input {given}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"--input {given} is not in UTF-8: {error}") from None
    value = _read(text, "--input")
    if not isinstance(value, dict):
        raise SettingsError("--input is a JSON object with the workflow's arguments by name")
    return value


def _read(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise SettingsError(f"{what} is no JSON: {error}") from None
    except RecursionError:
        raise SettingsError(f"{what} is nested too deeply") from None


def _bound(flow: Workflow[..., Any], arguments: dict[str, Any]) -> Any:
    from composer.define.payloads import codec

    decoded: dict[str, Any] = {}
    for name, value in arguments.items():
        try:
            decoded[name] = codec(flow.types.get(name, Any)).decode(json.dumps(value))
        except PayloadError as error:
            raise SettingsError(f"--input: {name} does not fit workflow {flow.name}: {error}") from error
    try:
        return flow.bind(**decoded)
    except PlanError as error:
        # The line it names is one of this command's own.
        raise SettingsError(f"--input: {error.problem}\n  {error.advice}") from error


def _tags(given: list[str]) -> dict[str, str]:
    tags: dict[str, str] = {}
    for each in given:
        name, is_there, value = each.partition("=")
        if not (is_there and name):
            raise SettingsError(f"--tag {each!r}: expected name=value")
        tags[name] = value
    return tags


def follow_run(client: Client, run_id: str, out: Console, *, as_json: bool = False) -> RunView:
    """Shows a run until it has ended: a table that is redrawn in a terminal, a line a change elsewhere."""
    if as_json or not out.is_terminal or out.is_dumb_terminal:
        for change in client.watch(run_id):
            put(change) if as_json else out.print(Text(change_line(change)), soft_wrap=True)
        return client.get(run_id)
    look = _Look(client, run_id, out)
    try:
        with Live(get_renderable=look.frame, console=out, refresh_per_second=_FRAMES):
            for _ in client.watch(run_id):
                look.is_stale = True
            look.is_stale = True
    except KeyboardInterrupt:
        typer.echo(f"the run goes on: composer runs watch {run_id}", err=True)
        raise
    return client.get(run_id)


class _Look:
    """The run as the last frame shows it. It is read again for a frame after something happened, and only then.

    A wide map has many changes a second and still as few reads as there are frames.
    """

    def __init__(self, client: Client, run_id: str, out: Console) -> None:
        self._client, self._id, self._out = client, run_id, out
        self._run = client.get(run_id)
        self.is_stale = False

    def frame(self) -> RenderableType:
        """The picture of this moment. What cannot be read just now leaves the last one standing."""
        if self.is_stale:
            self.is_stale = False
            try:
                self._run = self._client.get(self._id)
            except StoreUnavailable:
                self.is_stale = True
        return frame(self._run, most=max(self._out.height - 6, 5))


# -- composer runs ... ---------------------------------------------------------------------------------------------


def list_runs(
    settings: Settings,
    workflow: Annotated[str | None, typer.Option("--workflow", help="Of this workflow.")] = None,
    status: Annotated[list[str] | None, typer.Option("--status", help="In this status; repeatable.")] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="name=value; repeatable.")] = None,
    error: Annotated[str | None, typer.Option("--error", help="With this error code.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most this many.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Runs, newest first. With --json one object a line."""
    with Client(settings=settings) as client:
        found = client.runs(workflow, status=status or None, tags=_tags(tag or []), error_code=error)
        shown = [run for run, _ in zip(found, range(limit), strict=False)]
    if as_json:
        for run in shown:
            put(run)
        return
    out = console()
    for line in listed(shown, out.width if out.is_terminal else None):
        out.print(line, soft_wrap=True)


def show(settings: Settings, run_id: RunId, as_json: AsJson = False) -> None:
    """A run and its nodes."""
    with Client(settings=settings) as client:
        run = client.get(run_id)
    if as_json:
        put(run)
        return
    out = console()
    out.print(frame(run))
    for line in rest(run):
        out.print(line)


def watch(settings: Settings, run_id: RunId, as_json: AsJson = False) -> None:
    """Everything that happened to a run, then what happens, until it has ended. With --json one object a line."""
    with Client(settings=settings) as client:
        for change in client.watch(run_id):
            put(change) if as_json else typer.echo(change_line(change))


def explain(settings: Settings, run_id: RunId, as_json: AsJson = False) -> None:
    """What every open node of a run waits for, or why the run has ended."""
    with Client(settings=settings) as client:
        found = client.explain(run_id)
    put(found) if as_json else typer.echo(printable(str(found)))


def cancel(
    settings: Settings,
    run_id: RunId,
    reason: Annotated[str, typer.Option("--reason", help="Kept with the run.")] = "",
    as_json: AsJson = False,
) -> None:
    """Stop a run. Safe to repeat. Exit code 1 when it had ended otherwise."""
    with Client(settings=settings) as client:
        result = client.cancel(run_id, reason=reason)
    put(result) if as_json else typer.echo(f"the run is {result.status}")
    sys.exit(0 if result.accepted else 1)


def retry(
    settings: Settings,
    run_id: RunId,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would run again.")] = False,
    rerun_stale: Annotated[
        bool, typer.Option("--rerun-stale", help="Also run completed nodes that read data of a reset one.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Let a failed run go on where it stopped."""
    with Client(settings=settings) as client:
        result = client.retry(run_id, dry_run=dry_run, rerun_stale=rerun_stale)
    if as_json:
        put(result)
        return
    typer.echo("would run again:" if dry_run else "run again:")
    for each in result.reset_steps:
        typer.echo(printable(f"  {each.node}: {each.reason}"))
    for name in result.stale:
        typer.echo(printable(f"  {name} keeps its output, although it read data of one of these"))


def release(settings: Settings, run_id: RunId, as_json: AsJson = False) -> None:
    """Let a quarantined run go on. Exit code 1 when it was not quarantined."""
    with Client(settings=settings) as client:
        released = client.release(run_id)
    put({"released": released}) if as_json else typer.echo("released" if released else "the run was not quarantined")
    sys.exit(0 if released else 1)


def signal(
    settings: Settings,
    run_id: RunId,
    event: Annotated[str, typer.Argument(metavar="EVENT", help="The event's name.", show_default=False)],
    payload: Annotated[str, typer.Argument(metavar="[JSON]", help="Its payload.")] = "null",
    dedupe: Annotated[str | None, typer.Option("--dedupe", help="Of one id only the first counts.")] = None,
    as_json: AsJson = False,
) -> None:
    """Send a run an event that it waits for, or will."""
    value = _read(payload, "the payload")
    with Client(settings=settings) as client:
        result = client.signal(run_id, event, value, dedupe_id=dedupe)
    if as_json:
        put(result)
        return
    taken = f"taken by node {result.node}" if result.node else "kept for a node that will wait for it"
    typer.echo(printable(f"{taken}{' (it was sent before)' if result.is_duplicate else ''}"))


COMMANDS: dict[str, Callable[..., None]] = {
    "list": list_runs, "show": show, "watch": watch, "explain": explain, "cancel": cancel, "retry": retry, "release": release,
    "signal": signal,
}  # fmt: skip
