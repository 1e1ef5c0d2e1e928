"""when, otherwise, sleep, sleep_until, wait_for_event and race: the nodes they make, and what is refused while drawing."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, Field, NaiveDatetime

from composer import (
    either,
    is_none,
    maybe,
    otherwise,
    race,
    settled,
    sleep,
    sleep_until,
    step,
    wait_for_event,
    when,
    workflow,
)
from composer.core.plan import Plan, plan_from_text
from composer.define.lint import problems
from composer.errors import PlanError

HERE = __file__


@dataclass
class Order:
    id: str
    total: int
    express: bool
    due: datetime
    naive: NaiveDatetime
    delay: float
    pause: timedelta
    price: Decimal
    anything: Any


class Approval(BaseModel):
    """What a person answers."""

    granted: bool = Field(description="yes or no")
    title: str = "none"


@dataclass
class Plain:
    text: str


@step
def charge(order: Order) -> str: ...


@step
def ship(text: str | None) -> str: ...


@step
def note(at: datetime) -> None: ...


@step
def decide(approval: Approval | None) -> str: ...


def node(plan: Plan, name: str) -> dict[str, Any]:
    return next(each for each in plan.body["nodes"] if each["name"] == name)


def drawn(draw: Callable[[Order], Any], **options: Any) -> Plan:
    def flow(order: Order) -> None:
        draw(order)

    return workflow(**options)(flow).plan


def refused(draw: Callable[[Order], Any], kind: type[PlanError] = PlanError) -> PlanError:
    with pytest.raises(kind) as caught:
        drawn(draw)
    assert caught.value.where.startswith(f"{HERE}:")
    return caught.value


# -- when and otherwise


def test_condition_of_a_block_is_a_guard_and_its_nodes_depend_on_the_answer() -> None:
    """`when` is a node of kind guard; nodes inside run on true, those of `otherwise` on false; others do not care."""

    @workflow
    def flow(order: Order) -> str:
        with when(order.express, name="fast"):
            a = charge(order)
            ship(a)
        between = charge(order)
        with otherwise():
            b = charge(order)
        ship(between)
        return either(a, b)

    plan = plan_from_text(flow.plan.text)
    assert node(plan, "fast") == {
        "name": "fast",
        "kind": "guard",
        "args": {"condition": {"$": {"ref": "input", "path": ["order", "express"]}}},
    }
    assert node(plan, "charge")["when"] == node(plan, "ship")["when"] == [{"guard": "fast", "is": True}]
    assert node(plan, "charge-3")["when"] == [{"guard": "fast", "is": False}]
    assert "when" not in node(plan, "charge-2")
    assert "when" not in node(plan, "ship-2")
    names = [each["name"] for each in plan.body["nodes"]]
    assert names.index("fast") < names.index("charge") < names.index("ship")


def test_else_if_is_a_guard_under_the_first() -> None:
    """otherwise(condition) is asked only where the one above said no; the last otherwise only where all did."""

    @workflow
    def flow(order: Order) -> str:
        with when(order.total > 10):
            a = charge(order)
        with otherwise(order.total > 5, order.express, name="middle"):
            b = charge(order)
        with otherwise():
            c = charge(order)
        return either(a, b, c)

    plan = flow.plan
    assert node(plan, "charge")["when"] == [{"guard": "when", "is": True}]
    assert node(plan, "middle")["when"] == [{"guard": "when", "is": False}]
    assert node(plan, "middle")["args"]["condition"]["$"]["op"] == "and"
    assert node(plan, "charge-2")["when"] == [{"guard": "middle", "is": True}]
    assert node(plan, "charge-3")["when"] == [{"guard": "middle", "is": False}]


def test_blocks_nest() -> None:
    """An inner guard stands in the outer block; nodes name the innermost guard, which holds only if the outer does."""

    def draw(order: Order) -> None:
        with when(order.express):
            with when(order.total > 3):
                charge(order)
            with otherwise():
                charge(order)
            sleep(1)
        with otherwise(), when(order.total > 5):
            charge(order)

    plan = drawn(draw)
    assert node(plan, "when-2")["when"] == [{"guard": "when", "is": True}]
    assert node(plan, "charge")["when"] == [{"guard": "when-2", "is": True}]
    assert node(plan, "charge-2")["when"] == [{"guard": "when-2", "is": False}]
    assert node(plan, "sleep")["when"] == [{"guard": "when", "is": True}]
    assert node(plan, "when-3")["when"] == [{"guard": "when", "is": False}]
    assert node(plan, "charge-3")["when"] == [{"guard": "when-3", "is": True}]


def test_maps_and_waits_stand_in_blocks_too() -> None:
    """Whatever kind a node has, it depends on the block it is made in."""

    def draw(order: Order) -> None:
        with when(order.express):
            charge.map([order])
            wait_for_event("go", int)

    plan = drawn(draw)
    assert node(plan, "charge")["when"] == node(plan, "go")["when"] == [{"guard": "when", "is": True}]


def otherwise_alone(order: Order) -> None:
    with otherwise():
        charge(order)


def otherwise_twice(order: Order) -> None:
    with when(order.express):
        charge(order)
    with otherwise():
        charge(order)
    with otherwise():
        charge(order)


def otherwise_inside(order: Order) -> None:
    with when(order.express):
        charge(order)
        with otherwise():
            charge(order)


def not_entered(order: Order) -> None:
    when(order.express)
    charge(order)


def entered_twice(order: Order) -> None:
    block = when(order.express)
    with block:
        charge(order)
    with block:
        charge(order)


def otherwise_kept(order: Order) -> None:
    with when(order.express):
        charge(order)
    one, two = otherwise(), otherwise()
    with one:
        charge(order)
    with two:
        charge(order)


def named_otherwise(order: Order) -> None:
    with when(order.express):
        charge(order)
    with otherwise(name="x"):
        charge(order)


def constant(order: Order) -> None:
    with when(order.id is None):
        charge(order)


def bad_name(order: Order) -> None:
    with when(order.express, name="a b"):
        charge(order)


def same_name(order: Order) -> None:
    with when(order.express, name="charge"):
        charge(order)


@pytest.mark.parametrize(
    ("draw", "text"),
    [
        (otherwise_alone, "otherwise() has no when() to belong to\n  It follows a `with when(...):` block"),
        (otherwise_twice, "the when() above has its otherwise() already"),
        (otherwise_inside, "otherwise() has no when() to belong to"),
        (not_entered, "a when() or otherwise() was made and not entered\n  Write: with when(...):"),
        (entered_twice, "a block is entered once"),
        (otherwise_kept, "the when() above has its otherwise() already"),
        (named_otherwise, "otherwise(name='x')\n  Without a condition it has no node to name."),
        (constant, "when() got the constant False: that was answered while the workflow is built"),
        (bad_name, "when(name='a b'): 'a b' is no name"),
        (same_name, "a node of flow cannot be named 'charge', which is taken"),
    ],
)
def test_blocks_that_make_no_sense_are_refused(draw: Callable[[Order], None], text: str) -> None:
    """A lone or second otherwise, a block that is not entered or entered twice, and constants are refused."""
    if draw is same_name:

        def again(order: Order) -> None:
            same_name(order)
            with when(order.express, name="charge"):
                pass

        assert text in str(refused(again))
    else:
        assert text in str(refused(draw))


def test_error_inside_a_block_is_the_users_own() -> None:
    """What is raised in a block passes through it."""

    def draw(order: Order) -> None:
        with when(order.express):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        drawn(draw)


# -- what can never run, and what may not be there


def other_branch(order: Order) -> str:
    with when(order.express):
        a = charge(order)
    with otherwise():
        return ship(a)


def other_branch_far(order: Order) -> str:
    with when(order.express):
        a = charge(order)
    with otherwise():
        b = charge(order)
    far = ship(ship(a))
    return decide_both(far, b)


def other_guard(order: Order) -> None:
    with when(order.express):
        a = charge(order)
    with otherwise(), when(a == "x"):
        charge(order)


def else_if_of_first(order: Order) -> None:
    with when(order.express):
        a = charge(order)
    with otherwise(order.total > 1):
        charge(order)
    with otherwise():
        ship(a)


def either_never(order: Order) -> None:
    with when(order.express):
        with when(order.total > 3):
            a = charge(order)
        with otherwise():
            b = charge(order)
    with otherwise():
        ship(either(a, b))


def both_outside(order: Order) -> str:
    return either(charge(order), charge(order))


def both_in_one_branch(order: Order) -> None:
    with when(order.express):
        a, b = charge(order), charge(order)
    ship(either(a, b))


def both_of_two_conditions(order: Order) -> None:
    with when(order.express):
        a = charge(order)
    with when(order.total > 3):
        b = charge(order)
    ship(either(a, b))


def returns_branch(order: Order) -> str:
    with when(order.total > 3):
        return charge(order)


def returns_reader(order: Order) -> dict[str, str]:
    with when(order.total > 3):
        a = charge(order)
    with otherwise():
        charge(order)
    return {"a": ship(a)}


def returns_reader_of_either(order: Order) -> str:
    with when(order.total > 3):
        a = charge(order)
    with otherwise(order.express):
        b = charge(order)
    return ship(either(a, b))


def returns_what_a_race_may_lose(order: Order) -> Any:
    answer = wait_for_event("go", int)
    race(answer, sleep(60))
    return answer


@step
def decide_both(a: str, b: str) -> str: ...


@pytest.mark.parametrize(
    ("draw", "text"),
    [
        (other_branch, "ship can never run: it needs charge, which is skipped whenever ship is not\n  charge is at "),
        (other_branch_far, "decide_both can never run: it needs charge-2, which is skipped whenever decide_both is not"),
        (other_guard, "when-2 can never run: it needs charge, which is skipped whenever when-2 is not"),
        (else_if_of_first, "ship can never run: it needs charge, which"),
        (either_never, "ship can never run: nothing of either(charge, charge-2) is there when it could"),
        (both_outside, "either() in the result of flow: both charge and charge-2 can complete\n  either() joins branches"),
        (both_in_one_branch, "either() in ship: both charge and charge-2 can complete"),
        (both_of_two_conditions, "either(a, b, overlap=True)"),
        (returns_branch, "workflow flow returns the result of charge, which can be skipped\n  It runs only if input.order.total > 3;"),
        (returns_reader, "workflow flow returns the result of ship, which can be skipped\n  It runs only if input.order.total > 3;"),
        (returns_reader_of_either, "workflow flow returns the result of ship, which can be skipped\n  Neither of charge, charge-2"),
        (returns_what_a_race_may_lose, "workflow flow returns the result of go, which can be skipped\n  It runs only if go comes first;"),
    ],
)  # fmt: skip
def test_plans_that_would_skip_or_choose_silently_are_refused(draw: Callable[[Order], Any], text: str) -> None:
    """A node that can never run, an either() of two values, and a result that may be missing are refused with the way out."""

    def flow(order: Order) -> Any:
        return draw(order)

    with pytest.raises(PlanError) as caught:
        workflow(flow)
    assert text in str(caught.value)
    assert caught.value.where.startswith(f"{HERE}:")


def test_branches_that_meet_again_are_fine() -> None:
    """either over all branches, maybe, settled, after, and readers within the branch are accepted."""

    @workflow
    def flow(order: Order) -> tuple[str, str | None, str, str]:
        with when(order.express):
            a = charge(order)
            inner = ship(a)
            with when(order.total > 3):
                deep = ship(inner)
            with otherwise():
                flat = ship(inner)
        with otherwise(order.total > 7):
            c = charge(order)
        with otherwise():
            d = ship.after(a, settled(inner))(maybe(a))
            note(sleep(1, after=a))
        both = ship(either(deep, flat, c, d))
        return either(a, c, d), maybe(deep), both, either(deep, flat, charge(order), overlap=True)

    assert len(flow.plan.nodes) > 10


def test_either_inside_of_its_own_branch_covers_it() -> None:
    """What one branch makes of an either() of that branch's own sub-branches counts as always there in it."""

    @workflow
    def flow(order: Order) -> str:
        with when(order.express):
            with when(order.total > 3):
                a = charge(order)
            with otherwise():
                b = charge(order)
            x = ship(either(a, b))
        with otherwise():
            y = charge(order)
        return ship(either(x, y))

    assert problems(flow.plan) == []


