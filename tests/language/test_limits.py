"""How large values may be, as users meet it: row 35 of the scenario table."""

from __future__ import annotations

import pytest

from composer import PayloadTooLarge, step, wait_for_event, workflow
from composer.core.limits import MAX_PAYLOAD, within_limit
from tests.language.stage import Stage

pytestmark = pytest.mark.anyio

calls: list[int] = []


@step(retries=3)
async def letters(n: int) -> str:
    """That many of them."""
    calls.append(n)
    return "x" * n


@step(retries=3, isolation="process")
def letters_elsewhere(n: int) -> str:
    """That many of them, from a process of its own."""
    return "x" * n


@workflow
def one(n: int) -> str:
    """One result."""
    return letters(n)


@workflow
def elsewhere(n: int) -> str:
    """One result of a process."""
    return letters_elsewhere(n)


@workflow
def two(n: int) -> tuple[str, str]:
    """An output put together from two results."""
    return letters(n), letters.named("more")(n)


@workflow
def asks(n: int) -> str:
    """Takes what is sent."""
    return wait_for_event("text", str, timeout=1)


@step
async def size_of(text: str) -> int:
    """Its length."""
    return len(text)


@workflow
def takes(text: str) -> int:
    """Takes a text."""
    return size_of(text)


async def test_row_35_payloads_over_the_limit(stage: Stage) -> None:
    """A result fails its step, once and naming both sizes; an output fails its run; an input or signal is refused."""
    fits = MAX_PAYLOAD - 2
    assert (await stage.play(one, fits)).status == "completed"

    calls.clear()
    for flow in (one, elsewhere):
        run = await stage.play(flow, fits + 1)
        name = "letters" if flow is one else "letters_elsewhere"
        assert (run.status, run.states[name]) == ("failed", "failed"), run
        assert run.error is not None
        assert f"the result of step {name} has 2,000,001 bytes, and the limit is 2,000,000" in str(run.error)
        assert "PayloadTooLarge" in str(run.error)
    assert calls == [fits + 1]

    whole = await stage.play(two, 1_200_000)
    assert (whole.status, whole.code, set(whole.states.values())) == ("failed", "payload-too-large", {"completed"})
    assert whole.error is not None
    assert "the run's output has 2,400,007 bytes, and the limit is 2,000,000" in whole.error["message"]

    with pytest.raises(PayloadTooLarge, match="the input of workflow takes has 2,000,011 bytes") as caught:
        await stage.play(takes, "x" * MAX_PAYLOAD)
    assert (caught.value.size, caught.value.limit) == (2_000_011, MAX_PAYLOAD)
    with pytest.raises(PayloadTooLarge, match="the payload of event 'text' of workflow 'asks' has 2,000,001 bytes"):
        await stage.play(asks, 1, signals={"text": "x" * (MAX_PAYLOAD - 1)})


def test_the_size_is_that_of_utf_8() -> None:
    """Bytes count, and not characters; a text that is no UTF-8 has a size too."""
    assert within_limit("x" * MAX_PAYLOAD, "it")
    for text, size in (("é" * 1_000_001, 2_000_002), ("\ud800" * 666_667, 2_000_001)):
        with pytest.raises(PayloadTooLarge) as caught:
            within_limit(text, "it")
        assert caught.value.size == size
