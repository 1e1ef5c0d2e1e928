"""The promises as checks on stored runs: what `composer verify` says of a live database, and the tests of theirs.

The numbers are the invariants' own (docs/how-it-works.md). A run is read at one instant, so a database at work may be
verified; what is found is wrong, not under way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from composer.core.history import fold
from composer.core.plan import Plan
from composer.core.states import ENDED_RUN, OPEN_TASK, SETTLED, NodeState, RunStatus, TaskState
from composer.ports.store import AuditedRun, Store

_PAGE: Final = 200
_BEGINS: Final = {
    "guard": NodeState.COMPLETED,
    "map": NodeState.MAPPING,
    "wait": NodeState.WAITING,
    "sleep": NodeState.WAITING,
}
"""The letter of a node whose turn has come, where it is not ACTIVE. A race begins before all it needs have settled."""
_COUNTS: Final = frozenset({NodeState.MAPPING.value, NodeState.DRAINING.value})
_ROW_OF: Final = {NodeState.COMPLETED: TaskState.COMPLETED, NodeState.FAILED: TaskState.FAILED}
"""The state of the task that a node which has ended leaves."""
_MOVES: Final = frozenset({TaskState.READY, TaskState.LEASED, TaskState.DELAYED, TaskState.WAITING})


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken invariant: its number, the run, and what is wrong."""

    invariant: int
    run_id: str
    problem: str


@dataclass(slots=True)
class Verified:
    """What was looked at."""

    runs: int = 0
    transitions: int = 0
    tasks: int = 0


async def verify(store: Store, verified: Verified) -> AsyncIterator[Violation]:
    """Every violation among the runs of the store's namespace, run by run. Counts what it looks at in `verified`."""
    after: str | None = None
    while page := await store.audit(after, _PAGE):
        for run in page:
            plan = await store.load_plan(run.record.head.plan_id)
            verified.runs += 1
            verified.transitions += len(run.history)
            verified.tasks += len(run.record.tasks)
            for violation in violations_of(run, plan):
                yield violation
        after = page[-1].record.head.run_id


def violations_of(run: AuditedRun, plan: Plan) -> list[Violation]:
    """What is wrong with one run; empty when nothing is."""
    found: list[Violation] = []
    record = run.record
    run_id, now = record.head.run_id, record.head.snapshot

    def wrong(invariant: int, problem: str) -> None:
        found.append(Violation(invariant, run_id, problem))

    # 6: versions without a gap; and 5 cannot be asked of a history that has one.
    versions = [row.version for row in run.history]
    if versions != list(range(1, now.version + 1)):
        wrong(6, f"history has versions {versions[:5]}..{versions[-1:]} and the run is at {now.version}")
        return found
    folded = fold(plan, [row.changes for row in run.history])

    # 5: history folds to what the rows say.
    if folded.run != now:
        wrong(5, f"history folds to {folded.run}, the row says {now}")
    for task in record.tasks:
        tally = folded.tasks.get((task.node, task.item))
        if tally is not None and (tally.failures, tally.crashes) != (task.failures, task.crashes):
            name = plan.nodes[task.node].name
            wrong(
                5,
                f"{name}: history counts {tally.failures} failures and {tally.crashes} crashes, the row {task.failures} and {task.crashes}",
            )

    # 1: one result a task, and it is there.
    for (node, item), tally in folded.tasks.items():
        if tally.completions > 1:
            wrong(1, f"{plan.nodes[node].name}[{item}]: {tally.completions} results were applied")
    for task in record.tasks:
        is_map = plan.nodes[task.node].kind == "map" and task.item < 0  # its items have the output
        if task.state == TaskState.COMPLETED and task.output is None and not is_map:
            wrong(1, f"{plan.nodes[task.node].name}: it is completed and has no output")

    found += _ends(run, plan)
    found += _maps(run, plan)
    found += _order(run, plan)
    found += _progress(run)
    return found


def _ends(run: AuditedRun, plan: Plan) -> list[Violation]:
    """1: a node that has ended by its own doing has a task that says so, with its result or its error."""
    found: list[Violation] = []
    record = run.record
    states = {task.node: task.state for task in record.tasks if task.item < 0}
    for node in plan.nodes:
        # Guards have no task, maps have counts, and a sleep whose end nobody asks for need not have one.
        if node.kind in ("guard", "map") or (node.kind == "sleep" and not plan.is_read(node.index)):
            continue
        letter = record.head.snapshot.letters[node.index]
        if letter in _ROW_OF and states.get(node.index) != _ROW_OF[letter]:
            there = states.get(node.index, "not there")
            found.append(Violation(1, record.head.run_id, f"{node.name} is {letter.word}, and its task is {there}"))
    return found


