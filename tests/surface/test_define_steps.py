"""@step: what is refused where it is defined, what a step knows, and how its payloads go in and out."""

import functools
import inspect
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any, TypeVar, cast

import pytest

from composer.core.plan import NodeOptions
from composer.core.retries import NO_RETRY, Retry
from composer.define.step import AsyncStep, Step, SyncStep, step
from composer.define.workflow import workflow
from composer.errors import PayloadError, PlanError, PlanTypeError

T = TypeVar("T")
HERE = __file__


@dataclass
class Order:
    id: str
    total: Decimal


@dataclass
class Receipt:
    amount: Decimal


@step(retries=2, timeout="10s")
async def charge(order: Order, note: str = "none", *, gift: bool = False) -> Receipt:
    """Takes the money."""
    return Receipt(order.total)


@step
def pack(count: int, /, size: str = "s") -> list[int]:
    return [count]


@step
def tick() -> None:
    return None


def line_of(text: str) -> int:
    """Number of the only line of this file that ends in the comment `# text`."""
    with open(HERE, encoding="utf-8") as file:
        found = [number for number, line in enumerate(file, 1) if line.rstrip().endswith(f"# {text}")]
    assert len(found) == 1, found
    return found[0]


# -- what a step is -----------------------------------------------------------------------------------------------


def test_a_step_keeps_name_docstring_signature_and_function() -> None:
    assert isinstance(charge, AsyncStep)
    assert isinstance(pack, SyncStep)
    assert (charge.name, charge.__name__, charge.__doc__) == ("charge", "charge", "Takes the money.")
    assert charge.module == __name__
    assert (charge.is_async, pack.is_async) == (True, False)
    assert list(inspect.signature(charge).parameters) == ["order", "note", "gift"]
    assert pack.fn(3) == [3]
    assert repr(charge) == "<step charge(order: Order, note: str = 'none', *, gift: bool = False) -> Receipt>"


def test_calling_a_step_outside_of_a_builder_says_how_to_run_the_function() -> None:
    with pytest.raises(PlanError) as caught:
        charge(Order("a", Decimal(1)))  # outside
    assert str(caught.value) == (
        "step charge() was called outside of a @workflow function\n"
        "  To run the function itself, in a test or in another step: await charge.fn(...). "
        "To run it durably: a @workflow.\n"
        f"  at {HERE}:{line_of('outside')} in {inspect.currentframe().f_code.co_name}"
    )
    with pytest.raises(PlanError, match=r": pack\.fn\(\.\.\.\)"):
        pack(3)


# -- options ------------------------------------------------------------------------------------------------------


def test_options_become_node_options_with_durations_in_seconds() -> None:
    @step(
        name="x-1",
        retries=Retry(attempts=5, delay=0.5),
        timeout=timedelta(minutes=1),
        heartbeat_timeout="1m30s",
        heartbeat="manual",
        queue="gpu",
        priority=-100,
        on_crash="fail",
        compensate_on="started",
    )
    def all_of_them() -> None: ...

    assert all_of_them.name == "x-1"
    assert all_of_them.policy == NodeOptions(
        retries=Retry(attempts=5, delay=0.5),
        timeout=60.0,
        heartbeat_timeout=90.0,
        heartbeat="manual",
        queue="gpu",
        priority=-100,
        on_crash="fail",
        compensate_on="started",
    )
    assert NodeOptions.from_json(all_of_them.policy.as_json()) == all_of_them.policy


def test_retries_count_the_tries_after_the_first_and_types_stay_live() -> None:
    assert charge.retries == Retry(attempts=3)
    assert tick.retries == NO_RETRY
    assert charge.options(retries=0).retries == NO_RETRY

    @step(retries=Retry(no_retry_on=(KeyError,)))
    def picky() -> None: ...

    assert picky.retries.no_retry_on == (KeyError,)


def test_options_at_a_node_leave_the_step_alone() -> None:
    changed = charge.options(queue="eu", timeout=None)
    assert (changed.policy.queue, changed.policy.timeout) == ("eu", None)
    assert changed.policy.retries == charge.policy.retries
    assert (charge.policy.queue, charge.policy.timeout) == ("default", 10.0)
    assert isinstance(changed, AsyncStep)


