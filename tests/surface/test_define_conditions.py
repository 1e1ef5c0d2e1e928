"""Conditions: how comparisons and their companions become data, by kind, and what is refused while drawing."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Literal, NewType
from uuid import UUID

import pytest
from pydantic import Field, PlainSerializer

from composer import (
    Outcome,
    all_of,
    any_of,
    contains,
    is_none,
    maybe,
    not_,
    settled,
    settled_each,
    size,
    step,
    when,
    workflow,
)
from composer.core.plan import Plan
from composer.errors import PlanError, PlanTypeError

HERE = __file__


class Speed(Enum):
    FAST = "fast"
    SLOW = "slow"


class Color(Enum):
    RED = "fast"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Land(StrEnum):
    DE = "de"
    FR = "fr"


@dataclass
class Item:
    sku: str
    count: int


Cents = NewType("Cents", int)


@dataclass
class Order:
    id: str
    total: Decimal
    count: int
    share: float
    placed: datetime
    day: date
    at: time
    lasts: timedelta
    express: bool
    speed: Speed
    color: Color
    level: Level
    land: Land
    key: UUID
    folder: Path
    address: IPv4Address
    raw: bytes
    items: list[Item]
    tags: list[str]
    prices: dict[str, Decimal]
    amounts: list[Decimal]
    item: Item
    note: str | None
    limit: int | None
    mixed: int | str
    money: Decimal | int
    wide: str | datetime
    grade: Literal["a", "b"] | None
    positive: Annotated[int, Field(gt=0)]
    cents: Cents
    shouted: Annotated[int, PlainSerializer(lambda value: f"{value}!", return_type=str)]
    anything: Any
    maybe: bool | None


@step
def say(text: str) -> str: ...


@step
def flag(value: bool, count: int = 0) -> None: ...


@step
def charge(order: Order) -> Item: ...


def conditions_of(draw: Callable[[Order], Any]) -> tuple[Any, Plan]:
    """The condition that `draw` makes, as the plan of its block has it."""

    @workflow
    def flow(order: Order) -> None:
        with when(draw(order)):
            say("x")

    plan = flow.plan
    (guard,) = (node for node in plan.body["nodes"] if node["kind"] == "guard")
    return guard["args"]["condition"]["$"], plan


def condition_of(draw: Callable[[Order], Any]) -> Any:
    return conditions_of(draw)[0]


def refused(draw: Callable[[Order], Any]) -> PlanError:
    with pytest.raises(PlanTypeError) as caught:
        conditions_of(draw)
    assert caught.value.where.startswith(f"{HERE}:")
    return caught.value


def path(*names: str | int) -> dict[str, Any]:
    return {"ref": "input", "path": ["order", *names]}


# -- comparisons

MOMENT = datetime(2030, 1, 2, 3, 4, tzinfo=UTC)
COMPARED: list[tuple[Callable[[Order], Any], str, dict[str, Any], Any, str | None]] = [
    (lambda o: o.total > 1_000, "gt", path("total"), "1000", "decimal"),
    (lambda o: o.total == Decimal("1.0"), "eq", path("total"), "1.0", "decimal"),
    (lambda o: o.total < 0.5, "lt", path("total"), "0.5", "decimal"),
    (lambda o: o.count >= 3, "ge", path("count"), 3, "number"),
    (lambda o: o.count != 2.5, "ne", path("count"), 2.5, "number"),
    (lambda o: 3 <= o.count, "ge", path("count"), 3, "number"),  # noqa: SIM300
    (lambda o: o.count < Decimal("1.5"), "lt", path("count"), "1.5", "decimal"),
    (lambda o: o.share <= 1, "le", path("share"), 1, "number"),
    (lambda o: o.positive > 0, "gt", path("positive"), 0, "number"),
    (lambda o: o.cents > 0, "gt", path("cents"), 0, "number"),
    (lambda o: o.limit < 7, "lt", path("limit"), 7, "number"),
    (lambda o: o.placed > MOMENT, "gt", path("placed"), "2030-01-02T03:04:00Z", "datetime"),
    (lambda o: o.day == date(2030, 1, 2), "eq", path("day"), "2030-01-02", "date"),
    (lambda o: o.at < time(12), "lt", path("at"), "12:00:00", "time"),
    (lambda o: o.lasts >= timedelta(minutes=90), "ge", path("lasts"), "PT1H30M", "timedelta"),
    (lambda o: o.express == True, "eq", path("express"), True, "bool"),  # noqa: E712
    (lambda o: o.maybe == True, "eq", path("maybe"), True, "bool"),  # noqa: E712
    (lambda o: o.id == "a", "eq", path("id"), "a", "text"),
    (lambda o: o.id > "a", "gt", path("id"), "a", "text"),
    (lambda o: o.note != "a", "ne", path("note"), "a", "text"),
    (lambda o: o.speed == Speed.FAST, "eq", path("speed"), "fast", "enum"),
    (lambda o: Speed.FAST != o.speed, "ne", path("speed"), "fast", "enum"),  # noqa: SIM300
    (lambda o: o.level > Level.LOW, "gt", path("level"), 1, "number"),
    (lambda o: o.level == 2, "eq", path("level"), 2, "number"),
    (lambda o: o.land == "de", "eq", path("land"), "de", "text"),
    (lambda o: o.land == Land.DE, "eq", path("land"), "de", "text"),
    (lambda o: o.grade == "a", "eq", path("grade"), "a", "text"),
    (lambda o: o.key == UUID(int=1), "eq", path("key"), "00000000-0000-0000-0000-000000000001", "text"),
    (lambda o: o.folder == Path("/a"), "eq", path("folder"), "/a", "text"),
    (lambda o: o.address == IPv4Address("10.0.0.1"), "eq", path("address"), "10.0.0.1", "text"),
    (lambda o: o.raw == b"\xff", "eq", path("raw"), "_w==", "text"),
    (lambda o: o.items[0].count == 1, "eq", path("items", 0, "count"), 1, "number"),
    (lambda o: o.prices["a"] > 1, "gt", path("prices", "a"), "1", "decimal"),
    (lambda o: o.money == 1, "eq", path("money"), "1", "decimal"),
    (lambda o: o.mixed == 1, "eq", path("mixed"), 1, None),
    (lambda o: o.anything == "a", "eq", path("anything"), "a", None),
    (lambda o: o.anything > 1, "gt", path("anything"), 1, "number"),
    (lambda o: o.anything["deep"][0] == Decimal(1), "eq", path("anything", "deep", 0), "1", "decimal"),
    (lambda o: o.anything == Speed.FAST, "eq", path("anything"), "fast", "enum"),
]  # fmt: skip


@pytest.mark.parametrize(("draw", "op", "ref", "constant", "kind"), COMPARED)
def test_comparison_says_how_its_sides_are_read(
    draw: Callable[[Order], Any], op: str, ref: dict[str, Any], constant: Any, kind: str | None
) -> None:
    """A comparison with a constant names the kind of both sides, and writes the constant in it."""
    found = condition_of(draw)
    assert found == {"op": op, "args": [ref, {"const": constant}], **({"as": kind} if kind else {})}
    assert type(found["args"][1]["const"]) is type(constant)


@pytest.mark.parametrize(
    ("draw", "kind"),
    [
        (lambda o: o.total > o.count, "decimal"),
        (lambda o: o.count < o.share, "number"),
        (lambda o: o.total == o.money, "decimal"),
        (lambda o: o.id == o.note, "text"),
        (lambda o: o.land == o.id, "text"),
        (lambda o: o.placed > o.placed, "datetime"),
        (lambda o: o.express == (o.count > 3), "bool"),
        (lambda o: o.speed == o.speed, "enum"),
        (lambda o: o.anything < o.total, "decimal"),
        (lambda o: o.anything == o.id, None),
        (lambda o: o.anything == o.anything, None),
    ],
)
def test_two_refs_are_compared_by_what_they_have_in_common(draw: Callable[[Order], Any], kind: str | None) -> None:
    """Two values of the run are compared by their common kind."""
    assert condition_of(draw).get("as") == kind


@pytest.mark.parametrize(
    ("draw", "problem"),
    [
        (lambda o: o.total > "abc", "of type Decimal, cannot be compared with 'abc': decimal and text have nothing in common"),
        (lambda o: o.count == "3", "of type int, cannot be compared with '3': integer and text have nothing in common"),
        (lambda o: o.count == True, "cannot be compared with True: integer and bool have nothing in common"),  # noqa: E712
        (lambda o: o.express > False, "cannot be compared with False: bool has no order"),
        (lambda o: o.placed > date(2030, 1, 1), "datetime and date have nothing in common"),
        (lambda o: o.placed > "2030-01-01", "datetime and text have nothing in common"),
        (lambda o: o.speed == "fast", "Speed and text have nothing in common"),
        (lambda o: o.speed == o.color, "<Ref input.order.color>, of type Color: Speed and Color have nothing in common"),
        (lambda o: o.speed < Speed.SLOW, "Speed has no order"),
        (lambda o: o.key < UUID(int=1), "UUID has no order"),
        (lambda o: o.grade == "c", "cannot be compared with 'c': it is one of 'a', 'b'"),
        (lambda o: o.share == float("nan"), "cannot be compared with nan: a comparison with it says nothing"),
        (lambda o: o.total < Decimal("Infinity"), "a comparison with it says nothing"),
        (lambda o: o.total > o.share, "a float is not exact, and a Decimal is"),
        (lambda o: o.item == Item("a", 1), "of type Item, cannot be compared with Item(sku='a', count=1): Item is an object"),
        (lambda o: o.tags == ["a"], "of type list[str], cannot be compared with ['a']: list[str] is a list in JSON"),
        (lambda o: o.mixed > 1, "integer and text are compared differently, and it can be any of them"),
        (lambda o: o.wide == "a", "datetime and text are compared differently"),
        (lambda o: o.wide == o.anything, "datetime and text are compared differently"),
        (lambda o: o.anything > o.anything, "nothing is known of their types, so nothing of their order"),
        (lambda o: o.id == object(), "object"),
    ],
)  # fmt: skip
def test_values_without_a_common_kind_are_not_compared(draw: Callable[[Any], Any], problem: str) -> None:
    """A comparison without a common kind is refused at the user's line, and says which kinds the sides have."""
    assert problem in refused(draw).problem


