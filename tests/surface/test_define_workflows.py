"""@workflow: the plan it draws, what it refuses while drawing, and how its input and result go in and out."""

import copy
import importlib
import inspect
import json
import operator
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

from composer.core.plan import MOST_NODES, Plan, plan_from_text
from composer.core.retries import Retry
from composer.define import source
from composer.define.step import step
from composer.define.workflow import Workflow, workflow
from composer.errors import PayloadError, PlanAttributeError, PlanError, PlanTypeError

HERE = __file__


class Speed(Enum):
    FAST = "fast"


@dataclass
class Item:
    sku: str
    count: int = 1


@dataclass
class Order:
    id: str
    total: Decimal
    items: list[Item]
    speed: Speed = Speed.FAST
    note: str | None = None

    def loud(self) -> str:
        return self.id.upper()

    @property
    def short(self) -> str:
        return self.id[:3]

    @cached_property
    def cached(self) -> str:
        return self.id


@dataclass
class Receipt:
    amount: Decimal
    code: str


class Message(BaseModel):
    to: str = Field(alias="sendTo")
    text: str


@step
def charge(order: Order) -> Receipt: ...


@step
def notify(to: str, text: str = "hi", *, loud: bool = False) -> None: ...


@step
def ship(receipt: Receipt, order: Order) -> str: ...


@step
def fetch() -> Order: ...


@step
def audit(data: Any) -> int: ...


@step
def total(values: list[Decimal]) -> Decimal: ...


@step
def compose() -> Message: ...


@step
def at(moment: datetime) -> datetime: ...


def line_of(text: str) -> int:
    """Number of the only line of this file that ends in the comment `# text`."""
    lines = Path(HERE).read_text(encoding="utf-8").splitlines()
    found = [number for number, line in enumerate(lines, 1) if line.rstrip().endswith(f"# {text}")]
    assert len(found) == 1, found
    return found[0]


def plan_of(fn: Callable[..., Any], **options: Any) -> Plan:
    return workflow(name="w", **options)(fn).plan


# -- the plan -----------------------------------------------------------------------------------------------------


def test_a_plan_holds_nodes_wires_defaults_options_and_the_output() -> None:
    @workflow(timeout=timedelta(days=3), fail_fast=True)
    def fulfil(order: Order, copies: int = 2) -> str:
        """Sends it off."""
        receipt = charge.options(retries=1, queue="eu")(order)  # charge
        label = ship(receipt, order)
        notify.after(label)(order.id, loud=True)  # notify
        return label

    retry = {"attempts": 2, "delay": 1.0, "backoff": 2.0, "max_delay": 60.0, "jitter": 0.1, "no_retry_on": []}
    assert fulfil.plan.body == {
        "format": 1,
        "workflow": "fulfil",
        "params": {"order": {}, "copies": {"default": 2}},
        "nodes": [
            {
                "name": "charge",
                "kind": "step",
                "step": "charge",
                "args": {"order": {"$": {"ref": "input", "path": ["order"]}}},
                "options": {"queue": "eu", "retries": retry},
            },
            {
                "name": "ship",
                "kind": "step",
                "step": "ship",
                "args": {"receipt": {"$": {"ref": "charge"}}, "order": {"$": {"ref": "input", "path": ["order"]}}},
            },
            {
                "name": "notify",
                "kind": "step",
                "step": "notify",
                "args": {"to": {"$": {"ref": "input", "path": ["order", "id"]}}, "text": "hi", "loud": True},
                "after": [{"ref": "ship"}],
            },
        ],
        "output": {"$": {"ref": "ship"}},
        "options": {"timeout": 259_200.0, "fail_fast": True},
    }
    assert fulfil.plan.about["doc"] == "Sends it off."
    assert fulfil.plan.about["where"]["charge"] == f"{HERE}:{line_of('charge')}"
    assert fulfil.plan.about["where"]["notify"] == f"{HERE}:{line_of('notify')}"
    json.dumps(fulfil.plan.about)
    assert plan_from_text(fulfil.plan.text).shape == fulfil.plan.shape
    assert [node.needs for node in fulfil.plan.nodes] == [(), (0,), (1,)]
    assert fulfil.steps == {"charge": charge, "ship": ship, "notify": notify}
    assert repr(fulfil) == "<workflow fulfil(order: Order, copies: int = 2) -> str>"


