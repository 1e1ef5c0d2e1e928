# pyright: strict
"""Correct uses of the define layer: neither checker has anything to say about this file."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, assert_type

from pydantic import BaseModel

from composer import (
    AroundStep,
    AsyncClient,
    AsyncRunHandle,
    Client,
    Lifespan,
    Outcome,
    RunHandle,
    Worker,
    all_of,
    any_of,
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
from composer.core.retries import Retry
from composer.define.context import StepContext, step_context
from composer.define.step import AsyncStep, SyncStep, step
from composer.define.workflow import Startable, Workflow, workflow
from composer.testing import crash_everywhere, run_workflow


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
    code: str


@dataclass
class Label:
    text: str


@step
async def charge(order: Order) -> Receipt:
    return Receipt(order.total, "x")


@charge.compensate
async def refund(receipt: Receipt, order: Order) -> None: ...


@step(retries=Retry(attempts=5, delay=0.5, max_delay="30s"), timeout="10s", queue="eu", priority=3)
def pack(item: Item, box: str = "s", *, fragile: bool = False) -> Label:
    return Label(item.sku)


@pack.compensate
def unpack(label: Label) -> None: ...


@step(heartbeat="manual", heartbeat_timeout=timedelta(seconds=30), retries=2, on_crash="fail", timeout=None)
async def ship(receipt: Receipt, labels: list[Label]) -> Label:
    context = step_context()
    assert_type(context, StepContext)
    assert_type(context.heartbeat_details(int, default=0), int)
    assert_type(context.heartbeat_details(int), int | None)
    assert_type(context.heartbeat_details(list[Label], default=None), list[Label] | None)
    assert_type(context.heartbeat_details(int | str, default=b""), int | str | bytes)
    for done in range(context.heartbeat_details(int, default=0), len(labels)):
        context.heartbeat(done)
    context.check_cancelled()
    context.log.info("attempt %s", context.attempt)
    return labels[0]


@step(name="audit-1", compensate_on="started")
def audit(at: datetime | None, text: str) -> None: ...


@step
async def add(numbers: list[float], by: float = 1) -> float:
    return sum(numbers) * by


@step
def place(placed: tuple[Item, int], shelf: str) -> Label:
    return Label(f"{placed[0].sku} {placed[1]} {shelf}")


@step
async def inspect(found: list[Outcome[Label]]) -> str:
    assert_type(found[0].value, Label | None)
    assert_type(found[0].value_or(3), Label | int)
    assert_type(found[0].unwrap(), Label)
    return "; ".join(each.error.message for each in found if each.error is not None)


@step
def look(outcome: Outcome[Label]) -> bool:
    return outcome.ok and not outcome.timed_out


one: AsyncStep[[Order], Receipt] = charge


@workflow
def fulfil(order: Order) -> Label:
    receipt = charge(order)
    assert_type(receipt, Receipt)
    assert_type(receipt.amount, Decimal)
    assert_type(order.items[0].sku, str)
    first = pack(order.items[0], "xl", fragile=True)
    second = pack.options(queue="us", retries=0, timeout=timedelta(minutes=1))(item=order.items[1])
    third = pack.named("third")(Item("x"))
    audit.after(first, second)(None, order.id)
    add([1, 2.5], by=3)
    labels = pack.options(max_concurrency=10, tolerate="5%").map(order.items, "xl", fragile=True)
    assert_type(labels, list[Label])
    assert_type(labels[0].text, str)
    assert_type(pack.map([Item("a")]), list[Label])
    assert_type(pack.map((Item("a"), order.items[0])), list[Label])
    assert_type(charge.named("each").after(first).map([order]), list[Receipt])
    assert_type(zip_refs(order.items, [1, 2]), list[tuple[Item, int]])
    assert_type(place.map(zip_refs(order.items, [1, 2]), shelf="a"), list[Label])
    assert_type(zip_refs([1], ["a"], [b""], [1.0], [None]), list[tuple[int, str, bytes, float, None]])
    outcomes = settled_each(pack.map(order.items))
    assert_type(outcomes, list[Outcome[Label]])
    assert_type(inspect(outcomes), str)
    assert_type(look.map(outcomes), list[bool])
    return ship(receipt, [first, second, third])


@workflow(name="other", timeout="3d", fail_fast=True)
def other(count: int, *, scale: float = 1.0, text: str = "a") -> float:
    return add([count], by=scale)


@dataclass
class Approval:
    granted: bool
    by: str = ""


class Message(BaseModel):
    to: str
    text: str = "hi"


@step
def send(message: Message) -> None: ...


@step
def ask(outcome: Outcome[Receipt], note: str | None, placed: datetime | Approval | None = None) -> Label:
    return Label(note or "")


@workflow
def decide(order: Order, *, due: datetime, delay: float, codes: dict[str, int]) -> Label | None:
    receipt = charge(order)
    with when(order.total > 1_000, order.note != "x"):
        approval = wait_for_event(
            "approval", Approval, timeout="48h", on_timeout=Approval(granted=False), after=receipt
        )
        assert_type(approval, Approval)
        a = ask(settled(receipt), approval.by)
    with otherwise(any_of(order.note == "b", not_(is_none(order.note))), name="noted"):
        number = wait_for_event("number", list[int])
        assert_type(number, list[int])
        b = pack.after(number)(order.items[0])
    with otherwise():
        c = pack(order.items[0])
    assert_type(either(a, b, c), Label)
    assert_type(either(a, receipt, overlap=True), Label | Receipt)
    assert_type(maybe(a), Label | None)
    assert_type(settled(receipt), Outcome[Receipt])
    assert_type(settled(receipt).failed, bool)
    optional = wait_for_event("maybe", Approval, timeout=60, on_timeout=None)
    assert_type(optional, Approval | None)
    assert_type(wait_for_event("union", int | str), int | str)
    late = sleep(delay)
    assert_type(late, datetime)
    sleep("1h", after=(receipt, late), name="pause")
    answer, end = wait_for_event("answer", Approval), sleep_until(due, after=receipt)
    first = race(answer, end)
    assert_type(first, Approval | datetime)
    ask(settled(receipt), order.note, first)
    with when(all_of(size(order.items) > 3, contains(["a", "b"], order.id)) | contains(codes, "a")):
        send(build(Message, to=order.id))
        send(build(Message, to=order.id, text="b"))
    with when(settled(receipt).timed_out & (receipt.amount == 3), is_none(maybe(answer))):
        assert_type(build(Receipt, order.total, code="x"), Receipt)
    return maybe(a)


two: Workflow[[Order], Label] = fulfil
assert_type(other.bind(3, scale=4), Workflow[[], float])
assert_type(fulfil.decode_result("null"), Label)


async def in_a_test(order: Order) -> None:
    assert_type(await charge.fn(order), Receipt)
    assert_type(pack.fn(order.items[0], fragile=True), Label)


def takes_startable(workflow: Startable[Callable[[Order], Label]]) -> None: ...


def takes_steps(one: AsyncStep[[Order], Receipt], two: SyncStep[..., Label]) -> None: ...


takes_startable(fulfil)
takes_steps(charge, pack)
builder: Callable[[Order], Label] = fulfil.fn
undo: Callable[[Receipt, Order], Awaitable[None] | None] = refund


def with_a_client(client: Client, order: Order) -> None:
    handle = client.start(fulfil, order, idempotency_key="k", priority=5, tags={"shop": "eu"}, delay="5s")
    assert_type(handle, RunHandle[Label])
    assert_type(handle.result(timeout=60).text, str)
    assert_type(client.start(other, 3).result(), float)
    assert_type(client.start(other, 3, within=object()), RunHandle[float])
    assert_type(client.start_many(other, [(3,)], within=object()), list[RunHandle[float]])
    assert_type(client.start(other.bind(3, scale=2.0)).result(), float)
    assert_type(client.start_many(fulfil, [(order,), (order,)])[0].result(), Label)
    assert_type(client.handle(fulfil, "id").result(), Label)
    assert_type(client.handle("fulfil", "id"), RunHandle[Any])
    assert_type(client.start("fulfil", {"order": order}), RunHandle[Any])
    assert_type(client.start("nightly", delay="1h").id, str)
    assert_type(client.start_many("fulfil", [{"order": order}], tags={"a": "b"}), list[RunHandle[Any]])
    assert_type(
        [run.error_code for run in client.runs(fulfil, status=["failed"], since=datetime.now())], list[str | None]
    )
    assert_type([run.id for run in client.runs("fulfil", status="failed", tags={"a": "b"})], list[str])
    assert_type([change.node for change in handle.watch(after_version=3)], list[str | None])
    assert_type([node.is_stuck for node in client.explain(handle.id).nodes], list[bool])
    assert_type(client.get(handle.id).status, str)
    assert_type(client.cancel(handle.id, reason="x").accepted, bool)
    assert_type([each.node for each in client.retry(handle.id, dry_run=True).reset_steps], list[str])


async def with_an_async_client(client: AsyncClient, order: Order) -> None:
    handle = await client.start(fulfil, order)
    assert_type(handle, AsyncRunHandle[Label])
    assert_type(await handle.result(), Label)
    assert_type(await client.start("fulfil", {"order": order}, priority=3), AsyncRunHandle[Any])
    assert_type(await client.start_many("fulfil", [{"order": order}]), list[AsyncRunHandle[Any]])
    assert_type([run.tags async for run in client.runs(fulfil)], list[Mapping[str, str]])
    assert_type([change.version async for change in client.watch(handle.id)], list[int])
    assert_type((await handle.explain()).text, str)
    result = await run_workflow(fulfil, order, replace={charge: fake_charge, pack: fake_charge}, crash=ship)
    assert_type(result.value, Label)
    assert_type((await crash_everywhere(other, 1))[0].value, float)


async def fake_charge(order: Order) -> Receipt:
    return Receipt(order.total, "fake")


# -- what stands around steps


@lifespan
async def resources() -> AsyncIterator[Receipt]:
    yield Receipt(Decimal(1), "x")


@asynccontextmanager
async def own() -> AsyncGenerator[int]:
    yield 1


@around_step
async def tenants(ctx: StepContext, call: Callable[[], Awaitable[Any]]) -> Any:
    assert_type(ctx.run_id, str)
    return await call()


@step(isolation="process", timeout="1m")
def compute(number: int) -> int:
    receipt: Receipt = step_context().resources
    return number + int(receipt.amount)


assert_type(resources, Lifespan[Receipt])
assert_type(tenants, AroundStep)
three: SyncStep[[int], int] = compute


async def with_a_worker(order: Order) -> None:
    assert_type(resources(), AbstractAsyncContextManager[Receipt])
    async with resources() as opened, Worker([fulfil], lifespan=resources, around=[tenants]) as worker:
        assert_type(opened, Receipt)
        assert_type(worker.drain(), None)
    Worker([fulfil], lifespan=own, processes=2)
    await run_workflow(fulfil, order, resources=opened, around=[tenants])
