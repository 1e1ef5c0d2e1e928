"""Transitions as statement parameters: one encoder a commit statement. Columns, because the statements unnest arrays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from json import dumps
from typing import Any

from composer.core.plan import Node
from composer.core.states import TaskState
from composer.core.transition import TaskStart
from composer.ports.store import ItemCommit, MapPage, NewRun, RunCommit

_READY, _LEASED, _WAITING = TaskState.READY.value, TaskState.LEASED.value, TaskState.WAITING.value
_READY_COLUMNS = 8
"""Of a new task, without those that only one has which waits or has ended already."""
_FAILED, _COMPLETED = TaskState.FAILED.value, TaskState.COMPLETED.value


@lru_cache(maxsize=65_536)
def reads_text(reads: tuple[int, ...]) -> str:
    """An int[] literal: arrays of arrays must be rectangular, arrays of literals need not be."""
    return "{" + ",".join(map(str, reads)) + "}"


def task_priority(node: Node, run_priority: int) -> int:
    """A task's priority: its node's, raised by its run's, within the bounds of both."""
    return max(-100, min(100, node.options.priority + run_priority))


def columns(rows: Sequence[Sequence[Any]], count: int) -> list[list[Any]]:
    """Rows turned into `count` columns."""
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(count)]


def encode_start(
    namespace: str, runs: Sequence[NewRun], owner: str, lease: float, *, goes_on: bool = False
) -> list[Any]:
    """Parameters of start.sql. `goes_on`: the statement is not the whole of its transaction."""
    heads = [_run(run) for run in runs]
    tasks = [task for run in runs for task in _root_tasks(run)]
    return [namespace, *columns(heads, 17), *columns(tasks, 12), owner, lease, goes_on]


def encode_start_one(namespace: str, run: NewRun, owner: str, lease: float) -> list[Any]:
    """Parameters of start_one.sql: a run without a key, hence without a digest, in which all that starts is ready."""
    run_id, workflow, _, _, *rest = _run(run)
    return [
        namespace,
        run_id,
        workflow,
        *rest,
        *columns([task[:_READY_COLUMNS] for task in _root_tasks(run)], _READY_COLUMNS)[1:],
        owner,
        lease,
    ]


def _run(run: NewRun) -> tuple[Any, ...]:
    change, result = run.transition, run.transition.result
    return (
        run.run_id, run.workflow, run.key, run.digest, run.plan_id, change.run.status.value, change.run.letters.text,
        change.run.counters.encode(), run.input, result and result.output, result and result.error, change.history_text,
        run.priority, _tags(run), run.starts_in, run.starts_at, None if run.is_scheduled else run.plan.timeout,
    )  # fmt: skip


def _root_tasks(run: NewRun) -> list[tuple[Any, ...]]:
    nodes = run.plan.nodes
    return [_new_task(run.run_id, nodes[s.node], run.priority, s, s.node in run.leased) for s in run.transition.starts]


def _tags(run: NewRun) -> str:
    return dumps(dict(run.tags), sort_keys=True) if run.tags else "{}"


def _new_task(run_id: str, node: Node, priority: int, start: TaskStart, leased: bool) -> tuple[Any, ...]:
    options = node.options
    state = _LEASED if leased else _READY
    if not start.is_ready:
        state = _WAITING if start.waits else _FAILED if start.error is not None else _COMPLETED
    return (
        run_id, node.index, node.step, options.queue, task_priority(node, priority), reads_text(node.reads), state,
        options.heartbeat_timeout, start.wake_in, start.error, start.output, start.wake_at,
    )  # fmt: skip


def encode_steps(namespace: str, commits: Sequence[RunCommit], owner: str, lease: float) -> list[Any]:
    """Parameters of commit_steps.sql."""
    heads: list[tuple[Any, ...]] = []
    results: list[tuple[Any, ...]] = []
    changes: list[tuple[Any, ...]] = []
    tasks: list[tuple[Any, ...]] = []
    for commit in commits:
        made, run_id = commit.transition, commit.run_id
        run = made.run
        heads.append(
            (run_id, run.version - 1, run.status.value, run.letters.text, run.counters.encode(), made.history_text)
        )
        if made.result is not None:
            results.append((run_id, made.result.output, made.result.error))
        for c in made.changes:
            changes.append(
                (
                    run_id, c.node, c.item, c.attempt, c.delivery, c.state.value, c.attempt_add, c.delivery_add,
                    c.failures_add, c.output, c.error, c.delay, c.details,
                )
            )  # fmt: skip
        nodes, leased = commit.plan.nodes, commit.leased
        for start in made.starts:
            tasks.append(_new_task(run_id, nodes[start.node], commit.priority, start, start.node in leased))
    return [
        namespace, *columns(heads, 6), *columns(results, 3), *columns(changes, 13), *columns(tasks, 12), owner, lease,
    ]  # fmt: skip


