"""What a decorated function declares: its parameters, their types and defaults. Read once, where it is decorated."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import Parameter, Signature
from types import FunctionType
from typing import Any, Final, Literal, TypeVar, get_type_hints

from composer.define import shapes
from composer.define.payloads import codec
from composer.define.source import defined_at, user_place
from composer.errors import PayloadError, PlanError, PlanTypeError

MOST_LETTERS: Final = 200
"""In a name: long enough for any that is read by people, short enough for an index."""
_NAME: Final = re.compile(rf"[\w.-]{{1,{MOST_LETTERS}}}")


@dataclass(frozen=True, slots=True, eq=False)
class Declaration:
    """A function with everything its annotations say. `defaults` are JSON already, by parameter name."""

    kind: Literal["step", "workflow"]
    fn: Any
    name: str
    signature: Signature
    types: Mapping[str, Any]
    result: Any
    defaults: Mapping[str, Any]
    where: str
    positional: tuple[str, ...]
    """Parameters that a call may give by position."""
    fewest: int | None
    """How many positional arguments make a call complete; None where a keyword is required."""

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """Parameters by name, in the order of the signature."""
        return self.signature.parameters

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by parameter name, without the defaults. Raises PlanTypeError with the signature."""
        # Signature.bind() takes ten times as long as the common call needs.
        if not kwargs and self.fewest is not None and self.fewest <= len(args) <= len(self.positional):
            return dict(zip(self.positional, args, strict=False))
        try:
            return self.signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            problem = f"{self.name}(): {error}"
            unknown = [name for name in kwargs if name not in self.parameters]
            close = shapes.did_you_mean(unknown[0], self.parameters) if unknown else ""
            advice = f"It takes {self.signature}." + (f" {close}" if close.startswith("Did") else "")
            raise PlanTypeError(problem, advice, user_place()) from None


class _Shown:
    """An annotation as a signature shall print it: short, and without quotes under deferred evaluation."""

    def __init__(self, type_: Any) -> None:
        self._text = shapes.name_of(type_)

    def __repr__(self) -> str:
        return self._text


