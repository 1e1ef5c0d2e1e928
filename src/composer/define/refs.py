"""Ref: what a value looks like before it exists.

A builder runs once, before any data is there. What its steps return are Refs, which the type checkers take for the
values themselves; a Ref records the fields and items asked of it, and refuses, at the user's line and with the way
out, every question only the value could answer. This module is the one place where types lie.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final, NoReturn

from composer.define import shapes
from composer.define.source import Where, user_line
from composer.errors import PlanAttributeError, PlanError, PlanTypeError

_ADVICE: Final = {
    "if": "Data decides at run time: take the decision inside a step. and, or and not ask for a truth value too.",
    "compare": "The value is there at run time only: compare inside a step.",
    "iterate": "Its length is known at run time only: step.map(ref) runs the step for every item; or do the loop inside a step. "
    "ref[0] selects one item. To put two lists side by side: step.map(zip_refs(a, b)).",
    "len": "Take the length inside a step.",
    "in": "Look it up inside a step.",
    "text": "Build text inside a step. To look at it while building, print(repr(ref)).",
    "number": "Compute inside a step.",
    "hash": "It cannot be a key or a member of a set. To select from data use ref[...], to choose by value a step.",
    "await": "The builder only draws the plan, so nothing is awaited: drop the `await`.",
    "class": "Its class is known at run time only: isinstance() and match cannot decide here. Decide inside a step.",
    "call": "Methods do not run while the workflow is built: do it inside a step.",
    "with": "Nothing is opened or entered while the workflow is built: do it inside a step.",
    "store": "It belongs to the workflow that made it and cannot be taken out of it.",
    "zip": "It exists only as the items of step.map(zip_refs(...)): select from the lists themselves, or zip inside a step.",
    "assign": "Values of a run do not change: return the new value from a step.",
}
# isinstance() against an ABC or a Protocol asks for the class from in here, on behalf of the frame before.
_ASKS_FOR_OTHERS: Final = frozenset(("abc", "typing", "typing_extensions"))


class Scope:
    """One run of a builder function: whose refs they are, and whether it still goes on."""

    __slots__ = ("globals", "is_open", "workflow")

    def __init__(self, workflow: str, globals_: Mapping[str, Any]) -> None:
        self.workflow, self.globals, self.is_open = workflow, globals_, True


def refuse(what: str, advice: str, kind: type[PlanError] = PlanTypeError) -> NoReturn:
    raise kind(what, _ADVICE[advice], str(user_line()))


class Symbol:
    """Everything that stands for a later value. It has no public attribute but the value's own."""

    __slots__ = ("_scope", "_type", "_where")
    _scope: Scope
    _type: Any
    _where: Where

    def _text(self) -> str:
        raise NotImplementedError

    def _json(self) -> dict[str, Any]:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._text()}>"

    def __eq__(self, other: object) -> bool:
        refuse(f"{self!r} cannot be compared while the workflow is built", "compare")

    def __ne__(self, other: object) -> bool:
        refuse(f"{self!r} cannot be compared while the workflow is built", "compare")

    def __bool__(self) -> bool:
        refuse(f"{self!r} has no truth value while the workflow is built", "if")

    def __iter__(self) -> NoReturn:
        refuse(f"{self!r} cannot be iterated while the workflow is built", "iterate")

    def __reversed__(self) -> NoReturn:
        refuse(f"{self!r} cannot be iterated while the workflow is built", "iterate")

    def __len__(self) -> int:
        refuse(f"{self!r} has no length while the workflow is built", "len")

    def __contains__(self, item: object) -> bool:
        refuse(f"`in {self!r}` cannot be answered while the workflow is built", "in")

    def __hash__(self) -> int:
        refuse(f"{self!r} is not hashable", "hash")

    def __str__(self) -> str:
        refuse(f"{self!r} has no text while the workflow is built", "text")

    def __format__(self, spec: str) -> str:
        refuse(f"{self!r} has no text while the workflow is built", "text")

    def __fspath__(self) -> str:
        refuse(f"{self!r} has no text while the workflow is built", "text")

    def __await__(self) -> NoReturn:
        refuse(f"{self!r} cannot be awaited", "await")

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        refuse(f"{self!r} cannot be called", "call")

    def __enter__(self) -> NoReturn:
        refuse(f"{self!r} is not a context manager", "with")

    def __exit__(self, *exc: object) -> None: ...

    def __aenter__(self) -> NoReturn:
        refuse(f"{self!r} is not a context manager", "with")

    def __aexit__(self, *exc: object) -> NoReturn:
        refuse(f"{self!r} is not a context manager", "with")

    def __aiter__(self) -> NoReturn:
        refuse(f"{self!r} cannot be iterated while the workflow is built", "iterate")

    def __setitem__(self, key: object, value: object) -> NoReturn:
        refuse(f"{self!r}[...] cannot be set", "assign")

    def __delitem__(self, key: object) -> NoReturn:
        refuse(f"{self!r}[...] cannot be deleted", "assign")

    def __delattr__(self, name: str) -> NoReturn:
        refuse(f"{self!r}.{name} cannot be deleted", "assign")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        refuse(f"{self!r} cannot be pickled", "store")

    def __copy__(self) -> Symbol:
        return self

    def __deepcopy__(self, memo: object) -> Symbol:
        return self

    # isinstance() and match ask for the class when the exact type does not match. To the builder's own module the
    # only honest answer is an error; debuggers, pytest and pydantic get the truth.
    @property  # type: ignore[misc]
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleVariableOverride, reportIncompatibleMethodOverride]
        scope = self._scope
        if scope.is_open:
            caller = sys._getframe(1)
            while caller.f_globals.get("__name__") in _ASKS_FOR_OTHERS and caller.f_back is not None:
                caller = caller.f_back
            if caller.f_globals is scope.globals:
                refuse(f"{self!r} has no class while the workflow is built", "class")
        return type(self)


