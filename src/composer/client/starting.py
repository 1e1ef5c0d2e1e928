"""Turning a workflow and its arguments into a new run: what is checked before anything is sent."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NoReturn

from pydantic_core import PydanticSerializationError, to_json

from composer.core.decide import decide
from composer.core.durations import seconds
from composer.core.events import Scheduled, Started
from composer.core.limits import MAX_PAYLOAD, within_limit
from composer.core.plan import INPUT, Plan, canonical
from composer.core.snapshot import Snapshot
from composer.core.transition import NeedValues, Transition
from composer.define.fidelity import at, fault, short
from composer.define.shapes import did_you_mean
from composer.define.source import user_place
from composer.define.step import Step
from composer.define.workflow import Workflow
from composer.errors import PayloadError, PlanTypeError
from composer.ports.store import NewRun

OPTIONS: Final = ("idempotency_key", "delay", "start_at", "priority", "tags", "within")
"""What start() takes by keyword."""
_MOST_SHOWN: Final = 40


def checked_workflow(workflow: object) -> Workflow[..., Any]:
    """The workflow, or PlanTypeError saying what was given instead."""
    if not isinstance(workflow, Workflow):
        raise PlanTypeError(
            f"start() takes a @workflow or the name of one, not {workflow!r}",
            f"A step runs in a workflow: write one that calls {workflow.name}, and start that."
            if isinstance(workflow, Step)
            else "Decorate the function with @workflow, or pass the workflow itself.",
            user_place(),
        )
    return workflow


def refuse_options(workflow: object, given: Mapping[str, object]) -> NoReturn:
    """Raises PlanTypeError for keywords that are no options of start(): a typo, or a parameter of the workflow."""
    name = next(iter(given))
    advice = (
        f"It is a parameter of the workflow: start({workflow.name}.bind({name}=...), ...) takes those by keyword."
        if isinstance(workflow, Workflow) and name in workflow.declaration.parameters
        else did_you_mean(name, OPTIONS)
    )
    raise PlanTypeError(f"start() has no option {name!r}", advice, user_place())


def encoded_input(workflow: Workflow[..., Any], args: Sequence[Any], max_payload: int = MAX_PAYLOAD) -> str:
    """The input as JSON text. Raises PayloadError, and PayloadTooLarge when it is over the limit."""
    return within_limit(
        workflow.encode_input(tuple(args), {}, max_payload), f"the input of workflow {workflow.name}", max_payload
    )


def named_input(plan: Plan, args: Sequence[Any], max_payload: int = MAX_PAYLOAD) -> str:
    """The input of a start by name as JSON text, defaults filled in: `args` is one mapping by parameter name, or nothing.

    Names are checked by the plan. It holds no types, so values only have to be JSON: what does not fit fails the run.
    Raises PlanTypeError for other arguments, PayloadError.
    """
    name, params = plan.workflow, plan.body.get("params", {})
    takes = ", ".join(f"{each}={_short_json(p['default'])}" if "default" in p else each for each, p in params.items())
    takes = f"It takes {takes}." if params else "It takes nothing."
    if len(args) > 1 or not all(isinstance(each, Mapping) for each in args):
        raise PlanTypeError(
            f"start({name!r}, ...): by name, the arguments go in one dict by parameter name, not by position",
            f"{takes} Write client.start({name!r}, {{{', '.join(f'{each!r}: ...' for each in params)}}}), or pass the workflow itself.",
        )
    given: Mapping[Any, Any] = args[0] if args else {}
    for each in given:
        if each not in params:
            close = did_you_mean(str(each), params)
            raise PlanTypeError(
                f"start({name!r}, ...): the workflow has no parameter {each!r}",
                takes + (f" {close}" if close.startswith("Did") else ""),
            )
    missing = [each for each, p in params.items() if each not in given and "default" not in p]
    if missing:
        raise PlanTypeError(f"start({name!r}, ...): {', '.join(map(repr, missing))} not given", takes)
    parts = [
        f"{json.dumps(each)}:{plain_json(given[each], f'workflow {name}: {each}', max_payload) if each in given else canonical(p['default'])}"
        for each, p in params.items()
    ]
    return within_limit(f"{{{','.join(parts)}}}", f"the input of workflow {name}", max_payload)


def plain_json(value: Any, what: str, most: int) -> str:
    """A value as JSON text where no annotation says how: models, dates and the like as pydantic writes them.

    Raises PayloadError, which begins with `what` and names the path. A text of more than `most` characters is not looked at
    any more: the caller refuses it for its size.
    """
    try:
        text = to_json(value, inf_nan_mode="constants", bytes_mode="base64").decode()
        if len(text) > most:
            return text
        back: Any = json.loads(text, parse_constant=_Constant)
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        reason = fault(value) or f"{short(value)} cannot be written as JSON: {error}"
        raise PayloadError(f"{what}: {reason}") from None
    # These letters are in no number and in little text, so that most values need no closer look.
    if ("NaN" in text or "Infinity" in text) and (found := _constant_in(back)):
        raise PayloadError(f"{what}: {found}")
    return text


class _Constant(str):
    """NaN or an infinity, where it was read back."""

    __slots__ = ()


def _constant_in(value: Any, path: tuple[int | str, ...] = ()) -> str:
    if isinstance(value, _Constant):
        return f"{at(path)}{value} cannot be written: JSON has no such number. Send it as text, or leave it out"
    parts: Iterable[tuple[int | str, Any]] = ()
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, list):
        parts = enumerate(value)
    return next(filter(None, (_constant_in(each, (*path, part)) for part, each in parts)), "")


def _short_json(value: Any) -> str:
    text = canonical(value)
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 1] + "…"


def paired(
    workflow: object, inputs: Iterable[Any], keys: Sequence[str] | None
) -> Sequence[tuple[Sequence[Any], str | None]]:
    """Each input's arguments with its idempotency key, if there are any: tuples, or for a start by name mappings.

    Raises ValueError for another number of keys.
    """
    given = [(each,) for each in inputs] if isinstance(workflow, str) else list(inputs)
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
        raise PlanTypeError("start() got both delay= and start_at=", "Give one of them.", user_place())
    if start_at is not None and start_at.tzinfo is None:
        raise PlanTypeError(
            f"start_at={start_at!r} has no time zone",
            "Give an aware datetime: datetime(..., tzinfo=UTC).",
            user_place(),
        )
    return (seconds(delay, what="start(delay=...)") or None) if delay is not None else None, start_at


def first_transition(plan: Plan, text: str, *, scheduled: bool, max_payload: int = MAX_PAYLOAD) -> Transition:
    """Version 1 of a run."""
    event = Scheduled() if scheduled else Started()
    made = decide(plan, Snapshot.unborn(len(plan.nodes)), [event], {INPUT: text}, max_payload=max_payload)
    assert not isinstance(made, NeedValues), "a run that has just begun reads nothing but its input"
    return made


def is_storable(text: str) -> bool:
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
    max_payload: int = MAX_PAYLOAD,
) -> NewRun:
    """A run ready to be stored. Raises PlanTypeError for a bad option."""
    given: Any = key  # callers without a type checker pass anything
    if key is not None and (not isinstance(given, str) or not 0 < len(key) <= 500 or not is_storable(key)):
        raise PlanTypeError(
            f"idempotency_key={key!r}: expected text of 1 to 500 characters, without NUL or lone surrogates"
        )
    if type(priority) is not int or not -100 <= priority <= 100:
        raise PlanTypeError(f"priority={priority!r}: expected a whole number from -100 to 100; larger is sooner")
    for name, value in tags.items():
        if not isinstance(name, str) or not isinstance(value, str) or not is_storable(name + value):
            raise PlanTypeError(f"tags: {name!r}={value!r}: names and values are text, without NUL or lone surrogates")
    return NewRun(
        run_id,
        workflow,
        plan_id,
        plan,
        first_transition(plan, text, scheduled=starts != (None, None), max_payload=max_payload),
        text,
        key=key,
        digest=input_digest(workflow, text) if key is not None else "",
        priority=priority,
        tags=tags,
        starts_in=starts[0],
        starts_at=starts[1],
    )
