"""What a type looks like as JSON: which fields it has, under which key, and of which kind its values are.

Only annotations are read, and no value. MISSING means "not known" (Any, or a class pydantic describes itself):
every path is allowed then, and checked at run time.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import difflib
import enum
import inspect
import ipaddress
import pathlib
import types
import typing
import uuid
from collections import abc
from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import typing_extensions as te
from pydantic import BaseModel, RootModel

MISSING: Final[Any] = object()
"""The type of a value nothing is known about."""

_QUALIFIERS: Final[frozenset[Any]] = frozenset((Annotated, te.Required, te.NotRequired, te.ReadOnly, typing.Final))
# The order decides: bool is an int, an IntEnum a number, a datetime a date. All but the first four are text in JSON.
_KINDS: Final[tuple[tuple[Any, str], ...]] = (
    (bool, "true or false"),
    (int, "a number"),
    (float, "a number"),
    (complex, "text"),
    (str, "text"),
    (bytes, "text"),
    (bytearray, "text"),
    (decimal.Decimal, "text"),
    (dt.date, "text"),
    (dt.time, "text"),
    (dt.timedelta, "text"),
    (uuid.UUID, "text"),
    (pathlib.PurePath, "text"),
    (ipaddress.IPv4Address, "text"),
    (ipaddress.IPv6Address, "text"),
)


class NoSuchField(Exception):
    """A path that a type does not have; `close` are the names it does have. Never seen by a user."""

    def __init__(self, reason: str, close: Iterable[str] = ()) -> None:
        super().__init__(reason)
        self.reason, self.close = reason, list(close)


def bare(tp: Any) -> Any:
    """The type without Annotated, Required, NewType and type aliases around it."""
    while True:
        if get_origin(tp) in _QUALIFIERS:
            tp = get_args(tp)[0]
        elif isinstance(tp, typing.NewType):
            tp = tp.__supertype__
        elif isinstance(tp, te.TypeAliasType):
            tp = tp.__value__
        else:
            return tp


def origin_of(tp: Any) -> Any:
    """The class of a type, without its parameters: list of list[int]. The type itself when it has none."""
    tp = bare(tp)
    return get_origin(tp) or tp


def name_of(tp: Any) -> str:
    """The type as a user would write it."""
    if tp is MISSING:
        return "Any"
    if tp is None or tp is type(None):
        return "None"
    if tp is ...:
        return "..."
    origin, args = get_origin(tp), get_args(tp)
    if origin is None and inspect.isclass(tp):
        name: str = tp.__qualname__.rpartition("<locals>.")[2]
        return name
    if origin is Annotated:
        return name_of(args[0])
    if origin in (Union, types.UnionType):
        return " | ".join(map(name_of, args))
    if isinstance(tp, list):  # the parameters of a Callable
        return f"[{', '.join(map(name_of, tp))}]"
    if inspect.isclass(origin):
        return f"{name_of(origin)}[{', '.join(map(name_of, args))}]"
    return str(tp).replace("typing.", "").replace("typing_extensions.", "")


def members(tp: Any) -> list[Any]:
    """The alternatives of a union, None left out."""
    tp = bare(tp)
    if get_origin(tp) in (Union, types.UnionType):
        return [member for arg in get_args(tp) for member in members(arg)]
    return [] if tp in (None, type(None)) else [tp]


def is_unknown(tp: Any) -> bool:
    """Whether the type says nothing about its values."""
    return tp is MISSING or bare(tp) in (Any, object)


@lru_cache(maxsize=4096)
def _fields_of(tp: Any) -> dict[str, tuple[str, Any]] | None:
    cls = get_origin(tp) or tp
    if not inspect.isclass(cls):
        return None
    if issubclass(cls, BaseModel):
        return {
            name: (field.serialization_alias or field.alias or name, field.annotation)
            for name, field in cls.model_fields.items()
            if not field.exclude
        }
    if dataclasses.is_dataclass(cls):
        try:
            hints = get_type_hints(cls, include_extras=True)
        except NameError:  # a name local to the function the class is written in: codec() has resolved it, we cannot
            hints = dict.fromkeys((field.name for field in dataclasses.fields(cls)), MISSING)
        params: dict[Any, Any] = dict(zip(getattr(cls, "__parameters__", ()), get_args(tp), strict=False))
        aliases: dict[str, Any] = getattr(cls, "__pydantic_fields__", {})
        return {
            field.name: (
                getattr(aliases.get(field.name), "serialization_alias", None)
                or getattr(aliases.get(field.name), "alias", None)
                or field.name,
                _filled(hints[field.name], params),
            )
            for field in dataclasses.fields(cls)
        }
    return None


def _filled(tp: Any, params: dict[Any, Any]) -> Any:
    """A field's annotation with the type variables of its generic class filled in, as far as they are known."""
    free = getattr(tp, "__parameters__", ())
    if not params or inspect.isclass(tp):
        return tp
    if isinstance(tp, typing.TypeVar):
        return params.get(tp, tp)
    if not free:
        return tp
    return tp[tuple(params.get(each, each) for each in free)]


