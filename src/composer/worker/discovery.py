"""Finding what a module defines: its workflows, its steps and those the workflows use, its lifespan, what stands around.

There is no global registry: what a worker serves is what stands in the modules it is told to serve, under whatever
name, imported or defined there.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import pkgutil
import sys
import tomllib
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType, ModuleType, TracebackType
from typing import Any, Final

from composer._startup import put_on_path
from composer.define.shapes import did_you_mean
from composer.define.step import Step
from composer.define.surroundings import AroundStep, Lifespan
from composer.define.workflow import Workflow
from composer.errors import ComposerError, ModuleError, PlanError, SettingsError
from composer.worker.loop import steps_of

_HERE: Final = f"{Path(__file__).parents[1]}/"
_MOST_SHOWN: Final = 8
_OFTEN: Final = frozenset(("test", "this"))
"""Names of the standard library that nobody misses."""


@dataclass(slots=True)
class Found:
    """What some modules define."""

    workflows: Sequence[Workflow[..., Any]] = field(default_factory=list[Workflow[..., Any]])
    steps: Sequence[Step[..., Any]] = field(default_factory=list[Step[..., Any]])
    lifespan: Lifespan[Any] | None = None
    around: Sequence[AroundStep] = field(default_factory=list[AroundStep])
    modules: Sequence[str] = ()
    warnings: Sequence[str] = ()
    """What the user should know, although it works."""


def discover(names: Sequence[str]) -> Found:
    """Imports the modules, with the project's folder on the path, and takes what they define.

    A name is dotted, as for `python -m`, or `module:attribute` for one workflow, one step or a list of them. Without a
    name those of `[tool.composer] modules` are taken, of the nearest pyproject.toml here or above. Raises ModuleError
    for a module that is missing, breaks or has nothing to serve, SettingsError when nothing says what to serve,
    PlanError for two workflows, two steps or two lifespans where one is needed.
    """
    folder = Path.cwd()
    if not names:
        folder, names = modules_of_project(folder)
    put_on_path(str(folder))
    shadows = _shadows(folder)
    workflows: dict[str, Workflow[..., Any]] = {}
    steps: dict[int, Step[..., Any]] = {}
    around: dict[int, AroundStep] = {}
    lifespans: dict[int, Lifespan[Any]] = {}
    for name in dict.fromkeys(names):
        module, values = _served(name, folder, shadows)
        for value in values:
            if isinstance(value, Step):
                steps[id(value)] = value
                continue
            other = workflows.setdefault(value.name, value)
            if other is not value:
                _refuse_twice({other.module, value.module})
                raise PlanError(
                    f"two workflows are named {value.name!r}: one at {other.declaration.where}, one at {value.declaration.where}",
                    "A workflow's name is how it is started and found: give one another with @workflow(name=...).",
                )
        for value in vars(module).values():
            if isinstance(value, Lifespan):
                lifespans[id(value)] = value
            elif isinstance(value, AroundStep):
                around[id(value)] = value
    found = Found(
        list(workflows.values()), list(steps.values()), _only(lifespans.values()), list(around.values()), tuple(names)
    )
    _refuse_twice(
        {workflow.module for workflow in found.workflows}
        | {step.module for step in found.steps}
        | {step.module for workflow in found.workflows for step in workflow.steps.values()}
    )
    steps_of(found.workflows, found.steps)
    found.warnings = [
        f"{shadow} has the name of a module of Python's standard library, which is what `import {Path(shadow).stem}` gives here"
        for shadow in shadows
    ]
    return found


# -- which modules ----------------------------------------------------------------------------------------


def modules_of_project(here: Path) -> tuple[Path, list[str]]:
    """The folder of the nearest pyproject.toml, in `here` or above, that names modules, and those. Raises SettingsError."""
    looked: list[str] = []
    for folder in (here, *here.parents):
        file = folder / "pyproject.toml"
        if not file.is_file():
            continue
        looked.append(str(file))
        try:
            tool = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {})
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SettingsError(f"{file} cannot be read: {error}") from None
        if isinstance(tool, dict) and "composer" in tool:
            return folder, _modules_of(file, tool["composer"])
    where = (
        f"{', '.join(looked)} {'has' if len(looked) == 1 else 'have'} no [tool.composer] modules"
        if looked
        else f"there is no pyproject.toml in {here} or above"
    )
    raise SettingsError(
        f"no MODULE was given, and {where}\n"
        "  Name the module that defines your workflows, `python -m composer.worker app.flows`, or write into pyproject.toml:\n"
        "  [tool.composer]\n"
        '  modules = ["app.flows"]'
    )


def _modules_of(file: Path, section: Any) -> list[str]:
    names: Any = section.get("modules") if isinstance(section, dict) else None
    if names is None and isinstance(section, dict) and section:
        close = difflib.get_close_matches("modules", section, n=1)
        raise SettingsError(
            f"{file}: [tool.composer] has no `modules`, but {', '.join(map(repr, section))}"
            + (f"; did you mean `modules` with {close[0]!r}?" if close else "")
        )
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise SettingsError(f'{file}: [tool.composer] modules: expected a list of names, ["app.flows"], got {names!r}')
    return names


# -- one module ---------------------------------------------------------------------------------------------


def _served(
    name: str, folder: Path, shadows: Sequence[str]
) -> tuple[ModuleType, list[Workflow[..., Any] | Step[..., Any]]]:
    """A module and what of it is served."""
    dotted, colon, attribute = name.partition(":")
    if not all(part.isidentifier() for part in dotted.split(".")):
        advice = "Give its dotted name, as for `python -m`."
        if dotted.endswith(".py") or "/" in dotted:
            advice = (
                f"Give its dotted name and not its path: {dotted.removesuffix('.py').strip('./').replace('/', '.')}"
            )
        raise ModuleError(name, f"{dotted!r} is no name of a module", advice)
    module = _imported(dotted, folder, shadows)
    if colon:
        return module, _attribute(module, name, attribute)
    here: list[Workflow[..., Any] | Step[..., Any]] = [
        v for v in vars(module).values() if isinstance(v, (Workflow, Step))
    ]
    if not here and any(Path(each).stem == dotted or Path(each).parent.name == dotted for each in shadows):
        raise ModuleError(
            dotted,
            f"{dotted!r} is a module of Python's standard library, which comes before the project's own",
            f"Rename {_some(shadows)}, or put it into a package.",
        )
    if not here:
        raise ModuleError(
            dotted, f"module {dotted} ({_place(module)}) defines no @workflow and no @step", _instead(module)
        )
    return module, here


def _attribute(module: ModuleType, name: str, attribute: str) -> list[Workflow[..., Any] | Step[..., Any]]:
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            known = [key for key, each in vars(value).items() if isinstance(each, (Workflow, Step, list, tuple))]
            raise ModuleError(
                name,
                f"module {module.__name__} ({_place(module)}) has no {attribute!r}",
                did_you_mean(attribute, known),
            )
        value = getattr(value, part)
    if isinstance(value, (Workflow, Step)):
        return [value]
    if isinstance(value, (list, tuple)) and value and all(isinstance(each, (Workflow, Step)) for each in value):
        return list(value)
    raise ModuleError(
        name, f"{name} is {type(value).__name__}, and not a @workflow, a @step or a list of them", _instead(module)
    )


def _imported(name: str, folder: Path, shadows: Sequence[str]) -> ModuleType:
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        # Step by step: only so can a module that is missing be told from one that imports what is missing.
        partial = ".".join(parts[:count])
        if partial in sys.modules:
            continue
        parent = sys.modules.get(partial.rpartition(".")[0])
        if parent is not None and not hasattr(parent, "__path__"):
            raise ModuleError(
                name,
                f"there is no module {name!r}: {parent.__name__} is a module ({_place(parent)}) and not a package",
                f"For something in it: {parent.__name__}:{parts[count - 1]}",
            )
        try:
            spec = importlib.util.find_spec(partial)
        except (ImportError, ValueError):
            spec = None
        if spec is None:
            raise _missing(name, partial, folder, parent)
        try:
            importlib.import_module(partial)
        except ComposerError:
            raise
        except (Exception, SystemExit) as error:
            raise _broken(partial, spec.origin, error, shadows) from error
    return sys.modules[name]


def _missing(name: str, partial: str, folder: Path, parent: ModuleType | None) -> ModuleError:
    what = f"there is no module {name!r}" + (f": nothing is called {partial!r}" if partial != name else "")
    if parent is not None:
        meant = did_you_mean(partial.rpartition(".")[2], _submodules(parent))
        return ModuleError(name, f"{what} in the package {_place(parent)}", meant, tuple(parent.__path__))
    tried = tuple(dict.fromkeys(str(Path(entry or ".").resolve()) for entry in sys.path))
    elsewhere = ", ".join(each for each in tried if each != str(folder))
    looked = f"Looked in the current folder {folder}, then in {elsewhere}."
    if (folder / "src" / partial).is_dir() or (folder / "src" / f"{partial}.py").is_file():
        advice = f"{folder}/src has it: install the project (`pip install -e .`) or set PYTHONPATH=src."
    elif (above := _above(folder, partial)) is not None:
        advice = f"{above} has it: start the worker there."
    else:
        close = difflib.get_close_matches(partial, [each.name for each in pkgutil.iter_modules([str(folder)])], n=1)
        advice = "Start in the folder that holds it, or install the project it belongs to."
        advice = f"Did you mean {close[0]!r}?" if close else advice
    return ModuleError(name, what, f"{looked}\n  {advice}", tried)


def _above(folder: Path, name: str) -> Path | None:
    """The folder above that holds a module."""
    return next(
        (each for each in folder.parents if (each / name / "__init__.py").is_file() or (each / f"{name}.py").is_file()),
        None,
    )


def _broken(name: str, origin: str | None, error: BaseException, shadows: Sequence[str]) -> ModuleError:
    if isinstance(error, SystemExit):
        what = f"module {name} ({origin}) ends the program while it is imported: sys.exit({error.code!r})"
        advice = 'Put what it does when run as a script under `if __name__ == "__main__":`.'
    else:
        what = f"module {name} ({origin}) fails while it is imported"
        advice = _own_frames(error)
    if shadows and isinstance(error, (ImportError, AttributeError)):
        advice += f"\nNote: {', '.join(shadows)} cannot be imported by that name; the standard library has it."
    return ModuleError(name, what, advice.rstrip().replace("\n", "\n  "))


def _own_frames(error: BaseException) -> str:
    """The traceback without the frames of Composer and of the import system before the user's first."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith((_HERE, "<frozen", importlib.__file__)):
        trace = trace.tb_next
    lines = traceback.TracebackException(type(error), error, trace, limit=-20, compact=True).format()
    return "".join(line for line in lines if '"<frozen importlib' not in line)


