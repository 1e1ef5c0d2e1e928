"""Map items as values: the list they come from, the counts they add up to, and the output they make together.

A map's items are tasks of their own, and their number is only known at run time. Their results are *additive*: while
the map goes on, a store adds them to its counts without asking for a decision, so that any number of workers can
report items of one run at once. Only counts that reach an end are decided (kinds/map.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from composer.core.draft import entry_of
from composer.core.events import Report
from composer.core.expressions import NotAList, Unreadable, elements, render, template_shown
from composer.core.kinds import step
from composer.core.plan import Node, Plan, node_of
from composer.core.transition import TaskChange, history_json
from composer.core.values import Values

MOST_ITEMS: Final = 100_000
"""Items of one map. More are refused with the number: they are several maps, or fewer items that do more each."""
PAGE: Final = 1_000
"""Items stored in one statement."""


class NoItems(Exception):
    """What a map was to run over is no list it can run over. `code` is the failure's type."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(code, why)
        self.code, self.why = code, why


@dataclass(frozen=True, slots=True)
class ItemList:
    """The items of a map, each as JSON text exactly as it stands in the list, and a digest of the list."""

    texts: Sequence[str]
    digest: str


def items_of(plan: Plan, node: Node, values: Values) -> ItemList:
    """The list a map runs over. Raises NoItems when it is none, or too long."""
    try:
        text = render(plan, node.args[node.over], values)
    except Unreadable as error:
        raise NoItems("ItemsUnreadable", f"the list of map {node.name} cannot be read: {error}") from None
    try:
        texts = elements(text)
    except NotAList as error:
        raise NoItems(
            "NotAList", f"the list of map {node.name} ({template_shown(node.args[node.over])}) is {error}, not a list"
        ) from None
    if len(texts) > MOST_ITEMS:
        raise NoItems(
            "MapTooWide",
            f"map {node.name} has {len(texts):,} items, and a map has at most {MOST_ITEMS:,}: "
            "give each item more to do (a batch), or nest the parts in workflows of their own",
        )
    return ItemList(texts, hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32])


def digest_of(found: ItemList, node: Node, values: Values) -> str:
    """Digest of all that makes a map's items what they are: the list, and what all of them are given."""
    if not node.reads:
        return found.digest
    given = [found.digest]
    for code in node.reads:
        at = node_of(code)
        given += [values.letter(at), values.outputs.get(code, ""), values.errors.get(at, "")]
    return hashlib.sha256("\0".join(given).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def tolerance_of(plan: Plan, node: Node, total: int) -> int:
    """How many failed items do not fail the map. One that is read through settled_each never fails."""
    if node.index in plan.read_each:
        return total
    tolerate = node.options.tolerate
    if isinstance(tolerate, str):
        return int(total * Decimal(tolerate.rstrip("%")) / 100)
    return tolerate


# -- what a batch of reports about items comes to ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ItemChange:
    """One item's report as a store applies it: the change of its task, and its line in the run's history."""

    change: TaskChange
    entry: str


def item_changes(plan: Plan, reports: Sequence[Report]) -> list[ItemChange]:
    """What reports about items of one run change, whatever else happens to the run. One report an item: the newest."""
    found: list[ItemChange] = []
    for report in reports:
        answer = step.answer(plan.nodes[report.task.node], report)
        entry = entry_of(plan, answer.event, report.task, **answer.facts)
        found.append(ItemChange(answer.change, history_json(entry)))
    return found


# -- the output of all items together ---------------------------------------------------------------------------


def list_text(outputs: Sequence[str]) -> str:
    """A map's output: the outputs of its completed items, in index order."""
    return "[" + ",".join(outputs) + "]"


def part_of(outputs: Sequence[str], index: int) -> str | None:
    """One element of a map's output; None when there is none."""
    return outputs[index] if -len(outputs) <= index < len(outputs) else None
