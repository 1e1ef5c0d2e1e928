"""Starts by name: what a process without the workflow's code can start, and what it is told when it cannot."""

from __future__ import annotations

import json
import pickle
from collections.abc import AsyncIterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import anyio
import pytest

from composer import (
    AsyncClient,
    Client,
    IdempotencyConflict,
    PayloadError,
    RunFailed,
    Settings,
    UnknownWorkflow,
    step,
    workflow,
)
from composer.errors import PlanTypeError
from composer.memory.store import MemoryStore
from composer.postgres.store import PostgresStore
from tests.contract.driver import a_chain, a_plan
from tests.working import working

pytestmark = pytest.mark.anyio


@dataclass
class Order:
    """What is ordered."""

    sku: str
    price: Decimal


@step
async def billed(order: Order, copies: int) -> Order:
    """The order, so many times."""
    return Order(order.sku, order.price * copies)


@workflow
def fulfil(order: Order, copies: int = 2, *, note: str | None = None) -> Order:
    """One step."""
    return billed(order, copies)


@workflow
def nightly() -> int:
    """No parameters."""
    return 7


@pytest.fixture
async def client() -> AsyncIterator[AsyncClient]:
    """A client in memory, where both workflows are known and nobody works."""
    store = MemoryStore()
    await store.register_plan(fulfil.plan)
    await store.register_plan(nightly.plan)
    async with AsyncClient(store=store) as client:
        yield client


async def test_a_start_by_name_runs_the_workflow(database: str, namespace: str) -> None:
    """Objects go in as JSON, defaults are filled in, and the result comes as plain JSON; the sync client does the same."""
    async with working(database, namespace, [fulfil, nightly]) as site:
        order = Order("a", Decimal("1.50"))
        async with AsyncClient(database, namespace=namespace) as client:
            run = await client.start("fulfil", {"order": order}, tags={"team": "x"})
            assert await run.result(timeout=10) == {"sku": "a", "price": "3.00"}
            view = await run.get()
            assert (view.workflow, view.input) == (
                "fulfil",
                {"order": {"sku": "a", "price": "1.50"}, "copies": 2, "note": None},
            )
            typed = client.handle(fulfil, run.id)
            assert await typed.result() == Order("a", Decimal("3.00"))

        def blocking() -> list[Any]:
            with Client(settings=Settings(database_url=database, namespace=namespace)) as client:
                raw = {"order": {"sku": "b", "price": "1"}, "copies": 3}
                runs = [client.start("nightly"), *client.start_many("fulfil", [raw, {**raw, "note": "!"}])]
                return [run.result(timeout=10) for run in (*runs, client.handle("nightly", runs[0].id))]

        assert await anyio.to_thread.run_sync(blocking) == [7, *[{"sku": "b", "price": "3"}] * 2, 7]
        assert await site.verified() == []


async def test_a_value_that_fits_no_step_fails_the_run(database: str, namespace: str) -> None:
    """The plan holds no types: what does not fit is found by the step that reads it, and the failure says so."""
    async with working(database, namespace, [fulfil]) as site:
        run = await site.client.start("fulfil", {"order": "a"})
        with pytest.raises(RunFailed, match="order") as caught:
            await run.result(timeout=10)
        assert (caught.value.node, caught.value.attempt) == ("billed", 1)


async def test_a_key_means_the_same_by_name_and_by_workflow(client: AsyncClient) -> None:
    """The same key and input give one run, whether it is started by name or with the workflow; another input is refused."""
    typed = await client.start(fulfil, Order("a", Decimal("1.50")), idempotency_key="k")
    named = await client.start("fulfil", {"order": {"price": "1.50", "sku": "a"}}, idempotency_key="k")
    assert (named.id, named.created) == (typed.id, False)
    with pytest.raises(IdempotencyConflict, match="fulfil"):
        await client.start("fulfil", {"order": {"price": "1.51", "sku": "a"}}, idempotency_key="k")
    many = await client.start_many("fulfil", [{"order": 1}, {"order": 2}], idempotency_keys=["a", "b"])
    assert len({run.id for run in many}) == 2