def test_comparison_with_none_asks_for_none() -> None:
    """== None and != None are is_none and its opposite."""
    asks = {"op": "is_none", "args": [path("note")]}
    assert condition_of(lambda o: o.note == None) == asks  # noqa: E711
    assert condition_of(lambda o: o.note != None) == {"op": "not", "args": [asks]}  # noqa: E711
    assert condition_of(lambda o: is_none(o.note)) == asks


# -- joined


def test_conditions_are_joined_flat() -> None:
    """&, all_of and several conditions of when() are one "and"; | and any_of one "or"; equal meaning, equal plan."""

    def a(o: Order) -> Any:
        return o.count > 1

    def b(o: Order) -> Any:
        return o.express

    def c(o: Order) -> Any:
        return o.id == "x"

    three = [condition_of(lambda o: all_of(a(o), b(o), c(o)))["args"][i] for i in range(3)]
    assert condition_of(lambda o: a(o) & b(o) & c(o)) == {"op": "and", "args": three}
    assert condition_of(lambda o: a(o) & (b(o) & c(o))) == {"op": "and", "args": three}
    assert condition_of(lambda o: any_of(a(o), b(o)) | c(o)) == {"op": "or", "args": three}
    assert condition_of(lambda o: all_of(b(o))) == path("express")
    assert condition_of(lambda o: not_(a(o) | b(o))) == {"op": "not", "args": [{"op": "or", "args": three[:2]}]}
    assert condition_of(lambda o: ~a(o)) == {"op": "not", "args": three[:1]}
    assert condition_of(lambda o: not_(not_(b(o)))) == {"op": "not", "args": [{"op": "not", "args": [path("express")]}]}

    @workflow
    def one(order: Order) -> None:
        with when(a(order), b(order)):
            say("x")

    @workflow(name="one")
    def other(order: Order) -> None:
        condition: Any = a(order)
        condition &= b(order)
        with when(condition):
            say("x")

    assert one.plan.shape == other.plan.shape


