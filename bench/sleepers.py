"""Two hundred thousand sleeping runs: what they cost a claim, a commit, a timer pass and a worker's memory."""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path
from typing import Any

import asyncpg

from bench._common import FLOWS, arguments, line, run, workers
from composer import AsyncClient, Worker
from composer.postgres.store import PostgresStore
from samples.noop import chain, single

# Runs in a sleep of a month, as a start would have stored them.
FILL = """
insert into composer.runs (namespace, id, workflow, plan, status, version, letters)
select 'default', ('01700000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid, 'sleeping', $1, 'running', 1, 'W.'
  from generate_series(1, $2::int) i
"""
TASKS = """
insert into composer.tasks (namespace, run_id, node, state, input, wake_at)
select 'default', r.id, n, case n when -1 then 'completed' else 'waiting' end, case n when -1 then '{}' end,
       case n when 0 then now() + interval '30 d' + random() * interval '1 d' end
  from composer.runs r, generate_series(-1, 0) n where r.workflow = 'sleeping'
"""


async def main() -> None:
    """Measures before the sleepers and with them, in one run."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--sleepers", type=int, default=200_000)
    own, rest = parser.parse_known_args()
    args = arguments(rest, workflows=200, rounds=3)
    async with (
        workers(args) as settings,
        Worker(FLOWS, settings) as worker,
        AsyncClient(store=worker.store) as client,
    ):
        store: Any = worker.store
        assert isinstance(store, PostgresStore)
        await _chains(client, 50)
        before = await _measured(client, store, args.workflows)
        connection = await asyncpg.connect(settings.database_url)
        plan = await store.register_plan(single.plan)
        await connection.execute(FILL.replace("$1", str(plan)).replace("$2::int", str(own.sleepers)))
        await connection.execute(TASKS)
        # Half a million rows at once leave vacuum and a checkpoint to do, and those would be measured with the sleepers.
        for settle in ("vacuum analyze composer.runs", "vacuum analyze composer.tasks", "checkpoint"):
            await connection.execute(settle)
        await connection.close()
        await store.next_due_in()
        after = await _measured(client, store, args.workflows)
    figures: dict[str, Any] = {}
    for name in before:
        figures[name] = after[name]
        figures[f"{name}_before"] = before[name]
    line("sleepers", args, sleepers=own.sleepers, **figures)


async def _measured(client: AsyncClient, store: PostgresStore, count: int) -> dict[str, float]:
    steps = await _chains(client, count)
    return {
        "chain_step_ms": steps,
        "claim_ms": await _median(
            lambda: store.claim_tasks(queues=["nobody"], steps=["noop"], limit=50, owner="bench", lease=15.0)
        ),
        "timer_pass_ms": await _median(lambda: store.take_due_waits(500, 10.0)),
        "next_due_ms": await _median(store.next_due_in),
        "rss_mb": _memory(),
    }


def _memory() -> int:
    """Resident megabytes of this process."""
    return round(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20)


async def _median(call: Any) -> float:
    taken: list[float] = []
    for _ in range(200):
        began = time.perf_counter()
        await call()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1000


async def _chains(client: AsyncClient, count: int) -> float:
    taken: list[float] = []
    for n in range(count):
        began = time.perf_counter()
        await (await client.start(chain, n)).result(timeout=60)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1000 / 10


if __name__ == "__main__":
    run(main)
