"""either, maybe, settled and build: forms of an argument, and the values a workflow can return."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, Generic, NamedTuple, TypeVar

import pytest
from pydantic import BaseModel, Field

from composer import Outcome, build, either, maybe, otherwise, settled, settled_each, size, step, when, workflow
from composer.core.plan import Need, Plan, Term, plan_from_text
from composer.errors import PlanAttributeError, PlanError, PlanTypeError

HERE = __file__
T = TypeVar("T")


@dataclass
class Order:
    id: str
    total: Decimal
    express: bool
    note: str | None
    ids: list[str]


@dataclass
class Receipt:
    code: str
    amount: Decimal


class Message(BaseModel):
    to: str = Field(alias="sendTo")
    text: str = "hi"
    extra: list[str] = Field(default_factory=list)


@dataclass
class Box(Generic[T]):
    value: T
    at: datetime | None = None
    tags: list[str] = field(default_factory=list)
    made: bool = field(init=False, default=False)


@dataclass
class Envelope:
    message: Message
    boxes: list[Box[int]]


class Odd(BaseModel):
    x: int

    def __init__(self, y: int) -> None:
        super().__init__(x=y)


class Pair(NamedTuple):
    one: str
    two: int


@step
def charge(order: Order) -> Receipt: ...


@step
def say(text: str | None) -> str: ...


@step
def count(text: str | int) -> int: ...


@step
def look(outcome: Outcome[Receipt]) -> str: ...


@step
def send(message: Message) -> None: ...


@step
def post(envelope: Envelope) -> None: ...


@step
def store(box: Box[int]) -> None: ...


@step
def anything(value: Any) -> None: ...


@step
def strict(text: str) -> None: ...


def node(plan: Plan, name: str) -> dict[str, Any]:
    return next(each for each in plan.body["nodes"] if each["name"] == name)


def drawn(draw: Callable[[Order], Any]) -> Plan:
    def flow(order: Order) -> None:
        draw(order)

    return workflow(flow).plan


def refused(draw: Callable[[Order], Any]) -> PlanError:
    with pytest.raises(PlanError) as caught:
        drawn(draw)
    assert caught.value.where.startswith(f"{HERE}:")
    return caught.value


def both(order: Order) -> tuple[Receipt, Receipt]:
    """One receipt in each branch."""
    with when(order.express):
        one = charge(order)
    with otherwise():
        two = charge(order)
    return one, two


# -- joins


def test_joins_are_forms_of_an_argument() -> None:
    """either, maybe and settled make no node; parts are selected before or after; the core reads the same."""

    def draw(order: Order) -> None:
        one, two = both(order)
        say(either(one.code, two.code))
        say(either(one, two).code)
        say(maybe(one).code)  # type: ignore[union-attr]
        say(maybe(one.code))
        look(settled(one))
        say(settled(one).value.code)  # type: ignore[union-attr]
        say.after(settled(two), either(one, two))(order.id)

    plan = plan_from_text(drawn(draw).text)
    assert [each["kind"] for each in plan.body["nodes"]].count("step") == 9

    def text(name: str) -> Any:
        return node(plan, name)["args"]["text"]["$"]

    assert text("say") == {
        "either": [{"ref": "charge", "path": ["code"]}, {"ref": "charge-2", "path": ["code"]}],
    }
    assert text("say-2") == {"either": [{"ref": "charge"}, {"ref": "charge-2"}], "path": ["code"]}
    assert text("say-3") == {"maybe": [{"ref": "charge"}], "path": ["code"]}
    assert text("say-4") == {"maybe": [{"ref": "charge", "path": ["code"]}]}
    assert node(plan, "look")["args"]["outcome"]["$"] == {"settled": [{"ref": "charge"}]}
    assert text("say-5") == {"settled": [{"ref": "charge"}], "path": ["value", "code"]}
    assert node(plan, "say-6")["after"] == [
        {"either": [{"ref": "charge"}, {"ref": "charge-2"}]},
        {"settled": [{"ref": "charge-2"}]},
    ]
    one, two = plan.index["charge"], plan.index["charge-2"]
    terms = {each.name: each.terms for each in plan.nodes}
    assert terms["say"] == (Term(Need.EITHER, (one, two)),)
    assert terms["say-3"] == (Term(Need.MAYBE, (one,)),)
    assert terms["look"] == (Term(Need.SETTLED, (one,)),)
    assert terms["say-6"] == (Term(Need.EITHER, (one, two)), Term(Need.SETTLED, (two,)))


def test_input_may_stand_last_in_either() -> None:
    """A part of the run's input is what either() falls back to."""

    def draw(order: Order) -> None:
        with when(order.express):
            one = charge(order)
        say(either(one.code, order.note))

    symbol = node(drawn(draw), "say")["args"]["text"]["$"]
    assert symbol == {"either": [{"ref": "charge", "path": ["code"]}, {"ref": "input", "path": ["order", "note"]}]}


