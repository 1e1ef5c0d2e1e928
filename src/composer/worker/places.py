"""What a worker has room for: a slot for every body, and beside it a place for one in a thread or in a process.

What a claim or a commit may bring is reserved before it is sent: of two under way neither knows what the other one brings.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from composer.define.step import Step


@dataclass(slots=True)
class Room:
    """How many bodies of one kind may run at the same time."""

    limit: int
    taken: int = 0
    reserved: int = 0
    """Promised to a claim or a commit under way."""
    ran_out: bool = False
    """Whether the last claim left out steps that need some."""

    @property
    def free(self) -> int:
        """How many more may begin, or be promised."""
        return self.limit - self.taken - self.reserved


class Places:
    """Counts slots and places, and says which steps to claim with those that are free."""

    def __init__(self, steps: Mapping[str, Step[..., Any]], *, slots: int, threads: int, processes: int) -> None:
        self.slots, self.threads, self.processes = Room(slots), Room(threads), Room(processes)
        self._steps = steps
        self._on_loop = [name for name, step in steps.items() if step.is_async]
        self._in_threads = [name for name, step in steps.items() if self._beside(step) is self.threads]
        self._in_processes = [name for name, step in steps.items() if self._beside(step) is self.processes]

    def askable(self, limit: int) -> list[tuple[Sequence[str], int]]:
        """Which steps to claim, and how many tasks: of steps that need a place no more than there are places free.

        What comes second is only claimed when the first claim was full: of process steps few can be taken at a time,
        and others, if they are what waits, need not come in such small numbers.
        """
        threads, processes = self.threads, self.processes
        threads.ran_out = bool(self._in_threads) and threads.free <= 0
        processes.ran_out = bool(self._in_processes) and processes.free <= 0
        steps = list(self._on_loop)
        if self._in_threads and threads.free > 0:
            steps += self._in_threads
            limit = min(limit, threads.free)
        asked: list[tuple[Sequence[str], int]] = [(steps, limit)] if steps else []
        if self._in_processes and processes.free > 0:
            few = min(limit, processes.free)
            asked[:0] = [([*steps, *self._in_processes], few)]
        return asked

    @contextmanager
    def promised(self, slots: int) -> Generator[None]:
        """Reserves slots for a claim; its tasks take theirs once they have come."""
        self.slots.reserved += slots
        try:
            yield
        finally:
            self.slots.reserved -= slots

    def has_place(self, step: Step[..., Any]) -> bool:
        """Whether there is what a body of the step takes beside a slot."""
        place = self._beside(step)
        return place is None or place.free > 0

    def reserve(self, step: Step[..., Any]) -> None:
        """Promises a task of the step what it takes."""
        for room in self._of(step):
            room.reserved += 1

    def unreserve(self, steps: Iterable[str]) -> None:
        """Takes the promises back, a step's name for each."""
        for name in steps:
            for room in self._of(self._steps[name]):
                room.reserved -= 1

    def take(self, step: Step[..., Any]) -> None:
        """A body of the step begins."""
        for room in self._of(step):
            room.taken += 1

    def leave(self, step: Step[..., Any]) -> bool:
        """A body of the step has ended. Whether the last claim left out steps for want of what it leaves."""
        rooms = self._of(step)
        for room in rooms:
            room.taken -= 1
        return any(room.ran_out for room in rooms)

    def _of(self, step: Step[..., Any]) -> tuple[Room, ...]:
        place = self._beside(step)
        return (self.slots,) if place is None else (self.slots, place)

    def _beside(self, step: Step[..., Any]) -> Room | None:
        if step.is_async:
            return None
        return self.processes if step.isolation == "process" else self.threads
