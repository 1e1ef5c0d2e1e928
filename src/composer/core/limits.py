"""How large a payload may be: the one check that inputs, results, checkpoints, signals and a run's output go through.

A payload is sent, stored, copied and decoded many times, and history and lists are read beside it: what is large
belongs elsewhere, with its place passed on.
"""

from __future__ import annotations

from typing import Final

from composer.errors import PayloadTooLarge

MAX_PAYLOAD: Final = 2_000_000
"""Bytes of UTF-8 that the JSON of one value may have, unless the settings say otherwise."""


def size_of(text: str) -> int:
    """Bytes of the text in UTF-8."""
    # Counting characters of ASCII is free; encoding a large text is not.
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def within_limit(text: str, what: str, limit: int = MAX_PAYLOAD) -> str:
    """The payload itself. Raises PayloadTooLarge, saying `what` it is, when it is over the limit."""
    # A character is at most four bytes, so that most texts need no closer look.
    if len(text) * 4 > limit and (size := size_of(text)) > limit:
        raise PayloadTooLarge(what, size, limit)
    return text