def test_a_plan_without_nodes_passes_its_input_or_a_constant_on() -> None:
    def echo(order: Order) -> Order:
        return order

    def nothing() -> None: ...

    def constant() -> Decimal:
        return 3

    assert plan_of(echo).body["output"] == {"$": {"ref": "input", "path": ["order"]}}
    assert plan_of(nothing).body["output"] is None
    assert plan_of(constant).body["output"] == "3"


def test_nodes_are_named_after_their_step_in_call_order_or_as_told() -> None:
    def w(a: str) -> None:
        notify(a)
        notify.named("second")(a)
        notify(a)
        notify(a)

    assert set(plan_of(w).index) == {"notify", "second", "notify-2", "notify-3"}


def test_refs_select_items_keys_and_aliased_fields() -> None:
    def w(order: Order, table: dict[str, list[int]]) -> dict[str, Any]:
        message = compose()
        return {"a": order.items[0].sku, "b": table["x"][-1], "c": message.to, "d": [message.text, 1]}

    assert plan_of(w).body["output"] == {
        "a": {"$": {"ref": "input", "path": ["order", "items", 0, "sku"]}},
        "b": {"$": {"ref": "input", "path": ["table", "x", -1]}},
        "c": {"$": {"ref": "compose", "path": ["sendTo"]}},
        "d": [{"$": {"ref": "compose", "path": ["text"]}}, 1],
    }


def test_containers_and_dataclasses_hold_refs_and_constants_are_written_by_their_type() -> None:
    def w(order: Order) -> Decimal:
        audit({"items": [order.items[0], {"sku": "x"}]})
        charge(Order(order.id, 5, [Item(order.items[0].sku)]))
        return total([order.total, Decimal("1.50")])

    args = {node["name"]: node["args"] for node in plan_of(w).body["nodes"]}
    first = {"$": {"ref": "input", "path": ["order", "items", 0]}}
    assert args["audit"] == {"data": {"items": [first, {"sku": "x"}]}}
    assert args["charge"]["order"] == {
        "id": {"$": {"ref": "input", "path": ["order", "id"]}},
        "total": "5",
        "items": [{"sku": {"$": {"ref": "input", "path": ["order", "items", 0, "sku"]}}, "count": 1}],
        "speed": "fast",
        "note": None,
    }
    assert args["total"] == {"values": [{"$": {"ref": "input", "path": ["order", "total"]}}, "1.50"]}


def test_a_key_that_would_read_as_a_symbol_is_quoted() -> None:
    def w(a: str) -> None:
        audit({"$": "x"})
        audit([{"k": {"$": {"ref": "nobody"}}}])
        audit({"$": a, "k": 1})

    plan = plan_of(w)
    assert [node["args"]["data"] for node in plan.body["nodes"]] == [
        {"$": {"const": {"$": "x"}}},
        [{"$": {"const": {"k": {"$": {"ref": "nobody"}}}}}],
        {"$": {"object": {"$": {"$": {"ref": "input", "path": ["a"]}}, "k": 1}}},
    ]
    assert all(node.needs == () for node in plan.nodes)


def test_builders_nest_and_helpers_add_to_the_builder_that_calls_them() -> None:
    def both(order: Order) -> str:
        return ship(charge(order), order)

    def outer(order: Order) -> str:
        @workflow
        def inner(a: str) -> None:
            notify(a)

        assert list(inner.plan.index) == ["notify"]
        return both(order)

    assert list(plan_of(outer).index) == ["charge", "ship"]


def test_a_thousand_nodes_are_planned_and_more_than_the_limit_is_refused() -> None:
    def many(count: int) -> Callable[[str], None]:
        def w(a: str) -> None:
            for _ in range(count):
                notify(a)

        return w

    assert len(plan_of(many(MOST_NODES)).nodes) == MOST_NODES
    with pytest.raises(PlanError, match=f"more than {MOST_NODES} nodes\n.*nest"):
        plan_of(many(MOST_NODES + 1))


# -- hashes -------------------------------------------------------------------------------------------------------


def original(order: Order) -> str:
    receipt = charge(order)
    notify(order.id, "hi")
    return ship(receipt, order)


def renamed(order: Order) -> str:
    """Now it says what it does."""
    paid = charge(order)
    notify(order.id, "hi")
    return ship(paid, order)


def by_keyword(order: Order) -> str:
    receipt = charge(order=order)
    notify(text="hi", to=order.id, loud=False)
    return ship(order=order, receipt=receipt)


