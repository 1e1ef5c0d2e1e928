"""Clock: what the memory store and the testing tools ask for the time. PostgreSQL has its own."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """A source of aware UTC moments that never go back."""

    def now(self) -> datetime:
        """The moment it is."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """The moment it is."""
        return datetime.now(UTC)
