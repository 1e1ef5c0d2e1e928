"""step.map(), zip_refs() and settled_each(): what they put into the plan, and what is refused while drawing it."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

import pytest

from composer import Outcome, OutcomeError, PlanError, StepError, settled_each, step, workflow, zip_refs
from composer.core.plan import Need, Plan, Term, list_code, names_in, outcomes_code, plan_from_text
from composer.define.payloads import codec
from composer.define.workflow import Workflow
from composer.errors import PayloadError, PlanAttributeError, PlanTypeError

HERE = __file__


@dataclass
class Item:
    sku: str
    price: Decimal


@dataclass
class Order:
    id: str
    items: list[Item]
    names: frozenset[str]
    prices: dict[str, Decimal]
    pair: tuple[int, str]
    anything: Any


@dataclass
class Parcel:
    sku: str
    weight: float


class Placed(NamedTuple):
    item: Item
    place: int


@step
def pack(item: Item, box: str = "s", *, fragile: bool = False) -> Parcel: ...


@step
def name(text: str) -> str: ...


@step
def place(placed: tuple[Item, int]) -> Parcel: ...


@step
def place_named(placed: Placed) -> Parcel: ...


@step
def any_of_it(value: Any) -> int: ...


@step
def places(items: list[Item]) -> list[int]: ...


@step
def label(parcels: list[Parcel]) -> str: ...


@step
def weigh(parcel: Parcel) -> float: ...


@step
def inspect_all(found: list[Outcome[Parcel]]) -> str: ...


@step
def say(text: str) -> str: ...


@step
def nothing() -> int: ...


@step
def by_keyword(*, item: Item) -> int: ...


@step(max_concurrency=7, tolerate=2)
def careful(item: Item) -> Parcel: ...


def node(plan: Plan, name: str) -> dict[str, Any]:
    return next(each for each in plan.body["nodes"] if each["name"] == name)


def drawn(draw: Callable[[Order], Any]) -> Plan:
    """The plan of a builder that takes an order and returns nothing."""

    def fn(order: Order) -> None:
        draw(order)

    return workflow(fn).plan


def refused(draw: Callable[[Order], Any], kind: type[PlanError] = PlanTypeError) -> PlanError:
    with pytest.raises(kind) as caught:
        drawn(draw)
    assert caught.value.where.startswith(f"{HERE}:")
    return caught.value


# -- the plan


def test_map_is_one_node_over_a_list_with_the_rest_given_to_all() -> None:
    """A map names the parameter that gets the items; its other arguments are those of a call, defaults included."""
    plan = drawn(lambda order: pack.map(order.items, order.id, fragile=True))
    assert node(plan, "pack") == {
        "name": "pack",
        "kind": "map",
        "step": "pack",
        "over": "item",
        "args": {
            "item": {"$": {"ref": "input", "path": ["order", "items"]}},
            "box": {"$": {"ref": "input", "path": ["order", "id"]}},
            "fragile": True,
        },
    }
    assert node(drawn(lambda order: pack.map(order.items)), "pack")["args"]["box"] == "s"


def test_map_is_read_back_by_the_core() -> None:
    """The core sees the map's step, parameter, options and what it depends on."""

    @workflow
    def flow(order: Order) -> str:
        found = places(order.items)
        many = any_of_it.options(max_concurrency=3, tolerate=" 05.50 %").map(found)
        both = any_of_it.map(zip_refs(found, many, [True, False, True]))
        return say.after(both)("x")

    plan = plan_from_text(flow.plan.text)
    many, both = plan.nodes[plan.index["any_of_it"]], plan.nodes[plan.index["any_of_it-2"]]
    assert (many.kind, many.step, many.over) == ("map", "any_of_it", "value")
    assert (many.options.max_concurrency, many.options.tolerate) == (3, "5.5%")
    assert (both.options.max_concurrency, both.options.tolerate, plan.nodes[plan.index["places"]].over) == (None, 0, "")
    assert both.terms == (Term(Need.PLAIN, (plan.index["places"],)), Term(Need.PLAIN, (many.index,)))
    assert (both.reads, both.list_reads) == ((), (plan.index["places"], list_code(many.index)))
    symbol = both.args["value"]["$"]
    assert symbol == {"zip": [{"ref": "places"}, {"ref": "any_of_it"}, {"const": [True, False, True]}]}
    assert list(names_in(symbol)) == ["places", "any_of_it"]


