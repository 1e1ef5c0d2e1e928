"""A clock that stands still until it is turned."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class VirtualClock:
    """Begins at `start` (1 January 2030 unless given) and moves only by `advance`."""

    def __init__(self, start: datetime | None = None) -> None:
        self._now = start or datetime(2030, 1, 1, tzinfo=UTC)
        self.started = self._now

    def now(self) -> datetime:
        """The moment it stands at."""
        return self._now

    def advance(self, by: float | timedelta) -> None:
        """Moves on by seconds or a timedelta; never back."""
        by = by if isinstance(by, timedelta) else timedelta(seconds=by)
        self._now += max(by, timedelta(0))

    @property
    def elapsed(self) -> timedelta:
        """How far it was moved since its start."""
        return self._now - self.started
