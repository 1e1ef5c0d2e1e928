"""Any annotation, any value, fitting or not: it comes back as it was, or is refused with a PayloadError. Nothing between."""

from __future__ import annotations

import enum
import math
from dataclasses import fields, is_dataclass, make_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from types import UnionType
from typing import Annotated, Any, Literal, Optional, Union, get_args, get_origin
from uuid import UUID
from zoneinfo import ZoneInfo

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, create_model

from composer.define.payloads import Arguments, codec
from composer.errors import PayloadError


class Colour(enum.Enum):
    RED = "red"
    ONE = 1


class Level(enum.IntEnum):
    LOW = 0
    HIGH = 1


class Word(enum.StrEnum):
    A = "a"
    NUMBER = "1"


TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=8)
ZONES = st.sampled_from([None, ZoneInfo("UTC"), ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Kathmandu")])
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers() | st.sampled_from([2**63, -(2**200), 10**4299]),
    float: st.floats(),
    bool: st.booleans(),
    str: TEXT,
    bytes: st.binary(max_size=8),
    type(None): st.none(),
    Decimal: st.decimals(),
    UUID: st.uuids(),
    date: st.dates(),
    datetime: st.datetimes(timezones=ZONES),
    time: st.times(timezones=st.none() | st.just(ZoneInfo("UTC"))),
    timedelta: st.timedeltas(),
    Colour: st.sampled_from(Colour),
    Level: st.sampled_from(Level),
    Word: st.sampled_from(Word),
    Literal["a", 1, True]: st.sampled_from(["a", 1, True]),
}
HASHABLE = [int, str, bytes, bool, date, UUID, Level, Word]


BASE64 = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
COMPOUND = ["any", "list", "tuple", "many", "set", "dict", "union", "maybe", "dataclass", "model"]


@st.composite
def annotations(draw: st.DrawFn, depth: int = 3) -> Any:
    """A type that a step could be annotated with."""
    kind = draw(st.sampled_from(["scalar"] * 4 + (COMPOUND if depth else [])))
    inner = annotations(depth=depth - 1) if depth else st.nothing()
    match kind:
        case "any":
            return Any
        case "list":
            return list[draw(inner)]
        case "many":
            return tuple[draw(inner), ...]
        case "tuple":
            return tuple[draw(inner), draw(inner)]
        case "set":
            return draw(st.sampled_from([set, frozenset]))[draw(st.sampled_from(HASHABLE))]
        case "dict":
            return dict[draw(st.sampled_from(HASHABLE)), draw(inner)]
        case "union":
            return Union[draw(inner), draw(inner)]  # noqa: UP007
        case "maybe":
            return Optional[draw(inner)]  # noqa: UP045
        case "dataclass":
            return make_dataclass("Made", [("a", draw(inner)), ("b", draw(inner))])
        case "model":
            return create_model(
                "Model", __config__=BASE64, a=(draw(inner), ...), b=(Annotated[draw(inner), Field(alias="bee")], ...)
            )
        case _:
            return draw(st.sampled_from(list(SCALARS)))


ANYTHING = st.recursive(
    st.one_of(*SCALARS.values()),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(TEXT | st.integers(), inner, max_size=3)
        | st.sets(st.integers() | TEXT, max_size=3)
    ),
    max_leaves=6,
)


def values_of(type_: Any) -> st.SearchStrategy[Any]:
    """Values that a type checker would let through for the annotation."""
    if type_ in SCALARS:
        return SCALARS[type_]
    origin, args = get_origin(type_), get_args(type_)
    if type_ is Any:
        return ANYTHING
    if origin is Annotated:
        return values_of(args[0])
    if origin in (Union, UnionType):
        return st.one_of(*map(values_of, args))
    if origin is tuple:
        if args[-1] is ...:
            return st.lists(values_of(args[0]), max_size=3).map(tuple)
        return st.tuples(*map(values_of, args))
    if origin in (list, set, frozenset):
        return st.lists(values_of(args[0]), max_size=3).map(origin)
    if origin is dict:
        return st.dictionaries(values_of(args[0]), values_of(args[1]), max_size=3)
    if is_dataclass(type_):
        return st.builds(type_, **{each.name: values_of(each.type) for each in fields(type_)})
    assert issubclass(type_, BaseModel)
    parts = {name: values_of(each.annotation) for name, each in type_.model_fields.items()}
    # Unvalidated: a model's own validation would have changed the values already.
    return st.fixed_dictionaries(parts).map(lambda made: type_.model_construct(**made))


