"""Wake-ups inside one process: who sleeps, and what ends the sleep.

A wake-up only shortens a wait: whoever waits also polls, so losing one costs time and nothing else. The store rings
after its own commits; the PostgreSQL adapter also rings for what other processes announce. Everything here belongs
to one event loop; other threads come in through `anyio.from_thread`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import anyio

from composer.core.plan import Node
from composer.core.states import RunStatus


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended, as far as the ringer knows; the texts are as stored."""

    run_id: str
    status: str
    output: str | None
    error: str | None


class Taker(Protocol):
    """A worker beside the client, in one process and one loop: a new run's first tasks can go to it with the start."""

    @property
    def id(self) -> str:
        """The owner of what it takes."""
        ...

    @property
    def lease(self) -> float:
        """Seconds of its leases."""
        ...

    def grant(self, run_id: str, node: Node) -> bool:
        """Whether it takes the run's task of this node; a slot is kept for it until `take` or `refuse`."""
        ...

    def refuse(self, nodes: Sequence[Node]) -> None:
        """Tasks that were granted, and do not come after all."""
        ...

    async def take(self, tasks: Sequence[Any]) -> None:
        """Runs granted tasks, as ports.store.ClaimedTask: they are leased to it already."""
        ...


_MOST_RECENT: Final = 2_000
_SMALL: Final = 4_096


def _is_small(end: RunEnd) -> bool:
    return len(end.output or "") + len(end.error or "") <= _SMALL


class Bell:
    """Rings once for everybody who waits now, and for the next one who comes if nobody does."""

    __slots__ = ("_event", "_rung")

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._rung = False

    def ring(self) -> None:
        """End the current wait, or the next."""
        self._rung = True
        self._event.set()

    async def wait(self, timeout: float | None) -> bool:
        """Whether it rang within `timeout` seconds (None waits for ever). Ringing before the call counts."""
        if not self._rung:
            with anyio.move_on_after(timeout):
                await self._event.wait()
        rang, self._rung = self._rung, False
        if rang:
            self._event = anyio.Event()
        return rang


class Wakeups:
    """Everything somebody in this process can wait for."""

    def __init__(self) -> None:
        self.epoch = 0
        """Grows whenever something may have been missed. While it stays, every end that was announced has been heard."""
        self.taker: Taker | None = None
        """A worker of this process and loop that takes tasks at once, if there is one."""
        self._recent: dict[str, RunEnd | None] = {}
        self._ready: dict[Bell, frozenset[str]] = {}
        self._timers: set[Bell] = set()
        self._ends: dict[str, list[Callable[[RunEnd | None], None]]] = {}
        self._stops: set[Callable[[str], None]] = set()
        self._watches: dict[str, set[Bell]] = {}

    # -- ringing -----------------------------------------------------------------------------------------
    def tasks_ready(self, queues: Iterable[str]) -> None:
        """Tasks of these queues can be claimed; "*" stands for more than an announcement can name."""
        wanted = frozenset(queues)
        for bell, serves in self._ready.items():
            if "*" in wanted or not serves.isdisjoint(wanted):
                bell.ring()

    def timer_set(self) -> None:
        """Something becomes due later that may be sooner than all before."""
        for bell in self._timers:
            bell.ring()

    def run_changed(self, run_id: str) -> None:
        """The run has taken a step, in this process: other processes announce ends only."""
        for bell in self._watches.get(run_id, ()):
            bell.ring()

    def run_ended(self, run_id: str, end: RunEnd | None) -> None:
        """The run has ended; `end` when this process knows how."""
        self.run_changed(run_id)
        # A failed run can be retried by another process, of which nothing is heard: who asks for it later has to look.
        lasts = end is not None and end.status != RunStatus.FAILED and _is_small(end)
        self._recent[run_id] = end if lasts else None
        if len(self._recent) > _MOST_RECENT:
            del self._recent[next(iter(self._recent))]
        for heard in tuple(self._ends.get(run_id, ())):
            heard(end)

    def run_reopened(self, run_id: str) -> None:
        """The run goes on after it had ended: what was heard of its end no longer holds."""
        self._recent.pop(run_id, None)

    def run_stopped(self, run_id: str) -> None:
        """The run was stopped: bodies that still run for it should end."""
        for heard in tuple(self._stops):
            heard(run_id)

    def everything(self) -> None:
        """All may have changed, as after a lost connection: everybody looks again."""
        for bell in (*self._ready, *self._timers):
            bell.ring()
        self.look_for_ends()

    def look_for_ends(self) -> None:
        """Any run may have ended: whoever waits for one looks."""
        self.epoch += 1
        for run_id in self._watches:
            self.run_changed(run_id)
        for waiting in tuple(self._ends.values()):
            for heard in tuple(waiting):
                heard(None)

    # -- listening ---------------------------------------------------------------------------------------
    @contextmanager
    def on_tasks(self, queues: Iterable[str]) -> Generator[Bell]:
        """A bell for tasks of these queues."""
        bell = Bell()
        self._ready[bell] = frozenset(queues)
        try:
            yield bell
        finally:
            del self._ready[bell]

    @contextmanager
    def on_timers(self) -> Generator[Bell]:
        """A bell for new timers."""
        bell = Bell()
        self._timers.add(bell)
        try:
            yield bell
        finally:
            self._timers.discard(bell)

    @contextmanager
    def on_end(self, run_id: str, heard: Callable[[RunEnd | None], None], *, recent: bool = False) -> Generator[None]:
        """Calls `heard` when the run ends, or when it may have: None says to look. With `recent`, at once if it just did."""
        if recent and run_id in self._recent:
            heard(self._recent[run_id])
        self._ends.setdefault(run_id, []).append(heard)
        try:
            yield
        finally:
            waiting = self._ends[run_id]
            waiting.remove(heard)
            if not waiting:
                del self._ends[run_id]

    @contextmanager
    def on_changes(self, run_id: str) -> Generator[Bell]:
        """A bell for what happens to the run, as far as this process hears of it."""
        bell = Bell()
        self._watches.setdefault(run_id, set()).add(bell)
        try:
            yield bell
        finally:
            watches = self._watches[run_id]
            watches.discard(bell)
            if not watches:
                del self._watches[run_id]

    @contextmanager
    def on_stops(self, heard: Callable[[str], None]) -> Generator[None]:
        """Calls `heard` with the id of every run that is stopped."""
        self._stops.add(heard)
        try:
            yield
        finally:
            self._stops.discard(heard)

    @property
    def awaited_runs(self) -> bool:
        """Whether anybody here waits for the end of a run."""
        return bool(self._ends)
