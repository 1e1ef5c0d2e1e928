"""build(): a value put together from refs, of a class that would look at them if it were called."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from composer.define import shapes
from composer.define.build import INSIDE, current
from composer.define.refs import Made
from composer.define.source import user_line
from composer.errors import PlanTypeError

P = ParamSpec("P")
T = TypeVar("T")


def build(cls: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """A `cls`, a dataclass or pydantic model, put together when the run gets there: `build(Message, to=order.email)`.

    Nothing of the class runs while the workflow is built, so its fields may be refs. They are checked by their types
    at once, and by the class itself where the value is read. Raises PlanTypeError for fields it does not have.
    """
    builder = current("build()", INSIDE)
    where = str(user_line())
    known = shapes.fields_of(cls)
    shown = shapes.name_of(cls)
    if known is None or not inspect.isclass(shapes.origin_of(cls)):
        problem = f"build() takes a dataclass or a pydantic model, not {shown}"
        raise PlanTypeError(problem, "Lists, tuples and dicts may hold refs as they are.", where)
    origin: Any = shapes.origin_of(cls)
    signature = inspect.signature(origin)
    try:
        given = dict(signature.bind(*args, **kwargs).arguments)
    except TypeError as error:
        unknown = [name for name in kwargs if name not in signature.parameters]
        close = shapes.did_you_mean(unknown[0], signature.parameters) if unknown else ""
        raise PlanTypeError(f"build({shown}): {error}", close or f"It takes {', '.join(known)}.", where) from None
    by_key = {key: name for name, (key, _) in known.items()}
    fields = dict(_defaults(origin))
    for parameter, value in given.items():
        name = parameter if parameter in known else by_key.get(parameter)
        if name is None:
            problem = f"build({shown}): {parameter} is no field of it"
            raise PlanTypeError(problem, "A class with a constructor of its own is made inside a step.", where)
        fields[name] = value
    return Made(builder, cls, fields)  # type: ignore[return-value]


def _defaults(cls: Any) -> Iterator[tuple[str, Any]]:
    """Fields with a constant default: a plan says everything. Default factories run where the value is read."""
    if issubclass(cls, BaseModel):
        for name, info in cls.model_fields.items():
            if info.default is not PydanticUndefined and not info.exclude:
                yield name, info.default
    else:
        for field in dataclasses.fields(cls):
            if field.init and field.default is not dataclasses.MISSING and not hasattr(field.default, "annotation"):
                yield field.name, field.default
