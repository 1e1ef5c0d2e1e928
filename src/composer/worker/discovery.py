"""Finding what a module defines: its workflows, its steps, and the steps those workflows use. No global registry."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from composer.define.step import Step
from composer.define.workflow import Workflow
from composer.errors import PlanError, SettingsError
from composer.worker.loop import steps_of


@dataclass(frozen=True, slots=True)
class Found:
    """What some modules define."""

    workflows: Sequence[Workflow[..., Any]]
    steps: Sequence[Step[..., Any]] = field(default_factory=list[Step[..., Any]])


def discover(names: Sequence[str]) -> Found:
    """Imports the modules, with the current folder on the path, and takes their workflows and steps.

    Raises SettingsError for a module that does not exist or has neither, PlanError for two workflows or two steps of
    one name. What a module raises while it is imported passes unchanged.
    """
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    workflows: dict[str, Workflow[..., Any]] = {}
    steps: dict[int, Step[..., Any]] = {}
    for name in names:
        module = _imported(name)
        here = [value for value in vars(module).values() if isinstance(value, (Workflow, Step))]
        if not here:
            raise SettingsError(f"module {name!r} defines no @workflow and no @step; did you mean another one?")
        for value in here:
            if isinstance(value, Step):
                steps[id(value)] = value
                continue
            other = workflows.setdefault(value.name, value)
            if other is not value:
                raise PlanError(
                    f"two workflows are named {value.name!r}: one in {other.module}, one in {value.module}",
                    "A workflow's name is how it is started and found: give one another with @workflow(name=...).",
                )
    found = Found(list(workflows.values()), list(steps.values()))
    steps_of(found.workflows, found.steps)
    return found


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Only when the module itself is missing: an import inside it that fails is the user's to see as it is.
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise SettingsError(
                f"there is no module {name!r}; looked in the current folder {os.getcwd()} and in what is installed. "
                "Give its dotted name, as for `python -m`"
            ) from None
        raise
