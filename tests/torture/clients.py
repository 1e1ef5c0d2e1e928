"""What users do meanwhile: start runs (some twice, with the same key), wait for them, cancel some, retry failed ones."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field

from composer import (
    AsyncClient,
    IdempotencyConflict,
    ResultTimeout,
    RunCancelled,
    RunFailed,
    RunNotFound,
    RunNotRetryable,
    StoreUnavailable,
)
from tests.torture.flows import FLOWS, SPOTS, Expected, interpret


@dataclass
class Wish:
    """A run that somebody wants, and what he heard of it."""

    number: int
    flow: str
    value: int
    key: str | None
    delay: float | None
    cancel_after: float | None
    repeats: int
    retries: bool
    expected: Expected
    ids: set[str] = field(default_factory=set[str])
    """Runs that were acknowledged for it: one."""
    created: int = 0
    unknown: int = 0
    """Starts whose outcome was never heard."""
    cancel_asked: bool = False
    cancel_answer: bool | None = None
    ended: str = ""
    """What its client heard at last."""


class Crowd:
    """The clients, all through one AsyncClient."""

    def __init__(self, client: AsyncClient, seed: int, runs: int) -> None:
        self._client = client
        self._draw = random.Random(f"crowd {seed}")
        self.problems: list[str] = []
        self.counts: Counter[str] = Counter()
        self.wishes = [self._wish(number) for number in range(runs)]

    def _wish(self, number: int) -> Wish:
        draw = self._draw
        flow, value = draw.choice(sorted(SPOTS)), draw.getrandbits(40)
        key = f"k{number}" if draw.random() < 0.8 else None
        return Wish(
            number, flow, value, key,
            delay=draw.uniform(0.2, 2.0) if draw.random() < 0.1 else None,
            cancel_after=draw.uniform(0.0, 3.0) if draw.random() < 0.1 else None,
            repeats=draw.choice((0, 0, 0, 1, 2)) if key else 0,
            retries=draw.random() < 0.6,
            expected=interpret(SPOTS[flow], value),
        )  # fmt: skip

    async def act(self, seconds: float, until: float) -> None:
        """Wishes come evenly over `seconds`, in small crowds; returns when all have been answered, at `until` at the latest."""
        began = time.monotonic()
        waiting: list[asyncio.Task[None]] = []
        batch = 6
        for first in range(0, len(self.wishes), batch):
            at = began + seconds * 0.95 * first / len(self.wishes)
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            waiting += [asyncio.create_task(self._live(wish, until)) for wish in self.wishes[first : first + batch]]
        for wish, outcome in zip(self.wishes, await asyncio.gather(*waiting, return_exceptions=True), strict=True):
            if isinstance(outcome, BaseException):
                self.problems.append(f"the client of wish {wish.number} met {type(outcome).__name__}: {outcome}")

    async def _live(self, wish: Wish, until: float) -> None:
        draw = random.Random(wish.number * 7919 + wish.value)
        starts = [self._start(wish, 0.0, until)]
        starts += [self._start(wish, draw.choice((0.0, draw.uniform(0, 4))), until) for _ in range(wish.repeats)]
        async with asyncio.TaskGroup() as group:
            for start in starts:
                group.create_task(start)
            if wish.cancel_after is not None:
                group.create_task(self._cancel(wish, wish.cancel_after, until))
        if wish.key is not None and draw.random() < 0.2:
            await self._conflict(wish)
        if wish.ids:
            await self._wait(wish, until)

    async def _start(self, wish: Wish, after: float, until: float) -> None:
        await asyncio.sleep(after)
        while time.monotonic() < until:
            try:
                handle = await self._client.start(
                    FLOWS[wish.flow], wish.value, idempotency_key=wish.key, delay=wish.delay, priority=wish.number % 3
                )
            except StoreUnavailable:
                wish.unknown += 1
                self.counts["starts unknown"] += 1
                if wish.key is None:
                    return
                continue
            wish.ids.add(handle.id)
            wish.created += handle.created
            self.counts["starts acknowledged"] += 1
            return

    async def _conflict(self, wish: Wish) -> None:
        try:
            await self._client.start(FLOWS[wish.flow], wish.value + 1, idempotency_key=wish.key)
        except IdempotencyConflict:
            self.counts["conflicts refused"] += 1
        except StoreUnavailable:
            pass
        else:
            self.problems.append(f"key {wish.key} was given to another input too")

    async def _cancel(self, wish: Wish, after: float, until: float) -> None:
        await asyncio.sleep(after)
        while time.monotonic() < until:
            for run_id in tuple(wish.ids):
                wish.cancel_asked = True
                try:
                    answer = await self._client.cancel(run_id, reason="torture")
                except StoreUnavailable:
                    continue
                wish.cancel_answer = answer.accepted
                self.counts["cancels accepted" if answer.accepted else "cancels too late"] += 1
                return
            await asyncio.sleep(0.1)

    async def _wait(self, wish: Wish, until: float) -> None:
        (run_id, *more) = wish.ids
        if more:
            return
        handle = self._client.handle(FLOWS[wish.flow], run_id)
        while (left := until - time.monotonic()) > 0:
            try:
                value = await handle.result(timeout=left)
            except StoreUnavailable:
                continue
            except ResultTimeout:
                break
            except RunNotFound:
                self.problems.append(f"run {run_id} was acknowledged and does not exist")
                return
            except RunCancelled:
                wish.ended = "cancelled"
                return
            except RunFailed as error:
                wish.ended = "failed"
                if not wish.retries:
                    return
                if not await self._retry(run_id, until):
                    return
                if not wish.expected.doomed:
                    self.problems.append(f"run {run_id} failed: {error}")
            else:
                wish.ended = "completed"
                if value != wish.expected.result:
                    self.problems.append(f"run {run_id}: its client got {value}, expected {wish.expected.result}")
                return
        self.problems.append(f"run {run_id}: its client waited in vain")

    async def _retry(self, run_id: str, until: float) -> bool:
        """Whether there is something to wait for."""
        while time.monotonic() < until:
            try:
                await self._client.retry(run_id)
            except StoreUnavailable:
                continue
            except RunNotRetryable:
                # After an unknown outcome: the first try was the one.
                self.counts["retries found done"] += 1
                return True
            self.counts["retries"] += 1
            return True
        return False
