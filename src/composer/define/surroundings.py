"""What stands around the steps of a worker: @lifespan opens what they share, @around_step wraps each attempt.

Both belong to the process that runs steps and not to a plan: a worker takes them from the modules it serves, and
another release of the code may have others for the same runs.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from inspect import Parameter
from typing import Any, Generic, TypeVar

from composer.define.context import StepContext
from composer.define.source import defined_at
from composer.errors import PlanTypeError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Around = Callable[[StepContext, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""What wraps an attempt: awaits `call()` for the step's result and returns it."""
Opener = Callable[[], AbstractAsyncContextManager[Any]]
"""What opens the resources of a worker: a Lifespan, or anything that gives an async context manager."""


class Lifespan(Generic[T_co]):
    """What @lifespan makes: called, it gives the async context manager that opens and closes the resources.

    A worker enters it once, in its event loop; a test may do the same: `async with resources() as opened:`.
    """

    def __init__(self, fn: Callable[[], AsyncIterator[T_co]]) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.fn = fn
        self.name: str = fn.__name__
        self.module: str = fn.__module__
        self.where = defined_at(fn)
        self._open = asynccontextmanager(fn)  # pyright: ignore[reportDeprecated]

    def __repr__(self) -> str:
        return f"<lifespan {self.name} of {self.module}>"

    def __call__(self) -> AbstractAsyncContextManager[T_co]:
        """The resources, opened on entering and closed on leaving."""
        return self._open()


def lifespan(fn: Callable[[], AsyncIterator[T]], /) -> Lifespan[T]:
    """Makes an async generator function the lifespan of the workers that serve its module.

    What it yields, once, is step_context().resources in every step. It is opened once per worker process before any
    step runs, and what follows the `yield` runs when the worker has drained, also after a failure.
    """
    where = defined_at(fn)
    given: Any = fn
    if isinstance(given, Lifespan):
        raise PlanTypeError(f"@lifespan on {given.name}: it is one already", "One decorator is enough.", where)
    if not inspect.isasyncgenfunction(fn):
        raise PlanTypeError(
            f"@lifespan takes an async generator function, not {_what(fn)}",
            "Write `async def resources() -> AsyncIterator[Pool]:` with one `yield` of what the steps shall have; "
            "@asynccontextmanager above it is not needed.",
            where,
        )
    needed = [name for name, p in inspect.signature(fn).parameters.items() if _needs_value(p)]
    if needed:
        raise PlanTypeError(
            f"@lifespan on {fn.__name__}: nobody gives it {', '.join(needed)}",
            "A worker calls it without arguments: read the environment or a settings module inside.",
            where,
        )
    return Lifespan(fn)


class AroundStep:
    """What @around_step makes: an async function that stands around every attempt. Callable as it was written."""

    def __init__(self, fn: Around) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.fn = fn
        self.name: str = getattr(fn, "__name__", repr(fn))
        self.module: str = fn.__module__
        self.where = defined_at(fn)

    def __repr__(self) -> str:
        return f"<around_step {self.name} of {self.module}>"

    def __call__(self, ctx: StepContext, call: Callable[[], Awaitable[Any]], /) -> Awaitable[Any]:
        """The function itself."""
        return self.fn(ctx, call)


def around_step(fn: Around, /) -> AroundStep:
    """Makes `async def fn(ctx, call)` stand around every attempt of the workers that serve its module.

    `await call()` runs the step and gives its result, which is to be returned. What is set in a ContextVar before it
    is visible in the step, in threads too, and nowhere else; what the step raises passes through. Of several the
    first defined is the outermost.
    """
    where = defined_at(fn)
    if isinstance(fn, AroundStep):
        raise PlanTypeError(f"@around_step on {fn.name}: it is one already", "One decorator is enough.", where)
    if not inspect.iscoroutinefunction(fn):
        raise PlanTypeError(
            f"@around_step takes an `async def`, not {_what(fn)}",
            "Write `async def tenants(ctx, call): ...; return await call()`.",
            where,
        )
    parameters = inspect.signature(fn).parameters.values()
    by_position = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p.name for p in parameters if _needs_value(p) and p not in by_position[:2]]
    if (len(by_position) < 2 and not any(p.kind is p.VAR_POSITIONAL for p in parameters)) or needed:
        raise PlanTypeError(
            f"@around_step on {fn.__name__}{inspect.signature(fn)}: it is called with two arguments",
            "The StepContext, and `call`, which runs the step: `async def tenants(ctx, call): ...`.",
            where,
        )
    return AroundStep(fn)


def _needs_value(parameter: Parameter) -> bool:
    varies = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and not varies


def _what(fn: Any) -> str:
    if inspect.isasyncgenfunction(fn):
        return f"the async generator {fn.__name__}"
    if inspect.iscoroutinefunction(fn):
        return f"the coroutine function {fn.__name__}: it does not `yield`"
    if inspect.isgeneratorfunction(fn):
        return f"the plain generator {fn.__name__}: write `async def`"
    if inspect.isfunction(fn):
        return f"the plain function {fn.__name__}"
    return repr(fn)
