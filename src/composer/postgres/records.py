"""Rows as the port's records."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from composer.core.events import MapCounts
from composer.core.snapshot import Snapshot
from composer.ports.store import (
    AuditedRun,
    BegunTask,
    HistoryRow,
    ListedRun,
    RunChanges,
    RunHead,
    RunRecord,
    TaskRecord,
)


def head_of(row: Any, run_id: Any) -> RunHead:
    """A run's head, of any row that has its columns."""
    snapshot = Snapshot.stored(row["status"], row["version"], row["letters"], row["counters"])
    return RunHead(str(run_id), row["plan"], snapshot, row["run_priority"])


def map_counts(row: Any) -> MapCounts | None:
    """How far a map is, of any row that has its columns; None when they are null."""
    if row["total"] is None:
        return None
    return MapCounts(
        row["total"], row["completed"], row["failed"], row["withdrawn"], row["expanded"], row["held"], row["tolerance"],
        row["first_failed"], row["error"] or "", row["retries"],
    )  # fmt: skip


def run_record(rows: Sequence[Any]) -> RunRecord:
    """A run with its tasks, of the rows of get_run.sql."""
    maps = {row["node"]: row for row in rows if row["total"] is not None}
    counts = {node: map_counts({**row, "error": row["map_error"]}) for node, row in maps.items()}
    return _record(rows[0], [row for row in rows if row["node"] is not None], counts)


def listed_run(row: Any) -> ListedRun:
    """One row of list_runs.sql that has a run."""
    return ListedRun(
        head_of(row, row["id"]), row["workflow"], json.loads(row["tags"]), row["quarantine"], row["created_at"],
        row["finished_at"], row["error"],
    )  # fmt: skip


def error_pattern(code: str) -> str:
    """What list_runs.sql looks for in the text of an error. A cast to JSON would fail for an error with a NUL in it.

    No text inside the JSON can look like it: quotes are escaped there.
    """
    return rf'"(code|kind)": ?{re.escape(json.dumps(code))}'


def run_changes(rows: Sequence[Any]) -> RunChanges:
    """A run's transitions, of the rows of changes.sql."""
    history = [
        HistoryRow(row["at_version"], row["at"], json.loads(row["changes"]))
        for row in rows
        if row["at_version"] is not None
    ]
    begun = [
        BegunTask(node, attempt, delivery, stopped, worker, datetime.fromisoformat(at))
        for node, attempt, delivery, stopped, worker, at in json.loads(rows[0]["begun"] or "[]")
    ]
    return RunChanges(head_of(rows[0], rows[0]["id"]), history, begun)


def audited_run(row: Any) -> AuditedRun:
    """One row of audit.sql."""
    tasks: list[dict[str, Any]] = json.loads(row["tasks"] or "[]")
    for task in tasks:
        for name in ("created_at", "started_at", "finished_at", "wake_at", "lease_expires_at"):
            task[name] = None if task[name] is None else datetime.fromisoformat(task[name])
    history = [
        HistoryRow(each["version"], datetime.fromisoformat(each["at"]), json.loads(each["changes"]))
        for each in json.loads(row["history"] or "[]")
    ]
    maps = {each["node"]: map_counts(each) for each in json.loads(row["maps"] or "[]")}
    return AuditedRun(_record(row, tasks, maps), history, frozenset(map(tuple, json.loads(row["dispatched"] or "[]"))))


def _record(run: Any, tasks: Sequence[Mapping[str, Any]], maps: Mapping[int, MapCounts | None]) -> RunRecord:
    own = next((task for task in tasks if task["node"] == -1), None)
    return RunRecord(
        head=head_of(run, run["id"]),
        workflow=run["workflow"],
        namespace=run["namespace"],
        priority=run["run_priority"],
        tags=json.loads(run["tags"]),
        quarantine=run["quarantine"],
        created_at=run["run_created_at"],
        updated_at=run["updated_at"],
        finished_at=run["run_finished_at"],
        starts_at=run["starts_at"],
        deadline_at=run["deadline_at"],
        input=own["input"] if own else "{}",
        output=own["output"] if own else None,
        error=own["error"] if own else None,
        tasks=[_task(task) for task in tasks if task["node"] >= 0],
        maps={node: counts for node, counts in maps.items() if counts is not None},
    )


def _task(row: Mapping[str, Any]) -> TaskRecord:
    return TaskRecord(
        node=row["node"], item=row["item"], state=row["state"], attempt=row["attempt"], delivery=row["delivery"],
        failures=row["failures"], crashes=row["crashes"], queue=row["queue"], owner=row["lease_owner"], output=row["output"],
        error=row["error"], details=row["details"], created_at=row["created_at"], started_at=row["started_at"],
        finished_at=row["finished_at"], wake_at=row["wake_at"], lease_expires_at=row["lease_expires_at"],
    )  # fmt: skip
