"""What must hold once everything has healed: the database, the ledger and the clients' own stories against each other."""

from __future__ import annotations

import json
import pathlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from composer.core.plan import Node
from composer.postgres.store import PostgresStore
from composer.verify import Verified, verify
from tests.torture.clients import Wish
from tests.torture.flows import FLOWS, label

Key = tuple[str, str]
"""Run and node."""
Delivery = tuple[int, int]
"""Attempt and delivery."""


@dataclass
class Found:
    """The verdict."""

    violations: list[str] = field(default_factory=list[str])
    runs: int = 0
    statuses: Counter[str] = field(default_factory=Counter[str])
    executions: int = 0
    takeovers: int = 0
    """Executions that began after another delivery of the same task had been taken for lost."""
    overlaps: int = 0
    """Takeovers while the lost body still went on."""
    late_accepted: int = 0
    """Reports that were applied although their lease had been swept."""

    def wrong(self, problem: str) -> None:
        """Counts a violation."""
        self.violations.append(problem)


@dataclass
class Execution:
    """One body, as its ledger tells it."""

    pid: int
    began: float
    ended: float | None = None
    how: str = ""


async def check(url: str, ledger: pathlib.Path, wishes: Iterable[Wish]) -> Found:
    """Everything that is to be asked of the database and the ledger."""
    found = Found()
    connection = await asyncpg.connect(url)
    try:
        runs = await connection.fetch(
            "select r.id::text, r.workflow, r.status, r.version, r.quarantine, t.output from composer.runs r "
            "left join composer.tasks t on t.run_id = r.id and t.node = -1"
        )
        tasks = await connection.fetch("select *, run_id::text as run from composer.tasks where node >= 0")
        rows = await connection.fetch(
            "select run_id::text as run, version, changes from composer.history order by run_id, version"
        )
        keys = await connection.fetch("select workflow, key, run_id::text as run from composer.run_keys")
        left = await connection.fetchval("select count(*) from composer.outbox")
    finally:
        await connection.close()
    if left:
        found.wrong(f"{left} outbox rows are left")
    executions = _read(ledger, found)
    found.runs, found.statuses = len(runs), Counter(run["status"] for run in runs)
    _starts(found, wishes, runs, keys)
    _values(found, wishes, runs, tasks)
    _ledger(found, executions, runs, tasks, rows)
    await _invariants(found, url)
    return found


def _read(ledger: pathlib.Path, found: Found) -> dict[Key, dict[Delivery, Execution]]:
    executions: dict[Key, dict[Delivery, Execution]] = defaultdict(dict)
    for text in ledger.read_text().splitlines() if ledger.exists() else ():
        line = json.loads(text)
        key, delivery = (line["run"], line["node"]), (line["attempt"], line["delivery"])
        known = executions[key].get(delivery)
        if line["phase"] == "start":
            found.executions += 1
            if known is not None:
                found.wrong(f"{key}: delivery {delivery} was run twice, by processes {known.pid} and {line['pid']}")
            executions[key][delivery] = Execution(line["pid"], line["at"])
        elif known is None or known.pid != line["pid"]:
            found.wrong(f"{key}: the ledger has an end of {delivery} without its start")
        else:
            known.ended, known.how = line["at"], line["phase"]
    return executions


def _starts(found: Found, wishes: Iterable[Wish], runs: list[Any], keys: list[Any]) -> None:
    """An acknowledged start is one run; a key is one run; nothing was invented."""
    there = {run["id"] for run in runs}
    by_key = {(row["workflow"], row["key"]): row["run"] for row in keys}
    acknowledged: set[str] = set()
    unheard = 0
    for wish in wishes:
        name = f"wish {wish.number} (key {wish.key})"
        acknowledged |= wish.ids
        if len(wish.ids) > 1:
            found.wrong(f"{name} was given {len(wish.ids)} runs")
        if wish.created > 1:
            found.wrong(f"{name} was told {wish.created} times that it had made its run")
        for run_id in wish.ids - there:
            found.wrong(f"{name}: run {run_id} was acknowledged and does not exist")
        if not wish.ids:
            unheard += 1
            if wish.key is not None:
                found.wrong(f"{name} never heard of a run")
        if wish.key is not None and wish.ids and by_key.get((wish.flow, wish.key)) not in wish.ids:
            found.wrong(f"{name} was given {wish.ids}, and the key has {by_key.get((wish.flow, wish.key))}")
    if len(there - acknowledged) > unheard:
        found.wrong(
            f"{len(there - acknowledged)} runs exist that nobody was told of, and {unheard} starts went unheard"
        )


