"""The likeliest mistakes of a first week: what each is told, where, and what to do about it."""

from __future__ import annotations

import asyncio
import math
import re
import warnings
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from composer import (
    AsyncClient,
    Client,
    IdempotencyConflict,
    PayloadError,
    PlanError,
    Retry,
    RunFailed,
    RunNotFound,
    RunNotRetryable,
    Settings,
    StoreUnavailable,
    Worker,
    step,
    step_context,
    workflow,
)
from composer.define.options import StepOptions
from composer.errors import PlanAttributeError, PlanTypeError, SchemaError, SettingsError
from composer.memory.store import MemoryStore
from composer.testing import run_workflow

HERE = Path(__file__)


@dataclass
class Order:
    id: str
    total: Decimal
    items: list[str]


@step
async def charge(order: Order) -> float:
    """An async step."""
    return 1.0


@step
def ship(amount: float) -> str:
    """A thread step."""
    return f"{amount}"


@workflow
def fulfil(order: Order, gift: bool = False) -> str:
    """Two steps."""
    return ship(charge(order))


@workflow
def counting(n: float) -> str:
    """One step."""
    return ship(n)


ORDER = Order("a", Decimal("1.10"), ["x"])


def here(mark: str) -> str:
    """file:line of the only line here that ends in this comment."""
    lines = [n for n, line in enumerate(HERE.read_text().splitlines(), 1) if line.rstrip().endswith(f"# {mark}")]
    assert len(lines) == 1, mark
    return f"{HERE}:{lines[0]}"


def told(error: BaseException, *parts: str, place: str = "") -> None:
    """The message has all these parts, and the place; it is short enough to be read."""
    text = str(error)
    for part in parts:
        assert part in text, text
    if place:
        assert place in text, text
    assert len(text.splitlines()) <= 5
    text.encode()


# -- while a workflow is built ------------------------------------------------------------------------------------


def test_awaiting_a_step_in_a_workflow() -> None:
    """`async def` for a workflow, or an await in it: the builder awaits nothing."""
    with pytest.raises(PlanError) as caught:

        @workflow  # async workflow
        async def wrong(order: Order) -> str:
            return ship(await charge(order))  # type: ignore[misc]

    told(caught.value, "workflow wrong is `async def`", "write `def`", place=here("async workflow"))


def test_calling_a_step_outside_of_a_workflow() -> None:
    """It says how to run the function, and how to run it durably; also inside another step."""
    with pytest.raises(PlanError) as caught:
        ship(1.0)  # call outside
    told(caught.value, "step ship() was called outside of a @workflow", "ship.fn(...)", place=here("call outside"))

    @step
    async def nested(n: int) -> float:
        return await charge(ORDER)  # type: ignore[misc]  # call in a step

    @workflow
    def nesting(n: int) -> float:
        return nested(n)

    result = asyncio.run(run_workflow(nesting, 1))
    with pytest.raises(RunFailed) as failed:
        _ = result.value
    assert "step charge() was called outside" in failed.value.message
    assert "await charge.fn(...)" in failed.value.message
    assert here("call in a step") in failed.value.message


def test_calling_a_workflow() -> None:
    """Outside of a builder, and as a step inside of one."""
    with pytest.raises(PlanError) as caught:
        fulfil(ORDER)  # workflow called
    told(
        caught.value, "workflow fulfil() was called outside", "client.start(fulfil.bind(", place=here("workflow called")
    )
    with pytest.raises(PlanError) as caught:

        @workflow
        def outer(order: Order) -> str:
            return fulfil(order)  # workflow as a step

    told(
        caught.value, "workflow fulfil() was called in the builder", "call the steps", place=here("workflow as a step")
    )


def test_deciding_on_a_value_that_is_not_there() -> None:
    """`if ref`, a comparison, a loop, an f-string: each names the ref and the way out."""

    def asks(order: Order) -> str:
        return ship(1.0) if order.total else ship(2.0)  # if ref

    def compares(order: Order) -> str:
        return ship(1.0) if order.total > 5 else ship(2.0)  # compare ref

    def loops(order: Order) -> str:
        return ship(float(sum(1 for _ in order.items)))  # loop over ref

    def formats(order: Order) -> str:
        return ship(float(f"{order.total}"))  # format ref

    for builder, problem, advice, mark in (
        (asks, "<Ref input.order.total> has no truth value", "decide inside a step", "if ref"),
        (compares, "<Expr input.order.total > 5> has no truth value", "`with when(...):`", "compare ref"),
        (loops, "<Ref input.order.items> cannot be iterated", "do the loop inside a step", "loop over ref"),
        (formats, "<Ref input.order.total> has no text", "Build text inside a step", "format ref"),
    ):
        with pytest.raises(PlanTypeError) as caught:
            workflow(builder)
        told(caught.value, problem, advice, place=here(mark))


