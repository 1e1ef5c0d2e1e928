"""One value of every kind: a step that makes it, one that takes it, one that gives it back. Served by worker processes."""

from __future__ import annotations

import enum
import socket
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

from pydantic import BaseModel, Field

from composer import Step, Workflow, step, workflow


class Colour(enum.Enum):
    RED = "r"


class Level(enum.IntEnum):
    HIGH = 3


class Point(NamedTuple):
    x: int
    y: Decimal


Bare = namedtuple("Bare", "a b")


@dataclass
class Line:
    sku: str
    price: Decimal


@dataclass
class Order:
    id: str
    lines: list[Line] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)


class Model(BaseModel):
    full_name: str = Field(alias="fullName")
    at: datetime


KINDS: dict[str, tuple[Any, Any]] = {
    "tuple": (tuple[int, str], (1, "a")),
    "tuples": (tuple[float, ...], (1.5, 2.5)),
    "set": (set[int], {3, 1}),
    "frozenset": (frozenset[str], frozenset({"a"})),
    "namedtuple": (Point, Point(1, Decimal("2.50"))),
    "bare_namedtuple": (Bare, Bare(1, "x")),
    "aware": (datetime, datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=UTC)),
    "offset": (datetime, datetime(2030, 1, 2, tzinfo=timezone(timedelta(hours=5, minutes=30)))),
    "naive": (datetime, datetime(2030, 1, 2, 3, 4, 5)),
    "date": (date, date(2030, 1, 2)),
    "time": (time, time(3, 4, 5, 6)),
    "timedelta": (timedelta, timedelta(days=-1, microseconds=5)),
    "decimal": (Decimal, Decimal("1.10")),
    "uuid": (UUID, UUID(int=5)),
    "bytes": (bytes, b"\xff\x00"),
    "enum": (Colour, Colour.RED),
    "int_enum": (Level, Level.HIGH),
    "dataclass": (Order, Order("a", [Line("x", Decimal("1.10"))], {1})),
    "model": (Model, Model(fullName="A", at=datetime(2030, 1, 2, tzinfo=UTC))),
    "int64": (int, 2**63),
    "int200": (int, 2**200),
    "int_keys": (dict[int, str], {1: "a", 2: "b"}),
    "minus_zero": (float, -0.0),
    "union": (int | str, "1"),
    "nothing": (int | None, None),
}
NAMES = {each: f"{type(value).__name__}" for each, (_, value) in KINDS.items()}


def _step(name: str, annotations: dict[str, Any], body: Callable[..., Any], **options: Any) -> Step[..., Any]:
    body.__annotations__ = annotations
    body.__name__ = body.__qualname__ = name
    made: Step[..., Any] = step(**options)(body)
    return made


def _flows(name: str, type_: Any, value: Any) -> tuple[Workflow[..., Any], Workflow[..., Any], Workflow[..., Any]]:
    def make(n: int) -> Any:
        return value

    def make_several(n: int) -> Any:
        return [value] * n

    def take(got: Any) -> str:
        # The class too: what Python calls equal need not be the same.
        same = type(got) is type(value) and got == value
        return f"{type(got).__name__} {'is' if same else 'is not'} equal: {got!r}"

    def give(got: Any) -> Any:
        return got

    first = _step(f"make_{name}", {"n": int, "return": type_}, make, queue="first")
    second = _step(f"take_{name}", {"got": type_, "return": str}, take, queue="second")
    third = _step(f"give_{name}", {"got": type_, "return": type_}, give, queue="second")

    several = _step(f"several_{name}", {"n": int, "return": list[type_]}, make_several, queue="first")

    def through(n: int) -> Any:
        return second(first(n))

    def back(got: Any) -> Any:
        return third(got)

    def items(n: int) -> Any:
        return second.map(several(n))

    through.__annotations__ = {"n": int, "return": str}
    items.__annotations__ = {"n": int, "return": list[str]}
    back.__annotations__ = {"got": type_, "return": type_}
    return (
        workflow(name=f"through-{name}")(through),
        workflow(name=f"items-{name}")(items),
        workflow(name=f"back-{name}")(back),
    )


THROUGH: dict[str, Workflow[..., Any]] = {}
ITEMS: dict[str, Workflow[..., Any]] = {}
BACK: dict[str, Workflow[..., Any]] = {}
for _name, (_type, _value) in KINDS.items():
    THROUGH[_name], ITEMS[_name], BACK[_name] = _flows(_name, _type, _value)
    for _flow in (THROUGH[_name], ITEMS[_name], BACK[_name]):
        globals()[_flow.name.replace("-", "_")] = _flow


@step(queue="first", retries=3)
async def unsaid(what: str) -> dict[str, Any]:
    """What no JSON holds, under an annotation that does not say so."""
    return {"deep": [1, (lambda: 1) if what == "lambda" else socket.socket()]}


@step(queue="first")
async def typed_wrong(n: int) -> list[Decimal]:
    """A float where a Decimal was promised."""
    return [Decimal(1), 1.5]  # type: ignore[list-item]


class Ours(Exception):
    """An exception that holds what no encoder takes."""


@step(queue="first")
async def raises(n: int) -> int:
    """The user's own exception, with a socket in it."""
    raise Ours("mine", socket.socket())


@workflow
def unsaids(what: str) -> dict[str, Any]:
    """Fails at once."""
    return unsaid(what)


@workflow
def wrongs(n: int) -> list[Decimal]:
    """Fails at once."""
    return typed_wrong(n)


@workflow
def raisings(n: int) -> int:
    """Fails by its own exception."""
    return raises(n)
