"""A thread with an event loop, for code without one; and what becomes of it when its process forks.

anyio has such portals as a context manager, which a program that ends without leaving it is never rid of: collecting it
would wait for a thread that no longer runs.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

T = TypeVar("T")


class Portal:
    """Runs from its making until `stop`. The thread is a daemon: no program waits for it."""

    def __init__(self) -> None:
        started: Future[tuple[BlockingPortal, asyncio.AbstractEventLoop]] = Future()
        self._thread = threading.Thread(target=_live, args=(started,), name="composer client", daemon=True)
        self._thread.start()
        self._portal, self._loop = started.result()

    def begin(self, method: Callable[..., Awaitable[T]], *args: Any) -> Future[T]:
        """Starts it in the portal's loop. Cancelling the future cancels it."""
        return self._portal.start_task_soon(method, *args)

    def stop(self, limit: float | None = None) -> None:
        """Cancels what is under way and ends the thread; waits for that, `limit` seconds at most."""
        self._portal.start_task_soon(self._portal.stop, True)
        self._thread.join(limit)

    def leave_behind(self, *more: object) -> None:
        """In a process that was forked off: gives up this one's copies of the portal's sockets, and what belongs to them.

        Closing the copy of an epoll, or taking a socket out of it, would be felt by the parent, which has the same one. So
        each descriptor is pointed nowhere and keeps its number. And tasks and connections that lost their thread
        half-way have nothing good to do at their end: they are kept, and so is `more`.
        """
        selector: Any = getattr(self._loop, "_selector", None)
        if selector is not None:
            descriptors = [*selector.get_map()]
            if hasattr(selector, "fileno"):
                descriptors.append(selector.fileno())
            nowhere = os.open(os.devnull, os.O_RDWR)
            for descriptor in descriptors:
                os.dup2(nowhere, descriptor, inheritable=False)
            os.close(nowhere)
        _left_behind.append((self, asyncio.all_tasks(self._loop), *more))


_left_behind: Final[list[object]] = []


def _live(started: Future[tuple[BlockingPortal, asyncio.AbstractEventLoop]]) -> None:
    async def main() -> None:
        async with BlockingPortal() as portal:
            started.set_result((portal, asyncio.get_running_loop()))
            await portal.sleep_until_stopped()

    try:
        anyio.run(main)
    except BaseException as error:
        if started.done():
            raise
        started.set_exception(error)
