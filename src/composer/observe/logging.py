"""Log lines with their facts: readable on a terminal, one JSON object a line on request."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final

from composer.define.context import running

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def facts_of(record: logging.LogRecord) -> dict[str, Any]:
    """What was given as `extra`."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


class StepLogFilter(logging.Filter):
    """Puts run_id, workflow, node and attempt on records that come out of a running step. Lets every record pass.

    Add it to a handler of yours (a logger's filters see only what is logged on that very logger). It reads a
    ContextVar, so it is right in coroutines and threads, whatever library the record comes from. A fact that the
    record has already is left as it is.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Adds the facts of the step that is running, if there is one; always True."""
        context = running()
        if context is not None:
            for name, value in context.facts.items():
                record.__dict__.setdefault(name, value)
        return True


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
    root = logging.getLogger("composer")
    root.handlers[:] = [_handler(as_json=as_json)]
    root.setLevel(level)
    root.propagate = False


def configure_user_logging(*, as_json: bool = False, level: int = logging.INFO) -> None:
    """Sends all other log lines to stderr too, unless the user's modules have configured logging while imported.

    Call it after they were: logging.basicConfig() in a module does nothing once there is a handler.
    """
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(_handler(as_json=as_json))
        if root.level == logging.WARNING:
            root.setLevel(level)


def _handler(*, as_json: bool) -> logging.Handler:
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if as_json else ReadableFormatter())
    handler.addFilter(StepLogFilter())
    return handler
