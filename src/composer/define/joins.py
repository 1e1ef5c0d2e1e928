"""Joins: an argument that several nodes have a part in, or that says how a node ended.

A join is no node: it is a form of an argument, and what it waits for and what it makes of skips and failures is the
join table of core/readiness.py.
"""

from __future__ import annotations

from typing import Any, TypeVar, Union, overload

from composer.core.plan import INPUT_NAME
from composer.define import shapes
from composer.define.build import INSIDE, Builder, current, element_of, not_a_list
from composer.define.fidelity import short
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


@overload
def either(a: A, b: B, /, *, overlap: bool = False) -> A | B: ...
@overload
def either(a: A, b: B, c: C, /, *, overlap: bool = False) -> A | B | C: ...
@overload
def either(a: A, b: B, c: C, d: D, /, *more: D, overlap: bool = False) -> A | B | C | D: ...
def either(*refs: Any, overlap: bool = False) -> Any:
    """The result of the branch that was taken, of results of different branches of when() and otherwise().

    Skipped when none was taken, or when one failed; a part of the run's input may stand last, for when none was taken.
    `overlap=True` declares that several may complete: the first of them in the order written is taken.
    """
    builder = current("either()", INSIDE)
    parts = [_result(builder, "either()", ref, may_be_input=ref is refs[-1]) for ref in refs]
    if len(parts) < 2:
        problem = "either() joins two results or more"
        raise PlanTypeError(problem, "For one that may be skipped: maybe(ref).", str(user_line()))
    nodes = tuple(part._node for part in parts if part._node != INPUT_NAME)
    if len(set(nodes)) < len(nodes):
        problem = f"either({', '.join(nodes)}) names one node twice"
        raise PlanTypeError(problem, "It joins results of different branches.", str(user_line()))
    if overlap:
        builder.overlaps.add(nodes)
    types = [part._type for part in parts]
    joined: Any = shapes.MISSING if any(map(shapes.is_unknown, types)) else Union[tuple(types)]  # noqa: UP007
    return Ref(builder, "either", (), joined, user_line(), tuple(parts))


def maybe(ref: T, /) -> T | None:
    """The result, or None when the node was skipped. A failure is not forgiven: the reader is skipped then."""
    builder = current("maybe()", INSIDE)
    part = _result(builder, "maybe()", ref)
    type_: Any = part._type if shapes.is_unknown(part._type) else Union[part._type, None]  # noqa: UP007
    return Ref(builder, "maybe", (), type_, user_line(), (part,))  # type: ignore[return-value]


def settled(ref: T, /) -> Outcome[T]:
    """How the node ended, as a value: the reader runs also when it failed, and the failure does not fail the run.

    `when(settled(ref).failed)` decides on it. Of a map it is how the map as a whole ended; see `settled_each`.
    """
    builder = current("settled()", INSIDE)
    part = _result(builder, "settled()", ref)
    if part._path:
        problem = f"settled() takes the whole result of a node, not {ref!r}"
        raise PlanTypeError(problem, "Select from the outcome: settled(ref).value.", str(user_line()))
    outcome: Any = Outcome
    inner: Any = Any if part._type is shapes.MISSING else part._type
    return Ref(builder, "settled", (), outcome[inner], user_line(), (part,))  # type: ignore[return-value]


def _result(builder: Builder, what: str, ref: Any, *, may_be_input: bool = False) -> Ref:
    """A part of a join: the result of one node."""
    if type(ref) is not Ref:
        raise PlanTypeError(f"{what} takes results of nodes, not {short(ref)}", "", str(user_line()))
    builder.own(ref)
    if ref._of:
        problem = f"{what} takes results of nodes, not the join {ref!r}"
        raise PlanTypeError(problem, "Joins do not nest: put a step between them.", str(user_line()))
    if ref._node == INPUT_NAME and not may_be_input:
        problem = f"{what} takes results of nodes, and {ref!r} is the run's input"
        raise PlanTypeError(problem, "The input is always there: use it as it is.", str(user_line()))
    return ref


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
    builder = current("zip_refs()", INSIDE)
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
    builder = current("settled_each()", INSIDE)
    ref: Any = results
    if type(ref) is not Ref or ref._path or builder.node_of(builder.own(ref)).get("kind") != "map":
        problem = f"settled_each() takes the whole result of a .map(), not {ref!r}"
        raise PlanTypeError(problem, "It says of every item of a map how it ended.", str(user_line()))
    tolerated = builder.node_of(ref).get("options", {}).get("tolerate")
    if tolerated is not None:
        raise PlanError(
            f"settled_each() of {ref!r}, which has tolerate={tolerated!r}",
            "Read through settled_each() a map never fails, so there is nothing to tolerate: leave one of them out.",
            str(user_line()),
        )
    outcome: Any = Outcome
    many: Any = list
    return Ref(builder, "settled_each", (), many[outcome[shapes.element(ref._type)]], user_line(), (ref,))  # type: ignore[return-value]
