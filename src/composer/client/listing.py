"""runs(): which runs are asked for, checked before anything is sent, and their pages one after the other."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from composer.apply import persistently
from composer.client.starting import is_storable
from composer.core.states import SETTLED, RunStatus
from composer.define.workflow import Workflow
from composer.errors import QueryError
from composer.ports.store import ListedRun, RunQuery, Store

MOST_LOOKED_AT: Final = 5_000
"""Runs one statement looks at, however few of them fit: some ten milliseconds of the server's time."""
_LONGEST_MESSAGE: Final = 200


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run in a list: what its own row says, without payloads. `client.get(run.id)` has the rest."""

    id: str
    workflow: str
    status: str
    priority: int
    tags: Mapping[str, str]
    created_at: datetime
    finished_at: datetime | None
    error_code: str | None
    """Of a failed or cancelled run: node-failed, deadline, no-output, cancelled, ..."""
    error_message: str | None
    """One line: the error's type and message, cut short."""
    quarantine: str | None
    nodes_settled: int
    """Nodes to which nothing more will happen, of `nodes_total`; a map is one."""
    nodes_total: int


def summary(run: ListedRun) -> RunSummary:
    """The run as lists show it."""
    snapshot = run.head.snapshot
    letters = snapshot.letters.text
    error = _decoded(run.error)
    text = ": ".join(str(error[name]) for name in ("type", "message") if error.get(name))
    line = " ".join(text.split())
    return RunSummary(
        id=run.head.run_id,
        workflow=run.workflow,
        status=snapshot.status.value,
        priority=run.head.priority,
        tags=run.tags,
        created_at=run.created_at,
        finished_at=run.finished_at,
        error_code=error.get("code"),
        error_message=(line if len(line) <= _LONGEST_MESSAGE else line[: _LONGEST_MESSAGE - 1] + "…") or None,
        quarantine=run.quarantine,
        nodes_settled=sum(letter in SETTLED for letter in letters),
        nodes_total=len(letters),
    )


def _decoded(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"code": "unreadable"}


def query_of(
    workflow: object,
    status: str | Iterable[str] | None,
    tags: Mapping[str, str] | None,
    error_code: str | None,
    since: datetime | None,
    until: datetime | None,
    newest_first: bool,
) -> RunQuery:
    """What runs() was asked for. Raises QueryError for what cannot be meant."""
    if workflow is not None and not isinstance(workflow, str | Workflow):
        raise QueryError(f"workflow={workflow!r}: expected a @workflow or the name of one")
    for name, moment in (("since", since), ("until", until)):
        if moment is not None and moment.tzinfo is None:
            raise QueryError(
                f"{name}={moment!r} has no time zone: give an aware datetime, as datetime(..., tzinfo=UTC)"
            )
    for name, value in (tags or {}).items():
        given: Any = (name, value)
        if not all(isinstance(each, str) and is_storable(each) for each in given):
            raise QueryError(
                f"tags: {name!r}={value!r}: names and values of tags are text, without NUL or lone surrogates"
            )
    for what, text in (("workflow", workflow), ("error_code", error_code)):
        if isinstance(text, str) and not is_storable(text):
            raise QueryError(f"{what}={text!r}: no run has that, as it holds NUL or a lone surrogate")
    return RunQuery(
        workflow.name if isinstance(workflow, Workflow) else workflow,
        frozenset(_status(each) for each in ([status] if isinstance(status, str) else status or ())),
        dict(tags or {}),
        error_code,
        since,
        until,
        newest_first,
    )


def _status(text: str) -> RunStatus:
    try:
        return RunStatus(text)
    except ValueError:
        known = [each.value for each in RunStatus]
        close = difflib.get_close_matches(str(text), known, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(known)}"
        raise QueryError(f"status={text!r} is no status of a run: {hint}") from None


class Listing:
    """The pages of one query: the same for both clients."""

    def __init__(self, store: Callable[[], Store], query: RunQuery, page: int, patience: float) -> None:
        if page < 1:
            raise QueryError(f"page={page!r}: expected 1 or more runs")
        self._store, self._query, self._patience = store, query, patience
        self._look = page
        self._after: str | None = None
        self._is_over = False

    async def more(self) -> list[RunSummary]:
        """The next runs; empty after the last. Raises StoreUnavailable."""
        while not self._is_over:
            look = self._look
            page = await persistently(
                lambda: self._store().list_runs(self._query, self._after, look),  # noqa: B023
                self._patience,
            )
            self._after, self._is_over = page.reached, page.reached is None
            if len(page.runs) < look // 2:
                # Most runs do not fit: more of them a statement, and still not so many that it takes long.
                self._look = max(look, min(2 * look, MOST_LOOKED_AT))
            if page.runs:
                return [summary(run) for run in page.runs]
        return []
