"""What a running step knows about itself: step_context().

The worker makes one StepContext an attempt and sets it in a ContextVar, which threads started by asyncio or anyio
inherit. Whatever the context has to tell the engine goes through its StepLink.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from contextvars import ContextVar, Token
from typing import Any, Final, Protocol, TypeVar, overload

from typing_extensions import TypeForm

from composer.core.limits import MAX_PAYLOAD, within_limit
from composer.define.payloads import codec
from composer.define.shapes import name_of
from composer.define.source import user_line
from composer.errors import PayloadError, PlanError, StepCancelled

T = TypeVar("T")
D = TypeVar("D")

_LOGGER: Final = logging.getLogger("composer.step")


class StepLink(Protocol):
    """How a running step reaches its worker. Both may be used from the step's thread."""

    @property
    def stopped(self) -> bool:
        """Whether the run was stopped, or the task is no longer this worker's."""
        ...

    def beat(self, details: str | None) -> None:
        """A sign of life; `details` is a checkpoint as JSON text, None for no new one. Does not block."""
        ...


class StepLog(logging.LoggerAdapter[logging.Logger]):
    """Puts run_id, workflow, node and attempt on every record, beside an `extra` of the caller's own."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(kwargs.get("extra") or {}), **(self.extra or {})}
        return msg, kwargs


class NoResources:
    """Stands for resources that are not there; `why` is what a step that asks for them is told."""

    __slots__ = ("why",)

    def __init__(self, why: str) -> None:
        self.why = why


NO_LIFESPAN: Final = NoResources(
    "this worker has none: no @lifespan is defined in the modules it serves, and none was given to it. "
    "Define one beside the workflows, or give it: Worker(..., lifespan=resources), run_workflow(..., resources=...)"
)


class StepContext:
    """The attempt that is running: which run, node and map item, and how to reach the worker.

    `item` is the index in a map, -1 outside of one. `attempt` counts from 1. `fence` grows with every claim of the
    task, so a store that remembers the largest one seen can refuse a worker that was presumed dead.
    """

    __slots__ = (
        "_details", "_link", "_log", "_max_payload", "_resources", "attempt", "fence", "item", "node", "run_id", "workflow",
    )  # fmt: skip

    def __init__(
        self,
        *,
        run_id: str,
        workflow: str,
        node: str,
        item: int,
        attempt: int,
        fence: int,
        details: str | None,
        resources: Any,
        link: StepLink,
        max_payload: int = MAX_PAYLOAD,
    ) -> None:
        self.run_id, self.workflow, self.node, self.item = run_id, workflow, node, item
        self.attempt, self.fence, self._resources = attempt, fence, resources
        self._details, self._link, self._max_payload = details, link, max_payload
        self._log: StepLog | None = None

    def __repr__(self) -> str:
        return f"<StepContext {self.idempotency_key} attempt {self.attempt}>"

    @property
    def idempotency_key(self) -> str:
        """The same text for every attempt of this task, and for no other task: for APIs that take one."""
        key = f"{self.run_id}/{self.node}"
        return f"{key}/{self.item}" if self.item >= 0 else key

    @property
    def resources(self) -> Any:
        """What the worker's @lifespan yielded. Raises PlanError where there is none, as in a process step."""
        if isinstance(self._resources, NoResources):
            raise PlanError(f"node {self.node} asks for resources", self._resources.why, str(user_line()))
        return self._resources

    @property
    def facts(self) -> dict[str, Any]:
        """What log records say about it: run_id, workflow, node, attempt, and item in a map."""
        facts: dict[str, Any] = {
            "run_id": self.run_id,
            "workflow": self.workflow,
            "node": self.node,
            "attempt": self.attempt,
        }
        if self.item >= 0:
            facts["item"] = self.item
        return facts

    @property
    def cancelled(self) -> bool:
        """Whether the run was stopped: what this attempt returns will not be used."""
        return self._link.stopped

    def check_cancelled(self) -> None:
        """Returns while the run goes on; raises StepCancelled once it was stopped."""
        if self._link.stopped:
            raise StepCancelled(f"run {self.run_id} was stopped while {self.node} was running")

    def heartbeat(self, details: Any = None) -> None:
        """A sign of life, and a checkpoint if `details` is given: any JSON value, replacing the last one.

        Raises StepCancelled once the run was stopped, PayloadError when `details` has no JSON, PayloadTooLarge when it
        has too much.
        """
        text = None
        if details is not None:
            # Unchecked: it is read by the type that heartbeat_details() names, which is not known here.
            try:
                text = codec(Any).encode(details, check=False)
            except PayloadError as error:
                raise PayloadError(f"node {self.node}: heartbeat(): its details cannot be written: {error}") from error
            within_limit(text, f"the checkpoint of node {self.node}", self._max_payload)
            self._details = text
        self._link.beat(text)
        self.check_cancelled()

    @overload
    def heartbeat_details(self, type: TypeForm[T], /) -> T | None: ...
    @overload
    def heartbeat_details(self, type: TypeForm[T], /, default: D) -> T | D: ...
    def heartbeat_details(self, type: Any, /, default: Any = None) -> Any:
        """The last checkpoint, of this attempt or an earlier one, read as `type`; `default` when there is none.

        Raises PayloadError when the checkpoint is of another type.
        """
        if self._details is None:
            return default
        try:
            return codec(type).decode(self._details)
        except PayloadError as error:
            problem = f"node {self.node}: its checkpoint cannot be read as {name_of(type)}: {error}"
            raise PayloadError(problem) from error

    @property
    def log(self) -> StepLog:
        """The logger "composer.step", with run_id, workflow, node and attempt on every record."""
        if self._log is None:
            self._log = StepLog(_LOGGER, self.facts)
        return self._log


_current: Final[ContextVar[StepContext | None]] = ContextVar("composer_step_context", default=None)


def step_context() -> StepContext:
    """The context of the step that is running. Raises PlanError outside of one."""
    context = _current.get()
    if context is None:
        raise PlanError(
            "step_context() was called outside of a running step",
            "It exists while a worker runs the step. Where a function is also called directly, pass it what it needs.",
            str(user_line()),
        )
    return context


def running() -> StepContext | None:
    """The context of the step that is running, None outside of one."""
    return _current.get()


def enter(context: StepContext) -> Token[StepContext | None]:
    """Makes `context` the current one; give the token to leave()."""
    return _current.set(context)


def leave(token: Token[StepContext | None]) -> None:
    """Restores what was current before enter()."""
    _current.reset(token)
