"""`composer start` and `composer runs ...`: starting and steering runs from a shell."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from composer.cli.output import AsJson, console, put
from composer.cli.serve import DatabaseUrl, Home, Namespace
from composer.cli.text import one_line, printable
from composer.client.client import Client
from composer.client.views import NodeView, RunView
from composer.client.watching import Change
from composer.core.states import SETTLED, NodeState
from composer.define.workflow import Workflow
from composer.errors import PayloadError, PlanError, SettingsError, StoreUnavailable
from composer.settings import read_settings
from composer.worker.discovery import discover

RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.", show_default=False)]

_STYLES = {
    "completed": "green", "failed": "red", "cancelled": "yellow", "leased": "cyan", "mapping": "cyan", "waiting": "blue",
    "delayed": "magenta", "skipped": "dim", "blocked": "dim", "draining": "red", "running": "cyan",
}  # fmt: skip

_SETTLED: Final = frozenset(state.word for state in NodeState if state.value in SETTLED)
_GOING: Final = frozenset({"leased", "mapping", "draining", "waiting"})
"""States of nodes whose time goes on."""
_FRAMES: Final = 5
"""Frames a second."""

runs_app = typer.Typer(no_args_is_help=True, help="Look at runs and steer them.")


@contextmanager
def opened_client(database_url: str | None, home: Path | None, namespace: str | None) -> Generator[Client]:
    """A client on the database that the options name."""
    with Client(settings=read_settings(database_url=database_url, home=home, namespace=namespace)) as client:
        yield client


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
    tags = _tags(tag or [])
    bound = _bound(flow, arguments)
    with opened_client(database_url, home, namespace) as client:
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
    try:
        text = sys.stdin.read() if given == "-" else Path(given[1:]).read_text("utf-8") if given[:1] == "@" else given
        value: Any = json.loads(text)
    except OSError as error:
        raise SettingsError(f"--input {given}: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError(f"--input is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise SettingsError("--input is a JSON object with the workflow's arguments by name")
    return value


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
        if not is_there:
            raise SettingsError(f"--tag {each!r}: expected name=value")
        tags[name] = value
    return tags


def follow_run(client: Client, run_id: str, *, as_json: bool = False, out: Console | None = None) -> RunView:
    """Shows a run until it has ended: a table that is redrawn in a terminal, a line a change elsewhere."""
    out = out or console()
    if as_json or not out.is_terminal:
        for change in client.watch(run_id):
            put(change) if as_json else out.print(Text(_line(change)), soft_wrap=True)
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

    def frame(self) -> Table:
        """The table of this moment. What cannot be read just now leaves the last one standing."""
        if self.is_stale:
            self.is_stale = False
            try:
                self._run = self._client.get(self._id)
            except StoreUnavailable:
                self.is_stale = True
        return frame(self._run, most=max(self._out.height - 6, 5))


def frame(run: RunView, *, most: int | None = None, now: datetime | None = None) -> Table:
    """A run and its nodes as a table; of more than `most` nodes those that something can be said of, and a count of the others."""
    now = now or datetime.now(UTC)
    settled = sum(node.state in _SETTLED for node in run.nodes)
    head = Text.assemble(
        (f"{printable(run.workflow)} ", "bold"), (run.status, _STYLES.get(run.status, "")), f"  {run.id}",
        f"  {settled}/{len(run.nodes)} nodes  {_time((run.finished_at or now) - run.created_at)}",
    )  # fmt: skip
    table = Table(title=head, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    for heading in ("node", "state", "attempt", "time", ""):
        table.add_column(heading, justify="right" if heading in ("attempt", "time") else "left", overflow="fold")
    shown = _chosen(run.nodes, most)
    for node in shown:
        table.add_row(
            Text(printable(node.name)), Text(node.state, style=_STYLES.get(node.state, "")), str(node.attempt or ""), _took(node, now),
            Text(_about(node)),
        )  # fmt: skip
    if len(shown) < len(run.nodes):
        kept = {node.name for node in shown}
        others = Counter(node.state for node in run.nodes if node.name not in kept)
        told = ", ".join(f"{count} {state}" for state, count in others.most_common())
        table.add_row(Text(f"and {others.total()} more", style="dim"), "", "", "", Text(told, style="dim"))
    return table


def _chosen(nodes: Sequence[NodeView], most: int | None) -> Sequence[NodeView]:
    if most is None or len(nodes) <= most:
        return nodes
    # What failed, then what goes on, then what ended last; shown in the plan's order all the same.
    urgent = sorted(
        nodes,
        key=lambda node: (
            node.state != "failed",
            node.state in _SETTLED or node.state == "blocked",
            -(node.finished_at.timestamp() if node.finished_at else 0),
        ),
    )
    names = {node.name for node in urgent[:most]}
    return [node for node in nodes if node.name in names]


def _took(node: NodeView, now: datetime) -> str:
    if node.started_at is None or (node.finished_at is None and node.state not in _GOING):
        return ""
    return _time((node.finished_at or now) - node.started_at)


def _time(passed: timedelta) -> str:
    """A duration in few characters: 0.42 s, 12.3 s, 4 min 05 s, 3 h 07 min, 2 d 4 h."""
    # The two moments may be of two clocks.
    seconds = max(passed.total_seconds(), 0.0)
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


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
            put(run)
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
    console().print(table)


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
        put(run)
        return
    out = console()
    out.print(frame(run))
    for name, value in (("tags", dict(run.tags)), ("input", run.input), ("output", run.output), ("error", run.error)):
        if value:
            out.print(Text(f"{name}: {one_line(json.dumps(value, ensure_ascii=False), 400)}"))
    if run.quarantine:
        out.print(Text(f"quarantined: {printable(run.quarantine)}", style="red"))


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
            put(change) if as_json else typer.echo(_line(change))


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
    put(found) if as_json else typer.echo(printable(str(found)))


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
    put(result) if as_json else typer.echo(f"the run is {result.status}")
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
        put(result)
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
    put({"released": released}) if as_json else typer.echo("released" if released else "the run was not quarantined")
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
        put(result)
        return
    taken = f"taken by node {result.node}" if result.node else "kept for a node that will wait for it"
    typer.echo(printable(f"{taken}{' (it was sent before)' if result.is_duplicate else ''}"))


COMMANDS: dict[str, Callable[..., None]] = {
    "list": list_runs, "show": show, "watch": watch, "explain": explain, "cancel": cancel, "retry": retry, "release": release,
    "signal": signal,
}  # fmt: skip
