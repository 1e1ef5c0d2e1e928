"""What runs inside the process of a step with isolation="process"; the worker's side is processes.py.

The process is started for nothing but this, talks to its worker through one socket, and lives no longer than that
socket's other end. Bodies run in its main thread, one at a time. Two threads stand beside it: one listens, so that the
end of the worker is noticed in the middle of a body; one sends heartbeats, of many in a row only the last.

A frame is a JSON object behind its length. What a body returns or raises crosses as the payload codecs wrote it, never
as a pickled object: the worker has to read it even if it is of a class that cannot be copied.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import importlib.util
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

from composer.define.context import NoResources, StepContext, enter, leave
from composer.define.step import Step
from composer.errors import PayloadError, Snooze, StepCancelled
from composer.observe.logging import StepLogFilter, facts_of
from composer.worker import incarnation
from composer.worker.failures import mismatch, raised_by, refused
from composer.worker.process_frames import HEAD, MAIN, length_of, packed

_BETWEEN_BEATS: Final = 0.02
"""Seconds between two heartbeats that are sent: a body may call heartbeat() in every turn of a loop."""
_LAST_SECONDS: Final = 5
"""That an idle process gets for its clean-up at exit once the worker is done with it."""
_NO_RESOURCES: Final = NoResources(
    "a process step has none: the worker's @lifespan is open in the worker's own process. "
    "Open what it needs inside the step, or leave out isolation='process'"
)


class _Wire:
    """The socket to the worker."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._beaten = threading.Event()
        self._details: str | None = None
        # A process that a body forks must not hold this end open when this process has died.
        os.register_at_fork(after_in_child=connection.close)
        self.call = 0
        """Number of the call whose body runs."""
        self.busy = False

    def send(self, **frame: Any) -> None:
        data = packed(frame)
        with self._lock:
            self._connection.sendall(data)

    def receive(self) -> Any:
        """The next frame; None when the other end is closed."""
        head = self._exactly(HEAD.size)
        body = self._exactly(length_of(head)) if head else b""
        return json.loads(body) if body else None

    def _exactly(self, count: int) -> bytes:
        parts: list[bytes] = []
        while count:
            try:
                part = self._connection.recv(min(count, 1 << 20))
            except OSError:
                part = b""
            if not part:
                return b""
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    # -- heartbeats ----------------------------------------------------------------------------------------
    def beat(self, details: str | None) -> None:
        if details is not None:
            self._details = details
        self._beaten.set()

    def checkpoint(self) -> str | None:
        """The last checkpoint of the body that has ended; none is left for the next."""
        self._beaten.clear()
        details, self._details = self._details, None
        return details

    def keep_beating(self) -> None:
        """Sends heartbeats, for ever."""
        while True:
            self._beaten.wait()
            self._beaten.clear()
            with contextlib.suppress(OSError):
                self.send(beat=self._details, call=self.call)
            time.sleep(_BETWEEN_BEATS)


class _Link:
    """The step's way to its worker. A stopped body is killed, so it is never asked to stop."""

    stopped = False

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire

    def beat(self, details: str | None) -> None:
        self._wire.beat(details)


class _LogToWorker(logging.Handler):
    """Hands log records to the worker, which has the handlers that the user configured."""

    def __init__(self, wire: _Wire) -> None:
        super().__init__()
        self._wire = wire
        self.addFilter(StepLogFilter())

    def emit(self, record: logging.LogRecord) -> None:
        try:
            trace = logging.Formatter().formatException(record.exc_info) if record.exc_info else record.exc_text
            standard = {
                "name": record.name, "levelno": record.levelno, "levelname": record.levelname, "pathname": record.pathname,
                "filename": record.filename, "module": record.module, "lineno": record.lineno, "funcName": record.funcName,
                "created": record.created, "msecs": record.msecs, "process": record.process, "threadName": record.threadName,
                "msg": record.getMessage(), "exc_text": trace,
            }  # fmt: skip
            self._wire.send(log={**facts_of(record), **standard}, call=self._wire.call)
        except OSError:
            pass  # a forked process, or the worker is gone
        except Exception:
            self.handleError(record)