def test_map_over_a_constant_list_is_written_by_the_parameter() -> None:
    """Constant items are encoded by the parameter's annotation, tuples too; an empty list is a list."""
    plan = drawn(lambda _: (pack.map([Item("a", Decimal("1.50"))]), pack.map((Item("b", Decimal(2)),)), pack.map([])))
    assert node(plan, "pack")["args"]["item"] == [{"sku": "a", "price": "1.50"}]
    assert node(plan, "pack-2")["args"]["item"] == [{"sku": "b", "price": "2"}]
    assert node(plan, "pack-3")["args"]["item"] == []


def test_map_over_a_list_of_refs() -> None:
    """A list written in the builder may hold results of several nodes."""

    def draw(order: Order) -> None:
        weigh.map([pack(order.items[0]), pack(order.items[1])])

    assert node(drawn(draw), "weigh")["args"]["parcel"] == [{"$": {"ref": "pack"}}, {"$": {"ref": "pack-2"}}]


def test_map_runs_over_sets_tuples_and_what_is_not_known() -> None:
    """A set, a tuple and a value of type Any can be lists in JSON, so they can be mapped over."""
    plan = drawn(lambda o: (name.map(o.names), any_of_it.map(o.pair), pack.map(o.anything), pack.map(o.anything["x"])))
    assert [each["kind"] for each in plan.body["nodes"]] == ["map"] * 4


def test_result_of_a_map_is_a_list() -> None:
    """A map's Ref is the list of results: passed whole, one item of it, a field of one item, or mapped again."""

    @workflow
    def flow(order: Order) -> list[Parcel]:
        parcels: Any = pack.named("packing").map(order.items)
        label(parcels)
        weigh(parcels[0])
        say(parcels[-1].sku)
        weigh.options(tolerate=1).map(parcels)
        return parcels  # type: ignore[no-any-return]

    assert node(flow.plan, "label")["args"]["parcels"] == {"$": {"ref": "packing"}}
    assert node(flow.plan, "weigh")["args"]["parcel"] == {"$": {"ref": "packing", "path": [0]}}
    assert node(flow.plan, "say")["args"]["text"] == {"$": {"ref": "packing", "path": [-1, "sku"]}}
    assert node(flow.plan, "weigh-2")["args"]["parcel"] == {"$": {"ref": "packing"}}
    assert flow.plan.body["output"] == {"$": {"ref": "packing"}}
    assert flow.steps.keys() == {"pack", "label", "weigh", "say"}


def test_map_goes_after_other_nodes() -> None:
    """.after() orders a map as it orders a call."""
    plan = drawn(lambda order: pack.after(say("x")).map(order.items))
    assert node(plan, "pack")["after"] == [{"ref": "say"}]


def test_options_of_a_map_in_the_step_do_not_touch_single_calls() -> None:
    """max_concurrency and tolerate of @step stand in the plan of a map, and not in that of a call."""
    plan = drawn(lambda order: (careful.map(order.items), careful(order.items[0])))
    assert node(plan, "careful")["options"] == {"max_concurrency": 7, "tolerate": 2}
    assert "options" not in node(plan, "careful-2")
    assert "options" not in node(
        drawn(lambda o: careful.options(max_concurrency=None, tolerate=0).map(o.items)), "careful"
    )


@pytest.mark.parametrize(
    ("written", "kept"), [(3, 3), ("5%", "5%"), ("0%", 0), ("12.50 %", "12.5%"), ("100%", "100%"), (0, 0)]
)
def test_tolerance_has_one_spelling(written: Any, kept: Any) -> None:
    """Equal shares are equal text, so that they make equal plans."""
    assert pack.options(tolerate=written).policy.tolerate == kept


@pytest.mark.parametrize(
    "options",
    [
        {"max_concurrency": 0},
        {"max_concurrency": True},
        {"max_concurrency": 1.5},
        {"tolerate": -1},
        {"tolerate": True},
        {"tolerate": 0.05},
        {"tolerate": "5"},
        {"tolerate": "101%"},
        {"tolerate": None},
    ],
)
def test_options_of_maps_are_checked(options: Any) -> None:
    """A window under one item and a tolerance that is neither a count nor a share are refused, with step and value."""
    with pytest.raises(PlanError, match=r"step pack: (max_concurrency|tolerate)="):
        pack.options(**options)


# -- what is refused


