"""Waits, sleeps and races as users write them: rows 20 to 23, 27, 28, 64 and 65 of the scenario table."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from composer import (
    Outcome,
    PlanError,
    either,
    is_none,
    maybe,
    otherwise,
    race,
    settled,
    sleep,
    sleep_until,
    step,
    wait_for_event,
    when,
    workflow,
)
from composer.client.starting import when_to_start
from composer.testing import Later
from tests.language.stage import Stage

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Approval:
    """A payload."""

    granted: bool
    by: str = "nobody"


@step
async def say(text: str) -> str:
    """The text."""
    return text


@step
async def told(outcome: Outcome[int | None]) -> str:
    """How a wait ended."""
    return f"{outcome.state} {outcome.value}"


@step
async def nap(n: float) -> float:
    """The number of seconds that something is to take."""
    return n


@step
async def hour(n: int) -> datetime:
    """A moment long ago, or in the far future."""
    return datetime(2000 if n == 0 else 2900, 1, 1, tzinfo=UTC)


@workflow
def asks(n: int) -> str:
    """Waits for an answer."""
    answer = wait_for_event("approval", Approval, timeout="300ms")
    return say(answer.by)


async def test_row_20_wait_without_an_answer_fails(stage: Stage) -> None:
    """It fails with code event-timeout, once; a signal in time is its value."""
    late = await stage.play(asks, 1)
    assert (late.status, late.code, late.states["approval"], late.states["say"]) == (
        "failed", "event-timeout", "failed", "skipped",
    )  # fmt: skip
    assert (await stage.play(asks, 1, signals={"approval": Approval(True, "ann")})).output == "ann"
    assert (await stage.play(asks, 1, signals={"approval": Later(0.1, Approval(True, "bob"))})).output == "bob"


@workflow
def stands_in(n: int) -> tuple[int | None, str]:
    """Waits, with an answer for the timeout."""
    answer = wait_for_event("n", int, timeout="200ms", on_timeout=None)
    return answer, told(settled(answer))


@workflow
def null_or_not(n: int) -> str:
    """Waits for what may be null."""
    return told(settled(wait_for_event("n", int | None, timeout="200ms", on_timeout=None)))


async def test_row_21_timeout_is_told_from_an_answer(stage: Stage) -> None:
    """The stand-in is the value, and settled() still says that it timed out; a null that was sent is one that came."""
    assert (await stage.play(stands_in, 1)).output == [None, "timed-out None"]
    assert (await stage.play(stands_in, 1, signals={"n": 7})).output == [7, "completed 7"]
    assert (await stage.play(null_or_not, 1, signals={"n": None})).output == "completed None"
    assert (await stage.play(null_or_not, 1)).output == "timed-out None"
    with pytest.raises(PlanError):

        @workflow
        def wrong(n: int) -> int:
            return wait_for_event("n", int, timeout=1, on_timeout="x")  # type: ignore[call-overload, no-any-return]


@workflow
def in_a_row(n: int) -> str:
    """Waits after something else."""
    first = sleep("200ms")
    return say(wait_for_event("go", str, after=first))


async def test_row_22_early_signal_is_kept(stage: Stage) -> None:
    """A signal that comes before its wait begins is taken when it does."""
    assert (await stage.play(in_a_row, 1, signals={"go": "early"})).output == "early"


@workflow
def two_of_a_name(n: int) -> list[str]:
    """One name, two waits, the second after the first."""
    one = wait_for_event("go", str)
    return [one, say(wait_for_event("go", str, after=one))]


async def test_row_23_one_signal_one_wait(stage: Stage) -> None:
    """Two waits for one name take one signal each, in the order they began to wait."""
    assert (await stage.play(two_of_a_name, 1, signals={"go": ["a", "b"]})).output == ["a", "b"]


@workflow
def times_out_first(n: int) -> list[str | None]:
    """The first wait times out, the second takes the event."""
    one = wait_for_event("go", str, timeout="100ms", on_timeout=None)
    return [one, wait_for_event("go", str, after=one)]


async def test_row_27_signal_that_lost_is_for_the_next(stage: Stage) -> None:
    """A signal after the first wait's timeout is taken by the next wait of its name."""
    assert (await stage.play(times_out_first, 1, signals={"go": Later(0.4, "late")})).output == [None, "late"]


