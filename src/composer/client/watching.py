"""watch(): everything that happened to a run, then everything that happens, until it has ended.

Two sources are merged. History has one row a transition, and a transition tells how deliveries ended. That a body
*began* is no transition: it stands in the task's row while the body runs, and in history once it has ended. So a start
is told as soon as either shows it, once a delivery, and in its place among the transitions.

What wakes: transitions made in this process, ends announced by others, and else a look now and then, soon after
something happened and up to `poll_interval` later.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from composer.apply import persistently
from composer.core.plan import Plan
from composer.core.states import ENDED_RUN, NodeState
from composer.errors import RunNotFound
from composer.ports.store import BegunTask, HistoryRow, RunChanges, Store

PAGE: Final = 500
"""Transitions read in one statement."""
_FIRST_PAUSE: Final = 0.05
_TOLD_BY_EVENTS: Final = {NodeState.SKIPPED: "node-skipped", NodeState.CANCELLED: "node-cancelled"}
"""States of nodes that follow from what happened elsewhere, so that no event of the node's own tells of them."""


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that happened to a run.

    `event` is history's word for it (step-completed, step-failed, cancel-requested, ...) or for what followed (map-started,
    wait-started, sleep-started, race-won, ...), or step-started, condition-answered, condition-failed, node-skipped,
    node-cancelled, run-completed, run-failed, run-cancelled.
    """

    version: int
    """The run's version it belongs to; a start has that of the transition before it. A version can have several changes."""
    at: datetime
    """On the database's clock."""
    event: str
    node: str | None = None
    item: int | None = None
    """Index of the map item."""
    attempt: int | None = None
    delivery: int | None = None
    worker: str | None = None
    status: str | None = None
    """The run's status, where this version changed it."""
    outcome: str | None = None
    """How a delivery ended: completed, failed (for good), retried, crashed, snoozed, released."""
    error: str | None = None
    """Type and message."""
    delay: float | None = None
    """Seconds until the next attempt."""
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The history entry as it is stored."""


class Merge:
    """What a watch has told so far, and what follows from the next piece. Pure."""

    def __init__(self, after_version: int) -> None:
        self.after = after_version
        self.version = max(0, after_version - 1)
        """Up to here transitions were read. The one that was told last is read again, for its time."""
        self._told: dict[tuple[str, int], int] = {}
        """The last delivery whose start was told, by node and item."""
        self._ended_at: dict[tuple[str, int], datetime] = {}
        self._opened: dict[tuple[str, int], int] = {}
        """The version before which a start of the task cannot have been, by node and item."""
        self._first_at: datetime | None = None

    def take(self, plan: Plan, found: RunChanges, *, is_all: bool) -> list[Change]:
        """What `found` adds, in order. With `is_all` its history goes up to the run as it is."""
        times = [(row.version, row.at) for row in found.history]
        placed: list[tuple[tuple[int, int, float], Change]] = []

        def start(name: str, item: int, task: BegunTask, before: int) -> None:
            self._told[name, item] = task.delivery
            version = max((v for v, at in times if at <= task.at), default=self.version)
            opened = max(self._opened.get((name, item), 0), self._opened.get((name, -1), 0), self.after)
            version = max(min(version, before), opened)
            change = Change(
                version, task.at, "step-started", name, item if item >= 0 else None, task.attempt, task.delivery, task.worker
            )  # fmt: skip
            placed.append(((version, 1, task.at.timestamp()), change))

        for row in found.history:
            for entry in row.changes.get("events", ()):
                name, item = entry.get("node"), entry.get("item", -1)
                if name is None or "delivery" not in entry:
                    continue
                delivery = entry["delivery"]
                if row.version > self.after and "claimed_at" in entry and delivery > self._told.get((name, item), 0):
                    at = datetime.fromtimestamp(entry["claimed_at"], UTC)
                    task = BegunTask(-1, entry["attempt"], delivery, False, entry.get("worker"), at)
                    start(name, item, task, row.version - 1)
                self._told[name, item] = max(delivery, self._told.get((name, item), 0))
                self._ended_at[name, item] = row.at
                self._opened[name, item] = row.version
            for name in row.changes.get("nodes", ()):
                self._opened[name, -1] = row.version
            self._first_at = self._first_at or row.at
            if row.version > self.after:
                placed += [((row.version, 0, i), change) for i, change in enumerate(_told_by(row))]
        if is_all:
            for task in found.begun:
                name = plan.nodes[task.node].name
                if task.delivery > self._told.get((name, -1), 0) and not self._is_old(name, task):
                    start(name, -1, task, found.head.snapshot.version)
        if found.history:
            self.version = found.history[-1].version
        self.after = max(self.after, self.version)
        placed.sort(key=lambda each: each[0])
        return [change for _, change in placed]

    def _is_old(self, name: str, task: BegunTask) -> bool:
        """Whether a stopped task's row still shows the body before: a task given back has a new delivery and the old start."""
        if not task.is_stopped:
            return False
        before = self._ended_at.get((name, -1), self._first_at)
        return before is not None and task.at <= before


