"""Retry: how long, how often, and what is refused. The rows of case C15 are here."""

from __future__ import annotations

import math
import sys
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.core.retries import CEILING, NO_RETRY, Retry, bounded
from composer.errors import PlanError

MOST = sys.float_info.max


@pytest.mark.parametrize("failures", [1, 16, 47, 1_100, 2_000, 2**31, 10**300])
@pytest.mark.parametrize("backoff", [1.0, 2.0, 5.0, 1_000.0])
@pytest.mark.parametrize("longest", ["1m", "100d", timedelta(days=36_600)])
def test_delay_never_overflows(failures, backoff, longest):
    """An unlimited policy with any factor has a delay the calendar can hold, after any number of failures."""
    policy = Retry(None, 1.0, backoff, longest, jitter=1.0)
    assert policy.has_another(failures)
    for jitter in (0.0, 0.5, math.nextafter(1.0, 0.0)):
        delay = policy.delay_after(failures, jitter)
        assert 0.0 <= delay <= CEILING
        datetime.now(UTC) + timedelta(seconds=delay)


@given(
    delay=st.floats(0.0, 3e9),
    backoff=st.floats(1.0, 1_000.0),
    longest=st.floats(0.0, 3e9),
    spread=st.floats(0.0, 1.0),
    failures=st.integers(-3, 2**40),
    jitter=st.floats(0.0, 1.0, exclude_max=True),
)
def test_delay_stays_below_every_ceiling(delay, backoff, longest, spread, failures, jitter):
    """A delay is never negative, and never above the policy's own maximum or the calendar's."""
    policy = Retry(3, delay, backoff, longest, spread)
    assert 0.0 <= policy.delay_after(failures, jitter) <= min(longest, CEILING)


@given(st.integers(1, 40), st.floats(0.001, 100.0), st.floats(1.0, 10.0))
def test_delay_is_the_power_it_is_documented_to_be(failures, delay, backoff):
    """Below the maximum and without jitter the nth delay is delay * backoff ** (n - 1)."""
    policy = Retry(3, delay, backoff, max_delay=CEILING, jitter=0.0)
    assert policy.delay_after(failures) == pytest.approx(min(delay * backoff ** (failures - 1), CEILING), rel=1e-9)


def test_delay_falls_anywhere_in_its_spread():
    """Jitter spreads a delay evenly in both directions; one half is the middle."""
    policy = Retry(3, 10.0, 1.0, jitter=0.3)
    assert [policy.delay_after(1, j) for j in (0.0, 0.25, 0.5, 0.75)] == pytest.approx([7.0, 8.5, 10.0, 11.5])


def test_delay_of_zero_stays_zero():
    """A policy without a delay tries again at once, also after many failures and with full jitter."""
    assert {Retry(None, 0, 5.0, jitter=1.0).delay_after(n, 0.9) for n in (1, 16, 1_100)} == {0.0}
    assert Retry(None, 5, 5.0, max_delay=0).delay_after(3) == 0.0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("attempts", value) for value in (0, -1, True, False, 1.5, 2.0, math.nan, "3")],
        *[("delay", value) for value in (-1, -0.001, math.nan, math.inf, 4e9, MOST, 10**400, "soon", "", True, None)],
        ("delay", timedelta(days=40_000)),
        ("delay", timedelta(seconds=-1)),
        *[("max_delay", value) for value in (-1, math.nan, math.inf, 10**400, "later")],
        *[("jitter", value) for value in (-0.1, 1.1, math.nan, math.inf, True, "0.1", None)],
        *[("backoff", value) for value in (0.5, 0, -2, 1_001.0, math.nan, math.inf, True, "2", None)],
        *[("no_retry_on", value) for value in ((int,), (ValueError("x"),), "ValueError", int, 5, None)],
    ],
)  # fmt: skip
def test_policy_refuses_a_bad_field_by_name(field, value):
    """A bad value is refused where the policy is written, and the text names the field."""
    with pytest.raises(PlanError, match=rf"Retry\({field}="):
        Retry(**{field: value})


@pytest.mark.parametrize(("attempts", "more"), [(1, [False]), (3, [True, True, False, False]), (None, [True] * 5)])
def test_attempts_count_the_first_try(attempts, more):
    """attempts=1 never retries, n retries n - 1 times, None for ever."""
    assert [Retry(attempts).has_another(n) for n in range(1, len(more) + 1)] == more


def test_default_is_one_attempt():
    """Without a policy a step is tried once."""
    assert not NO_RETRY.has_another(1)


def test_policy_comes_back_from_json():
    """A policy survives the plan's JSON, but for the exception types, which stay with the code."""
    policy = Retry(None, "1m30s", 3, timedelta(hours=1), 0.25, no_retry_on=KeyError)
    assert policy.no_retry_on == (KeyError,)
    assert policy.as_json()["no_retry_on"] == ["builtins.KeyError"]
    assert Retry.from_json(policy.as_json()) == Retry(None, 90.0, 3.0, 3_600.0, 0.25)
    assert Retry.from_json(None) is NO_RETRY


@pytest.mark.parametrize(
    ("asked", "given"),
    [(0.0, 0.0), (-1.0, 0.0), (math.nan, 0.0), (2.5, 2.5), (CEILING, CEILING), (math.inf, CEILING), (MOST, CEILING)],
)
def test_bounded_keeps_a_delay_in_the_calendar(asked, given):
    """A delay that code asked for becomes a number of seconds the calendar can hold."""
    assert bounded(asked) == given
