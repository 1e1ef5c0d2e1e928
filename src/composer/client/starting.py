"""Turning a workflow and its arguments into a new run: what is checked before anything is sent."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from composer.core.decide import decide
from composer.core.durations import seconds
from composer.core.events import Scheduled, Started
from composer.core.plan import INPUT, Plan
from composer.core.snapshot import Snapshot
from composer.core.transition import NeedValues, Transition
from composer.define.workflow import Workflow
from composer.errors import PayloadError, PlanTypeError
from composer.ports.store import NewRun

MOST_BYTES: Final = 2_000_000
"""A payload above this is refused: it is rewritten, sent and decoded many times. Store it elsewhere, pass where it is."""


def checked_workflow(workflow: object) -> Workflow[..., Any]:
    """The workflow, or PlanTypeError saying what was given instead."""
    if not isinstance(workflow, Workflow):
        raise PlanTypeError(
            f"start() takes a @workflow, not {workflow!r}",
            "Decorate the function with @workflow, or pass the workflow itself.",
        )
    return workflow


def encoded_input(workflow: Workflow[..., Any], args: Sequence[Any]) -> str:
    """The input as JSON text. Raises PayloadError, also when it is over the limit."""
    text = workflow.encode_input(tuple(args), {})
    size = len(text.encode())
    if size > MOST_BYTES:
        raise PayloadError(
            f"the input of workflow {workflow.name} has {size:,} bytes, and the limit is {MOST_BYTES:,}: "
            "store it where your steps can read it, and pass its place"
        )
    return text


def paired(inputs: Iterable[Sequence[Any]], keys: Sequence[str] | None) -> Sequence[tuple[Sequence[Any], str | None]]:
    """Each tuple of arguments with its idempotency key, if there are any. Raises ValueError for another number of keys."""
    given = list(inputs)
    if keys is None:
        return [(args, None) for args in given]
    if len(keys) != len(given):
        raise ValueError(f"start_many() got {len(given)} inputs and {len(keys)} idempotency keys")
    return list(zip(given, keys, strict=True))


def input_digest(workflow: str, text: str) -> str:
    """What two starts with one key are compared by: canonical JSON of the input, and the workflow's name."""
    same = json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(f"{workflow}\0{same}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


def when_to_start(
    delay: float | timedelta | str | None, start_at: datetime | None
) -> tuple[float | None, datetime | None]:
    """(seconds from now, moment): at most one is given, neither means at once. Raises PlanTypeError for a naive moment."""
    if delay is not None and start_at is not None:
        raise PlanTypeError("start() got both delay= and start_at=", "Give one of them.")
    if start_at is not None and start_at.tzinfo is None:
        raise PlanTypeError(
            f"start_at={start_at!r} has no time zone", "Give an aware datetime: datetime(..., tzinfo=UTC)."
        )
    return (seconds(delay, what="start(delay=...)") or None) if delay is not None else None, start_at


def first_transition(plan: Plan, text: str, *, scheduled: bool) -> Transition:
    """Version 1 of a run."""
    event = Scheduled() if scheduled else Started()
    made = decide(plan, Snapshot.unborn(len(plan.nodes)), [event], {INPUT: text})
    assert not isinstance(made, NeedValues), "a run that has just begun reads nothing but its input"
    return made


def _is_storable(text: str) -> bool:
    """Whether PostgreSQL can hold the text."""
    return "\0" not in text and not any("\ud800" <= c <= "\udfff" for c in text)


def new_run(
    run_id: str,
    workflow: str,
    plan: Plan,
    plan_id: int,
    text: str,
    *,
    key: str | None,
    priority: int,
    tags: Mapping[Any, Any],
    starts: tuple[float | None, datetime | None],
) -> NewRun:
    """A run ready to be stored. Raises PlanTypeError for a bad option."""
    given: Any = key  # callers without a type checker pass anything
    if key is not None and (not isinstance(given, str) or not 0 < len(key) <= 500 or not _is_storable(key)):
        raise PlanTypeError(
            f"idempotency_key={key!r}: expected text of 1 to 500 characters, without NUL or lone surrogates"
        )
    if type(priority) is not int or not -100 <= priority <= 100:
        raise PlanTypeError(f"priority={priority!r}: expected a whole number from -100 to 100; larger is sooner")
    for name, value in tags.items():
        if not isinstance(name, str) or not isinstance(value, str) or not _is_storable(name + value):
            raise PlanTypeError(f"tags: {name!r}={value!r}: names and values are text, without NUL or lone surrogates")
    return NewRun(
        run_id,
        workflow,
        plan_id,
        plan,
        first_transition(plan, text, scheduled=starts != (None, None)),
        text,
        key=key,
        digest=input_digest(workflow, text) if key is not None else "",
        priority=priority,
        tags=tags,
        starts_in=starts[0],
        starts_at=starts[1],
    )
