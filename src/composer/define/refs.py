"""Ref: what a value looks like before it exists.

A builder runs once, before any data is there. What its steps return are Refs, which the type checkers take for the
values themselves; a Ref records the fields and items asked of it, and refuses, at the user's line and with the way
out, every question only the value could answer. This module is the one place where types lie.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final, NoReturn

from composer.define import comparing, shapes
from composer.define.fidelity import short
from composer.define.outcome import Outcome
from composer.define.source import Where, user_line
from composer.errors import PayloadError, PlanAttributeError, PlanError, PlanTypeError

_ADVICE: Final = {
    "if": "Data decides at run time: `with when(...):`, or decide inside a step. `and`, `or`, `not` and `in` ask for a truth "
    "value too: use all_of(), any_of(), not_(), contains(); write `a < x < b` as when(a < x, x < b).",
    "compare": "The value is there at run time only: compare inside a step.",
    "iterate": "Its length is known at run time only: step.map(ref) runs the step for every item; or do the loop inside a step. "
    "ref[0] selects one item. To put two lists side by side: step.map(zip_refs(a, b)).",
    "len": "Use size(ref) in a condition, or take the length inside a step.",
    "in": "Use contains(ref, item) in a condition, or look it up inside a step.",
    "text": "Build text inside a step. To look at it while building, print(repr(ref)).",
    "number": "Compute inside a step.",
    "hash": "It cannot be a key or a member of a set. To select from data use ref[...], to choose by value use when(ref == ...).",
    "await": "The builder only draws the plan, so nothing is awaited: drop the `await`.",
    "class": "Its class is known at run time only: isinstance() and match cannot decide here. Use a field of it in when(...), "
    "or decide inside a step.",
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

    def own(self, symbol: Any) -> Any:
        """The symbol itself, when it is one of this workflow. Raises PlanError for one of another."""
        if symbol._scope is not self:
            raise PlanError(
                f"{symbol!r} belongs to workflow {symbol._scope.workflow!r}, not to {self.workflow!r}",
                f"It was made at {symbol._where}. Pass values between workflows as arguments and results.",
                str(user_line()),
            )
        return symbol


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


_SIGNS: Final = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


class Value(Symbol):
    """A symbol that conditions can be made of: comparing it gives an Expr, typed bool."""

    __slots__ = ()

    def _nodes(self) -> Iterator[str]:
        """Names of the nodes it reads; "input" for the run's own input."""
        raise NotImplementedError

    def _compare(self, op: str, other: Any) -> Any:
        if other is None and op in ("eq", "ne"):
            made = Expr(self._scope, "is_none", (self,))
            return made if op == "eq" else Expr(self._scope, "not", (made,))
        return compared(self._scope, op, self, other)

    def __eq__(self, other: object) -> Any:
        return self._compare("eq", other)

    def __ne__(self, other: object) -> Any:
        return self._compare("ne", other)

    def __lt__(self, other: object) -> Any:
        return self._compare("lt", other)

    def __le__(self, other: object) -> Any:
        return self._compare("le", other)

    def __gt__(self, other: object) -> Any:
        return self._compare("gt", other)

    def __ge__(self, other: object) -> Any:
        return self._compare("ge", other)

    __hash__ = Symbol.__hash__

    def __and__(self, other: object) -> Any:
        return joined(self._scope, "and", "'&'", (self, other))

    def __or__(self, other: object) -> Any:
        return joined(self._scope, "or", "'|'", (self, other))

    def __rand__(self, other: object) -> Any:
        return joined(self._scope, "and", "'&'", (other, self))

    def __ror__(self, other: object) -> Any:
        return joined(self._scope, "or", "'|'", (other, self))

    __iand__, __ior__ = __and__, __or__

    def __invert__(self) -> Any:
        return joined(self._scope, "not", "'~'", (self,))


class Ref(Value):
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

    def __getattr__(self, name: str) -> Value:
        if name.startswith("_"):  # probes of copy, IPython, numpy, pytest: never a path
            raise AttributeError(name)
        if name in _PREDICATES and shapes.origin_of(self._type) is Outcome:
            state: Any = Ref(self._scope, self._node, (*self._path, "state"), str, self._where, self._of)
            return joined(self._scope, "or", "", tuple(state == each for each in _PREDICATES[name]))
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


_PREDICATES: Final = {
    "ok": ("completed",),
    "failed": ("failed", "timed-out"),
    "skipped": ("skipped",),
    "timed_out": ("timed-out",),
    "cancelled": ("cancelled",),
}
"""Properties of an Outcome that are conditions in a plan, and the states each is true in."""