def _maps(run: AuditedRun, plan: Plan) -> list[Violation]:
    """5: a map's counts are those of its items. 3: one that has not ended has its own task to move it."""
    found: list[Violation] = []
    record = run.record
    run_id, now = record.head.run_id, record.head.snapshot
    for node, counts in record.maps.items():
        name, letter = plan.nodes[node].name, now.letters[node]
        stored = _stored(run, name)
        # Rows beyond what was stored since the map last began are of an earlier life of the run.
        states = Counter(task.state for task in record.tasks if task.node == node and 0 <= task.item < stored)

        def wrong(problem: str, name: str = name) -> None:
            found.append(Violation(5, run_id, f"{name}: {problem}"))

        kept = (states[TaskState.COMPLETED], states[TaskState.FAILED])
        if kept != (counts.completed, counts.failed):
            wrong(
                f"its rows are {kept[0]} completed and {kept[1]} failed items, its counts say {counts.completed} and {counts.failed}"
            )
        if letter is NodeState.COMPLETED and not counts.has_ended:
            wrong(f"it is completed, and {counts.settled} of its {counts.total} items have settled")
        if letter in (NodeState.MAPPING, NodeState.DRAINING) and counts.retries == now.counters.retries:
            if states[TaskState.HELD] != counts.held:
                wrong(f"{states[TaskState.HELD]} items are held, its counts say {counts.held}")
            # Items that were never stored are withdrawn with the others once the map drains.
            unstored = counts.total - stored if counts.expanded == counts.total else 0
            withdrawn = states[TaskState.WITHDRAWN] + unstored
            if (sum(states.values()), stored + unstored, withdrawn) != (stored, counts.expanded, counts.withdrawn):
                wrong(
                    f"{sum(states.values())} of {stored} items are stored and {withdrawn} are withdrawn, "
                    f"its counts say {counts.expanded} and {counts.withdrawn}"
                )
    if now.status is RunStatus.RUNNING:
        own = {task.node for task in record.tasks if task.item < 0 and task.state == TaskState.WAITING}
        for place, letter in enumerate(now.letters):
            if letter in (NodeState.MAPPING, NodeState.DRAINING, NodeState.WAITING) and place not in own:
                found.append(
                    Violation(3, run_id, f"{plan.nodes[place].name} is {letter.word}, and no task waits for it")
                )
    return found


def _stored(run: AuditedRun, name: str) -> int:
    """How many items the map has stored since it last began."""
    stored = 0
    for row in run.history:
        for entry in row.changes.get("events", ()):
            if entry["event"] == "items-expanded" and entry["node"] == name:
                stored = entry["to"]
    return stored


def _order(run: AuditedRun, plan: Plan) -> list[Violation]:
    """2: no node starts before what it needs has settled. 6: attempts and deliveries only grow."""
    found: list[Violation] = []
    run_id = run.record.head.run_id
    letters = [NodeState.BLOCKED.value] * len(plan.nodes)
    last: dict[tuple[str, int], tuple[int, int]] = {}
    for row in run.history:
        for name in row.changes.get("reset", ()):
            letters[plan.index[name]] = NodeState.BLOCKED.value
        for name, letter in row.changes.get("nodes", {}).items():
            letters[plan.index[name]] = letter
        for name, letter in row.changes.get("nodes", {}).items():
            node = plan.nodes[plan.index[name]]
            begins = _BEGINS.get(node.kind, NodeState.ACTIVE)
            if letter == begins and any(letters[need] not in SETTLED for need in node.needs):
                found.append(
                    Violation(
                        2,
                        run_id,
                        f"{name} became {begins.word} at version {row.version}, before what it needs had settled",
                    )
                )
        for entry in row.changes.get("events", ()):
            if "outcome" in entry:
                key = (entry["node"], entry.get("item", -1))
                if key[1] >= 0 and letters[plan.index[key[0]]] not in _COUNTS:
                    found.append(
                        Violation(2, run_id, f"{key[0]}[{key[1]}] ended at version {row.version}, outside of its map")
                    )
                ended = (entry["attempt"], entry["delivery"])
                if ended < last.get(key, (0, 0)):
                    found.append(
                        Violation(
                            6, run_id, f"{entry['node']}: {ended} ended at version {row.version}, after {last[key]}"
                        )
                    )
                last[key] = ended
    return found


def _progress(run: AuditedRun) -> list[Violation]:
    """3: an open run has something that will move it. 4: an ended one has nothing left."""
    record = run.record
    run_id, now = record.head.run_id, record.head.snapshot
    open_tasks = [task for task in record.tasks if task.state in OPEN_TASK]
    if now.status in ENDED_RUN:
        found = [Violation(4, run_id, f"the run is {now.status} and node {t.node} is {t.state}") for t in open_tasks]
        if run.dispatched:
            found.append(
                Violation(
                    4, run_id, f"the run is {now.status} and {len(run.dispatched)} of its tasks are still handed out"
                )
            )
        return found
    if record.quarantine is not None or now.status is RunStatus.SCHEDULED:
        return []
    if not any(task.state in _MOVES for task in open_tasks):
        return [
            Violation(
                3,
                run_id,
                f"the run is {now.status} and nothing will move it: no task is ready, leased, delayed or waiting",
            )
        ]
    return []
