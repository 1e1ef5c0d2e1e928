"""@workflow: a function that draws a plan, once, where it is defined."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, ParamSpec, Protocol, TypeVar, overload

from pydantic import ValidationError
from typing_extensions import Unpack

from composer.core.plan import INPUT_NAME, Plan
from composer.define import shapes
from composer.define.blocks import race, sleep, sleep_until, wait_for_event
from composer.define.build import Builder, building, current
from composer.define.declaration import Declaration, declare
from composer.define.joins import either, maybe, settled, settled_each, zip_refs
from composer.define.lint import unheard
from composer.define.options import WorkflowOptions, workflow_options
from composer.define.payloads import codec
from composer.define.refs import Ref, Symbol
from composer.define.source import line_of, user_line, user_place
from composer.define.step import Step
from composer.define.values import build
from composer.errors import PayloadError, PlanError, PlanTypeError

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
F_co = TypeVar("F_co", covariant=True)


class Startable(Protocol[F_co]):
    """What a client starts: a workflow. A step has no plan, a plain function neither."""

    @property
    def fn(self) -> F_co:
        """The builder function, whose parameters are the run's input and whose result is the run's."""
        ...

    @property
    def plan(self) -> Plan:
        """What the run will do."""
        ...


class Workflow(Generic[P, R_co]):
    """A workflow: its plan as a value, and the types of its input and result.

    `steps` holds every step the plan uses, by name. `bound_input` is the input as JSON text when bind() filled it in.
    """

    def __init__(self, declaration: Declaration, options: Mapping[str, Any]) -> None:
        functools.update_wrapper(self, declaration.fn, updated=())
        self.declaration = declaration
        self.name = declaration.name
        self.module: str = declaration.fn.__module__
        self.bound_input: str | None = None
        builder, output = _built(declaration)
        self.steps: Mapping[str, Step[..., Any]] = builder.steps
        self._plan = builder.finish(output, declaration, options, {"doc": inspect.getdoc(declaration.fn)})
        self._result = codec(declaration.result)

    def __repr__(self) -> str:
        return f"<workflow {self.name}{self.declaration.signature}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Raises PlanError: a workflow is started by a client, it is not called."""
        current(
            f"workflow {self.name}()", f"To run it: client.start({self.name}.bind(...)), or run_workflow() in a test."
        )
        raise PlanError(
            f"workflow {self.name}() was called in the builder of another workflow",
            "Child workflows are not available yet: call the steps, or start the workflow from inside a step.",
            str(user_line()),
        )

    @property
    def fn(self) -> Callable[P, R_co]:
        """The builder function."""
        fn: Callable[P, R_co] = self.declaration.fn
        return fn

    @property
    def plan(self) -> Plan:
        """What a run does, as a value. A run keeps the plan it started with."""
        return self._plan

    @property
    def types(self) -> Mapping[str, Any]:
        """Annotations by parameter name, and "return"."""
        return self.declaration.types

    @property
    def result(self) -> Any:
        """The annotation of the result."""
        return self.declaration.result

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Workflow[[], R_co]:
        """This workflow with its input filled in, keyword arguments and defaults included: to start, schedule or test.

        Raises PlanTypeError for arguments that do not fit the signature, PayloadError for values that do not fit.
        """
        copy: Any = object.__new__(type(self))
        copy.__dict__.update(self.__dict__, bound_input=self.encode_input(args, kwargs))
        return copy  # type: ignore[no-any-return]

    def encode_input(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], most: int | None = None) -> str:
        """The input as a JSON object by parameter name, defaults filled in. See Codec.encode for `most`.

        Raises PlanTypeError for arguments that do not fit the signature, PayloadError for values that do not fit.
        """
        if self.bound_input is not None:
            if args or kwargs:
                problem = f"workflow {self.name} has its input already, by bind()"
                raise PlanTypeError(
                    problem, "Start it without arguments, or bind() the workflow anew.", str(user_line())
                )
            return self.bound_input
        given = self.declaration.bind(args, kwargs)
        parts: list[str] = []
        for name in self.declaration.parameters:
            if name in given:
                text = self._encode_argument(name, given[name], most)
            else:
                text = json.dumps(self.declaration.defaults[name], separators=(",", ":"), allow_nan=False)
            parts.append(f"{json.dumps(name)}:{text}")
        return f"{{{','.join(parts)}}}"

    def _encode_argument(self, name: str, value: Any, most: int | None) -> str:
        type_ = self.types[name]
        try:
            if isinstance(value, Symbol):
                raise PayloadError(f"{value!r} exists only while a workflow is built")
            return codec(type_).encode(value, most=most)
        except PayloadError as error:
            problem = f"workflow {self.name}: {name} cannot be written as {shapes.name_of(type_)}: {error}"
            raise PayloadError(_with_place(problem, user_place())) from error

    def decode_result(self, text: str | bytes) -> R_co:
        """The run's result. Raises PayloadError when the text is none of the annotated type."""
        try:
            value: R_co = self._result.decode(text)
        except PayloadError as error:
            problem = f"workflow {self.name}: its result cannot be read as {shapes.name_of(self.result)}: {error}"
            raise PayloadError(problem) from error
        return value


