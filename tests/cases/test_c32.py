"""C32: exceptions and inputs that cannot be pickled, printed or caught."""

from __future__ import annotations

import asyncio
import sys
import threading
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from composer import NonRetryable, Retry, RunFailed, Snooze, step, step_context, workflow
from tests.working import working

pytestmark = pytest.mark.anyio

QUICK = Retry(attempts=2, delay=0.01, jitter=0)


class TwoArguments(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")


class HoldsALock(Exception):
    def __init__(self) -> None:
        super().__init__("locked")
        self.lock = threading.Lock()


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no")

    __repr__ = __str__


class OfItsOwn(BaseException):
    pass


class NoReduce(Exception):
    def __reduce__(self) -> Any:
        raise RuntimeError("no")


def _chain() -> Exception:
    error: Exception = KeyError("root")
    for n in range(500):
        after = RuntimeError(f"level {n}")
        after.__cause__ = error
        error = after
    return error


MADE: dict[str, Any] = {
    "TwoArguments": lambda: TwoArguments(1, "two"),
    "HoldsALock": HoldsALock,
    "Unprintable": Unprintable,
    "NoReduce": NoReduce,
    "SystemExit": lambda: SystemExit(7),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "OfItsOwn": lambda: OfItsOwn("mine"),
    "ExceptionGroup": lambda: ExceptionGroup("both", [ValueError("a"), Unprintable()]),
    "BaseExceptionGroup": lambda: BaseExceptionGroup("both", [SystemExit(1), ValueError("a")]),
    "StopIteration": lambda: StopIteration("stop"),
    "StopAsyncIteration": StopAsyncIteration,
    "CancelledError": lambda: asyncio.CancelledError("mine"),
    "RuntimeError": _chain,
    "ValueError": lambda: ValueError("x" * 20_000_000),
    "KeyError": lambda: KeyError("\0\ud800"),
}
TEXTS = {
    "TwoArguments": "1: two",
    "HoldsALock": "locked",
    "Unprintable": "<its text cannot be made: ValueError>",
    "SystemExit": "7",
    "OfItsOwn": "mine",
    "ExceptionGroup": "both (2 sub-exceptions): ValueError: a; Unprintable: <its text cannot be made: ValueError>",
    "RuntimeError": "level 499",
    "KeyError": "'\\x00\\ud800'",
}


@step(retries=QUICK)
async def on_the_loop(name: str) -> int:
    """Raises it in a coroutine."""
    raise MADE[name]()


@step(retries=QUICK)
async def in_a_thread_of_its_own(name: str) -> int:
    """Raises it in a thread that the coroutine awaits: it is thrown into the coroutine."""
    return await asyncio.to_thread(in_a_thread.fn, name)


@step(retries=QUICK)
def in_a_thread(name: str) -> int:
    """Raises it in a thread."""
    raise MADE[name]()


@dataclass
class Mute:
    """Shows nothing of itself and compares to nothing."""

    n: int

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no eq")


@step
async def takes(mute: Mute) -> Mute:
    """Its argument."""
    return mute


@step(retries=3)
async def final_in_a_group(n: int) -> int:
    """The verb arrives wrapped, as a task group wraps it."""
    raise ExceptionGroup("tasks", [NonRetryable("no use")])


@step
async def snoozes_in_a_group(n: int) -> int:
    """Once, wrapped."""
    if step_context().fence == 1:
        raise ExceptionGroup("tasks", [Snooze(0.01)])
    return n


@workflow
def loops(name: str) -> int:
    """In a coroutine."""
    return on_the_loop(name)


@workflow
def threads(name: str) -> int:
    """In a thread."""
    return in_a_thread(name)


@workflow
def awaits(name: str) -> int:
    """In a thread that a coroutine awaits."""
    return in_a_thread_of_its_own(name)


@workflow
def mutes(mute: Mute) -> Mute:
    """Through a step."""
    return takes(mute)


@workflow
def finals(n: int) -> int:
    """A verb in a group."""
    return final_in_a_group(n)


@workflow
def snoozing(n: int) -> int:
    """Another."""
    return snoozes_in_a_group(n)


FLOWS = [loops, threads, awaits, mutes, finals, snoozing]


@pytest.mark.parametrize("flow", [loops, threads, awaits], ids=lambda each: each.name)
async def test_each_is_a_failed_attempt_by_name_and_text(database: str, namespace: str, flow: Any) -> None:
    """Type name, best-effort text, the policy's two attempts; the worker is alive after each and runs the next."""
    async with working(database, namespace, FLOWS) as site:
        for name in MADE:
            if flow is awaits and name == "StopIteration":
                continue  # asyncio.to_thread itself never answers then
            run = await site.client.start(flow, name)
            with pytest.raises(RunFailed) as caught:
                await run.result(timeout=10)
            # Python itself turns a StopIteration that leaves a coroutine into a RuntimeError; a cancellation that
            # nobody asked for is told as what it is.
            told = "RuntimeError" if name in ("StopIteration", "CancelledError") else name
            assert caught.value.error_type == told, name
            assert TEXTS.get(name, "") in caught.value.message
            assert caught.value.attempt == 2
            assert len(caught.value.message) <= 16_000
        assert await (await site.client.start(mutes, Mute(1))).get()
        assert await site.verified() == []
    assert caught.value.error_type == "KeyError"


async def test_a_long_chain_of_causes_is_shown_with_its_root(database: str, namespace: str) -> None:
    """RunFailed says what was behind it, the nearest first and the root last."""
    async with working(database, namespace, FLOWS) as site:
        with pytest.raises(RunFailed, match="caused by KeyError: 'root'") as caught:
            await (await site.client.start(loops, "RuntimeError")).result(timeout=10)
    assert caught.value.causes[0] == "RuntimeError: level 498"
    assert "... 490 more ..." in caught.value.causes


async def test_an_input_that_cannot_be_shown_or_compared_is_carried(database: str, namespace: str) -> None:
    """Nobody asks the object for more than its fields."""
    async with working(database, namespace, FLOWS) as site:
        assert (await (await site.client.start(mutes, Mute(3))).result(timeout=5)).n == 3


async def test_a_verb_in_a_group_of_one_is_that_verb(database: str, namespace: str) -> None:
    """A task group that wraps NonRetryable or Snooze changes nothing about what it means."""
    async with working(database, namespace, FLOWS) as site:
        with pytest.raises(RunFailed, match="no use") as caught:
            await (await site.client.start(finals, 1)).result(timeout=5)
        assert caught.value.attempt == 1
        run = await site.client.start(snoozing, 5)
        assert await run.result(timeout=5) == 5
        assert (await run.get()).nodes[0].failures == 0


async def test_a_client_without_the_class_reads_the_failure(database: str, namespace: str) -> None:
    """Another process, which cannot import the class, gets type name and message."""
    async with working(database, namespace, FLOWS) as site:
        run = await site.client.start(loops, "TwoArguments")
        with pytest.raises(RunFailed):
            await run.result(timeout=5)
    code = (
        "from composer import Client, Settings\n"
        f"with Client(settings=Settings(database_url={database!r}, namespace={namespace!r})) as client:\n"
        f"    view = client.get({run.id!r})\n"
        "print(view.error['type'], view.error['message'])"
    )
    done = await anyio.run_process([sys.executable, "-c", code], check=False, cwd="/")
    assert done.stdout.strip() == b"TwoArguments 1: two", done.stderr
