"""decide(plan, run, events): what follows. The heart of Composer, and pure.

It knows no database, no clock and no event loop, and is told no time: a transition carries durations, and the store
stamps the moment. It is total: every event has an answer in every state, and what no longer applies is ignored
with a reason, never an exception. That one rule is what lets every loop run on many replicas with no leader.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
    Signalled,
    Started,
    StoredSignal,
    TimerFired,
)
from composer.core.expressions import Unreadable, render
from composer.core.kinds import guard, race, sleep, step, wait
from composer.core.kinds import map as map_
from composer.core.limits import MAX_PAYLOAD, within_limit
from composer.core.plan import Need, Node, Plan, node_read
from composer.core.readiness import Fate, Standing, fate, standing
from composer.core.snapshot import Counters, Snapshot
from composer.core.states import ENDED_RUN, SETTLED, NodeState, RunStatus
from composer.core.transition import NeedValues, NewSignal, RunResult, Transition
from composer.errors import PayloadTooLarge

_KINDS: Final[Mapping[str, Any]] = {
    "step": step,
    "map": map_,
    "guard": guard,
    "wait": wait,
    "sleep": sleep,
    "race": race,
}
_HEARS: Final[Mapping[type, Sequence[str]]] = {ItemsSettled: ("map",), TimerFired: ("sleep", "wait")}
"""Kinds of nodes that an event can be about, where it is not all of them."""
_NOTHING: Final[Mapping[int, str]] = MappingProxyType({})
_RESET: Final = frozenset({NodeState.FAILED, NodeState.SKIPPED, NodeState.CANCELLED, NodeState.COMPENSATED})


def decide(
    plan: Plan,
    run: Snapshot,
    events: Sequence[Event],
    values: Mapping[int, str] = _NOTHING,
    errors: Mapping[int, str] = _NOTHING,
    signals: Mapping[str, Sequence[StoredSignal]] | None = None,
    *,
    max_payload: int = MAX_PAYLOAD,
) -> Transition | NeedValues:
    """What the events, in their order, make of the run: one transition for all of them.

    `values` are outputs of completed nodes by read code (core.plan), `errors` those of failed ones by node, as JSON text;
    `signals` those the run has, by name, in the order they came.
    NeedValues names the read codes of which one of the two is missing. It may be asked for more than once.
    An empty transition means that every event was ignored; `ignored` says why. The run's own output, which is put
    together here, may have `max_payload` bytes; a larger one fails the run.
    """
    draft = Draft(plan, run, values, errors, signals)
    for event in _one_report_a_task(draft, events) if len(events) > 1 else events:
        _route(draft, event)
        if draft.newly_settled:
            _advance(draft)
        if draft.missing or draft.missing_signals:
            break
    if draft.entries and not draft.missing_signals and draft.status is RunStatus.RUNNING:
        _finish(draft, max_payload)
    if draft.missing or draft.missing_signals:
        return NeedValues(tuple(dict.fromkeys(draft.missing)), tuple(draft.missing_signals))
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
        case Signalled():
            _signal(draft, event)
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
            index = event.node if isinstance(event, ItemsSettled | TimerFired) else event.task.node
            if not 0 <= index < len(plan.nodes):
                draft.ignore(event, f"the plan has no node {index}")
                return
            node = plan.nodes[index]
            if node.kind not in _HEARS.get(type(event), _KINDS):
                draft.ignore(event, f"node {node.name} is a {node.kind}, to which that cannot happen")
                return
            _KINDS[node.kind].apply(draft, node, event)


def _signal(draft: Draft, event: Signalled) -> None:
    """The node that has waited longest takes it; else it is kept for one that will wait."""
    plan, name = draft.plan, event.name
    if name not in plan.events:
        draft.ignore(event, f"the workflow waits for no event {name!r}")
        return
    if event.dedupe is not None:
        stored = draft.signals_of(name)
        if stored is None:
            return
        if event.dedupe in {each.dedupe for each in stored} | {each.dedupe for each in draft.signals}:
            draft.ignore(event, "a signal with this dedupe id was accepted before")
            return
    waiting = [index for index in plan.events[name] if draft.letters[index] == NodeState.WAITING]
    order = draft.counters.waiting
    first = min(waiting, key=lambda index: order.index(index) if index in order else index, default=None)
    if first is None:
        draft.record("event-kept", event_name=name)
        draft.signals.append(NewSignal(name, event.payload, event.dedupe))
        return
    draft.record("event-received", node=plan.nodes[first].name, event_name=name)
    draft.signals.append(NewSignal(name, event.payload, event.dedupe, first))
    wait.receive(draft, plan.nodes[first], event.payload)


def explain(node: Node, letter: NodeState) -> str:
    """What a node of that state waits for, in words, as its kind says it."""
    words: str = _KINDS[node.kind].explain(node, letter)
    return words


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
        if plan.fail_fast and letters[settled] == NodeState.FAILED and settled not in plan.handleable:
            _stop_failed(draft, [settled])
            return
        for user in plan.nodes[settled].users:
            if letters[user] != NodeState.BLOCKED:
                continue
            verdict = standing(plan.nodes[user].terms, letters, draft.counters.no)
            if verdict is Standing.RUN:
                _activate(draft, user)
            elif verdict is Standing.SKIP:
                draft.settle(user, NodeState.SKIPPED)
    if plan.fail_fast and plan.handleable and NodeState.FAILED in letters:
        # A failure that somebody could have handled stops the run once nobody can any more.
        unhandled = _unhandled(draft)
        if unhandled and not all(letter in SETTLED for letter in letters):
            _stop_failed(draft, unhandled)


def _finish(draft: Draft, max_payload: int) -> None:
    """Ends the run when every node has settled, once the outputs that takes are known."""
    letters = draft.letters
    for letter in letters:
        if letter not in SETTLED:
            return
    plan = draft.plan
    if draft.counters.first_failure >= 0:
        unhandled = _unhandled(draft)
        if unhandled:
            draft.status = RunStatus.FAILED
            _blame(draft, unhandled)
            return
    if standing(plan.output_terms, letters) is Standing.SKIP:
        draft.status = RunStatus.FAILED
        message = "the run's output is read from a node that was skipped"
        draft.result = RunResult(error=json.dumps({"code": "no-output", "message": message}))
        return
    values = draft.known()
    lacking = values.lacking(plan.output_reads, plan.output_reads_settled)
    if lacking:
        draft.missing += lacking
        return
    draft.status = RunStatus.COMPLETED
    try:
        output = render(plan, plan.output, values)
        draft.result = RunResult(output=within_limit(output, "the run's output", max_payload))
    except PayloadTooLarge as error:
        draft.status = RunStatus.FAILED
        facts = {"code": error.code, "message": str(error), "size": error.size, "limit": error.limit}
        draft.result = RunResult(error=json.dumps(facts))
    except Unreadable as error:
        draft.status = RunStatus.FAILED
        draft.result = RunResult(
            error=json.dumps({"code": "output-unreadable", "message": f"the run's output: {error}"})
        )


_OUTPUT: Final = {
    Standing.WAIT: NodeState.BLOCKED,
    Standing.RUN: NodeState.COMPLETED,
    Standing.SKIP: NodeState.SKIPPED,
}
"""The run's output reads nodes as a node does, and is taken for one here."""