def swapped(order: Order) -> str:
    notify(order.id)
    receipt = charge(order)
    return ship(receipt, order)


def extracted(order: Order) -> str:
    def pay(order: Order) -> Receipt:
        return charge(order)

    receipt = pay(order)
    notify(order.id)
    return ship(receipt, order)


def other_constant(order: Order) -> str:
    receipt = charge(order)
    notify(order.id, "hello")
    return ship(receipt, order)


def one_more(order: Order) -> str:
    receipt = charge(order)
    notify(order.id, "hi")
    notify(order.id, "hi")
    return ship(receipt, order)


def later(order: Order) -> str:
    receipt = charge(order)
    notify.after(receipt)(order.id, "hi")
    return ship(receipt, order)


def slower(order: Order) -> str:
    receipt = charge.options(timeout=60, retries=Retry(attempts=9))(order)
    notify(order.id, "hi")
    return ship(receipt, order)


@pytest.mark.parametrize("same", [original, renamed, by_keyword, swapped, extracted])
def test_a_refactoring_changes_no_hash_whatever_the_hash_seed(same: Callable[[Order], str]) -> None:
    plan = plan_of(same)
    assert plan.text == plan_of(original).text
    assert plan.shape == "5de83362a8e6d771597ac3e4d758e91e"
    assert plan.options_hash == "063f6c36be70111b1870a1d085c8cc39"


@pytest.mark.parametrize("other", [other_constant, one_more, later])
def test_another_node_wire_or_constant_is_another_shape(other: Callable[[Order], str]) -> None:
    assert plan_of(other).shape != plan_of(original).shape


def test_other_options_are_the_same_shape_with_another_options_hash() -> None:
    assert plan_of(slower).shape == plan_of(original).shape
    assert plan_of(slower).options_hash != plan_of(original).options_hash
    assert plan_of(original, timeout="3d").shape == plan_of(original).shape
    assert plan_of(original, timeout="3d").options_hash != plan_of(original).options_hash
    assert plan_of(original, fail_fast=False, timeout=None).options_hash == plan_of(original).options_hash


# -- mistakes in a builder ----------------------------------------------------------------------------------------
# Each does one thing a Ref cannot answer; the marked line is where the error points to.


def if_ref(order: Order) -> None:
    if order.note:
        notify("a")


def while_ref(order: Order) -> None:
    while order.note:
        notify("a")


def ternary(order: Order) -> None:
    notify("a" if order.note else "b")


def assertion(order: Order) -> None:
    assert order.note


def and_(order: Order) -> None:
    notify((order.note and "a") or "b")


def or_default(order: Order) -> None:
    notify(order.note or "default")


def not_ref(order: Order) -> None:
    notify("a", loud=not order.note)


def compare(order: Order) -> None:
    if order.total > 1000:
        notify("a")


def equal(order: Order) -> None:
    notify("a" if order.id == "a" else "b")


def chained(order: Order) -> None:
    notify("a", loud=1 < order.total < 3)


def enum_equal(order: Order) -> None:
    notify("a", loud=Speed.FAST == order.speed and order.id == "a")  # noqa: SIM300


def loop(order: Order) -> None:
    for item in order.items:
        notify(item.sku)


def unpack(order: Order) -> None:
    first, second = order.items
    ship(first, second)


def splat(order: Order) -> None:
    audit([*order.items])


def as_list(order: Order) -> None:
    audit(list(order.items))


def as_sorted(order: Order) -> None:
    audit(sorted(order.items))


def as_zip(order: Order) -> None:
    audit(list(zip(order.items, order.items, strict=True)))


def comprehension(order: Order) -> None:
    audit([item.sku for item in order.items])


def as_reversed(order: Order) -> None:
    audit(list(reversed(order.items)))


def length(order: Order) -> None:
    audit(len(order.items))


def contains(order: Order) -> None:
    audit("a" in order.id)


def contained(order: Order) -> None:
    audit(order.id in ["a", "b"])


def fstring(order: Order) -> None:
    notify(f"order {order.id}")


def percent(order: Order) -> None:
    notify("order %s" % order.id)  # noqa: UP031


def formatted(order: Order) -> None:
    notify("order {}".format(order.id))  # noqa: UP032


def as_str(order: Order) -> None:
    notify(str(order.total))


def printed(order: Order) -> None:
    print(order.id)


def added(order: Order) -> None:
    audit(order.total + 1)


