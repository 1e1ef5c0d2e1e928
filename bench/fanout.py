"""One map of many items: items a second, and what it does to small runs beside it and to memory."""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import time
from pathlib import Path

import anyio

from bench._common import FLOWS, arguments, line, run, spread, workers
from composer import AsyncClient, Worker
from samples.noop import fanout, single

_WIDTHS = (1_000, 10_000, 100_000)


async def main() -> None:
    """For every width: a round to warm up, then the median of the rounds. With --beside N, N small runs meanwhile."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--widths", type=int, nargs="*", default=_WIDTHS)
    parser.add_argument("--beside", type=int, default=0)
    own, rest = parser.parse_known_args()
    args = arguments(rest, workflows=1, rounds=3)
    async with (
        workers(args) as settings,
        Worker([] if args.processes else FLOWS, settings) as worker,
        AsyncClient(store=worker.store) as client,
    ):
        await (await client.start(fanout, 200)).result(timeout=60)
        for width in own.widths:
            rates: list[float] = []
            delays: list[float] = []
            memory = _memory()
            for _ in range(1 if width > 50_000 else args.rounds):
                began = time.perf_counter()
                handle = await client.start(fanout, width)
                async with anyio.create_task_group() as group:
                    if own.beside:
                        group.start_soon(_small_runs, client, own.beside, delays)
                    assert await handle.result(timeout=600) == width * (width - 1) // 2
                    rates.append(width / (time.perf_counter() - began))
            figures = spread(delays) if delays else {}
            line(
                "fanout", args, items=width, items_per_s=statistics.median(rates), rounds=[round(rate) for rate in rates],
                rss_mb=round(_memory()), rss_before_mb=round(memory),
                peak_mb=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
                **{f"small_run_s_{name}": value for name, value in figures.items()},
            )  # fmt: skip


async def _small_runs(client: AsyncClient, count: int, delays: list[float]) -> None:
    """Starts runs of one step, one every 50 ms, and measures start to result."""
    for n in range(count):
        began = time.perf_counter()
        await (await client.start(single, n)).result(timeout=600)
        delays.append(time.perf_counter() - began)
        await anyio.sleep(0.05)


def _memory() -> float:
    """Resident megabytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    run(main)
