"""What a worker has room for."""

from __future__ import annotations

import pytest

from composer import step
from composer.worker.places import Places


@step
async def on_loop(n: int) -> int:
    """Takes a slot."""
    return n


@step
def in_thread(n: int) -> int:
    """Takes a slot and a thread."""
    return n


@step(isolation="process")
def in_process(n: int) -> int:
    """Takes a slot and a process."""
    return n


@pytest.fixture
def places() -> Places:
    """Ten slots, two threads, one process."""
    return Places({each.name: each for each in (on_loop, in_thread, in_process)}, slots=10, threads=2, processes=1)


def test_what_needs_a_place_is_asked_for_while_there_is_one(places: Places) -> None:
    """Process steps come first and few at a time; what has no place left is not claimed, and is wanted when one is left."""
    assert places.askable(8) == [(["on_loop", "in_thread", "in_process"], 1), (["on_loop", "in_thread"], 2)]
    places.take(in_process)
    assert places.askable(8) == [(["on_loop", "in_thread"], 2)]
    places.take(in_thread)
    places.take(in_thread)
    assert places.askable(8) == [(["on_loop"], 8)]
    places.take(on_loop)
    assert not places.leave(on_loop)
    assert places.leave(in_thread)
    assert places.leave(in_process)


def test_a_promise_is_room_that_is_gone(places: Places) -> None:
    """What is reserved is neither promised nor claimed again, and is there again once it is taken back."""
    with places.promised(9):
        assert places.slots.free == 1
        places.reserve(in_process)
        assert places.slots.free == 0
        assert not places.has_place(in_process)
        assert places.has_place(in_thread)
    places.unreserve(["in_process"])
    assert places.slots.free == 10
    assert places.has_place(in_process)
