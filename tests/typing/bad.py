# ruff: noqa: B018
"""Mistakes, one a line: the comment says which checker finds it.

What the types cannot see is refused while the workflow is built: tests/surface/test_define_workflows.py.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

from composer import (
    AsyncClient,
    Client,
    Outcome,
    StepContext,
    Worker,
    all_of,
    around_step,
    build,
    contains,
    either,
    is_none,
    lifespan,
    maybe,
    not_,
    otherwise,
    race,
    settled,
    settled_each,
    size,
    sleep,
    sleep_until,
    wait_for_event,
    when,
    zip_refs,
)
from composer.define.context import step_context
from composer.define.step import step
from composer.define.workflow import Startable, workflow
from composer.testing import run_workflow


@dataclass
class Item:
    sku: str


@dataclass
class Order:
    id: str
    total: Decimal
    items: list[Item]
    note: str | None = None


@dataclass
class Receipt:
    amount: Decimal


@step
async def charge(order: Order) -> Receipt:
    return Receipt(order.total)


@step
def pack(item: Item, box: str = "s", *, fragile: bool = False) -> str:
    return box


@step
def notify(text: str) -> None: ...


@step
def total(values: list[Decimal]) -> Decimal:
    return sum(values, Decimal(0))


# -- arguments and wires


@workflow
def wires(order: Order) -> str:
    receipt = charge(order)
    charge(order.items)  # E: mypy pyright
    charge()  # E: mypy pyright
    charge(order, 1)  # E: mypy pyright
    charge(ordr=order)  # E: mypy pyright
    charge("x")  # E: mypy pyright
    pack(receipt)  # E: mypy pyright
    pack(order.items[0], 3)  # E: mypy pyright
    pack(order.items[0], "s", True)  # E: mypy pyright
    pack(order.items[0], fragil=True)  # E: mypy pyright
    pack(order.items)  # E: mypy pyright
    notify(order.note)  # E: mypy pyright
    notify(order.total)  # E: mypy pyright
    total(order.items)  # E: mypy pyright
    total([order.id])  # E: mypy pyright
    notify(order.idd)  # E: mypy pyright
    notify(receipt.amout)  # E: mypy pyright
    notify(order.items.sku)  # E: mypy pyright
    notify(order.items["a"])  # E: mypy pyright
    notify(order["id"])  # E: mypy pyright
    notify(order.id())  # E: mypy pyright
    return pack(order.items[0])


@workflow
def wrong_result(order: Order) -> str:
    return charge(order)  # E: mypy pyright


@workflow
def awaits(order: Order) -> Receipt:
    return await charge(order)  # E: mypy pyright


# -- maps


@step
def place(placed: tuple[Item, int]) -> str:
    return placed[0].sku


@step
def inspect(found: list[Outcome[str]]) -> str:
    return found[0].value  # E: mypy pyright


@workflow
def maps(order: Order) -> list[str]:
    pack.map(order.items[0])  # E: mypy pyright
    pack.map(order.id)  # E: mypy pyright
    notify.map(order.id)  # E: mypy pyright
    pack.map(["a"])  # E: mypy pyright
    charge.map(order.items)  # E: mypy pyright
    pack.map()  # E: mypy pyright
    pack.map(item=order.items)  # E: mypy pyright
    pack.map(order.items, 3)  # E: mypy pyright
    pack.map(order.items, bix="m")  # E: mypy pyright
    pack.map(order.items, max_concurrency=3)  # E: mypy pyright
    pack.options(max_concurrency="3").map(order.items)  # E: mypy pyright
    pack.options(tolerate=0.05).map(order.items)  # E: mypy pyright
    notify(pack.map(order.items))  # E: mypy pyright
    pack.map(order.items).sku  # E: mypy pyright
    zip_refs(order.items)  # E: mypy pyright
    zip_refs(order.id, order.items)  # E: mypy pyright
    place.map(zip_refs(order.items, ["a"]))  # E: mypy pyright
    place.map(zip_refs([1], order.items))  # E: mypy pyright
    settled_each(order.id)  # E: mypy pyright
    inspect(settled_each(order.items))  # E: mypy pyright
    inspect(pack.map(order.items))  # E: mypy pyright
    settled_each(pack.map(order.items))[0].valu  # E: mypy pyright
    return settled_each(pack.map(order.items))  # E: mypy pyright


# -- conditions, blocks, joins


@dataclass
class Approval:
    granted: bool


@workflow
def language(order: Order, receipt: Receipt) -> str:
    when(order.items)  # E: mypy pyright
    when(order.note)  # E: mypy pyright
    when(~(order.total > 1))  # E: mypy pyright
    when(order.total > "1")  # E: mypy pyright
    when(order.items > 3)  # E: mypy pyright
    when(order.total > 1, order.id)  # E: mypy pyright
    when()  # E: mypy pyright
    otherwise(order.id)  # E: mypy pyright
    all_of(order.id)  # E: mypy pyright
    not_(order.items)  # E: mypy pyright
    not_(order.note == "a", order.note == "b")  # E: mypy pyright
    size(order.total)  # E: mypy pyright
    size(order.items) > "3"  # E: mypy pyright
    contains(order.total, 1)  # E: mypy pyright
    when(size(order.items))  # E: mypy pyright
    with when(order.total > 1):
        approval = wait_for_event("approval", Approval, timeout="1h")
    approval.grnted  # E: mypy pyright
    notify(approval)  # E: mypy pyright
    wait_for_event(Approval, "approval")  # E: mypy pyright
    wait_for_event("approval")  # E: mypy pyright
    wait_for_event("approval", 3)  # E: mypy pyright
    wait_for_event("approval", Approval, timeot="1h")  # E: mypy pyright
    wait_for_event("approval", Approval, on_timeout=None)  # E: mypy pyright
    wait_for_event("approval", Approval, timeout=b"1h")  # E: mypy pyright
    notify(wait_for_event("text", str, timeout=1, on_timeout=None))  # E: mypy pyright
    sleep()  # E: mypy pyright
    sleep(order.items)  # E: mypy pyright
    sleep(timedelta(1), timedelta(2))  # E: mypy pyright
    sleep_until("2030-01-01")  # E: mypy pyright
    notify(sleep(1))  # E: mypy pyright
    notify(race(approval, sleep(1)))  # E: mypy pyright
    race(approval)  # E: mypy pyright
    either(order)  # E: mypy pyright
    charge(either(order, receipt))  # E: mypy pyright
    charge(maybe(order))  # E: mypy pyright
    maybe(receipt).amount  # E: mypy pyright
    charge(settled(order))  # E: mypy pyright
    settled(receipt).vale  # E: mypy pyright
    settled(receipt).value.amount  # E: mypy pyright
    when(settled(receipt).error)  # E: mypy pyright
    is_none()  # E: mypy pyright
    build(Receipt)  # E: mypy pyright
    build(Receipt, amont=order.total)  # E: mypy pyright
    build(Receipt, amount=order.id)  # E: mypy pyright
    charge(build(Receipt, amount=order.total))  # E: mypy pyright
    return either(receipt, order)  # E: mypy pyright


# -- options


@workflow
def options(order: Order) -> None:
    charge.options(timout=3)(order)  # E: mypy pyright
    charge.options(retries="3")(order)  # E: mypy pyright
    charge.options(priority=1.5)(order)  # E: mypy pyright
    charge.options(heartbeat="never")(order)  # E: mypy pyright
    charge.options(queue=None)(order)  # E: mypy pyright
    charge.options(timeout=3)("x")  # E: mypy pyright
    charge.options("eu")(order)  # E: mypy pyright
    charge.named(3)(order)  # E: mypy pyright
    charge.named("x")()  # E: mypy pyright
    charge.after(after=order)(order)  # E: mypy pyright


@step(retires=3)  # E: mypy pyright
def misspelt() -> None: ...


@step(on_crash="ignore")  # E: mypy pyright
def no_choice() -> None: ...


@step(timeout=b"10s")  # E: mypy pyright
def no_duration() -> None: ...


@workflow(timeot=timedelta(days=1))  # E: mypy pyright
def misspelt_too() -> None: ...


@workflow(fail_fast="yes")  # E: mypy pyright
def no_bool() -> None: ...


# -- undo


@charge.compensate  # E: mypy pyright
async def wrong_order(order: Order, receipt: Receipt) -> None: ...


@charge.compensate  # E: mypy pyright
async def wrong_type(receipt: str) -> None: ...


@pack.compensate  # E: mypy pyright
def without_a_keyword(label: str, item: Item, box: str) -> None: ...


@pack.compensate  # E: mypy pyright
def gives_something(label: str) -> int:
    return 1


# -- the plain functions, the context


async def elsewhere(order: Order) -> None:
    charge.fn(order)  # E: mypy pyright
    await charge.fn("x")  # E: mypy pyright
    await charge(order)  # E: mypy pyright
    pack.fn(order)  # E: mypy pyright
    pack.fn(order.items[0]).sku  # E: mypy pyright
    (await charge.fn(order)).amout  # E: mypy pyright
    range(step_context().heartbeat_details(int))  # E: mypy pyright
    range(step_context().heartbeat_details(str, default=0))  # E: mypy pyright
    step_context().attempts  # E: mypy pyright


# -- workflows as values


def start(workflow: Startable[Callable[[Order], str]]) -> None: ...


start(wires)
start(charge)  # E: mypy pyright
start(wires.fn)  # E: mypy pyright
start(awaits)  # E: mypy pyright
wires.bind()  # E: mypy pyright
wires.bind("x")  # E: mypy pyright
wires.bind(order="x")  # E: mypy pyright
wires.bind(Order("a", Decimal(1), []), gift=True)  # E: mypy pyright
wires.decode_result("").sku  # E: mypy pyright


# -- clients


async def clients(client: Client, other: AsyncClient, order: Order) -> None:
    client.start(wires)  # E: mypy pyright
    client.start(wires, "x")  # E: mypy pyright
    client.start(wires, order, order)  # E: mypy pyright
    client.start(wires, order, idempotency_kye="k")  # E: mypy pyright
    client.start(wires, order, priority="high")  # E: mypy pyright
    client.start(charge, order)  # E: mypy pyright
    client.start(wires.fn, order)  # E: mypy pyright
    client.start(wires, order).result().sku  # E: mypy pyright
    client.start(wires, order).result(60)  # E: mypy pyright
    client.start_many(wires, [(1,)])  # E: mypy pyright
    client.start_many(wires, [order])  # E: mypy pyright
    client.start("wires", order)  # E: mypy pyright
    client.start("wires", {"order": order}, {"order": order})  # E: mypy pyright
    client.start("wires", order={})  # E: mypy pyright
    client.start_many("wires", [(order,)])  # E: mypy pyright
    client.runs(charge)  # E: mypy pyright
    client.runs(since="yesterday")  # E: mypy pyright
    client.watch("x").version  # E: mypy pyright
    client.explain("x").node  # E: mypy pyright
    client.cancel(1)  # E: mypy pyright
    client.get("x").state  # E: mypy pyright
    (await other.start(wires, order)).result().upper  # E: mypy pyright
    await other.start(wires, 3)  # E: mypy pyright
    await run_workflow(wires, 3)  # E: mypy pyright
    (await run_workflow(wires, order)).value.sku  # E: mypy pyright
    await run_workflow(wires, order, replace={"charge": charge.fn})  # E: mypy pyright


# -- what stands around steps


@lifespan  # E: mypy pyright
async def coroutine() -> int:
    return 1


@lifespan  # E: mypy pyright
async def needs(url: str) -> AsyncIterator[int]:
    yield 1


@around_step  # E: mypy pyright
def plain(ctx: StepContext, call: Callable[[], Awaitable[Any]]) -> None: ...


@around_step  # E: mypy pyright
async def too_few(ctx: StepContext) -> Any: ...


step(isolation="proces")  # E: mypy pyright
Worker([wires], lifespan=wires)  # E: mypy pyright
Worker([wires], around=[charge])  # E: mypy pyright
