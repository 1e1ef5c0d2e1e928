"""Random workflows from a seed, whose every value a naive interpreter knows beforehand.

A step's result is a digest of its name, its node and its inputs, so a result that was skipped, doubled or crossed shows
in the value of the run. What else a body does (fail, sleep over the lease, hang until its timeout, snooze, block the
worker's loop) follows from the same digest. Every body writes a ledger: lines appended to one file, which no fault reaches.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

from composer import NonRetryable, Retry, Snooze, step, step_context, workflow
from composer.define.workflow import Workflow

SEED = int(os.environ.get("TORTURE_SEED", "1"))
LEDGER = os.environ.get("TORTURE_LEDGER", "")
LEASE = 2.0
"""Seconds, of every worker of the torture."""

PATIENT = Retry(attempts=20, delay=0.05, backoff=1.5, max_delay=0.5)
"""No fault of the plan spends it, so a run that fails for good fails for its own reasons."""


class Mood(Enum):
    """What a body does before it returns."""

    QUICK = "quick"
    FAILS_ONCE = "fails once"
    FAILS_TWICE = "fails twice"
    DOOMED = "fails for good, until the run is retried"
    SLOW = "sleeps longer than its lease"
    SNOOZES = "snoozes its first delivery"
    HANGS = "hangs at its first attempt, where it has a timeout"
    BLOCKS = "blocks the worker's loop for longer than the lease"


_MOODS = (
    [Mood.FAILS_ONCE] * 120 + [Mood.FAILS_TWICE] * 30 + [Mood.DOOMED] * 15 + [Mood.SLOW] * 50 + [Mood.SNOOZES] * 30
    + [Mood.HANGS] * 60 + [Mood.BLOCKS] * 3 + [Mood.QUICK] * 692
)  # fmt: skip


_TIMED = "_timed"
_EACH = "_each"


class Planned(Exception):
    """A failure that the mood asked for."""


def digest(*parts: Any) -> int:
    """A number of 48 bits, which JSON carries unchanged."""
    return int.from_bytes(hashlib.blake2b(json.dumps(parts).encode(), digest_size=6).digest(), "big")


def value_of(name: str, node: str, values: list[int]) -> int:
    """What the step gives at this node."""
    return digest("value", name, node, values)


def mood_of(node: str, values: list[int]) -> Mood:
    """How the body behaves. A node with a timeout (its name says so) would never end if it were slow at every attempt."""
    mood = _MOODS[digest("mood", node, values) % len(_MOODS)]
    if node.endswith(_EACH):
        # Of the many items of a map few may be so bad that they change what becomes of the run.
        bad = mood in (Mood.BLOCKS, Mood.HANGS) or (mood is Mood.DOOMED and digest("rare", node, values) % 10)
        return Mood.QUICK if bad else mood
    if node.endswith(_TIMED):
        return Mood.HANGS if mood in (Mood.SLOW, Mood.BLOCKS) else mood
    return Mood.QUICK if mood is Mood.HANGS else mood


def label(node: str, item: int) -> str:
    """What the ledger and the checks call a task."""
    return f"{node}#{item}" if item >= 0 else node


# -- the ledger -------------------------------------------------------------------------------------------------

_ledger: list[int] = []


def _write(phase: str) -> None:
    if not LEDGER:
        return
    if not _ledger:
        _ledger.append(os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644))
    me = step_context()
    line = {
        "run": me.run_id, "node": label(me.node, me.item), "attempt": me.attempt, "delivery": me.fence, "pid": os.getpid(),
        "phase": phase, "at": time.monotonic(),
    }  # fmt: skip
    # One write of one line: nothing of another process gets in between, and a kill -9 takes nothing back.
    os.write(_ledger[0], (json.dumps(line) + "\n").encode())


@contextmanager
def _recorded() -> Iterator[None]:
    _write("start")
    try:
        yield
    except BaseException as error:
        _write("fail" if isinstance(error, Exception) else "stop")
        raise
    _write("end")


# -- the steps --------------------------------------------------------------------------------------------------


def _sleep_of(node: str, values: list[int]) -> float:
    """Raises what the mood asks for, else says how long the body takes."""
    me, mood = step_context(), mood_of(node, values)
    spread = digest("sleep", node, values) % 1000 / 1000
    if me.attempt <= {Mood.FAILS_ONCE: 1, Mood.FAILS_TWICE: 2}.get(mood, 0):
        raise Planned(f"{node}, attempt {me.attempt}")
    if mood is Mood.DOOMED and me.attempt == 1:
        raise NonRetryable(f"{node} is doomed")
    if mood is Mood.SNOOZES and me.fence == 1:
        raise Snooze(0.05 + spread / 5)
    if mood is Mood.SLOW or (mood is Mood.HANGS and me.attempt == 1):
        return LEASE * (1.1 + spread / 2)
    return spread * 0.06


@step(retries=PATIENT)
async def mix(node: str, values: list[int]) -> int:
    """In the worker's loop."""
    with _recorded():
        seconds = _sleep_of(node, values)
        if mood_of(node, values) is Mood.BLOCKS:
            time.sleep(LEASE * 1.2)  # noqa: ASYNC251
        await asyncio.sleep(seconds)
        return value_of("mix", node, values)


@step(retries=PATIENT)
def grind(node: str, values: list[int]) -> int:
    """In a thread."""
    with _recorded():
        time.sleep(_sleep_of(node, values))
        return value_of("grind", node, values)


