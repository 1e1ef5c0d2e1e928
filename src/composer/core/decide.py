"""decide(plan, run, events): what follows. The heart of Composer, and pure.

It knows no database, no clock and no event loop, and is told no time: a transition carries durations, and the store
stamps the moment. It is total: every event has an answer in every state, and what no longer applies is ignored
with a reason, never an exception. That one rule is what lets every loop run on many replicas with no leader.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from composer.core.draft import Draft
from composer.core.events import (
    CancelRequested,
    DeadlinePassed,
    Event,
    ItemsSettled,
    LeaseExpired,
    Report,
    RetryRequested,
    Scheduled,
    Started,
)
from composer.core.expressions import Unreadable, render
from composer.core.kinds import map as map_
from composer.core.kinds import step
from composer.core.plan import Plan, node_read
from composer.core.readiness import Standing, is_handled, standing
from composer.core.snapshot import Counters, Snapshot
from composer.core.states import ENDED_RUN, SETTLED, NodeState, RunStatus
from composer.core.transition import NeedValues, RunResult, Transition

_KINDS: Final[Mapping[str, Any]] = {"step": step, "map": map_}
_NOTHING: Final[Mapping[int, str]] = MappingProxyType({})
_RESET: Final = frozenset({NodeState.FAILED, NodeState.SKIPPED, NodeState.CANCELLED, NodeState.COMPENSATED})


def decide(
    plan: Plan, run: Snapshot, events: Sequence[Event], values: Mapping[int, str] = _NOTHING
) -> Transition | NeedValues:
    """What the events, in their order, make of the run: one transition for all of them.

    `values` are JSON texts by read code (core.plan): outputs by node, INPUT for the run's input; NeedValues names those
    that are missing.
    An empty transition means that every event was ignored; `ignored` says why.
    """
    draft = Draft(plan, run, values)
    for event in _one_report_a_task(draft, events) if len(events) > 1 else events:
        _route(draft, event)
        if draft.newly_settled:
            _advance(draft)
        if draft.wanted:
            return NeedValues(tuple(draft.wanted))
    if draft.entries and draft.status is RunStatus.RUNNING:
        missing = _finish(draft)
        if missing:
            return NeedValues(missing)
    return draft.transition()


def _one_report_a_task(draft: Draft, events: Sequence[Event]) -> list[Event]:
    reports, outdone = one_report_a_task([event for event in events if isinstance(event, Report)])
    for event in outdone:
        draft.ignore(event, "another report of the task is in the same batch")
    kept = {id(event) for event in reports}
    return [event for event in events if not isinstance(event, Report) or id(event) in kept]


def one_report_a_task(reports: Sequence[Report]) -> tuple[list[Report], list[Report]]:
    """Reports that count, and those that another one of their batch outdoes: one task has one outcome in a batch.

    The newest delivery counts, as an older one is no longer current; of one delivery a report rather than the expiry of
    its lease, then the first. Were a stale report taken, its fence would fail and the good one be lost with it.
    """
    best: dict[tuple[int, int], Report] = {}
    for event in reports:
        rival = best.setdefault((event.task.node, event.task.item), event)
        if _weight(event) > _weight(rival):
            best[event.task.node, event.task.item] = event
    kept: list[Report] = []
    outdone: list[Report] = []
    for event in reports:
        (kept if best[event.task.node, event.task.item] is event else outdone).append(event)
    return kept, outdone


def _weight(event: Report) -> tuple[int, int, bool]:
    return event.task.delivery, event.task.attempt, not isinstance(event, LeaseExpired)


def _route(draft: Draft, event: Event) -> None:
    plan = draft.plan
    match event:
        case RetryRequested():
            _retry(draft, event)
        case _ if draft.status in ENDED_RUN:
            draft.ignore(event, f"the run is {draft.status.value}")
        case Scheduled():
            if not draft.is_unborn:
                draft.ignore(event, "the run exists already")
                return
            draft.record("scheduled")
            draft.status = RunStatus.SCHEDULED
        case Started():
            if not draft.is_unborn and draft.status is not RunStatus.SCHEDULED:
                draft.ignore(event, "the run has already started")
                return
            draft.record("started")
            # The deadline of a scheduled run counts from here.
            draft.restarts = draft.status is RunStatus.SCHEDULED
            draft.status = RunStatus.RUNNING
            for index in plan.roots:
                _activate(draft, index)
            if draft.newly_settled:
                _advance(draft)
        case CancelRequested() | DeadlinePassed() if _has_ended(draft):
            draft.ignore(event, "the run has ended in the same batch")
        case CancelRequested():
            draft.record("cancel-requested", reason=event.reason)
            draft.stop(RunStatus.CANCELLED, json.dumps({"code": "cancelled", "message": event.reason}))
        case _ if draft.status is RunStatus.SCHEDULED:
            draft.ignore(event, "the run has not started")
        case DeadlinePassed(retries) if retries is not None and retries != draft.counters.retries:
            draft.ignore(event, "the run was retried since, and has another deadline")
        case DeadlinePassed():
            draft.record("deadline-passed")
            limit = (
                f"the run took longer than its workflow allows ({plan.timeout:g} s)"
                if plan.timeout
                else "the deadline passed"
            )
            draft.stop(RunStatus.FAILED, json.dumps({"code": "deadline", "message": limit}))
        case _:
            index = event.node if isinstance(event, ItemsSettled) else event.task.node
            if not 0 <= index < len(plan.nodes):
                draft.ignore(event, f"the plan has no node {index}")
                return
            node = plan.nodes[index]
            _KINDS[node.kind].apply(draft, node, event)


def _has_ended(draft: Draft) -> bool:
    """Whether earlier events of the batch settled every node: what stops a run comes too late then."""
    return (
        draft.status is RunStatus.RUNNING and bool(draft.entries) and all(letter in SETTLED for letter in draft.letters)
    )


def _activate(draft: Draft, index: int) -> None:
    node = draft.plan.nodes[index]
    _KINDS[node.kind].activate(draft, node)


def _advance(draft: Draft) -> None:
    """Everything that follows from nodes that have just settled, to a fixpoint: starts and skips."""
    plan, letters = draft.plan, draft.letters
    while draft.newly_settled:
        settled = draft.newly_settled.pop(0)
        if plan.fail_fast and letters[settled] == NodeState.FAILED and draft.result is not None:
            draft.stop(RunStatus.FAILED, draft.result.error)
            return
        for user in plan.nodes[settled].users:
            if letters[user] != NodeState.BLOCKED:
                continue
            verdict = standing(plan.nodes[user].terms, letters)
            if verdict is Standing.RUN:
                _activate(draft, user)
            elif verdict is Standing.SKIP:
                draft.settle(user, NodeState.SKIPPED)


def _finish(draft: Draft) -> tuple[int, ...]:
    """Ends the run when every node has settled. Returns the nodes whose outputs that still needs."""
    letters = draft.letters
    for letter in letters:
        if letter not in SETTLED:
            return ()
    plan = draft.plan
    failed = draft.counters.first_failure
    if failed >= 0 and any(letter == NodeState.FAILED and not _handled(draft, i) for i, letter in enumerate(letters)):
        draft.status = RunStatus.FAILED
        return ()
    if standing(plan.output_terms, letters) is Standing.SKIP:
        draft.status = RunStatus.FAILED
        message = "the run's output is read from a node that was skipped"
        draft.result = RunResult(error=json.dumps({"code": "no-output", "message": message}))
        return ()
    missing = tuple(node for node in plan.output_reads if node not in draft.values)
    if missing:
        return missing
    draft.status = RunStatus.COMPLETED
    try:
        draft.result = RunResult(output=render(plan, plan.output, draft.values.__getitem__))
    except Unreadable as error:
        draft.status = RunStatus.FAILED
        draft.result = RunResult(
            error=json.dumps({"code": "output-unreadable", "message": f"the run's output: {error}"})
        )
    return ()


def _handled(draft: Draft, index: int) -> bool:
    nodes = draft.plan.nodes
    return is_handled(index, [(nodes[user].terms, draft.letters[user]) for user in nodes[index].users])


def _retry(draft: Draft, event: RetryRequested) -> None:
    if draft.status is not RunStatus.FAILED:
        draft.ignore(event, f"the run is {draft.status.value}")
        return
    if draft.entries:
        # Its tasks end in this transition, and a task is not ended and opened in one.
        draft.ignore(event, "the run has failed in the same batch")
        return
    draft.record("retry-requested", rerun_stale=event.rerun_stale)
    if event.adopted_plan is not None:
        draft.record("plan-adopted", plan=event.adopted_plan)
    draft.status = RunStatus.RUNNING
    draft.restarts = True
    draft.counters = Counters(retries=draft.counters.retries + 1)
    draft.result = RunResult()
    draft.reset = reset_nodes(draft.plan, draft.letters, rerun_stale=event.rerun_stale)
    for index in draft.reset:
        draft.letters[index] = NodeState.BLOCKED
    for index in draft.reset:
        if draft.letters[index] != NodeState.BLOCKED:
            continue
        verdict = standing(draft.plan.nodes[index].terms, draft.letters)
        if verdict is Standing.RUN:
            _activate(draft, index)
        elif verdict is Standing.SKIP:
            draft.settle(index, NodeState.SKIPPED)


def reset_nodes(plan: Plan, letters: Sequence[str], *, rerun_stale: bool = False) -> list[int]:
    """Nodes that a retry of the run sets back to blocked, in plan order."""
    reset = {i for i, letter in enumerate(letters) if letter in _RESET}
    if rerun_stale:
        reset.update(stale_nodes(plan, letters))
    return sorted(reset)


def stale_nodes(plan: Plan, letters: Sequence[str]) -> list[int]:
    """Completed nodes that read data of a node a retry resets, directly or through others, in plan order."""
    reset = {i for i, letter in enumerate(letters) if letter in _RESET}
    stale: list[int] = []
    for node in plan.nodes:
        data = (node_read(code)[0] for code in (*node.reads, *node.list_reads))
        if letters[node.index] == NodeState.COMPLETED and not reset.isdisjoint(data):
            reset.add(node.index)
            stale.append(node.index)
    return stale
