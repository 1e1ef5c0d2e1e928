"""AsyncClient: every method of the client. Client is the same, through a portal."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any, Final, Generic, NoReturn, Self, TypeVar, overload

import anyio
from typing_extensions import TypeVarTuple, Unpack

from composer.app import open_store
from composer.apply import QUARANTINED, Applied, Applier, persistently
from composer.client.ends import Ends
from composer.client.explaining import Explanation, explanation
from composer.client.listing import Listing, RunSummary, query_of
from composer.client.signals import SignalResult, checked_payload
from composer.client.starting import (
    checked_workflow,
    encoded_input,
    is_storable,
    named_input,
    new_run,
    paired,
    refuse_options,
    when_to_start,
)
from composer.client.views import RunView, failure_of, view
from composer.client.watching import Change, Watch
from composer.coordinator.recovery import Recovered, recover
from composer.core.decide import reset_nodes, stale_nodes
from composer.core.events import CancelRequested, Delivery, RetryRequested, Signalled
from composer.core.limits import within_limit
from composer.core.plan import INPUT, Node, Plan
from composer.core.states import NodeState, RunStatus
from composer.define.workflow import Startable, Workflow
from composer.errors import (
    ClientError,
    IdempotencyConflict,
    RunEnded,
    RunNotFound,
    RunNotRetryable,
    RunQuarantined,
    UnknownWorkflow,
)
from composer.hosting import Hosted
from composer.ports.store import ClaimedTask, HistoryRow, NewRun, RunHead, StartAnswer, Store
from composer.ports.wakeups import RunEnd, Taker
from composer.settings import Settings, read_settings

R = TypeVar("R")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)
Ts = TypeVarTuple("Ts")

PATIENCE: Final = 10.0
"""Seconds a call goes on trying while the database is away, before StoreUnavailable."""
NO_COPIES: Final = "a client cannot be copied, nor sent to another process: make one there"
MOST_HANDED_OVER: Final = 100
"""Runs of one start call whose first tasks may go to a worker of this process at once."""
_MOST_NAMES: Final = 1_000
"""Names of workflows that an unknown one is compared with."""


@dataclass(frozen=True, slots=True)
class CancelResult:
    """What a cancel came to. `accepted` says that the run is stopped by this or an earlier cancel; `status` is the run's now."""

    accepted: bool
    status: str


