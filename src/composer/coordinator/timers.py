"""Timers: retry delays, starts and deadlines, woken at the next due moment."""

from __future__ import annotations

import logging
from typing import Final

from composer.apply import Applier
from composer.core.events import DeadlinePassed, Event, Started
from composer.core.limits import MAX_PAYLOAD
from composer.ports.store import Due, Store
from composer.ports.wakeups import Bell

log = logging.getLogger("composer.coordinator")

LONGEST_SLEEP: Final = 30.0
"""Seconds between looks when nothing is due and nothing is announced. Commits announce what is due sooner."""
_MOST: Final = 500


async def fire_due(store: Store, *, max_payload: int = MAX_PAYLOAD) -> tuple[int, int]:
    """One pass: everything due now. Returns (tasks made ready, runs started or stopped for their deadline)."""
    moved = runs = 0
    while (count := await store.move_due_tasks(_MOST)) > 0:
        moved += count
        if count < _MOST:
            break
    while due := await store.due_runs(_MOST):
        events: dict[str, list[Event]] = {each.head.run_id: [_event(each)] for each in due}
        applied = await Applier(store, max_payload=max_payload).apply(events, patience=10.0)
        runs += len(applied.transitions)
        if not applied.transitions or len(due) < _MOST:
            break
    return moved, runs


def _event(due: Due) -> Event:
    return Started() if due.kind == "start" else DeadlinePassed(due.head.snapshot.counters.retries)


async def run_timers(
    store: Store, bell: Bell, *, longest: float = LONGEST_SLEEP, max_payload: int = MAX_PAYLOAD
) -> None:
    """Fires what comes due, until cancelled."""
    while True:
        moved, runs = await fire_due(store, max_payload=max_payload)
        if moved or runs:
            log.debug("timers fired", extra={"tasks": moved, "runs": runs})
        due_in = await store.next_due_in()
        await bell.wait(longest if due_in is None else min(longest, max(due_in, 0.001)))
