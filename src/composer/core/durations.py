"""Durations as users write them: seconds, a timedelta, or text such as "30s", "1h30m", "250ms"."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Final

from composer.errors import PlanError

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
CENTURY: Final = 100 * 366 * 86_400.0
"""The longest duration taken, in seconds. A longer one is a mistake, and would leave the calendar sooner or later."""


def seconds(value: float | timedelta | str, *, what: str, least: float = 0.0, most: float = CENTURY) -> float:
    """The duration in seconds. Raises PlanError naming `what` when it is unreadable or outside [least, most]."""
    given: object = value  # callers without a type checker pass anything
    if isinstance(value, timedelta):
        number = value.total_seconds()
    elif isinstance(value, str):
        parts = _PART.findall(value.replace(" ", ""))
        if not parts or "".join(f"{n}{u}" for n, u in parts) != value.replace(" ", ""):
            raise PlanError(
                f"{what}: {value!r} is no duration", 'Write seconds, a timedelta, or text such as "30s" or "1h30m".'
            )
        number = sum(float(n) * _UNITS[u] for n, u in parts)
    elif isinstance(given, bool) or not isinstance(given, (int, float)):
        raise PlanError(
            f"{what}: {value!r} is no duration", 'Write seconds, a timedelta, or text such as "30s" or "1h30m".'
        )
    else:
        try:
            number = float(given)
        except OverflowError:
            number = math.inf if given > 0 else -math.inf
    if not math.isfinite(number) or not least <= number <= most:
        bound = (
            f"at least {least:g} s"
            if number < least
            else f"at most {most:g} s (a century)"
            if most == CENTURY
            else f"at most {most:g} s"
        )
        raise PlanError(f"{what}: {value!r} is out of range", f"Expected a finite duration of {bound}.")
    return number