def _instead(module: ModuleType) -> str:
    """What a module has, where it has nothing to serve."""
    own = [value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__]
    functions = [value.__name__ for value in own if isinstance(value, FunctionType)]
    modules = sorted(
        key for key, value in vars(module).items() if isinstance(value, ModuleType) and not key.startswith("_")
    )
    parts: list[str] = []
    likely = [each for each in _submodules(module) if _looks_right(module, each)]
    if likely:
        parts.append("Did you mean " + " or ".join(f"{module.__name__}.{each}" for each in likely[:3]) + "?")
    elif hasattr(module, "__path__"):
        parts.append(f"Its submodules are not imported by themselves: {_some(_submodules(module)) or 'it has none'}.")
    has = [f"functions {_some(functions)}"] if functions else []
    has += [f"modules {_some(modules)}"] if modules else []
    parts.append(f"It has {' and '.join(has)}." if has else "It is empty." if not own else "")
    if functions and not likely:
        parts.append("A step is a function under @step, a workflow one under @workflow.")
    return " ".join(part for part in parts if part)


def _submodules(module: ModuleType) -> list[str]:
    return sorted(each.name for each in pkgutil.iter_modules(getattr(module, "__path__", [])))


def _looks_right(package: ModuleType, name: str) -> bool:
    """Whether a submodule, which is not imported, seems to define something."""
    for folder in package.__path__:
        for file in (Path(folder) / f"{name}.py", Path(folder) / name / "__init__.py"):
            try:
                text = file.read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            return "@workflow" in text or "@step" in text
    return False


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_SHOWN]) + (
        f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    )


