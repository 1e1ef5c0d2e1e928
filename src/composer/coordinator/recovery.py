"""Recovery: takes work back from workers that are not heard of, and puts lost dispatches right."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from typing import Final

from composer.apply import Applier
from composer.core.events import Event, LeaseExpired
from composer.ports.store import Store
from composer.ports.wakeups import Bell

log = logging.getLogger("composer.coordinator")

_MOST: Final = 500
LOST_DISPATCH_AFTER: Final = 60.0
"""Seconds a ready task may be without an outbox row before it gets one. Only a defect or a hand in the tables makes one."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What one pass did."""

    expired: int
    """Leases that were over: their tasks were put back, or failed for good."""
    redispatched: int
    """Ready tasks that nobody would have been handed."""
    removed: int
    """Hand-outs of tasks that were no longer ready."""

    @property
    def found_any(self) -> bool:
        """Whether there was anything to do."""
        return bool(self.expired or self.redispatched or self.removed)


async def recover(store: Store, *, lost_after: float = LOST_DISPATCH_AFTER) -> Recovered:
    """One pass, whoever else does the same now: over every expired lease, and over the next page of dispatches."""
    expired = 0
    while found := await store.expired_tasks(_MOST):
        events: dict[str, list[Event]] = {}
        for head, delivery in found:
            events.setdefault(head.run_id, []).append(LeaseExpired(delivery, random.random()))
        applied = await Applier(store).apply(events, patience=10.0)
        swept = applied.items + sum(len(made.changes) for made in applied.transitions.values())
        expired += swept
        if not swept or len(found) < _MOST:
            break
    put, removed = await store.repair_outbox(_MOST, lost_after)
    recovered = Recovered(expired, put, removed)
    if recovered.expired or recovered.redispatched:
        log.warning(
            "recovery found work without a worker", extra={"expired": expired, "redispatched": put, "removed": removed}
        )
    return recovered


async def run_recovery(store: Store, bell: Bell, *, interval: float) -> None:
    """A pass every `interval` seconds, and whenever leases were ended early, until cancelled."""
    while True:
        await bell.wait(interval)
        await recover(store)
