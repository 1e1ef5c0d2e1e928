"""What stands around steps: @lifespan, @around_step, context variables."""

from __future__ import annotations

import contextvars
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from composer import (
    LifespanError,
    NonRetryable,
    PlanError,
    RunFailed,
    StepContext,
    Worker,
    around_step,
    lifespan,
    step,
    step_context,
    workflow,
)
from composer.testing import crash_everywhere, run_workflow
from composer.worker.loop import WorkerLoop
from tests.working import until, working

pytestmark = pytest.mark.anyio

tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")
events: list[str] = []
loops: list[WorkerLoop] = []
"""Of the worker whose end a body waits for."""


@dataclass
class Pool:
    """Something to open."""

    name: str
    closed: bool = False
    used_by: list[str] = field(default_factory=list[str])

    def use(self) -> str:
        """Its name, while it is open."""
        assert not self.closed
        self.used_by.append(step_context().node)
        return self.name


@lifespan
async def resources() -> AsyncIterator[Pool]:
    """One pool."""
    pool = Pool("main")
    events.append("opened")
    tenant.set("of the lifespan")
    try:
        yield pool
    finally:
        pool.closed = True
        events.append("closed")


@step
async def on_loop(n: int) -> str:
    """Uses it in a coroutine."""
    pool: Pool = step_context().resources
    events.append("on_loop")
    return f"{pool.use()} {tenant.get()}"


@step
def in_thread(before: str) -> str:
    """Uses it in a thread."""
    pool: Pool = step_context().resources
    events.append("in_thread")
    return f"{before}, {pool.use()} {tenant.get()}"


@step
async def slow(n: int) -> str:
    """Goes on until its worker has been told to leave, and uses it then."""
    events.append("began")
    await until(lambda: loops[0].draining)
    events.append("ended")
    return str(step_context().resources.use())


@step
async def breaks(how: str) -> str:
    """Raises."""
    if how == "none":
        return "something"
    raise NonRetryable(how) from KeyError(how)


@workflow
def both(n: int) -> str:
    """A coroutine, then a thread."""
    return in_thread(on_loop(n))


@workflow
def slowly(n: int) -> str:
    """A slow one."""
    return slow(n)


@workflow
def broken(how: str) -> str:
    """One that raises."""
    return breaks(how)


FLOWS = [both, slowly, broken]


@pytest.fixture(autouse=True)
def _no_events() -> None:
    events.clear()
    loops.clear()


async def test_a_lifespan_is_opened_once_and_closed_after_the_last_body(database: str, namespace: str) -> None:
    """Steps on the loop and in threads share what it yielded; it closes only when the drained steps have ended."""
    async with working(database, namespace, FLOWS, lifespan=resources) as site:
        loops.append(site.worker.loop)
        assert events == ["opened"]
        assert await (await site.client.start(both, 1)).result(timeout=10) == (
            "main of the lifespan, main of the lifespan"
        )
        await site.client.start(slowly, 1)
        await until(lambda: "began" in events)
    assert events == ["opened", "on_loop", "in_thread", "began", "ended", "closed"]


async def test_a_lifespan_is_closed_when_the_block_raises(database: str, namespace: str) -> None:
    """An exception of the application closes it, too, and passes."""
    with pytest.raises(ZeroDivisionError):
        async with working(database, namespace, FLOWS, lifespan=resources):
            raise ZeroDivisionError
    assert events == ["opened", "closed"]


@pytest.mark.parametrize("how", ["raises", "yields nothing"])
async def test_a_worker_whose_lifespan_cannot_open_takes_nothing(database: str, namespace: str, how: str) -> None:
    """The error names the lifespan, its cause and its place; no task was taken."""

    @lifespan
    async def bad() -> AsyncIterator[Pool]:
        if how == "raises":
            raise OSError("connection refused")
        if how == "never":
            yield Pool("x")

    async with working(database, namespace, []) as site:
        handle = await site.client.start(both, 1)
        with pytest.raises(LifespanError, match="The worker has taken no task") as caught:
            async with Worker(FLOWS, site.settings, lifespan=bad):
                pytest.fail("it was opened")
        assert caught.value.phase == "opening"
        assert "bad of" in caught.value.lifespan
        assert f"{__file__}:" in caught.value.where
        assert ("connection refused" if how == "raises" else "didn't yield") in str(caught.value)
        (node, _) = (await handle.get()).nodes
        assert (node.state, node.attempt) == ("ready", 1)


async def test_a_lifespan_that_cannot_close_says_so_at_the_end(database: str, namespace: str) -> None:
    """What it raises while closing comes out of the worker after all work is stored."""

    @lifespan
    async def bad() -> AsyncIterator[Pool]:
        yield Pool("x")
        raise OSError("already gone")

    async def work() -> None:
        async with working(database, namespace, FLOWS, lifespan=bad) as site:
            assert await (await site.client.start(broken, "none")).result(timeout=10) == "something"

    with pytest.raises(LifespanError, match="nothing of a run is lost") as caught:
        await work()
    assert caught.value.phase == "closing"