def encode_one(namespace: str, commit: RunCommit, owner: str, lease: float) -> list[Any]:
    """Parameters of commit_one.sql, for a commit with a single change, in which all that starts is ready."""
    made, run_id = commit.transition, commit.run_id
    run, result = made.run, made.result
    (c,) = made.changes
    nodes, leased = commit.plan.nodes, commit.leased
    tasks = [
        _new_task(run_id, nodes[s.node], commit.priority, s, s.node in leased)[:_READY_COLUMNS] for s in made.starts
    ]
    return [
        namespace, run_id, run.version - 1, run.status.value, run.letters.text, run.counters.encode(), made.history_text,
        result is not None, result and result.output, result and result.error,
        c.node, c.item, c.attempt, c.delivery, c.state.value, c.attempt_add, c.delivery_add, c.failures_add, c.output, c.error,
        c.delay, c.details, *columns(tasks, _READY_COLUMNS)[1:], owner, lease,
    ]  # fmt: skip


def encode_rare(namespace: str, commits: Sequence[RunCommit]) -> list[Any]:
    """Parameters of commit_rare.sql."""
    heads: list[tuple[Any, ...]] = []
    results: list[tuple[Any, ...]] = []
    changes: list[tuple[Any, ...]] = []
    tasks: list[tuple[Any, ...]] = []
    signals: list[tuple[Any, ...]] = []
    taken: list[tuple[Any, ...]] = []
    for commit in commits:
        made, run_id = commit.transition, commit.run_id
        run = made.run
        heads.append(
            (
                run_id, run.version - 1, run.status.value, run.letters.text, run.counters.encode(), made.history_text,
                commit.plan_id, made.restarts, commit.deadline_in, made.stops_open_tasks,
            )
        )  # fmt: skip
        if made.result is not None:
            results.append((run_id, made.result.output, made.result.error))
        for c in made.changes:
            changes.append(
                (
                    run_id, c.node, c.item, int(c.fence), c.attempt, c.delivery, c.state.value, c.attempt_add, c.delivery_add,
                    c.failures_add, c.crashes_add, c.output, c.error, c.delay, c.details,
                )
            )  # fmt: skip
        signals += [(run_id, each.name, each.payload, each.dedupe, each.node) for each in made.signals]
        taken += [(run_id, signal, node) for signal, node in made.taken]
        nodes = commit.plan.nodes
        for start in made.starts:
            tasks.append(_new_task(run_id, nodes[start.node], commit.priority, start, leased=False))
    return [
        namespace, *columns(heads, 10), *columns(results, 3), *columns(changes, 15), *columns(tasks, 12), *columns(signals, 5),
        *columns(taken, 3),
    ]  # fmt: skip


def encode_items(namespace: str, commits: Sequence[ItemCommit]) -> list[Any]:
    """Parameters of commit_items.sql."""
    rows: list[tuple[Any, ...]] = []
    for commit in commits:
        run_id = commit.run_id
        for item in commit.changes:
            c = item.change
            rows.append(
                (
                    run_id, c.node, c.item, int(c.fence), c.attempt, c.delivery, c.state.value, c.attempt_add, c.delivery_add,
                    c.failures_add, c.crashes_add, c.output, c.error, c.delay, c.details, item.entry,
                )
            )  # fmt: skip
    return [namespace, *columns(rows, 16)]


def encode_page(namespace: str, page: MapPage) -> list[Any]:
    """Parameters of expand_map.sql."""
    node = page.plan.nodes[page.node]
    options = node.options
    return [
        namespace, page.run_id, page.node, page.first, page.total, list(page.inputs), node.step, options.queue,
        task_priority(node, page.priority), list(node.reads), options.heartbeat_timeout, options.max_concurrency, page.tolerance,
        page.retries, page.digest, dumps(node.name),
    ]  # fmt: skip
