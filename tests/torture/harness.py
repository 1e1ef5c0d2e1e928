"""The harness: starts the cluster, lets users and faults loose on it, heals everything and asks for the verdict."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import pathlib
import shutil
import signal
import tempfile
import time
from collections import Counter

import asyncpg

from composer import AsyncClient, ComposerError
from composer.app import migrate
from composer.settings import Settings
from tests.torture import plan
from tests.torture.checks import Found, check, check_logs, check_server_log
from tests.torture.clients import Crowd
from tests.torture.machines import Cluster, Database
from tests.torture.plan import Fault
from tests.torture.proxy import Proxy

CHANCES = {"commit": 0.01, "claim": 0.01, "start": 0.05, "other": 0.001}
"""Cuts beside those of the plan."""


class Torture:
    """One run of it."""

    def __init__(self, options: argparse.Namespace, database: Database, folder: pathlib.Path) -> None:
        self.options, self.database, self.folder = options, database, folder
        self.counts: Counter[str] = Counter()
        self.proxy = None if options.no_proxy else Proxy(database.socket, options.seed)
        self.cluster: Cluster | None = None
        self._restarting = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> dict[str, object]:
        """The report."""
        options, began = self.options, time.monotonic()
        faults = [] if options.no_faults else plan.drawn(options.seed, options.seconds, proxy=self.proxy is not None)
        print(f"seed {options.seed}: {options.runs} runs, {len(faults)} faults in {options.seconds:g} s", flush=True)
        for fault in faults:
            print(f"  {fault}")
        await self.database.start()
        await migrate(Settings(database_url=self.database.url))
        url = self.database.url
        if self.proxy is not None:
            await self.proxy.start()
            url = f"postgresql://composer@127.0.0.1:{self.proxy.port}/composer"
        cluster = self.cluster = Cluster(
            url, self.folder, options.seed, workers=options.workers, coordinators=options.coordinators
        )
        keeping = asyncio.create_task(cluster.keep())
        try:
            async with AsyncClient(url) as client:
                crowd = Crowd(client, options.seed, options.runs)
                until = time.monotonic() + options.seconds + options.heal
                acting = asyncio.create_task(crowd.act(options.seconds, until))
                if self.proxy is not None and faults:
                    self.proxy.chances = dict(CHANCES)
                await self._inject(faults)
                await asyncio.sleep(max(0.0, until - options.heal - time.monotonic()))
                await self._heal()
                healed = time.monotonic()
                await acting
                await self._all_ended(until)
                ended_in = time.monotonic() - healed
            if keeping.done():
                await keeping
            await cluster.drain()
        finally:
            keeping.cancel()
            cluster.end()
        found = await check(self.database.url, cluster.ledger, crowd.wishes)
        for problem in (*crowd.problems, *cluster.problems):
            found.wrong(problem)
        return await self._report(found, crowd, cluster, faults, began, ended_in)

    # -- faults --------------------------------------------------------------------------------------------------
    async def _inject(self, faults: list[Fault]) -> None:
        began = time.monotonic()
        for fault in faults:
            await asyncio.sleep(max(0.0, began + fault.at - time.monotonic()))
            task = asyncio.create_task(self._do(fault))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _do(self, fault: Fault) -> None:
        assert self.cluster is not None
        cluster, proxy, kind = self.cluster, self.proxy, fault.kind
        done: bool | int = False
        if kind in ("cut_before", "cut_after", "abort", "black_hole"):
            assert proxy is not None
            if kind == "abort":
                done = proxy.abort_some(1 + fault.which % 4)
            elif kind == "black_hole":
                done = True
                await proxy.black_hole(fault.seconds + 0.5, abort=fault.hard)
            else:
                proxy.next_cuts.append(kind.removeprefix("cut_"))
                return  # counted where it happens
        elif kind == "crash_database":
            async with self._restarting:
                done = await self.database.crash(hard=fault.hard, away=fault.seconds)
        elif kind == "terminate":
            done = await self._terminate(fault)
        else:
            what, _, role = kind.partition("_")
            members = cluster.of(role)
            member = members[fault.which % len(members)]
            if what == "kill":
                done = member.tell(signal.SIGKILL, ends={-signal.SIGKILL})
            elif what == "drain":
                done = not member.stopped and member.tell(signal.SIGTERM, ends={0, -signal.SIGTERM, 143})
            elif member.stopped:
                return
            else:
                process = member.process
                done = member.stopped = member.tell(signal.SIGSTOP)
                await asyncio.sleep(fault.seconds)
                if member.process is process:
                    member.tell(signal.SIGCONT)
                    member.stopped = False
        self.counts[kind] += int(done)

    async def _terminate(self, fault: Fault) -> int:
        with contextlib.suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            connection = await asyncpg.connect(self.database.url, timeout=2)
            try:
                return await connection.fetchval(
                    "select count(pg_terminate_backend(pid)) from (select pid from pg_stat_activity "
                    "where application_name = 'composer' and pid <> pg_backend_pid() "
                    "order by md5(pid::text || $1) limit $2) s",
                    str(fault.which), 1 + fault.which % 3,
                )  # fmt: skip
            finally:
                await connection.close()
        return 0

    async def _heal(self) -> None:
        """Ends every fault that is still on."""
        assert self.cluster is not None
        if self.proxy is not None:
            self.proxy.calm()
        for task in tuple(self._tasks):
            with contextlib.suppress(ComposerError):
                await task
        await self.database.start()
        for member in self.cluster.members:
            if member.stopped:
                member.tell(signal.SIGCONT)
                member.stopped = False

    async def _all_ended(self, until: float) -> None:
        connection = await asyncpg.connect(self.database.url)
        try:
            while time.monotonic() < until:
                if not await connection.fetchval(
                    "select count(*) from composer.runs where status not in ('completed', 'failed', 'cancelled')"
                ):
                    return
                await asyncio.sleep(0.1)
        finally:
            await connection.close()

    # -- the verdict ----------------------------------------------------------------------------------------------
    async def _report(
        self, found: Found, crowd: Crowd, cluster: Cluster, faults: list[Fault], began: float, ended_in: float
    ) -> dict[str, object]:
        connection = await asyncpg.connect(self.database.url)
        try:
            counted = await connection.fetchval("select sum(deadlocks)::int from pg_stat_database")
        finally:
            await connection.close()
        # A crash of the server takes its statistics along; what it logged stays.
        deadlocks = max(counted, check_server_log(found, self.database.log()))
        if deadlocks:
            found.wrong(f"{deadlocks} deadlocks")
        workers = cluster.lines("worker")
        said = check_logs(found, [*workers, *cluster.lines("coordinator")])
        stale = sum(n for message, n in said.items() if message.startswith("a report was not applied: the task was"))
        proxy = self.proxy
        cuts = {way: proxy.counts["commit", way] if proxy else 0 for way in ("before", "after")}
        done = {**self.counts, "cut_before": cuts["before"], "cut_after": cuts["after"]}
        missed = [
            f"{kind}: {done.get(kind, 0)} of {floor}"
            for kind, floor in plan.FLOORS.items()
            if faults and not (proxy is None and kind in plan.OF_THE_PROXY) and done.get(kind, 0) < floor
        ]
        if not found.executions or found.runs < self.options.runs * 0.9:
            missed.append(f"runs: {found.runs} of {self.options.runs}, {found.executions} executions")
        for problem in found.violations[:40]:
            print(f"VIOLATION {problem}", flush=True)
        return {
            "seed": self.options.seed,
            "runs": found.runs,
            "statuses": dict(found.statuses),
            "executions": found.executions,
            "faults": dict(sorted(self.counts.items())),
            "commit_cuts": {**cuts, "after_applied": proxy.applied if proxy else 0},
            "other_cuts": {f"{k} {w}": n for (k, w), n in sorted(proxy.counts.items()) if k != "commit"}
            if proxy
            else {},
            "clients": dict(sorted(crowd.counts.items())),
            "processes": dict(cluster.counts),
            "takeovers": found.takeovers,
            "takeovers_overlapping": found.overlaps,
            "late_reports_accepted": found.late_accepted,
            "stale_reports_refused": stale,
            "leases_lost": said["a lease was lost: somebody else has the task now; the body is told to stop"],
            "tracebacks_written": said["a traceback"],
            "deadlocks": deadlocks,
            "healed_in": round(ended_in, 1),
            "floors_missed": missed,
            "violations": len(found.violations),
            "seconds": round(time.monotonic() - began, 1),
        }


async def torture(options: argparse.Namespace) -> int:
    """The exit code; the plan and the report go to stdout."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    folder = options.keep or pathlib.Path(tempfile.mkdtemp(prefix="torture-logs-"))
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("*.log"), *folder.glob("*.jsonl")):
        old.unlink()
    logging.basicConfig(filename=folder / "clients.log", level=logging.INFO)  # away from the report
    database = Database()
    harness = Torture(options, database, folder)
    try:
        report = await harness.run()
        if options.keep:
            (folder / "server.log").write_text(database.log())
    finally:
        if harness.cluster is not None:
            harness.cluster.end()
        if harness.proxy is not None:
            await harness.proxy.close()
        await database.close()
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(report), flush=True)
    return 1 if report["violations"] or report["floors_missed"] else 0
