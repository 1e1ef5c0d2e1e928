"""Comparing JSON values by kind: what "less than" and "equal" mean when a decimal and a moment are both text.

The plan says of every comparison which kind its operands are. A value that is not of its kind is never "false" and
never compared as something else: NotOfKind is raised, and the guard fails.

Null is a value of every kind for `eq`, `ne` and `contains`, since an optional field may be compared with what it might
be; it has no order.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, cast

_MOST_SHOWN: Final = 60


class NotOfKind(Exception):
    """A value is not what the comparison takes it for. `expected` is what that is, in words."""

    def __init__(self, value: Any, kind: str, expected: str) -> None:
        super().__init__(value, kind, expected)
        self.value, self.kind, self.expected = value, kind, expected

    @property
    def shown(self) -> str:
        """The value as JSON, shortened."""
        return shown(self.value)

    def __str__(self) -> str:
        return f"expected {self.expected}, got {self.shown}"


def shown(value: Any) -> str:
    """A JSON value as text of at most 60 characters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 3] + "..."


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of values: how it is read out of JSON, and whether it has an order."""

    words: str
    read: Callable[[Any], Any]
    """Raises ValueError, ArithmeticError or OverflowError for what is not of the kind."""
    has_order: bool = True


def _number(value: Any) -> int | float:
    # Infinite floats are text in JSON. NaN is nothing a condition could be asked about.
    if isinstance(value, str) and value in ("Infinity", "-Infinity"):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise ValueError
    return value


def _decimal(value: Any) -> Decimal:
    if type(value) is not str and type(value) is not int:
        raise ValueError
    made = Decimal(value)
    if made.is_nan():
        raise ValueError
    return made


def _datetime(value: Any) -> datetime:
    return datetime.fromisoformat(_text(value))


def _date(value: Any) -> date:
    return date.fromisoformat(_text(value))


def _time(value: Any) -> time:
    return time.fromisoformat(_text(value))


_DURATION: Final = re.compile(
    r"(?P<sign>[+-]?)P(?=.)(?:(?P<years>\d+)Y)?(?:(?P<months>\d+)M)?(?:(?P<weeks>\d+)W)?(?:(?P<days>\d+)D)?"
    r"(?:T(?=.)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+)(?:\.(?P<fraction>\d{1,6}))?S)?)?",
    re.ASCII,
)


def _timedelta(value: Any) -> timedelta:
    found = _DURATION.fullmatch(_text(value))
    if found is None:
        raise ValueError
    part = {name: int(text) if text and text.isdigit() else 0 for name, text in found.groupdict().items()}
    # A year is 365 days and a month 30, as pydantic writes and reads them.
    made = timedelta(
        days=part["years"] * 365 + part["months"] * 30 + part["weeks"] * 7 + part["days"],
        hours=part["hours"],
        minutes=part["minutes"],
        seconds=part["seconds"],
        microseconds=int((found["fraction"] or "").ljust(6, "0")),
    )
    return -made if found["sign"] == "-" else made


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


@dataclass(frozen=True, slots=True)
class _Json:
    """A JSON value whose equality is JSON's: true is not 1, 1 is 1.0, and the order of keys says nothing."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Json) and _same(self.value, other.value)

    def __hash__(self) -> int:
        raise TypeError("not hashable")


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, dict) and isinstance(b, dict):
        one: dict[str, Any] = a
        other: dict[str, Any] = b
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    if isinstance(a, list) and isinstance(b, list):
        items: list[Any] = a
        others: list[Any] = b
        return len(items) == len(others) and all(map(_same, items, others))
    return bool(a == b)


KINDS: Final[dict[str, Kind]] = {
    "number": Kind("a number", _number),
    "decimal": Kind("a decimal", _decimal),
    "datetime": Kind("a date and time", _datetime),
    "date": Kind("a date", _date),
    "time": Kind("a time of day", _time),
    "timedelta": Kind("a duration", _timedelta),
    "text": Kind("text", _text),
    "bool": Kind("true or false", _bool, has_order=False),
    "enum": Kind("a value of an enum", _Json, has_order=False),
    "json": Kind("a JSON value", _Json, has_order=False),
}
"""Every kind that "as" can name."""
_ORDERS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
COMPARISONS: Final = frozenset({*_ORDERS, "eq", "ne"})


def read(value: Any, kind: str, *, null: bool = False) -> Any:
    """The value as its kind has it: comparable with others of the kind. With `null`, None stays None. Raises NotOfKind."""
    if value is None and null:
        return None
    known = KINDS.get(kind)
    if known is None:
        raise NotOfKind(value, kind, f"a kind of values that this release knows, not {kind!r}")
    try:
        return known.read(value)
    except (ValueError, ArithmeticError):
        raise NotOfKind(value, kind, known.words) from None


def compare(op: str, left: Any, right: Any, kind: str) -> bool:
    """Whether `left op right` holds, for two JSON values of the kind. Raises NotOfKind."""
    if op in _ORDERS:
        if kind in KINDS and not KINDS[kind].has_order:
            raise NotOfKind(left, kind, f"values with an order, and {KINDS[kind].words} has none")
        a, b = read(left, kind), read(right, kind)
        _check_zones(a, b, right, kind)
        return _ORDERS[op](a, b)
    a, b = read(left, kind, null=True), read(right, kind, null=True)
    _check_zones(a, b, right, kind)
    return bool(a == b) is (op == "eq")


def contains(collection: Any, item: Any, kind: str) -> bool:
    """Whether a list has the item, an object the key, a text the part. Raises NotOfKind."""
    if isinstance(collection, str):
        return read(item, "text") in collection
    if isinstance(collection, dict):
        keys: list[Any] = [_key(key, kind) for key in cast("dict[str, Any]", collection)]
    elif isinstance(collection, list):
        keys = collection
    else:
        raise NotOfKind(collection, kind, "a list, an object or text")
    wanted = read(item, kind, null=True)
    for each in keys:
        found = read(each, kind, null=True)
        _check_zones(found, wanted, item, kind)
        if found == wanted:
            return True
    return False


def size(value: Any) -> int:
    """How many items a list, keys an object or characters a text has. Raises NotOfKind."""
    if not isinstance(value, str | list | dict):
        raise NotOfKind(value, "json", "a list, an object or text")
    return len(cast("str | list[Any] | dict[str, Any]", value))


def _key(key: str, kind: str) -> Any:
    """A key of an object as a value of the kind: JSON writes all keys as text."""
    if kind in ("number", "bool"):
        try:
            return json.loads(key)
        except ValueError:
            return key
    return key


def _check_zones(a: Any, b: Any, right: Any, kind: str) -> None:
    """A moment is not comparable with a time that could be anywhere. Python calls the two unequal: that would be a guess."""
    if isinstance(a, datetime | time) and isinstance(b, datetime | time) and (a.tzinfo is None) != (b.tzinfo is None):
        wanted = (
            "with a time zone, as the other has one"
            if b.tzinfo is None
            else "without a time zone, as the other has none"
        )
        raise NotOfKind(right, kind, f"{KINDS[kind].words} {wanted}")
