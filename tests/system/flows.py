"""Workflows for worker processes. Every body writes a line to the ledger, a file of JSON lines, when it starts and ends."""

from __future__ import annotations

import json
import os
import signal
import time

import anyio

from composer import Retry, step, step_context, workflow


def write(phase: str, **facts: object) -> None:
    """One line, in one write: lines of several processes do not mix."""
    context = step_context()
    line = {
        "phase": phase, "run": context.run_id, "node": context.node, "attempt": context.attempt, "delivery": context.fence,
        "pid": os.getpid(), "at": time.time(), **facts,
    }  # fmt: skip
    file = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, (json.dumps(line) + "\n").encode())
    os.close(file)


@step
async def quick(n: int) -> int:
    """Nothing much."""
    write("start")
    return n + 1


@step
async def naps(n: int, seconds: float) -> int:
    """Awaits in short slices."""
    write("start")
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            await anyio.sleep(0.05)
    except BaseException:
        write("stopped")
        raise
    write("end")
    return n + 1


@step(retries=1)
async def hog(n: int, seconds: float) -> int:
    """Blocks the loop without awaiting."""
    write("start")
    time.sleep(seconds)  # noqa: ASYNC251
    write("end")
    return n + 1


@step(retries=Retry(attempts=3, delay=0.2, jitter=0))
async def killer(n: int) -> int:
    """Kills its worker."""
    write("start")
    os.kill(os.getpid(), signal.SIGKILL)
    return n


@step
def checkpoints(n: int) -> int:
    """Counts to n in a thread, a checkpoint each."""
    context = step_context()
    begun_at = context.heartbeat_details(int, default=0)
    write("start", begun_at=begun_at)
    try:
        for i in range(begun_at, n):
            context.heartbeat(i + 1)
            time.sleep(0.05)
    except BaseException:
        write("stopped")
        raise
    return n


@workflow
def short(n: int) -> int:
    """Two quick steps."""
    return quick(quick(n))


@workflow
def napping(n: int, seconds: float) -> int:
    """Quick, a nap, quick."""
    return quick(naps(quick(n), seconds))


@workflow
def hogging(n: int, seconds: float) -> int:
    """Blocks the loop."""
    return quick(hog(n, seconds))


@workflow
def killing(n: int) -> int:
    """Kills its worker."""
    return quick(killer(n))


@workflow
def counting(n: int) -> int:
    """A long count."""
    return checkpoints(n)


@step
async def numbers(count: int) -> list[int]:
    """What a map runs over."""
    return list(range(count))


@step
async def item(n: int) -> int:
    """One item; where it was ledgered it is a line."""
    write("start", item=n)
    return n


@step
async def total(found: list[int]) -> int:
    """The sum, if all are there in their order."""
    assert found == sorted(found)
    return sum(found)


@workflow
def wide(count: int) -> int:
    """One map over many items."""
    return total(item.map(numbers(count)))
