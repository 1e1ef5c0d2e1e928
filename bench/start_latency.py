"""One step, start to result: milliseconds, worker in this process and, with --processes 1, in another."""

from __future__ import annotations

import time

from bench._common import FLOWS, arguments, line, run, spread, workers
from composer import AsyncClient, Worker
from samples.noop import single


async def main() -> None:
    """Runs one after the other."""
    args = arguments(workflows=300)
    async with workers(args) as settings:
        took: list[float] = []

        async def measure(client: AsyncClient) -> None:
            for n in range(args.workflows + 20):
                began = time.perf_counter()
                await (await client.start(single, n)).result(timeout=60)
                if n >= 20:
                    took.append((time.perf_counter() - began) * 1000)

        if args.processes:
            async with AsyncClient(settings=settings) as client:
                await measure(client)
        else:
            async with Worker(FLOWS, settings) as worker, AsyncClient(store=worker.store) as client:
                await measure(client)
    line("start_latency", args, ms=spread(took))


if __name__ == "__main__":
    run(main)
