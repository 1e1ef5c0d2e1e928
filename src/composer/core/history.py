"""Folding a run's history gives the run: what `composer verify` and the tests compare with the rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from composer.core.plan import Plan
from composer.core.snapshot import Counters, Letters, Snapshot
from composer.core.states import NodeState, RunStatus


@dataclass(slots=True)
class TaskTally:
    """What history knows of one task: as many attempts, failures and crashes as its row has, at every version."""

    attempt: int = 1
    failures: int = 0
    crashes: int = 0
    completions: int = 0
    """Results applied since the task was last opened: never more than one."""


@dataclass(slots=True)
class Folded:
    """A run as its history tells it."""

    run: Snapshot
    tasks: dict[tuple[int, int], TaskTally] = field(default_factory=dict[tuple[int, int], TaskTally])
    answers: dict[int, bool] = field(default_factory=dict[int, bool])
    """What guards answered, by their place in the plan: those that have, since they were last reset."""


def fold(plan: Plan, history: Iterable[Mapping[str, Any]]) -> Folded:
    """The run after all transitions of `history` (version order, from the first). Raises KeyError on a node the plan lacks."""
    status, letters, counters, version = RunStatus.RUNNING, list(Letters.blocked(len(plan.nodes)).text), "", 0
    tasks: dict[tuple[int, int], TaskTally] = {}
    answers: dict[int, bool] = {}
    for changes in history:
        version += 1
        status = RunStatus(changes.get("status", status))
        counters = changes.get("counters", counters)
        for name in changes.get("reset", ()):
            answers.pop(plan.index[name], None)
        for name, answer in changes.get("guards", {}).items():
            answers[plan.index[name]] = answer
        for name, letter in changes.get("nodes", {}).items():
            index = plan.index[name]
            letters[index] = letter
            if letter == NodeState.ACTIVE:
                # Its task is opened. One that was there before a retry goes on counting attempts, with fresh budgets:
                # now, and not when the retry reset the node, as its row is not touched before.
                old = tasks.get((index, -1))
                tasks[index, -1] = TaskTally() if old is None else TaskTally(old.attempt + 1)
        for entry in changes.get("events", ()):
            if entry["event"] == "items-expanded":
                _reopen_items(tasks, plan.index[entry["node"]], entry)
            if "outcome" not in entry:
                continue
            key = (plan.index[entry["node"]], entry.get("item", -1))
            tally = tasks.setdefault(key, TaskTally())
            tally.attempt = entry["attempt"]
            match entry["outcome"]:
                case "completed":
                    tally.completions += 1
                case "retried":
                    tally.attempt += 1
                    tally.failures = entry["failures"]
                case "failed":
                    tally.failures = entry["failures"]
                case _:
                    pass
            tally.crashes = entry.get("crashes", tally.crashes)
    return Folded(Snapshot(status, version, Letters.of(letters), Counters.decode(counters)), tasks, answers)


def _reopen_items(tasks: dict[tuple[int, int], TaskTally], node: int, entry: Mapping[str, Any]) -> None:
    """Items stored anew after a retry: those that completed are kept, unless the list is another one."""
    if entry.get("afresh") and entry["from"] == 0:
        for (at, item), tally in tasks.items():
            if at == node and item >= entry["to"]:
                tally.completions = 0
    for item in range(entry["from"], entry["to"]):
        old = tasks.get((node, item))
        if old is not None and (entry.get("afresh") or not old.completions):
            tasks[node, item] = TaskTally(old.attempt + 1)
