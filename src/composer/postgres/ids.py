"""Run ids: UUIDv7 on the database's clock, so that they fall into the right month of history whatever a client's clock says."""

from __future__ import annotations

import secrets
import time
import uuid
from datetime import UTC, datetime, timedelta
from typing import Final

_APART: Final = timedelta(minutes=5)
"""How far a run's id and its creation may be apart: its maker's clock runs on between two words from the database."""


class RunIds:
    """Mints rising ids from the database's time, as last heard, carried on by the monotonic clock."""

    def __init__(self) -> None:
        self._offset: float | None = None
        self._last = 0

    @property
    def is_set(self) -> bool:
        """Whether the database's time has been heard."""
        return self._offset is not None

    def heard(self, database_time: float) -> None:
        """The database said that it is `database_time`, in seconds since the epoch."""
        self._offset = database_time - time.monotonic()

    def mint(self) -> str:
        """A new id, larger than every earlier one of this process."""
        assert self._offset is not None
        # 48 bits of milliseconds and 12 more of their fraction, as RFC 9562 allows, make ids of one process rise.
        ticks = max(int((time.monotonic() + self._offset) * 1000 * 4096), self._last + 1)
        self._last = ticks
        value = (ticks >> 12 << 80) | (7 << 76) | ((ticks & 0xFFF) << 64) | (2 << 62) | secrets.randbits(62)
        return str(uuid.UUID(int=value))


def id_bounds(since: datetime | None, until: datetime | None) -> tuple[str, str]:
    """Ids between which every run created from `since` until `until` is, and few others."""
    lowest = 0 if since is None else _ticks(since - _APART) << 80
    highest = (1 << 128) - 1 if until is None else _ticks(until + _APART) << 80
    return str(uuid.UUID(int=lowest)), str(uuid.UUID(int=highest))


def _ticks(moment: datetime) -> int:
    return max(0, (moment - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1))