def test_a_misspelt_field_of_a_result() -> None:
    """With the nearest that exists."""
    with pytest.raises(PlanAttributeError) as caught:

        @workflow
        def wrong(order: Order) -> str:
            return ship(order.totl)  # type: ignore[attr-defined]  # misspelt field

    told(caught.value, "Order has no field 'totl'", "Did you mean 'total'?", place=here("misspelt field"))


def test_a_missing_annotation() -> None:
    """Of a parameter and of the result."""
    with pytest.raises(PlanTypeError) as caught:

        @step  # no annotation
        def wrong(a) -> int:  # type: ignore[no-untyped-def]
            return 1

    told(caught.value, "parameter 'a' has no annotation", "`Any` means any JSON", place=here("no annotation"))
    with pytest.raises(PlanTypeError) as caught:

        @step  # no return
        def wrong_too(a: int):  # type: ignore[no-untyped-def]
            return 1

    told(caught.value, "no return annotation", "`-> None`", place=here("no return"))


def test_an_argument_that_is_no_json() -> None:
    """A constant of the wrong kind names step, parameter and type."""
    with pytest.raises(PlanTypeError) as caught:

        @workflow
        def wrong(order: Order) -> str:
            return ship(object())  # type: ignore[arg-type]  # constant

    told(caught.value, "ship(amount=...): <object", "cannot be a constant of type float", place=here("constant"))


def test_a_type_that_is_no_json() -> None:
    """A pool, a lock or a function in a signature is refused where it is written."""
    with pytest.raises(PlanTypeError) as caught:

        @step  # lock
        def wrong(lock: asyncio.Lock) -> int:
            return 1

    told(caught.value, "step wrong: lock is Lock, which JSON cannot carry", "use a dataclass", place=here("lock"))


def test_an_option_that_does_not_exist_or_cannot_be_read() -> None:
    """A typo gets the nearest name; "30 sec" the forms that are read."""
    with pytest.raises(PlanError) as caught:

        @step(retry=3)  # type: ignore[call-overload, misc]  # option typo
        def wrong(a: int) -> int:
            return 1

    told(caught.value, "step wrong has no option 'retry'", "Did you mean 'retries'?", place=here("option typo"))
    with pytest.raises(PlanError) as caught:

        @step(timeout="30 sec")  # timeout text
        def slow(a: int) -> int:
            return 1

    told(caught.value, "timeout: '30 sec' is no duration", '"30s" or "1h30m"', place=here("timeout text"))
    with pytest.raises(PlanError, match=r"attempts=0.*\n.*1 never retries"):
        Retry(attempts=0)
    assert "retries" in StepOptions.__annotations__


def test_two_steps_of_one_name() -> None:
    """Both places, and what to do; also when they meet only in a worker."""

    @step(name="charge")  # the other charge
    def other(order: Order) -> float:
        return 2.0

    with pytest.raises(PlanError) as caught:

        @workflow
        def wrong(order: Order) -> list[float]:
            return [charge(order), other(order)]  # both

    told(caught.value, "two steps named 'charge'", here("the other charge"), "@step(name=...)", place=here("both"))

    @workflow
    def one(order: Order) -> float:
        return other(order)

    with pytest.raises(PlanError, match=r"two steps are named 'charge'.*\n.*@step\(name=\.\.\.\)"):
        Worker([fulfil, one], Settings())


# -- at the client ------------------------------------------------------------------------------------------------


async def start(*args: Any, **options: Any) -> Any:
    async with AsyncClient(store=MemoryStore()) as client:
        return await client.start(*args, **options)  # starts here