def test_single_call_with_options_of_a_map_is_refused() -> None:
    """.options() with what only a map can use, and then a plain call, is a mistake."""
    error = refused(lambda order: pack.options(tolerate=3)(order.items[0]), PlanError)
    assert error.problem == "step pack: tolerate is for .map()"
    assert "pack.options(tolerate=...).map(items)" in error.advice
    assert refused(lambda o: pack.options(max_concurrency=3).options(retries=1)(o.items[0]), PlanError)


@pytest.mark.parametrize(
    ("draw", "problem", "advice"),
    [
        (
            lambda o: name.map(o.id),
            "name.map() runs over a list, not <Ref input.order.id>: str is not a list",
            "take it apart inside a step",
        ),
        (
            lambda o: name.map(o.prices),
            "name.map() runs over a list, not <Ref input.order.prices>: dict[str, Decimal] is not a list",
            "An object has no order",
        ),
        (
            lambda o: pack.map(o.items[0]),
            "pack.map() runs over a list, not <Ref input.order.items[0]>: Item is not a list",
            "For one item call the step",
        ),
        (lambda o: name.map("abc"), "name.map() runs over a list, not 'abc'", "Text is one value"),
        (lambda o: name.map({"a": "b"}), "name.map() runs over a list, not {'a': 'b'}", "An object has no order"),
        (lambda o: name.map({"a"}), "name.map() runs over a list, not {'a'}", "sorted(...)"),
        (lambda o: name.map(3), "name.map() runs over a list, not 3", "For one item"),
        (
            lambda o: name.map(o.items),
            "name.map(): the items of <Ref input.order.items> do not fit",
            "Item is an object in JSON, and str is text.",
        ),
        (
            lambda o: pack.map([1]),
            "pack.map(): [1] cannot be a constant of type list[Item]",
            "[0]: Input should be",
        ),
        (lambda o: weigh.map([pack(o.items[0]), 3]), "weigh.map()[1]: 3 cannot be a constant of type Parcel", ""),
        (lambda o: pack.map(o.items, 3), "pack(box=...): 3 cannot be a constant of type str", ""),
        (lambda o: pack.map(o.items, bix="m"), "pack(): got an unexpected keyword argument 'bix'", "Did you mean 'box'"),
        (lambda o: pack.map(o.items, item=o.items[0]), "step pack.map(): item gets the items", "pack.map(items, ...)"),
        (lambda o: by_keyword.map(o.items), "step by_keyword.map(): by_keyword has no parameter that", "item can be"),
        (lambda o: nothing.map(o.items), "step nothing.map(): nothing has no parameter that", "The first parameter"),
        (
            lambda o: pack.map(zip_refs(o.items, o.items)),
            "pack.map(): the items of <Zip (input.order.items, input.order.items)> do not fit",
            "tuple[Item, Item] is a list in JSON, and Item is an object.",
        ),
        (
            lambda o: place.map(zip_refs(o.items, o.items)),
            "place.map(): list 2 of zip_refs() does not fit",
            "Item is an object in JSON, and int is a number.",
        ),
        (
            lambda o: place.map(zip_refs(o.items, ["a"])),
            "place.map(): list 2 of zip_refs(): ['a'] cannot be a constant of type list[int]",
            "[0]: Input should be a valid integer",
        ),
        (
            lambda o: place.map(zip_refs([pack(o.items[0])], [1])),
            "place.map(): list 1 of zip_refs() has refs in it",
            "Make the list in a step",
        ),
        (lambda o: zip_refs(o.id, o.items), "zip_refs() runs over a list, not <Ref input.order.id>", "Text is one"),
        (lambda o: zip_refs("ab", o.items), "zip_refs() takes lists, not 'ab'", "Text is one value"),
        (lambda o: zip_refs(o.items), "zip_refs() puts two lists or more side by side", "step.map(ref)"),
        (
            lambda o: any_of_it(zip_refs(o.items, o.items)),
            "any_of_it(value=...): <Zip (input.order.items, input.order.items)> is only for the items of a map",
            "step.map(zip_refs(a, b))",
        ),
        (lambda o: any_of_it([zip_refs(o.items, o.items)]), "any_of_it(value=...)[0]: <Zip", "step.map(zip_refs(a, b))"),
        (lambda o: zip_refs(o.items, o.items)[0], "<Zip (input.order.items, input.order.items)>[0] cannot", "the lists"),
        (lambda o: list(zip_refs(o.items, [1, 2])), "<Zip (input.order.items, <2 items>)> cannot be iterated", "step.map"),
        (lambda o: say.after(zip_refs(o.items, o.items))("x"), "say.after() takes results of earlier nodes", ""),
        (lambda o: settled_each(o.items), "settled_each() takes the whole result of a .map(), not <Ref input", "every item"),
        (lambda o: settled_each(pack.map(o.items)[0]), "settled_each() takes the whole result of a .map()", "every item"),
        (lambda o: settled_each(places(o.items)), "settled_each() takes the whole result of a .map()", "every item"),
        (
            lambda o: settled_each(settled_each(pack.map(o.items))),
            "settled_each() takes the whole result of a .map(), not <Ref settled_each(pack)>",
            "every item",
        ),
        (lambda o: settled_each([1]), "settled_each() takes the whole result of a .map(), not [1]", "every item"),
    ],
)  # fmt: skip
def test_refused_at_the_users_line(draw: Callable[[Any], Any], problem: str, advice: str) -> None:
    """What cannot be mapped over, zipped or settled is refused while the workflow is drawn, with the way out."""
    error = refused(draw)
    assert error.problem.startswith(problem)
    assert advice in error.advice