def _unhandled(draft: Draft) -> list[int]:
    """Failed nodes that fail the run, in plan order."""
    plan, letters, no = draft.plan, draft.letters, draft.counters.no
    output = (plan.output_terms, _OUTPUT[standing(plan.output_terms, letters, no)])
    found: list[int] = []
    for node in plan.nodes:
        if letters[node.index] == NodeState.FAILED:
            readers = [(plan.nodes[user].terms, letters[user]) for user in node.users]
            if fate(node.index, [*readers, output], letters, no) is Fate.UNHANDLED:
                found.append(node.index)
    return found


def _blame(draft: Draft, unhandled: Sequence[int]) -> None:
    """Sees to it that the run's error is that of a failure which fails it: the first, or another if that was handled."""
    if draft.counters.first_failure in unhandled:
        return
    # A node without settled() readers would have been the first: these have a task, and their error is stored with it.
    index = unhandled[0]
    error = draft.errors.get(index)
    if error is None:
        draft.missing.append(index)
        return
    draft.counters = replace(draft.counters, first_failure=index)
    facts = {**json.loads(error), "code": "node-failed", "node": draft.plan.nodes[index].name}
    draft.result = RunResult(error=json.dumps(facts, separators=(",", ":")))


def _stop_failed(draft: Draft, unhandled: Sequence[int]) -> None:
    """The run stops for a failure."""
    _blame(draft, unhandled)
    result = draft.result
    draft.stop(RunStatus.FAILED, None)
    # Where the failure is of an earlier transition its error is stored already.
    draft.result = result


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
    draft.result = RunResult()
    draft.reset = reset_nodes(draft.plan, draft.letters, rerun_stale=event.rerun_stale)
    no = tuple(index for index in draft.counters.no if index not in set(draft.reset))
    timed_out = tuple(index for index in draft.counters.timed_out if index not in set(draft.reset))
    draft.counters = Counters(retries=draft.counters.retries + 1, no=no, timed_out=timed_out)
    for index in draft.reset:
        draft.letters[index] = NodeState.BLOCKED
    for index in draft.reset:
        if draft.letters[index] != NodeState.BLOCKED:
            continue
        verdict = standing(draft.plan.nodes[index].terms, draft.letters, draft.counters.no)
        if verdict is Standing.RUN:
            _activate(draft, index)
        elif verdict is Standing.SKIP:
            draft.settle(index, NodeState.SKIPPED)