def _told_by(row: HistoryRow) -> list[Change]:
    status: str | None = row.changes.get("status")
    changes: list[Change] = []
    named: set[str] = set()
    for entry in row.changes.get("events", ()):
        named.add(entry.get("node", ""))
        changes.append(
            Change(
                row.version,
                row.at,
                entry["event"],
                entry.get("node"),
                entry.get("item"),
                entry.get("attempt"),
                entry.get("delivery"),
                entry.get("worker"),
                status,
                entry.get("outcome"),
                entry.get("error"),
                entry.get("delay"),
                entry,
            )
        )
    for entry in row.changes.get("follows", ()):
        named.add(entry["node"])
        changes.append(
            Change(
                row.version, row.at, entry["event"], entry["node"], status=status, error=entry.get("error"), facts=entry
            )
        )
    for name, answer in row.changes.get("guards", {}).items():
        facts = {"answer": answer}
        changes.append(Change(row.version, row.at, "condition-answered", name, status=status, facts=facts))
    for name, why in row.changes.get("unevaluable", {}).items():
        named.add(name)
        changes.append(Change(row.version, row.at, "condition-failed", name, status=status, error=why))
    for name, letter in row.changes.get("nodes", {}).items():
        event = _TOLD_BY_EVENTS.get(NodeState(letter))
        if event is not None and name not in named:
            changes.append(Change(row.version, row.at, event, name, status=status))
    if status in ENDED_RUN:
        changes.append(Change(row.version, row.at, f"run-{status}", status=status))
    return changes


class Watch:
    """One watch over one run: the same for both clients."""

    def __init__(
        self,
        store: Callable[[], Store],
        run_id: str,
        *,
        after_version: int,
        poll_interval: float,
        listen: Callable[[], Awaitable[None]],
    ) -> None:
        self._store, self._run_id, self._listen, self._longest = store, run_id, listen, poll_interval
        self._merge = Merge(after_version)
        self._is_over = False

    async def more(self) -> list[Change]:
        """The next changes, once there are some; empty once the run has ended and everything was told. Raises RunNotFound.

        While the database is away it waits for it.
        """
        store, merge, pause = self._store(), self._merge, _FIRST_PAUSE
        with store.wakeups.on_changes(self._run_id) as bell:
            while not self._is_over:
                found = await persistently(lambda: store.changes(self._run_id, merge.version, PAGE), None)
                if found is None:
                    raise RunNotFound(self._run_id, store.namespace)
                is_all = len(found.history) < PAGE
                plan_id = found.head.plan_id
                plan = await persistently(lambda: store.load_plan(plan_id), None)  # noqa: B023
                changes = merge.take(plan, found, is_all=is_all)
                self._is_over = is_all and found.head.snapshot.status in ENDED_RUN
                if changes:
                    return changes
                if not self._is_over and is_all:
                    await self._listen()
                    await bell.wait(pause)
                    pause = min(2 * pause, self._longest)
        return []