def added_right(order: Order) -> None:
    audit(1 + order.total)


def augmented(order: Order) -> None:
    sum_ = order.total
    sum_ += 1
    audit(sum_)


def negative(order: Order) -> None:
    audit(-order.total)


def as_int(order: Order) -> None:
    audit(int(order.total))


def rounded(order: Order) -> None:
    audit(round(order.total))


def ranged(order: Order) -> None:
    audit(list(range(order.items[0].count)))


def indexed(order: Order) -> None:
    audit([1, 2][order.items[0].count])


def date_math(moment: datetime) -> None:
    at(moment + timedelta(days=1))


def date_math_right(moment: datetime) -> None:
    at(timedelta(days=1) + moment)


def piped(order: Order) -> None:
    audit(order.total > 1 & order.items[0].count)


def method(order: Order) -> None:
    notify(order.id.upper())


def own_method(order: Order) -> None:
    notify(order.loud())


def property_(order: Order) -> None:
    notify(order.short)


def cached_property_(order: Order) -> None:
    notify(order.cached)


def missing_field(order: Order) -> None:
    notify(order.totl)


def missing_item(order: Order) -> None:
    notify(order.total["x"])


def sliced(order: Order) -> None:
    audit(order.items[1:])


def as_key(order: Order) -> None:
    audit({order.id: 1})


def table(order: Order) -> None:
    notify({"de": "hallo"}[order.id])


def as_set(order: Order) -> None:
    audit({order.id, "a"})


def is_instance(order: Order) -> None:
    if isinstance(order.note, str):
        notify("a")


def is_sequence(order: Order) -> None:
    if isinstance(order.items, Sequence):
        notify("a")


def set_field(order: Order) -> None:
    order.note = "x"


def set_item(order: Order) -> None:
    order.items[0] = Item("a")


def deleted(order: Order) -> None:
    del order.note


def largest(order: Order) -> None:
    audit(max(order.total, order.items[0].count))


def dataclass_equal(order: Order) -> None:
    audit(Item(order.id) == Item("a"))


def tuple_equal(order: Order) -> None:
    audit((order.id, 1) == ("a", 1))


def called(order: Order) -> None:
    order()


def entered(order: Order) -> None:
    with order:
        notify("a")


def hashed(order: Order) -> None:
    hash(order.id)


def pickled(order: Order) -> None:
    pickle.dumps(order.id)


def path_join(order: Order) -> None:
    audit(Path(order.id))


BUILDERS: list[tuple[Callable[..., Any], str]] = [
    (if_ref, "<Ref input.order.note> has no truth value"),
    (while_ref, "has no truth value"),
    (ternary, "has no truth value"),
    (assertion, "has no truth value"),
    (and_, "has no truth value"),
    (or_default, "has no truth value"),
    (not_ref, "has no truth value"),
    (compare, "<Expr input.order.total > 1000> has no truth value"),
    (equal, "<Expr input.order.id == 'a'> has no truth value"),
    (chained, "write `a < x < b` as when(a < x, x < b)"),
    (enum_equal, "has no truth value"),
    (loop, "<Ref input.order.items> cannot be iterated"),
    (unpack, "cannot be iterated"),
    (splat, "cannot be iterated"),
    (as_list, "cannot be iterated"),
    (as_sorted, "cannot be iterated"),
    (as_zip, "cannot be iterated"),
    (comprehension, "cannot be iterated"),
    (as_reversed, "cannot be iterated"),
    (length, "has no length"),
    (contains, "`in <Ref input.order.id>` cannot be answered"),
    (contained, "use all_of(), any_of(), not_(), contains()"),
    (fstring, "<Ref input.order.id> has no text"),
    (percent, "has no text"),
    (formatted, "has no text"),
    (as_str, "has no text"),
    (printed, "has no text"),
    (added, "arithmetic on <Ref input.order.total>"),
    (added_right, "arithmetic on"),
    (augmented, "arithmetic on"),
    (negative, "arithmetic on"),
    (as_int, "arithmetic on"),
    (rounded, "arithmetic on"),
    (ranged, "arithmetic on"),
    (indexed, "arithmetic on"),
    (date_math, "arithmetic on"),
    (date_math_right, "arithmetic on"),
    (piped, "'&' joins conditions, not 1\n  It binds tighter than a comparison"),
    (method, "str.upper is a method; it cannot run while the workflow is built"),
    (own_method, "Order.loud is a method"),
    (property_, "Order.short is a property, which the JSON of Order does not carry"),
    (cached_property_, "Order.cached is a property"),
    (missing_field, "Order has no field 'totl'\n  Did you mean 'total'?"),
    (missing_item, "Decimal has no item 'x'"),
    (sliced, "only a number or a name selects an item"),
    (as_key, "is not hashable"),
    (table, "is not hashable"),
    (as_set, "is not hashable"),
    (is_instance, "has no class"),
    (is_sequence, "has no class"),
    (set_field, "<Ref input.order>.note cannot be set"),
    (set_item, "cannot be set"),
    (deleted, "cannot be deleted"),
    (largest, "has no truth value"),
    (dataclass_equal, "has no truth value"),
    (tuple_equal, "has no truth value"),
    (called, "cannot be called"),
    (entered, "is not a context manager"),
    (hashed, "is not hashable"),
    (pickled, "cannot be pickled"),
]