def _values(found: Found, wishes: Iterable[Wish], runs: list[Any], tasks: list[Any]) -> None:
    """Every run has ended, as it had to, with the interpreter's values."""
    outputs: dict[str, dict[str, str]] = defaultdict(dict)
    workflows = {run["id"]: run["workflow"] for run in runs}
    for task in tasks:
        planned = FLOWS[workflows[task["run"]]].plan.nodes[task["node"]]
        node = label(planned.name, task["item"])
        if task["state"] in ("held", "ready", "leased", "delayed", "waiting"):
            found.wrong(f"run {task['run']}: the task of {node} is still {task['state']}")
        if task["state"] == "completed" and not _is_whole_map(planned, task):
            outputs[task["run"]][node] = task["output"]
    by_id = {run_id: wish for wish in wishes for run_id in wish.ids}
    for run in runs:
        run_id, status, wish = run["id"], run["status"], by_id.get(run["id"])
        if run["quarantine"] is not None:
            found.wrong(f"run {run_id} is quarantined: {run['quarantine']}")
        if status not in ("completed", "failed", "cancelled"):
            found.wrong(f"run {run_id} never ended: it is {status}")
        if wish is None:
            continue
        if status == "completed" and run["output"] != str(wish.expected.result):
            found.wrong(f"run {run_id} gave {run['output']}, expected {wish.expected.result}")
        for node, output in outputs[run_id].items():
            if output != wish.expected.values[node]:
                found.wrong(f"run {run_id}: {node} gave {output}, expected {wish.expected.values[node]}")
        if status == "completed" and len(outputs[run_id]) != len(wish.expected.values):
            found.wrong(f"run {run_id} completed with {len(outputs[run_id])} of {len(wish.expected.values)} nodes")
        if status == "failed" and (not wish.expected.doomed or (wish.retries and not wish.cancel_asked)):
            found.wrong(f"run {run_id} failed, and had no reason to")
        if status == "cancelled" and not wish.cancel_asked:
            found.wrong(f"run {run_id} was cancelled, and nobody wanted it")
        if wish.cancel_answer is True and status != "cancelled":
            found.wrong(f"run {run_id} is {status} although its cancel was accepted")
        if wish.ended and wish.ended != status and not (wish.ended == "failed" and wish.cancel_asked):
            found.wrong(f"run {run_id} is {status}, and its client heard that it {wish.ended}")


def _is_whole_map(planned: Node, task: Any) -> bool:
    """Whether the task is a map's own, which no body runs: its items have the results."""
    return planned.kind == "map" and task["item"] < 0


