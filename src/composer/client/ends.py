"""Waiting until runs have ended: their ends are heard where somebody announces them, and read otherwise.

Commits announce ends only while somebody sleeps who wants to hear them, so a client that waits says that it sleeps, and says so
again as long as it waits. What was not announced is read every `poll_interval`, by one statement for everybody who waits.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

import anyio
from anyio.abc import TaskGroup

from composer.apply import persistently
from composer.core.states import ENDED_RUN
from composer.errors import ClientError, ResultTimeout, RunNotFound, StoreUnavailable
from composer.ports.store import Store
from composer.ports.wakeups import RunEnd

_MOST_FRESH: Final = 10_000
_SLEEP_TTL: Final = 30.0
_SLEEP_RENEWED: Final = 10.0


class Ends:
    """How the runs end that the tasks of one client wait for. While the database is away a wait goes on for `patience` seconds."""

    def __init__(self, store: Callable[[], Store], *, patience: float, poll_interval: float) -> None:
        self._store, self._patience, self._poll_interval = store, patience, poll_interval
        self._reader = _EndReader(store, patience)
        self._id = f"client-{secrets.token_hex(8)}"
        self._group: TaskGroup | None = None
        self._asleep_until = 0.0
        self._is_listening = False
        self._fresh: dict[str, int] = {}
        """Runs started here while ends were heard, with the wake-ups' epoch at that time."""

    def begin(self, group: TaskGroup | None) -> None:
        """The client is open. In `group` notifications are heard; None where the worker does whose store the client shares."""
        self._group, self._asleep_until, self._is_listening = group, 0.0, False
        self._fresh.clear()

    async def end(self, store: Store) -> None:
        """Takes back its word, as nobody need be notified for its sake any more."""
        if self._asleep_until:
            # Left there it would only lapse, as it does where the worker has ended before it whose store it shares.
            with anyio.move_on_after(1.0, shield=True), suppress(StoreUnavailable, ClientError):
                await store.set_sleeping(self._id, asleep=False, ttl=0.0)

    async def wait(self, run_id: str, *, timeout: float | None) -> RunEnd:
        """How the run ended, once it has; texts as stored. Raises RunNotFound, ResultTimeout."""
        store = self._store()
        heard: list[RunEnd | None] = []
        woken = anyio.Event()

        def hear(end: RunEnd | None) -> None:
            heard.append(end)
            woken.set()

        # A run that was started here while everything was heard has been heard to end, or has not ended.
        known_open = self._fresh.pop(run_id, -1) == store.wakeups.epoch and self.are_heard
        with store.wakeups.on_end(run_id, hear, recent=known_open), anyio.move_on_after(timeout):
            await self.listen(self._patience)
            while True:
                known = next((end for end in heard if end is not None), None)
                if known is None and (heard or not known_open):
                    heard.clear()
                    known = await self._reader.read(run_id)
                    if known is None:
                        raise RunNotFound(run_id, store.namespace)
                if known is not None and known.status in ENDED_RUN:
                    return known
                known_open = False
                if not heard:
                    woken = anyio.Event()
                    with anyio.move_on_after(self._poll_interval):
                        await woken.wait()
                await self._stay_asleep(self._patience)
        raise ResultTimeout(
            run_id,
            f"has not ended within {timeout:g} s",
            "It goes on: wait again, or client.get(run_id) shows where it is.",
        )

    async def listen(self, patience: float | None) -> None:
        """Has ends and changes announced that other processes bring about. Without `patience` it waits for the database."""
        if not self._is_listening:
            self._is_listening = True
            if self._group is not None:
                self._group.start_soon(self._store().listen)
        await self._stay_asleep(patience)

    @property
    def are_heard(self) -> bool:
        """Whether the end of any run is announced to this client now."""
        return self._is_listening and anyio.current_time() < self._asleep_until

    async def _stay_asleep(self, patience: float | None) -> None:
        now = anyio.current_time()
        if now > self._asleep_until:
            self._asleep_until = now + _SLEEP_RENEWED
            await persistently(lambda: self._store().set_sleeping(self._id, asleep=True, ttl=_SLEEP_TTL), patience)

    def begun(self, run_ids: Iterable[str]) -> None:
        """Runs that were started here while ends were heard: whoever waits for one of them need not read it first."""
        for run_id in run_ids:
            self._fresh[run_id] = self._store().wakeups.epoch
        while len(self._fresh) > _MOST_FRESH:
            del self._fresh[next(iter(self._fresh))]

    def begins_again(self, run_id: str) -> None:
        """A run that had ended goes on: what was heard of it no longer counts."""
        self._fresh.pop(run_id, None)


class _EndReader:
    """Reads how runs ended for everybody who asks: while one read is under way, the next batch gathers."""

    def __init__(self, store: Callable[[], Store], patience: float) -> None:
        self._store, self._patience = store, patience
        self._waiting: dict[str, list[anyio.Event]] = {}
        self._found: dict[str, RunEnd] = {}
        self._reading = anyio.Lock()

    async def read(self, run_id: str) -> RunEnd | None:
        """Status, output and error of a run; None when there is no such run."""
        done = anyio.Event()
        self._waiting.setdefault(run_id, []).append(done)
        async with self._reading:
            if not done.is_set():
                batch, self._waiting = self._waiting, {}
                try:
                    self._found = await persistently(lambda: self._store().run_ends(sorted(batch)), self._patience)
                except BaseException:
                    # Cancelled or in vain: whoever else waits for this read reads for the rest.
                    for each, waiting in batch.items():
                        self._waiting.setdefault(each, []).extend(waiting)
                    raise
                for waiting in batch.values():
                    for event in waiting:
                        event.set()
            return self._found.get(run_id)
