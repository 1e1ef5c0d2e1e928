"""Payloads: what comes back equals what was written, or is refused with the path and the reason."""

import enum
import ipaddress
import math
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

import pytest
from pydantic import BaseModel, ConfigDict, Field, SecretStr, computed_field
from typing_extensions import TypedDict

from composer.define.payloads import codec
from composer.errors import PayloadError

T = TypeVar("T")


class Speed(enum.Enum):
    FAST = "fast"
    SLOW = 1


class Flags(enum.Flag):
    A = 1
    B = 2


class Point(NamedTuple):
    x: int
    y: bytes


class Row(TypedDict):
    id: int
    raw: bytes


@dataclass
class Line:
    sku: str
    price: Decimal
    raw: bytes = b""


@dataclass
class Order:
    id: str
    lines: list[Line]
    at: datetime
    speed: Speed = Speed.FAST


@dataclass
class Box(Generic[T]):
    value: T


class Tree(BaseModel):
    name: str = Field(alias="nameOf")
    children: list["Tree"] = []


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int

    @computed_field
    @property
    def twice(self) -> int:
        return 2 * self.a


class NoEquality:
    pass


ORDER = Order("a", [Line("x", Decimal("1.10"), b"\xff\x00")], datetime(2030, 1, 2, 3, 4, 5, 678, tzinfo=UTC))

ROUND_TRIPS: list[tuple[Any, Any]] = [
    (int, 0),
    (int, -(2**70)),
    (int, 10**4000),
    (bool, True),
    (None, None),
    (str, ""),
    (str, "nul \0 and \u2028 and 😀"),
    (float, 0.1),
    (float, math.inf),
    (float, -math.inf),
    (bytes, b"\xff\x00"),
    (Decimal, Decimal("1.10")),
    (datetime, datetime(2030, 1, 2, 3, 4, 5, 6)),
    (datetime, datetime(2030, 1, 2, tzinfo=UTC)),
    (date, date(2030, 1, 2)),
    (time, time(1, 2, 3)),
    (timedelta, timedelta(days=3, microseconds=7)),
    (uuid.UUID, uuid.UUID(int=7)),
    (Speed, Speed.SLOW),
    (Flags, Flags.A | Flags.B),
    (Path, Path("/a/b")),
    (ipaddress.IPv4Address, ipaddress.IPv4Address("10.0.0.1")),
    (re.Pattern[str], re.compile("a+")),
    (set[int], {1, 2}),
    (frozenset[str], frozenset({"a"})),
    (tuple[int, str], (1, "a")),
    (tuple[int, ...], (1, 2, 3)),
    (Point, Point(1, b"\xff")),
    (Row, {"id": 1, "raw": b"\xff"}),
    (Order, ORDER),
    (list[Order], [ORDER]),
    (Box[int], Box(1)),
    (dict[str, list[Line]], {"a": [Line("x", Decimal(1))]}),
    (dict[int, str], {1: "a"}),
    (int | str, "1"),
    (int | None, None),
    (Any, {"a": [1, 2.5, "x", None, True]}),
    (Tree, Tree(nameOf="a", children=[Tree(nameOf="b")])),
    (Strict, Strict(a=1)),
    (Literal["a", 1], "a"),
    (Annotated[int, Field(ge=0)], 3),
]


@pytest.mark.parametrize(("type_", "value"), ROUND_TRIPS, ids=lambda each: repr(each)[:40])
def test_a_value_of_its_type_comes_back_equal_and_of_the_same_class(type_: Any, value: Any) -> None:
    text = codec(type_).encode(value)
    back = codec(type_).decode(text)
    assert isinstance(text, str)
    assert back == value if not isinstance(value, float) or not math.isnan(value) else math.isnan(back)
    assert type(back) is type(value)
    assert codec(type_).decode(text.encode()) == value


def test_nan_is_kept_and_an_int_is_taken_for_a_float() -> None:
    assert math.isnan(codec(float).decode(codec(float).encode(math.nan)))
    assert codec(float).encode(1) == "1.0"


@dataclass
class WideLine(Line):
    extra: str = "lost"


@dataclass
class Wrapped:
    lines: list[Any] = field(default_factory=list)