@pytest.mark.parametrize(
    ("draw", "problem", "advice"),
    [
        (lambda o: o.total > 1 & o.express, "'&' joins conditions, not 1", "binds tighter than a comparison"),
        (lambda o: o.express & o.total > 1, "'&' takes conditions, and <Ref input.order.total> is Decimal", "binds tighter"),
        (lambda o: o.express | True, "'|' joins conditions, not True", "binds tighter"),
        (lambda o: o.count & o.count, "'&' takes conditions, and <Ref input.order.count> is int", "binds tighter"),
        (lambda o: all_of(o.express, o.count), "all_of() takes conditions, and <Ref input.order.count> is int", "ref == ..."),
        (lambda o: any_of(True, o.express), "any_of() got the constant True: that was answered", "plain `if`"),
        (lambda o: not_(o.tags), "not_() takes conditions, and <Ref input.order.tags> is list[str]", "size(ref) > 0"),
        (lambda o: o.maybe, "when() takes conditions, and <Ref input.order.maybe> is bool | None", "ref == ..."),
        (lambda o: o.id is None, "when() got the constant False: that was answered while the workflow is built", "is_none(ref)"),
        (lambda o: is_none(o.id), "is_none() of <Ref input.order.id>, of type str, can never be true", "is_none(maybe(ref))"),
        (lambda o: is_none(None), "is_none() takes a value of the run, not None", "plain Python"),
        (lambda o: size(o.item) > 1, "size() of <Ref input.order.item>, of type Item, which has none", "Lists, dicts and text"),
        (lambda o: size(o.total) > 1, "size() of <Ref input.order.total>, of type Decimal, which has none", "Lists, dicts and text"),
        (lambda o: size([1, 2]) > 1, "size() takes a value of the run, not [1, 2]", "plain Python"),
        (lambda o: size(o.tags), "when() takes conditions, and <Expr size(input.order.tags)> is int", "ref == ..."),
        (lambda o: size(o.tags) > "1", "cannot be compared with '1'", ""),
        (lambda o: contains(o.item, "a"), "contains() of <Ref input.order.item>, of type Item, which contains nothing", ""),
        (lambda o: contains(o.tags, 3), "an item of <Ref input.order.tags>, of type str, cannot be compared with 3", ""),
        (lambda o: contains(o.items, Item("a", 1)), "Item is an object in JSON", ""),
        (lambda o: contains([1], 1), "contains([1], 1): one of both is a value of the run", "contains(ref, item)"),
        (lambda o: contains("abc", o.id), "contains('abc', <Ref input.order.id>): one of both", "a list of constants"),
        (lambda o: contains([o.id, "a"], o.id), "one of both is a value of the run", ""),
        (lambda o: contains([1, 2], o.id), "contains([1, 2], <Ref input.order.id>), of type str: text and integer", "All items"),
        (lambda o: contains([1, "a"], o.anything) & contains([1, Decimal(2)], o.anything), "its items are of several", ""),
    ],
)  # fmt: skip
def test_what_is_no_condition_is_refused(draw: Callable[[Any], Any], problem: str, advice: str) -> None:
    """Precedence traps, constants, values that are not true or false, and questions that make no sense say what to do."""
    error = refused(draw)
    assert problem in error.problem
    assert advice in error.advice


