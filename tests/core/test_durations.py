"""Durations: what is read, and what is refused with the name of where it was written."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.core.durations import CENTURY, seconds
from composer.errors import PlanError


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0.0), (3, 3.0), (0.25, 0.25), (timedelta(minutes=2), 120.0), ("30s", 30.0), ("1h30m", 5_400.0), ("250ms", 0.25),
        ("1.5m", 90.0), ("2d", 172_800.0), ("1w", 604_800.0), ("1 h 30 m", 5_400.0), ("1m1ms", 60.001), (CENTURY, CENTURY),
    ],
)  # fmt: skip
def test_seconds_reads_every_way_of_writing(value, expected):
    """Numbers, timedeltas and texts with units become seconds."""
    assert seconds(value, what="x") == pytest.approx(expected)


@pytest.mark.parametrize(
    "value",
    ["", "s", "30", "30 seconds", "1.5.2s", "-5s", "1h30", "NaNs", "1H", "5y", True, False, None, [], b"5s", 1j],
)
def test_seconds_refuses_what_is_no_duration(value):
    """What cannot be read is refused, with the place, the value and an example."""
    with pytest.raises(PlanError) as caught:
        seconds(value, what="timeout of step a")
    assert str(caught.value).startswith(f"timeout of step a: {value!r} is no duration")
    assert "1h30m" in caught.value.advice


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        (-1, "at least 0 s"), (timedelta(days=-1), "at least 0 s"), (-math.inf, "at least 0 s"), (-(10**400), "at least 0 s"),
        (math.nan, "a finite duration"), (math.inf, "(a century)"), (10**400, "(a century)"), (CENTURY * 1.01, "(a century)"),
        ("99999999999w", "(a century)"), ("9" * 400 + "s", "(a century)"), (timedelta.max, "(a century)"),
    ],
)  # fmt: skip
def test_seconds_refuses_what_is_out_of_range(value, advice):
    """A number outside of the range is refused with the bound it breaks."""
    with pytest.raises(PlanError, match=r"^x: .* is out of range") as caught:
        seconds(value, what="x")
    assert advice in caught.value.advice


def test_seconds_keeps_to_the_bounds_it_is_given():
    """The bounds of the place count, both included."""
    assert seconds(5, what="x", least=5, most=5) == 5.0
    for value, bound in ((4, "at least 5 s"), (6, "at most 5 s")):
        with pytest.raises(PlanError, match=bound):
            seconds(value, what="x", least=5, most=5)


@given(st.text(alphabet="0123456789.hmsdw -ex", max_size=12))
def test_seconds_of_any_text_answers_or_refuses(text):
    """Any text is a finite duration in range or a PlanError, never another exception."""
    try:
        number = seconds(text, what="x")
    except PlanError:
        return
    assert 0.0 <= number <= CENTURY