LOSSY: list[tuple[Any, Any, str]] = [
    (int, "3", "'3' would come back as 3 (str and int)"),
    (int, True, "True would come back as 1"),
    (str, 3, "Input should be a valid string"),
    (str, "\ud800", "surrogates not allowed"),
    (list[str], ["a", "\ud800"], "surrogates not allowed"),
    (Any, (1, 2), "(1, 2) would come back as [1, 2] (tuple and list)"),
    (Any, Decimal(1), "would come back as '1'"),
    (Any, {"a": {1: 2}}, "a: {1: 2} would come back as {'1': 2}"),
    (Any, datetime(2030, 1, 1), "would come back as '2030-01-01T00:00:00'"),
    (Any, NoEquality(), "NoEquality"),
    (uuid.UUID | str, "00000000-0000-0000-0000-000000000007", "would come back as UUID("),
    (Line, WideLine("x", Decimal(1)), "WideLine and Line"),
    (Order, Order("a", [Line("x", "abc")], ORDER.at), "lines[0].price: Input should be a valid decimal"),
    (Order, Order("a", [Line(3, Decimal(1))], ORDER.at), "lines[0].sku: Input should be a valid string"),
    (Wrapped, Wrapped([1, {"k": (2,)}]), "lines[1].k: (2,) would come back as [2]"),
    (Literal["a"], "b", "Input should be 'a'"),
    (dict[tuple[int, int], int], {(1, 2): 3}, ""),
    (Decimal, Decimal("NaN"), "Input should be a finite number"),
]


@pytest.mark.parametrize(("type_", "value", "reason"), LOSSY, ids=lambda each: repr(each)[:40])
def test_a_value_that_would_be_lost_or_changed_is_refused_with_path_and_reason(
    type_: Any, value: Any, reason: str
) -> None:
    with pytest.raises(PayloadError) as caught:
        codec(type_).encode(value)
    assert reason in str(caught.value)


def test_an_int_too_long_to_be_read_again_is_refused() -> None:
    with pytest.raises(PayloadError, match="number out of range"):
        codec(int).encode(10**5000)


def test_beyond_the_size_limit_only_doubtful_types_are_compared() -> None:
    assert codec(list[str]).exact
    assert not codec(list[Any]).exact
    with pytest.raises(PayloadError, match=r"\[9999\]: \(1,\) would come back as \[1\]"):
        codec(list[Any]).encode([*range(9_999), (1,)])


@dataclass
class Hidden:
    secret: SecretStr


class Lost(BaseModel):
    a: int = Field(exclude=True)


class TwoNames(BaseModel):
    a: int = Field(validation_alias="in", serialization_alias="out")


class RawModel(BaseModel):
    raw: bytes


class GoodRawModel(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    raw: bytes


REFUSED: list[tuple[Any, str]] = [
    (Callable[[], None], "a function has no JSON"),
    (Iterable[int], "use a list"),
    (Iterator[int], "pydantic knows no JSON for collections.abc.Iterator[int]"),
    (type[int], "a class object has no JSON"),
    (NoEquality, "NoEquality'>; use a dataclass"),
    (SecretStr, "asterisks"),
    (Hidden, "asterisks"),
    (Lost, "exclude=True is lost"),
    (TwoNames, "written as 'out' and read as 'in'"),
    (RawModel, "model_config = ConfigDict"),
]


@pytest.mark.parametrize(("type_", "reason"), REFUSED, ids=lambda each: repr(each)[:40])
def test_a_type_that_cannot_round_trip_has_no_codec(type_: Any, reason: str) -> None:
    with pytest.raises(Exception, match=re.escape(reason)):
        codec(type_)


def test_bytes_in_a_model_with_base64_settings_come_back() -> None:
    value = GoodRawModel(raw=b"\xff\x00")
    assert codec(GoodRawModel).decode(codec(GoodRawModel).encode(value)) == value


def test_decoding_names_the_path_and_what_was_found() -> None:
    with pytest.raises(PayloadError, match=r"lines\[0\]\.price: Field required; at: Field required"):
        codec(Order).decode('{"id": "a", "lines": [{"sku": "x"}]}')
    with pytest.raises(PayloadError, match="Invalid JSON"):
        codec(Order).decode("{")


def test_a_constant_is_taken_as_its_type_and_refused_otherwise() -> None:
    assert codec(Decimal).constant(1000) == "1000"
    assert codec(Line).constant(Line("x", Decimal(2))) == {"sku": "x", "price": "2", "raw": ""}
    with pytest.raises(PayloadError, match="valid decimal"):
        codec(Decimal).constant("abc")


def test_one_codec_a_type_and_unhashable_annotations_work() -> None:
    assert codec(Order) is codec(Order)
    unhashable = Annotated[int, Field(json_schema_extra={"a": [1]}), ["x"]]
    assert codec(unhashable).encode(3) == "3"


def test_the_json_schema_is_made_on_demand() -> None:
    assert codec(Line).json_schema()["type"] == "object"
