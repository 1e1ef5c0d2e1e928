"""Starting the loops in their order, and keeping them going."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import anyio

from composer.apply import persistently
from composer.coordinator.recovery import recover, run_recovery
from composer.coordinator.timers import LONGEST_SLEEP, run_timers
from composer.errors import StoreUnavailable
from composer.ports.store import Store
from composer.settings import Settings

log = logging.getLogger("composer.coordinator")

PARTITION_INTERVAL: Final = 6 * 3600.0
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 2.0


async def run_coordinator(store: Store, settings: Settings) -> None:
    """Runs every loop until cancelled.

    The order of the start is fixed: partitions (a failure there ends the start, with its error), then one recovery
    pass, so that work orphaned while everything was down leaves first, then the loops.
    """
    await store.make_partitions()
    await persistently(lambda: recover(store), 30.0)
    wakeups = store.wakeups
    # Behind a pooler nothing is announced, so the loops look as often as a worker polls.
    longest = settings.poll_interval if settings.pooler else LONGEST_SLEEP
    interval = min(settings.recovery_interval, max(0.25, settings.lease / 4))
    with wakeups.on_timers() as timers, wakeups.on_timers() as recovery:
        async with anyio.create_task_group() as group:
            group.start_soon(supervised, "timers", lambda: run_timers(store, timers, longest=longest))
            group.start_soon(supervised, "recovery", lambda: run_recovery(store, recovery, interval=interval))
            group.start_soon(supervised, "partitions", lambda: _run_partitions(store))


async def _run_partitions(store: Store) -> None:
    while True:
        await anyio.sleep(PARTITION_INTERVAL)
        await store.make_partitions()


async def supervised(name: str, loop: Callable[[], Awaitable[None]]) -> None:
    """Keeps a loop going whatever it raises: logged, then begun again after a growing pause."""
    pause = _FIRST_PAUSE
    while True:
        began = anyio.current_time()
        try:
            await loop()
        except StoreUnavailable as error:
            log.warning(
                "the store is away; a coordinator loop waits",
                extra={"service": name, "error": str(error), "pause": pause},
            )
        except Exception as error:
            log.error(
                "a coordinator loop failed and begins again",
                extra={"service": name, "error": f"{type(error).__name__}: {error}", "pause": pause},
                exc_info=error,
            )
        if anyio.current_time() - began > _LONGEST_PAUSE:
            pause = _FIRST_PAUSE
        await anyio.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
