"""The SQL files of this package, read once, for one schema."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Statements:
    """Text of every statement; each file's header says what it does, locks, needs and returns."""

    start: str
    start_one: str
    claim: str
    commit_one: str
    commit_steps: str
    commit_rare: str
    commit_items: str
    expand_map: str
    withdraw_items: str
    free_items: str
    due_waits: str
    load_signals: str
    renew: str
    leased_to: str
    load_heads: str
    load_values: str
    run_ends: str
    get_run: str
    list_runs: str
    changes: str
    audit: str
    expired: str
    move_due: str
    due_runs: str
    next_due: str
    repair_outbox: str
    unknown_steps: str


@cache
def statements(schema: str) -> Statements:
    """The statements for a schema."""
    return Statements(**{each.name: for_schema(_read(f"sql/{each.name}.sql"), schema) for each in fields(Statements)})


@cache
def migrations() -> list[tuple[int, str, str]]:
    """(number, name, text) of every migration, in order; the text names schema `composer`."""
    found: list[tuple[int, str, str]] = []
    for entry in (files("composer.postgres") / "migrations").iterdir():
        match = re.fullmatch(r"(\d{4})_(\w+)\.sql", entry.name)
        if match:
            found.append((int(match[1]), match[2], entry.read_text(encoding="utf-8")))
    return sorted(found)


def for_schema(text: str, schema: str) -> str:
    """The statement with another schema's name, and that schema's notification channel."""
    if schema == "composer":
        return text
    return text.replace("composer.", f"{schema}.").replace("pg_notify('composer'", f"pg_notify('{schema}'")


def _read(name: str) -> str:
    text = (files("composer.postgres") / name).read_text(encoding="utf-8")
    # A part that several statements have is a file of its own: its name begins with an underscore.
    text = re.sub(r"-- include (_\w+)", lambda match: _read(f"sql/{match[1]}.sql"), text)
    # Comments are for readers: without them a statement is a third shorter in logs and on the wire.
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
