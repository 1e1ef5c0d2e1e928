"""A command in a terminal of its own, for tests of what is drawn there and of Ctrl-C."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from tests.system.processes import heard

_SEQUENCE: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """Runs a command in a terminal of some size and keeps all it writes there. Nothing here waits without a limit."""

    def __init__(
        self, command: Sequence[str], *, folder: Path, width: int = 100, height: int = 30, environment: Mapping[str, str] | None = None
    ) -> None:  # fmt: skip
        self._main, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        # These two would be believed before the terminal's size is asked for.
        inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        with heard(signal.SIGINT):
            self.popen = subprocess.Popen(
                command, cwd=folder, stdin=side, stdout=side, stderr=side, start_new_session=True,
                env={**inherited, "TERM": "xterm", **(environment or {})},
            )  # fmt: skip
        os.close(side)
        self._bytes = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.popen.kill()
        self.popen.wait(10)
        os.close(self._main)

    @property
    def seen(self) -> str:
        """All that was written so far, with its sequences."""
        return self._bytes.decode(errors="replace")

    @property
    def words(self) -> str:
        """All that was written so far, without sequences."""
        return _SEQUENCE.sub("", self.seen)

    def until(self, holds: Callable[[str], bool], limit: float = 30) -> None:
        """Reads until the condition holds of what was seen, which it must within `limit` seconds."""
        deadline = time.monotonic() + limit
        while not holds(self.seen):
            assert self._read(deadline), f"it ended, or {limit:g} s were not enough:\n{self.seen}"

    def poll(self) -> None:
        """Reads what is there."""
        self._read(time.monotonic())

    def ended(self, limit: float = 30) -> int:
        """The exit code, once all that was written is read."""
        deadline = time.monotonic() + limit
        while self._read(deadline):
            pass
        return self.popen.wait(max(deadline - time.monotonic(), 0.1))

    def _read(self, deadline: float) -> bool:
        """Reads some; false when there will be no more, or not in time."""
        if not select.select([self._main], [], [], max(deadline - time.monotonic(), 0))[0]:
            return False
        try:
            more = os.read(self._main, 65536)
        except OSError:  # the other side is closed
            return False
        self._bytes += more
        return bool(more)