def test_a_path_of_a_ref_is_refused_whoever_answers_first() -> None:
    """Newer Pythons refuse the Ref before they ask it for its text; either way it is a TypeError while building."""
    with pytest.raises(TypeError):
        workflow(path_join)


@pytest.mark.parametrize(("builder", "text"), BUILDERS, ids=lambda each: getattr(each, "__name__", ""))
def test_a_question_only_data_can_answer_is_refused_at_the_users_line(builder: Callable[..., Any], text: str) -> None:
    with pytest.raises(PlanError) as caught:
        workflow(builder)
    assert text in str(caught.value)
    lines, first = inspect.getsourcelines(builder)
    file, _, rest = caught.value.where.rpartition(":")
    assert file == HERE
    assert first < int(rest.partition(" ")[0]) < first + len(lines)


def is_none(order: Order) -> None:
    if order.note is None:
        notify("a")


def is_not_none(order: Order) -> None:
    receipt = charge(order)
    notify("a", loud=receipt.code is not None)


def no_argument(order: Order) -> None:
    fetched = fetch.options(queue="x")()
    if fetched is None:
        notify("a")


def match_text(order: Order) -> None:
    match order.id:
        case "a":
            notify("a")


def match_none(order: Order) -> None:
    match order.note:
        case None:
            notify("a")


def match_sequence(order: Order) -> None:
    match order.items:
        case [first]:
            notify(first.sku)


def type_of(order: Order) -> None:
    if type(order.note) is str:
        notify("a")


def id_of(order: Order) -> None:
    audit(id(order))


@pytest.mark.parametrize(
    "builder", [is_none, is_not_none, no_argument, match_text, match_none, match_sequence, type_of, id_of]
)
def test_a_question_a_ref_cannot_hear_is_found_in_the_source(builder: Callable[..., Any]) -> None:
    with pytest.raises(PlanTypeError, match=r"sees the Ref .*, never the value") as caught:
        workflow(builder)
    lines, first = inspect.getsourcelines(builder)
    assert first < int(caught.value.where.rpartition(":")[2].partition(" ")[0]) < first + len(lines)


def test_names_that_may_hold_something_else_than_a_ref_are_left_alone() -> None:
    def w(order: Order, copies: int = 1) -> None:
        last = None
        for channel in ("a", "b"):
            last = notify(channel) if last is None else notify.after(last)(channel)
        given = [order.note, None]
        for each in given:
            if each is not None:
                notify(each)
        found = {"k": order.id}.get("x")
        if found is None:
            notify("c")

    assert len(plan_of(w).nodes) == 4


def test_hasattr_copies_and_repr_work_and_probes_are_no_paths() -> None:
    def w(order: Order) -> None:
        assert hasattr(order, "id")
        assert not hasattr(order, "nothing")
        assert not hasattr(order, "__array__")
        assert operator.is_(copy.copy(order), order)
        assert operator.is_(copy.deepcopy([order])[0], order)
        assert repr(order.items[0].sku) == "<Ref input.order.items[0].sku>"
        assert not hasattr(order, "_private")

    plan_of(w)


def test_a_misspelt_field_is_also_an_attribute_error() -> None:
    def w(order: Order) -> None:
        order.nothing  # noqa: B018

    with pytest.raises(PlanAttributeError, match="Known: id, items, note, speed, total"):
        plan_of(w)


# -- arguments, wires and results ---------------------------------------------------------------------------------


def too_few(order: Order) -> None:
    ship(order)