BAD_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"retires": 3}, "has no option 'retires'\n  Did you mean 'retries'?"),
    ({"retries": -1}, "retries=-1\n  Tries after the first"),
    ({"retries": True}, "retries=True"),
    ({"retries": None}, "Retry(attempts=None) for ever"),
    ({"timeout": 0}, "timeout: 0 is out of range"),
    ({"timeout": "soon"}, "timeout: 'soon' is no duration"),
    ({"heartbeat_timeout": float("nan")}, "heartbeat_timeout: nan is out of range"),
    ({"heartbeat": "never"}, "'auto' or 'manual'"),
    ({"queue": "gpu:2"}, "'gpu:2' is no name"),
    ({"queue": ""}, "'' is no name"),
    ({"priority": 101}, "-100 to 100"),
    ({"priority": 1.0}, "priority=1.0"),
    ({"on_crash": "ignore"}, "'retry' or 'fail'"),
    ({"concurrency": 1}, "concurrency"),
    ({"rate_limit": "10/s"}, "rate_limit"),
    ({"compensate_on": "failed"}, "'completed' or 'started'"),
]


@pytest.mark.parametrize(("options", "text"), BAD_OPTIONS, ids=lambda each: str(each)[:40])
def test_a_bad_option_is_refused_with_step_option_and_line(options: dict[str, Any], text: str) -> None:
    def define() -> None:
        @step(**options)  # bad option
        def f() -> None: ...

    with pytest.raises(PlanError) as caught:
        define()
    assert text in str(caught.value)
    assert "step f" in str(caught.value)
    assert f"{HERE}:{line_of('bad option')}" in caught.value.where
    with pytest.raises(PlanError, match="step tick") as caught:
        tick.options(**options)
    assert text in str(caught.value)


def test_options_refuses_a_name_and_points_to_named() -> None:
    with pytest.raises(PlanError, match=r"tick\.named\('second'\)"):
        tick.options(name="second")


@pytest.mark.parametrize("name", ["a b", "", "x" * 201, "a/b", 3])
def test_a_bad_name_is_refused(name: Any) -> None:
    with pytest.raises(PlanError, match="is no name"):
        tick.named(name)
    with pytest.raises(PlanError, match="is no name"):
        step(name=name)(tick.fn)


# -- functions that are no steps ----------------------------------------------------------------------------------


class Service:
    def method(self, a: int) -> int:
        return a


async def a_generator() -> AsyncIterator[int]:
    yield 1


def no_annotation(a) -> int:
    return 1


def no_result(a: int):
    return 1


def variadic(*args: int) -> int:
    return 1


def keywords(**kwargs: int) -> int:
    return 1


def generic(a: T) -> T:
    return a


def later(a: "Later") -> int:  # noqa: F821
    return 1


def no_json(a: Service) -> int:
    return 1


def bad_default(a: int = "x") -> int:
    return 1


NO_STEPS: list[tuple[Any, str]] = [
    (Service.method, "a method cannot be a step"),
    (staticmethod(tick.fn), "Put @staticmethod away"),
    (Service, "takes a function"),
    (functools.partial(tick.fn), "takes a function"),
    (lambda: None, "on a lambda"),
    (a_generator, "a generator has no single result"),
    (no_annotation, "parameter 'a' has no annotation"),
    (no_result, "no return annotation"),
    (variadic, "*args: int has no fixed names"),
    (keywords, "**kwargs: int has no fixed names"),
    (generic, "a type variable says nothing"),
    (later, "the annotation 'Later' is not defined yet"),
    (no_json, "a is Service, which JSON cannot carry"),
    (bad_default, "the default 'x' of 'a' does not fit int"),
    ("charge", "@step(name='charge')"),
    (tick, "decorated already"),
]


@pytest.mark.parametrize(("fn", "text"), NO_STEPS, ids=[text for _, text in NO_STEPS])
def test_what_cannot_be_a_step_is_refused_with_advice(fn: Any, text: str) -> None:
    with pytest.raises(PlanError) as caught:
        step(fn)
    assert text in str(caught.value)
    assert HERE in caught.value.where


def test_types_local_to_a_function_are_found() -> None:
    @dataclass
    class Local:
        a: int

    @step
    def f(a: "Local") -> "list[Local]":
        return [a]

    assert f.types["a"] is Local
    assert f.decode_arguments('{"a": {"a": 1}}') == ((Local(1),), {})


# -- undo ---------------------------------------------------------------------------------------------------------


