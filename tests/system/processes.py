"""Real worker and coordinator processes, their log, and the ledger their bodies write."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


@contextmanager
def heard(number: signal.Signals) -> Iterator[None]:
    """Processes that are started in the block hear the signal, though this one was started with it ignored.

    That is inherited: under `nohup pytest &` every child would ignore Ctrl-C. A handler is not, so one stands in here.
    """
    before = signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(number, before)


class Process:
    """A process of Composer's, in a session of its own."""

    def __init__(self, module: str, *args: str, ledger: Path, log: Path, folder: Path = ROOT) -> None:
        self.log = log
        self._file = log.open("ab")
        self.popen = subprocess.Popen(
            [sys.executable, "-m", module, *args],
            cwd=folder,
            env={**os.environ, "LEDGER": str(ledger), "PYTHONUNBUFFERED": "1"},
            stdout=self._file,
            stderr=self._file,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def send(self, number: signal.Signals) -> None:
        """A signal, if it still runs."""
        if self.popen.poll() is None:
            os.kill(self.popen.pid, number)

    def kill(self) -> None:
        """SIGKILL, and waits for its end."""
        self.send(signal.SIGCONT)
        self.send(signal.SIGKILL)
        self.popen.wait(10)

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.popen.poll() is None

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Its log lines (JSON), others left out."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def said(self, text: str) -> list[dict[str, Any]]:
        """Log lines whose message contains the text."""
        return [line for line in self.lines if text in line["message"]]

    def close(self) -> None:
        """Ends it, however it is."""
        self.kill()
        self._file.close()


class Yard:
    """Starts processes on one database and namespace; all are killed at the end."""

    def __init__(self, database: str, namespace: str, folder: Path) -> None:
        self.database, self.namespace, self.folder = database, namespace, folder
        self.ledger = folder / "ledger.jsonl"
        self.ledger.touch()
        self.processes: list[Process] = []

    def worker(self, *args: str, lease: float = 2.0, module: str = "tests.system.flows") -> Process:
        """A worker process."""
        return self._start("composer.worker", module, "--lease", str(lease), "--grace", "3", *args)

    def coordinator(self, *args: str, lease: float = 2.0) -> Process:
        """A coordinator process."""
        return self._start("composer.coordinator", "--lease", str(lease), *args)

    def _start(self, module: str, *args: str) -> Process:
        log = self.folder / f"{len(self.processes)}.log"
        where = ("--database-url", self.database, "--namespace", self.namespace, "--json-logs")
        process = Process(module, *args, *where, ledger=self.ledger, log=log)
        self.processes.append(process)
        return process

    def entries(self, **wanted: Any) -> list[dict[str, Any]]:
        """Ledger lines with these facts."""
        lines = [json.loads(line) for line in self.ledger.read_text().splitlines()]
        return [line for line in lines if all(line.get(name) == value for name, value in wanted.items())]

    def starts(self, **wanted: Any) -> Counter[str]:
        """How many bodies started, by node."""
        return Counter(line["node"] for line in self.entries(phase="start", **wanted))


@contextmanager
def yard(database: str, namespace: str, folder: Path) -> Iterator[Yard]:
    """A yard whose processes end with the block."""
    made = Yard(database, namespace, folder)
    try:
        yield made
    finally:
        for process in made.processes:
            process.close()