async def test_any_async_context_manager_may_be_the_lifespan(database: str, namespace: str) -> None:
    """An application that has one already gives it as it is."""

    @asynccontextmanager
    async def own() -> AsyncIterator[Pool]:
        yield Pool("own")

    async with working(database, namespace, FLOWS, lifespan=own) as site:
        assert "own" in await (await site.client.start(both, 1)).result(timeout=10)

    async def bare() -> AsyncIterator[Pool]:
        yield Pool("bare")

    with pytest.raises(PlanError, match="Put @lifespan above it"):
        Worker(FLOWS, lifespan=bare)  # type: ignore[arg-type]


async def test_a_step_that_asks_for_resources_that_are_not_there_is_told(database: str, namespace: str) -> None:
    """The failure says how to define them, not that None has no attribute."""
    async with working(database, namespace, FLOWS) as site:
        with pytest.raises(RunFailed, match="no @lifespan is defined in the modules it serves") as caught:
            await (await site.client.start(both, 1)).result(timeout=10)
        assert caught.value.error_type == "PlanError"


async def test_a_workflow_under_test_is_given_its_resources() -> None:
    """run_workflow and crash_everywhere hand `resources` and `around` to every step."""
    seen: list[str] = []

    @around_step
    async def watch(ctx: StepContext, call: Any) -> Any:
        seen.append(ctx.node)
        tenant.set("of the test")
        return await call()

    async with resources() as pool:
        result = await run_workflow(both, 1, resources=pool, around=[watch])
        assert result.value == "main of the test, main of the test"
        assert seen == ["on_loop", "in_thread"]
        assert all(each.status == "completed" for each in await crash_everywhere(both, 1, resources=pool))
    assert (await run_workflow(both, 1)).status == "failed"


async def test_what_stands_around_nests_and_sees_everything_pass(database: str, namespace: str) -> None:
    """The first is the outermost, around coroutines and threads alike; results may be changed, exceptions pass."""
    order: list[str] = []

    @around_step
    async def outer(ctx: StepContext, call: Any) -> Any:
        order.append(f"outer {ctx.node}")
        try:
            return f"<{await call()}>"
        except KeyError:
            order.append("never")
            raise
        except Exception as error:
            order.append(type(error).__name__)
            raise
        finally:
            order.append("outer again")

    @around_step
    async def inner(ctx: StepContext, call: Any) -> Any:
        order.append(f"inner {ctx.attempt}")
        tenant.set(f"of {ctx.node}")
        return await call()

    async with working(database, namespace, FLOWS, lifespan=resources, around=[outer, inner]) as site:
        assert await (await site.client.start(both, 1)).result(timeout=10) == ("<<main of on_loop>, main of in_thread>")
        assert order == [
            "outer on_loop", "inner 1", "outer again", "outer in_thread", "inner 1", "outer again",
        ]  # fmt: skip
        order.clear()
        with pytest.raises(RunFailed) as caught:
            await (await site.client.start(broken, "x")).result(timeout=10)
        assert order == ["outer breaks", "inner 1", "NonRetryable", "outer again"]
        assert (caught.value.error_type, caught.value.attempt) == ("KeyError", 1)
        assert "in breaks" in caught.value.traceback
        assert "in inner" not in caught.value.traceback


async def test_a_forgotten_return_is_not_a_result_of_none(database: str, namespace: str) -> None:
    """A step whose around_step returns nothing fails and is told to return."""

    @around_step
    async def forgets(ctx: StepContext, call: Any) -> Any:
        await call()

    async with working(database, namespace, FLOWS, around=[forgets]) as site:
        with pytest.raises(RunFailed, match=r"around_step forgets returned None .*return await call\(\)"):
            await (await site.client.start(broken, "none")).result(timeout=10)


async def test_a_step_sees_nothing_of_the_caller_that_started_its_run(database: str, namespace: str) -> None:
    """A client in the worker's process hands tasks over at once, and its context variables stay its own."""
    async with working(database, namespace, FLOWS, lifespan=resources) as site:
        token = tenant.set("of a request")
        try:
            assert "request" not in await (await site.client.start(both, 1)).result(timeout=10)
        finally:
            tenant.reset(token)


def test_misused_decorators_are_refused_with_what_to_write() -> None:
    """Wrong kinds of functions and wrong parameters are refused at the definition."""

    async def coroutine() -> Pool:
        return Pool("x")

    async def needs(url: str) -> AsyncIterator[Pool]:
        yield Pool(url)

    def plain(ctx: StepContext, call: Any) -> Any:
        return call()

    async def one(ctx: StepContext) -> Any:
        return None

    async def three(ctx: StepContext, call: Any, more: int) -> Any:
        return None

    for fn, said in ((coroutine, "does not `yield`"), (needs, "nobody gives it url"), (resources, "is one already")):
        with pytest.raises(PlanError, match=said):
            lifespan(fn)  # type: ignore[arg-type]
    for around, said in ((plain, "async def"), (one, "two arguments"), (three, "two arguments")):
        with pytest.raises(PlanError, match=said):
            around_step(around)  # type: ignore[arg-type]