@workflow(timeout=0.3)
def too_long(n: int) -> str:
    """Sleeps past its deadline."""
    return say.after(sleep("1h"))("never")


async def test_row_28_deadline_ends_a_sleep(stage: Stage) -> None:
    """The run stops with code deadline, its sleep with it."""
    played = await stage.play(too_long, 1)
    assert (played.status, played.code, played.states) == (
        "failed", "deadline", {"sleep": "cancelled", "say": "cancelled"},
    )  # fmt: skip


@workflow
def sleeps(n: float) -> str:
    """Sleeps as long as a value says."""
    return say.after(sleep(nap(n)))("slept")


@workflow
def sleeps_until(n: int) -> str:
    """Sleeps until a moment that a value says."""
    return say.after(sleep_until(hour(n)))("slept")


async def test_row_65_odd_sleeps(stage: Stage) -> None:
    """Nothing and less is no sleep, past moments neither; a century and more fails the node, with the value."""
    for n in (0.0, -5.0, 0.05):
        assert (await stage.play(sleeps, n)).output == "slept"
    assert (await stage.play(sleeps_until, 0)).output == "slept"
    played = await stage.play(sleeps, 1e12)
    assert (played.status, played.states["sleep"]) == ("failed", "failed")
    assert played.error is not None
    assert "1000000000000.0 is longer than a century" in played.error["message"]
    with pytest.raises(PlanError):

        @workflow
        def negative(n: int) -> str:
            return say.after(sleep(-1.0))("x")


@step
async def naive(n: int) -> datetime:
    """A moment without a zone."""
    return datetime(2031, 5, 1)


@workflow
def sleeps_until_nobody_knows(n: int) -> str:
    """Sleeps until a value without a zone."""
    return say.after(sleep_until(naive(n)))("slept")


async def test_row_64_moments_have_a_zone(stage: Stage) -> None:
    """A constant without a zone is refused where it is written, a start where it is asked for; a value fails its node."""
    with pytest.raises(PlanError, match="time zone"):

        @workflow
        def floating(n: int) -> str:
            return say.after(sleep_until(datetime(2031, 5, 1)))("x")

    with pytest.raises(PlanError, match="time zone"):
        when_to_start(None, datetime(2031, 5, 1))
    played = await stage.play(sleeps_until_nobody_knows, 1)
    assert (played.status, played.states["sleep_until"]) == ("failed", "failed")
    assert played.error is not None
    assert "no time zone" in played.error["message"]


@workflow
def first_of(n: int) -> tuple[str, bool]:
    """An answer or the end of patience."""
    answer = wait_for_event("go", str)
    patience = sleep("300ms")
    race(answer, patience)
    with when(is_none(maybe(answer))):
        nobody = say("nobody")
    with otherwise():
        somebody = say("somebody")
    return say(either(nobody, somebody)), is_none(maybe(patience))


async def test_race_takes_the_first_and_withdraws_the_rest(stage: Stage) -> None:
    """The signal wins and the sleep is skipped, or the other way round; nothing waits afterwards."""
    assert (await stage.play(first_of, 1, signals={"go": Later(0.1, "here")})).output == ["somebody", True]
    slow = await stage.play(first_of, 1)
    assert slow.output == ["nobody", False]
    assert (slow.states["go"], slow.states["sleep"], slow.states["race"]) == ("skipped", "completed", "completed")


@workflow
def month(n: int) -> datetime:
    """Sleeps for a month."""
    return sleep(timedelta(days=30))


async def test_a_month_takes_no_time_in_memory() -> None:
    """On the virtual clock a month's sleep is over at once, and its value is the moment it ended."""
    from composer.testing import run_workflow

    result = await run_workflow(month, 1)
    assert result.elapsed >= timedelta(days=30)
    assert result.value - result.run.created_at >= timedelta(days=30)
