"""C13: a cancellation that the step swallows."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

import anyio
import pytest

from composer import step, workflow
from tests.working import until, working

pytestmark = pytest.mark.anyio

started: dict[str, threading.Event] = {}
ended: dict[str, float] = {}


def begun(name: str) -> threading.Event:
    """Set once a body of this name has started."""
    return started.setdefault(name, threading.Event())


@step
async def swallows_exception(name: str) -> str:
    """Sleeps inside `except Exception`."""
    begun(name).set()
    try:
        await anyio.sleep(30)
    except Exception:
        ended[name] = -1
    return name


@step
async def swallows_everything(name: str) -> str:
    """Catches its cancellation and goes on for a while."""
    begun(name).set()
    for _ in range(3):
        with contextlib.suppress(BaseException):
            await asyncio.sleep(0.2)
    ended[name] = time.monotonic()
    return name


@step
async def returns_anyway(name: str) -> str:
    """Catches its cancellation and returns a value."""
    begun(name).set()
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        return "a value nobody wants"
    return name


@step
async def short_awaits(name: str) -> str:
    """Many short awaits, so that a cancel lands on one that is finishing."""
    begun(name).set()
    for _ in range(20_000):
        await asyncio.sleep(0)
    return name


@step
async def after(name: str) -> str:
    """What must not start any more."""
    begun(f"after {name}").set()
    return name


@workflow
def swallowing(name: str) -> str:
    """except Exception."""
    return after(swallows_exception(name))


@workflow
def stubborn(name: str) -> str:
    """except BaseException."""
    return after(swallows_everything(name))


@workflow
def returning(name: str) -> str:
    """A value after the cancel."""
    return after(returns_anyway(name))


@workflow
def spinning(name: str) -> str:
    """Short awaits."""
    return after(short_awaits(name))


FLOWS = [swallowing, stubborn, returning, spinning]


@pytest.mark.parametrize("flow", [swallowing, stubborn, returning, spinning])
async def test_a_cancel_cannot_be_swallowed(database: str, namespace: str, flow) -> None:
    """Whatever the body does with its cancellation, the run is cancelled and no successor starts."""
    name = f"swallow {flow.name} {namespace}"
    async with working(database, namespace, FLOWS) as site:
        handle = await site.client.start(flow, name)
        await until(begun(name).is_set)
        assert (await handle.cancel()).accepted
        await until(lambda: site.worker.loop.is_idle)
        assert (await handle.get()).status == "cancelled"
        assert not begun(f"after {name}").is_set()
        assert ended.get(name) != -1, "`except Exception` saw the cancellation"
        assert await site.verified() == []


async def test_what_a_body_returns_after_a_cancel_changes_nothing(database: str, namespace: str) -> None:
    """The body that went on for a while leaves no transition behind the cancel."""
    name = f"late {namespace}"
    async with working(database, namespace, FLOWS) as site:
        handle = await site.client.start(stubborn, name)
        await until(begun(name).is_set)
        await handle.cancel()
        await until(lambda: site.worker.loop.is_idle)
        assert name in ended
        rows = await site.client.history(handle.id)
        assert [entry["event"] for row in rows for entry in row.changes["events"]] == ["started", "cancel-requested"]
