"""What every measurement shares: a durable server, workers in this or other processes, the JSON line."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from composer import Settings, Worker
from composer.app import calm_collector, open_store
from composer.define.workflow import Workflow
from composer.postgres.embedded import EmbeddedPostgres
from samples.noop import chain, diamond, fanout, single

FLOWS: list[Workflow[..., Any]] = [chain, diamond, fanout, single]


def arguments(given: Sequence[str] | None = None, **defaults: int) -> argparse.Namespace:
    """--workflows, --processes, --slots, --rounds and --database-url, with a workload's own defaults."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workflows", type=int, default=defaults.get("workflows", 200))
    parser.add_argument(
        "--processes", type=int, default=defaults.get("processes", 0), help="worker processes; 0: in this one"
    )
    parser.add_argument("--slots", type=int, default=Settings().concurrency)
    parser.add_argument("--rounds", type=int, default=defaults.get("rounds", 3))
    parser.add_argument("--database-url", default=os.environ.get("COMPOSER_BENCH_DATABASE_URL"))
    return parser.parse_args(given)


def _work(settings: Settings) -> None:
    async def main() -> None:
        async with Worker(FLOWS, settings):
            await anyio.sleep_forever()

    run(main)


@asynccontextmanager
async def workers(args: argparse.Namespace) -> AsyncIterator[Settings]:
    """Settings of a durable database at which the asked number of other worker processes work."""
    with tempfile.TemporaryDirectory(prefix="cb-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o755)
        server = None if args.database_url else EmbeddedPostgres(Path(folder) / "pg")
        url = args.database_url or (await anyio.to_thread.run_sync(server.start) if server else "")
        if server is not None:
            # The embedded server migrates when it is opened by its folder; a URL has to be asked for it.
            async with open_store(Settings(home=Path(folder) / "pg")):
                pass
        settings = Settings(database_url=url, concurrency=args.slots)
        context = multiprocessing.get_context("spawn")
        processes = [context.Process(target=_work, args=(settings,), daemon=True) for _ in range(args.processes)]
        for process in processes:
            process.start()
        try:
            yield settings
        finally:
            for process in processes:
                process.kill()
                process.join()
            if server is not None:
                server.close()


def line(workload: str, args: argparse.Namespace, **figures: Any) -> None:
    """Prints the one JSON line of a workload."""
    output(
        workload,
        workflows=args.workflows,
        processes=args.processes or "in process",
        slots=args.slots,
        **figures,
    )


def output(workload: str, **figures: Any) -> None:
    """Prints a JSON line: figures, then where they were measured."""
    where = {"python": platform.python_version(), "cores": os.cpu_count()}
    print(json.dumps({"workload": workload, **_rounded(figures), **where}), flush=True)


def _rounded(figures: dict[str, Any]) -> dict[str, Any]:
    return {
        name: round(value, 4) if isinstance(value, float) else _rounded(value) if isinstance(value, dict) else value
        for name, value in figures.items()
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and 95th percentile."""
    ordered = sorted(values)
    return {"p50": statistics.median(ordered), "p95": ordered[int(len(ordered) * 0.95) - 1]}


def run(main: Callable[[], Awaitable[None]]) -> None:
    """Runs a workload as `python -m composer.worker` runs its own: in uvloop, with a calm collector."""
    calm_collector()
    anyio.run(main, backend_options={"use_uvloop": True})
