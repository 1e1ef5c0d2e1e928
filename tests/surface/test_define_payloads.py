"""Payloads: what comes back equals what was written, or is refused with the path and the reason."""

import enum
import ipaddress
import math
import re
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar
from zoneinfo import ZoneInfo

import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, computed_field
from typing_extensions import TypedDict

from composer.define.fidelity import short
from composer.define.payloads import Arguments, codec
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


class Word(enum.StrEnum):
    HELLO = "hello"


class Level(enum.IntEnum):
    HIGH = 1


@dataclass
class Count:
    n: int


class Shape(BaseModel):
    sides: int = 4


class Square(Shape):
    size: int = 1


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"


class Puppy(Dog):
    weeks: int = 3


@dataclass
class Stateful:
    """What is in `seen` comes from nowhere but the work done with it."""

    n: int
    seen: int = field(init=False, default=0)


def _stateful() -> Stateful:
    made = Stateful(1)
    made.seen = 7
    return made


@dataclass
class Derived:
    """What __post_init__ makes of the fields it makes again; what is neither given nor compared is no part of the value."""

    n: int
    twice: int = field(init=False)
    cache: dict[int, int] = field(init=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.twice = self.n * 2


def _derived() -> Derived:
    made = Derived(2)
    made.cache[1] = 1
    return made


@dataclass
class Moved:
    n: int

    def __post_init__(self) -> None:
        self.n += 1


class Real(BaseModel):
    value: float


class MaybeReal(BaseModel):
    value: float | None


@dataclass
class Broken:
    """Made for the second time, it breaks: not with one of the errors that pydantic expects."""

    n: int
    made: ClassVar[int] = 0

    def __post_init__(self) -> None:
        Broken.made += 1
        if Broken.made > 1:
            raise RuntimeError("the validator broke")


@dataclass
class Mute:
    """Neither compares nor shows."""

    n: int

    def __eq__(self, other: object) -> bool:
        raise ValueError("no")

    def __repr__(self) -> str:
        raise ValueError("no")


@dataclass
class Node:
    name: str
    next: "Node | None" = None


def _ring() -> Node:
    made = Node("a")
    made.next = made
    return made


def _chain(length: int) -> Node:
    made = Node("end")
    for _ in range(length):
        made = Node("n", made)
    return made


def _holds_itself() -> dict[str, Any]:
    made: dict[str, Any] = {}
    made["me"] = made
    return made


def _nested(depth: int) -> Any:
    made: Any = 0
    for _ in range(depth):
        made = [made]
    return made


@dataclass
class WideLine(Line):
    extra: str = "lost"


@dataclass
class Wrapped:
    lines: list[Any] = field(default_factory=list)


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
    (int, 2**63),
    (int, 2**200),
    (dict[str, Any], {"\0": ["a\0b"]}),
    (list[float], [-0.0, 1e300, 5e-324]),
    (Any, -0.0),
    (bytes | None, b""),
    (dict[bytes, int], {b"\xff": 1}),
    (dict[uuid.UUID, int], {uuid.UUID(int=1): 1}),
    (dict[date, int], {date(2030, 1, 2): 1}),
    (dict[Level, int], {Level.HIGH: 1}),
    (Word, Word.HELLO),
    (Decimal, Decimal("1E+5")),
    (Decimal | float, Decimal("1.50")),
    (datetime, datetime(2030, 1, 2, tzinfo=timezone(timedelta(hours=5, minutes=30)))),
    (timedelta, timedelta.max),
    (datetime | date, date(2030, 1, 2)),
    (Shape | Square, Square()),
    (Cat | Dog, Dog()),
    (Annotated[Cat | Dog, Field(discriminator="kind")], Dog()),
    (set[frozenset[int]], {frozenset({1})}),
    (OrderedDict[str, int], OrderedDict(b=1, a=2)),
    (Counter[str], Counter("aab")),
    (defaultdict[str, list[int]], defaultdict(list, a=[1])),
    (dict[int | str, int], {"1": 1, "a": 2}),
    (Node, Node("a", Node("b"))),
    (Any, _nested(150)),
    (complex, 1 + 2j),
]


@pytest.mark.parametrize(("type_", "value"), ROUND_TRIPS, ids=lambda each: short(each)[:40])
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