class Expr(Value):
    """A condition over values, typed bool; or the size of one, typed int. `_as` is how its operands are compared."""

    __slots__ = ("_args", "_as", "_op")
    _op: str
    _args: tuple[Any, ...]
    _as: str

    def __init__(self, scope: Scope, op: str, args: tuple[Any, ...], as_: str = "", type_: Any = bool) -> None:
        self._scope, self._op, self._args, self._as = scope, op, args, as_
        self._type, self._where = type_, user_line()

    def _text(self) -> str:
        shown = [arg._text() for arg in self._args]
        if self._op in _SIGNS:
            return f"{shown[0]} {_SIGNS[self._op]} {shown[1]}"
        if self._op in ("and", "or"):
            return f"({f' {self._op} '.join(shown)})"
        return f"not {shown[0]}" if self._op == "not" else f"{self._op}({', '.join(shown)})"

    def _json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"op": self._op, "args": [arg._json() for arg in self._args]}
        if self._as:
            out["as"] = self._as
        return out

    def _nodes(self) -> Iterator[str]:
        for arg in self._args:
            yield from arg._nodes()


class Const:
    """A constant side of a comparison, in JSON already."""

    __slots__ = ("json", "shown")

    def __init__(self, json: Any, shown: str) -> None:
        self.json, self.shown = json, shown

    def _text(self) -> str:
        return self.shown

    def _json(self) -> dict[str, Any]:
        return {"const": self.json}

    def _nodes(self) -> Iterator[str]:
        return iter(())


def compared(scope: Scope, op: str, left: Any, right: Any) -> Expr:
    """A comparison. `left` is a value of the plan, `right` one or a constant. Raises PlanTypeError without a common kind."""
    is_value = is_symbol(right)
    if is_value and not issubclass(type(right), Value):
        refuse(f"{left!r} cannot be compared with {right!r}", "compare")
    for each in (left, right) if is_value else (left,):
        scope.own(each)
    try:
        type_ = right._type if is_value else type(right)
        as_ = comparing.common(left._type, type_, ordered=op not in ("eq", "ne"), constant=not is_value)
        other = right if is_value else constant_side(right, as_, left._type)
    except (comparing.Incomparable, PayloadError) as error:
        what = f"{right!r}, of type {shapes.name_of(right._type)}" if is_value else short(right)
        problem = f"{left!r}, of type {shapes.name_of(left._type)}, cannot be compared with {what}: {error}"
        raise PlanTypeError(problem, "Compare values of one kind, or decide inside a step.", str(user_line())) from None
    return Expr(scope, op, (left, other), as_)


def constant_side(value: Any, as_: str, tp: Any) -> Const:
    """A constant of a comparison with a value of type `tp`. Raises Incomparable, or PayloadError."""
    return Const(comparing.constant(value, as_, tp), short(value))


def joined(scope: Scope, op: str, what: str, conditions: tuple[Any, ...]) -> Expr:
    """Conditions joined by "and" or "or", or one of them negated. Raises PlanTypeError for what is no condition."""
    parts: list[Any] = []
    for each in conditions:
        condition(scope, what, each)
        flat = type(each) is Expr and each._op == op != "not"
        parts += each._args if flat else (each,)
    only = parts[0]
    return only if op != "not" and len(parts) == 1 else Expr(scope, op, tuple(parts))


def condition(scope: Scope, what: str, value: Any) -> Any:
    """The condition itself. Raises PlanTypeError for a constant, and for what is not true or false."""
    if not is_symbol(value):
        if what.startswith("'"):
            raise PlanTypeError(
                f"{what} joins conditions, not {short(value)}",
                "It binds tighter than a comparison: write (a > 1) & (b > 1), or all_of(a > 1, b > 1).",
                str(user_line()),
            )
        raise PlanTypeError(
            f"{what} got the constant {short(value)}: that was answered while the workflow is built",
            "`is`, isinstance() and plain values do not wait for data: compare with ==, or use is_none(ref). "
            "For a choice made while building use a plain `if`.",
            str(user_line()),
        )
    if not issubclass(type(value), Value) or not (shapes.is_unknown(value._type) or shapes.bare(value._type) is bool):
        advice = "Compare it: ref == ..., size(ref) > 0, not_(is_none(ref))."
        if what.startswith("'"):
            advice = "It binds tighter than a comparison: write (a > 1) & (b > 1), or all_of(a > 1, b > 1)."
        problem = f"{what} takes conditions, and {value!r} is {shapes.name_of(value._type)}"
        raise PlanTypeError(problem, advice, str(user_line()))
    return scope.own(value)


def is_symbol(value: object) -> bool:
    """Whether it stands for a later value. isinstance() would be asked in the name of the user's module."""
    return issubclass(type(value), Symbol)


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


class Made(Symbol):
    """A value that build() puts together from refs, typed as the class it will be. `_fields`: by attribute name."""

    __slots__ = ("_fields",)
    _fields: Mapping[str, Any]

    def __init__(self, scope: Scope, type_: Any, fields: Mapping[str, Any]) -> None:
        put = object.__setattr__
        put(self, "_scope", scope)
        put(self, "_type", type_)
        put(self, "_fields", fields)
        put(self, "_where", user_line())

    def _text(self) -> str:
        return f"{shapes.name_of(self._type)}(...)"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self._fields:
            return self._fields[name]
        known = shapes.fields_of(self._type) or {}
        reason = "is filled in at run time" if name in known else "is no field of it"
        advice = shapes.did_you_mean(name, self._fields)
        raise PlanAttributeError(f"{self!r}: {name!r} {reason}", advice, str(user_line()))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        refuse(f"{self!r}.{name} cannot be set", "assign")