def test_an_undo_takes_the_result_alone_or_with_the_arguments() -> None:
    @step
    def book(a: int, *, b: str) -> Receipt: ...

    @book.compensate
    async def cancel(receipt: Receipt, a: int, *, b: str) -> None: ...

    @step
    def hold(a: int) -> Receipt: ...

    @hold.compensate
    def release(receipt: Receipt) -> None: ...

    assert book.undo is not None
    assert hold.undo is not None
    assert (book.undo.fn, book.undo.takes, book.undo.is_async) == (cancel, "all", True)
    assert (hold.undo.fn, hold.undo.takes, hold.undo.is_async) == (release, "result", False)
    assert hold.options(queue="x").undo is hold.undo

    with pytest.raises(PlanError, match="whose undo would not run"):

        @workflow
        def both(a: int) -> Receipt:
            hold(a)
            return book(a, b="x")


def wrong_order(order: Order, receipt: Receipt) -> None: ...


def other_names(receipt: Receipt, order: Order, text: str, gift: bool) -> None: ...


def other_type(receipt: int) -> None: ...


def nothing() -> None: ...


@pytest.mark.parametrize("undo", [wrong_order, other_names, other_type, nothing, tick])
def test_an_undo_of_another_shape_is_refused(undo: Any) -> None:
    fresh = step(charge.fn)
    with pytest.raises(PlanTypeError, match="the undo of charge"):
        cast(Any, fresh).compensate(undo)


def test_a_second_undo_and_one_after_the_use_are_refused() -> None:
    @step
    def book(a: int) -> int: ...

    @workflow
    def uses(a: int) -> int:
        return book(a)  # first use

    with pytest.raises(PlanError, match=f"comes after a workflow.*\n.*:{line_of('first use')} in uses"):

        @book.compensate
        def late(result: int) -> None: ...

    again = step(book.fn)

    @again.compensate
    def one(result: int) -> None: ...

    with pytest.raises(PlanError, match="has an undo already"):

        @again.compensate
        def two(result: int) -> None: ...


# -- payloads -----------------------------------------------------------------------------------------------------


def test_arguments_come_by_name_and_leave_as_the_signature_wants_them() -> None:
    args, kwargs = charge.decode_arguments('{"gift": true, "order": {"id": "a", "total": "1.5"}, "note": "hi"}')
    assert (args, kwargs) == ((Order("a", Decimal("1.5")), "hi"), {"gift": True})
    assert pack.decode_arguments('{"size": "xl", "count": 2}') == ((2, "xl"), {})
    assert pack.fn(*pack.decode_arguments(b'{"count": 2, "size": "s"}')[0]) == [2]
    assert tick.decode_arguments("{}") == ((), {})


def test_an_argument_that_an_older_plan_does_not_have_takes_its_default() -> None:
    args, kwargs = charge.decode_arguments('{"order": {"id": "a", "total": "1"}, "gift": true}')
    assert (args, kwargs) == ((Order("a", Decimal(1)), "none"), {"gift": True})


BAD_ARGUMENTS = [
    (charge, "{}", "step charge: its arguments do not fit (order: Order"),
    (charge, "{}", "order: Field required"),
    (charge, '{"order": {"id": "a", "total": "x"}}', "order.total: Input should be a valid decimal, got 'x'"),
    (charge, '{"order": {"id": "a", "total": "1"}, "note": "", "old": 1}', "old: Extra inputs are not permitted"),
    (pack, '{"count": "many"}', "count: Input should be a valid integer"),
    (tick, '{"a": 1}', "it takes no arguments"),
]


@pytest.mark.parametrize(("of", "text", "reason"), BAD_ARGUMENTS)
def test_arguments_that_do_not_fit_name_step_path_and_type(of: Step[..., Any], text: str, reason: str) -> None:
    with pytest.raises(PayloadError) as caught:
        of.decode_arguments(text)
    assert reason in str(caught.value)
    assert f"step {of.name}" in str(caught.value)


def test_unknown_keys_inside_an_argument_are_the_types_own_affair() -> None:
    assert charge.decode_arguments('{"order": {"id": "a", "total": "1", "new": 1}}')[0][0] == Order("a", Decimal(1))


def test_a_result_that_does_not_fit_names_step_type_and_path() -> None:
    assert charge.encode_result(Receipt(Decimal("1.50"))) == '{"amount":"1.50"}'
    assert charge.decode_result('{"amount":"1.50"}') == Receipt(Decimal("1.50"))
    assert tick.encode_result(None) == "null"
    with pytest.raises(PayloadError, match=re.escape("step charge: its result cannot be written as Receipt: amount: ")):
        charge.encode_result(Receipt("abc"))
    with pytest.raises(PayloadError, match="step tick: its result cannot be written as None"):
        tick.encode_result(3)
    with pytest.raises(PayloadError, match="step charge: its result cannot be read as Receipt: amount: Field required"):
        charge.decode_result("{}")
