"""`composer start` and `composer runs ...`: starting and steering runs from a shell."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from composer.cli.examine import AsJson
from composer.cli.serve import DatabaseUrl, Home, Namespace
from composer.cli.text import one_line, printable
from composer.client.client import Client
from composer.client.views import NodeView, RunView
from composer.client.watching import Change
from composer.define.workflow import Workflow
from composer.errors import PayloadError, SettingsError
from composer.settings import read_settings
from composer.worker.discovery import discover

RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.", show_default=False)]

_STYLES = {
    "completed": "green", "failed": "red", "cancelled": "yellow", "leased": "cyan", "mapping": "cyan", "waiting": "blue",
    "delayed": "magenta", "skipped": "dim", "blocked": "dim", "draining": "red", "running": "cyan",
}  # fmt: skip

runs_app = typer.Typer(no_args_is_help=True, help="Look at runs and steer them.")


@contextmanager
def opened_client(database_url: str | None, home: Path | None, namespace: str | None) -> Generator[Client]:
    """A client on the database that the options name."""
    with Client(settings=read_settings(database_url=database_url, home=home, namespace=namespace)) as client:
        yield client


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


def _put(value: Any) -> None:
    typer.echo(json.dumps(plain(value), ensure_ascii=False))


def start(
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
    database_url: DatabaseUrl = None,
    home: Home = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Start a run. With --follow the exit code is 1 when it does not complete."""
    flow = workflow_of(workflow)
    arguments = _arguments(given)
    with opened_client(database_url, home, namespace) as client:
        bound = flow.bind(**{name: _decoded(flow, name, value) for name, value in arguments.items()})
        handle = client.start(bound, idempotency_key=key, tags=_tags(tag or []), delay=delay, priority=priority)
        if as_json:
            _put({"id": handle.id, "workflow": flow.name, "created": handle.created})
        else:
            typer.echo(f"run {handle.id} of workflow {flow.name} {'started' if handle.created else 'exists already'}")
        if follow:
            run = follow_run(client, handle.id, as_json=as_json)
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
    text = sys.stdin.read() if given == "-" else Path(given[1:]).read_text() if given.startswith("@") else given
    try:
        value: Any = json.loads(text)
    except ValueError as error:
        raise SettingsError(f"--input is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise SettingsError("--input is a JSON object with the workflow's arguments by name")
    return value


def _decoded(flow: Workflow[..., Any], name: str, value: Any) -> Any:
    from composer.define.payloads import codec

    type_ = flow.types.get(name, Any)
    try:
        return codec(type_).decode(json.dumps(value))
    except PayloadError as error:
        raise PayloadError(f"--input: {name} does not fit workflow {flow.name}: {error}") from None


def _tags(given: list[str]) -> dict[str, str]:
    tags: dict[str, str] = {}
    for each in given:
        name, is_there, value = each.partition("=")
        if not is_there:
            raise SettingsError(f"--tag {each!r}: expected name=value")
        tags[name] = value
    return tags


def follow_run(client: Client, run_id: str, *, as_json: bool = False, console: Console | None = None) -> RunView:
    """Shows a run until it has ended: a table that is redrawn in a terminal, a line a change elsewhere."""
    console = console or Console()
    if as_json or not console.is_terminal:
        for change in client.watch(run_id):
            _put(change) if as_json else console.print(Text(_line(change)), soft_wrap=True)
        return client.get(run_id)
    with Live(console=console, auto_refresh=False) as live:
        for _ in client.watch(run_id):
            live.update(frame(client.get(run_id)), refresh=True)
        run = client.get(run_id)
        live.update(frame(run), refresh=True)
    return run


def frame(run: RunView) -> Table:
    """A run and its nodes as a table."""
    head = Text.assemble(
        (f"{run.workflow} ", "bold"), (run.status, _STYLES.get(run.status, "")), f"  {run.id}", *_took(run)
    )
    table = Table(title=head, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    for heading in ("node", "state", "attempt", "seconds", ""):
        table.add_column(heading, justify="right" if heading in ("attempt", "seconds") else "left", overflow="fold")
    for node in run.nodes:
        table.add_row(
            Text(printable(node.name)), Text(node.state, style=_STYLES.get(node.state, "")), str(node.attempt or ""), _seconds(node),
            Text(_about(node)),
        )  # fmt: skip
    return table


def _took(run: RunView) -> list[str]:
    return [f"  {(run.finished_at - run.created_at).total_seconds():.2f} s"] if run.finished_at is not None else []


def _seconds(node: NodeView) -> str:
    if node.started_at is None or node.finished_at is None:
        return ""
    return f"{(node.finished_at - node.started_at).total_seconds():.2f}"


def _about(node: NodeView) -> str:
    parts: list[str] = []
    if node.items is not None:
        items = node.items
        parts.append(
            f"{items.completed:,} of {items.total:,} items" + (f", {items.failed:,} failed" if items.failed else "")
        )
    if node.answer is not None:
        parts.append("yes" if node.answer else "no")
    if node.error is not None and node.state != "completed":
        parts.append(one_line(f"{node.error.get('type', '')}: {node.error.get('message', '')}"))
    if node.next_attempt_at is not None and node.state in ("delayed", "waiting"):
        parts.append(f"until {node.next_attempt_at:%Y-%m-%d %H:%M:%S %Z}")
    if node.state == "leased" and node.worker:
        parts.append(f"in {node.worker}")
    return "; ".join(parts)


def _line(change: Change) -> str:
    where = change.node or ""
    if change.item is not None:
        where += f"[{change.item}]"
    facts = [f"{change.at:%H:%M:%S.%f}"[:-3], change.event, printable(where)]
    if change.attempt is not None and change.attempt > 1:
        facts.append(f"attempt {change.attempt}")
    if change.outcome and change.outcome != "completed":
        facts.append(change.outcome)
    if change.error:
        facts.append(one_line(change.error))
    return "  ".join(fact for fact in facts if fact)


# -- composer runs ... ---------------------------------------------------------------------------------------------


def list_runs(
    workflow: Annotated[str | None, typer.Option("--workflow", help="Of this workflow.")] = None,
    status: Annotated[list[str] | None, typer.Option("--status", help="In this status; repeatable.")] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="name=value; repeatable.")] = None,
    error: Annotated[str | None, typer.Option("--error", help="With this error code.")] = None,
    limit: Annotated[int, typer.Option("--limit", help="At most this many.")] = 50,
    database_url: DatabaseUrl = None,
    home: Home = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Runs, newest first. With --json one object a line."""
    with opened_client(database_url, home, namespace) as client:
        found = client.runs(workflow, status=status or None, tags=_tags(tag or []), error_code=error)
        shown = [run for run, _ in zip(found, range(limit), strict=False)]
    if as_json:
        for run in shown:
            _put(run)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    for heading in ("run", "workflow", "status", "nodes", "created", ""):
        table.add_column(heading, overflow="fold", no_wrap=heading == "run")
    for run in shown:
        state = "quarantined" if run.quarantine else run.status
        about = f"{run.error_code}: {run.error_message or ''}" if run.error_code else ""
        table.add_row(
            run.id, Text(printable(run.workflow)), Text(state, style=_STYLES.get(state, "")), f"{run.nodes_settled}/{run.nodes_total}",
            f"{run.created_at:%Y-%m-%d %H:%M:%S}", Text(one_line(about)),
        )  # fmt: skip
    Console().print(table)


def show(
    run_id: RunId,
    database_url: DatabaseUrl = None,
    home: Home = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """A run and its nodes."""
    with opened_client(database_url, home, namespace) as client:
        run = client.get(run_id)
    if as_json:
        _put(run)
        return
    console = Console()
    console.print(frame(run))
    for name, value in (("tags", dict(run.tags)), ("input", run.input), ("output", run.output), ("error", run.error)):
        if value:
            console.print(Text(f"{name}: {one_line(json.dumps(value, ensure_ascii=False), 400)}"))
    if run.quarantine:
        console.print(Text(f"quarantined: {printable(run.quarantine)}", style="red"))


def watch(
    run_id: RunId,
    database_url: DatabaseUrl = None,
    home: Home = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Everything that happened to a run, then what happens, until it has ended. With --json one object a line."""
    with opened_client(database_url, home, namespace) as client:
        for change in client.watch(run_id):
            _put(change) if as_json else typer.echo(_line(change))


def explain(
    run_id: RunId,
    database_url: DatabaseUrl = None,
    home: Home = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """What every open node of a run waits for, or why the run has ended."""
    with opened_client(database_url, home, namespace) as client:
        found = client.explain(run_id)
    _put(found) if as_json else typer.echo(printable(str(found)))


def cancel(
    run_id: RunId,
    reason: Annotated[str, typer.Option("--reason", help="Kept with the run.")] = "",
    database_url: DatabaseUrl = None,
    home: Home = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Stop a run. Safe to repeat. Exit code 1 when it had ended otherwise."""
    with opened_client(database_url, home, namespace) as client:
        result = client.cancel(run_id, reason=reason)
    _put(result) if as_json else typer.echo(f"the run is {result.status}")
    sys.exit(0 if result.accepted else 1)


def retry(
    run_id: RunId,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would run again.")] = False,
    rerun_stale: Annotated[
        bool, typer.Option("--rerun-stale", help="Also run completed nodes that read data of a reset one.")
    ] = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Let a failed run go on where it stopped."""
    with opened_client(database_url, home, namespace) as client:
        result = client.retry(run_id, dry_run=dry_run, rerun_stale=rerun_stale)
    if as_json:
        _put(result)
        return
    typer.echo("would run again:" if dry_run else "run again:")
    for each in result.reset_steps:
        typer.echo(printable(f"  {each.node}: {each.reason}"))
    for name in result.stale:
        typer.echo(printable(f"  {name} keeps its output, although it read data of one of these"))


def release(
    run_id: RunId,
    database_url: DatabaseUrl = None,
    home: Home = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Let a quarantined run go on. Exit code 1 when it was not quarantined."""
    with opened_client(database_url, home, namespace) as client:
        released = client.release(run_id)
    _put({"released": released}) if as_json else typer.echo("released" if released else "the run was not quarantined")
    sys.exit(0 if released else 1)


def signal(
    run_id: RunId,
    event: Annotated[str, typer.Argument(metavar="EVENT", help="The event's name.", show_default=False)],
    payload: Annotated[str, typer.Argument(metavar="[JSON]", help="Its payload.")] = "null",
    dedupe: Annotated[str | None, typer.Option("--dedupe", help="Of one id only the first counts.")] = None,
    database_url: DatabaseUrl = None,
    home: Home = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Send a run an event that it waits for, or will."""
    try:
        value = json.loads(payload)
    except ValueError as error:
        raise SettingsError(f"the payload is no JSON: {error}") from None
    with opened_client(database_url, home, namespace) as client:
        result = client.signal(run_id, event, value, dedupe_id=dedupe)
    if as_json:
        _put(result)
        return
    taken = f"taken by node {result.node}" if result.node else "kept for a node that will wait for it"
    typer.echo(printable(f"{taken}{' (it was sent before)' if result.is_duplicate else ''}"))


COMMANDS: dict[str, Callable[..., None]] = {
    "list": list_runs, "show": show, "watch": watch, "explain": explain, "cancel": cancel, "retry": retry, "release": release,
    "signal": signal,
}  # fmt: skip
