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


def find_server(data: str, *, deleted: bool = False) -> int | None:
    """The pid of the PostgreSQL server that runs on this data folder, None when there is none.

    With `deleted`, of a server whose data folder was here and was deleted under it.
    The pid in `postmaster.pid` is a hint only: after a container restart it often names some other process, and a
    killed server stays behind as a zombie until its parent looks. What counts is the command line, which a zombie
    has lost, and the folder the process is in.
    """
    if not deleted:
        try:
            with open(os.path.join(data, "postmaster.pid"), encoding="ascii") as file:
                hint = int(file.readline())
            if _is_server(hint, _arguments(hint), data):
                return hint
        except (OSError, ValueError):
            pass  # no such file, or cut short by a crash
    return next((pid for pid, arguments in _processes() if _is_server(pid, arguments, data, deleted)), None)


def find_processes(data: str) -> list[int]:
    """The pids of every PostgreSQL process on this data folder, including those whose server was killed."""
    return [
        pid
        for pid, arguments in _processes()
        if _is_server(pid, arguments, data) or (_program(arguments).startswith("postgres") and _is_in(pid, data))
    ]


def stop_server(data: str, *, deleted: bool = False) -> bool:
    """Whether there was a server on this data folder to stop; on return it has ended."""
    told: int | None = None
    ways = ((signal.SIGINT, _SHUTDOWN_SECONDS), (signal.SIGQUIT, _QUIT_SECONDS), (signal.SIGKILL, _QUIT_SECONDS))
    for word, seconds in ways:
        deadline = time.monotonic() + seconds
        last = None  # not always the same: a backend between its fork and its new title looks like its server
        while (pid := find_server(data, deleted=deleted)) is not None and time.monotonic() < deadline:
            if pid != last:
                try:
                    os.kill(pid, word)
                except ProcessLookupError:
                    continue
                told = last = pid
            time.sleep(0.01)
        if pid is None:
            break
    return told is not None


def _is_server(pid: int, arguments: str, data: str, deleted: bool = False) -> bool:
    if not _HAS_PROC:  # as pg_ctl writes it; the blank at the end keeps /x/data apart from /x/data2
        return not deleted and f"postgres -D {data} " in arguments + " "
    if _program(arguments) != "postgres" or " -D " not in arguments:
        return False
    if not deleted:
        return _is_in(pid, data)
    try:
        return f" -D {data} " in arguments + " " and os.stat(f"/proc/{pid}/cwd").st_nlink == 0
    except OSError:
        return False


def _program(arguments: str) -> str:
    return os.path.basename(arguments.split(" -D ", 1)[0].split(": ", 1)[0])


def _is_in(pid: int, folder: str) -> bool:
    # A server process changes into its data folder and stays. The folder itself is compared and not its path, which
    # may be another one's in a container whose processes are seen from here, and changes when the folder is moved.
    try:
        return os.path.samestat(os.stat(f"/proc/{pid}/cwd"), os.stat(folder))
    except OSError:
        return False  # gone meanwhile, another user's, or no /proc


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


def _where_now(descriptor: int, path: str) -> str | None:
    """Where the open file that was at `path` is now; None when it was deleted, or moved where there is no /proc."""
    places = [path]
    with contextlib.suppress(OSError):
        places.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    for place in places:
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), os.stat(place)):
                return place
    return None


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
        # Whoever moves or deletes the folder in use leaves a server behind, and may have another on the same path.
        now = _where_now(lease, lease_file)
        if now is None and stop_server(data, deleted=True):
            break
        if now is not None and stop_server(os.path.join(os.path.dirname(now), "data")):
            if socket_folder != data:
                with contextlib.suppress(OSError):
                    os.rmdir(socket_folder)
            break
        # Nothing to stop. An owner killed in the middle of starting leaves a pg_ctl behind that may be just about to
        # bring the server up: look once more, and let a new owner pass meanwhile.
        fcntl.flock(lease, fcntl.LOCK_UN)
        time.sleep(0.5)
    os.close(held)
    os.close(lease)


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4])
