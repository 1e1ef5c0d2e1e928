"""What goes wrong, and when: drawn from the seed before anything starts."""

from __future__ import annotations

import random
from dataclasses import dataclass

RATES = {
    "kill_worker": 12, "kill_coordinator": 8, "stop_worker": 5, "stop_coordinator": 3, "drain_worker": 3, "crash_database": 4,
    "terminate": 20, "abort": 10, "black_hole": 3, "cut_before": 20, "cut_after": 20,
}  # fmt: skip
"""A minute."""
OF_THE_PROXY = frozenset({"abort", "black_hole", "cut_before", "cut_after"})
FLOORS = {
    "kill_worker": 1,
    "kill_coordinator": 1,
    "stop_worker": 1,
    "crash_database": 1,
    "cut_before": 5,
    "cut_after": 5,
}
"""Fewer of these, and the run proves nothing."""


@dataclass(frozen=True)
class Fault:
    """`at` and `seconds` in seconds; `which` is a number that chooses among whoever there is; `hard` is the rougher way."""

    at: float
    kind: str
    which: int
    seconds: float
    hard: bool

    def __str__(self) -> str:
        return f"{self.at:6.2f} {self.kind} #{self.which} {self.seconds:.2f} s{' hard' if self.hard else ''}"


def drawn(seed: int, seconds: float, *, proxy: bool) -> list[Fault]:
    """The faults of a phase of so many seconds, in order."""
    draw = random.Random(f"plan {seed}")
    faults: list[Fault] = []
    for kind, rate in RATES.items():
        if kind in OF_THE_PROXY and not proxy:
            continue
        spare = 1.6 if kind.startswith("cut") else 1.0  # some find no commit any more
        for _ in range(max(round(rate * seconds / 60), round(FLOORS.get(kind, 0) * spare))):
            at = draw.uniform(0.02, 0.97) * seconds
            long = draw.uniform(3.0, 6.0) if kind.startswith("stop") else draw.uniform(0.0, 2.5)
            faults.append(Fault(at, kind, draw.randrange(1000), long, draw.random() < 0.5))
    return sorted(faults, key=lambda fault: fault.at)