def test_long_chains_of_else_if_are_looked_through() -> None:
    """A chain of 150 conditions is neither too deep nor too slow to be found complete."""

    @workflow
    def flow(order: Order) -> str:
        with when(order.total > 0):
            taken = [charge(order)]
        for i in range(1, 150):
            with otherwise(order.total > -i):
                taken.append(charge(order))
        with otherwise():
            taken.append(charge(order))
        first, second, *rest = taken
        return ship(either(first, second, *rest))

    assert problems(flow.plan) == []


# -- sleeps


@pytest.mark.parametrize(
    ("duration", "kept"),
    [
        (60, 60),
        (60.0, 60),
        ("1m", 60),
        (timedelta(minutes=1), 60),
        (0.25, 0.25),
        ("250ms", 0.25),
        (0, 0),
        (100 * 365 * 86_400, 3_153_600_000),
    ],
)
def test_sleep_is_kept_in_seconds(duration: Any, kept: float) -> None:
    """One spelling for equal durations, from none to a century."""
    found = node(drawn(lambda _: sleep(duration)), "sleep")
    assert found == {"name": "sleep", "kind": "sleep", "args": {"for": kept}}
    assert type(found["args"]["for"]) is type(kept)


def test_sleeps_take_values_of_the_run() -> None:
    """A duration or a moment may come from the run; the value of a sleep is the moment it ended."""

    def draw(order: Order) -> None:
        charged = charge(order)
        first = sleep(order.delay, after=charged)
        note(first)
        sleep(order.pause, after=(charged, first), name="second")
        sleep(order.anything)
        sleep_until(order.due)
        sleep_until(datetime(2030, 1, 2, 3, tzinfo=timezone(timedelta(hours=2))), after=[charged])

    plan = drawn(draw)
    assert node(plan, "sleep")["args"] == {"for": {"$": {"ref": "input", "path": ["order", "delay"]}}}
    assert node(plan, "sleep")["after"] == [{"ref": "charge"}]
    assert node(plan, "note")["args"]["at"] == {"$": {"ref": "sleep"}}
    assert node(plan, "second")["args"] == {"for": {"$": {"ref": "input", "path": ["order", "pause"]}}}
    assert node(plan, "second")["after"] == [{"ref": "charge"}, {"ref": "sleep"}]
    assert node(plan, "sleep_until")["args"] == {"until": {"$": {"ref": "input", "path": ["order", "due"]}}}
    assert node(plan, "sleep_until-2")["args"] == {"until": "2030-01-02T03:00:00+02:00"}
    assert node(plan, "sleep_until-2")["after"] == [{"ref": "charge"}]


