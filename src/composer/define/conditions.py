"""Conditions over values that come at run time: what Python's own words cannot say about a Ref.

Comparisons and `&`, `|` are written on the refs themselves; `and`, `or`, `not`, `in`, `len()` and `is` insist on an
answer at once, so they have functions here. All of them become data in the plan, evaluated when the run gets there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from composer.define import comparing, shapes
from composer.define.build import INSIDE, current
from composer.define.fidelity import short
from composer.define.refs import Const, Expr, compared, constant_side, is_symbol, joined
from composer.define.source import user_line
from composer.errors import PayloadError, PlanTypeError


def all_of(condition: bool, /, *more: bool) -> bool:
    """True when every condition is: `and` for values that come at run time."""
    return joined(current("all_of()", INSIDE), "and", "all_of()", (condition, *more))  # type: ignore[return-value]


def any_of(condition: bool, /, *more: bool) -> bool:
    """True when one of the conditions is: `or` for values that come at run time."""
    return joined(current("any_of()", INSIDE), "or", "any_of()", (condition, *more))  # type: ignore[return-value]


def not_(condition: bool, /) -> bool:
    """True when the condition is not: `not` for a value that comes at run time."""
    return joined(current("not_()", INSIDE), "not", "not_()", (condition,))  # type: ignore[return-value]


def is_none(value: object, /) -> bool:
    """True when the value is None: `is None` for a value that comes at run time.

    Whether a node was skipped is asked of `maybe`: `is_none(maybe(ref))`.
    """
    builder = current("is_none()", INSIDE)
    given: Any = _operand(builder, "is_none()", value)
    kinds = shapes.kinds_of(given._type)
    if kinds is not None and "null" not in kinds:
        problem = f"is_none() of {value!r}, of type {shapes.name_of(given._type)}, can never be true"
        advice = "Where a skipped result is meant: is_none(maybe(ref))."
        raise PlanTypeError(problem, advice, str(user_line()))
    return Expr(builder, "is_none", (given,))  # type: ignore[return-value]


def size(collection: Collection[object], /) -> int:
    """How many items a list or an object has, or letters a text: `len()` for a value that comes at run time."""
    builder = current("size()", INSIDE)
    given: Any = _operand(builder, "size()", collection)
    if not _has_items(given._type):
        problem = f"size() of {given!r}, of type {shapes.name_of(given._type)}, which has none"
        raise PlanTypeError(problem, "Lists, dicts and text have a size.", str(user_line()))
    return Expr(builder, "size", (given,), type_=int)  # type: ignore[return-value]


def contains(collection: Collection[object], item: object, /) -> bool:
    """True when the item is in the list, a key of the dict or a part of the text: `in` for values of the run time.

    One of both may be a constant: `contains(["DE", "FR"], order.country)`.
    """
    builder = current("contains()", INSIDE)
    if not is_symbol(collection):
        return _contained(builder, collection, item)  # type: ignore[no-any-return]
    given: Any = _operand(builder, "contains()", collection)
    if not _has_items(given._type):
        problem = f"contains() of {given!r}, of type {shapes.name_of(given._type)}, which contains nothing"
        raise PlanTypeError(problem, "Lists, dicts and text contain something.", str(user_line()))
    # The same rules as for ==, applied to what is inside.
    inner: Any = _Inside(given, _inside(given._type))
    made = compared(builder, "eq", inner, item)
    return Expr(builder, "contains", (given, made._args[1]), made._as)  # type: ignore[return-value]


def _contained(builder: Any, collection: Any, item: Any) -> Any:
    if not is_symbol(item) or type(collection) not in (list, tuple, set, frozenset) or any(map(is_symbol, collection)):
        raise PlanTypeError(
            f"contains({short(collection)}, {short(item)}): one of both is a value of the run",
            "contains(ref, item), contains(ref, other_ref), or a list of constants: contains([1, 2], ref).",
            str(user_line()),
        )
    given: Any = _operand(builder, "contains()", item)
    words: set[str] = set()
    try:
        for each in collection:
            words.add(comparing.common(given._type, type(each), ordered=False, constant=True))
        as_ = words.pop() if len(words) == 1 else ""
        if words:
            raise comparing.Incomparable("its items are of several kinds")
        found = [constant_side(each, as_, shapes.MISSING).json for each in collection]
    except (comparing.Incomparable, PayloadError) as error:
        problem = f"contains({short(collection)}, {item!r}), of type {shapes.name_of(given._type)}: {error}"
        raise PlanTypeError(
            problem, "All items are of the kind of the value that is looked up.", str(user_line())
        ) from None
    if isinstance(collection, (set, frozenset)):
        found.sort(key=repr)  # a set has no order, and equal plans are equal text
    return Expr(builder, "contains", (Const(found, short(collection)), given), as_)


class _Inside:
    """Stands for what is inside of a collection, where its kind is compared."""

    def __init__(self, collection: Any, type_: Any) -> None:
        self._scope, self._type, self._shown = collection._scope, type_, repr(collection)

    def __repr__(self) -> str:
        return f"an item of {self._shown}"


def _operand(builder: Any, what: str, value: Any) -> Any:
    if not is_symbol(value) or not hasattr(type(value), "_compare"):
        problem = f"{what} takes a value of the run, not {short(value)}"
        raise PlanTypeError(problem, "What is known while building is asked in plain Python.", str(user_line()))
    return builder.own(value)


def _has_items(tp: Any) -> bool:
    kinds = shapes.kinds_of(tp)
    if kinds is None:
        return True
    has_fields = any(shapes.fields_of(member) is not None for member in shapes.members(tp))
    is_text = all(
        issubclass(shapes.origin_of(m), str) for m in shapes.members(tp) if shapes.kinds_of(m) == frozenset(("text",))
    )
    return not has_fields and is_text and bool(kinds & {"a list", "an object", "text"})


def _inside(tp: Any) -> Any:
    try:
        return shapes.element(tp)
    except shapes.NoSuchField:
        members = shapes.members(tp)
        origin = shapes.origin_of(members[0])
        if issubclass(origin, Mapping):  # its keys are text in JSON
            return str
        return members[0]
