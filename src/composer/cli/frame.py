"""Runs as a terminal shows them: a frame of nodes, a line a change, a list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from composer.cli.output import json_text
from composer.cli.text import one_line, printable
from composer.client.listing import RunSummary
from composer.client.views import NodeView, RunView
from composer.client.watching import Change
from composer.core.states import SETTLED, NodeState

_STYLES = {
    "completed": "green", "failed": "red", "cancelled": "yellow", "leased": "cyan", "mapping": "cyan", "waiting": "blue",
    "delayed": "magenta", "skipped": "dim", "blocked": "dim", "draining": "red", "running": "cyan",
}  # fmt: skip

_SETTLED: Final = frozenset(state.word for state in NodeState if state.value in SETTLED)
_NARROWEST: Final = 16
_WIDEST: Final = 40
"""Of the names on a screen, so that there is room for them and beside them."""
_GOING: Final = frozenset({"leased", "mapping", "draining", "waiting"})
"""States of nodes whose time goes on."""


def frame(run: RunView, *, most: int | None = None, now: datetime | None = None) -> RenderableType:
    """A run and its nodes. With `most` it fits a screen: a line a node, cut where the terminal ends.

    Of more than `most` nodes those that something can be said of, and a count of the others.
    """
    now = now or datetime.now(UTC)
    settled = sum(node.state in _SETTLED for node in run.nodes)
    how: Any = {"no_wrap": True, "overflow": "ellipsis"} if most is not None else {}
    # The id last: what is cut may be copied from where the run was started.
    head = Text.assemble(
        (f"{printable(run.workflow)} ", "bold"), (run.status, _STYLES.get(run.status, "")),
        f"  {settled}/{len(run.nodes)} nodes  {duration((run.finished_at or now) - run.created_at)}  {run.id}",
        **how,
    )  # fmt: skip
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    # The columns that may wrap are those that give way, and on a screen what is in them is cut instead.
    longest = max((cell_len(printable(node.name)) for node in run.nodes), default=0)
    table.add_column("node", overflow="fold", min_width=most and min(longest, _NARROWEST), max_width=most and _WIDEST)
    for heading in ("state", "attempt", "time"):
        table.add_column(heading, justify="left" if heading == "state" else "right", no_wrap=True)
    table.add_column("", overflow="fold")
    shown = _chosen(run.nodes, most)
    for node in shown:
        table.add_row(
            Text(printable(node.name), **how), Text(node.state, style=_STYLES.get(node.state, "")), str(node.attempt or ""), _took(node, now),
            Text(_about(node, now), **how),
        )  # fmt: skip
    if len(shown) < len(run.nodes):
        kept = {node.name for node in shown}
        others = Counter(node.state for node in run.nodes if node.name not in kept)
        told = ", ".join(f"{count} {state}" for state, count in others.most_common())
        table.add_row(Text(f"and {others.total()} more", style="dim"), "", "", "", Text(told, style="dim", **how))
    # Not as the table's title, which is folded to the width of the table.
    return Group(head, table)


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
    return duration((node.finished_at or now) - node.started_at)


def duration(passed: timedelta) -> str:
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


def _about(node: NodeView, now: datetime) -> str:
    # Whatever is cut at the end of a line, it is the error, which is the longest.
    parts: list[str] = []
    if node.items is not None:
        items = node.items
        parts.append(
            f"{items.completed:,} of {items.total:,} items" + (f", {items.failed:,} failed" if items.failed else "")
        )
    if node.answer is not None:
        parts.append("yes" if node.answer else "no")
    if node.next_attempt_at is not None and node.state in ("delayed", "waiting"):
        is_near = abs(node.next_attempt_at - now) < timedelta(hours=20)
        parts.append(f"until {node.next_attempt_at:{'' if is_near else '%Y-%m-%d '}%H:%M:%S %Z}")
    if node.state == "leased" and node.worker:
        parts.append(f"in {printable(node.worker)}")
    if node.error is not None and node.state != "completed":
        parts.append(one_line(f"{node.error.get('type', '')}: {node.error.get('message', '')}"))
    return "; ".join(parts)


def change_line(change: Change) -> str:
    """A change in one line: when, what, where, and how it went."""
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


def listed(runs: Sequence[RunSummary], width: int | None) -> list[Text]:
    """A heading and the runs, one a line; within `width`, where columns go from the right, an error has a line below its run."""
    if not runs:
        return [Text("no runs")]
    rows = [("run", "workflow", "status", "nodes", "created")]
    for run in runs:
        state = "quarantined" if run.quarantine else run.status
        nodes = f"{run.nodes_settled}/{run.nodes_total}"
        rows.append((run.id, printable(run.workflow), state, nodes, f"{run.created_at:%Y-%m-%d %H:%M:%S}"))
    sizes = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    count = len(sizes)
    while width is not None and count > 3 and sum(sizes[:count]) + 2 * (count - 1) > width:
        count -= 1
    lines = [
        Text("  ").join(
            Text(set_cell_size(cell, size), style=_STYLES.get(cell, "") if place == 2 else "")
            for place, (cell, size) in enumerate(zip(row[:count], sizes, strict=False))
        )
        for row in rows
    ]
    lines[0].stylize("dim")
    shown = lines[:1]
    for run, line in zip(runs, lines[1:], strict=True):
        error = f"{run.error_code}: {run.error_message or ''}" if run.error_code else ""
        if width is None:
            # A line a run, for whatever reads it.
            shown.append(line + Text(f"  {one_line(error)}") if error else line)
        else:
            shown += [line, *([Text(f"  {one_line(error, width - 2)}", style="dim")] if error else [])]
    for line in shown:
        line.rstrip()
    return shown


def rest(run: RunView) -> list[Text]:
    """What there is to say of a run beside its nodes."""
    return _named(tags=dict(run.tags) or None, input=run.input or None) + outcome(run)


def outcome(run: RunView) -> list[Text]:
    """What has become of a run: its output, or its error with the traceback."""
    error = dict(run.error or {})
    trace = str(error.pop("traceback", "")).strip()
    lines = _named(output=run.output, error=error or None)
    if trace:
        lines.append(Text(printable(trace), overflow="fold"))
    if run.quarantine:
        lines.append(Text(f"quarantined: {printable(run.quarantine)}", style="red"))
    return lines


def _named(**values: Any) -> list[Text]:
    """A line for each value that is one."""
    return [
        Text(f"{name}: {one_line(json_text(value), 400)}", overflow="fold")
        for name, value in values.items()
        if value is not None
    ]