def checked_name(name: object, what: str, where: str) -> str:
    """A name that plans and workers can agree on, else PlanError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        problem = f"{what}: {name!r} is no name"
        raise PlanError(problem, f"Letters, digits, '_', '-' and '.', at most {MOST_LETTERS} of them.", where)
    return name


def declare(fn: Any, kind: Literal["step", "workflow"], name: object = None) -> Declaration:
    """What `fn` declares. Raises PlanError for a function that cannot become a step or a workflow."""
    where = defined_at(fn)
    _check_function(fn, kind, where)
    own = checked_name(fn.__name__ if name is None else name, f"{kind} {fn.__name__}", where)
    types = _resolved(fn, kind, where)
    signature = inspect.signature(fn)
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise PlanTypeError(f"{kind} {own}: {parameter} has no fixed names", "Take a list or a dict.", where)
        if parameter.name not in types:
            problem = f"{kind} {own}: parameter {parameter.name!r} has no annotation"
            raise PlanTypeError(problem, "Annotate it; `Any` means any JSON.", where)
    if "return" not in types:
        raise PlanTypeError(f"{kind} {own}: no return annotation", "Annotate it; `-> None` for nothing.", where)
    for key, type_ in types.items():
        check_type(type_, f"{kind} {own}: {'the result' if key == 'return' else key}", where)
    defaults: dict[str, Any] = {}
    for parameter in signature.parameters.values():
        if parameter.default is not parameter.empty:
            try:
                defaults[parameter.name] = codec(types[parameter.name]).constant(parameter.default)
            except PayloadError as error:
                problem = (
                    f"{kind} {own}: the default {parameter.default!r} of {parameter.name!r} "
                    f"does not fit {shapes.name_of(types[parameter.name])}"
                )
                raise PlanTypeError(problem, str(error), where) from None
    shown = signature.replace(
        parameters=[p.replace(annotation=_Shown(types[p.name])) for p in signature.parameters.values()],
        return_annotation=_Shown(types["return"]),
    )
    parameters = signature.parameters.values()
    positional = tuple(p.name for p in parameters if p.kind is not p.KEYWORD_ONLY)
    required = [p for p in parameters if p.name not in defaults]
    return Declaration(
        kind=kind,
        fn=fn,
        name=own,
        signature=shown,
        types=types,
        result=types["return"],
        defaults=defaults,
        where=where,
        positional=positional,
        fewest=None if any(p.kind is p.KEYWORD_ONLY for p in required) else len(required),
    )


def _check_function(fn: Any, kind: str, where: str) -> None:
    if not isinstance(fn, FunctionType):
        hint = f"@{kind} stands above a module-level `def`."
        if isinstance(fn, (staticmethod, classmethod)):
            hint = f"Put @{type(fn).__name__} away: {kind}s are module-level functions."
        elif isinstance(fn, str):
            hint = f"Options are given by keyword: @{kind}(name={fn!r})."
        elif hasattr(fn, "fn"):
            hint = "It is decorated already: one decorator is enough."
        raise PlanTypeError(f"@{kind} takes a function, not {fn!r}", hint, where)
    parent = fn.__qualname__.rpartition(".")[0]
    if parent and not parent.endswith("<locals>"):
        raise PlanTypeError(
            f"@{kind} on {fn.__qualname__}: a method cannot be a {kind}: no other worker has its instance",
            "Make it a module-level function and pass the data it needs.",
            where,
        )
    if fn.__name__ == "<lambda>":
        raise PlanTypeError(f"@{kind} on a lambda: it has no name and no annotations", "Write a `def`.", where)
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise PlanTypeError(f"@{kind} on {fn.__name__}: a generator has no single result", "Return a list.", where)
    if kind == "workflow" and inspect.iscoroutinefunction(fn):
        problem = f"workflow {fn.__name__} is `async def`"
        raise PlanTypeError(problem, "The builder only draws the plan and awaits nothing: write `def`.", where)


def check_type(type_: Any, what: str, where: str) -> None:
    """Raises PlanTypeError for a type that JSON cannot carry, which `what` has."""
    try:
        if isinstance(type_, TypeVar) or getattr(type_, "__parameters__", None):
            raise TypeError("a type variable says nothing at run time; write the type")
        codec(type_)
    except Exception as error:  # pydantic's, or one of the user's own __get_pydantic_core_schema__
        problem = f"{what} is {shapes.name_of(type_)}, which JSON cannot carry"
        raise PlanTypeError(problem, (str(error) or type(error).__name__).splitlines()[0], where) from None


def resolved(fn: Any) -> dict[str, Any]:
    """Annotations of `fn` as types. Names local to the functions around it are found too. Raises NameError."""
    scope: dict[str, Any] = {}
    if "<locals>" in fn.__qualname__:
        frame = sys._getframe(1)
        while frame.f_globals is not fn.__globals__ and frame.f_back is not None:
            frame = frame.f_back
        while frame.f_globals is fn.__globals__:
            scope = {**frame.f_locals, **scope}
            if frame.f_back is None:
                break
            frame = frame.f_back
    return get_type_hints(fn, localns=scope or None, include_extras=True)


def _resolved(fn: Any, kind: str, where: str) -> dict[str, Any]:
    try:
        return resolved(fn)
    except NameError as error:
        raise PlanError(
            f"{kind} {fn.__qualname__}: the annotation {error.name!r} is not defined yet",
            "Annotations are read when the function is decorated: define the type above it, "
            "and import it outside of `if TYPE_CHECKING:`.",
            where,
        ) from None
    except (TypeError, SyntaxError, AttributeError) as error:
        problem = f"{kind} {fn.__qualname__}: its annotations cannot be read"
        raise PlanTypeError(problem, str(error).splitlines()[0], where) from None
