"""Options of steps and workflows: what may be written, and what becomes of it in a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, Literal

from typing_extensions import TypedDict

from composer.core.durations import seconds
from composer.core.plan import NodeOptions
from composer.core.retries import NO_RETRY, Retry
from composer.define import shapes
from composer.define.declaration import checked_name
from composer.errors import PlanError

Duration = float | timedelta | str
"""Seconds, a timedelta, or text such as "30s" or "1h30m"."""


class StepOptions(TypedDict, total=False):
    """Options of @step and of step.options(...).

    name                the step's contract with workers; @step only. The function's name if left out
    retries             tries after the first (0 is none), or a Retry
    timeout             for one attempt; None is no limit
    heartbeat_timeout   an attempt silent for longer is taken for dead; None is no limit
    heartbeat           "auto": the worker beats for the step; "manual": only the step's own calls count
    queue               which workers take it
    priority            -100 to 100, larger is sooner
    on_crash            "retry" or "fail" when a worker dies in the middle of it
    compensate_on       whether its undo runs only if it "completed", or as soon as it "started"
    """

    name: str
    retries: int | Retry
    timeout: Duration | None
    heartbeat_timeout: Duration | None
    heartbeat: Literal["auto", "manual"]
    queue: str
    priority: int
    on_crash: Literal["retry", "fail"]
    compensate_on: Literal["completed", "started"]


class WorkflowOptions(TypedDict, total=False):
    """Options of @workflow.

    name        what runs are started by. The function's name if left out
    timeout     for a whole run, from its real start; None is no limit
    fail_fast   whether the first failure that nobody can handle stops what still runs; by default branches beside it
                are finished
    """

    name: str
    timeout: Duration | None
    fail_fast: bool


_SHORTEST: Final = 0.001
_HIGHEST_PRIORITY: Final = 100
_CHOICES: Final = {
    "heartbeat": ("auto", "manual"),
    "on_crash": ("retry", "fail"),
    "compensate_on": ("completed", "started"),
}
_DURATIONS: Final = ("timeout", "heartbeat_timeout")
_STEP: Final = StepOptions.__annotations__.keys()
_WORKFLOW: Final = WorkflowOptions.__annotations__.keys()


def node_options(base: NodeOptions, changes: Mapping[str, Any], *, step: str, where: str) -> NodeOptions:
    """`base` with the changes a user wrote. Raises PlanError that names the step and the option."""
    made: dict[str, Any] = {}
    for name, value in changes.items():
        _known(name, _STEP, f"step {step}", where)
        made[name] = _checked(name, value, f"step {step}: {name}={value!r}", where)
    return replace(base, **made)


def workflow_options(options: Mapping[str, Any], *, workflow: str, where: str) -> dict[str, Any]:
    """What a plan keeps of a workflow's options: only what differs from the defaults."""
    out: dict[str, Any] = {}
    for name, value in options.items():
        _known(name, _WORKFLOW, f"workflow {workflow}", where)
        what = f"workflow {workflow}: {name}={value!r}"
        if name == "timeout" and value is not None:
            out[name] = _seconds(value, what, where)
        elif name == "fail_fast":
            if type(value) is not bool:
                raise PlanError(what, "True or False.", where)
            if value:
                out[name] = True
    return out


def _known(name: str, known: Any, owner: str, where: str) -> None:
    if name not in known:
        raise PlanError(f"{owner} has no option {name!r}", shapes.did_you_mean(name, known), where)


def _checked(name: str, value: Any, what: str, where: str) -> Any:
    if name == "retries":
        return _retry(value, what, where)
    if name in _CHOICES:
        if value not in _CHOICES[name]:
            raise PlanError(what, " or ".join(map(repr, _CHOICES[name])) + ".", where)
        return value
    if name == "queue":
        return checked_name(value, what, where)
    if name == "priority":
        if type(value) is not int or not -_HIGHEST_PRIORITY <= value <= _HIGHEST_PRIORITY:
            raise PlanError(what, "A whole number from -100 to 100; larger is sooner.", where)
        return value
    if value is None:
        return None
    if name in _DURATIONS:
        return _seconds(value, what, where)
    raise AssertionError(f"option {name!r} has no check")


def _retry(value: Any, what: str, where: str) -> Retry:
    if isinstance(value, Retry):
        return value
    if type(value) is not int or value < 0:
        raise PlanError(
            what, "Tries after the first, 0 or more; Retry(...) for the delays, Retry(attempts=None) for ever.", where
        )
    return NO_RETRY if value == 0 else Retry(attempts=value + 1)


def _seconds(value: Any, what: str, where: str) -> float:
    try:
        return seconds(value, what=what.partition("=")[0], least=_SHORTEST)
    except PlanError as error:
        raise PlanError(error.problem, error.advice, where) from None