def misspelt(order: Order) -> None:
    notify("a", txt="b")


def bad_constant(order: Order) -> None:
    notify(3)


def no_json(order: Order) -> None:
    audit(object())


def no_json_inside(order: Order) -> None:
    audit({"a": [order.id, Decimal(1)]})


def wrong_wire(order: Order) -> None:
    notify(order)


def wrong_wire_inside(order: Order) -> None:
    total([order.items])


def list_for_object(order: Order) -> None:
    charge([order.id])


def number_keys(order: Order) -> None:
    audit({1: order.id})


def wrong_return(order: Order) -> int:
    return charge(order)


def forgotten_return(order: Order) -> Receipt:
    charge(order)
    return None


def surplus_return(order: Order) -> None:
    return charge(order)


def self_named(order: Order) -> None:
    notify.named("input")("a")


def named_twice(order: Order) -> None:
    notify.named("x")("a")
    notify.named("x")("a")


def after_a_constant(order: Order) -> None:
    notify.after("charge")("a")


def after_the_input(order: Order) -> None:
    notify.after(order)("a")


WIRES: list[tuple[Callable[..., Any], str]] = [
    (too_few, "ship(): missing a required argument: 'order'\n  It takes (receipt: Receipt, order: Order) -> str."),
    (misspelt, "unexpected keyword argument 'txt'"),
    (misspelt, "Did you mean 'text'?"),
    (bad_constant, "notify(to=...): 3 cannot be a constant of type str"),
    (no_json, "audit(data=...): <object object"),
    (no_json_inside, "audit(data=...)['a'][1]: Decimal('1') cannot be a constant of type Any"),
    (wrong_wire, "notify(to=...): <Ref input.order> does not fit\n  Order is an object in JSON, and str is text."),
    (wrong_wire_inside, "list[Item] is a list in JSON, and Decimal is text"),
    (list_for_object, "It is a list in JSON"),
    (number_keys, "needs text keys, not 1"),
    (wrong_return, "workflow wrong_return returns: <Ref charge> does not fit\n  Receipt is an object"),
    (forgotten_return, "None cannot be a constant of type Receipt"),
    (surplus_return, "None is null"),
    (self_named, "cannot be named 'input'"),
    (named_twice, "cannot be named 'x', which is taken\n  The first is at"),
    (after_a_constant, "notify.after() takes results of earlier nodes, not 'charge'"),
    (after_the_input, "not <Ref input.order>"),
]


@pytest.mark.parametrize(("builder", "text"), WIRES, ids=lambda each: getattr(each, "__name__", ""))
def test_an_argument_wire_or_result_that_does_not_fit_is_refused(builder: Callable[..., Any], text: str) -> None:
    with pytest.raises(PlanError) as caught:
        workflow(builder)
    assert text in str(caught.value)
    lines, first = inspect.getsourcelines(builder)
    assert first <= int(caught.value.where.rpartition(":")[2].partition(" ")[0]) < first + len(lines)


def test_a_ref_of_another_workflow_is_refused_with_both_names() -> None:
    leaked: list[Any] = []

    @workflow
    def first(order: Order) -> None:
        leaked.append(charge(order))  # leaked here

    def second(order: Order) -> None:
        ship(leaked[0], order)

    def third(order: Order) -> str:
        notify.after(leaked[0])("a")
        return "a"

    for builder in (second, third):
        with pytest.raises(PlanError) as caught:
            workflow(builder)
        assert "<Ref charge> belongs to workflow 'first'" in str(caught.value)
        assert f"{HERE}:{line_of('leaked here')}" in str(caught.value)
    with pytest.raises(PlanError, match="outside of a @workflow"):
        ship(leaked[0], leaked[0])


def test_two_steps_of_one_name_in_a_workflow_are_refused() -> None:
    other = step(name="charge")(notify.fn)

    def w(order: Order) -> None:
        charge(order)
        other("a")

    with pytest.raises(PlanError, match="two steps named 'charge'"):
        plan_of(w)


def test_a_pydantic_model_made_of_refs_is_refused_and_a_foreign_error_keeps_its_type() -> None:
    def validated(order: Order) -> None:
        audit(Message(sendTo=order.id, text="a"))  # validated here

    def joined(order: Order) -> None:
        notify(",".join([order.id]))

    def own(order: Order) -> None:
        raise KeyError("mine")

    with pytest.raises(PlanError, match="Message was validated while the workflow is built") as caught:
        plan_of(validated)
    assert caught.value.where == f"{HERE}:{line_of('validated here')}"
    for builder, kind in ((joined, TypeError), (own, KeyError)):
        with pytest.raises(kind) as error:
            plan_of(builder)
        assert "while building workflow w: values are Refs there" in error.value.__notes__[0]


