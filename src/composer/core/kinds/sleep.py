"""A sleep: nothing is held meanwhile but a row with a moment. Its value is the moment it ended."""

from __future__ import annotations

import json
import math
from datetime import UTC
from typing import Any, Final

from composer.core.conditions import NotOfKind, read
from composer.core.draft import Draft
from composer.core.events import Failure, FailureKind, Report, TimerFired
from composer.core.expressions import Unreadable, render
from composer.core.plan import Node
from composer.core.states import NodeState, TaskState

LONGEST: Final = 100 * 365.25 * 86_400.0
"""Seconds of the longest sleep: a century. More is a mistake, and near the end of what dates can say."""


def activate(draft: Draft, node: Node) -> None:
    """What it waits for is known: it sleeps, or has slept already when there is nothing to wait for."""
    if not draft.has_all(node.reads, node.reads_settled):
        return
    try:
        if "until" in node.args:
            moment = _moment(json.loads(render(draft.plan, node.args["until"], draft.known())))
            draft.follow("sleep-started", node, until=moment)
            draft.wait(node, NodeState.WAITING, wake_at=moment)
            return
        seconds = _seconds(json.loads(render(draft.plan, node.args["for"], draft.known())))
    except (Unreadable, NotOfKind, ValueError) as error:
        why = f"sleep {node.name}: {error}"
        draft.follow("sleep-failed", node, error=why)
        draft.fail_unstarted(node, Failure(FailureKind.PAYLOAD, "SleepUnreadable", why))
        return
    if seconds <= 0.0 and not draft.plan.is_read(node.index):
        # The moment it ended is asked for by nobody, so nobody has to stamp it.
        draft.follow("sleep-ended", node)
        draft.settle(node.index, NodeState.COMPLETED)
        return
    draft.follow("sleep-started", node, seconds=seconds)
    draft.wait(node, NodeState.WAITING, wake_in=max(0.0, seconds))


def apply(draft: Draft, node: Node, event: Report | TimerFired) -> None:
    """Its moment has come."""
    if not isinstance(event, TimerFired):
        draft.ignore(event, f"node {node.name} is a sleep and has no body")
        return
    if draft.letters[node.index] != NodeState.WAITING:
        draft.ignore(event, f"node {node.name} is {NodeState(draft.letters[node.index]).word}")
        return
    output = json.dumps(event.at)
    draft.end_wait(node, TaskState.COMPLETED, output=output, attempt=event.attempt)
    draft.values[node.index] = output
    draft.record("sleep-ended", node=node.name)
    draft.settle(node.index, NodeState.COMPLETED)


def stop(draft: Draft, node: Node) -> None:
    """The run stops, and its timer with it."""
    draft.letters[node.index] = NodeState.CANCELLED


def explain(node: Node, letter: NodeState) -> str:
    """What the node waits for, in words."""
    return f"{node.name} sleeps" if letter is NodeState.WAITING else letter.word


def _seconds(value: Any) -> float:
    """Seconds of a number or of a duration as pydantic writes one. Raises NotOfKind, ValueError for a century and more."""
    try:
        seconds = read(value, "timedelta").total_seconds() if isinstance(value, str) else float(read(value, "number"))
    except OverflowError:
        # An integer may have more digits than a float can: it is too long either way, and not worth printing.
        raise ValueError("a number of hundreds of digits is no number of seconds to sleep") from None
    if math.isinf(seconds) or seconds > LONGEST:
        raise ValueError(f"{value!r} is longer than a century, the longest sleep there is")
    return seconds


def _moment(value: Any) -> str:
    """A moment as text in UTC. Raises NotOfKind, ValueError for one without a time zone."""
    moment = read(value, "datetime")
    if moment.tzinfo is None:
        raise ValueError(f"{value!r} has no time zone, so nobody knows which moment it is")
    try:
        # In UTC, since PostgreSQL takes offsets of less than 16 hours only, and Python any of less than a day.
        moment = moment.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{value!r} is no moment to sleep until") from None
    # What PostgreSQL cannot store is nothing to sleep for.
    if moment.year >= 9999:
        raise ValueError(f"{value!r} is no moment to sleep until")
    text: str = moment.isoformat()
    return text