@step(retries=PATIENT, on_crash="fail")
async def crawl(node: str, values: list[int]) -> int:
    """With checkpoints, and with crashes that count as failures."""
    with _recorded():
        seconds, me = _sleep_of(node, values), step_context()
        for done in range(me.heartbeat_details(int, 0), 4):
            await asyncio.sleep(seconds / 4)
            me.heartbeat(done + 1)
        return value_of("crawl", node, values)


def numbers_of(node: str, values: list[int]) -> list[int]:
    """What a map runs over: from none to sixty numbers."""
    return [digest("number", node, values, i) for i in range(digest("count", node, values) % 61)]


@step(retries=PATIENT)
async def split(node: str, values: list[int]) -> list[int]:
    """Makes the list of a map."""
    with _recorded():
        await asyncio.sleep(_sleep_of(node, values))
        return numbers_of(node, values)


@step(retries=PATIENT)
async def piece(number: int, node: str) -> int:
    """One item of a map."""
    with _recorded():
        await asyncio.sleep(_sleep_of(node, [number]))
        return value_of("piece", node, [number])


STEPS: dict[str, Any] = {"mix": mix, "grind": grind, "crawl": crawl}


# -- the workflows ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spot:
    """A node. `reads` are indices of earlier spots, -1 for the run's input."""

    name: str
    step: str
    reads: tuple[int, ...]
    options: tuple[tuple[str, Any], ...] = ()
    is_wide: bool = False
    """Whether a map stands before it, and it reads what the items give."""


@dataclass(frozen=True)
class Expected:
    """What the interpreter says about a run."""

    values: dict[str, str]
    """JSON text by task, as `label` calls it."""
    result: int
    doomed: bool
    """Whether some node fails for good at its first attempt."""


def interpret(spots: tuple[Spot, ...], value: int) -> Expected:
    """A run, as anybody would do it by hand."""
    values: list[int] = []
    told: dict[str, Any] = {}
    moods: list[Mood] = []
    for spot in spots:
        given = [value if i < 0 else values[i] for i in spot.reads]
        if spot.is_wide:
            # A list, an item for each of its numbers, and a step that reads them all.
            made, each = spot.name + "_list", spot.name + _EACH
            numbers = told[made] = numbers_of(made, given)
            moods += [mood_of(made, given), *(mood_of(each, [number]) for number in numbers)]
            given = [value_of("piece", each, [number]) for number in numbers]
            told.update((label(each, i), v) for i, v in enumerate(given))
        moods.append(mood_of(spot.name, given))
        values.append(value_of(spot.step, spot.name, given))
        told[spot.name] = values[-1]
    texts = {name: json.dumps(each, separators=(",", ":")) for name, each in told.items()}
    return Expected(texts, values[-1], Mood.DOOMED in moods)


def _drawn(draw: random.Random, flow: str) -> tuple[Spot, ...]:
    spots: list[Spot] = []
    for index in range(draw.randint(3, 10) - 1):
        count = min(index, draw.choice((0, 1, 1, 2, 3)))
        reads = sorted(draw.sample(range(index), count)) or [-1]
        if draw.random() < 0.2 and -1 not in reads:
            reads.append(-1)
        options: list[tuple[str, Any]] = []
        name = draw.choices(("mix", "grind", "crawl"), (5, 4, 2))[0]
        # A thread cannot be stopped: one that hangs beyond its timeout would only keep its slot.
        timed = name != "grind" and draw.random() < 0.4
        if timed:
            options.append(("timeout", LEASE / 2))
        if draw.random() < 0.2:
            options.append(("priority", draw.randint(-5, 5)))
        if draw.random() < 0.1:
            options.append(("heartbeat_timeout", LEASE))
        wide = draw.random() < 0.15
        spots.append(Spot(f"{flow}_{index}{_TIMED if timed else ''}", name, tuple(reads), tuple(options), wide))
    used = {i for spot in spots for i in spot.reads}
    ends = tuple(i for i in range(len(spots)) if i not in used)
    return (*spots, Spot(f"{flow}_end", "mix", ends))


def _built(flow: str, spots: tuple[Spot, ...]) -> Workflow[[int], int]:
    def builder(value: int) -> int:
        made: list[Any] = []
        for spot in spots:
            node: Callable[..., Any] = STEPS[spot.step].named(spot.name)
            if spot.options:
                node = node.options(**dict(spot.options))  # type: ignore[attr-defined]
            given: Any = [value if i < 0 else made[i] for i in spot.reads]
            if spot.is_wide:
                numbers, each = spot.name + "_list", spot.name + _EACH
                window = {"max_concurrency": 5} if len(spot.reads) % 2 else {}
                given = piece.named(each).options(**window).map(split.named(numbers)(numbers, given), node=each)  # type: ignore[arg-type]
            made.append(node(spot.name, given))
        return made[-1]

    return workflow(name=flow)(builder)


def _drawings(seed: int) -> dict[str, tuple[Spot, ...]]:
    draw = random.Random(seed)
    return {f"flow{n}": _drawn(draw, f"flow{n}") for n in range(draw.randint(8, 12))}


SPOTS = _drawings(SEED)
FLOWS: dict[str, Workflow[[int], int]] = {name: _built(name, spots) for name, spots in SPOTS.items()}
globals().update(FLOWS)  # where a worker looks for workflows
