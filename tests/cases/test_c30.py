"""C30: NUL, NaN, infinities and lone surrogates in outputs and inputs."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from composer import PayloadError, RunFailed, step, step_context, wait_for_event, workflow
from tests.working import Site, working

pytestmark = pytest.mark.anyio

TEXTS: dict[str, Any] = {
    "nul": {"k": ["a\0b"]},
    "nul as key": {"a": {"\0": 1}},
    "escape as text": "\\u0000 /u0000",
    "nan": math.nan,
    "inf": math.inf,
    "-inf": {"deep": [-math.inf]},
    "surrogate": {"k": ["\ud800"]},
    "surrogate as key": {"\udfff": 1},
}


@step
async def any_of(name: str) -> Any:
    """One of the values, under an annotation that promises nothing."""
    return TEXTS[name]


@step
async def numbers(n: int) -> list[float]:
    """What a float may be."""
    return [math.nan, math.inf, -math.inf, -0.0][:n]


@step
async def texts(name: str) -> dict[str, str]:
    """Typed, with the odd letter in value and key."""
    odd = {"nul": "\0", "surrogate": "\ud800"}[name]
    return {odd: f"a{odd}b"}


@step(retries=3)
async def echo(value: Any) -> Any:
    """What it is given."""
    return value


@step
async def reads(values: list[float]) -> str:
    """The numbers as the next step sees them."""
    return repr(values)


@step
async def beats(name: str) -> Any:
    """A checkpoint of the value."""
    step_context().heartbeat(TEXTS[name])
    return step_context().heartbeat_details(Any)


@step
async def says(name: str) -> None:
    """Fails with the text."""
    raise ValueError(f"bad {name}\0\ud800")


@workflow
def untyped(name: str) -> Any:
    """The value through a second step."""
    return echo(any_of(name))


@workflow
def floats(n: int) -> str:
    """Numbers through a second step."""
    return reads(numbers(n))


@workflow
def typed(name: str) -> dict[str, str]:
    """Typed texts."""
    return texts(name)


@workflow
def passed(value: Any) -> Any:
    """The input through a step."""
    return echo(value)


@workflow
def numbered(value: float) -> float:
    """The input as it is."""
    return value


@workflow
def checkpointed(name: str) -> Any:
    """A checkpoint."""
    return beats(name)


@workflow
def failing(name: str) -> None:
    """An error with the odd letters."""
    says(name)


@workflow
def asking(n: int) -> Any:
    """What is signalled, through a step."""
    return echo(wait_for_event("value", Any))


FLOWS = [untyped, floats, typed, passed, numbered, checkpointed, failing, asking]


async def outcome(site: Site, flow: Any, value: Any) -> Any:
    """The result, or the failure, of one attempt; the worker goes on after it."""
    run = await site.client.start(flow, value)
    try:
        made: Any = await run.result(timeout=5)
    except RunFailed as error:
        made = error
        assert (await run.get()).nodes[0].attempt == 1, "it is not tried again"
    assert (await run.get()).status in ("completed", "failed")
    return made


async def test_each_comes_back_equal_or_names_path_and_reason(database: str, namespace: str) -> None:
    """Outputs under Any: NUL is carried, what JSON lacks fails the step at once with its place; the worker goes on."""
    async with working(database, namespace, FLOWS) as site:
        for name in ("nul", "nul as key", "escape as text"):
            assert await outcome(site, untyped, name) == TEXTS[name]
        for name, reason in {
            "nan": "nan would come back as 'NaN'",
            "inf": "inf would come back as 'Infinity'",
            "-inf": "deep[0]: -inf would come back",
            "surrogate": "k[0]: '\\ud800' holds a lone surrogate",
            "surrogate as key": "the key '\\udfff' holds a lone surrogate",
        }.items():
            error = await outcome(site, untyped, name)
            assert (error.node, error.kind) == ("any_of", "payload")
            assert reason in error.message, name
            assert "step any_of: its result cannot be written as Any" in error.message
        assert await outcome(site, typed, "nul") == {"\0": "a\0b"}
        assert "lone surrogate" in (await outcome(site, typed, "surrogate")).message
        assert await outcome(site, floats, 4) == "[nan, inf, -inf, -0.0]"
        assert await site.verified() == []


async def test_inputs_are_carried_or_refused_before_anything_is_stored(database: str, namespace: str) -> None:
    """start() raises within a second with parameter, path and reason."""
    async with working(database, namespace, FLOWS) as site:
        for name in ("nul", "nul as key", "escape as text"):
            assert await outcome(site, passed, TEXTS[name]) == TEXTS[name]
        for number in (math.inf, -math.inf, -0.0):
            assert repr(await outcome(site, numbered, number)) == repr(number)
        assert math.isnan(await outcome(site, numbered, math.nan))
        for name in ("nan", "inf", "-inf", "surrogate", "surrogate as key"):
            began = time.process_time()
            with pytest.raises(PayloadError, match="workflow passed: value cannot be written as Any: "):
                await site.client.start(passed, TEXTS[name])
            assert time.process_time() - began < 1
        key = "the same"
        run = await site.client.start(passed, 1, idempotency_key=key)
        assert await run.result(timeout=5) == 1, "no refused start has taken anything"


async def test_signals_and_starts_by_name_are_carried_or_refused(database: str, namespace: str) -> None:
    """signal() raises with event, path and reason, and stores nothing; so does a start by name."""
    reasons = {
        "nan": "NaN cannot be written",
        "inf": "Infinity cannot be written",
        "-inf": "deep[0]: -Infinity cannot be written",
        "surrogate": "k[0]: '\\ud800' holds a lone surrogate",
        "surrogate as key": "the key '\\udfff' holds a lone surrogate",
    }
    async with working(database, namespace, FLOWS) as site:
        for name in ("nul", "nul as key", "escape as text"):
            run = await site.client.start(asking, 1)
            await run.signal("value", TEXTS[name])
            assert await run.result(timeout=5) == TEXTS[name]
            assert await (await site.client.start("passed", {"value": TEXTS[name]})).result(timeout=5) == TEXTS[name]
        run = await site.client.start(asking, 1)
        for name, reason in reasons.items():
            began = time.process_time()
            with pytest.raises(PayloadError) as caught:
                await run.signal("value", TEXTS[name])
            assert f"event 'value' of workflow 'asking': {reason}" in str(caught.value)
            with pytest.raises(PayloadError) as caught:
                await site.client.start("passed", {"value": TEXTS[name]})
            assert f"workflow passed: value: {reason}" in str(caught.value)
            assert time.process_time() - began < 1
        await run.signal("value", "at last")
        assert await run.result(timeout=5) == "at last"
        assert await site.verified() == []


async def test_checkpoints_and_errors_hold_the_odd_letters_too(database: str, namespace: str) -> None:
    """A checkpoint is stored or refused; an error text is stored with its odd letters written out; so is a reason."""
    async with working(database, namespace, FLOWS) as site:
        assert await outcome(site, checkpointed, "nul") == TEXTS["nul"]
        error = await outcome(site, checkpointed, "surrogate")
        assert error.kind == "payload"
        assert "node beats: heartbeat(): its details cannot be written: k[0]" in error.message
        failed = await outcome(site, failing, "text")
        assert failed.message == "bad text\\x00\\ud800"
        later = await site.client.start(passed, 1, delay="1h")
        assert (await site.client.cancel(later.id, reason="nul \0 and \ud800")).accepted
        assert (await later.get()).error == {"code": "cancelled", "message": "nul \0 and \ud800"}
        assert await site.verified() == []
