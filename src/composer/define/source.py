"""The user's line: where in their own code a call was made, found without reading any source file."""

from __future__ import annotations

import sys
import sysconfig
from bisect import bisect_right
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

# Frames in these places are never "the user's line": this package, the standard library and code that has no file.
_LIBRARY: Final = (
    f"{Path(__file__).parents[1]}/",
    "<frozen",
    "<string>",
)
_STDLIB: Final = f"{sysconfig.get_path('stdlib')}/"
# Installed packages come second: a user's own project may be installed too, so they are not skipped outright.
_INSTALLED: Final = (f"{sysconfig.get_path('purelib')}/", f"{sysconfig.get_path('platlib')}/")


class Where(NamedTuple):
    """A place in code: cheap to keep, since the line number is worked out only when somebody asks."""

    code: CodeType
    lasti: int

    @property
    def line(self) -> int:
        """Line on which the call begins."""
        starts, lines = _lines(self.code)
        return lines[bisect_right(starts, self.lasti) - 1] if starts else self.code.co_firstlineno

    @property
    def place(self) -> str:
        """As file:line."""
        return f"{self.code.co_filename}:{self.line}"

    def __str__(self) -> str:
        name = self.code.co_name
        return self.place if name == "<module>" else f"{self.place} in {name}"


@lru_cache(maxsize=256)
def _lines(code: CodeType) -> tuple[list[int], list[int]]:
    table = [(start, line) for start, _, line in code.co_lines() if line is not None]
    return [start for start, _ in table], [line for _, line in table]


def is_user(filename: str) -> bool:
    """Whether a file is the user's own: not Composer, the standard library or an installed package."""
    return not filename.startswith(_LIBRARY) and not filename.startswith((_STDLIB, *_INSTALLED))


def user_line() -> Where:
    """The innermost frame of the user's own code.

    Where the user's project is itself an installed package, it is known by the module that the import ran.
    """
    frame = sys._getframe(1)
    installed: list[FrameType] = []
    while True:
        filename = frame.f_code.co_filename
        if filename.startswith(_INSTALLED):
            installed.append(frame)
        elif filename.startswith("<frozen importlib") and installed:
            break
        elif not filename.startswith(_LIBRARY) and not filename.startswith(_STDLIB):
            return Where(frame.f_code, frame.f_lasti)
        if frame.f_back is None:
            break
        frame = frame.f_back
    if installed:
        frame = next(each for each in installed if _package(each) == _package(installed[-1]))
    return Where(frame.f_code, frame.f_lasti)


def user_place() -> str:
    """The user's own line as text; "" where none of the frames is the user's, as in a thread that works for others."""
    where = user_line()
    return str(where) if is_user(where.code.co_filename) else ""


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def line_of(error: BaseException) -> str:
    """The last line of the user's own code that an exception passed through, as file:line; "" when there is none."""
    trace: Any = error.__traceback__
    found = ""
    while trace is not None:
        if is_user(trace.tb_frame.f_code.co_filename):
            found = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def defined_at(fn: Any) -> str:
    """Where a function is written, as file:line; of any other object, the user's line."""
    code = getattr(fn, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if isinstance(code, CodeType) else str(user_line())