@pytest.mark.parametrize(
    ("draw", "text"),
    [
        (lambda _: sleep(-1), "sleep(): -1 is out of range\n  Expected a finite duration of at least 0 s."),
        (lambda _: sleep(math.nan), "sleep(): nan is out of range"),
        (lambda _: sleep(math.inf), "sleep(): inf is out of range"),
        (lambda _: sleep(timedelta(days=40_000)), "at most 3.16224e+09 s (a century)"),
        (lambda _: sleep("soon"), "sleep(): 'soon' is no duration"),
        (lambda _: sleep(None), "sleep(): None is no duration"),
        (lambda o: sleep(o.id), "sleep() takes seconds, or a timedelta, not <Ref input.order.id>, of type str"),
        (lambda o: sleep(o.express), "sleep() takes seconds, or a timedelta, not <Ref input.order.express>, of type bool"),
        (lambda o: sleep(o.price), "sleep() takes seconds, or a timedelta"),
        (lambda o: sleep(o.due), "sleep() takes seconds, or a timedelta"),
        (lambda _: sleep_until(datetime(2030, 1, 1)), "sleep_until() takes a datetime with a time zone, not datetime.datetime"),
        (lambda _: sleep_until("2030-01-01T00:00:00Z"), "not '2030-01-01T00:00:00Z'"),
        (lambda o: sleep_until(o.naive), "sleep_until() takes a datetime with a time zone, not <Ref input.order.naive>"),
        (lambda o: sleep_until(o.delay), "not <Ref input.order.delay>, of type float"),
        (lambda o: sleep(1, after=o.id), "sleep(after=...) takes results of earlier nodes, not <Ref input.order.id>"),
        (lambda _: sleep(1, after="charge"), "sleep(after=...) takes results of earlier nodes, not 'charge'"),
        (lambda _: sleep(1, name="a b"), "sleep(name='a b'): 'a b' is no name"),
        (lambda o: (sleep(1, name="x"), sleep(1, name="x")), "Give this one another name: name=..."),
    ],
)  # fmt: skip
def test_sleeps_that_cannot_be_are_refused(draw: Callable[[Any], Any], text: str) -> None:
    """Durations and moments that are none, naive ones, and orders on what is no node are refused at the user's line."""
    assert text in str(refused(draw))


