"""Takes the census from start to finish: a worker, a run, its progress, the report.

$ python -m samples.census [--root FOLDER] [--json FILE] [--home FOLDER]

Without a COMPOSER_DATABASE_URL, worker and client share the embedded PostgreSQL server.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from composer import Client, ComposerError, MapProgress, RunHandle

from .render import as_json, print_report
from .workflow import Report, census

# Nobody should look at a silent screen for longer, and a run that nothing happens to costs one small query each time.
LOOK_EVERY = 0.1
# A census takes seconds; the rest is for the slowest machine on its busiest day.
GIVE_UP_AFTER = 600.0
STOP_WITHIN = 20.0

ENDED = frozenset({"completed", "failed", "cancelled"})


def main(arguments: list[str] | None = None) -> int:
    """0 with a report, 1 when the run did not get that far."""
    options = _parser().parse_args(arguments)
    if options.home is not None:
        os.environ["COMPOSER_HOME"] = str(options.home.resolve())
    # The report is what standard output is for; how it comes about is told on standard error.
    progress = Console(stderr=True, highlight=False)
    try:
        report = _take_census(options.root, progress)
    except (ComposerError, WorkerStopped) as error:
        progress.print(f"census: {error}", style="red", markup=False)
        return 1
    print_report(report, Console(highlight=False))
    if options.json is not None:
        options.json.write_text(as_json(report), encoding="utf-8")
        progress.print(f"\nThe whole report as JSON: {options.json}", markup=False)
    return 0


class WorkerStopped(Exception):
    """The worker ended before the run did."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m samples.census", description="A census of Python's own library.")
    parser.add_argument("--root", metavar="FOLDER", help="look at this folder instead of the standard library")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the whole report there, too")
    parser.add_argument("--home", metavar="FOLDER", type=Path, help="where the embedded server keeps its data")
    return parser


def _take_census(root: str | None, progress: Console) -> Report:
    began = time.monotonic()
    if root is not None:
        # The worker may live in another folder.
        root = str(Path(root).resolve())
    with Client() as client:
        progress.print(f"{_since(began)} store is ready")
        with _worker() as worker:
            handle = client.start(census, root)
            progress.print(f"{_since(began)} run {handle.id} started", markup=False)
            _follow(client, handle, worker, began, progress)
            report = handle.result(timeout=STOP_WITHIN)
        progress.print(f"{_since(began)} worker stopped, all done\n")
    return report


def _follow(
    client: Client, handle: RunHandle[Report], worker: subprocess.Popen[bytes], began: float, progress: Console
) -> None:
    """Prints a line for every change of a node; returns when the run has ended, whatever the end."""
    seen: dict[str, str] = {}
    while True:
        run = client.get(handle.id)
        for node in run.nodes:
            state = str(node.state) if node.items is None else f"{node.state}, {_told(node.items)}"
            if seen.get(node.name, "blocked") != state:
                progress.print(f"{_since(began)}   {node.name:<20} {state}", markup=False)
            seen[node.name] = state
        if run.status in ENDED:
            progress.print(f"{_since(began)} run {run.status}", markup=False)
            return
        if worker.poll() is not None:
            raise WorkerStopped(f"the worker stopped with exit code {worker.returncode}; the run waits for another one")
        if time.monotonic() - began > GIVE_UP_AFTER:
            raise WorkerStopped(f"run {handle.id} has not ended after {GIVE_UP_AFTER:.0f} seconds")
        time.sleep(LOOK_EVERY)


def _told(items: MapProgress) -> str:
    """Progress in steps of a tenth: a line for each, not for every file."""
    settled = items.total - items.open
    tenths = settled * 10 // items.total
    failed = f", {items.failed} broken" if items.failed and not items.open else ""
    return f"{settled if not items.open else items.total * tenths // 10:,} of {items.total:,} files{failed}"


@contextmanager
def _worker() -> Generator[subprocess.Popen[bytes]]:
    """A worker process for the census, stopped gently at the end; it finds the store as we do, by the environment."""
    command = [sys.executable, "-m", "composer.worker", "samples.census.workflow"]
    # What it has to say goes where our progress goes: standard output is the report's.
    worker = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2)
    try:
        yield worker
    finally:
        if worker.poll() is None:
            worker.send_signal(signal.SIGTERM)
        try:
            worker.wait(STOP_WITHIN)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


def _since(began: float) -> str:
    return f"{time.monotonic() - began:6.2f} s"


if __name__ == "__main__":
    sys.exit(main())
