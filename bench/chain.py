"""A chain of ten steps, one run in flight: milliseconds from one step to the next."""

from __future__ import annotations

import time
from itertools import pairwise

from bench._common import FLOWS, arguments, line, run, spread, workers
from composer import AsyncClient, Worker
from samples.noop import chain


async def main() -> None:
    """Times whole runs, start to result, and the steps inside them."""
    args = arguments(workflows=200)
    async with (
        workers(args) as settings,
        Worker([] if args.processes else FLOWS, settings) as worker,
        AsyncClient(store=worker.store) as client,
    ):
        for _ in range(20):
            await (await client.start(chain, 1)).result(timeout=60)
        whole: list[float] = []
        between: list[float] = []
        for _ in range(args.workflows):
            began = time.perf_counter()
            handle = await client.start(chain, 1)
            await handle.result(timeout=60)
            whole.append((time.perf_counter() - began) * 1000)
            rows = await client.history(handle.id)
            moments = [row.at.timestamp() for row in rows]
            between += [(b - a) * 1000 for a, b in pairwise(moments[1:])]
    line("chain", args, steps=10, run_ms=spread(whole), step_ms=spread(between))


if __name__ == "__main__":
    run(main)
