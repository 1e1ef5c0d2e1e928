"""The table of docs/maps.md, made of the core's own decisions. `python -m tests.surface.map_table` writes it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from composer.core.decide import decide
from composer.core.events import Failure, FailureKind, ItemsSettled, MapCounts, Started, StepCompleted, StepFailed
from composer.core.items import tolerance_of
from composer.core.plan import Plan
from composer.core.snapshot import Snapshot
from composer.core.transition import NeedValues
from tests.builders import a_delivery

PAGE: Final = Path(__file__).parents[2] / "docs/maps.md"
BEGIN, END = "<!-- table: made by tests/surface/map_table.py -->", "<!-- end of table -->"
_ERROR: Final = Failure(FailureKind.ERROR, "ValueError", "no").encode()

# What the step that makes the list does, and where the counts of the map end.
_CASES: Final[list[tuple[str, str | None, MapCounts | None]]] = [
    ("its list is empty", "[]", None),
    ("its list is no list", "7", None),
    ("the step that makes its list failed", None, None),
    ("all items completed", "[1,2,3,4]", MapCounts(4, completed=4, expanded=4)),
    ("one failed of four, with `tolerate=1`", "[1,2,3,4]", MapCounts(4, completed=3, failed=1, expanded=4, error=_ERROR)),
    ("two failed, others still run", "[1,2,3,4]", MapCounts(4, completed=1, failed=2, expanded=4, error=_ERROR)),
    ("two failed, all have ended", "[1,2,3,4]", MapCounts(4, completed=2, failed=2, expanded=4, error=_ERROR)),
]  # fmt: skip
_READERS: Final[dict[str, Any]] = {
    "a step that reads the list": {"ref": "each"},
    "a step `.after` it": None,
    "a step that reads `settled_each`": {"settled_each": [{"ref": "each"}]},
}


def _plan(reader: Any) -> Plan:
    nodes: list[dict[str, Any]] = [
        {"name": "items", "kind": "step", "step": "items", "args": {}},
        {
            "name": "each",
            "kind": "map",
            "step": "each",
            "over": "x",
            "args": {"x": {"$": {"ref": "items"}}},
            "options": {"tolerate": 1},
        },
        {"name": "reader", "kind": "step", "step": "reader", "args": {"xs": {"$": reader}} if reader else {}},
    ]
    if reader is None:
        nodes[2]["after"] = [{"ref": "each"}]
    return Plan({"format": 1, "workflow": "flow", "nodes": nodes, "output": None})


def _run(plan: Plan, made: str | None, counts: MapCounts | None) -> Snapshot:
    """The run after the list was made, and after the map's counts have come to where they are."""
    run = Snapshot.unborn(3)
    values = {0: made} if made is not None else {}
    failed = StepFailed(a_delivery(0), Failure(FailureKind.ERROR, "ValueError", "no"))
    first = failed if made is None else StepCompleted(a_delivery(0), made)

    if counts is not None:
        counts = replace(counts, tolerance=tolerance_of(plan, plan.nodes[1], counts.total))
    events: list[Any] = [Started(), first] + ([ItemsSettled(1, counts)] if counts else [])
    for event in events:
        decided = decide(plan, run, [event], values)
        assert not isinstance(decided, NeedValues)
        run = decided.run
    return run


def table() -> str:
    """The table as Markdown."""
    rows = ["| when | the map is | " + " | ".join(_READERS) + " | the run |"]
    rows.append("|---|" + "---|" * (len(_READERS) + 2))
    for what, made, counts in _CASES:
        runs = [_run(_plan(reader), made, counts) for reader in _READERS.values()]
        readers = [{"active": "runs", "blocked": "waits", "skipped": "skipped"}[run.letters[2].word] for run in runs]
        if runs[2].letters[1] is not runs[0].letters[1]:
            readers[2] += f": to it the map is {runs[2].letters[1].word}"
        rows.append(f"| {what} | {runs[0].letters[1].word} | {' | '.join(readers)} | {runs[0].status.value} |")
    return "\n".join(rows)


def written() -> str:
    """The table as the page has it."""
    return PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip()


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")