@pytest.mark.anyio
async def test_wrong_arguments_to_start() -> None:
    """Too few, too many, of the wrong type, a step, an option that is a parameter: each says what is taken."""
    wrong: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception], tuple[str, ...]]] = [
        ((fulfil,), {}, PlanTypeError, ("missing a required argument: 'order'", "It takes (order: Order, gift: bool")),
        ((fulfil, ORDER, True, 3), {}, PlanTypeError, ("too many positional arguments", "It takes")),
        ((fulfil, {"id": "a"}), {}, PayloadError, ("workflow fulfil: order cannot be written as Order", "Field required")),
        ((counting, "3"), {}, PayloadError, ("workflow counting: n cannot be written as float", "'3'")),
        (
            (fulfil, Order("a", 1.1, [])), {}, PayloadError,  # type: ignore[arg-type]
            ("order cannot be written as Order: total: 1.1 would come back as Decimal('1.1')", "convert it"),
        ),
        ((charge, ORDER), {}, PlanTypeError, ("start() takes a @workflow or the name of one, not <step charge", "calls charge, and start that")),
        ((fulfil.fn, ORDER), {}, PlanTypeError, ("start() takes a @workflow or the name of one, not <function fulfil", "pass the workflow itself")),
        ((fulfil, ORDER), {"gift": True}, PlanTypeError, ("start() has no option 'gift'", "start(fulfil.bind(gift=...), ...)")),
        ((fulfil, ORDER), {"idempotencykey": "k"}, PlanTypeError, ("no option 'idempotencykey'", "Did you mean 'idempotency_key'?")),
        ((fulfil, ORDER), {"start_at": datetime(2030, 1, 1)}, PlanTypeError, ("has no time zone", "tzinfo=UTC")),
        ((fulfil, ORDER), {"delay": "tomorrow"}, PlanError, ("start(delay=...): 'tomorrow' is no duration", '"30s"')),
        ((fulfil, ORDER), {"priority": 1000}, PlanTypeError, ("priority=1000", "from -100 to 100; larger is sooner")),
        ((fulfil, ORDER), {"tags": {"n": 1}}, PlanTypeError, ("tags: 'n'=1", "names and values are text")),
    ]  # fmt: skip
    places = 0
    for args, options, kind, parts in wrong:
        with pytest.raises(kind) as caught:
            await start(*args, **options)
        told(caught.value, *parts)
        places += here("starts here") in str(caught.value)
        assert "threading.py" not in str(caught.value)
    assert places >= 10


def test_the_synchronous_client_in_a_running_loop() -> None:
    """It would block the loop, and says which class does not."""

    async def main() -> None:
        client = Client(settings=Settings(database_url="postgresql://nobody@127.0.0.1:1/none"))
        client.get("x")

    with pytest.raises(RuntimeError, match=r"Client was called from a running event loop.*use AsyncClient there"):
        asyncio.run(main())
    with pytest.raises(RuntimeError, match=r"not open: use it inside `with Client\(\) as client:`"):
        Client(settings=Settings()).get("x")


def test_the_context_outside_of_a_step() -> None:
    """A heartbeat in a plain function, or in the builder."""
    with pytest.raises(PlanError) as caught:
        step_context().heartbeat()  # no step
    told(
        caught.value,
        "step_context() was called outside of a running step",
        "pass it what it needs",
        place=here("no step"),
    )


@pytest.mark.anyio
async def test_a_wrong_database_url() -> None:
    """Unreadable, of another library, of a server that is not there; a password is never repeated."""
    for url, parts in (
        ("postgres//app:secret@db/app", ("database_url begins with", "expected postgresql://user:password@host")),
        ("postgresql+asyncpg://app:secret@db/app", ("leave out '+asyncpg'", "SQLAlchemy")),
        ("mysql://app:secret@db/app", ("begins with 'mysql'", "expected postgresql://")),
    ):
        with pytest.raises(SettingsError) as caught:
            AsyncClient(url)
        told(caught.value, *parts)
        assert "secret" not in str(caught.value)
    with pytest.raises(StoreUnavailable) as away:
        async with AsyncClient("postgresql://app:secret@127.0.0.1:1/app"):
            pass
    told(away.value, "not available while connecting", "is it running there, and is the database URL right?")
    assert "secret" not in str(away.value)
    with pytest.raises(SettingsError, match="unknown settings: databaseurl; did you mean 'database_url'"):
        AsyncClient(databaseurl="x")


