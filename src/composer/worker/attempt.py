"""One attempt of one task, from its arguments to its report.

An attempt is reported exactly once, by whatever comes first: the body's end, its timeout, the loss of its lease.
What a body does afterwards no longer counts, but its slot stays taken until it has really ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from json import dumps
from typing import Any, Final, Protocol

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from composer.core.events import (
    Delivery,
    Failure,
    FailureKind,
    Report,
    StepCompleted,
    StepFailed,
    StepReleased,
    StepSnoozed,
)
from composer.core.expressions import Unreadable, render
from composer.core.plan import Node, Plan, node_of
from composer.core.values import Values, absent_parts
from composer.define.context import StepContext, enter, leave
from composer.define.step import Step
from composer.define.surroundings import Around
from composer.errors import PayloadError, ProcessStepError, Snooze, StepCancelled
from composer.ports.store import ClaimedTask
from composer.worker.failures import Raised, mismatch, raised_by, refused, storable
from composer.worker.processes import ProcessDied, ProcessPool, StepProcess

log = logging.getLogger("composer.worker")

_PATIENCE: Final = 1.0
"""Seconds a coroutine may take to end once it was cancelled for its timeout, before the timeout is reported without it."""


class Host(Protocol):
    """What an attempt needs of the worker that runs it."""

    resources: Any
    max_payload: int
    """Bytes that a result or a checkpoint may have."""
    around: Sequence[Around]
    """What stands around each attempt, the outermost first."""
    processes: ProcessPool | None
    """Where process steps run; None has them run in threads."""
    closing: bool
    """Whether the worker is being torn down."""

    def report(self, attempt: Attempt, event: Report) -> None:
        """Takes the attempt's one report."""
        ...

    def body_ended(self, attempt: Attempt) -> None:
        """The body has really ended: its slot is free."""
        ...

    def beat(self, attempt: Attempt) -> None:
        """The body gave a sign of life; may come from any thread."""
        ...


