"""Client: the same methods as AsyncClient, for code without an event loop. Each call goes through one portal.

The portal is a thread with an event loop, started by `with Client() as client:` and ended with it. A client that nobody
closes is closed when the interpreter exits. A process that is forked off has the client but not its thread, and copies of
its sockets: there the client is closed, and what it had of the parent's connections is let go unseen.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any, Final, Generic, NoReturn, Self, TypeVar, overload
from weakref import WeakSet

from typing_extensions import TypeVarTuple, Unpack

from composer.apply import persistently
from composer.client.async_client import NO_COPIES, PATIENCE, AsyncClient, AsyncRunHandle, CancelResult, RetryResult
from composer.client.explaining import Explanation
from composer.client.listing import Listing, RunSummary, query_of
from composer.client.portal import Portal
from composer.client.signals import SignalResult
from composer.client.starting import paired, refuse_options
from composer.client.views import RunView
from composer.client.watching import Change
from composer.coordinator.recovery import Recovered
from composer.define.workflow import Startable, Workflow
from composer.errors import ClientError, TransactionError
from composer.ports.store import HistoryRow
from composer.settings import Settings

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_LAST_CLOSE: Final = 3.0
"""Seconds that closing may take when the interpreter exits: nothing is lost without it, and nobody waits for it."""


class RunHandle(Generic[R_co]):
    """A started run. `created` says whether this start made it, or an earlier one with the same idempotency key."""

    __slots__ = ("_call", "_client", "_handle", "created", "id")

    def __init__(self, client: Client, handle: AsyncRunHandle[R_co]) -> None:
        self._call, self._client, self._handle = client.call, client, handle
        self.id, self.created = handle.id, handle.created

    def __repr__(self) -> str:
        return f"<RunHandle {self.id}>"

    def result(self, *, timeout: float | None = None) -> R_co:
        """The run's result, once it has one. Raises RunFailed, RunCancelled, ResultTimeout after `timeout` seconds."""
        return self._call(self._handle.result, timeout=timeout)

    def get(self) -> RunView:
        """The run as it is now."""
        return self._call(self._handle.get)

    def watch(self, *, after_version: int = 0) -> Iterator[Change]:
        """Everything that happened to the run, then what happens; see AsyncClient.watch."""
        return self._client.watch(self.id, after_version=after_version)

    def explain(self) -> Explanation:
        """What the run waits for; see AsyncClient.explain."""
        return self._call(self._handle.explain)

    def cancel(self, reason: str = "") -> CancelResult:
        """Stops the run; see Client.cancel."""
        return self._call(self._handle.cancel, reason)

    def signal(self, event: str, payload: Any = None, /, *, dedupe_id: str | None = None) -> SignalResult:
        """Sends the run an event; see AsyncClient.signal."""
        return self._call(self._handle.signal, event, payload, dedupe_id=dedupe_id)