# -- events


def test_wait_names_its_event_its_schema_and_its_answer() -> None:
    """A wait carries what a signal is checked by; words that are only shown are not in it, so that plans stay equal."""

    def draw(order: Order) -> None:
        approval = wait_for_event("approval", Approval, timeout="48h", on_timeout=Approval(granted=False))
        decide(approval)
        wait_for_event("approval", Approval | None, timeout=0.5, on_timeout=None, after=approval)
        wait_for_event("number", int, name="other")
        wait_for_event("number", list[int], timeout=timedelta(days=1), on_timeout=[])

    plan = drawn(draw)
    assert node(plan, "approval") == {
        "name": "approval",
        "kind": "wait",
        "event": "approval",
        "args": {},
        "schema": {
            "type": "object",
            "properties": {"granted": {"type": "boolean"}, "title": {"type": "string"}},
            "required": ["granted"],
        },
        "timeout": 172_800,
        "on_timeout": {"const": {"granted": False, "title": "none"}},
    }
    second = node(plan, "approval-2")
    assert (second["timeout"], second["on_timeout"], second["after"]) == (0.5, {"const": None}, [{"ref": "approval"}])
    assert "$ref" in str(second["schema"])
    assert "title" in second["schema"]["$defs"]["Approval"]["properties"]
    other = node(plan, "other")
    assert (other["event"], other["timeout"], other["schema"]) == ("number", None, {"type": "integer"})
    assert "on_timeout" not in other
    assert node(plan, "number")["on_timeout"] == {"const": []}