def _place(module: ModuleType) -> str:
    file = getattr(module, "__file__", None)
    return str(file) if file else str(next(iter(getattr(module, "__path__", [])), "without a file"))


# -- what contradicts itself --------------------------------------------------------------------------------


def _only(found: Iterable[Lifespan[Any]]) -> Lifespan[Any] | None:
    """A worker has one lifespan: of two nobody could say whose value `resources` is."""
    lifespans = list(found)
    if len(lifespans) > 1:
        raise PlanError(
            "a worker has one @lifespan, and the modules it serves define "
            + " and ".join(f"{each.name} at {each.where}" for each in lifespans),
            "Make one of them that enters the others and yields a dataclass of what they open, "
            "or serve the modules with a worker each.",
        )
    return lifespans[0] if lifespans else None


def _refuse_twice(names: Iterable[str]) -> None:
    """Raises PlanError when a file is imported under two names: its steps and classes then exist twice."""
    files = {name: os.path.realpath(file) for name in names if (file := _file_of(name)) is not None}
    for other, file in _files():
        for name, own in files.items():
            if own == file and other != name and sys.modules[other] is not sys.modules[name]:
                one, two = sorted((name, other))
                raise PlanError(
                    f"{file} is imported under two names, {one!r} and {two!r}: all it defines exists twice",
                    "Start the worker in the project's root and name the module as the project's own imports do.",
                )


def _file_of(name: str) -> str | None:
    file = getattr(sys.modules.get(name), "__file__", None)
    return file if isinstance(file, str) else None


def _files() -> Iterator[tuple[str, str]]:
    for name in tuple(sys.modules):
        file = _file_of(name)
        if file is not None:
            yield name, os.path.realpath(file)


def _shadows(folder: Path) -> list[str]:
    """Files and packages of the project that have the name of a standard module."""
    return sorted(
        str(folder / (f"{each.name}/__init__.py" if each.ispkg else f"{each.name}.py"))
        for each in pkgutil.iter_modules([str(folder)])
        if each.name in sys.stdlib_module_names and each.name not in _OFTEN
    )
