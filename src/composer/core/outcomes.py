"""Outcomes: how a node ended, as the JSON that settled() and settled_each() hand to a reader.

    {"state": "completed" | "failed" | "skipped" | "cancelled" | "timed-out", "value": ..., "error": {...} | null}

`value` is null unless completed, `error` is null unless there was one. All three keys are always there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from composer.core.states import NodeState

_STATES: Final = {
    NodeState.COMPLETED: "completed",
    NodeState.FAILED: "failed",
    NodeState.SKIPPED: "skipped",
    NodeState.CANCELLED: "cancelled",
    # Undone or not, it has completed, and its output is what its undo was given.
    NodeState.COMPENSATING: "completed",
    NodeState.COMPENSATED: "completed",
    NodeState.UNDO_FAILED: "completed",
}
_BY_CODE: Final = {"event-timeout": "timed-out", "child-cancelled": "cancelled"}
"""Failures that a reader asks for by a word of their own."""


def outcome_state(letter: str, error: str | None) -> str:
    """The word for how a node ended. `error` is its stored error. Raises KeyError for a node that has not settled."""
    if letter == NodeState.FAILED and error is not None:
        found: Any = json.loads(error)
        return _BY_CODE.get(found.get("code", ""), "failed")
    return _STATES[NodeState(letter)]


def outcome_text(state: str, value: str | None = None, error: str | None = None) -> str:
    """One Outcome. Value and error are JSON texts and go in as they are: never parsed, never rounded."""
    return f'{{"state":"{state}","value":{value or "null"},"error":{error or "null"}}}'


def each_text(items: Iterable[tuple[str, str | None, str | None]]) -> str:
    """A list of Outcomes, of (state, value, error) an item: what settled_each() reads of a map."""
    return "[" + ",".join(outcome_text(state, value, error) for state, value, error in items) + "]"
