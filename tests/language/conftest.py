"""Every stage, one after the other."""

from __future__ import annotations

import pytest

from tests.language.stage import MemoryStage, PostgresStage, Stage


@pytest.fixture(params=["memory", "postgres"])
def stage(request: pytest.FixtureRequest) -> Stage:
    """Memory, then the server."""
    if request.param == "memory":
        return MemoryStage()
    return PostgresStage(request.getfixturevalue("database"), request.getfixturevalue("namespace"))
