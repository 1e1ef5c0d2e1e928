"""Options of steps and workflows: what may be written, and what becomes of it in a plan."""

from __future__ import annotations

import inspect
import re
import sys
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
    max_concurrency     of a map: how many of its items may run at once; None is no limit
    tolerate            of a map: how many items may fail before the node does: a number, or a share of all ("5%")
    isolation           "thread", or "process": in a process of its own, which its timeout and a cancel kill; for plain
                        functions, @step only, as it is a property of the code and no part of a plan
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
    max_concurrency: int | None
    tolerate: int | str
    isolation: Literal["thread", "process"]


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
_SHARE: Final = re.compile(r"\s*(\d{1,3}(?:\.\d{1,6})?)\s*%\s*")
FOR_MAPS: Final = ("max_concurrency", "tolerate")
"""Options that say something about a map, and nothing about a single call."""
_STEP: Final = StepOptions.__annotations__.keys()
_WORKFLOW: Final = WorkflowOptions.__annotations__.keys()


def node_options(base: NodeOptions, changes: Mapping[str, Any], *, step: str, where: str) -> NodeOptions:
    """`base` with the changes a user wrote. Raises PlanError that names the step and the option."""
    made: dict[str, Any] = {}
    for name, value in changes.items():
        _known(name, _STEP, f"step {step}", where)
        made[name] = _checked(name, value, f"step {step}: {name}={value!r}", where)
    return replace(base, **made)


def checked_isolation(options: Mapping[str, Any], fn: Any, *, step: str, where: str) -> Literal["thread", "process"]:
    """The step's isolation. Raises PlanError for a function that no other process could run."""
    value = options.get("isolation", "thread")
    if "isolation" not in options or value == "thread":
        return "thread"
    what = f"step {step}: isolation={value!r}"
    if value != "process":
        raise PlanError(what, "'thread' or 'process'.", where)
    if inspect.iscoroutinefunction(fn):
        raise PlanError(
            f"{what} on an `async def`",
            "A process step computes: write a plain `def`. What waits for others belongs on the event loop.",
            where,
        )
    if "<locals>" in fn.__qualname__:
        raise PlanError(
            f"{what} on {fn.__qualname__}, a function inside another one",
            "Its process finds it by module and name: make it a module-level function.",
            where,
        )
    main = sys.modules.get("__main__")
    if fn.__module__ == "__main__" and getattr(main, "__spec__", None) is None and not hasattr(main, "__file__"):
        raise PlanError(
            f"{what} in a notebook or an interactive session",
            "Its process imports the step from a file: write it into a module and import it here.",
            where,
        )
    return "process"


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
    if name == "tolerate":
        return _tolerated(value, what, where)
    if value is None:
        return None
    if name == "max_concurrency":
        if type(value) is not int or value < 1:
            raise PlanError(what, "A whole number from 1 on; None is no limit.", where)
        return value
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


def _tolerated(value: Any, what: str, where: str) -> int | str:
    if type(value) is int and value >= 0:
        return value
    share = _SHARE.fullmatch(value) if isinstance(value, str) else None
    if share is None or float(share[1]) > 100:
        raise PlanError(what, 'How many items may fail: a whole number, or a share of all such as "5%".', where)
    return f"{float(share[1]):g}%" if float(share[1]) else 0


def _seconds(value: Any, what: str, where: str) -> float:
    try:
        return seconds(value, what=what.partition("=")[0], least=_SHORTEST)
    except PlanError as error:
        raise PlanError(error.problem, error.advice, where) from None
