"""An async context whose inside lives in a task of its own: any task of the loop may enter it, and any other may leave.

A task group has to be left by the task that entered it. Where setting up and tearing down are two tasks, as in the cells of
a notebook and in fixtures of some test frameworks, what holds a task group needs a host.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio

from composer.errors import sole_error

log = logging.getLogger("composer")


class Hosted:
    """Keeps one async context open, from `enter` to `leave`, once."""

    def __init__(self, context: AbstractAsyncContextManager[Any], name: str) -> None:
        self.in_haste = False
        """Set before the context is left because of an error or a cancellation: what can be put off is not waited for."""
        self._context, self._name = context, name
        self._leave = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._guarded: asyncio.Task[Any] | None = None
        self._has_interrupted = False

    @property
    def has_ended(self) -> bool:
        """Whether the context is left: it was told to, broke down, or its event loop has ended."""
        return self._task is not None and self._task.done()

    @property
    def is_elsewhere(self) -> bool:
        """Whether the loop that runs here is another than the one it lives in."""
        return not self.has_ended and asyncio._get_running_loop() not in (None, self._loop)

    async def enter(self, *, guard: bool) -> None:
        """Returns once the context is entered. Raises what entering raised.

        With `guard`, the calling task is cancelled when the context ends by itself before `leave`, which then raises why:
        a block does not go on over services that are gone.
        """
        self._loop = asyncio.get_running_loop()
        entered: asyncio.Future[None] = self._loop.create_future()
        self._task = asyncio.create_task(self._live(entered), name=self._name)
        try:
            await asyncio.wait({self._task, entered}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._end()
            raise
        if self._task.done():
            raise sole_error(self._failure() or RuntimeError(f"{self._name} ended while it began"))
        if guard:
            self._guarded = asyncio.current_task()
        self._task.add_done_callback(self._interrupt)

    async def leave(self, error: BaseException | None = None) -> None:
        """Leaves the context and returns once it is left. Raises what ended it before, or what leaving raised.

        `error` is what the caller's block raised; a cancellation that `guard` brought about is taken back.
        """
        assert self._task is not None
        guarded, self._guarded = self._guarded, None
        self.in_haste = error is not None
        self._leave.set()
        try:
            # Of a task that has ended the loop may be gone.
            if not self._task.done():
                await asyncio.wait({self._task})
        except asyncio.CancelledError as cancelled:
            await self._end()
            error = cancelled
            if not self._has_interrupted:
                raise
        taken_back = not self._has_interrupted or guarded is None or guarded.uncancel() == 0
        failure = self._failure()
        if failure is not None and taken_back:
            raise sole_error(failure) from error

    async def _live(self, entered: asyncio.Future[None]) -> None:
        async with self._context:
            entered.set_result(None)
            await self._leave.wait()

    async def _end(self) -> None:
        assert self._task is not None
        self.in_haste = True
        self._task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait({self._task})
        self._failure()  # Looked at, or asyncio complains that nobody did.

    def _failure(self) -> BaseException | None:
        assert self._task is not None
        return None if self._task.cancelled() else self._task.exception()

    def _interrupt(self, _: object) -> None:
        if self._leave.is_set():
            return
        log.error("%s has ended before it was told to", self._name, exc_info=self._failure())
        if self._guarded is not None and not self._guarded.done():
            self._has_interrupted = True
            self._guarded.cancel()
