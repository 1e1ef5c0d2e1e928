"""Steps that run in processes of their own: module-level, so that another process can import them."""

from __future__ import annotations

import atexit
import contextvars
import ctypes
import hashlib
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from composer import NonRetryable, Retry, RetryAfter, Snooze, step, step_context, workflow

log = logging.getLogger("tests.isolated")
tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


@dataclass
class Digest:
    """A result that is no plain value."""

    hex: str
    pid: int


class TwoArguments(Exception):
    """Pickles, and cannot be unpickled."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


class Unprintable(Exception):
    """Has no text, and cannot be pickled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Odd(BaseException):
    """No Exception."""


class Textless(Odd):
    """Has no text, either."""

    def __str__(self) -> str:
        raise self


@step(isolation="process")
def leaves_threads(count: int) -> int:
    """Leaves threads that nobody ends, and something at the exit that does not end."""
    for _ in range(count):
        threading.Thread(target=time.sleep, args=(600,)).start()
    atexit.register(time.sleep, 600)
    return os.getpid()


@step(isolation="process")
def digest(text: str) -> Digest:
    """Computes."""
    return Digest(hashlib.sha256(text.encode()).hexdigest(), os.getpid())


@step(isolation="process", timeout=1.0, retries=Retry(attempts=2, delay=0))
def endless(folder: str) -> int:
    """Never returns, ignores what it can, and leaves its process id."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (Path(folder) / f"{os.getpid()}").write_text(str(child.pid))
    while True:
        pass


@step(isolation="process")
def endless_without_limit(folder: str) -> int:
    """As above, until it is stopped."""
    (Path(folder) / f"{os.getpid()}").write_text("")
    while True:
        pass


@step(isolation="process")
def holds_the_interpreter(folder: str) -> int:
    """Native code that never lets another thread run."""
    (Path(folder) / f"{os.getpid()}").write_text("")
    ctypes.PyDLL(None).sleep(600)
    return 0


@step(isolation="process", retries=Retry(attempts=2, delay=0))
def dies(how: str) -> str:
    """Ends its process, the first time."""
    if step_context().attempt == 1 or how.endswith("always"):
        match how.split()[0]:
            case "exit":
                os._exit(3)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "close":
                threading.Thread(target=time.sleep, args=(600,)).start()
                sys.stderr.close()
                os.closerange(3, 256)
            case _:
                ctypes.string_at(0)
    return f"survived {how}"


@step(isolation="process", retries=Retry(attempts=4, delay=0, no_retry_on=(KeyError,)))
def raises(how: str) -> str:
    """Ends in the way that was asked for."""
    context = step_context()
    match how:
        case "two":
            raise TwoArguments("a", "b")
        case "unprintable":
            raise Unprintable
        case "exit":
            sys.exit(4)
        case "interrupt":
            raise KeyboardInterrupt
        case "generator":
            raise GeneratorExit("closed")
        case "odd":
            raise Odd("no Exception")
        case "textless":
            raise Textless
        case "lock":
            return threading.Lock()  # type: ignore[return-value]
        case "surrogate":
            return "\ud800"
        case "group":
            raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])
        case "final":
            raise NonRetryable("never") from ValueError("the cause")
        case "policy":
            raise KeyError("not again")
        case "after" if context.attempt == 1:
            raise RetryAfter(0.01, "soon")
        case "snooze" if context.heartbeat_details(int, default=0) < 2:
            context.heartbeat(context.heartbeat_details(int, default=0) + 1)
            raise Snooze(0.01)
        case "result":
            return 7  # type: ignore[return-value]
        case "resources":
            return str(context.resources)
    return f"{how} {context.attempt}"


@step(isolation="process", retries=1)
def counts(n: int, folder: str) -> list[int]:
    """Counts with checkpoints; in the middle of its first attempt it leaves its process id and goes no further."""
    context = step_context()
    seen: list[int] = []
    for i in range(context.heartbeat_details(int, default=0), n):
        seen.append(i)
        context.heartbeat(i + 1)
        if i == n // 2 and context.attempt == 1:
            (Path(folder) / f"{os.getpid()}").write_text("")
            time.sleep(600)
    return seen


@step(isolation="process")
def logs(text: str) -> str:
    """Logs in three ways."""
    log.warning("plainly %s", text, extra={"colour": "red"})
    step_context().log.info("by the context")
    try:
        raise ValueError(text)
    except ValueError:
        log.exception("with a traceback")
    return tenant.get()


def squared(n: int) -> int:
    """For a pool of processes."""
    return n * n


@step(isolation="process")
def pooled(method: str) -> list[int]:
    """Has processes of its own."""
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
        return list(pool.map(squared, range(4)))


@step(isolation="process")
def orphans(text: str) -> str:
    """Leaves a forked process behind and dies."""
    if os.fork() == 0:
        time.sleep(600)
    os._exit(7)
    return text


@step
async def plain(n: int) -> int:
    """Beside the others."""
    return n + 1


@workflow
def digesting(text: str) -> Digest:
    """Computes."""
    return digest(text)


@workflow
def two_digests(text: str) -> str:
    """Two after each other."""
    return digest.named("second")(digest(text).hex).hex


@workflow
def running_over(folder: str) -> int:
    """Longer than its timeout."""
    return endless(folder)


@workflow
def stopped(folder: str) -> int:
    """Until it is stopped."""
    return endless_without_limit(folder)


@workflow
def held(folder: str) -> int:
    """Native code."""
    return holds_the_interpreter(folder)


@workflow
def dying(how: str) -> str:
    """A process that dies."""
    return dies(how)


@workflow
def raising(how: str) -> str:
    """An exception."""
    return raises(how)


@workflow
def counting_on(n: int, folder: str) -> list[int]:
    """Checkpoints."""
    return counts(n, folder)


@workflow
def logging_there(text: str) -> str:
    """Log records."""
    return logs(text)


@workflow
def pooled_flow(method: str) -> list[int]:
    """Processes of a process."""
    return pooled(method)


@workflow
def orphaning(text: str) -> str:
    """A forked process."""
    return orphans(text)


@workflow
def littering(count: int) -> int:
    """Threads left behind."""
    return leaves_threads(count)


@workflow
def beside(n: int) -> int:
    """A coroutine."""
    return plain(n)


FLOWS = [
    digesting, two_digests, running_over, stopped, held, dying, raising, counting_on, logging_there, littering, beside,
]  # fmt: skip
