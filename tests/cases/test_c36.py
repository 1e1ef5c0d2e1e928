"""C36: a run in flight meets changed code."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from composer import AsyncClient, Settings, Worker, sleep, step, workflow
from tests.working import opened, until

pytestmark = pytest.mark.anyio

_ran: Counter[str] = Counter()


@step
async def a(n: int) -> int:
    """First."""
    return n


@step
async def b(n: int) -> int:
    """Second, on the old code."""
    _ran["b"] += 1
    return n + 1


@step(name="b2")
async def renamed(n: int) -> int:
    """Second, on the new code."""
    _ran["b2"] += 1
    return n + 1


@step(name="b")
async def retyped(n: str) -> int:
    """The second step with another input."""
    _ran["retyped"] += 1
    return len(n)


@step
async def between(n: int) -> int:
    """A new step."""
    _ran["between"] += 1
    return n


@step
async def c(n: int) -> int:
    """Last."""
    _ran["c"] += 1
    return n * 10


def version(number: int) -> Any:
    """The workflow `flow` as version 1, or as one of the later ones."""

    def one(n: int) -> int:
        return c(b.after(sleep("400ms", after=a(n)))(n))

    def with_b_renamed(n: int) -> int:
        return c(renamed.after(sleep("400ms", after=a(n)))(n))

    def without_c(n: int) -> int:
        return b.after(sleep("400ms", after=a(n)))(n)

    def with_one_between(n: int) -> int:
        return c(between(b.after(sleep("400ms", after=a(n)))(n)))

    def without_order(n: int) -> int:
        sleep("400ms", after=a(n))
        return c(b(n))

    def with_b_retyped(n: int) -> int:
        return c(retyped.after(sleep("400ms", after=a(n)))("text"))

    builders = [one, with_b_renamed, without_c, with_one_between, without_order, with_b_retyped]
    return workflow(name="flow")(builders[number - 1])


@pytest.mark.parametrize("number", [2, 3, 4, 5, 6])
async def test_run_in_flight_ends_on_its_own_graph(database: str, namespace: str, number: int) -> None:
    """A run that sleeps while other code is deployed ends by the plan it started with, or waits for a worker that knows its step; never a mixture."""
    _ran.clear()
    old, new = version(1), version(number)
    settings = Settings(database_url=database, namespace=namespace)
    async with opened(database, namespace) as store, AsyncClient(store=store, settings=settings) as client:
        async with Worker([old], settings, store=store):
            handle = await client.start(old, 3)

            async def sleeps() -> bool:
                return {node.name: node.state for node in (await client.get(handle.id)).nodes}["sleep"] == "waiting"

            await until(sleeps)
        async with Worker([new], settings, store=store) as worker:
            fresh = await client.start(new, 3)
            await client.wait(fresh.id, timeout=10)
            fresh_nodes = [node.name for node in (await client.get(fresh.id)).nodes]
            assert fresh_nodes == [node.name for node in new.plan.nodes], "a new start is of the new version"
            known = set(worker.steps)

            async def b_is_there() -> bool:
                states = {node.name: node.state for node in (await client.get(handle.id)).nodes}
                return states["sleep"] == "completed"

            await until(b_is_there)
            old_nodes = [node.name for node in (await client.get(handle.id)).nodes]
            assert old_nodes == [node.name for node in old.plan.nodes], "it keeps its plan"
            if number in (4, 5):
                # All its steps are there: it ends as it was to.
                assert await handle.result(timeout=10) == 40
                return
            if number == 6:
                # A step of its name, with another input: its stored arguments do not fit, which is said, and it can be retried.
                await client.wait(handle.id, timeout=10)
                run = await client.get(handle.id)
                assert run.error is not None
                assert (run.status, run.error["node"], run.error["type"]) == ("failed", "b", "PayloadMismatch")
                assert "step b" in run.error["message"]
                assert _ran["retyped"] == 1, "only the new run's"
                return
            missing = {"b", "c"} - known
            assert missing
            run = await client.get(handle.id)
            assert run.status == "running", "it waits for a worker that knows its step; no step of it is left out"
        async with Worker([old], settings, store=store):
            assert await handle.result(timeout=10) == 40


async def test_retry_says_that_it_goes_on_with_its_own_shape(database: str, namespace: str) -> None:
    """A failed run is retried by its own plan: the newest options of the same shape are taken, another shape never."""

    @step(name="fails")
    async def fails(n: int) -> int:
        _ran["fails"] += 1
        if _ran["fails"] == 1:
            raise ValueError("once")
        return n

    _ran.clear()

    @workflow(name="flow")
    def first(n: int) -> int:
        return fails(n)

    @workflow(name="flow")
    def second(n: int) -> int:
        return fails.options(retries=3)(n)

    @workflow(name="flow")
    def other(n: int) -> int:
        return c(fails(n))

    settings = Settings(database_url=database, namespace=namespace)
    async with opened(database, namespace) as store, AsyncClient(store=store, settings=settings) as client:
        async with Worker([first], settings, store=store):
            handle = await client.start(first, 3)
            await client.wait(handle.id, timeout=10)
            assert (await handle.get()).status == "failed"
        async with Worker([other], settings, store=store):
            assert not (await client.retry(handle.id, dry_run=True)).new_options
        async with Worker([second], settings, store=store):
            retried = await client.retry(handle.id)
            assert retried.new_options
            assert [reset.node for reset in retried.reset_steps] == ["fails"]
            assert await handle.result(timeout=10) == 3