def test_wait_for_none_or_a_value_is_typed_so() -> None:
    """on_timeout=None makes the value optional, whatever the event's type."""

    def draw(order: Order) -> None:
        late = wait_for_event("approval", Approval, timeout=1, on_timeout=None)
        with when(is_none(late)):
            charge(order)
        sure = wait_for_event("sure", Approval)
        with when(is_none(sure)):
            charge(order)

    assert "is_none() of <Ref sure>, of type Approval, can never be true" in str(refused(draw))


@pytest.mark.parametrize(
    ("draw", "text"),
    [
        (lambda _: wait_for_event("a b", int), "wait_for_event(): 'a b' is no name"),
        (lambda _: wait_for_event("a", "int"), "wait_for_event('a'): 'int' is text, not a type"),
        (lambda _: wait_for_event("a", Callable), "wait_for_event('a'): its payload is"),
        (lambda _: wait_for_event("a", int, timeout=0), "wait_for_event('a'): 0 is out of range"),
        (lambda _: wait_for_event("a", int, on_timeout=1), "wait_for_event('a') has on_timeout and no timeout"),
        (lambda _: wait_for_event("a", int, timeout=1, on_timeout="x"), "on_timeout='x' is no int\n  Input should be a valid integer"),
        (lambda o: wait_for_event("a", int, timeout=1, on_timeout=o.total), "on_timeout is a constant, not <Ref input.order.total>"),
        (lambda o: wait_for_event("a", Approval, timeout=1, on_timeout=Plain(o.id)), "on_timeout is a constant, not Plain(text="),
        (lambda o: wait_for_event("a", int, timeout=o.delay), "wait_for_event('a'): <Ref input.order.delay> is no duration"),
        (lambda o: wait_for_event("a", int, after=o.delay), "a(after=...) takes results of earlier nodes"),
    ],
)  # fmt: skip
def test_waits_that_cannot_be_are_refused(draw: Callable[[Any], Any], text: str) -> None:
    """An event without a name, a payload without JSON, and answers that do not fit are refused at the user's line."""
    assert text in str(refused(draw))


# -- races