def test_joins_are_typed_by_what_they_join() -> None:
    """either() is the union, maybe() adds None, settled() wraps: wires are checked by that."""

    def draw(order: Order) -> Any:
        one, _ = both(order)
        return strict(maybe(one))  # type: ignore[arg-type]

    assert "Receipt | None is an object or null in JSON, and str is text." in refused(draw).advice

    def union(order: Order) -> Any:
        with when(order.express):
            one = say(order.id)
        with otherwise():
            two = charge(order).amount
        send(either(one, two))  # type: ignore[arg-type]

    assert "str | Decimal is text in JSON, and Message is an object." in refused(union).advice

    def outcome(order: Order) -> Any:
        strict(settled(charge(order)))  # type: ignore[arg-type]

    assert "Outcome[Receipt] is an object in JSON, and str is text." in refused(outcome).advice


def nested(order: Order) -> Any:
    one, two = both(order)
    return maybe(either(one, two))


def twice(order: Order) -> Any:
    one = charge(order)
    return either(one.code, one.amount)


def first_input(order: Order) -> Any:
    return either(order.note, charge(order).code)


@pytest.mark.parametrize(
    ("draw", "text"),
    [
        (nested, "maybe() takes results of nodes, not the join <Ref either(charge, charge-2)>\n  Joins do not nest"),
        (twice, "either(charge, charge) names one node twice"),
        (first_input, "either() takes results of nodes, and <Ref input.order.note> is the run's input"),
        (lambda o: maybe(o.note), "maybe() takes results of nodes, and <Ref input.order.note> is the run's input"),
        (lambda o: settled(o), "and <Ref input.order> is the run's input\n  The input is always there: use it as it is."),
        (lambda o: settled(charge(o).code), "settled() takes the whole result of a node, not <Ref charge.code>\n  Select from the outcome"),
        (lambda o: either(charge(o)), "either() joins two results or more\n  For one that may be skipped: maybe(ref)."),
        (lambda o: either(charge(o), "x"), "either() takes results of nodes, not 'x'"),
        (lambda o: maybe(size(o.ids)), "maybe() takes results of nodes, not <Expr size(input.order.ids)>"),
        (lambda o: settled_each(charge(o)), "settled_each() takes the whole result of a .map(), not <Ref charge>"),
    ],
)  # fmt: skip
def test_joins_of_what_is_no_result_are_refused(draw: Callable[[Any], Any], text: str) -> None:
    """Joins take results of nodes, whole where it matters, each once; and say so at the user's line."""
    assert text in str(refused(draw))


def test_settled_of_a_map_is_one_outcome() -> None:
    """settled() of a map is how the map as a whole ended; settled_each() is how its items did."""

    def draw(order: Order) -> None:
        receipts = charge.map([order])  # type: ignore[list-item]
        anything(settled(receipts))
        anything(settled_each(receipts))

    plan = drawn(draw)
    assert node(plan, "anything")["args"]["value"]["$"] == {"settled": [{"ref": "charge"}]}
    assert node(plan, "anything-2")["args"]["value"]["$"] == {"settled_each": [{"ref": "charge"}]}


@pytest.mark.parametrize("call", [lambda: either(1, 2), lambda: maybe(1), lambda: settled(1), lambda: build(Receipt)])
def test_joins_belong_to_a_builder(call: Callable[[], Any]) -> None:
    """Outside of a workflow function they say where they belong."""
    with pytest.raises(PlanError, match=r"\(\) was called outside of a @workflow function"):
        call()


# -- build


def test_build_is_a_template_of_the_class() -> None:
    """build() writes fields under their JSON keys, constants by their types, and constant defaults; nothing runs."""

    def draw(order: Order) -> None:
        receipt = charge(order)
        send(build(Message, sendTo=receipt.code))
        store(build(Box[int], size(order.ids)))
        store(build(Box[int], value=3, tags=["a"]))
        anything(build(Receipt, code=order.id, amount=Decimal("1.50")))
        post(build(Envelope, message=build(Message, sendTo=order.id, text="x"), boxes=[build(Box[int], 1)]))
        anything({"first": build(Receipt, order.id, Decimal(1)), "all": [build(Receipt, "x", Decimal(2))]})

    plan = drawn(draw)
    assert node(plan, "send")["args"]["message"] == {"sendTo": {"$": {"ref": "charge", "path": ["code"]}}, "text": "hi"}
    made = node(plan, "store")["args"]["box"]
    assert made["at"] is None
    assert made["value"]["$"]["op"] == "size"
    assert "tags" not in made
    assert "made" not in made
    assert node(plan, "store-2")["args"]["box"] == {"value": 3, "at": None, "tags": ["a"]}
    order_id = {"$": {"ref": "input", "path": ["order", "id"]}}
    assert node(plan, "anything")["args"]["value"] == {"code": order_id, "amount": "1.50"}
    assert node(plan, "post")["args"]["envelope"] == {
        "message": {"sendTo": order_id, "text": "x"},
        "boxes": [{"value": 1, "at": None}],
    }
    assert node(plan, "anything-2")["args"]["value"] == {
        "first": {"code": order_id, "amount": "1"},
        "all": [{"code": "x", "amount": "2"}],
    }


