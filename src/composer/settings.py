"""Settings: read from arguments and environment once, frozen afterwards."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from composer.errors import SettingsError

ENVIRONMENT: Final = {
    "database_url": "COMPOSER_DATABASE_URL",
    "home": "COMPOSER_HOME",
    "namespace": "COMPOSER_NAMESPACE",
    "schema": "COMPOSER_SCHEMA",
    "pooler": "COMPOSER_POOLER",
}


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

    def __post_init__(self) -> None:
        for name in ("lease", "grace", "poll_interval", "recovery_interval"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not 0 <= value < 1e6:
                raise SettingsError(f"{name}={value!r}: expected seconds, 0 or more")
        if self.lease < 0.5:
            raise SettingsError(f"lease={self.lease!r}: below half a second every hiccup would look like a crash")
        for name in ("concurrency", "threads", "processes"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise SettingsError(f"{name}={getattr(self, name)!r}: expected 1 or more")
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
            values[each.name] = _truth(variable or "", text) if each.name == "pooler" else text
    unknown = given.keys() - {each.name for each in fields(Settings)}
    if unknown:
        raise SettingsError(f"unknown settings: {', '.join(sorted(unknown))}")
    if "home" in values:
        values["home"] = Path(values["home"])
    return Settings(**values)


def _truth(variable: str, text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise SettingsError(f"{variable}={text!r}: expected true or false")