@dataclass(slots=True)
class _Modules:
    """The modules that hold steps, imported when the process starts; what failed is told to whoever asks."""

    script: str | None
    broken: dict[str, BaseException] = field(default_factory=dict[str, BaseException])

    def load(self, name: str) -> None:
        try:
            if name != MAIN:
                importlib.import_module(name)
                return
            spec = importlib.util.spec_from_file_location(MAIN, str(self.script))
            if spec is None or spec.loader is None:
                raise ImportError(f"{self.script} is no Python file", path=self.script)
            module = importlib.util.module_from_spec(spec)
            sys.modules[MAIN] = module
            spec.loader.exec_module(module)
        except BaseException as error:
            self.broken[name] = error

    def step(self, module: str, attribute: str) -> Step[..., Any]:
        if module in self.broken:
            raise ImportError(
                f"module {self.script if module == MAIN else module} cannot be imported in the step's own process: "
                f"{type(self.broken[module]).__name__}: {self.broken[module]}"
            ) from self.broken[module]
        found = attrgetter(attribute)(sys.modules[module])
        if not isinstance(found, Step):
            raise ImportError(f"{module}.{attribute} is {found!r} in the step's own process, and no step")
        return found


def main() -> None:
    """Runs the bodies that the worker sends until it closes the socket. Arguments: descriptor and worker's pid."""
    descriptor, worker = int(sys.argv[1]), int(sys.argv[2])
    incarnation.step_process_of = worker
    _tie_to(worker)
    wire = _Wire(socket.socket(fileno=descriptor))
    first = wire.receive()
    if first is None:
        return
    # The worker alone is told to stop; it gives this process its grace time, or ends it. (A handler, unlike SIG_IGN,
    # is not inherited by programs that a step starts.)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    faulthandler.enable()
    root = logging.getLogger()
    root.addHandler(_LogToWorker(wire))
    root.setLevel(first["log_level"])
    modules = _Modules(first["script"])
    for name in first["modules"]:
        modules.load(name)
    calls: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_listen, args=(wire, calls), daemon=True, name="composer-listen").start()
    threading.Thread(target=wire.keep_beating, daemon=True, name="composer-beat").start()
    try:
        _serve(wire, modules, calls)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the worker is gone
    except BaseException:
        # As when a body closed every descriptor. The worker learns of it by this process's end, which threads and exit
        # functions that a body left behind would put off for ever.
        with contextlib.suppress(Exception):  # it may have closed stderr, too
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(1)
    # What the user's modules registered for the exit runs now; the kernel ends what hangs in it.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_LAST_SECONDS)


def _serve(wire: _Wire, modules: _Modules, calls: SimpleQueue[Any]) -> None:
    wire.send(ready=os.getpid())
    while (call := calls.get()) is not None:
        wire.call = call["call"]
        wire.send(began=wire.call)
        outcome = _run(wire, modules, call)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        wire.busy = False
        wire.send(**outcome, details=wire.checkpoint(), call=wire.call)


def _listen(wire: _Wire, calls: SimpleQueue[Any]) -> None:
    while (frame := wire.receive()) is not None:
        wire.busy = True
        calls.put(frame)
    if wire.busy:
        # Nobody will hear what the body returns. With it go the programs it has started.
        os.killpg(0, signal.SIGKILL)
    calls.put(None)


def _tie_to(worker: int) -> None:
    """Has this process die with its worker even while native code holds the interpreter, and before it when memory ends."""
    with contextlib.suppress(OSError):
        # Of the two the kernel had better take the process that can be replaced.
        Path("/proc/self/oom_score_adj").write_text("500")
    if sys.platform == "linux":
        set_parent_death_signal = 1
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() != worker:
        os._exit(1)


def _run(wire: _Wire, modules: _Modules, call: Mapping[str, Any]) -> dict[str, Any]:
    """Runs one body; how it ended as a part of a frame."""
    no_retry_on: tuple[type[BaseException], ...] = ()
    context = StepContext(**call["context"], resources=_NO_RESOURCES, link=_Link(wire))
    token = enter(context)
    try:
        step = modules.step(call["module"], call["attribute"])
        no_retry_on = step.retries.no_retry_on
        try:
            args, kwargs = step.decode_arguments(call["arguments"])
        except PayloadError as error:
            return mismatch(f"the stored arguments do not fit step {step.name} as it is now: {error}").frame()
        value = step.fn(*args, **kwargs)
        try:
            return {"completed": step.encode_result(value, call["context"]["max_payload"])}
        except PayloadError as error:
            return refused(error).frame()
    except BaseException as error:
        # SystemExit too: sys.exit() in a step is a failure of the step, as in a thread.
        raised = raised_by(error, no_retry_on)
        if isinstance(raised, Snooze):
            return {"snoozed": max(0.0, raised.delay)}
        return {"cancelled": True} if isinstance(raised, StepCancelled) else raised.frame()
    finally:
        leave(token)
