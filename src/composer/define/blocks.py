"""Blocks of a workflow beside steps: conditions, waits, sleeps, races."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar, Union, overload

from pydantic import NaiveDatetime
from pydantic.errors import PydanticUserError
from typing_extensions import TypeForm

from composer.core.durations import seconds
from composer.define import shapes
from composer.define.build import INSIDE, Builder, Level, current, holds_ref
from composer.define.declaration import check_type, checked_name
from composer.define.fidelity import short
from composer.define.options import Duration
from composer.define.payloads import codec
from composer.define.refs import Ref, condition, is_symbol, joined
from composer.define.source import user_line
from composer.errors import PayloadError, PlanError, PlanTypeError

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
T = TypeVar("T")

_UNSET: Final[Any] = object()
_SHORTEST: Final = 0.001
_DURATIONS: Final = Union[float, timedelta, str]  # noqa: UP007 - a value, compared with annotations


# -- conditions --------------------------------------------------------------------------------------------------


class Block:
    """What when() and otherwise() return: `with` it, and the nodes made inside run only if its condition holds."""

    __slots__ = ("_asks", "_builder", "_is_otherwise", "_name")

    def __init__(self, builder: Builder, asks: Any, name: str | None, *, is_otherwise: bool) -> None:
        self._builder, self._asks, self._name = builder, asks, name
        self._is_otherwise = is_otherwise
        builder.unopened[id(self)] = user_line()

    def __enter__(self) -> None:
        builder = self._builder
        if builder.unopened.pop(id(self), None) is None:
            raise PlanError("a block is entered once", "Make another: with when(...):", str(user_line()))
        around = builder.levels[-1]
        guard = around.guard
        if self._is_otherwise:
            guard = _other_branch(around)
        if self._asks is not None:
            builder.levels.append(Level(guard))
            name = builder.add_guard(self._asks, self._name)._node
            builder.levels.pop()
            guard = {"guard": name, "is": True}
        builder.levels.append(Level(guard))

    # None, not bool: checkers must know that errors pass through.
    def __exit__(self, *exc: object) -> None:
        guard = self._builder.levels.pop().guard
        around = self._builder.levels[-1]
        if self._asks is None:
            around.otherwise, around.why_not = None, "the when() above has its otherwise() already"
        elif guard is not None:
            around.otherwise = {"guard": guard["guard"], "is": False}


def when(condition: bool, /, *more: bool, name: str | None = None) -> Block:
    """`with when(order.total > 1_000):` nodes made in the block run only if every condition holds; else they are skipped.

    The condition is a node of the plan, evaluated once when its values are there; `name` is the node's name.
    """
    return _block("when()", (condition, *more), name, is_otherwise=False)


def otherwise(*conditions: bool, name: str | None = None) -> Block:
    """`with otherwise():` the other branch of the `when` above, at the same level; with conditions it is an else-if."""
    builder = current("otherwise()", INSIDE)
    _other_branch(builder.levels[-1])
    return _block("otherwise()", conditions, name, is_otherwise=True)


def _other_branch(level: Level) -> dict[str, Any]:
    if level.otherwise is None:
        advice = "It follows a `with when(...):` block, or an otherwise(condition), at the same level."
        raise PlanError(level.why_not, advice, str(user_line()))
    return level.otherwise


def _block(what: str, conditions: tuple[Any, ...], name: str | None, *, is_otherwise: bool) -> Block:
    builder = current(what, INSIDE)
    if name is not None:
        checked_name(name, f"{what[:-1]}name={name!r})", str(user_line()))
        if not conditions:
            raise PlanError(
                f"{what[:-1]}name={name!r})", "Without a condition it has no node to name.", str(user_line())
            )
    for each in conditions:
        condition(builder, what, each)
    asks = joined(builder, "and", what, conditions) if conditions else None
    return Block(builder, asks, name, is_otherwise=is_otherwise)


# -- sleeps ------------------------------------------------------------------------------------------------------


def sleep(duration: Duration, /, *, after: object = None, name: str | None = None) -> datetime:
    """A pause of `duration`, from when it became ready; its value is the moment it ended. Nothing is held meanwhile.

    A sleep holds up only what comes after it: `step.after(sleep("1h"))`. It begins with the run, or after the results
    given as `after`. The duration may be a value of the run: a number of seconds, or a timedelta.
    """
    builder = current("sleep()", INSIDE)
    given: Any = duration
    if is_symbol(given):
        _fits(given, (int, float, timedelta), "sleep()", "seconds, or a timedelta")
    else:
        given = _seconds(given, "sleep()", least=0.0)
    return builder.add_block(  # type: ignore[return-value]
        {"kind": "sleep"}, "sleep", datetime, args={"for": (given, shapes.MISSING)}, after=after, name=name
    )


def sleep_until(moment: datetime, /, *, after: object = None, name: str | None = None) -> datetime:
    """A pause until a moment, which has a time zone; its value is the moment it ended. A moment that is past is no pause.

    The moment may be a value of the run. As with `sleep`, only what comes after it is held up.
    """
    builder = current("sleep_until()", INSIDE)
    given: Any = moment
    if is_symbol(given):
        _fits(given, (datetime,), "sleep_until()", "a datetime with a time zone")
    elif not isinstance(given, datetime) or given.tzinfo is None or given.utcoffset() is None:
        raise PlanTypeError(
            f"sleep_until() takes a datetime with a time zone, not {short(given)}",
            "Without one nobody knows which moment it is: datetime(..., tzinfo=UTC).",
            str(user_line()),
        )
    return builder.add_block(  # type: ignore[return-value]
        {"kind": "sleep"}, "sleep_until", datetime, args={"until": (given, datetime)}, after=after, name=name
    )


def _fits(given: Any, types: tuple[type, ...], what: str, wanted: str) -> None:
    tp = given._type if type(given) is Ref or hasattr(given, "_compare") else None
    members = shapes.members(tp)
    known = [shapes.origin_of(each) for each in members]
    if shapes.is_unknown(tp) or (
        known
        and NaiveDatetime not in members
        and all(isinstance(each, type) and issubclass(each, types) and each is not bool for each in known)
    ):
        return
    raise PlanTypeError(f"{what} takes {wanted}, not {given!r}, of type {shapes.name_of(tp)}", "", str(user_line()))


def _seconds(value: Any, what: str, *, least: float) -> float:
    try:
        made = seconds(value, what=what, least=least)
    except PlanError as error:
        raise PlanError(error.problem, error.advice, str(user_line())) from None
    return int(made) if math.floor(made) == made else made  # one spelling for 60, 60.0 and "60s"


# -- events ------------------------------------------------------------------------------------------------------


@overload
def wait_for_event(
    event: str, type: TypeForm[T], /, *, timeout: Duration | None = None, after: object = None, name: str | None = None
) -> T: ...
@overload
def wait_for_event(
    event: str,
    type: TypeForm[T],
    /,
    *,
    timeout: Duration,
    on_timeout: None,
    after: object = None,
    name: str | None = None,
) -> T | None: ...
@overload
def wait_for_event(
    event: str,
    type: TypeForm[T],
    /,
    *,
    timeout: Duration,
    on_timeout: T,
    after: object = None,
    name: str | None = None,
) -> T: ...
def wait_for_event(
    event: str,
    type: Any,
    /,
    *,
    timeout: Any = None,
    on_timeout: Any = _UNSET,
    after: object = None,
    name: str | None = None,
) -> Any:
    """The payload of the event `event`, sent to the run from outside; `type` is what it is checked by when it is sent.

    The wait begins with the run, or after the results given as `after`; an event that came earlier is kept for it.
    When `timeout` runs out its value is `on_timeout`, or the node fails if there is none. The node has the event's name.
    """
    builder = current("wait_for_event()", INSIDE)
    where = str(user_line())
    checked_name(event, "wait_for_event()", where)
    what = f"wait_for_event({event!r})"
    if isinstance(type, str):
        raise PlanTypeError(f"{what}: {type!r} is text, not a type", "Give the type itself, without quotes.", where)
    check_type(type, f"{what}: its payload", where)
    node: dict[str, Any] = {"kind": "wait", "event": event, "schema": _schema(type), "timeout": None}
    result: Any = type
    if timeout is not None:
        node["timeout"] = _seconds(timeout, what, least=_SHORTEST)
    if on_timeout is not _UNSET:
        if timeout is None:
            raise PlanError(f"{what} has on_timeout and no timeout", "Add timeout=, or leave on_timeout out.", where)
        if holds_ref(on_timeout):
            advice = "Leave it out, and choose when the wait timed out: when(settled(ref).timed_out)."
            raise PlanTypeError(f"{what}: on_timeout is a constant, not {short(on_timeout)}", advice, where)
        if on_timeout is None:
            result = Union[type, None]  # noqa: UP007 - of a value
            node["on_timeout"] = {"const": None}
        else:
            try:
                node["on_timeout"] = {"const": codec(type).constant(on_timeout)}
            except PayloadError as error:
                problem = f"{what}: on_timeout={short(on_timeout)} is no {shapes.name_of(type)}"
                advice = f"{error}. To get another type then, declare the union: {shapes.name_of(type)} | ..."
                raise PlanTypeError(problem, advice, where) from None
    return builder.add_block(node, event, result, after=after, name=name)


def _schema(type_: Any) -> Mapping[str, Any]:
    """What a payload is checked by, without the words that are only shown; {} where pydantic cannot say."""
    try:
        made: Mapping[str, Any] = _checks(codec(type_).adapter.json_schema(mode="validation"))
    except PydanticUserError:
        return {}
    return made


def _checks(schema: Any, *, is_names: bool = False) -> Any:
    if isinstance(schema, dict):
        # Under "properties" and "$defs" the keys are names of the user's own.
        return {
            key: value if key in _VALUES and not is_names else _checks(value, is_names=key in _NAMES and not is_names)
            for key, value in schema.items()
            if is_names or key not in _SHOWN
        }
    return [_checks(each) for each in schema] if isinstance(schema, list) else schema


_SHOWN: Final = frozenset(("title", "description", "default", "examples", "deprecated"))
_NAMES: Final = frozenset(("properties", "$defs", "patternProperties"))
_VALUES: Final = frozenset(("enum", "const", "required"))


# -- races -------------------------------------------------------------------------------------------------------


@overload
def race(a: A, b: B, /, *, name: str | None = None) -> A | B: ...
@overload
def race(a: A, b: B, c: C, /, *, name: str | None = None) -> A | B | C: ...
@overload
def race(a: A, b: B, c: C, d: D, /, *more: D, name: str | None = None) -> A | B | C | D: ...
def race(*refs: Any, name: str | None = None) -> Any:
    """The value of the wait or sleep that ends first; the others are withdrawn, and read as skipped.

    Which one it was is asked of them: `when(is_none(maybe(approval)))`.
    """
    builder = current("race()", INSIDE)
    where = str(user_line())
    members: list[str] = []
    for ref in refs:
        body = builder.node_of(ref) if type(ref) is Ref and not ref._path else {}
        if body.get("kind") not in ("wait", "sleep"):
            advice = "It is between results of wait_for_event(), sleep() and sleep_until(), each taken whole."
            raise PlanTypeError(f"race() cannot take {short(ref)}", advice, where)
        builder.own(ref)
        if ref._node in members or ref._node in builder.racing:
            raise PlanError(f"{ref!r} is in a race already", "Each wait or sleep races once.", where)
        guard = builder.levels[-1].guard
        if body.get("when", []) != ([] if guard is None else [guard]):
            advice = "All that race, and the race itself, stand in one block."
            raise PlanError(f"race() of {ref!r}, which is in another block", advice, where)
        members.append(ref._node)
    if len(members) < 2:
        raise PlanError("race() is between two or more", "One alone needs no race.", where)
    builder.racing.update(members)
    types = [ref._type for ref in refs]
    result: Any = shapes.MISSING if any(map(shapes.is_unknown, types)) else Union[tuple(types)]  # noqa: UP007
    node = {"kind": "race", "of": [{"ref": member} for member in members]}
    return builder.add_block(node, "race", result, needs=members, name=name)
