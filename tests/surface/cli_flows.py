"""Workflows that the command line's tests start, draw and check."""

from __future__ import annotations

from composer import NonRetryable, sleep, step, wait_for_event, workflow


@step
async def double(n: int) -> int:
    """Twice the number."""
    return 2 * n


@step
async def broken(text: str) -> str:
    """Fails for good."""
    raise NonRetryable(text)


@workflow
def doubled(n: int) -> int:
    """Four times the number."""
    return double(double(n))


@workflow
def failing(text: str) -> str:
    """Fails."""
    return broken(text)


@workflow
def doubtful(n: int) -> int:
    """Has what check warns of."""
    sleep("1h")
    return wait_for_event("go", int)


@workflow
def asking(n: int) -> int:
    """Waits."""
    return wait_for_event("go", int, timeout="1d")


@workflow
def again(n: int) -> int:
    """Has the nodes of `doubled`."""
    return double(double(n))
