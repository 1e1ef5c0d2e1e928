"""Retry: how often a step is tried, and how long it waits in between."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from composer.core.durations import seconds
from composer.errors import PlanError

_MINUTE: Final = 60.0
CEILING: Final = timedelta(days=366).total_seconds()
"""No delay is longer, whatever the policy multiplies up to: a moment the calendar and PostgreSQL can hold."""


def bounded(delay: float) -> float:
    """A delay that a step asked for, within [0, CEILING]. What is no number is no delay."""
    return min(delay, CEILING) if delay > 0.0 else 0.0


@dataclass(frozen=True)
class Retry:
    """How often and how soon a failing step is tried again.

    `attempts` counts the first try; None tries for ever. The wait after the nth failure is
    `delay * backoff ** (n - 1)` seconds, at most `max_delay` (a minute, or `delay` where that is longer), spread by up
    to `jitter` of itself in either direction. `no_retry_on` are exception types that fail the step at once. Durations are seconds, a
    timedelta or text such as "30s".
    """

    attempts: int | None = 3
    delay: float | timedelta | str = 1.0
    backoff: float = 2.0
    max_delay: float | timedelta | str | None = None
    jitter: float = 0.1
    no_retry_on: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        put = object.__setattr__
        if self.attempts is not None and (type(self.attempts) is not int or self.attempts < 1):
            raise PlanError(
                f"Retry(attempts={self.attempts!r}): the number of tries is 1 or more",
                "attempts counts the first try: 1 never retries; None tries for ever.",
            )
        put(self, "delay", seconds(self.delay, what="Retry(delay=...)", least=0.0))
        assert isinstance(self.delay, float)
        if self.max_delay is None:
            put(self, "max_delay", max(_MINUTE, self.delay))
        put(self, "max_delay", seconds(self.max_delay or 0.0, what="Retry(max_delay=...)", least=0.0))
        for name, least, most in (("backoff", 1.0, 1_000.0), ("jitter", 0.0, 1.0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
                raise PlanError(f"Retry({name}={value!r}): expected a number from {least:g} to {most:g}")
            put(self, name, float(value))
        types: Any = self.no_retry_on
        if isinstance(types, type) or not isinstance(types, Iterable):
            types = (types,)
        types = tuple(types)
        for kind in types:
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise PlanError(f"Retry(no_retry_on=...): {kind!r} is no exception type")
        put(self, "no_retry_on", types)

    def has_another(self, failures: int) -> bool:
        """Whether a step that has now failed `failures` times may be tried again."""
        return self.attempts is None or failures < self.attempts

    def delay_after(self, failures: int, jitter: float = 0.5) -> float:
        """Seconds to wait after the `failures`-th failure (1 or more). `jitter` in [0, 1) picks the point in the spread.

        Never raises and never leaves [0, CEILING]: the power is taken in logarithms, since 5.0 ** 500 overflows
        inside the code that must not fail.
        """
        assert isinstance(self.delay, float)
        assert isinstance(self.max_delay, float)
        if self.delay <= 0.0:
            return 0.0
        most = min(self.max_delay, CEILING)
        exponent = math.log(self.delay) + (max(failures, 1) - 1) * math.log(self.backoff)
        base = most if most <= 0.0 or exponent >= math.log(most) else math.exp(exponent)
        return min(base * (1.0 + self.jitter * (2.0 * jitter - 1.0)), most, CEILING)

    def as_json(self) -> dict[str, Any]:
        """What the plan keeps of it: every field, exception types by name."""
        return {
            "attempts": self.attempts,
            "delay": self.delay,
            "backoff": self.backoff,
            "max_delay": self.max_delay,
            "jitter": self.jitter,
            "no_retry_on": [f"{kind.__module__}.{kind.__qualname__}" for kind in self.no_retry_on],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> Retry:
        """The policy a plan holds. Exception types stay with the step's code, so they are not read back."""
        if value is None:
            return NO_RETRY
        return cls(value["attempts"], value["delay"], value["backoff"], value["max_delay"], value["jitter"])


NO_RETRY: Final = Retry(attempts=1)
"""The default: one attempt."""
