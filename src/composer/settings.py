"""Settings: read from arguments and environment once, frozen afterwards."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from composer.core.limits import MAX_PAYLOAD
from composer.errors import SettingsError

ENVIRONMENT: Final = {
    "database_url": "COMPOSER_DATABASE_URL",
    "home": "COMPOSER_HOME",
    "namespace": "COMPOSER_NAMESPACE",
    "schema": "COMPOSER_SCHEMA",
    "pooler": "COMPOSER_POOLER",
    "max_payload": "COMPOSER_MAX_PAYLOAD",
}
_URL: Final = re.compile(r"postgres(ql)?://")
_LARGEST_PAYLOAD: Final = 64_000_000
"""A commit carries many payloads at once, and one value of PostgreSQL holds a gigabyte."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Where the runs are and how a process behaves. Durations in seconds."""

    database_url: str | None = None
    """A PostgreSQL 15 or newer; None starts or joins the embedded one in `home`."""
    home: Path = field(default_factory=lambda: Path(".composer"))
    """Folder of the embedded server."""
    namespace: str = "default"
    schema: str = "composer"
    pooler: bool = False
    """Whether the URL leads through a pooler in transaction mode: then nothing is listened for, only polled."""
    queues: tuple[str, ...] = ("default",)
    """Queues a worker serves, most important first."""
    concurrency: int = 100
    """Steps a worker runs at the same time."""
    threads: int = 40
    """Plain-function steps among them, each in a thread of its own."""
    processes: int | None = None
    """Steps with isolation="process" among them, each in a process of its own; None: as many as there are cores."""
    lease: float = 15.0
    """How long a worker may be silent before its tasks are given to others."""
    grace: float = 30.0
    """How long running steps may take to finish once the worker is told to stop."""
    poll_interval: float = 1.0
    recovery_interval: float = 5.0
    coordinator: bool = True
    """Whether a worker runs the coordinator's loops too."""
    max_payload: int = MAX_PAYLOAD
    """Bytes that the JSON of one input, result or checkpoint may have."""

    def __post_init__(self) -> None:
        if self.database_url is not None and not _URL.match(self.database_url):
            # Only as far as the first colon: behind it there may be a password.
            begins = self.database_url.partition(":")[0][:30]
            raise SettingsError(
                f"database_url begins with {begins!r}: expected postgresql://user:password@host:port/database"
                + (f"; leave out {begins[begins.index('+') :]!r}, which is SQLAlchemy's" if "+" in begins else "")
            )
        for name in ("lease", "grace", "poll_interval", "recovery_interval"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not 0 <= value < 1e6:
                raise SettingsError(f"{name}={value!r}: expected seconds, 0 or more")
        if self.lease < 0.5:
            raise SettingsError(f"lease={self.lease!r}: below half a second every hiccup would look like a crash")
        for name in ("concurrency", "threads", "processes"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise SettingsError(f"{name}={getattr(self, name)!r}: expected 1 or more")
        if type(self.max_payload) is not int or not 1_000 <= self.max_payload <= _LARGEST_PAYLOAD:
            raise SettingsError(
                f"max_payload={self.max_payload!r}: expected whole bytes, from 1,000 to {_LARGEST_PAYLOAD:,}"
            )
        if not self.queues:
            raise SettingsError("queues is empty: a worker serves at least one, 'default' unless you name others")
        if not self.schema.isidentifier() or not self.schema.islower():
            raise SettingsError(f"schema={self.schema!r}: expected a lower-case identifier")

    def with_changes(self, **changes: Any) -> Settings:
        """The same settings but for those given; None leaves one as it is."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})


def read_settings(environment: Mapping[str, str] | None = None, **given: Any) -> Settings:
    """Settings from the arguments given (None: not given), else from the environment, else the defaults.

    Raises SettingsError naming the argument or the variable.
    """
    environment = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    for each in fields(Settings):
        if given.get(each.name) is not None:
            values[each.name] = given[each.name]
            continue
        variable = ENVIRONMENT.get(each.name)
        text = environment.get(variable, "").strip() if variable else ""
        if text:
            values[each.name] = _READ.get(each.name, _text)(variable or "", text)
    unknown = given.keys() - {each.name for each in fields(Settings)}
    if unknown:
        close = get_close_matches(min(unknown), [each.name for each in fields(Settings)], n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise SettingsError(f"unknown settings: {', '.join(sorted(unknown))}{hint}")
    if "home" in values:
        values["home"] = Path(values["home"])
    return Settings(**values)


def _text(variable: str, text: str) -> str:
    return text


def _bytes(variable: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise SettingsError(f"{variable}={text!r}: expected whole bytes, such as 2000000") from None


def _truth(variable: str, text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise SettingsError(f"{variable}={text!r}: expected true or false")


_READ: Final[Mapping[str, Callable[[str, str], Any]]] = {"pooler": _truth, "max_payload": _bytes}