def test_the_lines_of_a_project_that_is_installed_itself_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "installed_flows.py").write_text(
        "from composer.define.workflow import workflow\n\n\n@workflow\ndef w(a: int) -> int:\n    return a + 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(source, "_INSTALLED", (*source._INSTALLED, f"{tmp_path}/"))
    with pytest.raises(PlanError) as caught:
        importlib.import_module("installed_flows")
    assert caught.value.where == f"{tmp_path / 'installed_flows.py'}:6 in w"


async def coroutine(a: str) -> str:
    return a


def test_what_cannot_be_a_workflow_is_refused() -> None:
    with pytest.raises(PlanTypeError, match="workflow coroutine is `async def`"):
        workflow(coroutine)
    with pytest.raises(PlanTypeError, match="a method cannot be a workflow"):
        workflow(Order.loud)
    with pytest.raises(PlanError, match=r"has no option 'timeot'\n  Did you mean 'timeout'"):
        plan_of(original, timeot=3)
    with pytest.raises(PlanError, match="fail_fast=1"):
        plan_of(original, fail_fast=1)
    with pytest.raises(PlanError, match="workflow w: timeout: -1 is out of range"):
        plan_of(original, timeout=-1)


# -- input and result ---------------------------------------------------------------------------------------------

FULFIL: Workflow[[Order], str] = workflow(original)
ORDER = Order("a", Decimal("1.50"), [Item("x")])


@workflow(name="gifts")
def gifts(order: Order, text: str = "hi", *, loud: bool = False) -> str:
    notify(order.id, text, loud=loud)
    return text


def test_input_is_an_object_by_parameter_name_with_defaults() -> None:
    text = gifts.encode_input((ORDER,), {"loud": True})
    assert json.loads(text) == {
        "order": {
            "id": "a",
            "total": "1.50",
            "items": [{"sku": "x", "count": 1}],
            "speed": "fast",
            "note": None,
        },
        "text": "hi",
        "loud": True,
    }
    assert gifts.encode_input((), {"order": ORDER, "loud": True}) == text


def test_input_that_does_not_fit_is_refused() -> None:
    with pytest.raises(
        PlanTypeError, match=r"gifts\(\): missing a required argument: 'order'\n  It takes \(order: Order"
    ):
        gifts.encode_input((), {})
    with pytest.raises(PlanTypeError, match="too many positional"):
        gifts.encode_input((ORDER, "a", True), {})
    with pytest.raises(PayloadError, match="workflow gifts: text cannot be written as str: Input should be"):
        gifts.encode_input((ORDER, 3), {})
    with pytest.raises(PayloadError, match=r"workflow gifts: order cannot be written as Order: items\[0\].count: "):
        gifts.encode_input((Order("a", Decimal(1), [Item("x", "many")]),), {})


def test_a_ref_is_no_input() -> None:
    def w(order: Order) -> None:
        FULFIL.bind(order)

    with pytest.raises(PayloadError, match=r"<Ref input\.order> exists only while a workflow is built"):
        plan_of(w)


def test_bind_carries_the_input_and_takes_no_more() -> None:
    bound = gifts.bind(ORDER, loud=True)
    assert bound.bound_input == gifts.encode_input((ORDER,), {"loud": True})
    assert bound.encode_input((), {}) == bound.bound_input
    assert gifts.bound_input is None
    assert bound.plan is gifts.plan
    with pytest.raises(PlanTypeError, match="has its input already"):
        bound.encode_input((ORDER,), {})


def test_the_result_is_read_by_its_annotation() -> None:
    assert FULFIL.decode_result('"label"') == "label"
    with pytest.raises(PayloadError, match="workflow original: its result cannot be read as str"):
        FULFIL.decode_result("3")


def test_calling_a_workflow_says_what_to_do_instead() -> None:
    with pytest.raises(PlanError, match=r"workflow gifts\(\) was called outside .*\n.*client\.start\(gifts\.bind"):
        gifts(ORDER)

    def w(order: Order) -> str:
        return gifts(order)

    with pytest.raises(PlanError, match="Child workflows are not available yet"):
        plan_of(w)
