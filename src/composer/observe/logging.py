"""Log lines with their facts: readable on a terminal, one JSON object a line on request."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def facts_of(record: logging.LogRecord) -> dict[str, Any]:
    """What was given as `extra`."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


class ReadableFormatter(logging.Formatter):
    """Time, level, text, then the facts as name=value. Control characters are written out."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S.%f")[:-3]
        facts = " ".join(f"{name}={value}" for name, value in facts_of(record).items())
        text = f"{at} {record.levelname.lower():7} {record.getMessage()}" + (f"  [{facts}]" if facts else "")
        text = "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
        return text + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")


class JsonFormatter(logging.Formatter):
    """One JSON object a line: at, level, logger, message, the facts, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        out: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **facts_of(record),
        }
        if record.exc_info:
            out["traceback"] = self.formatException(record.exc_info)
        return json.dumps(out, default=str)


def configure_logging(*, as_json: bool = False, level: int = logging.INFO) -> None:
    """Sends Composer's log lines to stderr. For processes that are Composer's own; a library user configures logging."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if as_json else ReadableFormatter())
    root = logging.getLogger("composer")
    root.handlers[:] = [handler]
    root.setLevel(level)
    root.propagate = False
