"""C32: exceptions that cannot be pickled or printed."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import pytest

from composer import Retry, RunFailed, step, workflow
from tests.working import working

pytestmark = pytest.mark.anyio


class TwoArguments(Exception):
    """Cannot be unpickled."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


class WithLock(Exception):
    """Cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("has a lock")
        self.lock = threading.Lock()


class Unprintable(Exception):
    """Cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Base(BaseException):
    """Passes every `except Exception`."""


@dataclass
class Odd:
    """An input that cannot be shown."""

    text: str

    def __repr__(self) -> str:
        raise RuntimeError("no text")


def _raise(kind: str) -> None:
    match kind:
        case "two":
            raise TwoArguments("one", "two")
        case "lock":
            raise WithLock
        case "unprintable":
            raise Unprintable
        case "exit":
            raise SystemExit(3)
        case "interrupt":
            raise KeyboardInterrupt
        case "base":
            raise Base("from the base")
        case _:
            raise ExceptionGroup("several", [ValueError("one"), WithLock()])


@step(retries=Retry(attempts=2, delay=0))
async def on_loop(kind: str) -> str:
    """Raises on the loop."""
    _raise(kind)
    return kind


@step(retries=Retry(attempts=2, delay=0))
def in_thread(kind: str) -> str:
    """Raises in a thread."""
    _raise(kind)
    return kind


@step
async def takes(odd: Odd) -> str:
    """Raises with its input in the traceback."""
    if odd.text == "fail":
        raise ValueError("about the input")
    return odd.text


@workflow
def loop_flow(kind: str) -> str:
    """On the loop."""
    return on_loop(kind)


@workflow
def thread_flow(kind: str) -> str:
    """In a thread."""
    return in_thread(kind)


@workflow
def odd_flow(odd: Odd) -> str:
    """Takes what cannot be shown."""
    return takes(odd)


FLOWS = [loop_flow, thread_flow, odd_flow]
KINDS = [
    ("two", "TwoArguments", "one and two"),
    ("lock", "WithLock", "has a lock"),
    ("unprintable", "Unprintable", "its text cannot be made: RuntimeError"),
    ("exit", "SystemExit", "3"),
    ("interrupt", "KeyboardInterrupt", ""),
    ("base", "Base", "from the base"),
    ("group", "ExceptionGroup", "several (2 sub-exceptions)"),
]


@pytest.mark.parametrize("flow", [loop_flow, thread_flow], ids=lambda flow: flow.name)
async def test_any_exception_is_a_failed_attempt_and_the_worker_lives(database: str, namespace: str, flow: Any) -> None:
    """Type name and text are kept, the policy applies to each, and afterwards the worker runs a normal step."""
    async with working(database, namespace, FLOWS) as site:
        for kind, type_name, message in KINDS:
            handle = await site.client.start(flow, kind)
            with pytest.raises(RunFailed) as caught:
                await handle.result(timeout=20)
            assert (caught.value.error_type, caught.value.attempt) == (type_name, 2), kind
            assert message in caught.value.message
        assert await (await site.client.start(odd_flow, Odd("fine"))).result(timeout=10) == "fine"
        assert await site.verified() == []


async def test_an_input_that_cannot_be_shown_hides_no_error(database: str, namespace: str) -> None:
    """A step that fails with such an input has its own error, not that of the input's repr."""
    async with working(database, namespace, FLOWS) as site:
        with pytest.raises(RunFailed, match="about the input") as caught:
            await (await site.client.start(odd_flow, Odd("fail"))).result(timeout=10)
        assert caught.value.error_type == "ValueError"
        assert "in takes" in caught.value.traceback