def is_same(one: Any, other: Any) -> bool:
    """The same value of the same class, told in another way than the codec tells it."""
    if type(one) is not type(other):
        return type(one) is int and type(other) is float and one == other
    if isinstance(one, float) and math.isnan(one):
        return math.isnan(other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(is_same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict):
        return len(one) == len(other) and all(
            is_same(a, b) and is_same(one[a], other[b]) for a, b in zip(one, other, strict=True)
        )
    if isinstance(one, (set, frozenset)):
        return one == other and sorted(map(repr, one)) == sorted(map(repr, other))
    if isinstance(one, BaseModel):
        return is_same(dict(one.__dict__), dict(other.__dict__))
    if is_dataclass(one):
        return all(is_same(getattr(one, each.name), getattr(other, each.name)) for each in fields(one))
    if isinstance(one, datetime):
        return one.isoformat() == other.isoformat()
    return (bool(one == other) and repr(one) == repr(other)) or (isinstance(one, time) and str(one) == str(other))


def comes_back_or_is_refused(type_: Any, value: Any) -> bool:
    """Whether it came back; False when it was refused."""
    made = codec(type_)
    try:
        text = made.encode(value)
    except PayloadError as error:
        assert str(error).strip()
        str(error).encode()
        return False
    text.encode()
    assert "\0" not in text
    assert is_same(value, made.decode(text)), text
    return True


SETTINGS = settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


@SETTINGS
@given(st.data())
def test_a_value_that_fits_its_annotation_comes_back_or_is_refused(data: st.DataObject) -> None:
    """Over nested lists, dicts, unions, dataclasses and models, with every awkward scalar in them."""
    type_ = data.draw(annotations())
    comes_back_or_is_refused(type_, data.draw(values_of(type_)))


@SETTINGS
@given(st.data())
def test_a_value_that_need_not_fit_comes_back_or_is_refused(data: st.DataObject) -> None:
    """What a step without a type checker may return: never a half-fitting value that is changed on the way."""
    comes_back_or_is_refused(data.draw(annotations(depth=2)), data.draw(ANYTHING))


@SETTINGS
@given(st.data())
def test_plain_values_of_plain_types_are_never_refused(data: st.DataObject) -> None:
    """The other half of the promise: what has one obvious JSON is carried, whatever it is nested in."""
    plain: dict[Any, st.SearchStrategy[Any]] = {
        int: st.integers(),
        float: st.floats(),
        str: st.text(),
        bool: st.booleans(),
        bytes: st.binary(),
        Colour: st.sampled_from(Colour),
    }
    type_ = data.draw(st.sampled_from(list(plain)))
    wrapped, value = data.draw(
        st.sampled_from(
            [
                (type_, data.draw(plain[type_])),
                (list[type_], data.draw(st.lists(plain[type_]))),
                (dict[str, type_ | None], data.draw(st.dictionaries(st.text(), plain[type_] | st.none()))),
                (tuple[type_, int], (data.draw(plain[type_]), 1)),
            ]
        )
    )
    assert comes_back_or_is_refused(wrapped, value)


@given(st.text() | st.none() | st.recursive(st.integers(), st.lists, max_leaves=5).map(str))
def test_arguments_are_read_or_refused_whatever_is_stored(text: str | None) -> None:
    """No stored text makes the reading of arguments raise anything else than PayloadError."""
    from inspect import Parameter

    reader = Arguments({"x": Parameter("x", Parameter.POSITIONAL_OR_KEYWORD)}, {"x": list[int] | None})
    try:
        args, kwargs = reader.decode(f'{{"x":{text}}}' if text else text or "")
    except PayloadError:
        return
    assert len(args) == 1 and not kwargs
