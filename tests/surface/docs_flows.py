"""The workflow whose runs docs/cli.md shows. How far it goes is told to it, so that every picture can be had again."""

from __future__ import annotations

from dataclasses import dataclass

from composer import NonRetryable, Retry, step, wait_for_event, workflow
from tests.working import until


@dataclass
class Held:
    """How many of the pictures are let through."""

    passing: int = 107


HELD = Held()


@step
async def find(folder: str) -> list[int]:
    """The pictures of a folder."""
    return list(range(240))


@step
async def resize(picture: int) -> int:
    """A smaller picture."""
    await until(lambda: picture < HELD.passing, 120)
    return picture


# The second delay is a minute: long enough to be looked at.
@step(retries=Retry(attempts=5, delay=0.06, backoff=1_000, jitter=0))
async def reserve(folder: str) -> str:
    """A place, which is not to be had."""
    if folder == "holidays":
        raise ConnectionError("the gallery does not answer: connection refused")
    raise NonRetryable(f"the gallery has no place for {folder}")


@step
async def publish(approved: bool, pictures: list[int]) -> int:
    """How many are shown."""
    return len(pictures)


@step
async def tell(shown: int, place: str) -> str:
    """Whom it concerns."""
    return place


@workflow
def gallery(folder: str) -> str:
    """Pictures, resized, that somebody approves."""
    approved = wait_for_event("approval", bool, timeout="2d")
    place = reserve(folder)
    shown = publish(approved, resize.map(find(folder)))
    return tell(shown, place)