def _refused(kind: str, what: str) -> Any:
    def method(self: Symbol, *args: object) -> NoReturn:
        refuse(what.format(f"{self!r}"), kind)

    return method


for _op in ("lt", "le", "gt", "ge"):
    setattr(Symbol, f"__{_op}__", _refused("compare", "{} cannot be compared while the workflow is built"))
for _op in (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "divmod",
    "pow",
    "matmul",
    "lshift",
    "rshift",
    "xor",
    "and",
    "or",
):
    for _side in ("", "r", "i"):
        if f"{_side}{_op}" != "idivmod":
            setattr(Symbol, f"__{_side}{_op}__", _refused("number", "arithmetic on {} while the workflow is built"))
for _op in ("neg", "pos", "abs", "invert", "int", "float", "complex", "index", "round", "trunc", "floor", "ceil"):
    setattr(Symbol, f"__{_op}__", _refused("number", "arithmetic on {} while the workflow is built"))
setattr(Symbol, "__bytes__", _refused("text", "{} has no bytes while the workflow is built"))  # noqa: B010 - as its siblings


class Ref(Symbol):
    """The output of a node, or of a join of several nodes, or a part of it.

    `_node` is the node's name; of a join it is the word of the join, and `_of` the refs it joins.
    """

    __slots__ = ("_node", "_of", "_path")
    _node: str
    _path: tuple[str | int, ...]
    _of: tuple[Ref, ...]

    def __init__(
        self,
        scope: Scope,
        node: str,
        path: tuple[str | int, ...],
        type_: Any,
        where: Where,
        of: tuple[Ref, ...] = (),
    ) -> None:
        put = object.__setattr__
        put(self, "_scope", scope)
        put(self, "_node", node)
        put(self, "_path", path)
        put(self, "_type", type_)
        put(self, "_where", where)
        put(self, "_of", of)

    def _text(self) -> str:
        start = f"{self._node}({', '.join(part._text() for part in self._of)})" if self._of else self._node
        return start + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self._path)

    def _json(self) -> dict[str, Any]:
        out: dict[str, Any] = {self._node: [part._json() for part in self._of]} if self._of else {"ref": self._node}
        if self._path:
            out["path"] = list(self._path)
        return out

    def _nodes(self) -> Iterator[str]:
        """Names of the nodes it reads; "input" for the run's own input."""
        if not self._of:
            yield self._node
        for part in self._of:
            yield from part._nodes()

    def __getattr__(self, name: str) -> Ref:
        if name.startswith("_"):  # probes of copy, IPython, numpy, pytest: never a path
            raise AttributeError(name)
        try:
            key, type_ = shapes.attribute(self._type, name)
        except shapes.NoSuchField as error:
            advice = shapes.did_you_mean(name, error.close)
            raise PlanAttributeError(f"{self!r}: {error.reason}", advice, str(user_line())) from None
        return Ref(self._scope, self._node, (*self._path, key), type_, self._where, self._of)

    def __getitem__(self, key: object) -> Ref:
        if type(key) is not int and type(key) is not str:
            problem = f"{self!r}[{key!r}]: only a number or a name selects an item"
            raise PlanTypeError(problem, "Slice or choose inside a step.", str(user_line()))
        try:
            type_ = shapes.item(self._type, key)
        except shapes.NoSuchField as error:
            advice = shapes.did_you_mean(str(key), error.close)
            raise PlanTypeError(f"{self!r}: {error.reason}", advice, str(user_line())) from None
        return Ref(self._scope, self._node, (*self._path, key), type_, self._where, self._of)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        refuse(f"{self!r}.{name} cannot be set", "assign")


class Zip(Symbol):
    """Several lists side by side, as zip_refs() made them: of use only as the items of a map."""

    __slots__ = ("_lists",)
    _lists: tuple[Any, ...]

    def __init__(self, scope: Scope, lists: tuple[Any, ...], where: Where) -> None:
        self._scope, self._lists, self._type, self._where = scope, lists, shapes.MISSING, where

    def _text(self) -> str:
        shown = (each._text() if isinstance(each, Symbol) else f"<{len(each)} items>" for each in self._lists)
        return f"({', '.join(shown)})"

    def __getitem__(self, key: object) -> NoReturn:
        refuse(f"{self!r}[{key!r}] cannot be selected", "zip")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        refuse(f"{self!r} has no field {name!r}", "zip", PlanAttributeError)