def reset_nodes(plan: Plan, letters: Sequence[str], *, rerun_stale: bool = False) -> list[int]:
    """Nodes that a retry of the run sets back to blocked, in plan order.

    A guard is asked again when anything it depends on is; any other would only give the answer it gave. What lost a race
    stays skipped as long as the race stays won: else the run would wait again for what it has decided to do without.
    """
    reset: set[int] = set()
    while True:
        # A race that is run again brings those that lost it, and with them whoever reads them: more each time round.
        lost = _lost(plan, letters, reset)
        found: set[int] = set()
        for node in plan.nodes:
            letter, index = letters[node.index], node.index
            if (letter in _RESET and index not in lost) or (
                letter == NodeState.COMPLETED and _follows(node, letters, found, rerun_stale=rerun_stale)
            ):
                found.add(index)
        if found == reset:
            return sorted(reset)
        reset = found


def _lost(plan: Plan, letters: Sequence[str], reset: set[int]) -> set[int]:
    """Nodes that were skipped as another one won a race which is not run again."""
    won = (
        node
        for node in plan.nodes
        if node.kind == "race" and letters[node.index] == NodeState.COMPLETED and node.index not in reset
    )
    return {member for race in won for member in race.of if letters[member] == NodeState.SKIPPED}


def stale_nodes(plan: Plan, letters: Sequence[str]) -> list[int]:
    """Completed nodes that a retry leaves as they are and that it could change, in plan order.

    They read data of a node that is reset, directly or through others, or lie in a block whose condition does.
    """
    return [
        index
        for index in reset_nodes(plan, letters, rerun_stale=True)
        if letters[index] == NodeState.COMPLETED and plan.nodes[index].kind != "guard"
    ]


def _follows(node: Node, letters: Sequence[str], reset: set[int], *, rerun_stale: bool) -> bool:
    """Whether a completed node is to be looked at again because of nodes that are."""
    if node.kind == "guard":
        return not reset.isdisjoint(node.needs)
    # A race has the value of a node that completed; what else it was between said nothing.
    won = (member for member in node.of if letters[member] == NodeState.COMPLETED)
    return rerun_stale and (
        not reset.isdisjoint((*(node_read(code)[0] for code in (*node.reads, *node.list_reads)), *won))
        or any(term.need in (Need.GUARD_YES, Need.GUARD_NO) and not reset.isdisjoint(term.nodes) for term in node.terms)
    )
