"""What crosses the socket between a worker and the process of a step: JSON objects, each behind its length."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, Final

MAIN: Final = "__composer_main__"
"""Name under which a step's process imports the script that started the worker, so that its `__main__` guard holds."""
HEAD: Final = struct.Struct("!I")
"""The length, in bytes."""


def packed(frame: Mapping[str, Any]) -> bytes:
    """A frame as bytes, its length first."""
    data = json.dumps(frame, separators=(",", ":"), default=str).encode()
    return HEAD.pack(len(data)) + data


def length_of(head: bytes) -> int:
    """How many bytes follow a frame's head."""
    return int(HEAD.unpack(head)[0])