def test_fields_of_a_built_value_are_what_was_put_in() -> None:
    """Selecting a field of build() gives what it was built from."""

    def draw(order: Order) -> None:
        message = build(Message, sendTo=order.id)
        say(message.to)
        say(message.text)

    plan = drawn(draw)
    assert node(plan, "say")["args"]["text"] == {"$": {"ref": "input", "path": ["order", "id"]}}
    assert node(plan, "say-2")["args"]["text"] == "hi"


def set_field(order: Order) -> None:
    build(Message, sendTo=order.id).text = "b"


@pytest.mark.parametrize(
    ("draw", "text"),
    [
        (lambda o: build(Message, sendTo=o.id, txt="a"), "build(Message): got an unexpected keyword argument 'txt'\n  Did you mean 'text'?"),
        (lambda _: build(Message), "build(Message): missing a required argument: 'sendTo'"),
        (lambda o: build(Receipt, o.id, "a", "b"), "build(Receipt): too many positional arguments"),
        (lambda o: send(build(Message, sendTo=o.total, text=3)), "build(Message).text: 3 cannot be a constant of type str"),
        (lambda o: send(build(Message, sendTo=o.ids)), "build(Message).to: <Ref input.order.ids> does not fit\n  list[str] is a list"),
        (lambda o: strict(build(Message, sendTo=o.id)), "strict(text=...): <Made Message(...)> does not fit\n  Message is an object"),
        (lambda o: build(Odd, y=o.id), "build(Odd): y is no field of it\n  A class with a constructor of its own"),
        (lambda o: build(str, o.id), "build() takes a dataclass or a pydantic model, not str"),
        (lambda o: build(Pair, o.id, 1), "build() takes a dataclass or a pydantic model, not Pair\n  Lists, tuples"),
        (lambda o: build(charge, o), "build() takes a dataclass or a pydantic model, not"),
        (lambda o: build(Message, sendTo=o.id).extra, "<Made Message(...)>: 'extra' is filled in at run time"),
        (lambda o: build(Message, sendTo=o.id).txt, "'txt' is no field of it\n  Did you mean 'text'?"),
        (lambda o: build(Message, sendTo=o.id) == 3, "<Made Message(...)> cannot be compared"),
        (set_field, "<Made Message(...)>.text cannot be set"),
        (lambda o: Message(sendTo=o.id), "with <Ref input.order.id> in it\n  Values come at run time: build(Message, ...)"),
    ],
)  # fmt: skip
def test_values_that_cannot_be_built_are_refused(draw: Callable[[Any], Any], text: str) -> None:
    """Fields that are missing, unknown or of another type, and classes that build() does not know, are refused."""
    assert text in str(refused(draw))


def test_built_value_answers_like_an_attribute_that_is_missing() -> None:
    """A field that build() does not have is an AttributeError too, so that hasattr() works."""

    def draw(order: Order) -> None:
        assert not hasattr(build(Message, sendTo=order.id), "nothing")

    assert drawn(draw)
    with pytest.raises(PlanAttributeError):
        drawn(lambda o: build(Message, sendTo=o.id).nothing)  # type: ignore[attr-defined]


# -- outputs


def test_outputs_are_templates() -> None:
    """A workflow returns a constant, nothing, or refs in dicts, tuples, lists, dataclasses and build()."""

    def output(draw: Callable[[Order], Any], type_: Any) -> Any:
        def flow(order: Order) -> Any:
            return draw(order)

        flow.__annotations__["return"] = type_
        return json.loads(workflow(flow).plan.text)["output"]

    whole = {"$": {"ref": "charge"}}
    code = {"$": {"ref": "charge", "path": ["code"]}}
    assert output(lambda _: None, None) is None
    assert output(lambda _: Decimal("1.0"), Decimal) == "1.0"
    assert output(lambda _: [1, 2], tuple[int, ...]) == [1, 2]
    assert output(charge, Receipt) == whole
    assert output(lambda o: (charge(o), 1), tuple[Receipt, int]) == [whole, 1]
    assert output(lambda o: {"a": charge(o).code}, dict[str, str]) == {"a": code}
    assert output(lambda o: Receipt(charge(o).code, Decimal(1)), Receipt) == {"code": code, "amount": "1"}
    assert output(lambda o: build(Receipt, charge(o).code, Decimal(1)), Receipt) == {"code": code, "amount": "1"}
    assert output(lambda o: settled(charge(o)), Outcome[Receipt]) == {"$": {"settled": [{"ref": "charge"}]}}
    assert output(lambda o: either(*both(o)), Receipt) == {"$": {"either": [{"ref": "charge"}, {"ref": "charge-2"}]}}
    assert output(lambda o: maybe(both(o)[0]), Receipt | None) == {"$": {"maybe": [{"ref": "charge"}]}}
    with pytest.raises(PlanTypeError, match="workflow flow returns: <Ref charge> does not fit"):
        output(charge, str)