_MAKERS: Final = (build, either, maybe, race, settled, settled_each, sleep, sleep_until, wait_for_event, zip_refs)
"""Functions beside steps whose results are Refs, for the source check."""


def _makes_refs(called: object) -> bool:
    return isinstance(called, Step) or any(called is maker for maker in _MAKERS)


def _built(declaration: Declaration) -> tuple[Builder, Any]:
    """Runs the builder function with Refs for its parameters: the builder with all nodes, and what was returned."""
    fn = declaration.fn
    for line, problem in unheard(fn, _makes_refs):
        where = f"{fn.__code__.co_filename}:{line} in {fn.__name__}"
        advice = "Data decides at run time: when(is_none(ref)), when(ref == ...) and otherwise(...), or a step."
        raise PlanTypeError(problem, advice, where)
    builder = Builder(declaration.name, fn.__globals__)
    at = user_line()
    inputs = {name: Ref(builder, INPUT_NAME, (name,), declaration.types[name], at) for name in declaration.parameters}
    args = [inputs.pop(name) for name, each in declaration.parameters.items() if each.kind is not each.KEYWORD_ONLY]
    token = building.set(builder)
    try:
        return builder, fn(*args, **inputs)
    except PlanError:
        raise
    except ValidationError as error:
        refs = [each["input"] for each in error.errors() if isinstance(each["input"], Symbol)]
        if not refs:
            raise
        raise PlanError(
            f"{error.title} was validated while the workflow is built, with {refs[0]!r} in it",
            f"Values come at run time: build({error.title}, ...) puts it together then.",
            line_of(error),
        ) from None
    except Exception as error:  # the user's own, or one that C code raised about a Ref: told where, its type kept
        error.add_note(
            f"while building workflow {declaration.name}: values are Refs there; what needs a value belongs in a step"
        )
        raise
    finally:
        builder.is_open = False
        building.reset(token)


def _with_place(problem: str, place: str) -> str:
    return f"{problem}\n  at {place}" if place else problem


class WorkflowDecorator(Protocol):
    """What @workflow(...) is."""

    def __call__(self, fn: Callable[P, R], /) -> Workflow[P, R]: ...


@overload
def workflow(fn: Callable[P, R], /) -> Workflow[P, R]: ...
@overload
def workflow(**options: Unpack[WorkflowOptions]) -> WorkflowDecorator: ...
def workflow(fn: Any = None, /, **options: Any) -> Any:
    """Runs the function once, here, and keeps the plan it draws: its step calls are the nodes, their wires the edges.

    Raises PlanError, with the user's line and the remedy, for whatever cannot be planned. Options: see WorkflowOptions.
    """
    line = str(user_line())

    def decorate(fn: Any) -> Any:
        declaration = declare(fn, "workflow", options.get("name"))
        return Workflow(declaration, workflow_options(options, workflow=declaration.name, where=line))

    return decorate if fn is None else decorate(fn)
