"""Who this process is: an incarnation, never a name that a later process could have too."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import time
from pathlib import Path

step_process_of: int | None = None
"""Process id of the worker, in a process that only runs its steps; None in every other process."""


def new_id() -> str:
    """An id for a worker of this process, readable in a log and unique for ever."""
    return f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(6)}"


def boot_id() -> str:
    """Differs between boots and between containers, so that process ids are compared only where they mean something."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
    return f"{boot}/{namespace}"


def process_started(pid: int) -> float | None:
    """When a process of this machine started, in seconds since boot; None when there is no such process or no way to tell."""
    try:
        # The name in brackets may hold anything, so count from its end: the start time is field 22.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    if fields[0] in ("Z", "X"):
        return None
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def processes_alive() -> list[tuple[int, float]] | None:
    """(pid, start) of every process here; None where that cannot be told."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    except OSError:
        return None
    return [(pid, started) for pid in pids if (started := process_started(pid)) is not None]


def this_process_started() -> float:
    """Start of this process, comparable with process_started()."""
    return process_started(os.getpid()) or time.monotonic()