def test_field_of_a_zip_is_refused() -> None:
    """A zip has no fields, and says so as an attribute error."""
    error = refused(lambda o: zip_refs(o.items, o.items).append, PlanAttributeError)  # type: ignore[arg-type]
    assert error.problem == "<Zip (input.order.items, input.order.items)> has no field 'append'"


def test_maps_belong_to_a_builder() -> None:
    """Outside of a workflow function, map, zip_refs and settled_each say what to do instead."""
    with pytest.raises(PlanError, match=r"step pack\.map\(\) was called outside .*\n.*pack\.fn\(\.\.\.\)"):
        pack.map([Item("a", Decimal(1))])
    with pytest.raises(PlanError, match=r"zip_refs\(\) was called outside of a @workflow function"):
        zip_refs([1], [2])
    with pytest.raises(PlanError, match=r"settled_each\(\) was called outside of a @workflow function"):
        settled_each([1])


def test_refs_of_another_workflow_are_refused() -> None:
    """A list of one workflow cannot be mapped, zipped or settled in another."""
    kept: list[Any] = []
    drawn(lambda order: kept.extend((order.items, pack.map(order.items))))
    for draw in (
        lambda _: pack.map(kept[0]),
        lambda o: place.map(zip_refs(o.items, kept[0])),
        lambda _: settled_each(kept[1]),
    ):
        assert "belongs to workflow 'fn'" in refused(draw, PlanError).problem


def test_the_source_check_knows_the_results_of_maps_and_joins() -> None:
    """`is None` on the result of a map, a zip or settled_each is seen in the source."""

    def mapped(order: Order) -> None:
        parcels = pack.options(tolerate=1).map(order.items)
        if parcels is None:  # type: ignore[unreachable]
            raise AssertionError

    def joined(order: Order) -> None:
        found = settled_each(pack.map(order.items))
        if found is None:  # type: ignore[unreachable]
            raise AssertionError

    for fn, what in ((mapped, "parcels"), (joined, "found")):
        with pytest.raises(PlanTypeError, match=f"`is` sees the Ref {what}, never the value"):
            workflow(fn)


# -- zips, outcomes


def test_zip_is_written_by_the_parameter_of_the_step() -> None:
    """Constant lists of a zip are encoded by the tuple's own types; a NamedTuple takes a zip as well."""
    plan = drawn(lambda o: (place.map(zip_refs(o.items, [1, 2])), place_named.map(zip_refs([], o.anything))))  # type: ignore[arg-type]
    items = {"ref": "input", "path": ["order", "items"]}
    assert node(plan, "place")["args"] == {"placed": {"$": {"zip": [items, {"const": [1, 2]}]}}}
    assert node(plan, "place_named")["args"]["placed"]["$"]["zip"][0] == {"const": []}


