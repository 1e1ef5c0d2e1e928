"""@step: a function that a workflow can call as a durable, retried node."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Protocol, Self, TypeVar, overload

from typing_extensions import Unpack

from composer.core.limits import MAX_PAYLOAD, within_limit
from composer.core.plan import NodeOptions
from composer.core.retries import Retry
from composer.define import shapes
from composer.define.build import current
from composer.define.declaration import Declaration, checked_name, declare, resolved
from composer.define.options import FOR_MAPS, StepOptions, checked_isolation, node_options
from composer.define.payloads import Arguments, codec
from composer.define.refs import Ref
from composer.define.source import defined_at, user_line
from composer.errors import PayloadError, PlanError, PlanTypeError

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Q = ParamSpec("Q")
A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)


class Items(Protocol[A_co]):
    """What .map runs over: a list, tuple or set. Not text, whose `in` takes text only."""

    def __contains__(self, item: object, /) -> bool: ...
    def __iter__(self) -> Iterator[A_co]: ...
    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Undo:
    """What takes a step back. `takes` "result": called with the step's result; "all": and with its arguments."""

    fn: Callable[..., Any]
    takes: Literal["result", "all"]
    is_async: bool
    where: str


class Step(Generic[P, R_co]):
    """A step: inside a @workflow function a call of it becomes a node; anywhere else use .fn.

    `name` is the contract with workers, `policy` the options it runs under unless a node changes them.
    """

    is_async = False
    isolation: Literal["thread", "process"] = "thread"
    """Where a plain function runs."""

    def __init__(self, declaration: Declaration, policy: NodeOptions) -> None:
        functools.update_wrapper(self, declaration.fn, updated=())
        self.declaration = declaration
        self.name = declaration.name
        self.module: str = declaration.fn.__module__
        self.policy = policy
        self._node_name: str | None = None
        self._after: tuple[object, ...] = ()
        self._for_maps = ""  # the option that .options() was given and only a map can use
        self._result = codec(declaration.result)
        self._arguments = Arguments(declaration.parameters, declaration.types)
        self._shared = _Shared(self)  # copies made by options(), after() and named() have one of these together

    def __repr__(self) -> str:
        return f"<step {self.name}{self.declaration.signature}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """A node of the workflow being built; what is returned stands for its result. Raises PlanError elsewhere."""
        current(f"step {self.name}()", self._instead())
        if self._for_maps:
            raise PlanError(
                f"step {self.name}: {self._for_maps} is for .map()",
                f"One call has one task: {self.name}.options({self._for_maps}=...).map(items), or leave it out.",
                str(user_line()),
            )
        made: Any = self._node(self.declaration.bind(args, kwargs))
        return made  # type: ignore[no-any-return]

    # `self` is a Callable here, not a Step: only then does mypy hold the items to the first parameter.
    def map(
        self: Callable[Concatenate[A, Q], R],  # pyright: ignore[reportGeneralTypeIssues]
        items: Items[A],
        /,
        *args: Q.args,
        **kwargs: Q.kwargs,
    ) -> list[R]:
        """One task for every item, as many as the list has when the run gets there; the results in the items' order.

        `items` is given to the first parameter, one at a time; the other arguments are the same for all. Options:
        `step.options(max_concurrency=10, tolerate="5%").map(items)`. Raises PlanError for what is not a list.
        """
        step: Any = self
        return step._map(items, args, kwargs)  # type: ignore[no-any-return]

    def _map(self, items: object, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Ref:
        current(f"step {self.name}.map()", self._instead())
        positional = self.declaration.positional
        if not positional:
            names = ", ".join(self.declaration.parameters)
            raise PlanTypeError(
                f"step {self.name}.map(): {self.name} has no parameter that takes an item by position",
                f"The first parameter gets the items{f', and {names} can be given by keyword only' if names else ''}.",
                str(user_line()),
            )
        if positional[0] in kwargs:
            raise PlanTypeError(
                f"step {self.name}.map(): {positional[0]} gets the items, which are given by position",
                f"{self.name}.map(items, ...).",
                str(user_line()),
            )
        return self._node(self.declaration.bind((items, *args), kwargs), over=positional[0])

    def _node(self, arguments: Mapping[str, Any], over: str = "") -> Ref:
        builder = current(f"step {self.name}()", self._instead())
        original = self._shared.original
        known = builder.steps.setdefault(self.name, original)
        if known is not original:
            raise PlanError(
                f"workflow {builder.workflow} has two steps named {self.name!r}, at {known.declaration.where} and {self.declaration.where}",
                "Workers know a step by its name: give one of them another, @step(name=...).",
                str(user_line()),
            )
        extra: dict[str, Any] = {}
        options = self.policy.as_json()
        if not over:
            options = {name: value for name, value in options.items() if name not in FOR_MAPS}
        if options:
            extra["options"] = options
        if self.undo is not None:
            # An undo that nobody runs is a refund that never comes: better no workflow than that one.
            raise PlanError(
                f"workflow {builder.workflow} uses step {self.name}, whose undo would not run",
                "This release checks undos and does not run them yet: undo in a step of its own, or leave compensate out.",
                str(user_line()),
            )
        made = builder.add(self.declaration, arguments, extra, name=self._node_name, after=self._after, over=over)
        self._shared.used_at = self._shared.used_at or str(user_line())
        return made

    @property
    def fn(self) -> Callable[P, Any]:
        """The undecorated function, for tests and for calls from other code."""
        fn: Callable[P, Any] = self.declaration.fn
        return fn

    @property
    def retries(self) -> Retry:
        """The live retry policy, with its `no_retry_on` types, which a plan holds only by name."""
        return self.policy.retries

    @property
    def undo(self) -> Undo | None:
        """What @step.compensate registered."""
        return self._shared.undo

    @property
    def types(self) -> Mapping[str, Any]:
        """Annotations by parameter name, and "return"."""
        return self.declaration.types

    @property
    def result(self) -> Any:
        """The annotation of the result."""
        return self.declaration.result

    # -- at a node ----------------------------------------------------------------------------------------------

    def options(self, **changes: Unpack[StepOptions]) -> Self:
        """The same step with other options, for the node it becomes."""
        where = str(user_line())
        if "name" in changes:
            raise PlanError(
                f"step {self.name}: .options() does not take `name`, which workers know the step by",
                f"To name the node: {self.name}.named({changes['name']!r}). To name the step: @step(name=...).",
                where,
            )
        if "isolation" in changes:
            raise PlanError(
                f"step {self.name}: .options() does not take `isolation`, which belongs to the code and not to a node",
                "Give it where the step is defined: @step(isolation=...).",
                where,
            )
        policy = node_options(self.policy, changes, step=self.name, where=where)
        own = [name for name, value in changes.items() if name in FOR_MAPS and value not in (None, 0)]
        return self._changed(policy=policy, _for_maps=own[0] if own else self._for_maps)

    def named(self, name: str) -> Self:
        """The same step; the node it becomes has this name in the plan."""
        where = str(user_line())
        return self._changed(_node_name=checked_name(name, f"step {self.name}.named({name!r})", where))

    def after(self, *refs: object) -> Self:
        """The same step, to start only when `refs`, results of other nodes, are there. Their values are not used."""
        return self._changed(_after=(*self._after, *refs))

    def _changed(self, **changes: Any) -> Self:
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__, **changes)
        return copy

    # -- undo ---------------------------------------------------------------------------------------------------

    @overload
    def compensate(
        self, undo: Callable[Concatenate[R_co, P], Awaitable[None] | None], /
    ) -> Callable[Concatenate[R_co, P], Awaitable[None] | None]: ...
    @overload
    def compensate(
        self, undo: Callable[[R_co], Awaitable[None] | None], /
    ) -> Callable[[R_co], Awaitable[None] | None]: ...
    def compensate(self, undo: Any, /) -> Any:
        """Registers the undo of this step and returns it: undo(result, *arguments) or undo(result).

        It runs when a run that completed this step fails, the last step first. Define it above the first workflow
        that uses the step, since plans say which nodes have one.
        """
        where = defined_at(undo)
        if self._shared.undo is not None:
            raise PlanError(f"step {self.name} has an undo already", f"It is at {self._shared.undo.where}.", where)
        if self._shared.used_at:
            raise PlanError(
                f"the undo of {self.name} comes after a workflow that uses {self.name}",
                f"Define it above {self._shared.used_at}.",
                where,
            )
        self._shared.undo = Undo(undo, self._taken_by(undo, where), inspect.iscoroutinefunction(undo), where)
        return undo

    def _taken_by(self, undo: Any, where: str) -> Literal["result", "all"]:
        own = self.declaration.parameters
        if not inspect.isfunction(undo):
            raise PlanTypeError(
                f"the undo of {self.name} is a function, not {undo!r}", "No decorator but this one.", where
            )
        signature = inspect.signature(undo)
        taken = list(signature.parameters)
        whole = len(taken) != 1 or signature.parameters[taken[0]].kind is inspect.Parameter.VAR_POSITIONAL
        keywords = {name: None for name, p in own.items() if p.kind is p.KEYWORD_ONLY} if whole else {}
        try:
            signature.bind(None, *[None] * (len(own) - len(keywords) if whole else 0), **keywords)
        except TypeError:
            fits = False
        else:
            fits = not whole or taken[1:] == list(own)
        if not fits:
            names = ", ".join(own)
            raise PlanTypeError(
                f"the undo of {self.name} takes (result) or (result, {names}), not ({', '.join(taken)})"
                if own
                else f"the undo of {self.name} takes (result), not ({', '.join(taken)})",
                "The step's result comes first, then its own parameters under their own names.",
                where,
            )
        try:
            first = resolved(undo).get(taken[0], shapes.MISSING)
        except (NameError, TypeError):  # nothing is decoded by the undo's own annotations, so they need not be readable
            first = shapes.MISSING
        wrong = shapes.misfit(self.result, first)
        if wrong:
            raise PlanTypeError(
                f"the undo of {self.name} takes its result first: {taken[0]} does not fit", f"{wrong}.", where
            )
        return "all" if whole else "result"

    # -- at run time --------------------------------------------------------------------------------------------

    def encode_result(self, value: Any, max_payload: int = MAX_PAYLOAD) -> str:
        """The result as JSON text. Raises PayloadError naming the step, the type and the path; PayloadTooLarge."""
        try:
            text = self._result.encode(value, most=max_payload)
        except PayloadError as error:
            problem = (
                f"step {self.name}: its result cannot be written as {shapes.name_of(self.result)}: {error}\n"
                f"  at {self.declaration.where}"
            )
            raise PayloadError(problem) from error
        return within_limit(text, f"the result of step {self.name}", max_payload)

    def decode_result(self, text: str | bytes) -> R_co:
        """The result that encode_result() wrote. Raises PayloadError."""
        try:
            value: R_co = self._result.decode(text)
        except PayloadError as error:
            problem = f"step {self.name}: its result cannot be read as {shapes.name_of(self.result)}: {error}"
            raise PayloadError(problem) from error
        return value

    def decode_arguments(self, text: str | bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments for fn(*args, **kwargs), of a JSON object by parameter name. Raises PayloadError."""
        try:
            return self._arguments.decode(text)
        except PayloadError as error:
            problem = f"step {self.name}: its arguments do not fit {self.declaration.signature}: {error}"
            raise PayloadError(problem) from error

    def _instead(self) -> str:
        call = f"await {self.name}.fn(...)" if self.is_async else f"{self.name}.fn(...)"
        return f"To run the function itself, in a test or in another step: {call}. To run it durably: a @workflow."