def test_size_and_contains() -> None:
    """size() is a number; contains() compares by the kind of what is inside, with either side a constant."""
    tags = {"op": "size", "args": [path("tags")]}
    assert condition_of(lambda o: size(o.tags) > 3) == {"op": "gt", "args": [tags, {"const": 3}], "as": "number"}
    assert condition_of(lambda o: size(o.id) == size(o.prices))["as"] == "number"

    def has(collection: dict[str, Any], item: Any, kind: str | None = None) -> dict[str, Any]:
        return {"op": "contains", "args": [collection, item], **({"as": kind} if kind else {})}

    assert condition_of(lambda o: contains(o.tags, "a")) == has(path("tags"), {"const": "a"}, "text")
    assert condition_of(lambda o: contains(o.tags, o.id)) == has(path("tags"), path("id"), "text")
    assert condition_of(lambda o: contains(o.id, "a")) == has(path("id"), {"const": "a"}, "text")
    assert condition_of(lambda o: contains(o.prices, "a")) == has(path("prices"), {"const": "a"}, "text")
    assert condition_of(lambda o: contains(o.amounts, 1)) == has(path("amounts"), {"const": "1"}, "decimal")
    assert condition_of(lambda o: contains(o.anything, 1)) == has(path("anything"), {"const": 1})
    assert condition_of(lambda o: contains(["b", "a"], o.id)) == has({"const": ["b", "a"]}, path("id"), "text")
    assert condition_of(lambda o: contains({"b", "a"}, o.id)) == has({"const": ["a", "b"]}, path("id"), "text")
    assert condition_of(lambda o: contains((1, Decimal("2.0")), o.total)) == has(
        {"const": ["1", "2.0"]}, path("total"), "decimal"
    )
    assert condition_of(lambda o: contains([Speed.FAST], o.speed)) == has({"const": ["fast"]}, path("speed"), "enum")


def test_types_that_a_serializer_writes_are_not_guessed() -> None:
    """Of a value that the user's own serializer writes, nothing is known: it is compared as JSON."""
    assert "as" not in condition_of(lambda o: o.shouted == "3!")