class Client:
    """Starts and steers runs from scripts and threads. A context manager; safe to share between threads.

    Without a database URL it uses COMPOSER_DATABASE_URL, else the embedded server.
    """

    def __init__(self, database_url: str | None = None, *, settings: Settings | None = None, **options: Any) -> None:
        self._client = AsyncClient(database_url, settings=settings, **options)
        self._portal: Portal | None = None
        self._process = 0
        """The one that opened it last."""
        self._closing = threading.Lock()
        """Held while a call is begun, so that none is begun unseen by a close; and while it is opened, so that one opens it."""
        self._calls: set[Future[Any]] = set()
        """Calls of other threads that are under way."""

    def __enter__(self) -> Self:
        _refuse_in_a_loop("opened in")
        with self._closing:
            if self._portal is not None:
                raise ClientError("the client is open already")
            self._portal, self._process = Portal(), os.getpid()
            _open_clients.add(self)
        try:
            self.call(self._client.open)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        portal = self._end_calls()
        if portal is not None:
            try:
                portal.begin(self._client.close).result()
            finally:
                portal.stop()

    def _end_calls(self) -> Portal | None:
        """Ends what is under way and lets nothing more begin. Returns the portal, the first time."""
        with self._closing:
            portal, self._portal = self._portal, None
            calls = tuple(self._calls)
            _open_clients.discard(self)
        # Another thread may wait for a result that is far away: it is told, instead of waited for.
        for call in calls:
            call.cancel()
        return portal

    def call(self, method: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
        """What `method` returns, awaited in the client's own loop. Raises ClientError where it cannot be."""
        with self._closing:
            future = self._usable().begin(partial(method, *args, **kwargs))
            self._calls.add(future)
        try:
            return future.result()
        except CancelledError:
            raise ClientError("the client was closed while this call was under way") from None
        finally:
            # A call that was interrupted, as by Ctrl-C, is not left to go on in the portal.
            future.cancel()
            self._calls.discard(future)

    def _usable(self) -> Portal:
        """The portal. Raises ClientError where the client cannot be used."""
        _refuse_in_a_loop("called from")
        if self._portal is not None:
            return self._portal
        if self._process not in (0, os.getpid()):
            raise ClientError(
                f"the client was opened by process {self._process}, and this is process {os.getpid()}, forked off it: connections "
                "cannot be shared. Open it here: `with client:`, or a Client of this process's own"
            )
        raise ClientError("the client is not open: use it inside `with Client() as client:`")

    def __reduce__(self) -> NoReturn:
        raise ClientError(NO_COPIES)

    def _leave_behind(self) -> None:
        """Makes this a closed client, in a process that was forked off while it was open."""
        if self._portal is not None:
            self._portal.leave_behind(self._client, self._calls)
        # Another thread of the parent may have held the lock.
        self._portal, self._closing, self._calls = None, threading.Lock(), set()
        self._client = AsyncClient(settings=self._client.settings)

    # Signatures below repeat AsyncClient's, because type checkers read them; what they do is written there once.
    @overload
    def start(
        self,
        workflow: Startable[Callable[[Unpack[Ts]], R]],
        /,
        *args: Unpack[Ts],
        idempotency_key: str | None = None,
        delay: float | timedelta | str | None = None,
        start_at: datetime | None = None,
        priority: int = 0,
        tags: Mapping[str, str] | None = None,
        within: object | None = None,
    ) -> RunHandle[R]: ...
    @overload
    def start(
        self,
        workflow: str,
        arguments: Mapping[str, Any] = ...,
        /,
        *,
        idempotency_key: str | None = None,
        delay: float | timedelta | str | None = None,
        start_at: datetime | None = None,
        priority: int = 0,
        tags: Mapping[str, str] | None = None,
        within: object | None = None,
    ) -> RunHandle[Any]: ...
    # mypy does not see that *args: Any takes what the first one's *args do.
    def start(  # type: ignore[misc]
        self,
        workflow: Any,
        /,
        *args: Any,
        idempotency_key: str | None = None,
        delay: float | timedelta | str | None = None,
        start_at: datetime | None = None,
        priority: int = 0,
        tags: Mapping[str, str] | None = None,
        within: object | None = None,
        **unknown: Any,
    ) -> RunHandle[Any]:
        """Starts a run and returns its handle as soon as it is durable. See AsyncClient.start.

        What is given as `within` is used in the calling thread, and is not an async connection.
        """
        if unknown:
            refuse_options(workflow, unknown)
        options: dict[str, Any] = {"delay": delay, "start_at": start_at, "priority": priority, "tags": tags}
        if within is not None:
            return self._start_within(within, workflow, [(args, idempotency_key)], options)[0]
        return RunHandle(
            self, self.call(self._client.start, workflow, *args, idempotency_key=idempotency_key, **options)
        )

    @overload
    def start_many(
        self,
        workflow: Startable[Callable[[Unpack[Ts]], R]],
        inputs: Iterable[tuple[Unpack[Ts]]],
        /,
        *,
        idempotency_keys: Sequence[str] | None = None,
        delay: float | timedelta | str | None = None,
        start_at: datetime | None = None,
        priority: int = 0,
        tags: Mapping[str, str] | None = None,
        within: object | None = None,
    ) -> list[RunHandle[R]]: ...
    @overload
    def start_many(
        self,
        workflow: str,
        inputs: Iterable[Mapping[str, Any]],
        /,
        *,
        idempotency_keys: Sequence[str] | None = None,
        delay: float | timedelta | str | None = None,
        start_at: datetime | None = None,
        priority: int = 0,
        tags: Mapping[str, str] | None = None,
        within: object | None = None,
    ) -> list[RunHandle[Any]]: ...
    def start_many(
        self,
        workflow: Any,
        inputs: Iterable[Any],
        /,
        *,
        idempotency_keys: Sequence[str] | None = None,
        delay: float | timedelta | str | None = None,
        start_at: datetime | None = None,
        priority: int = 0,
        tags: Mapping[str, str] | None = None,
        within: object | None = None,
    ) -> list[RunHandle[Any]]:
        """Starts one run an input, all or none. See AsyncClient.start_many."""
        options: dict[str, Any] = {"delay": delay, "start_at": start_at, "priority": priority, "tags": tags}
        if within is not None:
            return self._start_within(within, workflow, paired(workflow, inputs, idempotency_keys), options)
        started = self.call(self._client.start_many, workflow, inputs, idempotency_keys=idempotency_keys, **options)
        return [RunHandle(self, handle) for handle in started]

    def _start_within(
        self, within: object, workflow: Any, inputs: Sequence[tuple[Sequence[Any], str | None]], options: dict[str, Any]
    ) -> list[RunHandle[Any]]:
        """A start on the caller's connection. It belongs to this thread, so the portal does all but the statement."""
        self._usable()
        client = self._client
        borrowed = client.store.borrow(within)
        if not borrowed.is_blocking:
            raise TransactionError(
                f"{type(within).__module__}.{type(within).__qualname__} has to be awaited, in its own event loop",
                "Use AsyncClient there, which has the same methods, awaited.",
            )
        runs = self.call(client._new_runs, workflow, inputs, **options)
        self.call(persistently, borrowed.prepare, PATIENCE)
        return [RunHandle(self, handle) for handle in client._handles(workflow, runs, borrowed.start_now(runs))]

    @overload
    def handle(self, workflow: Startable[Callable[..., R]], run_id: str, /) -> RunHandle[R]: ...
    @overload
    def handle(self, workflow: str, run_id: str, /) -> RunHandle[Any]: ...
    def handle(self, workflow: Any, run_id: str, /) -> RunHandle[Any]:
        """A handle on a run that was started elsewhere, typed by its workflow; with a name instead its result is plain JSON."""
        return RunHandle(self, self._client.handle(workflow, run_id))

    def get(self, run_id: str) -> RunView:
        """The run and its nodes, at one instant. Raises RunNotFound."""
        return self.call(self._client.get, run_id)

    def runs(
        self,
        workflow: Workflow[..., Any] | str | None = None,
        *,
        status: str | Iterable[str] | None = None,
        tags: Mapping[str, str] | None = None,
        error_code: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        newest_first: bool = True,
        page: int = 100,
    ) -> Iterator[RunSummary]:
        """Runs, newest first, read page by page while they are iterated. See AsyncClient.runs."""
        query = query_of(workflow, status, tags, error_code, since, until, newest_first)
        return self._iterated(Listing(lambda: self._client.store, query, page, PATIENCE).more)

    def watch(self, run_id: str, *, after_version: int = 0) -> Iterator[Change]:
        """Everything that happened to a run, then what happens, until it has ended. See AsyncClient.watch."""
        return self._iterated(self._client.watching(run_id, after_version=after_version).more)

    def _iterated(self, more: Callable[[], Awaitable[Sequence[T]]]) -> Iterator[T]:
        while found := self.call(more):
            yield from found

    def explain(self, run_id: str) -> Explanation:
        """For every open node what it waits for, or why the run has ended. See AsyncClient.explain."""
        return self.call(self._client.explain, run_id)

    def history(self, run_id: str) -> list[HistoryRow]:
        """Every transition of the run, oldest first. Raises RunNotFound."""
        return self.call(self._client.history, run_id)

    def cancel(self, run_id: str, *, reason: str = "") -> CancelResult:
        """Stops a run; safe to repeat. See AsyncClient.cancel."""
        return self.call(self._client.cancel, run_id, reason=reason)

    def signal(self, run_id: str, event: str, payload: Any = None, /, *, dedupe_id: str | None = None) -> SignalResult:
        """Sends a run an event that it waits for, or will. See AsyncClient.signal."""
        return self.call(self._client.signal, run_id, event, payload, dedupe_id=dedupe_id)

    def retry(
        self, run_id: str, *, dry_run: bool = False, rerun_stale: bool = False, keep_options: bool = False
    ) -> RetryResult:
        """Lets a failed run go on where it stopped. See AsyncClient.retry."""
        options = {"dry_run": dry_run, "rerun_stale": rerun_stale, "keep_options": keep_options}
        return self.call(self._client.retry, run_id, **options)

    def release(self, run_id: str) -> bool:
        """Lets a quarantined run go on. See AsyncClient.release."""
        return self.call(self._client.release, run_id)

    def recover(self) -> Recovered:
        """One recovery pass, as every coordinator does it: returns what it did."""
        return self.call(self._client.recover)


def _refuse_in_a_loop(how: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ClientError(
        f"Client was {how} a running event loop, which it would block: use AsyncClient there, with the same methods, awaited"
    )


_open_clients: Final[WeakSet[Client]] = WeakSet()


def _close_at_exit() -> None:
    """Closes what is still open when the program ends, for a few seconds; no new thread can be started any more."""
    last = time.monotonic() + _LAST_CLOSE
    ending = [(client, portal) for client in tuple(_open_clients) if (portal := client._end_calls())]
    closing = [(portal, portal.begin(client._client.close)) for client, portal in ending]
    for portal, closed in closing:
        with suppress(Exception):
            closed.result(max(0.0, last - time.monotonic()))
            portal.stop(max(0.0, last - time.monotonic()))


def _after_fork_in_child() -> None:
    left = tuple(_open_clients)
    _open_clients.clear()
    for client in left:
        client._leave_behind()


atexit.register(_close_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
