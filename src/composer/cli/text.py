"""Text of users on its way to a terminal."""

from __future__ import annotations

import unicodedata
from typing import Final

UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Categories of characters that nobody sees and a terminal may act on."""
_KEPT: Final = frozenset("\n\t")


def printable(text: str) -> str:
    """The text with everything written out that a terminal would act on: escapes, controls, marks of direction.

    What a run's input or error says must not move the cursor, retitle the window or turn a line around.
    """
    return "".join(c if c in _KEPT or unicodedata.category(c) not in UNSEEN else _written(c) for c in text)


def _written(c: str) -> str:
    return c.encode("unicode_escape").decode("ascii")


def one_line(text: str, width: int = 120) -> str:
    """The text in one line, cut to `width` characters."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= width else line[: width - 1] + "…"