class _Shared:
    """What all copies of one step share."""

    __slots__ = ("original", "undo", "used_at")

    def __init__(self, original: Step[..., Any]) -> None:
        self.original = original
        self.undo: Undo | None = None
        self.used_at = ""


class AsyncStep(Step[P, R_co]):
    """A step of an `async def`; it runs in the worker's event loop."""

    is_async = True

    @property
    def fn(self) -> Callable[P, Coroutine[Any, Any, R_co]]:
        """The undecorated function, for tests and for calls from other code."""
        fn: Callable[P, Coroutine[Any, Any, R_co]] = self.declaration.fn
        return fn


class SyncStep(Step[P, R_co]):
    """A step of a plain `def`; it runs in a thread, or in a process of its own."""

    @property
    def fn(self) -> Callable[P, R_co]:
        """The undecorated function, for tests and for calls from other code."""
        fn: Callable[P, R_co] = self.declaration.fn
        return fn


class StepDecorator(Protocol):
    """What @step(...) is: it makes an AsyncStep of an `async def`, a SyncStep of a `def`."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncStep[P, R]: ...  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload]
    @overload
    def __call__(self, fn: Callable[P, R], /) -> SyncStep[P, R]: ...


@overload
def step(fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncStep[P, R]: ...  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload]
@overload
def step(fn: Callable[P, R], /) -> SyncStep[P, R]: ...
@overload
def step(**options: Unpack[StepOptions]) -> StepDecorator: ...
def step(fn: Any = None, /, **options: Any) -> Any:
    """Makes a function a step: durable, retried, one node of a workflow wherever it is called in one.

    Arguments and result travel as JSON by their annotations, which must all be there. Options: see StepOptions.
    """
    line = str(user_line())

    def decorate(fn: Any) -> Any:
        declaration = declare(fn, "step", options.get("name"))
        isolation = checked_isolation(options, fn, step=declaration.name, where=line)
        changes = {name: value for name, value in options.items() if name not in ("name", "isolation")}
        policy = node_options(NodeOptions(), changes, step=declaration.name, where=line)
        made: Step[..., Any] = (AsyncStep if inspect.iscoroutinefunction(fn) else SyncStep)(declaration, policy)
        made.isolation = isolation
        return made

    return decorate if fn is None else decorate(fn)
