"""Many short runs on one worker in one process, of the kinds that leave something behind: does memory grow?

Half return 100 kB, a tenth fail, a tenth run out of time, a tenth are cancelled, the rest is small; by turns on the loop
and in threads. One JSON line, with a sample every 5,000 runs: resident memory, live Python objects after a collection,
asyncio tasks, step contexts and attempts.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import anyio

from bench._common import arguments, line, run, workers
from composer import AsyncClient, NonRetryable, StepContext, Worker, step, workflow
from composer.worker.attempt import Attempt

LARGE = 100_000
BATCH = 500
SAMPLE_EVERY = 5_000


def _payload(n: int) -> str:
    return f"{n} " + "x" * LARGE


@step
async def large(n: int) -> str:
    """100 kB, on the loop."""
    return _payload(n)


@step
def large_in_thread(n: int) -> str:
    """100 kB, in a thread."""
    return _payload(n)


@step
async def small(n: int) -> int:
    """Next to nothing."""
    return n


@step
async def fails(n: int) -> int:
    """Fails, with something large in its frame."""
    held = _payload(n)
    raise NonRetryable(f"number {n}, {len(held)}")


@step(timeout=0.05)
async def times_out(n: int) -> int:
    """Longer than it may take."""
    await anyio.sleep(60)
    return n


@step
async def waits(n: int) -> int:
    """Until it is cancelled."""
    await anyio.sleep(60)
    return n


@workflow
def large_flow(n: int) -> str:
    """100 kB, on the loop."""
    return large(n)


@workflow
def thread_flow(n: int) -> str:
    """100 kB, in a thread."""
    return large_in_thread(n)


@workflow
def small_flow(n: int) -> int:
    """Next to nothing."""
    return small(n)


@workflow
def failing_flow(n: int) -> int:
    """Fails."""
    return fails(n)


@workflow
def overtime_flow(n: int) -> int:
    """Times out."""
    return times_out(n)


@workflow
def cancelled_flow(n: int) -> int:
    """Is cancelled."""
    return waits(n)


FLOWS: list[Any] = [large_flow, thread_flow, small_flow, failing_flow, overtime_flow, cancelled_flow]
MIX: list[Any] = [
    *[large_flow, thread_flow] * 2,
    large_flow,
    small_flow,
    small_flow,
    failing_flow,
    overtime_flow,
    cancelled_flow,
]


def rss() -> float:
    """Resident memory of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def sample(runs: int, began: float) -> dict[str, Any]:
    """What is alive now."""
    before = rss()
    gc.collect()
    objects = gc.get_objects()
    kinds = Counter(type(each).__name__ for each in objects if isinstance(each, (StepContext, Attempt)))
    return {
        "runs": runs,
        "rss_mb": round(before, 1),
        "objects": len(objects),
        "tasks": len(asyncio.all_tasks()),
        "contexts": kinds["StepContext"],
        "attempts": kinds["Attempt"],
        "s": round(time.perf_counter() - began, 1),
    }


async def batch(client: AsyncClient, first: int, count: int) -> Counter[str]:
    """Runs of the mix, all ended."""
    handles = []
    for index, flow in enumerate(MIX):
        inputs = [(first + n,) for n in range(index, count, len(MIX))]
        made = await client.start_many(flow, inputs)
        if flow is cancelled_flow:
            for handle in made:
                await handle.cancel()
        handles += made
    ended: Counter[str] = Counter()

    async def wait(run_id: str) -> None:
        ended[(await client.wait(run_id)).status] += 1

    async with anyio.create_task_group() as group:
        for handle in handles:
            group.start_soon(wait, handle.id)
    return ended


async def main() -> None:
    """All runs, batch by batch."""
    args = arguments(workflows=50_000, rounds=1)
    async with (
        workers(args) as settings,
        Worker(FLOWS, settings) as worker,
        AsyncClient(store=worker.store) as client,
    ):
        ended: Counter[str] = Counter()
        samples: list[dict[str, Any]] = []
        began = time.perf_counter()
        for first in range(0, args.workflows, BATCH):
            ended += await batch(client, first, min(BATCH, args.workflows - first))
            if (first + BATCH) % SAMPLE_EVERY == 0:
                samples.append(sample(first + BATCH, began))
    early, late = samples[0], samples[-1]
    growth = {f"{name}_growth": round(late[name] - early[name], 1) for name in ("rss_mb", "objects")}
    line("memory", args, ended=dict(ended), **growth, samples=samples)


if __name__ == "__main__":
    run(main)