def test_settled_each_reads_every_item_as_an_outcome() -> None:
    """settled_each() is a form of an argument; parts of it can be selected, and it can be mapped over."""

    @step
    def look(outcome: Outcome[Parcel]) -> None: ...

    @step
    def text(value: str | None) -> None: ...

    @workflow
    def flow(order: Order) -> str:
        outcomes = settled_each(pack.map(order.items))
        look.map(outcomes)
        look(outcomes[0])
        text(outcomes[1].value.sku)  # type: ignore[union-attr]
        text(outcomes[1].error.message)  # type: ignore[union-attr]
        say.after(outcomes)("done")
        return inspect_all(outcomes)

    each = [{"ref": "pack"}]
    assert node(flow.plan, "inspect_all")["args"] == {"found": {"$": {"settled_each": each}}}
    assert node(flow.plan, "look")["args"] == {"outcome": {"$": {"settled_each": each}}}
    assert node(flow.plan, "look-2")["args"] == {"outcome": {"$": {"settled_each": each, "path": [0]}}}
    assert node(flow.plan, "text")["args"]["value"]["$"]["path"] == [1, "value", "sku"]
    assert node(flow.plan, "text-2")["args"]["value"]["$"]["path"] == [1, "error", "message"]
    assert node(flow.plan, "say")["after"] == [{"settled_each": each}]
    plan = plan_from_text(flow.plan.text)
    assert plan.nodes[plan.index["say"]].terms == (Term(Need.PLAIN, (plan.index["pack"],)),)
    assert plan.nodes[plan.index["look-2"]].reads == (outcomes_code(plan.index["pack"]),)


def test_settled_each_and_tolerance_exclude_each_other() -> None:
    """A map that is read through settled_each() never fails, so a tolerance of its own would mean nothing."""

    def draw(order: Order) -> None:
        settled_each(pack.options(tolerate="5%").map(order.items))

    error = refused(draw, PlanError)
    assert error.problem == "settled_each() of <Ref pack>, which has tolerate='5%'"
    assert "leave one of them out" in error.advice
    assert refused(lambda o: settled_each(careful.map(o.items)), PlanError)


ERROR = StepError("ValueError", "too heavy", node="pack", item=1)


@pytest.mark.parametrize(
    ("outcome", "true", "error"),
    [
        (Outcome("completed", Parcel("a", 1.5)), {"ok"}, None),
        (Outcome("failed", error=ERROR), {"failed"}, ERROR),
        (Outcome("timed-out", error=ERROR), {"failed", "timed_out"}, ERROR),
        (Outcome("skipped"), {"skipped"}, None),
        (Outcome("cancelled"), {"cancelled"}, None),
    ],
)
def test_outcome_says_how_a_node_ended(outcome: Outcome[Parcel], true: set[str], error: StepError | None) -> None:
    """Its JSON comes back as it was; one predicate a state holds; the value is there exactly when it is ok."""
    payload = codec(Outcome[Parcel])
    text = payload.encode(outcome)
    assert payload.decode(text) == outcome
    assert json.loads(text).keys() == {"state", "value", "error"}
    predicates = ("ok", "failed", "skipped", "timed_out", "cancelled")
    assert {each for each in predicates if getattr(outcome, each)} == true
    assert outcome.error == error
    other = Parcel("none", 0)
    assert outcome.value_or(other) == (outcome.value if outcome.ok else other)
    if outcome.ok:
        assert outcome.unwrap() == Parcel("a", 1.5)
    else:
        with pytest.raises(OutcomeError) as caught:
            outcome.unwrap()
        assert (caught.value.state, caught.value.error) == (outcome.state, error)
        assert f"the node ended {outcome.state}" in str(caught.value)
        assert error is None or "ValueError: too heavy" in str(caught.value)


def test_outcome_keeps_a_value_that_is_none() -> None:
    """A step that returned None is told apart from one that has no value."""
    outcome = codec(Outcome[int | None]).decode('{"state": "completed", "value": null, "error": null}')
    assert outcome.ok
    assert outcome.unwrap() is None
    assert outcome.value_or(3) is None


def test_outcome_is_closed_and_typed() -> None:
    """An unknown state and a value of another type are refused."""
    for text in ('{"state": "lost"}', '{"state": "completed", "value": 3}'):
        with pytest.raises(PayloadError):
            codec(Outcome[Parcel]).decode(text)


def test_shape_of_a_plan_does_not_depend_on_the_options_of_its_maps() -> None:
    """A window or a tolerance can be corrected in runs that exist; another list is another shape."""

    def made(options: Any, items: Sequence[str]) -> Workflow[..., Any]:
        @workflow
        def flow(order: Order) -> None:
            name.options(**options).map(items)

        return flow

    one, two, three = made({}, ["a"]), made({"max_concurrency": 2}, ["a"]), made({}, ["b"])
    assert one.plan.shape == two.plan.shape != three.plan.shape
    assert one.plan.options_hash != two.plan.options_hash
