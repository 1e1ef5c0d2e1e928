"""The table of docs/maps.md says what the core decides."""

from __future__ import annotations

from tests.surface.map_table import table, written


def test_table_of_maps_is_the_cores_own() -> None:
    """The page has the table that the core's decisions make, row for row."""
    assert written() == table(), "run python -m tests.surface.map_table"
