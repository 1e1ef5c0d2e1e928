"""The project that docs/cli.md shows the command line on."""

from __future__ import annotations

import os

import anyio

from composer import Retry, sleep, step, wait_for_event, workflow

PHOTOS = 240
QUICK = 200


@step
async def find(folder: str) -> list[int]:
    """The numbers of the folder's photos."""
    return list(range(PHOTOS))


@step
async def resize(photo: int) -> int:
    """A smaller photo. Some are done only once the file `GALLERY_GOES_ON` is there, so that a test can look meanwhile."""
    goes_on = anyio.Path(os.environ["GALLERY_GOES_ON"])
    while photo >= QUICK and not await goes_on.exists():
        await anyio.sleep(0.05)
    return photo


@step(retries=Retry(attempts=3, delay=2.0, backoff=1.0))
async def reserve(folder: str) -> str:
    """The place of the exhibition."""
    raise ConnectionError("the gallery does not answer: connection refused")


@step
async def publish(photos: list[int], place: str, is_approved: bool) -> int:
    """How many photos hang there."""
    return len(photos)


@step
async def tell(count: int) -> None:
    """Says that it is open."""


@workflow
def gallery(folder: str) -> None:
    """An exhibition of a folder's photos, once somebody has approved of it."""
    approval = wait_for_event("approval", bool, timeout="2d")
    photos = resize.map(find(folder))
    return tell(publish(photos, reserve(folder), approval))


@workflow
def survey(folder: str) -> list[int]:
    """Only looks for photos, and asks for a word that may never come."""
    sleep("1h")
    word = wait_for_event("go", bool)
    return find.after(word)(folder)
