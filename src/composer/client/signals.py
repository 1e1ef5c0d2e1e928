"""Signals: events that somebody outside sends to a run, checked before anything is stored."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from composer.client.starting import plain_json
from composer.core.limits import MAX_PAYLOAD, within_limit
from composer.core.plan import Plan, canonical
from composer.errors import PayloadError, UnknownEvent


@dataclass(frozen=True, slots=True)
class SignalResult:
    """What became of a signal: `node` is the node that took it; None when the run keeps it for one that will wait.

    `is_duplicate` says that one with the same dedupe id was accepted before; the answer is that one's.
    """

    node: str | None
    is_duplicate: bool = False


def checked_payload(run_id: str, plan: Plan, name: str, payload: Any, max_payload: int = MAX_PAYLOAD) -> str:
    """The payload as JSON text. Raises UnknownEvent, PayloadError (PayloadTooLarge) naming the event, the path and what was expected there."""
    if name not in plan.events:
        raise UnknownEvent(run_id, plan.workflow, name, sorted(plan.events))
    what = f"event {name!r} of workflow {plan.workflow!r}"
    text = within_limit(plain_json(payload, what, max_payload), f"the payload of {what}", max_payload)
    value = json.loads(text)
    for node in plan.events[name]:
        schema = plan.body["nodes"][node]["schema"]
        if schema:
            problem = _validator(canonical(schema)).problem_of(value)
            if problem:
                raise PayloadError(f"{what}: {problem}")
    return text


class _Validator:
    """A schema that a plan holds, ready to check payloads by."""

    def __init__(self, schema: str) -> None:
        # Here and not above: it takes a tenth of a second, and most processes send no signal.
        from jsonschema import Draft202012Validator

        self._validator: Any = Draft202012Validator(
            json.loads(schema), format_checker=Draft202012Validator.FORMAT_CHECKER
        )

    def problem_of(self, value: Any) -> str:
        """Where and why the value does not fit; "" when it does."""
        from jsonschema.exceptions import best_match

        error: Any = best_match(self._validator.iter_errors(value))
        if error is None:
            return ""
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path).lstrip(".")
        return f"{path or 'the payload'}: {error.message[:500]}"


@lru_cache(maxsize=256)
def _validator(schema: str) -> _Validator:
    return _Validator(schema)