def fields_of(tp: Any) -> dict[str, tuple[str, Any]] | None:
    """Attribute name to (JSON key, type); None when the type has no named fields."""
    try:
        return _fields_of(tp)
    except TypeError:  # unhashable: no class, so it has none
        return None


def attribute(tp: Any, name: str) -> tuple[str, Any]:
    """JSON key and type of `value.name`; MISSING when the type says nothing. Raises NoSuchField."""
    if is_unknown(tp):
        return name, MISSING
    reasons: list[str] = []
    close: list[str] = []
    for member in members(tp):
        if is_unknown(member):
            return name, MISSING
        known = fields_of(member)
        if known is not None and name in known:
            return known[name]
        cls: Any = get_origin(member) or member
        found: Any = inspect.getattr_static(cls, name, None) if inspect.isclass(cls) else None
        shown = name_of(cls)
        if callable(found) or isinstance(found, (classmethod, staticmethod)):
            reasons.append(f"{shown}.{name} is a method; it cannot run while the workflow is built")
        elif isinstance(found, property) or type(found).__name__ in ("cached_property", "PydanticDescriptorProxy"):
            reasons.append(f"{shown}.{name} is a property, which the JSON of {shown} does not carry")
        elif known is None and found is None and kinds_of(member) is None:
            return name, MISSING
        else:
            reasons.append(f"{shown} has no field {name!r}")
        close += list(known or ())
    raise NoSuchField("; ".join(reasons) or f"None has no field {name!r}", close)


def item(tp: Any, key: int | str) -> Any:
    """Type of `value[key]`. Raises NoSuchField."""
    if is_unknown(tp):
        return MISSING
    close: list[str] = []
    for member in members(tp):
        origin: Any = get_origin(member) or member
        args = get_args(member)
        if is_unknown(member):
            return MISSING
        if te.is_typeddict(origin):
            hints = get_type_hints(origin, include_extras=True)
            if key in hints:
                return hints[str(key)]
            close += list(hints)
        elif not inspect.isclass(origin):
            continue
        elif issubclass(origin, tuple) and isinstance(key, int):
            if not args or args[-1] is ...:
                return args[0] if args else MISSING
            if -len(args) <= key < len(args):
                return args[key]
        elif issubclass(origin, abc.Mapping):
            return args[1] if args else MISSING
        elif issubclass(origin, abc.Sequence) and not issubclass(origin, (str, bytes)) and isinstance(key, int):
            return args[0] if args else MISSING
    raise NoSuchField(f"{name_of(tp)} has no item {key!r}", close)


