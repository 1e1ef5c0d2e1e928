"""Stops the embedded PostgreSQL when its last owner is gone: a script of its own, and how to tell its processes.

`embedded.py` runs this file detached, with the standard library only, so that it costs 7 MB and lives through
whatever ends its owners. It sleeps in `flock` until the kernel has dropped the last share of `lease.lock`, which
happens at close() and at every kind of death. It imports nothing of Composer: the package would cost 40 MB.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

if sys.platform != "win32":
    import fcntl

# A fast shutdown writes one checkpoint; a minute covers a slow disk. Then the server is ended the hard way, which
# costs the next start a recovery and never a committed row.
_SHUTDOWN_SECONDS = 60.0
_QUIT_SECONDS = 10.0

_HAS_PROC = os.path.isdir("/proc/self")  # Linux, where slim images have no ps; elsewhere ps it is


def find_server(data: str, *, displaced: bool = False) -> int | None:
    """The pid of the PostgreSQL server that runs on this data folder, None when there is none.

    With `displaced`, of the server whose data folder was here and has been moved or deleted under it.
    The pid in `postmaster.pid` is a hint only: after a container restart it often names some other process, and a
    killed server stays behind as a zombie until its parent looks. What counts is the command line, which a zombie
    has lost.
    """
    if not displaced:
        try:
            with open(os.path.join(data, "postmaster.pid"), encoding="ascii") as file:
                hint = int(file.readline())
            if _is_server(hint, _arguments(hint), data):
                return hint
        except (OSError, ValueError):
            pass  # no such file, or cut short by a crash
    return next((pid for pid, arguments in _processes() if _is_server(pid, arguments, data, displaced)), None)


def find_processes(data: str) -> list[int]:
    """The pids of every PostgreSQL process on this data folder, including those whose server was killed."""
    found: list[int] = []
    for pid, arguments in _processes():
        # A server process changes into its data folder and stays; a shell that is there, or an editor, is no postgres.
        is_postgres = os.path.basename(arguments.split(" ", 1)[0]).startswith("postgres")
        if (is_postgres and _folder_of(pid) == data) or _is_server(pid, arguments, data):
            found.append(pid)
    return found


def stop_server(data: str, *, displaced: bool = False) -> bool:
    """Whether there was a server on this data folder to stop; on return it has ended."""
    pid = find_server(data, displaced=displaced)
    if pid is None:
        return False
    ways = ((signal.SIGINT, _SHUTDOWN_SECONDS), (signal.SIGQUIT, _QUIT_SECONDS), (signal.SIGKILL, _QUIT_SECONDS))
    for word, seconds in ways:
        try:
            os.kill(pid, word)
        except ProcessLookupError:
            return True
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not _is_server(pid, _arguments(pid), data, displaced):
                return True
            time.sleep(0.01)
    return True


def _is_server(pid: int, arguments: str, data: str, displaced: bool = False) -> bool:
    # As pg_ctl writes it. The blank at the end keeps /x/data apart from /x/data2.
    if f"postgres -D {data} " not in arguments + " ":
        return False
    folder = _folder_of(pid)
    return (folder is not None and folder != data) if displaced else folder in (None, data)


def _folder_of(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/cwd")  # ends in " (deleted)" when it was
    except OSError:
        return None  # gone meanwhile, another user's, or no /proc


def _arguments(pid: int) -> str:
    if not _HAS_PROC:
        return _ps("-ww", "-o", "args=", "-p", str(pid)).strip()
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return os.fsdecode(file.read()).replace("\0", " ")
    except OSError:
        return ""


def _processes() -> list[tuple[int, str]]:
    if _HAS_PROC:
        return [(int(name), _arguments(int(name))) for name in os.listdir("/proc") if name.isdigit()]
    rows = (line.split(None, 1) for line in _ps("-axww", "-o", "pid=,args=").splitlines())
    return [(int(row[0]), row[1]) for row in rows if len(row) == 2]


def _ps(*arguments: str) -> str:
    import subprocess  # here, because the reaper on Linux never needs it and it is half of its memory

    return subprocess.run(["ps", *arguments], capture_output=True, text=True, check=False).stdout


def _is_here(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def _main(held: int, lease_file: str, data: str, socket_folder: str) -> None:
    # `held` is the descriptor of reaper.lock, locked by the parent and inherited: there is one reaper a folder.
    if os.fork():
        os._exit(0)  # the starter waits for this one only; the reaper itself becomes nobody's child
    # It has to outlive its owners, and ends with the last of them anyway: a signal to the whole group is for them.
    for word in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(word, signal.SIG_IGN)
    # The lease gets the higher number, because the kernel closes in rising order when this process is killed: who
    # then comes through the lease finds reaper.lock free, and starts another reaper.
    low = os.open(lease_file, os.O_RDWR)
    lease = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, held + 1)
    os.close(low)
    for _ in range(2):
        fcntl.flock(lease, fcntl.LOCK_EX)  # returns when no owner is left, however it died
        # Whoever deletes or moves the folder in use leaves a server behind, and may have another on the same path.
        displaced = not _is_here(lease, lease_file)
        if stop_server(data, displaced=displaced):
            if socket_folder != data and not displaced:
                with contextlib.suppress(OSError):
                    os.rmdir(socket_folder)
            break
        # Nothing to stop. An owner killed in the middle of starting leaves a pg_ctl behind that may be just about to
        # bring the server up: look once more, and let a new owner pass meanwhile.
        fcntl.flock(lease, fcntl.LOCK_UN)
        time.sleep(1)
    os.close(held)
    os.close(lease)


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4])