# -- outcomes and joins in conditions


def test_predicates_of_an_outcome_are_conditions() -> None:
    """settled(x).failed and its siblings ask for the state of the outcome."""

    def state(word: str, *at: Any, join: str = "settled") -> dict[str, Any]:
        ref = {join: [{"ref": "charge"}], "path": [*at, "state"]}
        return {"op": "eq", "args": [ref, {"const": word}], "as": "text"}

    def outcome(order: Order) -> Outcome[Item]:
        return settled(charge(order))

    assert condition_of(lambda o: outcome(o).ok) == state("completed")
    assert condition_of(lambda o: outcome(o).skipped) == state("skipped")
    assert condition_of(lambda o: outcome(o).timed_out) == state("timed-out")
    assert condition_of(lambda o: outcome(o).cancelled) == state("cancelled")
    failed = {"op": "or", "args": [state("failed"), state("timed-out")]}
    assert condition_of(lambda o: outcome(o).failed) == failed
    assert condition_of(lambda o: not_(outcome(o).failed)) == {"op": "not", "args": [failed]}
    assert condition_of(lambda o: settled_each(charge.map([o]))[0].ok) == state("completed", 0, join="settled_each")  # type: ignore[list-item]
    assert condition_of(lambda o: outcome(o).error.kind == "x")["args"][0] == {  # type: ignore[union-attr]
        "settled": [{"ref": "charge"}],
        "path": ["error", "kind"],
    }
    assert "Outcome.value_or is a method" in str(_refused_any(lambda o: outcome(o).value_or(3)))


def _refused_any(draw: Callable[[Order], Any]) -> PlanError:
    with pytest.raises(PlanError) as caught:
        conditions_of(draw)
    return caught.value


def test_condition_on_a_join_depends_on_its_nodes() -> None:
    """is_none(maybe(x)) is evaluated when x has settled; the plan shows the condition in words."""

    @workflow
    def flow(order: Order) -> None:
        with when(order.express):
            item = charge(order)
        with when(is_none(maybe(item)), order.count > 1, name="no-item"):
            say("x")

    guard = next(node for node in flow.plan.body["nodes"] if node["name"] == "no-item")
    assert guard["args"]["condition"]["$"]["args"][0] == {"op": "is_none", "args": [{"maybe": [{"ref": "charge"}]}]}
    names = [node["name"] for node in flow.plan.body["nodes"]]
    assert names == ["when", "charge", "no-item", "say"]
    assert flow.plan.about["conditions"] == {
        "when": "input.order.express",
        "no-item": "(is_none(maybe(charge)) and input.order.count > 1)",
    }


def test_condition_can_be_an_argument() -> None:
    """A condition is a value: a bool; and a size is an int."""

    @workflow
    def flow(order: Order) -> bool:
        flag(order.count > 3, size(order.tags))
        return order.express & (order.count > 3)

    (node,) = flow.plan.body["nodes"]
    assert node["args"]["value"]["$"]["op"] == "gt"
    assert node["args"]["count"]["$"] == {"op": "size", "args": [path("tags")]}
    assert flow.plan.body["output"]["$"]["op"] == "and"
    with pytest.raises(PlanTypeError, match=r"say\(text=\.\.\.\): <Expr input.order.count > 3> does not fit"):

        @workflow
        def wrong(order: Order) -> None:
            say(order.count > 3)  # type: ignore[arg-type]


def test_refs_of_another_workflow_are_not_compared() -> None:
    """A comparison of values of two workflows is refused, and names both."""
    kept: list[Any] = []
    workflow(_keeps(kept))
    for draw in (lambda o: o.id == kept[0], lambda o: all_of(kept[1]), lambda o: contains(o.tags, kept[0])):
        assert "belongs to workflow 'keep', not to 'flow'" in str(_refused_any(draw))


def _keeps(kept: list[Any]) -> Callable[[Order], None]:
    def keep(order: Order) -> None:
        kept.extend((order.id, order.count > 1))

    return keep


@pytest.mark.parametrize("function", [all_of, any_of, not_, is_none, size])
def test_conditions_belong_to_a_builder(function: Callable[[Any], Any]) -> None:
    """Outside of a workflow function they say where they belong."""
    with pytest.raises(PlanError, match=r"\(\) was called outside of a @workflow function"):
        function([1])
    with pytest.raises(PlanError, match=r"contains\(\) was called outside of a @workflow function"):
        contains([1], 1)
