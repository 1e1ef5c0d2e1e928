"""`composer worker --processes N` and `--reload`: a parent that keeps worker processes going.

The parent imports nothing of the project's, so nothing of the project's can break it. Each child is in a session of its own,
so that a Ctrl-C of the terminal reaches it once, through the parent. A socket joins the two: the child says that it
serves and which files it has imported, and when the parent is gone, however it went, the child drains as if told to.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import signal
import socket
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import anyio
import typer

log = logging.getLogger("composer")

SAME_WORD: Final = 0.5
"""Seconds in which a second signal is the first one again: who stops a whole group often tells its leader twice."""
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
_STEADY: Final = 10.0
"""Seconds after which a child counts as one that works: its successor starts soon."""
_LOOK: Final = 0.4
"""Seconds between two looks at the files."""
_QUIET: Final = 0.2
"""Seconds without a change before the restart: an editor or a checkout writes more than one file."""
_NOT_THE_PROJECTS: Final = frozenset({"__pycache__", "node_modules", "site-packages"})

_Stamps: TypeAlias = dict[str, tuple[int, int] | None]


class Line:
    """The child's end of the socket."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self._socket = socket.socket(fileno=fd)

    def say(self, **facts: Any) -> None:
        """Tells the parent; one that is gone is noticed elsewhere."""
        with contextlib.suppress(OSError):
            self._socket.sendall(json.dumps(facts).encode() + b"\n")

    async def until_alone(self) -> None:
        """Returns when the parent is gone. It never writes, so whatever there is to read is the end."""
        loop = asyncio.get_running_loop()
        ended = anyio.Event()
        loop.add_reader(self._socket, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._socket)


class _Child:
    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.process, self.reader, self._writer = process, reader, writer
        self.said_all = asyncio.Event()
        self.began = time.monotonic()
        self.has_served = False
        self.is_reloading = False

    def send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def close(self) -> None:
        self._writer.close()


