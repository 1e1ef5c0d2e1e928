"""Many diamonds of six steps at once: steps a second."""

from __future__ import annotations

import statistics
import time

import anyio

from bench._common import FLOWS, arguments, line, run, workers
from composer import AsyncClient, Worker
from samples.noop import diamond


async def main() -> None:
    """Starts all runs with one call and waits for the last."""
    args = arguments(workflows=500)
    async with (
        workers(args) as settings,
        Worker([] if args.processes else FLOWS, settings) as worker,
        AsyncClient(store=worker.store) as client,
    ):
        rates: list[float] = []
        for round_ in range(args.rounds + 1):
            count = args.workflows if round_ else 50
            began = time.perf_counter()
            handles = await client.start_many(diamond, [(n,) for n in range(count)])
            async with anyio.create_task_group() as group:
                for handle in handles:
                    group.start_soon(client.wait, handle.id)
            if round_:
                rates.append(count * 6 / (time.perf_counter() - began))
    line("diamond", args, steps_per_s=statistics.median(rates), rounds=[round(rate) for rate in rates])


if __name__ == "__main__":
    run(main)
