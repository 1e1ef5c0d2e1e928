"""Maps: storing the items of a list page by page, withdrawing those of a map that has failed, and deciding its end.

The map's own waiting task is what brings a coordinator here, and brings another one should the first die in between.
Every step is additive or guarded, so that two of them at once do no harm.
"""

from __future__ import annotations

import logging
from functools import partial

from composer.apply import Applier, persistently
from composer.core.events import ItemsSettled, MapCounts
from composer.core.items import PAGE, NoItems, digest_of, items_of, tolerance_of
from composer.core.plan import Node, Plan
from composer.core.states import NodeState
from composer.core.values import Values, absent_parts
from composer.errors import StoreUnavailable
from composer.ports.store import DueWait, MapPage, Store

log = logging.getLogger("composer.coordinator")

_WITHDRAWN_AT_ONCE = 5_000
_PATIENCE = 10.0


async def tend_map(store: Store, due: DueWait, plan: Plan) -> None:
    """Whatever the map needs now: more items, fewer, room for held ones, or its end. Raises StoreUnavailable only."""
    try:
        await _tend(store, due, plan)
    except StoreUnavailable:
        raise
    except Exception as error:
        # One map that the database will not have must not stop the others, nor the timers. Its items make versions beside.
        heads = await store.load_heads([due.head.run_id])
        await Applier(store).quarantine(heads.get(due.head.run_id, due.head), error)


async def _tend(store: Store, due: DueWait, plan: Plan) -> None:
    node = plan.nodes[due.node]
    letter = due.head.snapshot.letters[due.node]
    counts = due.counts
    if counts is not None and counts.retries < due.head.snapshot.counters.retries:
        counts = None  # of the run's earlier life
    if letter is NodeState.MAPPING:
        if counts is None or counts.expanded < counts.total:
            counts = await _expand(store, due, plan, node, counts.expanded if counts else 0)
        if counts is not None and counts.held and not (counts.has_ended or counts.has_failed):
            await persistently(lambda: store.free_items(due.head.run_id, node.index), _PATIENCE)
    elif letter is NodeState.DRAINING:
        counts = await _withdraw(store, due.head.run_id, node)
    if counts is not None and (counts.has_ended or (counts.has_failed and letter is NodeState.MAPPING)):
        await Applier(store).apply({due.head.run_id: [ItemsSettled(node.index, counts)]}, patience=_PATIENCE)


async def _expand(store: Store, due: DueWait, plan: Plan, node: Node, first: int) -> MapCounts | None:
    """Stores pages until the last one, or until somebody else does."""
    run_id = due.head.run_id
    wanted = [(run_id, code) for code in dict.fromkeys((*node.list_reads, *node.reads))]
    stored = await persistently(lambda: store.load_values(wanted), _PATIENCE)
    outputs = {code: text for (_, code), text in stored.outputs.items()}
    outputs |= absent_parts(node.list_reads, outputs)
    errors = {at: text for (_, at), text in stored.errors.items()}
    values = Values.of(due.head.snapshot, outputs, errors)
    try:
        found = items_of(plan, node, values)
    except (NoItems, KeyError) as error:
        # The list was read when the map began: it cannot have become another one, but by a hand in the tables.
        await Applier(store).quarantine(due.head, error)
        return None
    total, digest = len(found.texts), digest_of(found, node, values)
    tolerance = tolerance_of(plan, node, total)
    counts: MapCounts | None = None
    while counts is None or first < total:  # one page at least: of a list that became empty too
        page = MapPage(
            run_id, plan, node.index, first, total, found.texts[first : first + PAGE], tolerance,
            due.head.snapshot.counters.retries, digest, due.head.priority,
        )  # fmt: skip
        is_taken, counts = await persistently(partial(store.expand_map, page), _PATIENCE)
        if not is_taken:
            log.debug("another coordinator stores the items", extra={"run_id": run_id, "node": node.name})
            return None
        first += len(page.inputs)
    return counts


async def _withdraw(store: Store, run_id: str, node: Node) -> MapCounts | None:
    while True:
        found, counts = await persistently(lambda: store.withdraw_items(run_id, node, _WITHDRAWN_AT_ONCE), _PATIENCE)
        if counts is None or found < _WITHDRAWN_AT_ONCE:
            return counts
