"""User code that raises where nobody expects it: every attempt is reported, so every run ends and says why."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, PlainSerializer

from composer import PayloadError, step, workflow
from composer.define.payloads import codec
from composer.errors import RunFailed
from tests.working import working

pytestmark = pytest.mark.anyio


class Odd(BaseException):
    """No Exception at all."""


armed: list[type[BaseException]] = []
"""What validators and serializers raise now; a start has to get past them first."""


def _raises(value: int) -> int:
    if armed:
        raise armed[0]("not today")
    return value


Read = Annotated[int, AfterValidator(_raises)]
Written = Annotated[int, PlainSerializer(_raises)]


@step
async def arm(n: int) -> int:
    """From now on they raise."""
    armed.append({0: KeyError, 1: RuntimeError, 2: Odd}[n])
    return n


@step(retries=0)
async def reads(n: Read) -> int:
    """Takes what its validator refuses."""
    return n


@step(retries=0)
async def writes(n: int) -> Written:
    """Returns what its serializer refuses."""
    return n


@step(retries=0)
def thread_exits(n: int) -> int:
    """Ends a generator that is none."""
    raise GeneratorExit(f"number {n}")


@step(retries=0)
async def coroutine_exits(n: int) -> int:
    """The same on the loop."""
    raise GeneratorExit(f"number {n}")


@workflow
def reading(n: int) -> int:
    """Decodes."""
    return reads(arm(n))


@workflow
def writing(n: int) -> int:
    """Encodes."""
    return writes(arm(n))


@workflow
def exiting(n: int) -> int:
    """In a thread."""
    return thread_exits(n)


@workflow
def exiting_here(n: int) -> int:
    """On the loop."""
    return coroutine_exits(n)


CASES: list[tuple[Any, int, str, str]] = [
    (reading, 0, "reads", "KeyError"),
    (reading, 1, "reads", "RuntimeError"),
    (reading, 2, "reads", "Odd"),
    (writing, 0, "writes", "KeyError"),
    (writing, 1, "writes", "RuntimeError"),
    (writing, 2, "writes", "Odd"),
    (exiting, 7, "thread_exits", "number 7"),
    (exiting_here, 7, "coroutine_exits", "number 7"),
]


@pytest.mark.parametrize(("flow", "n", "node", "said"), CASES, ids=[f"{each[0].name}-{each[3]}" for each in CASES])
async def test_every_attempt_is_reported(
    database: str, namespace: str, flow: Any, n: int, node: str, said: str
) -> None:
    """Whatever a validator, a serializer or a body raises, the attempt fails once, by name, and the run ends."""
    armed.clear()
    try:
        async with working(database, namespace, [flow]) as site:
            run = await site.client.start(flow, n)
            with pytest.raises(RunFailed, match=said) as caught:
                await run.result(timeout=10)
            assert (caught.value.node, caught.value.attempt) == (node, 1)
            armed.clear()
            assert await site.verified() == []
    finally:
        armed.clear()


def test_codecs_raise_payload_errors_only() -> None:
    """What a user's validator or serializer raises becomes a PayloadError that names it."""
    armed[:] = [ZeroDivisionError]
    try:
        with pytest.raises(PayloadError, match="ZeroDivisionError: not today"):
            codec(Read).decode("1")
        with pytest.raises(PayloadError, match="ZeroDivisionError: not today"):
            codec(Read).encode(1)
        with pytest.raises(PayloadError, match="ZeroDivisionError: not today"):
            codec(Read).constant(1)
        with pytest.raises(PayloadError, match="ZeroDivisionError: not today"):
            codec(Written).encode(1)
    finally:
        armed.clear()