class Supervisor:
    """Keeps `count` processes of `command` going until it is told to stop; with `reload`, starts them anew when a file changes.

    A child that ends by itself has a successor after a pause that doubles from half a second to half a minute. When the first
    child ends before it serves, what is wrong is wrong for all of them: its exit code is the parent's.
    """

    def __init__(self, command: Sequence[str], count: int, *, reload: bool = False) -> None:
        self._command, self._count, self._reload = list(command), count, reload
        self._children: set[_Child] = set()
        self._told = 0
        self._told_at = math.inf
        self._stop = asyncio.Event()
        self._serves = asyncio.Event()
        """Set once a child has served, or when none will."""
        self._changed = asyncio.Event()
        self._seen: _Stamps = {}
        self._is_broken = False
        """Whether the last child ended before it served: then any file of the project may be the one to mend."""
        self._was_broken = False
        self._code = 0

    async def run(self) -> int:
        """Returns the exit code: 0 when told once, 128 + n when told twice, a child's when none could start."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, self._hear, number)
        what = f"{self._count} worker process{'' if self._count == 1 else 'es'}"
        typer.echo(f"process {os.getpid()} keeps {what} going{', reloading' if self._reload else ''}", err=True)
        try:
            async with anyio.create_task_group() as group:
                watching = anyio.CancelScope()
                if self._reload:
                    group.start_soon(self._watch_files, watching)
                async with anyio.create_task_group() as slots:
                    slots.start_soon(self._keep_one)
                    await self._serves.wait()
                    for _ in range(self._count - 1):
                        slots.start_soon(self._keep_one)
                watching.cancel()
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
        return self._code

    def _hear(self, number: int) -> None:
        now = time.monotonic()
        self._told_at = min(self._told_at, now)
        if self._told and now - self._told_at < SAME_WORD:
            return
        self._told += 1
        self._stop.set()
        self._serves.set()
        if self._told == 1:
            log.info("stopping: the worker processes are told, and waited for")
        elif self._told == 2:
            self._code = 128 + number
        for child in self._children:
            if self._told > 1:
                # Not the same again: a child may have heard the first one late, or hear none while a step holds up its loop.
                child.send(signal.SIGKILL)
            elif not child.is_reloading:  # one that drains already would take a second signal for haste
                child.send(number)

    async def _keep_one(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stop.is_set():
            child = await self._begin()
            code = await self._until_ended(child)
            if self._stop.is_set():
                return
            if child.is_reloading:
                pause = _FIRST_PAUSE
                continue
            if not child.has_served and self._reload:
                self._is_broken = True
                log.error("the worker did not start (%s); it is started again when a file changes", _ended(code))
                await _first(self._changed, self._stop)
                continue
            if not self._serves.is_set():
                self._code = code if code > 0 else 128 - code if code < 0 else 1
                self._stop.set()
                self._serves.set()
                return
            if child.has_served and time.monotonic() - child.began > _STEADY:
                pause = _FIRST_PAUSE
            log.warning("worker process %s ended (%s); another starts in %g s", child.process.pid, _ended(code), pause)
            with anyio.move_on_after(pause):
                await _first(self._changed, self._stop)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _begin(self) -> _Child:
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                "--supervised",
                str(theirs.fileno()),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        # A list of files is one line, and a large project's is long.
        reader, writer = await asyncio.open_connection(sock=ours, limit=2**24)
        child = _Child(process, reader, writer)
        self._children.add(child)
        if self._stop.is_set():
            child.send(signal.SIGTERM)
        return child

    async def _until_ended(self, child: _Child) -> int:
        """Hears what a child says. Returns its exit code, negative for a signal."""
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._hear_child, child)
                await child.process.wait()
                # What it said before it ended is in the socket still; a process of its own may hold the other end open.
                with anyio.move_on_after(_QUIET):
                    await child.said_all.wait()
                group.cancel_scope.cancel()
        finally:
            self._children.discard(child)
            child.close()
        code = child.process.returncode
        return 0 if code is None else code

    async def _hear_child(self, child: _Child) -> None:
        try:
            async for line in child.reader:
                facts = json.loads(line)
                # As they were when they were imported: a change since then is not missed.
                for file, stamp in facts.get("files", {}).items():
                    self._seen.setdefault(file, stamp and tuple(stamp))
                if facts.get("serves"):
                    child.has_served = True
                    self._is_broken = False
                    self._serves.set()
        except (ConnectionError, ValueError):
            pass  # it was killed, perhaps in the middle of a line
        finally:
            child.said_all.set()

    # -- reload --------------------------------------------------------------------------------------------

    async def _watch_files(self, scope: anyio.CancelScope) -> None:
        with scope:
            while True:
                await anyio.sleep(_LOOK)
                changed = self._look()
                if not changed:
                    continue
                while more := await self._look_later():
                    changed |= more
                self._restart(sorted(changed))

    async def _look_later(self) -> set[str]:
        await anyio.sleep(_QUIET)
        return self._look()

    def _look(self) -> set[str]:
        """Files that are no longer as they were seen. One that was not seen before is only noted."""
        seen = self._seen
        files = set(seen)
        if self._is_broken:
            files.update(project_files(Path.cwd()))
        now = {file: _stamp(file) for file in files}
        changed = {file for file, stamp in now.items() if file in seen and seen[file] != stamp}
        if self._is_broken and self._was_broken:
            # The module that was missing may be the one that has come.
            changed |= {file for file in now if file not in seen}
        self._was_broken = self._is_broken
        seen.update(now)
        return changed

    def _restart(self, changed: Sequence[str]) -> None:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        log.info("%s%s changed: starting anew", changed[0], more)
        for child in self._children:
            if not child.is_reloading:
                child.is_reloading = True
                child.send(signal.SIGTERM)
        before, self._changed = self._changed, asyncio.Event()
        before.set()


async def _first(*events: asyncio.Event) -> None:
    """Returns once any of the events is set."""
    async with anyio.create_task_group() as group:

        async def wait(event: asyncio.Event) -> None:
            await event.wait()
            group.cancel_scope.cancel()

        for event in events:
            group.start_soon(wait, event)


def _ended(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"


def _stamp(file: str) -> tuple[int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def project_files(folder: Path) -> Iterator[str]:
    """The Python files below a folder, without what is installed, generated or hidden."""
    for root, folders, files in os.walk(folder):
        folders[:] = [
            each
            for each in folders
            if not each.startswith(".")
            and each not in _NOT_THE_PROJECTS
            and not Path(root, each, "pyvenv.cfg").exists()
        ]
        yield from (str(Path(root, each)) for each in files if each.endswith(".py"))


def imported_files() -> _Stamps:
    """The files of this process's modules that somebody may edit: neither Python's, nor installed, nor Composer's."""
    installed = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    others = tuple(f"{os.path.realpath(each)}{os.sep}" for each in (*installed, str(Path(__file__).parents[1])) if each)
    found: set[str] = set()
    for module in tuple(sys.modules.values()):
        file: Any = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py"):
            real = os.path.realpath(file)
            if not real.startswith(others):
                found.add(real)
    return {file: _stamp(file) for file in found}


def command_of(context: typer.Context, *, without: Iterable[str], with_: Mapping[str, Any]) -> list[str]:
    """The command line that starts a worker with the options this process was given, but for some, and others in their place.

    -P keeps the current folder from the front of the path: the worker puts it where it belongs by itself.
    """
    warnings = [f"-W{each}" for each in sys.warnoptions]
    command = [sys.executable, "-P", *warnings, "-c", "from composer.cli.main import worker_app; worker_app()"]
    values = {name: value for name, value in context.params.items() if name not in set(without)} | dict(with_)
    arguments: list[str] = []
    for parameter in context.command.params:
        value = values.get(parameter.name or "")
        if value is None or value == parameter.default:
            continue
        if parameter.param_type_name == "argument":
            arguments += [str(each) for each in value]
        elif isinstance(value, bool):
            command.append(parameter.opts[0] if value else parameter.secondary_opts[0])
        else:
            for each in value if isinstance(value, (list, tuple)) else [value]:
                command += [parameter.opts[0], str(each)]
    return [*command, *arguments]