LOSSY: list[tuple[Any, Any, str]] = [
    (int, "3", "'3' would come back as 3 (str and int)"),
    (int, True, "True would come back as 1"),
    (str, 3, "Input should be a valid string"),
    (str, "\ud800", "'\\ud800' holds a lone surrogate"),
    (list[str], ["a", "\ud800"], "[1]: '\\ud800' holds a lone surrogate"),
    (dict[str, int], {"\ud800": 1}, "the key '\\ud800' holds a lone surrogate"),
    (Any, {"a": [{"b\udfff": 1}]}, "a[0]: the key 'b\\udfff' holds a lone surrogate"),
    (dict[str, Any], {"x": math.nan}, "x: nan would come back as 'NaN' (float and str)"),
    (float | str, math.inf, "inf would come back as 'Infinity' (float and str)"),
    (list[str], ["a", Word.HELLO], "[1]: <Word.HELLO: 'hello'> would come back as 'hello' (Word and str)"),
    (list[int], [Level.HIGH], "[0]: <Level.HIGH: 1> would come back as 1 (Level and int)"),
    (list[int], [True], "[0]: True would come back as 1 (bool and int)"),
    (Count, Count(True), "n: True would come back as 1 (bool and int)"),
    (Any, {"a": [Level.HIGH]}, "a[0]: <Level.HIGH: 1> would come back as 1"),
    (Any, [OrderedDict(a=1)], "(OrderedDict and dict)"),
    (list[tuple[int, bytes]], [Point(1, b"")], "(Point and tuple)"),
    (Row, {"id": 1, "raw": b"", "more": 1}, "the key 'more' would be lost"),
    (Shape, Square(), "(Square and Shape)"),
    (
        dict[str, list[Shape]],
        {"a": [Shape(), Square()]},
        "a[1]: Square(sides=4, size=1) would come back as Shape(sides=4)",
    ),
    (Annotated[Cat | Dog, Field(discriminator="kind")], Puppy(), "Puppy"),
    (Cat | Dog, Puppy(), "Puppy"),
    (Stateful, _stateful(), "seen: 7 would come back as 0"),
    (Moved, Moved(1), "n: 2 would come back as 3"),
    (deque[int], deque([1], maxlen=2), "would come back as deque([1])"),
    (time, time(1, 2, tzinfo=ZoneInfo("Europe/Berlin")), "would come back as datetime.time(1, 2)"),
    (datetime, datetime(2030, 1, 1, tzinfo=timezone(timedelta(seconds=61))), "would come back as"),
    (Real, Real(value=math.nan), "value: Input should be a valid number, got None"),
    (Real | None, Real(value=math.nan), ""),
    (MaybeReal, MaybeReal(value=math.inf), "ConfigDict(ser_json_inf_nan='strings')"),
    (list[int], [10**4300], "[0]: an integer of more than 4,300 digits"),
    (Any, {"f": [print]}, "f[0]: <built-in function print> has no JSON (builtin_function_or_method)"),
    (Any, {"f": (each for each in "ab")}, "(generator and list)"),
    (Any, SecretStr("x"), "(SecretStr and str)"),
    (dict[str, Any], _holds_itself(), "me: this dict holds itself"),
    (Node, _ring(), "next: this Node holds itself"),
    (Any, _nested(151), "more than 150 deep"),
    (Any, _nested(100_000), "more than 150 deep"),
    (Node, _chain(10_000), "more than 150 deep"),
    (Any, {1: "a", "1": "b"}, "the key 1 would be lost"),
    (dict[int | str, int], {1: 1, "a": 2}, "the key 1 would come back as '1'"),
    (re.Pattern[str], re.compile("a", re.IGNORECASE), "would come back as re.compile('a')"),
    (Broken, Broken(1), "RuntimeError: the validator broke"),
    (Mute, Mute(True), "n: True would come back as 1"),
    (Any, (1, 2), "(1, 2) would come back as [1, 2] (tuple and list)"),
    (Any, Decimal(1), "would come back as '1'"),
    (Any, {"a": {1: 2}}, "a: the key 1 would come back as '1'"),
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


@pytest.mark.parametrize(("type_", "value", "reason"), LOSSY, ids=lambda each: short(each)[:40])
def test_a_value_that_would_be_lost_or_changed_is_refused_with_path_and_reason(
    type_: Any, value: Any, reason: str
) -> None:
    with pytest.raises(PayloadError) as caught:
        codec(type_).encode(value)
    assert reason in str(caught.value)


def test_an_int_too_long_to_be_read_again_is_refused() -> None:
    with pytest.raises(PayloadError, match="an integer of more than 4,300 digits"):
        codec(int).encode(10**5000)
    assert codec(int).decode(codec(int).encode(10**4299)) == 10**4299


@pytest.mark.parametrize(
    ("type_", "plain", "odd", "reason"),
    [
        (list[Any], 1, (1,), "(1,) would come back as [1]"),
        (list[Line], Line("x", Decimal(1)), WideLine("x", Decimal(1)), "(WideLine and Line)"),
        (list[str], "a", Word.HELLO, "(Word and str)"),
        (list[Shape], Shape(), Square(), "(Square and Shape)"),
    ],
)
def test_a_large_value_is_compared_to_its_last_item(type_: Any, plain: Any, odd: Any, reason: str) -> None:
    """Whatever the size: the 10,000th item of another class is found."""
    assert len(codec(type_).encode([plain] * 9_999)) > 16_384
    with pytest.raises(PayloadError) as caught:
        codec(type_).encode([*[plain] * 9_999, odd])
    assert "[9999]: " in str(caught.value)
    assert reason in str(caught.value)


def test_a_moment_keeps_its_instant_and_its_offset() -> None:
    """Also in the hour that a change of summer time repeats; the name of the zone is not kept."""
    berlin = ZoneInfo("Europe/Berlin")
    for given in (datetime(2030, 7, 1, tzinfo=berlin), datetime(2025, 10, 26, 2, 30, fold=1, tzinfo=berlin)):
        back = codec(datetime).decode(codec(datetime).encode(given))
        assert (back.timestamp(), back.utcoffset()) == (given.timestamp(), given.utcoffset())


def test_what_a_dataclass_makes_itself_is_made_again() -> None:
    """A field that __post_init__ fills comes back; one that is neither given nor compared may be lost."""
    back = codec(Derived).decode(codec(Derived).encode(_derived()))
    assert (back.twice, back.cache) == (4, {})


def test_what_a_checkpoint_holds_is_readable_and_may_change_its_class() -> None:
    """Without the comparison a tuple may become a list, but nothing is written that cannot be read."""
    loose = codec(Any)
    assert loose.encode((1, math.nan, Count(2)), check=False) == '[1,"NaN",{"n":2}]'
    for bad, reason in (
        ({"k": 10**5000}, "k: an integer of more than 4,300 digits"),
        ({"\ud800": 1}, "lone surrogate"),
        ([print], r"\[0\]: <built-in function print> has no JSON"),
        (_nested(199), "more than 150 deep"),
    ):
        with pytest.raises(PayloadError, match=reason):
            loose.encode(bad, check=False)
    assert loose.encode("\ufffd", check=False) == '"\ufffd"'


def test_a_payload_as_deep_as_allowed_can_be_passed_on_inside_others() -> None:
    """What one step returns the next one can read as an argument, and a run can return in a list."""
    text = codec(Any).encode(_nested(150))
    assert Arguments({"x": Parameter("x", Parameter.POSITIONAL_OR_KEYWORD)}, {"x": Any}).decode(f'{{"x":[[{text}]]}}')


def test_a_validator_that_breaks_is_a_payload_error() -> None:
    """Whatever it raises, an argument or a result is refused, and the exception of the user's is named."""

    def explode(value: int) -> int:
        raise KeyError("gone")

    type_: Any = Annotated[int, AfterValidator(explode)]
    with pytest.raises(PayloadError, match="KeyError: 'gone'"):
        codec(type_).decode("1")
    with pytest.raises(PayloadError, match="KeyError: 'gone'"):
        Arguments({"x": Parameter("x", Parameter.POSITIONAL_OR_KEYWORD)}, {"x": type_}).decode('{"x":1}')


@dataclass
class Hidden:
    secret: SecretStr


class Lost(BaseModel):
    a: int = Field(exclude=True)


class TwoNames(BaseModel):
    a: int = Field(validation_alias="in", serialization_alias="out")


@dataclass
class Seeded:
    n: int
    seed: InitVar[int]


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
    (Seeded, "InitVar"),
    (dict[str, Any | SecretStr], "asterisks"),
    (list[Any | Callable[[], None]], "a function has no JSON"),
]


@pytest.mark.parametrize(("type_", "reason"), REFUSED, ids=lambda each: short(each)[:40])
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
