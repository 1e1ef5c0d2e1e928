"""A map: one step over every item of a list that is known at run time only, each item a task of its own.

The map has a task too, which waits: while items are stored, withdrawn or released it is what moves the run, whoever
crashes in between. Items are counted by the store (core/items.py); here is decided what follows when the counts have
reached an end.
"""

from __future__ import annotations

import json
from typing import Any

from composer.core.draft import Draft
from composer.core.events import Failure, FailureKind, ItemsSettled, MapCounts, Report
from composer.core.items import NoItems, items_of
from composer.core.plan import Node, list_code, outcomes_code
from composer.core.states import NodeState, TaskState


def activate(draft: Draft, node: Node) -> None:
    """The list is there: over none it has completed, else a coordinator stores the items."""
    if not draft.has_all(node.list_reads, node.reads_settled):
        return
    try:
        found = items_of(draft.plan, node, draft.known())
    except NoItems as error:
        failure = Failure(FailureKind.PAYLOAD, error.code, error.why)
        draft.follow("map-failed", node, error=error.why)
        draft.fail_unstarted(node, failure)
        return
    if not found.texts and not draft.counters.retries:
        # In a run that was retried there may be items of an earlier list, which a coordinator has to see to.
        draft.values[list_code(node.index)] = draft.values[outcomes_code(node.index)] = "[]"
        draft.follow("map-completed", node, items=0)
        draft.settle(node.index, NodeState.COMPLETED)
        return
    draft.follow("map-started", node, items=len(found.texts))
    draft.wait(node, NodeState.MAPPING, wake_in=0.0)


def apply(draft: Draft, node: Node, event: Report | ItemsSettled) -> None:
    """Its counts have reached an end: every item has settled, or too many have failed."""
    letter = draft.letters[node.index]
    if not isinstance(event, ItemsSettled):
        draft.ignore(event, f"node {node.name} is a map, and its items are counted where they are stored")
        return
    if letter not in (NodeState.MAPPING, NodeState.DRAINING) or event.counts.retries != draft.counters.retries:
        draft.ignore(event, f"node {node.name} is {NodeState(letter).word}")
        return
    counts = event.counts
    numbers: dict[str, Any] = {"items": counts.total, "completed": counts.completed, "failed": counts.failed}
    after = state_of(counts, fail_fast=draft.plan.fail_fast)
    if after is NodeState.FAILED:
        failure, facts = _failure(node, counts)
        draft.end_wait(node, TaskState.FAILED, error=failure.encode(node=node.name, **facts))
        draft.record("map-failed", node=node.name, withdrawn=counts.withdrawn, **numbers)
        draft.fail(node, failure, **facts)
    elif after is NodeState.COMPLETED:
        draft.end_wait(node, TaskState.COMPLETED)
        draft.record("map-completed", node=node.name, **numbers)
        draft.settle(node.index, NodeState.COMPLETED)
    elif after is NodeState.DRAINING and letter == NodeState.MAPPING:
        # What has not begun is withdrawn, in pages; what runs may end.
        draft.letters[node.index] = NodeState.DRAINING
        draft.end_wait(node, TaskState.WAITING, wake_in=0.0)
        draft.record("map-draining", node=node.name, **numbers)
    else:
        draft.ignore(event, f"map {node.name} goes on: {counts.settled} of {counts.total} items have settled")


def state_of(counts: MapCounts, *, fail_fast: bool = False) -> NodeState:
    """What the counts of a map make of it. The table of the documentation is made of this."""
    if counts.has_failed:
        return NodeState.FAILED if counts.has_ended or fail_fast else NodeState.DRAINING
    return NodeState.COMPLETED if counts.has_ended else NodeState.MAPPING


def stop(draft: Draft, node: Node) -> None:
    """The run stops, with all items."""
    draft.letters[node.index] = NodeState.CANCELLED


def explain(node: Node, letter: NodeState) -> str:
    """What the node waits for, in words."""
    if letter is NodeState.MAPPING:
        return f"items of step {node.step} are stored, waiting or running"
    if letter is NodeState.DRAINING:
        return f"too many items of step {node.step} failed: it waits for those that still run"
    return letter.word


def _failure(node: Node, counts: MapCounts) -> tuple[Failure, dict[str, Any]]:
    """The failure of the item that failed first, which is the map's, and where it was."""
    first = json.loads(counts.error or "{}")
    rest = f", and {counts.failed - 1} more failed" if counts.failed > 1 else ""
    failure = Failure(
        FailureKind(first.get("kind", FailureKind.ERROR)),
        first.get("type", "MapFailed"),
        f"item {counts.first_failed} of {counts.total}{rest}: {first.get('message', 'it failed')}",
        first.get("traceback", ""),
    )
    facts: dict[str, Any] = {"item": counts.first_failed, "failed": counts.failed, "items": counts.total}
    return failure, {**facts, "attempt": first["attempt"]} if "attempt" in first else facts