def _ledger(
    found: Found,
    executions: dict[Key, dict[Delivery, Execution]],
    runs: list[Any],
    tasks: list[Any],
    rows: list[Any],
) -> None:
    """Every applied result was run; every run delivery was handed out, and history says what became of it."""
    outcomes: dict[Key, dict[Delivery, list[str]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for entry in json.loads(row["changes"]).get("events", ()):
            if "outcome" in entry:
                lost = entry["outcome"] == "crashed" or entry.get("kind") == "worker-lost"
                outcome = "lost" if lost else entry.get("kind", entry["outcome"])
                outcomes[row["run"], label(entry["node"], entry.get("item", -1))][
                    entry["attempt"], entry["delivery"]
                ].append(outcome)
    for key, deliveries in outcomes.items():
        for delivery, ended in deliveries.items():
            # Lost, and then heard all the same, is a report that came before anybody had claimed the task again.
            heard = [outcome for outcome in ended if outcome != "lost"]
            if len(heard) > 1 or len(ended) - len(heard) > 1:
                found.wrong(f"{key}: delivery {delivery} ended as {ended}")
            if not heard:
                continue
            found.late_accepted += len(ended) > 1
            execution = executions.get(key, {}).get(delivery)
            if execution is None:
                # A worker that stops may give back what it had been handed and not begun.
                if heard[0] != "released":
                    found.wrong(f"{key}: {heard[0]} was applied of {delivery}, which never ran")
            elif heard[0] not in _FITTING[execution.how]:
                found.wrong(f"{key}: {heard[0]} was applied of {delivery}, whose body ended as {execution.how!r}")
    statuses = {run["id"]: run["status"] for run in runs}
    workflows = {run["id"]: run["workflow"] for run in runs}
    last: dict[Key, Delivery] = {}
    for task in tasks:
        planned = FLOWS[workflows[task["run"]]].plan.nodes[task["node"]]
        if _is_whole_map(planned, task):
            continue
        node = label(planned.name, task["item"])
        last[task["run"], node] = (task["attempt"], task["delivery"])
        ended = [e for each in outcomes[task["run"], node].values() for e in each]
        if ended.count("completed") != (task["state"] == "completed"):
            found.wrong(
                f"run {task['run']}: the task of {node} is {task['state']}, and its deliveries ended as {ended}"
            )
    for key, deliveries in executions.items():
        if key not in last:
            found.wrong(f"{key}: it was run, and there is no such task")
            continue
        lost: list[Execution] = []
        for delivery, execution in sorted(deliveries.items(), key=lambda item: item[0][1]):
            if delivery[0] > last[key][0] or delivery[1] > last[key][1]:
                found.wrong(f"{key}: {delivery} was run, and {last[key]} is the last that was handed out")
            ended = outcomes[key].get(delivery, [])
            if not ended and statuses[key[0]] != "cancelled":
                found.wrong(f"{key}: {delivery} was run, and history does not know it")
            found.takeovers += bool(lost)
            found.overlaps += any(each.ended is not None and each.ended > execution.began for each in lost)
            lost = [execution] if ended == ["lost"] else []


_FITTING = {
    "end": {"completed", "timeout", "released"},
    "fail": {"error", "snoozed", "timeout", "released"},
    "stop": {"timeout", "released"},
    "": {"timeout", "released"},
}
"""What may be applied of a body, by how it ended: one that is stopped by its timeout or its worker ends as it likes."""


async def _invariants(found: Found, url: str) -> None:
    store = PostgresStore(url, connections=2)
    await store.open()
    try:
        verified = Verified()
        async for each in verify(store, verified):
            found.wrong(f"invariant {each.invariant}: run {each.run_id}: {each.problem}")
        if verified.runs != found.runs:
            found.wrong(f"verify looked at {verified.runs} of {found.runs} runs")
    finally:
        await store.close()


_SERVER_ERROR = re.compile(r"\b(ERROR|FATAL|PANIC): +(.*)")
_FAULTS = re.compile(
    'database "composer" does not exist|'  # the very first question
    "terminating connection|the database system is|canceling statement due to user request|"
    "connection to client lost|could not (send|receive) data|Connection reset by peer|unexpected EOF"
)


def check_server_log(found: Found, text: str) -> int:
    """Errors that no fault explains are violations. Returns how many deadlocks the server saw."""
    for match in _SERVER_ERROR.finditer(text):
        if not _FAULTS.search(match[2]) and "deadlock detected" not in match[2]:
            found.wrong(f"the server logged {match[0]}")
    deadlocks = text.count("ERROR:  deadlock detected")
    if deadlocks:
        found.wrong(f"{deadlocks} deadlocks")
    return deadlocks


def check_logs(found: Found, lines: Iterable[dict[str, Any]]) -> Counter[str]:
    """What workers and coordinators must never say. Returns how often each message came."""
    said: Counter[str] = Counter()
    block: list[str] = []
    for line in (*lines, {"message": "", "level": "info", "member": ""}):
        text = line.get("text")
        if text is not None:
            if text.startswith(_NEW_BLOCK):
                _check_text(found, said, block)
                block.clear()
            block.append(f"{line['member']}: {text}" if not block else text)
            continue
        _check_text(found, said, block)
        block.clear()
        message, level = line["message"], line["level"]
        said[message] += 1
        if line.get("redispatched"):
            found.wrong(f"{line['member']} found {line['redispatched']} ready tasks without an outbox row")
        if message.startswith("told twice to stop"):
            continue  # two drains of the plan met
        if level in ("error", "critical") and "StoreUnavailable" not in str(line.get("error", "")):
            found.wrong(f"{line['member']}: {message} {line.get('error') or line.get('reason') or ''}")
    return said


_NEW_BLOCK = ("Failed to restore", "  + Exception Group", "Task exception", "Exception in", "Unclosed")
_OF_A_FAULT = ("Failed to restore the pool connection floor", "composer.errors.StoreUnavailable")


def _check_text(found: Found, said: Counter[str], block: list[str]) -> None:
    """Text that is no log line: a traceback that no fault explains is a violation."""
    text = "\n".join(block)
    if "Traceback" not in text and "never retrieved" not in text:
        return
    said["a traceback"] += 1
    if not any(each in text for each in _OF_A_FAULT):
        found.wrong(f"{block[0][:100]} ... {block[-1] or block[-2]}")
