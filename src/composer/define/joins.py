"""Joins: an argument that several nodes have a part in, or that says how a node ended.

A join is no node: it is a form of an argument, and what it waits for and what it makes of skips and failures is the
join table of core/readiness.py.
"""

from __future__ import annotations

from typing import Any, TypeVar, overload

from composer.define import shapes
from composer.define.build import current, element_of, not_a_list
from composer.define.outcome import Outcome
from composer.define.refs import Ref, Zip
from composer.define.source import user_line
from composer.errors import PlanError, PlanTypeError

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
T = TypeVar("T")

_INSIDE = "It is a part of a plan: use it inside a @workflow function."


@overload
def zip_refs(a: list[A], b: list[B], /) -> list[tuple[A, B]]: ...
@overload
def zip_refs(a: list[A], b: list[B], c: list[C], /) -> list[tuple[A, B, C]]: ...
@overload
def zip_refs(a: list[A], b: list[B], c: list[C], d: list[D], /) -> list[tuple[A, B, C, D]]: ...
@overload
def zip_refs(a: list[A], b: list[B], c: list[C], d: list[D], e: list[E], /) -> list[tuple[A, B, C, D, E]]: ...
def zip_refs(*lists: Any) -> Any:
    """Lists side by side, as the items of a map: `step.map(zip_refs(a, b))`, whose step takes a tuple of two.

    Items are matched by position. Lists of different length fail the map when it runs.
    """
    builder = current("zip_refs()", _INSIDE)
    if len(lists) < 2:
        problem = "zip_refs() puts two lists or more side by side"
        raise PlanTypeError(problem, "For one list: step.map(ref).", str(user_line()))
    for each in lists:
        if type(each) is Ref:
            builder.own(each)
            element_of(each, "zip_refs()")
        elif type(each) not in (list, tuple):
            raise PlanTypeError(f"zip_refs() takes lists, not {each!r}", not_a_list(each), str(user_line()))
    return Zip(builder, lists, user_line())


def settled_each(results: list[T], /) -> list[Outcome[T]]:
    """How every item of a map ended, in the order of the items: takes what `.map` returned.

    A map that is read so never fails: what to make of failed items is decided by who reads them.
    """
    builder = current("settled_each()", _INSIDE)
    ref: Any = results
    if type(ref) is not Ref or ref._path or ref._of or builder.kind_of(builder.own(ref)) != "map":
        problem = f"settled_each() takes the whole result of a .map(), not {ref!r}"
        raise PlanTypeError(problem, "It says of every item of a map how it ended.", str(user_line()))
    tolerated = builder.options_of(ref).get("tolerate")
    if tolerated is not None:
        raise PlanError(
            f"settled_each() of {ref!r}, which has tolerate={tolerated!r}",
            "Read through settled_each() a map never fails, so there is nothing to tolerate: leave one of them out.",
            str(user_line()),
        )
    outcome: Any = Outcome
    many: Any = list
    return Ref(builder, "settled_each", (), many[outcome[shapes.element(ref._type)]], user_line(), (ref,))  # type: ignore[return-value]


MAKERS = (zip_refs, settled_each)
"""Functions beside steps whose results are Refs, for the source check."""