async def test_an_unknown_name_is_refused_with_close_ones(client: AsyncClient) -> None:
    """The error names the namespace and what was probably meant, keeps the facts, and survives a pickle."""
    with pytest.raises(UnknownWorkflow) as caught:
        await client.start("fulfill", {"order": 1})
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.code, error.workflow, error.namespace, error.known) == (
        "unknown-workflow",
        "fulfill",
        "default",
        ("fulfil", "nightly"),
    )
    assert "Did you mean 'fulfil'?" in str(error)
    with pytest.raises(UnknownWorkflow) as caught:
        await client.start("zzz")
    assert "Did you mean" not in str(caught.value)


async def test_a_name_that_no_database_can_hold_is_just_unknown(database: str, namespace: str) -> None:
    """NUL and half a surrogate pair in a name are no error of the database."""
    async with AsyncClient(database, namespace=namespace) as client:
        for name in ("a\0b", "\ud800", ""):
            with pytest.raises(UnknownWorkflow):
                await client.start(name)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (({"order": 1}, {"copies": 1}), "not by position"),
        ((Order("a", Decimal(1)),), "not by position"),
        ((["a"],), "not by position"),
        (({"order": 1, "copie": 3},), "no parameter 'copie'"),
        (({"order": 1, 7: 3},), "no parameter 7"),
        (({"copies": 3},), "'order' not given"),
        ((), "'order' not given"),
    ],
)
async def test_arguments_are_checked_by_the_plan(client: AsyncClient, given: Any, problem: str) -> None:
    """What does not fit the parameters is refused before anything is stored, with what the workflow takes."""
    with pytest.raises(PlanTypeError) as caught:
        await client.start("fulfil", *given)
    assert problem in str(caught.value)
    assert "It takes order, copies=2, note=null." in str(caught.value)
    assert ("Did you mean 'copies'?" in str(caught.value)) is ("copie'" in problem)
    with pytest.raises(PlanTypeError, match="takes nothing"):
        await client.start("nightly", {"n": 1})
    assert [run async for run in client.runs()] == []


@pytest.mark.parametrize("value", [float("nan"), object(), "\ud800", 10**5000], ids=["nan", "object", "half", "big"])
async def test_values_that_are_no_json_are_refused(client: AsyncClient, value: Any) -> None:
    """The error names the workflow and the parameter."""
    with pytest.raises(PayloadError, match="workflow fulfil: order: "):
        await client.start("fulfil", {"order": [value]})


async def test_an_input_over_the_limit_is_refused(client: AsyncClient) -> None:
    """The limit of inputs holds for starts by name."""
    with pytest.raises(PayloadError, match="the limit is 2,000,000"):
        await client.start("fulfil", {"order": "x" * 2_000_000})


async def test_nul_in_a_value_is_kept(database: str, namespace: str) -> None:
    """A NUL inside a value goes in and comes out."""
    async with AsyncClient(database, namespace=namespace) as client:
        await client.store.register_plan(fulfil.plan)
        run = await client.start("fulfil", {"order": "a\0b", "note": "é"})
        assert (await run.get()).input == json.loads('{"order": "a\\u0000b", "copies": 2, "note": "é"}')


async def test_a_process_that_goes_back_to_an_older_plan_brings_it_back(database: str, namespace: str) -> None:
    """A name stands for the plan that a process registered last, an older one too: a roll-back of a deployment."""
    old, new = a_plan(), a_chain(2)
    stores = [PostgresStore(database, namespace=namespace, connections=1) for _ in range(3)]
    try:
        first = await stores[0].register_plan(old)
        second = await stores[1].register_plan(new)
        assert await stores[0].named_plan("flow") == second
        assert await stores[2].register_plan(old) == first
        assert await stores[0].named_plan("flow") == first
    finally:
        for store in stores:
            await store.close()