def test_race_is_a_node_of_its_own() -> None:
    """A race names the waits and sleeps in it, and its value is one of theirs."""

    @workflow
    def flow(order: Order) -> str:
        answer = wait_for_event("go", Approval)
        late = sleep("2d")
        first = race(answer, late, name="who")
        charge.after(first)(order)
        with when(is_none(maybe(answer))):
            ship("late")
        a = decide(answer)
        b = ship(say_when(late))
        return either(a, b)

    who = node(flow.plan, "who")
    assert who == {"name": "who", "kind": "race", "of": [{"ref": "go"}, {"ref": "sleep"}], "args": {}}
    names = [each["name"] for each in flow.plan.body["nodes"]]
    assert names.index("who") > max(names.index("go"), names.index("sleep"))
    assert node(flow.plan, "charge")["after"] == [{"ref": "who"}]
    assert problems(flow.plan) == []


@step
def say_when(at: datetime) -> str: ...


def race_across_blocks(order: Order) -> None:
    with when(order.express):
        a = sleep(1)
    race(a, sleep(2))


def race_twice(order: Order) -> None:
    a = sleep(1)
    race(a, sleep(2))
    race(a, sleep(3))


@pytest.mark.parametrize(
    ("draw", "text"),
    [
        (
            lambda o: race(charge(o), sleep(1)),
            "race() cannot take <Ref charge>\n  It is between results of wait_for_event()",
        ),
        (lambda o: race(o.due, sleep(1)), "race() cannot take <Ref input.order.due>"),
        (lambda _: race(sleep(1)), "race() is between two or more"),
        (lambda _: race(wait_for_event("a", Approval).title, sleep(1)), "race() cannot take <Ref a.title>"),
        (lambda _: race(1, sleep(1)), "race() cannot take 1"),
        (race_twice, "<Ref sleep> is in a race already"),
        (race_across_blocks, "race() of <Ref sleep>, which is in another block"),
    ],
)
def test_races_that_cannot_be_are_refused(draw: Callable[[Any], Any], text: str) -> None:
    """Only waits and sleeps of one block race, each once."""
    assert text in str(refused(draw))


@pytest.mark.parametrize(
    "call",
    [
        lambda: when(True),
        lambda: otherwise(),
        lambda: sleep(1),
        lambda: sleep_until(datetime(2030, 1, 1, tzinfo=UTC)),
        lambda: wait_for_event("a", int),
        lambda: race(1, 2),
    ],
)
def test_blocks_belong_to_a_builder(call: Callable[[], Any]) -> None:
    """Outside of a workflow function they say where they belong."""
    with pytest.raises(PlanError, match=r"\(\) was called outside of a @workflow function"):
        call()


# -- lints


def test_doubtful_plans_are_listed() -> None:
    """Idle sleeps, empty blocks, endless waits, times past the deadline, shared events and missing outputs are found."""

    def draw(order: Order) -> Any:
        sleep(5)
        with when(order.express):
            pass
        wait_for_event("go", int)
        wait_for_event("go", int)

    found = problems(drawn(draw))
    assert {(each.code, each.node) for each in found} == {
        ("idle-sleep", "sleep"),
        ("empty-block", "when"),
        ("waits-for-ever", "go"),
        ("waits-for-ever", "go-2"),
        ("one-event-two-waits", "go-2"),
    }
    assert all(each.where.startswith(f"{HERE}:") for each in found)
    assert "[idle-sleep]" in str(next(each for each in found if each.node == "sleep"))

    @workflow(timeout="1h")
    def late(order: Order) -> str:
        with when(order.express):
            a = charge.after(sleep("2h"), wait_for_event("go", int, timeout="3h"))(order)
        with otherwise(order.total > 3):
            b = charge(order)
        return either(a, b)

    codes = [(each.code, each.node) for each in problems(late.plan)]
    assert codes == [("past-the-deadline", "go"), ("past-the-deadline", "sleep"), ("no-output", "")]


def test_plans_without_doubt_have_no_problems() -> None:
    """Waits in other branches or one after the other, sleeps that something follows, and full branches are no problem."""

    @workflow(timeout="30d")
    def flow(order: Order) -> str:
        first = wait_for_event("go", int, timeout="1h")
        wait_for_event("go", int, timeout="1h", after=first)
        with when(order.express):
            wait_for_event("stop", int)
            a = charge.after(sleep("2h"))(order)
        with otherwise():
            wait_for_event("stop", int)
            b = charge(order)
        return either(a, b)

    assert problems(flow.plan) == []
