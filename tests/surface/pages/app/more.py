"""A workflow that cannot be built, for docs/cli.md to show what is said of it."""

from __future__ import annotations

from composer import step, workflow


@step
async def count(folder: str) -> int:
    """How many photos are in it."""
    return 0


@workflow
def counted(folder: str) -> int:
    """Decides about data that is not there yet."""
    photos = count(folder)
    return photos if photos else count("all")
