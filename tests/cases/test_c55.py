"""C55: memory of a long-lived worker. The figures of 50,000 runs are bench/memory.py's; here, what must not stay alive."""

from __future__ import annotations

import asyncio
import gc
import weakref
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from composer import NonRetryable, StepContext, step, step_context, workflow
from composer.worker.attempt import Attempt
from tests.working import until, working

pytestmark = pytest.mark.anyio

alive: weakref.WeakSet[Any] = weakref.WeakSet()


@dataclass(eq=False)
class Payload:
    """A result or an argument whose life can be watched."""

    text: str

    def __post_init__(self) -> None:
        alive.add(self)


class Broken(NonRetryable):
    """An exception whose life can be watched."""

    def __init__(self, payload: Payload) -> None:
        super().__init__("broken")
        self.payload = payload
        alive.add(self)


@step
async def on_loop(n: int) -> Payload:
    """A result."""
    return Payload(f"{n}" * 1_000)


@step
def in_thread(payload: Payload) -> Payload:
    """An argument and a result."""
    return Payload(payload.text)


@step
async def fails(payload: Payload) -> int:
    """A payload in a frame of a traceback."""
    raise Broken(payload) from ValueError(payload)


@step(timeout=0.02)
async def overtime(payload: Payload) -> int:
    """A payload in a frame that is cancelled."""
    await anyio.sleep(60)
    return len(payload.text)


@step
async def waits(payload: Payload) -> int:
    """The same, cancelled from outside."""
    step_context().heartbeat(payload.text)
    await anyio.sleep(60)
    return len(payload.text)


@workflow
def ending_well(n: int) -> Payload:
    """On the loop and in a thread."""
    return in_thread(on_loop(n))


@workflow
def failing(n: int) -> int:
    """Fails."""
    return fails(on_loop(n))


@workflow
def late(n: int) -> int:
    """Times out."""
    return overtime(on_loop(n))


@workflow
def cancelled(n: int) -> int:
    """Is cancelled."""
    return waits(on_loop(n))


FLOWS: list[Any] = [ending_well, failing, late, cancelled]


async def test_nothing_of_a_finished_step_stays_alive(database: str, namespace: str) -> None:
    """After runs of every end no payload, exception, context, attempt or task of theirs is left in the worker."""
    async with working(database, namespace, FLOWS, concurrency=20) as site:
        await (await site.client.start(ending_well, 1)).result(timeout=10)
        tasks = len(asyncio.all_tasks())
        for flow in FLOWS:
            handles = await site.client.start_many(flow, [(n,) for n in range(100)])
            if flow is cancelled:
                await until(lambda: site.worker.loop.executed and len(alive) > 0)
                for handle in handles:
                    await handle.cancel()
            for handle in handles:
                await site.client.wait(handle.id, timeout=30)
        loop = site.worker.loop
        await until(lambda: loop.is_idle)

        def left() -> list[Any]:
            gc.collect()
            return [*alive, *(each for each in gc.get_objects() if isinstance(each, (StepContext, Attempt)))]

        # A timer of a second looks after bodies that were cancelled for their timeout; one loop names its last attempt.
        await until(lambda: len([each for each in left() if not isinstance(each, Attempt)]) == 0, 10)
        assert len(left()) <= 1
        assert (loop._attempts, loop._by_run, loop._in_a_row, loop._bodies, loop._reports) == (set(), {}, {}, set(), [])
        assert loop._keeper is not None
        assert loop._keeper._leases == {}
        # Loops of the worker have short tasks of their own now and then; what a step left behind would stay.
        await until(lambda: len(asyncio.all_tasks()) <= tasks)


async def test_what_is_kept_has_a_bound(database: str, namespace: str) -> None:
    """Once every cache is full, 2,500 more runs of all ends leave no more objects than there were."""
    async with working(database, namespace, FLOWS, concurrency=100) as site:
        loop = site.worker.loop

        async def ended(count: int) -> int:
            for flow in (ending_well, failing):
                handles = await site.client.start_many(flow, [(n,) for n in range(count // 2)])
                for handle in handles:
                    await site.client.wait(handle.id, timeout=60)
            await until(lambda: loop.is_idle)
            gc.collect()
            return len(gc.get_objects())

        before = await ended(2_500)  # of ends that were heard, 2,000 are remembered
        assert await ended(2_500) - before < 1_000