@pytest.mark.anyio
async def test_a_database_that_was_not_migrated(empty_database: str) -> None:
    """Names the command that helps."""
    with pytest.raises(SchemaError) as caught:
        async with AsyncClient(empty_database):
            pass
    told(caught.value, "schema 'composer' lacks everything", "run `composer migrate` with this database's URL")


@pytest.mark.anyio
async def test_a_key_used_twice_and_runs_that_are_not_there(database: str, namespace: str) -> None:
    """Conflict, unknown id, retry of a run that is not failed."""
    async with AsyncClient(settings=Settings(database_url=database, namespace=namespace)) as client:
        run = await client.start(counting, 1.0, idempotency_key="k")
        with pytest.raises(IdempotencyConflict) as conflict:
            await client.start(counting, 2.0, idempotency_key="k")
        told(conflict.value, run.id, "holds the idempotency key 'k', with another input", "use another key")
        for bad in ("nonsense", "0" * 32):
            with pytest.raises(RunNotFound) as missing:
                await client.get(bad)
            told(
                missing.value,
                bad[:8],
                "does not exist in namespace",
                "Check the id, the database URL and the namespace",
            )
        with pytest.raises(RunNotRetryable) as wrong:
            await client.retry(run.id)
        told(wrong.value, "is running, and only a failed run can be retried")


# -- what a step returns or raises --------------------------------------------------------------------------------


@step
async def forgets_await(n: int) -> int:  # forgets await
    return anyio.lowlevel.checkpoint()  # type: ignore[return-value]


@step
async def nan_in_any(n: int) -> Any:
    return {"rate": [math.nan]}


@step
async def decimal_as_float(n: int) -> float:
    return Decimal("1.10")  # type: ignore[return-value]


@step
async def gives_tuple(n: int) -> list[int]:
    return (1, 2)  # type: ignore[return-value]


@step
async def gives_file(n: int) -> dict[str, Any]:
    return {"file": print}


@step
async def gives_nothing(n: int) -> int:
    pass  # type: ignore[return]


RETURNS: list[tuple[Any, tuple[str, ...]]] = [
    (forgets_await, ("step forgets_await: its result cannot be written as int", "has no JSON (coroutine)", "put `await` before")),
    (nan_in_any, ("rate[0]: nan would come back as 'NaN'", "annotate it as float")),
    (decimal_as_float, ("Decimal('1.10') would come back as 1.1 (Decimal and float)", "convert it")),
    (gives_tuple, ("(1, 2) would come back as [1, 2] (tuple and list)", "convert it")),
    (gives_file, ("file: <built-in function print> has no JSON", "make it inside the step")),
    (gives_nothing, ("cannot be written as int", "got None")),
]  # fmt: skip


@pytest.mark.anyio
@pytest.mark.parametrize(("wrong", "parts"), RETURNS, ids=lambda each: getattr(each, "name", ""))
async def test_a_result_that_is_not_what_was_promised(wrong: Any, parts: tuple[str, ...]) -> None:
    """The run fails at once; its error names step, path, values and where the step is written."""

    def one(n: int) -> Any:
        return wrong(n)

    one.__annotations__["return"] = wrong.result
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the coroutine that nobody awaited
        result: Any = await run_workflow(workflow(one), 1)
    with pytest.raises(RunFailed) as caught:
        _ = result.value
    told(caught.value, *parts, f"failed at node '{wrong.name}' (attempt 1) [payload]", "client.retry(run_id)")
    assert re.search(rf"at {re.escape(str(HERE))}:\d+", str(caught.value))


@pytest.mark.anyio
async def test_the_result_of_a_failed_run() -> None:
    """It says node, attempt, type, text and causes, and how to go on; the traceback shows the user's line."""

    @step
    async def parse(n: int) -> int:
        try:
            return int("x")
        except ValueError as error:
            raise LookupError("no number") from error  # raised here

    @workflow
    def parsing(n: int) -> int:
        return parse(n)

    result = await run_workflow(parsing, 1)
    with pytest.raises(RunFailed) as caught:
        _ = result.value
    told(
        caught.value,
        "of workflow 'parsing' failed at node 'parse' (attempt 1) [error]: LookupError: no number",
        "caused by ValueError: invalid literal for int()",
        "client.retry(run_id) resumes it where it stopped",
    )
    file, line = here("raised here").rsplit(":", 1)
    assert f'"{file}", line {line}' in caught.value.traceback