class Attempt:
    """A running attempt. Also the link between the step's context and its worker."""

    __slots__ = (
        "beaten", "claimed", "crossed", "details", "ended", "host", "node", "over", "overtime", "plan", "process", "released", "reported",
        "started", "step", "stopped", "thread", "thrown", "warned", "work",
    )  # fmt: skip

    def __init__(self, host: Host, claimed: ClaimedTask, plan: Plan, step: Step[..., Any]) -> None:
        self.host, self.claimed, self.plan, self.step = host, claimed, plan, step
        self.node: Node = plan.nodes[claimed.task.node]
        self.work: asyncio.Task[None] | None = None
        """The task that runs it, cancelled to stop the body: once, so that a body which swallows it does not spin."""
        self.overtime: StepFailed | None = None
        """What is reported because the time was over, once it is."""
        self.stopped = False
        """The run was stopped or the lease was lost: nobody waits for the result."""
        self.released = False
        """The worker shuts down and gives the task back."""
        self.reported = False
        self.ended = False
        self.over = False
        """Whether `run` is through."""
        self.thread = False
        """Whether a thread runs the body now."""
        self.process: StepProcess | None = None
        """The process that runs the body."""
        self.crossed: tuple[Any, str] | None = None
        """A result that came from a process, and the text it came as: it need not be encoded once more."""
        self.thrown: tuple[ProcessStepError, Raised] | None = None
        """What a process step raised, and what its process made of it."""
        self.beaten = False
        self.details: str | None = None
        self.started = time.monotonic()
        self.warned = self.started

    @property
    def task(self) -> Delivery:
        """The delivery it answers."""
        return self.claimed.task

    def facts(self) -> dict[str, Any]:
        """What log lines say about it."""
        task = self.claimed.task
        return {
            "run_id": self.claimed.run.run_id,
            "workflow": self.plan.workflow,
            "node": self.node.name,
            "step": self.node.step,
            "attempt": task.attempt,
            "delivery": task.delivery,
        }

    # -- the step's side ---------------------------------------------------------------------------------
    def beat(self, details: str | None) -> None:
        """The step's own heartbeat."""
        if details is not None:
            self.details = details
        self.beaten = True
        self.host.beat(self)

    # -- the worker's side -------------------------------------------------------------------------------
    def stop(self, *, released: bool = False) -> None:
        """Tells the body to end. With `released` the task is given back, else nobody waits for it any more."""
        self.released = self.released or released
        self.stopped = True
        self._cancel()

    def _cancel(self) -> None:
        if self.work is not None:
            self.work.cancel()

    async def run(self) -> None:
        """Runs the body and reports how it ended. Never raises, but for the worker's own cancellation."""
        event: Report | None = None
        try:
            arguments = self._arguments()
            event = arguments if isinstance(arguments, StepFailed) else await self._body(*arguments)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            # A GeneratorExit out of something awaited closes the coroutines on its way, so that what `_body` made of it is
            # lost; and types of the user's that raise something odd are asked outside of it.
            if self.host.closing:
                raise
            event = self._raised(error)
        finally:
            self._end(event)

    def ensure_over(self) -> None:
        """Ends the attempt whose task was cancelled before it had begun; its body never ran."""
        if not self.over:
            self._end(None)

    def _end(self, event: Report | None) -> None:
        self.report(self.overtime or event or StepReleased(self.task, self.details))
        self.over = True
        if not self.thread:
            self.body_ended()

    def report(self, event: Report) -> None:
        """The attempt's one report. Later ones, and those nobody waits for any more, go nowhere."""
        if not self.reported:
            self.reported = True
            if not self.stopped or self.released or event is self.overtime:
                self.host.report(self, event)

    def give_back(self) -> None:
        """Gives the task back without waiting for its body any longer."""
        self.report(StepReleased(self.task, self.details))

    def _thread_ended(self) -> None:
        self.thread = False
        if self.over:
            # It was left behind: its attempt was over before.
            self.body_ended()

    def body_ended(self) -> None:
        """The body has really ended."""
        if not self.ended:
            self.ended = True
            self.host.body_ended(self)

    @property
    def _pool(self) -> ProcessPool | None:
        """The processes among which the step has to run; None for the loop or a thread."""
        return self.host.processes if self.step.isolation == "process" else None

    def _arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]] | StepFailed:
        try:
            text = arguments_text(self.plan, self.node, self.claimed)
            # A process reads them itself.
            return ((text,), {}) if self._pool is not None else self.step.decode_arguments(text)
        except Unreadable as error:
            why = f"the arguments of step {self.node.step} cannot be read: {error}"
        except PayloadError as error:
            why = f"the stored arguments do not fit step {self.node.step} as it is now: {error}"
        except ValueError as error:
            why = f"the stored arguments of step {self.node.step} are no JSON: {error}"
        except KeyError as error:
            node = node_of(error.args[0])
            why = f"the output of node {self.plan.nodes[node].name if node >= 0 else 'input'} is missing"
        return self._refused(mismatch(why))

    async def _body(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Report:
        claimed, node, step = self.claimed, self.node, self.step
        context = StepContext(
            run_id=claimed.run.run_id, workflow=self.plan.workflow, node=node.name, item=claimed.task.item,
            attempt=claimed.task.attempt, fence=claimed.task.delivery, details=claimed.details, resources=self.host.resources,
            link=self, max_payload=self.host.max_payload,
        )  # fmt: skip
        timer: asyncio.TimerHandle | None = None
        token = enter(context)
        try:
            if self._pool is not None:
                # Before its time begins: a new process first imports its modules.
                self.process = await self._pool.acquire()
            timeout = node.options.timeout
            if timeout is not None:
                timer = asyncio.get_running_loop().call_later(timeout, self._timed_out, timeout)
            call = self._call(args, kwargs)
            value = await (_surrounded(call, self.host.around, context) if self.host.around else call())
            return StepReleased(self.task, self.details) if self.stopped else self._completed(value)
        except asyncio.CancelledError:
            if self.stopped or self.host.closing:
                return StepReleased(self.task, self.details)
            return self._raised(RuntimeError("the step was cancelled, and not by Composer"))
        except ProcessDied as error:
            why = f"step {step.name} did not end: {error}"
            return self._failed(Failure(FailureKind.PROCESS_DIED, "ProcessDied", storable(why)), retryable=True)
        except BaseException as error:
            # SystemExit and KeyboardInterrupt out of user code too: only the worker's own signal ends the worker.
            return self._raised(error)
        finally:
            leave(token)
            if timer is not None:
                timer.cancel()
            if self.process is not None and self._pool is not None:
                self._pool.release(self.process)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Awaitable[Any]]:
        """What runs the body, where it has to run."""
        fn = self.step.fn
        if self.step.is_async:
            return lambda: fn(*args, **kwargs)
        if self._pool is not None:
            return lambda: self._in_process(args[0])
        return lambda: self._in_thread(fn, args, kwargs)

    def _completed(self, value: Any) -> Report:
        crossed = self.crossed
        try:
            text = (
                crossed[1] if crossed and value is crossed[0] else self.step.encode_result(value, self.host.max_payload)
            )
        except PayloadError as error:
            return self._refused(refused(error))
        return StepCompleted(self.task, text)

    async def _in_process(self, arguments: str) -> Any:
        """Runs a plain function in a process of its own, which whatever stops the body kills."""
        pool, context = self._pool, self.claimed
        assert pool is not None
        assert self.process is not None
        request = {
            "arguments": arguments,
            "context": {
                "run_id": context.run.run_id, "workflow": self.plan.workflow, "node": self.node.name, "item": self.task.item,
                "attempt": self.task.attempt, "fence": self.task.delivery, "details": self.details or context.details,
                "max_payload": self.host.max_payload,
            },
        }  # fmt: skip
        try:
            frame = await pool.run(self.process, self.step.name, request, beat=self.beat)
        except ProcessDied as error:
            if error.began:
                raise
            # It had died while it was idle, which is nothing to this step.
            pool.release(self.process)
            self.process = None
            self.process = await pool.acquire()
            frame = await pool.run(self.process, self.step.name, request, beat=self.beat)
        self.details = frame["details"] or self.details
        return self._received(frame)

    def _received(self, frame: Mapping[str, Any]) -> Any:
        """What the body in the process returned; raises what it raised."""
        if "completed" in frame:
            text: str = frame["completed"]
            # Only an around_step looks at the value.
            self.crossed = (self.step.decode_result(text) if self.host.around else object(), text)
            return self.crossed[0]
        if "snoozed" in frame:
            raise Snooze(frame["snoozed"])
        if "cancelled" in frame:
            raise StepCancelled
        raised = Raised.of_frame(frame)
        error = ProcessStepError(raised.failure.type, raised.failure.message, raised.failure.traceback)
        self.thrown = error, raised
        raise error

    async def _in_thread(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a plain function in a thread. A thread cannot be stopped: cancelled, it is left behind, with its slot."""
        self.thread = True
        loop = asyncio.get_running_loop()
        # Whoever takes the ticket decides: the thread, that the body runs; a cancellation before it, that it never will.
        ticket = [True]

        def call() -> tuple[Any, BaseException | None]:
            try:
                ticket.pop()
            except IndexError:
                return None, None
            try:
                return fn(*args, **kwargs), None
            except BaseException as error:
                # Raised by hand below: futures change some exceptions, and a GeneratorExit closes who awaits it.
                return None, error
            finally:
                # The loop may be gone when a thread that was left behind ends.
                if not loop.is_closed():
                    loop.call_soon_threadsafe(self._thread_ended)

        try:
            # anyio's limiter counts a thread that was left behind as free, so the worker counts for itself.
            value, raised = await anyio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=_unlimited())
        except BaseException:
            with contextlib.suppress(IndexError):
                ticket.pop()
                self.thread = False
            raise
        if raised is not None:
            raise raised
        return value

    def _timed_out(self, timeout: float) -> None:
        """The time is over. A coroutine is cancelled and reported once it has ended; a thread is reported at once."""
        if self.reported:
            return
        message = f"step {self.node.step} took longer than its timeout of {timeout:g} s"
        failure = Failure(FailureKind.TIMEOUT, "StepTimeout", message)
        self.overtime = self._failed(failure, retryable=TimeoutError not in self.step.retries.no_retry_on)
        self.stopped = True
        if self.thread:
            self.report(self.overtime)
        else:
            asyncio.get_running_loop().call_later(_PATIENCE, self._still_there)
        self._cancel()

    def _still_there(self) -> None:
        """The coroutine was cancelled for its timeout some time ago. Its attempt ends now, whatever it does."""
        if not self.reported and self.overtime is not None:
            log.warning("a step did not end when its timeout cancelled it", extra=self.facts())
            self.report(self.overtime)

    def _raised(self, error: BaseException) -> Report:
        thrown = self.thrown
        known = thrown is not None and error is thrown[0]
        raised = thrown[1] if thrown and known else raised_by(error, self.step.retries.no_retry_on)
        if isinstance(raised, Snooze):
            return StepSnoozed(self.task, max(0.0, raised.delay), self.details)
        if isinstance(raised, StepCancelled):
            return StepReleased(self.task, self.details)
        return self._refused(raised)

    def _refused(self, raised: Raised) -> StepFailed:
        return self._failed(raised.failure, retryable=raised.retryable, retry_after=raised.retry_after)

    def _failed(self, failure: Failure, *, retryable: bool, retry_after: float | None = None) -> StepFailed:
        return StepFailed(self.task, failure, retryable, retry_after, random.random(), self.details)


def arguments_text(plan: Plan, node: Node, claimed: ClaimedTask) -> str:
    """The arguments of a claimed task as a JSON object. Raises Unreadable, KeyError for a value that was not handed over."""
    reads = {**claimed.values, **absent_parts(node.reads, claimed.values)}
    values = Values.of(claimed.run.snapshot, reads, claimed.errors)
    if not node.over:
        return render(plan, node.args, values)
    fixed = {name: template for name, template in node.args.items() if name != node.over}
    item = f"{dumps(node.over)}:{claimed.input}"
    return f"{{{item},{render(plan, fixed, values)[1:]}" if fixed else f"{{{item}}}"


async def _surrounded(call: Callable[[], Awaitable[Any]], around: Sequence[Around], context: StepContext) -> Any:
    """The result of `call` through what stands around it."""
    outermost, *inner = around
    given: Any = None

    async def inside() -> Any:
        nonlocal given
        given = await (_surrounded(call, inner, context) if inner else call())
        return given

    value = await outermost(context, inside)
    if value is None and given is not None:
        raise TypeError(
            f"around_step {getattr(outermost, '__name__', outermost)} returned None in place of the step's result: "
            "end it with `return await call()`"
        )
    return value


_limiter: Final = RunVar[anyio.CapacityLimiter]("composer_unlimited")


def _unlimited() -> anyio.CapacityLimiter:
    """One limiter a loop that limits nothing."""
    try:
        return _limiter.get()
    except LookupError:
        made = anyio.CapacityLimiter(float("inf"))
        _limiter.set(made)
        return made