@dataclass(frozen=True, slots=True)
class ResetStep:
    """A node that a retry runs again, and why."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class RetryResult:
    """What a retry did, or would do. `stale` are completed nodes that read data of a reset one and keep their output."""

    run_id: str
    reset_steps: Sequence[ResetStep]
    stale: Sequence[str] = field(default_factory=list[str])
    new_options: bool = False
    """Whether the run goes on with other options than it had."""
    dry_run: bool = False


class AsyncRunHandle(Generic[R_co]):
    """A started run. `created` says whether this start made it, or an earlier one with the same idempotency key."""

    __slots__ = ("_client", "_workflow", "created", "id")

    def __init__(
        self, client: AsyncClient, run_id: str, workflow: Workflow[..., R_co] | None, *, created: bool
    ) -> None:
        self._client, self._workflow = client, workflow
        self.id, self.created = run_id, created

    def __repr__(self) -> str:
        return f"<AsyncRunHandle {self.id}>"

    async def result(self, *, timeout: float | None = None) -> R_co:
        """The run's result, once it has one; of a run started by name as plain JSON.

        Raises RunFailed, RunCancelled, ResultTimeout after `timeout` seconds.
        """
        text = await self._client.wait_for_output(self.id, timeout=timeout)
        if self._workflow is None:
            value: Any = json.loads(text)
            return value  # type: ignore[no-any-return]
        return self._workflow.decode_result(text)

    async def get(self) -> RunView:
        """The run as it is now."""
        return await self._client.get(self.id)

    def watch(self, *, after_version: int = 0) -> AsyncGenerator[Change]:
        """Everything that happened to the run, then what happens; see AsyncClient.watch."""
        return self._client.watch(self.id, after_version=after_version)

    async def explain(self) -> Explanation:
        """What the run waits for; see AsyncClient.explain."""
        return await self._client.explain(self.id)

    async def cancel(self, reason: str = "") -> CancelResult:
        """Stops the run; see AsyncClient.cancel."""
        return await self._client.cancel(self.id, reason=reason)

    async def signal(self, event: str, payload: Any = None, /, *, dedupe_id: str | None = None) -> SignalResult:
        """Sends the run an event; see AsyncClient.signal."""
        return await self._client.signal(self.id, event, payload, dedupe_id=dedupe_id)


class AsyncClient:
    """Starts and steers runs, from any number of tasks of one event loop. An async context manager.

    Without a database URL it uses COMPOSER_DATABASE_URL, else the embedded server.
    """

    def __init__(
        self,
        database_url: str | None = None,
        *,
        settings: Settings | None = None,
        store: Store | None = None,
        **options: Any,
    ) -> None:
        self.settings = settings or read_settings(database_url=database_url, **options)
        self._given = store
        self._store: Store | None = store
        self._hosted: Hosted | None = None
        self._ends = Ends(lambda: self.store, patience=PATIENCE, poll_interval=self.settings.poll_interval)

    async def __aenter__(self) -> Self:
        return await self._open(guard=True)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        hosted = self._hosted
        if hosted is None:
            return  # closed within the block
        self._refuse_elsewhere()
        # A call that comes late, or is still under way, must not open connections again that nobody closes.
        self._hosted, self._store = None, self._given
        await hosted.leave(error)

    async def open(self) -> Self:
        """Connects where no block can be, as in a cell of a notebook, until `close`."""
        return await self._open(guard=False)

    async def close(self) -> None:
        """Ends what `open` began. A client that is closed may be opened again."""
        await self.__aexit__(None, None, None)

    async def _open(self, *, guard: bool) -> Self:
        if self._hosted is not None and not self._hosted.has_ended:
            raise ClientError("the client is open already")
        hosted = Hosted(self._connected(), "composer client")
        await hosted.enter(guard=guard)
        self._hosted = hosted
        return self

    @asynccontextmanager
    async def _connected(self) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            store = self._given
            if store is None:
                store = self._store = await stack.enter_async_context(open_store(self.settings))
            group = await stack.enter_async_context(anyio.create_task_group())
            self._ends.begin(None if self._given is not None else group)
            try:
                yield
            finally:
                # It may end by itself, as with its loop, without anybody who leaves it.
                if self._store is store:
                    self._store = self._given
            group.cancel_scope.cancel()
            await self._ends.end(store)

    @property
    def store(self) -> Store:
        """The store it talks to. Raises ClientError outside of the `async with` block, and in another event loop than its own."""
        if self._store is None:
            raise ClientError("the client is not open: use it inside `async with AsyncClient() as client:`")
        self._refuse_elsewhere()
        return self._store

    def _refuse_elsewhere(self) -> None:
        if self._hosted is not None and self._hosted.is_elsewhere:
            raise ClientError("the client was opened in another event loop than this one: open one in each loop")

    def __reduce__(self) -> NoReturn:
        raise ClientError(NO_COPIES)

    # -- starting ------------------------------------------------------------------------------------------
    @overload
    async def start(
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
    ) -> AsyncRunHandle[R]: ...
    @overload
    async def start(
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
    ) -> AsyncRunHandle[Any]: ...
    # mypy does not see that *args: Any takes what the first one's *args do.
    async def start(  # type: ignore[misc]
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
    ) -> AsyncRunHandle[Any]:
        """Starts a run and returns its handle as soon as it is durable.

        Arguments go by position and are checked here; for keyword arguments use `workflow.bind(...)`. With an
        idempotency key, the same key and input give the same run, whatever became of it; another input raises
        IdempotencyConflict. Raises PayloadError, PlanTypeError, StoreUnavailable.

        By name, `start("fulfil", {"order": order})`, no code of the workflow is needed here: its newest plan is used, names
        are checked by it, values are written as JSON as they are, and the result comes as plain JSON. Raises UnknownWorkflow.

        `within` is a connection of your own in the same database, with a transaction in progress: of asyncpg, psycopg,
        SQLAlchemy (connection or session, sync or async) or Django (or its alias). The run then exists once that
        transaction commits, or never; nothing runs, and the handle finds nothing, before. Raises TransactionError for
        what cannot carry the start, and what your driver raises.
        """
        if unknown:
            refuse_options(workflow, unknown)
        handles = await self._start(
            workflow, [(args, idempotency_key)], within,
            delay=delay, start_at=start_at, priority=priority, tags=tags,
        )  # fmt: skip
        return handles[0]

    @overload
    async def start_many(
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
    ) -> list[AsyncRunHandle[R]]: ...
    @overload
    async def start_many(
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
    ) -> list[AsyncRunHandle[Any]]: ...
    async def start_many(
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
    ) -> list[AsyncRunHandle[Any]]:
        """Starts one run an input (a tuple of arguments, or by name a dict), all or none, in one statement.

        Handles in the order of the inputs. Raises as start().
        """
        return await self._start(
            workflow, paired(workflow, inputs, idempotency_keys), within,
            delay=delay, start_at=start_at, priority=priority, tags=tags,
        )  # fmt: skip

    async def _new_runs(
        self,
        workflow: Any,
        inputs: Sequence[tuple[Sequence[Any], str | None]],
        *,
        delay: float | timedelta | str | None,
        start_at: datetime | None,
        priority: int,
        tags: Mapping[str, str] | None,
    ) -> list[NewRun]:
        """Runs ready to be stored, of arguments and idempotency keys; their plan is registered. What start() begins with."""
        store = self.store
        starts = when_to_start(delay, start_at)
        if isinstance(workflow, str):
            plan_id, plan = await self._named(workflow)
            texts = [named_input(plan, args, store.max_payload) for args, _ in inputs]
        else:
            flow = checked_workflow(workflow)
            texts = [encoded_input(flow, args, store.max_payload) for args, _ in inputs]
            plan = flow.plan
            plan_id = await persistently(lambda: store.register_plan(plan), PATIENCE)
        ids = await store.mint_run_ids(len(inputs))
        return [
            new_run(
                run_id,
                plan.workflow,
                plan,
                plan_id,
                text,
                key=key,
                priority=priority,
                tags=tags or {},
                starts=starts,
                max_payload=store.max_payload,
            )
            for run_id, text, (_, key) in zip(ids, texts, inputs, strict=True)
        ]

    async def _named(self, workflow: str) -> tuple[int, Plan]:
        """The plan that starts by this name use, and its id. Raises UnknownWorkflow."""
        store = self.store
        plan_id = await persistently(lambda: store.named_plan(workflow), PATIENCE) if is_storable(workflow) else None
        if plan_id is None:
            known = await persistently(lambda: store.workflow_names(_MOST_NAMES), PATIENCE)
            raise UnknownWorkflow(workflow, store.namespace, known)
        return plan_id, await self._plan(plan_id)

    def _handles(
        self, workflow: Any, runs: Sequence[NewRun], answers: Sequence[StartAnswer], *, tried_again: bool = False
    ) -> list[AsyncRunHandle[Any]]:
        """Handles of runs that were stored. Raises IdempotencyConflict. What start() ends with."""
        flow = _typed_by(workflow)
        made: list[AsyncRunHandle[Any]] = []
        for run, answer in zip(runs, answers, strict=True):
            if run.key is not None and answer.digest != run.digest:
                raise IdempotencyConflict(answer.run_id, run.workflow, run.key)
            # A start whose first answer was lost finds its own run.
            created = answer.created or (tried_again and answer.run_id == run.run_id)
            made.append(AsyncRunHandle(self, answer.run_id, flow, created=created))
        return made

    async def _start(
        self, workflow: Any, inputs: Sequence[tuple[Sequence[Any], str | None]], within: object | None, **options: Any
    ) -> list[AsyncRunHandle[Any]]:
        store = self.store
        if within is not None:
            borrowed = store.borrow(within)
            runs = await self._new_runs(workflow, inputs, **options)
            await persistently(borrowed.prepare, PATIENCE)
            return self._handles(workflow, runs, await borrowed.start_runs(runs))
        runs = await self._new_runs(workflow, inputs, **options)
        taker = store.wakeups.taker
        if taker is not None and len(runs) <= MOST_HANDED_OVER:
            runs = [_handed_over(run, taker) for run in runs]
        owner, lease = (taker.id, taker.lease) if taker is not None else ("", 0.0)
        tries = 0

        def lost(_: object) -> None:
            nonlocal tries
            tries += 1

        hears = self._ends.are_heard
        try:
            answers = await persistently(lambda: store.start_runs(runs, owner=owner, lease=lease), PATIENCE, lost)
        except BaseException:
            if taker is not None:
                taker.refuse([node for run in runs for node in _leased_nodes(run)])
            raise
        if taker is not None:
            for run, answer in zip(runs, answers, strict=True):
                if run.leased:
                    await _hand_over(run, answer, taker)
        handles = self._handles(workflow, runs, answers, tried_again=tries > 0)
        if hears:
            # Nobody announces the end of a run that ends with its start, as one does whose only block is not taken.
            self._ends.begun(
                each.id for run, each in zip(runs, handles, strict=True) if each.created and not run.transition.ends_run
            )
        return handles

    # -- looking -------------------------------------------------------------------------------------------
    async def get(self, run_id: str) -> RunView:
        """The run and its nodes, at one instant. Raises RunNotFound."""
        record = await persistently(lambda: self.store.get_run(_checked_id(run_id)), PATIENCE)
        if record is None:
            raise RunNotFound(run_id, self.store.namespace)
        return view(record, await self._plan(record.head.plan_id))

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
    ) -> AsyncGenerator[RunSummary]:
        """Runs, newest first, read page by page while they are iterated: `async for run in client.runs(status="failed")`.

        All that is asked for has to fit: the workflow, one of the statuses, every tag, the code of the error (or the kind
        of a node's failure), the time of creation (`since` included, `until` not). `page` is how many are looked at in
        one statement; workflow and status lead there by an index, the rest is looked at run by run.
        Raises QueryError at once, StoreUnavailable while iterating.
        """
        query = query_of(workflow, status, tags, error_code, since, until, newest_first)
        return _iterated(Listing(lambda: self.store, query, page, PATIENCE).more)

    def watch(self, run_id: str, *, after_version: int = 0) -> AsyncGenerator[Change]:
        """Everything that happened to a run, then everything that happens, until it has ended; each change once, in order.

        `after_version` goes on where another watch stopped: give it the version of the last change that was dealt with.
        A body that had begun then and not ended may be told to start once more; nothing else is told twice. As one
        version can have several changes, stop between versions. Raises RunNotFound while iterating.
        """
        return _iterated(self.watching(run_id, after_version=after_version).more)

    def watching(self, run_id: str, *, after_version: int) -> Watch:
        """What watch() asks for more, for both clients."""
        return Watch(
            lambda: self.store,
            _checked_id(run_id),
            after_version=after_version,
            poll_interval=self.settings.poll_interval,
            listen=partial(self._ends.listen, None),
        )

    async def explain(self, run_id: str) -> Explanation:
        """For every open node what it waits for, or why the run has ended; as text for people, too. Raises RunNotFound."""
        record = await persistently(lambda: self.store.get_run(_checked_id(run_id)), PATIENCE)
        if record is None:
            raise RunNotFound(run_id, self.store.namespace)
        present = await persistently(self.store.presence, PATIENCE)
        return explanation(record, await self._plan(record.head.plan_id), present)

    async def history(self, run_id: str) -> list[HistoryRow]:
        """Every transition of the run, oldest first. Raises RunNotFound."""
        rows = await persistently(lambda: self.store.history(_checked_id(run_id)), PATIENCE)
        if not rows:
            raise RunNotFound(run_id, self.store.namespace)
        return rows

    @overload
    def handle(self, workflow: Startable[Callable[..., R]], run_id: str, /) -> AsyncRunHandle[R]: ...
    @overload
    def handle(self, workflow: str, run_id: str, /) -> AsyncRunHandle[Any]: ...
    def handle(self, workflow: Any, run_id: str, /) -> AsyncRunHandle[Any]:
        """A handle on a run that was started elsewhere, typed by its workflow; with a name instead its result is plain JSON."""
        return AsyncRunHandle(self, run_id, _typed_by(workflow), created=False)

    async def wait_for_output(self, run_id: str, *, timeout: float | None = None) -> str:
        """The run's output as JSON text, once it has completed. Raises as AsyncRunHandle.result."""
        end = await self.wait(run_id, timeout=timeout)
        if end.status == RunStatus.COMPLETED:
            return end.output or "null"
        record = await persistently(lambda: self.store.get_run(end.run_id), PATIENCE)
        raise failure_of(end.run_id, record.workflow if record else "?", end.status, end.error)

    async def wait(self, run_id: str, *, timeout: float | None = None) -> RunEnd:
        """How the run ended, once it has; texts as stored. Raises RunNotFound, ResultTimeout."""
        return await self._ends.wait(_checked_id(run_id), timeout=timeout)

    async def _plan(self, plan_id: int) -> Plan:
        return await persistently(lambda: self.store.load_plan(plan_id), PATIENCE)

    # -- steering ------------------------------------------------------------------------------------------
    async def cancel(self, run_id: str, *, reason: str = "") -> CancelResult:
        """Stops a run: nothing more starts, running steps are told at once. Safe to repeat.

        A run that has ended otherwise stays as it is, and `accepted` is False. Raises RunNotFound, PayloadTooLarge.
        """
        within_limit(reason, "the reason of cancel()", self.store.max_payload)
        run_id = _checked_id(run_id)
        applied = await Applier(self.store).apply_one(run_id, CancelRequested(reason), patience=PATIENCE)
        await self._refuse_quarantined(run_id, applied)
        status = applied.heads[run_id].snapshot.status
        return CancelResult(status is RunStatus.CANCELLED, status.value)

    async def signal(
        self, run_id: str, event: str, payload: Any = None, /, *, dedupe_id: str | None = None
    ) -> SignalResult:
        """Sends a run the event `event`, which a wait_for_event() of it takes, now or when it gets there.

        The payload is checked by the type the wait names, before anything is stored. Of one `dedupe_id` only the first
        counts. Raises RunNotFound, RunEnded, UnknownEvent, PayloadError.
        """
        store, run_id = self.store, _checked_id(run_id)
        heads = await persistently(lambda: store.load_heads([run_id]), PATIENCE)
        if run_id not in heads:
            raise RunNotFound(run_id, store.namespace)
        plan = await self._plan(heads[run_id].plan_id)
        text = checked_payload(run_id, plan, event, payload, self.store.max_payload)
        applied = await Applier(store).apply_one(run_id, Signalled(event, text, dedupe_id), patience=PATIENCE)
        await self._refuse_quarantined(run_id, applied)
        if applied.ignored:
            # Also when the run has ended since: whoever sends again must learn that the first one was accepted.
            known = (
                [] if dedupe_id is None else await persistently(lambda: store.load_signals(run_id, [event]), PATIENCE)
            )
            first = next((signal for signal in known if signal.dedupe == dedupe_id), None)
            if first is None:
                raise RunEnded(run_id, applied.heads[run_id].snapshot.status.value)
            return SignalResult(None if first.node is None else plan.nodes[first.node].name, is_duplicate=True)
        made = applied.transitions.get(run_id)
        node = made.signals[0].node if made is not None and made.signals else None
        return SignalResult(None if node is None else plan.nodes[node].name)

    async def retry(
        self, run_id: str, *, dry_run: bool = False, rerun_stale: bool = False, keep_options: bool = False
    ) -> RetryResult:
        """Lets a failed run go on where it stopped: failed, skipped and cancelled nodes run again with fresh budgets.

        Completed nodes keep their outputs; with `rerun_stale` those that read a reset node's data run again too. The
        run goes on with the newest options (retries, timeouts, queues) of its plan's shape, unless `keep_options`; a
        deadline counts anew. With `dry_run` it only says what would happen. Raises RunNotFound, RunNotRetryable.
        """
        store, run_id = self.store, _checked_id(run_id)
        heads = await persistently(lambda: store.load_heads([run_id]), PATIENCE)
        if run_id not in heads:
            raise RunNotFound(run_id, store.namespace)
        head = heads[run_id]
        if head.snapshot.status is not RunStatus.FAILED:
            raise RunNotRetryable(run_id, head.snapshot.status.value)
        plan = await self._plan(head.plan_id)
        adopted: int | None = None
        if not keep_options:
            newest = await persistently(lambda: store.current_plan(plan.workflow, plan.shape), PATIENCE)
            adopted = newest if newest != head.plan_id else None
        letters = [letter.value for letter in head.snapshot.letters]
        stale = stale_nodes(plan, letters)
        result = RetryResult(
            run_id,
            [
                ResetStep(plan.nodes[i].name, _why(NodeState(letters[i])))
                for i in reset_nodes(plan, letters, rerun_stale=rerun_stale)
            ],
            [] if rerun_stale else [plan.nodes[i].name for i in stale],
            new_options=adopted is not None,
            dry_run=dry_run,
        )
        if dry_run:
            return result
        self._ends.begins_again(run_id)
        event = RetryRequested(rerun_stale, adopted)
        applied = await Applier(self.store).apply_one(run_id, event, patience=PATIENCE)
        await self._refuse_quarantined(run_id, applied)
        if applied.ignored:
            status = applied.heads[run_id].snapshot.status.value
            raise RunNotRetryable(run_id, status, f"is {status}: somebody else retried it just now")
        return result

    async def _refuse_quarantined(self, run_id: str, applied: Applied) -> None:
        if any(ignored.reason == QUARANTINED for ignored in applied.ignored):
            record = await self.store.get_run(run_id)
            raise RunQuarantined(run_id, (record and record.quarantine) or "")

    async def release(self, run_id: str) -> bool:
        """Lets a quarantined run go on, once what could not be decided can be. Returns False when it is not quarantined.

        Raises RunNotFound.
        """
        run_id = _checked_id(run_id)
        if not await persistently(lambda: self.store.load_heads([run_id]), PATIENCE):
            raise RunNotFound(run_id, self.store.namespace)
        return await persistently(lambda: self.store.release(run_id), PATIENCE)

    async def recover(self) -> Recovered:
        """One recovery pass, as every coordinator does it: returns what it did."""
        return await recover(self.store)


async def _iterated(more: Callable[[], Awaitable[Sequence[T]]]) -> AsyncGenerator[T]:
    """What `more` gives, one after the other, until it gives nothing."""
    while found := await more():
        for each in found:
            yield each


def _handed_over(run: NewRun, taker: Taker) -> NewRun:
    """The run with those of its first tasks leased that a worker here takes at once."""
    nodes = run.plan.nodes
    return replace(
        run, leased=frozenset(s.node for s in run.transition.starts if taker.grant(run.run_id, nodes[s.node]))
    )


def _leased_nodes(run: NewRun) -> list[Node]:
    return [run.plan.nodes[node] for node in sorted(run.leased)]


async def _hand_over(run: NewRun, answer: StartAnswer, taker: Taker) -> None:
    if answer.run_id != run.run_id:
        taker.refuse(_leased_nodes(run))
        return
    head = RunHead(run.run_id, run.plan_id, run.transition.run, run.priority)
    tasks: list[ClaimedTask] = []
    for node in sorted(run.leased):
        delivery = Delivery(node, 1, 1, worker=taker.id, claimed_at=answer.claimed_at)
        tasks.append(ClaimedTask(head, delivery, run.plan.nodes[node].step, {INPUT: run.input}))
    await taker.take(tasks)


def _typed_by(workflow: object) -> Workflow[..., Any] | None:
    """The workflow whose type a result has; None for the name of one. Raises PlanTypeError for anything else."""
    return None if isinstance(workflow, str) else checked_workflow(workflow)


def _checked_id(run_id: str) -> str:
    """The id as it is written everywhere, or RunNotFound for what cannot be one: no database error for a typo."""
    try:
        return str(uuid.UUID(run_id))
    except (ValueError, AttributeError, TypeError):
        raise RunNotFound(str(run_id)) from None


def _why(state: NodeState) -> str:
    match state:
        case NodeState.COMPLETED:
            return "it read the output of a step that runs again"
        case NodeState.SKIPPED:
            return "it was skipped because of a failure or a branch, which is looked at again"
        case _:
            return f"it {'was' if state is NodeState.CANCELLED else 'has'} {state.word}"
