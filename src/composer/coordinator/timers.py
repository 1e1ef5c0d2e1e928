"""Timers: retry delays, starts and deadlines, woken at the next due moment."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import anyio

from composer.apply import Applier
from composer.coordinator.maps import tend_map
from composer.core.events import DeadlinePassed, Event, Started, TimerFired
from composer.errors import PlanError, StoreUnavailable, sole_error
from composer.ports.store import Due, DueWait, Store
from composer.ports.wakeups import Bell

log = logging.getLogger("composer.coordinator")

LONGEST_SLEEP: Final = 30.0
"""Seconds between looks when nothing is due and nothing is announced. Commits announce what is due sooner."""
_MOST: Final = 500
_MOST_BESIDE: Final = 4
"""Maps whose items are stored at the same time by one coordinator."""
PAUSE: Final = 10.0
"""Seconds a coordinator has for a waiting task it took, before another one looks at it too."""


Spawn = Callable[[Callable[[], Awaitable[None]]], object]
"""Has something long go on beside the loop."""


async def fire_due(store: Store, spawn: Spawn | None = None) -> tuple[int, int]:
    """One pass: everything due now. Returns (tasks made ready, runs looked at, started or stopped for their deadline).

    What takes long, the items of a map, goes to `spawn`, so that it delays no timer; without one it is awaited here.
    """
    moved = runs = 0
    while waits := await store.take_due_waits(_MOST, PAUSE):
        fired: dict[str, list[Event]] = {}
        for wait in waits:
            await _look_at(store, wait, fired, spawn)
        if fired:
            await Applier(store).apply(fired, patience=10.0)
        runs += len(waits)
        if len(waits) < _MOST:
            break
    while (count := await store.move_due_tasks(_MOST)) > 0:
        moved += count
        if count < _MOST:
            break
    while due := await store.due_runs(_MOST):
        events: dict[str, list[Event]] = {each.head.run_id: [_event(each)] for each in due}
        applied = await Applier(store).apply(events, patience=10.0)
        runs += len(applied.transitions)
        if not applied.transitions or len(due) < _MOST:
            break
    return moved, runs


async def _look_at(store: Store, due: DueWait, fired: dict[str, list[Event]], spawn: Spawn | None) -> None:
    """Does for a waiting task what its kind of node needs; timers go into `fired`, all to be applied together.

    One that cannot be looked at does not stop the others.
    """
    try:
        plan = await store.load_plan(due.head.plan_id)
    except (PlanError, KeyError, ValueError) as error:
        await Applier(store).quarantine(due.head, error)
        return
    if plan.nodes[due.node].kind != "map":
        fired.setdefault(due.head.run_id, []).append(TimerFired(due.node, due.at, due.attempt))
    elif spawn is None:
        await tend_map(store, due, plan)
    else:
        spawn(partial(tend_map, store, due, plan))


def _event(due: Due) -> Event:
    return Started() if due.kind == "start" else DeadlinePassed(due.head.snapshot.counters.retries)


async def run_timers(store: Store, bell: Bell, *, longest: float = LONGEST_SLEEP) -> None:
    """Fires what comes due, until cancelled."""
    limiter = anyio.CapacityLimiter(_MOST_BESIDE)

    async def limited(work: Callable[[], Awaitable[None]]) -> None:
        async with limiter:
            try:
                await work()
            except StoreUnavailable as error:
                # What it was about is due again in a moment, here or elsewhere.
                log.warning("the store is away; a map waits", extra={"error": str(error)})

    try:
        async with anyio.create_task_group() as group:
            while True:
                moved, runs = await fire_due(store, lambda work: group.start_soon(limited, work))
                if moved or runs:
                    log.debug("timers fired", extra={"tasks": moved, "runs": runs})
                due_in = await store.next_due_in()
                await bell.wait(longest if due_in is None else min(longest, max(due_in, 0.001)))
    except BaseExceptionGroup as error:
        # The loop's own error, as whoever keeps it going knows it.
        raise sole_error(error) from None