def element(tp: Any) -> Any:
    """Type of one item of an array. Raises NoSuchField when no value of the type is one."""
    if is_unknown(tp):
        return MISSING
    for member in members(tp):
        origin: Any = get_origin(member) or member
        args = get_args(member)
        if is_unknown(member):
            return MISSING
        if (
            inspect.isclass(origin)
            and issubclass(origin, abc.Collection)
            and not issubclass(origin, (str, bytes, bytearray, abc.Mapping))
            and not te.is_typeddict(origin)
        ):
            if issubclass(origin, tuple) and args and args[-1] is not ...:
                return Union[args]  # noqa: UP007 - of as many types as there are
            return args[0] if args else MISSING
    raise NoSuchField(f"{name_of(tp)} is not a list")


def value_type(tp: Any, key: str) -> Any:
    """Type expected under a key of an object; MISSING when the type does not say."""
    for member in members(tp):
        known = fields_of(member)
        if known is not None:
            return next((type_ for json_key, type_ in known.values() if json_key == key), MISSING)
    try:
        return item(tp, key)
    except NoSuchField:
        return MISSING


def kinds_of(tp: Any) -> frozenset[str] | None:
    """Kinds of JSON its values can be ("an object", "a list", "text", "a number", "true or false", "null");
    None when the annotation does not tell."""
    if tp is MISSING:
        return None
    try:
        return _kinds_of(tp)
    except TypeError:  # unhashable
        return None


@lru_cache(maxsize=4096)
def _kinds_of(tp: Any) -> frozenset[str] | None:
    if get_origin(tp) is Annotated and any(hasattr(each, "__get_pydantic_core_schema__") for each in tp.__metadata__):
        return None  # a serializer of the user's may write anything
    tp = bare(tp)
    if tp is None or tp is type(None):
        return frozenset(("null",))
    origin: Any = get_origin(tp)
    if origin in (Union, types.UnionType):
        return _together(get_args(tp))
    if origin in (Literal, te.Literal):
        return _together(type(value) for value in get_args(tp))
    cls: Any = origin or tp
    if te.is_typeddict(cls):
        return frozenset(("an object",))
    if not inspect.isclass(cls) or cls is object or hasattr(cls, "__get_validators__"):
        return None
    if issubclass(cls, enum.Enum):
        return _together({type(each.value) for each in cls})
    if issubclass(cls, BaseModel):
        if cls.__pydantic_decorators__.model_serializers:
            return None
        if issubclass(cls, RootModel):
            return kinds_of(cls.model_fields["root"].annotation)
        return frozenset(("an object",))
    if dataclasses.is_dataclass(cls):
        decorators: Any = getattr(cls, "__pydantic_decorators__", None)
        return None if decorators is not None and decorators.model_serializers else frozenset(("an object",))
    if "__get_pydantic_core_schema__" in vars(cls):
        return None
    for known, kind in _KINDS:
        if issubclass(cls, known):
            return frozenset((kind,))
    if issubclass(cls, abc.Mapping):
        return frozenset(("an object",))
    return frozenset(("a list",)) if issubclass(cls, (abc.Sequence, abc.Set)) else None


def _together(parts: Iterable[Any]) -> frozenset[str] | None:
    out: frozenset[str] = frozenset()
    for part in parts:
        kinds = kinds_of(part)
        if kinds is None:
            return None
        out |= kinds
    return out


def misfit(made: Any, expected: Any) -> str:
    """Why no value of type `made` can be one of type `expected`: they share no kind of JSON. "" when one may."""
    have, want = kinds_of(made), kinds_of(expected)
    if not have or not want or not have.isdisjoint(want):
        return ""
    return f"{name_of(made)} is {_either(have)} in JSON, and {name_of(expected)} is {_either(want)}"


def _either(kinds: frozenset[str]) -> str:
    return " or ".join(sorted(kinds))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """One sentence of advice after a name that does not exist; "" when nothing is known."""
    names = sorted(set(known))
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"Did you mean {close[0]!r}?"
    return f"Known: {', '.join(names[:12])}." if names else ""
