"""Processes for steps with isolation="process": code that computes, and has to be stopped from outside.

A process is started when none is idle, runs one body after the other, and is ended when it was idle for a while. What
stops a body kills its process, and the programs that the body has started with it. The child's side, and what crosses
the socket between the two, is process_child.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, Final

from composer.define.step import Step
from composer.errors import PlanError
from composer.worker.process_frames import MAIN, length_of, packed

log = logging.getLogger("composer.worker")

_IDLE: Final = 60.0
"""Seconds after which an idle process is ended: it holds its modules' memory."""
_TO_START: Final = 60.0
"""Seconds a new process may take to import the modules of its steps."""
_TO_REAP: Final = 0.05
"""Seconds between looks for the exit status of processes that were ended."""
_TO_END: Final = 2.0
"""Seconds idle processes may take to end when the worker closes."""
_CHILD: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); from composer.worker.process_child import main; main()"
)


class ProcessDied(Exception):
    """The process of a step ended before the step did; `began` is whether its body had begun."""

    def __init__(self, why: str, *, began: bool = False) -> None:
        super().__init__(why)
        self.began = began


def address_of(step: Step[..., Any]) -> tuple[str, str]:
    """Module and attribute under which another process finds a step. Raises PlanError when it cannot be found there."""
    where = step.declaration.where
    module = sys.modules.get(step.module)
    name = attribute_of(step)
    if module is None or name is None:
        raise PlanError(
            f"process step {step.name} is not to be found in module {step.module}",
            "Its process imports the module and looks for it there: keep the step under a name at the module's top level.",
            where,
        )
    spec = getattr(module, "__spec__", None)
    if step.module == "__main__":
        return (spec.name if spec is not None else MAIN), name
    try:
        found = importlib.util.find_spec(step.module)
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise PlanError(
            f"process step {step.name} is in module {step.module}, which no other process can import",
            "Its process imports it by that name: write the step into a file on sys.path.",
            where,
        )
    return step.module, name


def attribute_of(step: Step[..., Any]) -> str | None:
    """The name of a step in its module: its function's, else any that leads to it."""
    module = sys.modules.get(step.module)
    with contextlib.suppress(AttributeError):
        if _is(attrgetter(step.fn.__qualname__)(module), step):
            return str(step.fn.__qualname__)
    return next((name for name, value in vars(module or object).items() if _is(value, step)), None)


def _is(value: Any, step: Step[..., Any]) -> bool:
    return isinstance(value, Step) and value.fn is step.fn


