"""Five starts at once with one idempotency key: `python -m tests.cases.starts_c37 KEY async|threads`, once told to."""

from __future__ import annotations

import asyncio
import json
import sys
from concurrent.futures import ThreadPoolExecutor

from composer import AsyncClient, Client
from tests.system.flows import napping

STARTS = 5

Answer = tuple[str, bool, int]
"""Run id, whether this start made it, and its result."""


def told() -> None:
    """Says that the client is open, and returns once all are."""
    print("open", flush=True)
    sys.stdin.readline()


async def in_tasks(key: str) -> list[Answer]:
    """From tasks of one loop."""
    async with AsyncClient() as client:
        told()

        async def starts() -> Answer:
            run = await client.start(napping, 1, 3.0, idempotency_key=key)
            return run.id, run.created, await run.result(timeout=30)

        return await asyncio.gather(*(starts() for _ in range(STARTS)))


def in_threads(key: str) -> list[Answer]:
    """From threads that share a client."""
    with Client() as client, ThreadPoolExecutor(STARTS) as pool:
        told()

        def starts(_: int) -> Answer:
            run = client.start(napping, 1, 3.0, idempotency_key=key)
            return run.id, run.created, run.result(timeout=30)

        return list(pool.map(starts, range(STARTS)))


if __name__ == "__main__":
    key, how = sys.argv[1:]
    print(json.dumps(asyncio.run(in_tasks(key)) if how == "async" else in_threads(key)))
