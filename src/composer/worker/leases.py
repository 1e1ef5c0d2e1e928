"""The keeper: renews every lease of a worker from a thread of its own, with its own event loop and connection.

User code that blocks the worker's loop cannot starve it. One statement renews all leases that are due, and its
answer says which attempts were stopped or taken over. The keeper also watches the worker's loop: when it does not
answer, the step whose code is running there is named in the log, with the line and for how long.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import anyio

from composer.errors import StoreUnavailable
from composer.ports.store import Beat, Renewal, Store, WorkerRecord
from composer.worker.attempt import Attempt

log = logging.getLogger("composer.worker")

_TICK: Final = 0.25
"""Seconds between looks at what is due. Leases are half a second or more."""
_BLOCKED_AFTER: Final = 1.0
"""Seconds without an answer from the worker's loop before the step that holds it is named."""
_CHECKPOINT_AFTER: Final = 1.0
"""Seconds after which a checkpoint is stored even when no lease is due."""


@dataclass(slots=True)
class _Lease:
    attempt: Attempt
    seconds: float
    manual: bool
    due: float
    """Monotonic moment of the next renewal."""
    stored: str | None = None
    """The checkpoint last stored."""
    unstored_since: float | None = None


class Keeper:
    """Keeps the leases of one worker. `hold` and `drop` are called in the worker's loop, `beat` anywhere."""

    def __init__(
        self,
        store: Store,
        *,
        owner: str,
        lease: float,
        lost: Callable[[Attempt, Renewal], None],
        record: Callable[[], WorkerRecord],
        step_at: Callable[[Any], str | None],
    ) -> None:
        self._store, self._owner, self._lease = store, owner, lease
        self._lost, self._record, self._step_at = lost, record, step_at
        self._leases: dict[int, _Lease] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._answered = time.monotonic()

    # -- the worker's side ---------------------------------------------------------------------------------
    def hold(self, attempt: Attempt) -> None:
        """The attempt's lease is kept from now on."""
        options = attempt.node.options
        seconds = options.heartbeat_timeout or self._lease
        with self._lock:
            self._leases[id(attempt)] = _Lease(
                attempt, seconds, options.heartbeat == "manual", time.monotonic() + seconds / 3
            )

    def drop(self, attempt: Attempt) -> None:
        """The attempt's lease is no longer kept."""
        with self._lock:
            self._leases.pop(id(attempt), None)

    def beat(self, attempt: Attempt) -> None:
        """The attempt's body gave a sign of life."""
        with self._lock:
            lease = self._leases.get(id(attempt))
            if lease is not None and attempt.details is not lease.stored and lease.unstored_since is None:
                lease.unstored_since = time.monotonic()

    def start(self) -> None:
        """Starts the thread. Call it in the worker's loop."""
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._thread = threading.Thread(
            target=lambda: anyio.run(self._keep_in_thread), name="composer-keeper", daemon=True
        )
        self._thread.start()

    async def stop(self) -> None:
        """Ends the thread and waits for it."""
        self._stop.set()
        thread = self._thread
        if thread is not None:
            await anyio.to_thread.run_sync(thread.join, 10.0, abandon_on_cancel=True)

    # -- the thread ------------------------------------------------------------------------------------------
    async def _keep_in_thread(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    await self.keep()
                except Exception as error:
                    # Without a keeper every lease of this worker would end, and nobody would know why.
                    log.error("the keeper failed and begins again", exc_info=error)
                    await anyio.sleep(_TICK)
        finally:
            with anyio.CancelScope(shield=True):
                await self._store.close()

    async def keep(self) -> None:
        """Renews until stopped or cancelled."""
        registered = 0.0
        probe_sent = 0.0
        told = 0.0
        away_since: float | None = None
        while not self._stop.is_set():
            now = time.monotonic()
            try:
                if now - registered >= self._lease / 3:
                    await self._store.register_worker(self._record(), ttl=self._lease * 2)
                    registered = now
                await self._renew_due(now)
                away_since = None
            except StoreUnavailable as error:
                away_since = away_since or now
                log.warning(
                    "leases cannot be renewed",
                    extra={"error": str(error), "for": round(now - away_since, 1), "leases": len(self._leases)},
                )
            # A question to the worker's loop, one at a time. Its answer is a fresh `_answered`.
            if self._loop is None:
                pass  # It shares the worker's loop, and cannot ask it anything.
            elif self._answered >= probe_sent:
                probe_sent, told = now, 0.0
                self._ask()
            elif now - probe_sent >= max(_BLOCKED_AFTER, told * 2):
                told = now - probe_sent
                self._name_what_blocks(told)
            await anyio.sleep(_TICK)

    async def _renew_due(self, now: float) -> None:
        with self._lock:
            due: list[_Lease] = []
            for lease in self._leases.values():
                late_checkpoint = lease.unstored_since is not None and now - lease.unstored_since >= _CHECKPOINT_AFTER
                if not late_checkpoint and now < lease.due:
                    continue
                # With manual heartbeats only the step's own renew, so that a hung body is found too.
                if lease.manual and not lease.attempt.beaten:
                    continue
                lease.attempt.beaten = False
                due.append(lease)
        if not due:
            return
        kept = [lease.attempt.details if lease.attempt.details is not lease.stored else None for lease in due]
        beats = [
            Beat(lease.attempt.claimed.run.run_id, lease.attempt.task, lease.seconds, details)
            for lease, details in zip(due, kept, strict=True)
        ]
        try:
            answers = await self._store.renew(beats, owner=self._owner)
        except BaseException:
            # The sign of life is still to be passed on.
            for lease in due:
                lease.attempt.beaten = True
            raise
        done = time.monotonic()
        for lease, details, answer in zip(due, kept, answers, strict=True):
            lease.due = done + lease.seconds / 3
            if details is not None and answer is Renewal.OWNED:
                with self._lock:
                    # One that came meanwhile is newer, and is to be stored as soon as this one was.
                    lease.stored = details
                    lease.unstored_since = None if lease.attempt.details is details else done
            if answer is Renewal.BUSY:
                lease.attempt.beaten = True
                lease.due = done + min(1.0, lease.seconds / 6)
            elif answer in (Renewal.CANCELLED, Renewal.LOST):
                self._call(self._lost, lease.attempt, answer)

    def _ask(self) -> None:
        self._call(self._answer)

    def _answer(self) -> None:
        self._answered = time.monotonic()

    def _call(self, function: Callable[..., None], *args: Any) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(function, *args)

    def _name_what_blocks(self, seconds: float) -> None:
        frame = sys._current_frames().get(self._loop_thread)
        step = line = None
        while frame is not None:
            step = self._step_at(frame.f_code)
            if step is not None:
                line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                break
            frame = frame.f_back
        if step is None:
            log.warning("the worker's event loop does not answer", extra={"seconds": round(seconds, 1)})
        else:
            log.warning(
                f"step {step} blocks the event loop for {seconds:.1f} s at {line}; "
                "other steps of this worker stand still: make it a plain `def` step, which runs in a thread",
                extra={"step": step, "line": line, "seconds": round(seconds, 1)},
            )
