"""How two values are compared: by a kind both have, found from their annotations while the workflow is drawn.

JSON has no decimals, moments or durations: they travel as text, and comparing the text would be wrong ("9" is not
above "10", "1.0" is equal to "1.00"). So the kind goes into the plan, and whoever evaluates the condition reads both
sides by it first. Without a common kind there is no condition, and that is said while drawing.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import ipaddress
import math
import pathlib
import uuid
from typing import Any, Final, Literal, get_args, get_origin

import typing_extensions as te

from composer.define import shapes
from composer.define.payloads import codec

_KINDS: Final[tuple[tuple[Any, str], ...]] = (
    (bool, "bool"),
    (int, "integer"),
    (float, "number"),
    (str, "text"),
    (decimal.Decimal, "decimal"),
    (dt.datetime, "datetime"),  # before date, which it is too
    (dt.date, "date"),
    (dt.time, "time"),
    (dt.timedelta, "timedelta"),
    (uuid.UUID, "UUID"),
    (pathlib.PurePath, "path"),
    (ipaddress.IPv4Address, "IPv4 address"),
    (ipaddress.IPv6Address, "IPv6 address"),
    (bytes, "bytes"),
)
_ORDERED: Final = frozenset(("number", "decimal", "datetime", "date", "time", "timedelta", "text"))
_JSON: Final = frozenset(("number", "integer", "text", "bool"))
"""Kinds whose values are themselves in JSON, so that equality needs no reading."""
_WORDS: Final = _ORDERED | {"bool", "decimal"}
"""Kinds that a plan names as they are. A plain enum is "enum", anything else that is text in JSON is "text"."""
_NUMBERS: Final = frozenset(("integer", "number", "decimal"))


class Incomparable(Exception):
    """Two values cannot be compared; the text says why. Never seen by a user."""


def kinds(tp: Any) -> frozenset[Any] | None:
    """The kinds a value of the type can have, None left out; a plain enum is a kind by itself. None when the annotation
    does not tell. Raises Incomparable for lists, objects and None alone."""
    if shapes.is_unknown(tp) or shapes.kinds_of(tp) is None:
        return None
    found: set[Any] = set()
    members = shapes.members(tp)
    if not members:
        raise Incomparable("it is always None")
    for member in members:
        if get_origin(member) in (Literal, te.Literal):
            values = [value for value in get_args(member) if value is not None]
            found |= {_kind(type(value), member) for value in values}
        else:
            found.add(_kind(get_origin(member) or member, member))
    return frozenset(found)


def _kind(cls: Any, tp: Any) -> Any:
    for known, kind in _KINDS:
        if issubclass(cls, known):
            return kind
    if issubclass(cls, enum.Enum):
        return cls
    raise Incomparable(f"{shapes.name_of(tp)} is {' or '.join(sorted(shapes.kinds_of(tp) or ('opaque',)))} in JSON")


def common(left: Any, right: Any, *, ordered: bool, constant: bool = False) -> str:
    """How values of two types are compared: a word for the plan; "" for JSON values as they are, which have no order.

    `constant` says that the right side is one, which can be written as the left side needs it. Raises Incomparable.
    """
    one, other = kinds(left), kinds(right)
    if one is None or other is None:
        known = one or other
        if known is None:
            if ordered:
                raise Incomparable("nothing is known of their types, so nothing of their order")
            return ""
        if not ordered and known <= _JSON:
            return ""
        one = other = known
    if one | other <= _NUMBERS:
        if "decimal" not in one | other:
            return "number"
        if "number" in (one if constant else one | other):
            raise Incomparable("a float is not exact, and a Decimal is")
        return "decimal"
    if not one & other:
        raise Incomparable(f"{_names(one)} and {_names(other)} have nothing in common")
    if one == other and len(one) == 1:
        (kind,) = one
        if ordered and kind not in _ORDERED:
            raise Incomparable(f"{_name(kind)} has no order")
        return "enum" if isinstance(kind, type) else kind if kind in _WORDS else "text"
    if ordered or not one | other <= _JSON:
        raise Incomparable(f"{_names(one | other)} are compared differently, and it can be any of them")
    return ""


def constant(value: Any, kind: str, tp: Any) -> Any:
    """JSON of a constant that is compared with a value of type `tp`. Raises Incomparable, or PayloadError."""
    if isinstance(value, (float, decimal.Decimal)) and not math.isfinite(value):
        raise Incomparable("a comparison with it says nothing about a value")
    for member in shapes.members(tp) if not shapes.is_unknown(tp) else ():
        if get_origin(member) in (Literal, te.Literal) and value not in get_args(member):
            raise Incomparable(f"it is one of {', '.join(map(repr, get_args(member)))}")
    return codec(decimal.Decimal if kind == "decimal" else type(value)).constant(value)


def _names(found: frozenset[Any]) -> str:
    return " and ".join(sorted(map(_name, found)))


def _name(kind: Any) -> str:
    return kind if isinstance(kind, str) else shapes.name_of(kind)
