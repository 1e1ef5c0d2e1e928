"""The builder: collects nodes while a workflow function runs, once, and makes the plan of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final

from pydantic import BaseModel

from composer.core.plan import INPUT_NAME, MOST_NODES, Plan, canonical, ordered
from composer.define import shapes
from composer.define.declaration import MOST_LETTERS, Declaration, checked_name
from composer.define.fidelity import short
from composer.define.payloads import codec
from composer.define.refs import Ref, Scope, Symbol
from composer.define.source import Where, user_line
from composer.errors import PayloadError, PlanError, PlanTypeError

_PLAIN: Final = frozenset((str, int, float, bool, bytes, type(None)))
_SEQUENCES: Final = frozenset((list, tuple))


class Builder(Scope):
    """The nodes of one workflow in the making. Every Ref of it belongs to it and to no other."""

    __slots__ = ("_counts", "_needs", "_nodes", "_where", "steps")

    def __init__(self, workflow: str, globals_: Mapping[str, Any]) -> None:
        super().__init__(workflow, globals_)
        self.steps: dict[str, Any] = {}
        """Every definition the nodes use, by name: the plan itself holds only the names."""
        self._nodes: dict[str, dict[str, Any]] = {}
        self._needs: dict[str, set[str]] = {}
        self._where: dict[str, Where] = {}
        self._counts: dict[str, int] = {}

    # -- nodes --------------------------------------------------------------------------------------------------

    def add(
        self,
        declaration: Declaration,
        arguments: Mapping[str, Any],
        extra: Mapping[str, Any],
        *,
        name: str | None = None,
        after: Sequence[object] = (),
    ) -> Ref:
        """A node that calls what is declared; the Ref stands for its result. `extra` goes into the node as it is."""
        where = user_line()
        key = self._free_name(declaration.name) if name is None else name
        if len(key) > MOST_LETTERS:  # its parts were checked where they were written, but not with the number
            checked_name(key, "a node", str(where))
        if key == INPUT_NAME or key in self._nodes:
            first = "It means the run's own input." if key == INPUT_NAME else f"The first is at {self._where[key]}."
            problem = f"a node of {self.workflow} cannot be named {key!r}, which is taken"
            raise PlanError(problem, f"{first} Give this one another name: {declaration.name}.named(...).", str(where))
        if len(self._nodes) >= MOST_NODES:
            raise PlanError(
                f"workflow {self.workflow} has more than {MOST_NODES} nodes",
                "Map over a list, which is one node however long the list is, or nest a part as a workflow of its own.",
                str(where),
            )
        needs: set[str] = set()
        types = declaration.types
        args = {
            parameter: self._template(
                arguments[parameter], types[parameter], needs, f"{declaration.name}({parameter}=...)"
            )
            if parameter in arguments
            else self._quoted(declaration.defaults[parameter])
            for parameter in declaration.parameters
        }
        node: dict[str, Any] = {"kind": declaration.kind, declaration.kind: declaration.name, "args": args, **extra}
        if after:
            node["after"] = self._after(after, needs, declaration.name)
        self._nodes[key], self._needs[key], self._where[key] = node, needs, where
        return Ref(self, key, (), declaration.result, where)

    def _free_name(self, base: str) -> str:
        self._counts[base] = count = self._counts.get(base, 0) + 1
        return base if count == 1 else f"{base}-{count}"

    def _after(self, refs: Sequence[object], needs: set[str], name: str) -> list[dict[str, Any]]:
        found: set[str] = set()
        for ref in refs:
            if type(ref) is not Ref or self._own(ref)._node == INPUT_NAME:
                raise PlanTypeError(f"{name}.after() takes results of earlier nodes, not {ref!r}", "", str(user_line()))
            found.add(ref._node)
        needs |= found
        return sorted(({"ref": node} for node in found), key=canonical)

    # -- values -------------------------------------------------------------------------------------------------

    def _own(self, ref: Ref) -> Ref:
        if ref._scope is not self:
            raise PlanError(
                f"{ref!r} belongs to workflow {ref._scope.workflow!r}, not to {self.workflow!r}",
                f"It was made at {ref._where}. Pass values between workflows as arguments and results.",
                str(user_line()),
            )
        return ref

    def _template(self, value: Any, expected: Any, needs: set[str], at: str, where: str = "") -> Any:
        """JSON with refs in it as {"$": ...}. What holds no ref is a constant, written by the type expected there."""
        kind: Any = type(value)
        if kind is Ref:
            self._own(value)
            wrong = shapes.misfit(value._type, expected)
            if wrong:
                raise PlanTypeError(f"{at}: {value!r} does not fit", f"{wrong}.", where or str(user_line()))
            if value._node != INPUT_NAME:
                needs.add(value._node)
            return {"$": value._json()}
        if not _holds_ref(value):
            return self._constant(value, expected, at, where)
        if kind in _SEQUENCES:
            expected = self._narrowed(value, expected, "a list", at, where)
            return [self._template(v, _item(expected, i), needs, f"{at}[{i}]", where) for i, v in enumerate(value)]
        expected = self._narrowed(value, expected, "an object", at, where)
        if kind is dict:
            made: dict[str, Any] = {}
            for key, part in value.items():
                if not isinstance(key, str):
                    problem = f"{at}: an object with refs in it needs text keys, not {key!r}"
                    raise PlanTypeError(problem, "", where or str(user_line()))
                made[key] = self._template(part, shapes.value_type(expected, key), needs, f"{at}[{key!r}]", where)
            return {"$": {"object": made}} if "$" in made else made
        known = shapes.fields_of(kind) or {}
        return {
            key: self._template(getattr(value, name), type_, needs, f"{at}.{name}", where)
            for name, (key, type_) in known.items()
        }

    def _constant(self, value: Any, expected: Any, at: str, where: str) -> Any:
        try:
            return self._quoted(codec(Any if expected is shapes.MISSING else expected).constant(value))
        except PayloadError as error:
            problem = f"{at}: {short(value)} cannot be a constant of type {shapes.name_of(expected)}"
            raise PlanTypeError(problem, str(error), where or str(user_line())) from None

    def _narrowed(self, value: Any, expected: Any, kind: str, at: str, where: str) -> Any:
        """The one alternative of `expected` that is of this kind of JSON; MISSING when several or none are known."""
        if shapes.is_unknown(expected):
            return shapes.MISSING
        fitting = [each for each in shapes.members(expected) if kind in (shapes.kinds_of(each) or (kind,))]
        if not fitting:
            problem = f"{at}: {short(value)} cannot be a value of type {shapes.name_of(expected)}"
            raise PlanTypeError(problem, f"It is {kind} in JSON.", where or str(user_line()))
        return fitting[0] if len(fitting) == 1 else shapes.MISSING

    def _quoted(self, json: Any) -> Any:
        """A constant that would read as a symbol ({"$": ...} in the user's own data) is quoted."""
        if isinstance(json, dict):
            return {"$": {"const": json}} if _has_dollar(json) else json
        return [self._quoted(value) for value in json] if isinstance(json, list) else json

    # -- the plan -----------------------------------------------------------------------------------------------

    def finish(
        self, output: object, declaration: Declaration, options: Mapping[str, Any], about: Mapping[str, Any]
    ) -> Plan:
        """The plan of everything added, with `output` as the template of the run's result."""
        where = f"{declaration.where} in {declaration.fn.__name__}"
        template = self._template(output, declaration.result, set(), f"workflow {self.workflow} returns", where)
        body: dict[str, Any] = {
            "format": 1,
            "workflow": self.workflow,
            "params": {
                name: {"default": declaration.defaults[name]} if name in declaration.defaults else {}
                for name in declaration.parameters
            },
            "nodes": [{"name": name, **self._nodes[name]} for name in ordered(self._needs)],
            "output": template,
        }
        if options:
            body["options"] = dict(options)
        return Plan(body, {**about, "where": {name: where.place for name, where in self._where.items()}})


building: Final[ContextVar[Builder | None]] = ContextVar("composer_building", default=None)


def current(what: str, instead: str) -> Builder:
    """The builder that runs. Outside of one raises a PlanError that says what to do `instead`."""
    builder = building.get()
    if builder is None:
        raise PlanError(f"{what} was called outside of a @workflow function", instead, str(user_line()))
    return builder


def _has_dollar(json: Any) -> bool:
    if isinstance(json, dict):
        return "$" in json or any(map(_has_dollar, json.values()))
    return isinstance(json, list) and any(map(_has_dollar, json))


def _item(expected: Any, index: int) -> Any:
    try:
        return shapes.item(expected, index)
    except shapes.NoSuchField:
        pass
    try:
        return shapes.element(expected)
    except shapes.NoSuchField:
        return shapes.MISSING


def _holds_ref(value: Any) -> bool:
    kind = type(value)
    if kind in _PLAIN:
        return False
    if issubclass(kind, Symbol):
        return True
    if kind in _SEQUENCES:
        return any(map(_holds_ref, value))
    if kind is dict:
        return any(map(_holds_ref, value.values()))
    if issubclass(kind, BaseModel):
        return any(map(_holds_ref, value.__dict__.values()))
    if dataclasses.is_dataclass(kind):
        return any(_holds_ref(getattr(value, field.name, None)) for field in dataclasses.fields(kind))
    return False