class StepProcess:
    """A running process. One call at a time."""

    def __init__(self, popen: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self._popen, self._connection = popen, connection
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._calls = 0
        self.idle_since = 0.0
        self.is_fit = True
        """Whether it can take another call."""

    @property
    def pid(self) -> int:
        """Process id; its process group has the same."""
        return self._popen.pid

    async def ready(self, first: Mapping[str, Any]) -> None:
        """Returns once it has imported its modules. Raises ProcessDied."""
        self._reader, self._writer = await asyncio.open_unix_connection(sock=self._connection)
        try:
            async with asyncio.timeout(_TO_START):
                await self._send(first)
                while "ready" not in await self._receive():
                    pass
        except TimeoutError:
            raise ProcessDied(f"its process was not ready within {_TO_START:g} s: it hangs in an import") from None

    async def call(self, request: Mapping[str, Any], *, beat: Callable[[str | None], None]) -> Mapping[str, Any]:
        """Runs a body; the frame that says how it ended. Raises ProcessDied. Cancelled, the process is killed."""
        self._calls += 1
        began = False
        self.is_fit = False
        try:
            await self._send({**request, "call": self._calls})
            while True:
                frame = await self._receive()
                if frame.get("call") == self._calls and "beat" in frame:
                    beat(frame["beat"])
                elif frame.get("call") == self._calls and "log" not in frame:
                    self.is_fit = True
                    return frame
                began = began or "began" in frame
        except ProcessDied as error:
            error.began = began
            raise
        finally:
            if not self.is_fit:
                self.kill()

    async def _send(self, frame: Mapping[str, Any]) -> None:
        try:
            self._writer.write(packed(frame))
            await self._writer.drain()
        except OSError:
            raise ProcessDied(await self._cause()) from None

    async def _receive(self) -> Mapping[str, Any]:
        try:
            head = await self._reader.readexactly(4)
            frame: Mapping[str, Any] = json.loads(await self._reader.readexactly(length_of(head)))
        except (asyncio.IncompleteReadError, OSError):
            raise ProcessDied(await self._cause()) from None
        if "log" in frame:
            _log_here(frame["log"])
        return frame

    async def _cause(self) -> str:
        """Why it ended, once it has."""
        until = time.monotonic() + _TO_END
        while (code := self._popen.poll()) is None:
            if time.monotonic() > until:
                return "its process closed the socket to the worker"
            await asyncio.sleep(0.01)
        if code >= 0:
            return f"its process ended with exit code {code}, by os._exit() or a fatal error of the interpreter"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        advice = {
            "SIGKILL": ": out of memory, most likely, or killed by hand",
            "SIGSEGV": ": a crash in native code; its Python stack is in the worker's stderr",
            "SIGABRT": ": native code gave up; its Python stack is in the worker's stderr",
        }
        return f"its process was killed by {name}{advice.get(name, '')}"

    @property
    def has_ended(self) -> bool:
        """Whether it is gone; takes its exit status."""
        return self._popen.poll() is not None

    def kill(self) -> None:
        """Ends it and what it has started, now."""
        self.is_fit = False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._close()

    def end(self) -> None:
        """Lets it end by itself, with what its modules registered for the exit. It must be idle."""
        self.is_fit = False
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.write_eof()  # heard also where a forked process holds the socket

    def _close(self) -> None:
        writer = getattr(self, "_writer", None)
        if writer is not None:
            writer.close()
        else:
            self._connection.close()


class ProcessPool:
    """The processes of one worker. The worker counts how many it uses: this only starts, lends and ends them."""

    def __init__(self, steps: Iterable[Step[..., Any]]) -> None:
        self._addresses = {step.name: address_of(step) for step in steps}
        self._idle: list[StepProcess] = []
        self._alive: set[StepProcess] = set()
        self._sweep: asyncio.TimerHandle | None = None

    @property
    def pids(self) -> list[int]:
        """Process ids of those that have not been seen to end."""
        return sorted(process.pid for process in self._alive)

    async def acquire(self) -> StepProcess:
        """A process that is ready for a body; give it back with `release`. Raises ProcessDied when none can be started."""
        while self._idle:
            process = self._idle.pop()
            if process.is_fit and not process.has_ended:
                return process
            self._bury(process)
        return await self._start()

    def release(self, process: StepProcess) -> None:
        """Takes a process back, whatever has become of it."""
        if not process.is_fit:
            self._bury(process)
            return
        process.idle_since = time.monotonic()
        self._idle.append(process)
        self._look_in(_IDLE)

    async def run(
        self, process: StepProcess, step: str, request: Mapping[str, Any], *, beat: Callable[[str | None], None]
    ) -> Mapping[str, Any]:
        """Runs one body; how it ended. Raises ProcessDied."""
        module, attribute = self._addresses[step]
        return await process.call({**request, "module": module, "attribute": attribute}, beat=beat)

    async def close(self) -> None:
        """Ends them all and waits for it, for two seconds at most."""
        if self._sweep is not None:
            self._sweep.cancel()
        for process in self._alive:
            if process in self._idle:
                process.end()
            else:
                process.kill()
        if not await self._all_ended(_TO_END):
            for process in self._alive:
                process.kill()
            await self._all_ended(_TO_END)

    async def _all_ended(self, limit: float) -> bool:
        until = time.monotonic() + limit
        while left := self._reap():
            if time.monotonic() > until:
                break
            await asyncio.sleep(0.01)
        return not left

    async def _start(self) -> StepProcess:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        # Here and not in a thread: on Linux a process dies with the thread that started it (see process_child.py).
        try:
            popen = subprocess.Popen(  # noqa: ASYNC220
                [sys.executable, "-P", "-c", _CHILD, str(theirs.fileno()), str(os.getpid()), json.dumps(sys.path)],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise ProcessDied(f"no process can be started: {error}") from error
        finally:
            theirs.close()
        process = StepProcess(popen, ours)
        self._alive.add(process)
        try:
            await process.ready(
                {
                    "modules": sorted({module for module, _ in self._addresses.values()}),
                    "script": getattr(sys.modules.get("__main__"), "__file__", None),
                    "log_level": min(logging.getLogger(name).getEffectiveLevel() for name in ("root", "composer.step")),
                }
            )
        except BaseException:
            self._bury(process)
            raise
        return process

    def _bury(self, process: StepProcess) -> None:
        process.kill()
        self._look_in(_TO_REAP)

    # -- those that end -------------------------------------------------------------------------------------
    def _look_in(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        at = loop.time() + seconds
        if self._sweep is not None and self._sweep.when() <= at:
            return
        if self._sweep is not None:
            self._sweep.cancel()
        self._sweep = loop.call_at(at, self._look)

    def _look(self) -> None:
        self._sweep = None
        old = time.monotonic() - _IDLE
        for process in [process for process in self._idle if process.idle_since <= old]:
            self._idle.remove(process)
            process.end()
        self._reap()
        if any(not process.is_fit and process not in self._idle for process in self._alive):
            self._look_in(_TO_REAP)
        elif self._idle:
            self._look_in(_IDLE)

    def _reap(self) -> bool:
        """Takes the exit status of those that have ended. Returns whether others are left."""
        for process in [process for process in self._alive if process.has_ended]:
            self._alive.discard(process)
            process.kill()  # what it had started, and the socket
        return bool(self._alive)


def _log_here(facts: Mapping[str, Any]) -> None:
    record = logging.makeLogRecord(facts)
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)
