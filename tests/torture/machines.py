"""The processes of a torture: a PostgreSQL that may be killed, and workers and coordinators that are kept alive.

Only processes that were started here are ever sent a signal, by their own handle; the server's is asked after by its
data folder, which is ours alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from composer.postgres import embedded_reaper
from composer.postgres.embedded import EmbeddedPostgres
from tests.torture.flows import LEASE

ROOT = pathlib.Path(__file__).resolve().parents[2]
GRACE = 3.0
"""Seconds of a worker's grace time."""
_STARTING = 15.0
"""A process that ends by itself within so many seconds found no database; a supervisor starts it again."""
_PDEATHSIG = 1


class Database:
    """A durable server in a folder of its own, which goes with it."""

    def __init__(self) -> None:
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="torture-", dir="/tmp"))
        self.home.chmod(0o755)  # root's server runs as nobody, who has to get there
        self.embedded = EmbeddedPostgres(self.home)
        self.url = ""

    @property
    def socket(self) -> str:
        """Path of its socket."""
        return str(self.embedded._socket_folder / ".s.PGSQL.5432")

    async def start(self) -> None:
        """Starts it, or finds it running."""
        self.url = await asyncio.to_thread(self.embedded.start)

    async def crash(self, *, hard: bool, away: float) -> bool:
        """Ends it without a checkpoint (`hard`: kill -9 of the postmaster), and starts it `away` seconds later."""
        pid = await asyncio.to_thread(embedded_reaper.find_server, str(self.embedded.data))
        if pid is None:
            return False
        os.kill(pid, signal.SIGKILL if hard else signal.SIGQUIT)
        await asyncio.sleep(away)
        await self.start()
        return True

    def log(self) -> str:
        """What the server wrote."""
        return self.embedded.log.read_text(errors="replace")

    async def close(self) -> None:
        """Stops it and removes the folder."""

        def gone() -> None:
            self.embedded.close()
            with contextlib.suppress(OSError):
                self.embedded._lock("server.lock", fcntl.LOCK_EX).close()
            shutil.rmtree(self.home, ignore_errors=True)

        await asyncio.to_thread(gone)


@dataclass(eq=False)
class Member:
    """A place in the cluster: the process that fills it now, and how its predecessors ended."""

    role: str
    name: str
    command: list[str]
    log: pathlib.Path
    process: subprocess.Popen[bytes] | None = None
    began: float = 0.0
    expected: set[int] = field(default_factory=set[int])
    """Exit codes that the plan asked for; empty while the process shall live."""
    stopped: bool = False
    """Whether it stands still (SIGSTOP)."""

    def start(self, environment: dict[str, str]) -> None:
        """A new process, which dies with this one."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        self.began = time.monotonic()
        self.expected, self.stopped = set(), False

    @property
    def hears(self) -> bool:
        """Whether the process has got as far as to have a handler for SIGTERM; before it, that just ends it."""
        if self.process is None or self.process.poll() is not None:
            return False
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)

    def says_the_database_is_away(self) -> bool:
        """Whether that is the last thing the process wrote."""
        text = self.log.read_bytes()[-2000:].decode(errors="replace")
        return "PostgreSQL is not available" in text or "StoreUnavailable" in text

    def tell(self, number: int, *, ends: set[int] | None = None) -> bool:
        """Sends the process a signal. `ends` are the exit codes it may then end with."""
        process = self.process
        if process is None or process.poll() is not None:
            return False
        self.expected |= ends or set()
        process.send_signal(number)
        return True


class Cluster:
    """The workers and coordinators, started again whenever they end."""

    def __init__(self, url: str, folder: pathlib.Path, seed: int, *, workers: int, coordinators: int) -> None:
        self.ledger = folder / "ledger.jsonl"
        self.problems: list[str] = []
        self.counts: Counter[str] = Counter()
        self._environment = {
            **os.environ,
            "TORTURE_SEED": str(seed),
            "TORTURE_LEDGER": str(self.ledger),
            "PYTHONUNBUFFERED": "1",
        }
        self._keeping = True
        common = ["--database-url", url, "--lease", f"{LEASE:g}", "--json-logs"]
        python = [sys.executable, "-m"]
        self.members = [
            Member(
                "worker",
                f"worker{n}",
                [*python, "composer.worker", "tests.torture.flows", "--no-coordinator", "--grace", f"{GRACE:g}", *common],
                folder / f"worker{n}.log",
            )
            for n in range(workers)
        ] + [
            Member(
                "coordinator",
                f"coordinator{n}",
                [*python, "composer.coordinator", *common],
                folder / f"coordinator{n}.log",
            )
            for n in range(coordinators)
        ]  # fmt: skip

    def of(self, role: str) -> list[Member]:
        """Members of a role."""
        return [member for member in self.members if member.role == role]

    async def keep(self) -> None:
        """Starts everybody, and again who has ended, until `drain` or cancelled."""
        for member in self.members:
            member.start(self._environment)
        again: dict[Member, float] = {}
        while self._keeping:
            await asyncio.sleep(0.05)
            now = time.monotonic()
            for member in self.members:
                if member in again:
                    if now >= again[member]:
                        del again[member]
                        member.start(self._environment)
                    continue
                process = member.process
                assert process is not None
                code = process.poll()
                if code is None:
                    continue
                if code not in member.expected:
                    young = now - member.began < _STARTING
                    if young and code in (1, 3) and member.says_the_database_is_away():
                        self.counts["failed starts"] += 1
                        self.counts["failed starts with a traceback"] += code == 1
                        again[member] = now + 0.3
                        continue
                    self.problems.append(f"{member.name} ended by itself with {code}, {now - member.began:.1f} s old")
                member.start(self._environment)

    async def drain(self) -> None:
        """Tells everybody to stop, once all are up, and sees that they do in time."""
        patience = time.monotonic() + 30
        while not all(member.hears for member in self.members) and time.monotonic() < patience:
            await asyncio.sleep(0.05)
        self._keeping = False
        await asyncio.sleep(0.1)
        for member in self.members:
            member.tell(signal.SIGTERM)
        deadline = time.monotonic() + GRACE + 15
        for member in self.members:
            process = member.process
            while process is not None and process.poll() is None and time.monotonic() < deadline:
                await asyncio.sleep(0.02)
            code = None if process is None else process.poll()
            if code is None:
                self.problems.append(f"{member.name} did not stop when it was told to")
            elif code != 0:
                self.problems.append(f"{member.name} stopped with {code} when it was told to")

    def end(self) -> None:
        """Ends everybody at once."""
        self._keeping = False
        for member in self.members:
            process = member.process
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()

    def lines(self, role: str) -> list[dict[str, Any]]:
        """What members of a role logged; text that is no log line as {"text": ...}."""
        found: list[dict[str, Any]] = []
        for member in self.of(role):
            if not member.log.exists():
                continue
            for line in member.log.read_text(errors="replace").splitlines():
                try:
                    made = json.loads(line)
                except ValueError:
                    made = None
                found.append(
                    {**made, "member": member.name} if isinstance(made, dict) else {"text": line, "member": member.name}
                )
        return found


_libc = ctypes.CDLL(None)


def _die_with_parent() -> None:
    # Whatever ends the torture, kill -9 included, must not leave workers behind.
    _libc.prctl(_PDEATHSIG, signal.SIGKILL)
