"""A PostgreSQL store that shows every statement its connections really send."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import anyio
import asyncpg

from composer.postgres.statements import Statements, statements
from composer.postgres.store import PostgresStore

# One run's start and one report's commit have statements of their own. To the cost contract they are the start, the commit.
_SAME = {"start_one": "start", "commit_one": "commit_steps"}
_NAMES = {getattr(statements("composer"), each.name): _SAME.get(each.name, each.name) for each in fields(Statements)}
# What the driver asks about array types when a connection first meets one: once a connection, for no operation of ours.
_INTROSPECTION = ("WITH RECURSIVE typeinfo_tree", "SELECT current_setting('jit')", "SELECT set_config('jit'")


@dataclass(frozen=True, slots=True)
class Sent:
    """A statement that was sent: its file's name, or its first words."""

    name: str
    args: tuple[Any, ...]
    at: float


class ObservedStore(PostgresStore):
    """Lists in `sent` what its connections, its twin's and its listener's send to the server."""

    sent: list[Sent]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.sent = []

    def connection_options(self) -> dict[str, Any]:
        """As ever, with connections that tell."""
        return {**super().connection_options(), "connection_class": _telling(self._saw)}

    def twin(self) -> ObservedStore:
        """Another handle, observed here too."""
        twin = ObservedStore(self._url, namespace=self.namespace, schema=self._schema, connections=2)
        twin.sent = self.sent
        return twin

    def _saw(self, record: Any) -> None:
        words = record.query.split()
        if " ".join(words).startswith(_INTROSPECTION):
            return
        name = _NAMES.get(record.query) or " ".join(words[:3])
        self.sent.append(Sent(name, record.args, time.monotonic()))

    def names(self) -> Counter[str]:
        """How often each statement was sent."""
        return Counter(each.name for each in self.sent)


def _telling(saw: Callable[[Any], None]) -> type[asyncpg.Connection]:
    class Telling(asyncpg.Connection):
        __slots__ = ()

        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            self.add_query_logger(saw)

    return Telling


async def until(condition: Callable[[], Any], limit: float = 10.0) -> None:
    """Returns once the condition holds, which it must within the limit."""
    with anyio.fail_after(limit):
        while not condition():
            await anyio.sleep(0.005)
