"""The builder: collects nodes while a workflow function runs, once, and makes the plan of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final

from pydantic import BaseModel

from composer.core.plan import INPUT_NAME, MOST_NODES, Plan, canonical, ordered
from composer.define import shapes
from composer.define.branches import check_branches
from composer.define.declaration import MOST_LETTERS, Declaration, checked_name
from composer.define.fidelity import short
from composer.define.payloads import codec
from composer.define.refs import Expr, Made, Ref, Scope, Symbol, Zip
from composer.define.source import Where, user_line
from composer.errors import PayloadError, PlanError, PlanTypeError

_PLAIN: Final = frozenset((str, int, float, bool, bytes, type(None)))
_SEQUENCES: Final = frozenset((list, tuple))
INSIDE: Final = "It is a part of a plan: use it inside a @workflow function."


class Level:
    """One level of `with` blocks. `guard` is the symbol its nodes depend on, None outside of any block; `otherwise`
    the symbol that the other branch of the last closed block would depend on, and `why_not` why there is none."""

    __slots__ = ("guard", "otherwise", "why_not")

    def __init__(self, guard: dict[str, Any] | None) -> None:
        self.guard = guard
        self.otherwise: dict[str, Any] | None = None
        self.why_not = "otherwise() has no when() to belong to"


class Builder(Scope):
    """The nodes of one workflow in the making. Every Ref of it belongs to it and to no other."""

    __slots__ = (
        "_conditions",
        "_counts",
        "_needs",
        "_nodes",
        "_where",
        "levels",
        "overlaps",
        "racing",
        "steps",
        "unopened",
    )

    def __init__(self, workflow: str, globals_: Mapping[str, Any]) -> None:
        super().__init__(workflow, globals_)
        self.steps: dict[str, Any] = {}
        """Every definition the nodes use, by name: the plan itself holds only the names."""
        self._nodes: dict[str, dict[str, Any]] = {}
        self._needs: dict[str, set[str]] = {}
        self._where: dict[str, Where] = {}
        self._counts: dict[str, int] = {}
        self._conditions: dict[str, str] = {}
        self.levels = [Level(None)]
        """Open blocks, the innermost last."""
        self.unopened: dict[int, Where] = {}
        """Blocks that were made and not entered, by id."""
        self.overlaps: set[tuple[str, ...]] = set()
        """Nodes of which either() was told that several may complete."""
        self.racing: set[str] = set()
        """Nodes that are in a race."""

    # -- nodes --------------------------------------------------------------------------------------------------

    def add(
        self,
        declaration: Declaration,
        arguments: Mapping[str, Any],
        extra: Mapping[str, Any],
        *,
        name: str | None = None,
        after: Sequence[object] = (),
        over: str = "",
    ) -> Ref:
        """A node that calls what is declared; the Ref stands for its result. `extra` goes into the node as it is.

        With `over` it is a map: the argument of that parameter is a list, and the Ref stands for the list of results.
        """
        needs: set[str] = set()
        name_, types = declaration.name, declaration.types
        args: dict[str, Any] = {}
        for parameter in declaration.parameters:
            at = f"{name_}({parameter}=...)"
            if parameter == over:
                args[parameter] = self._items(arguments[parameter], types[parameter], needs, f"{name_}.map()")
            elif parameter in arguments:
                args[parameter] = self._template(arguments[parameter], types[parameter], needs, at)
            else:
                args[parameter] = self._quoted(declaration.defaults[parameter])
        result: Any = declaration.result
        node: dict[str, Any] = {"kind": "map" if over else declaration.kind, declaration.kind: name_, "args": args}
        if over:
            node["over"], result = over, _LIST[result]
        if after:
            node["after"] = self._after(after, needs, f"{name_}.after()")
        return self._put({**node, **extra}, needs, name_, result, name, f"{name_}.named(...)")

    def add_block(
        self,
        node: dict[str, Any],
        base: str,
        result: Any,
        *,
        args: Mapping[str, tuple[Any, Any]] | None = None,
        needs: Iterable[str] = (),
        name: str | None = None,
        after: object = None,
    ) -> Ref:
        """A node that is no call. `args` are its arguments with the types expected; `after` is one ref, or several."""
        needed = set(needs)
        made = {
            key: self._template(value, expected, needed, f"{base}()") for key, (value, expected) in (args or {}).items()
        }
        node = {**node, "args": made}
        if after is not None:
            many: Any = after if type(after) in _SEQUENCES else (after,)
            node["after"] = self._after(many, needed, f"{base}(after=...)")
        if name is not None:
            checked_name(name, f"{base}(name={name!r})", str(user_line()))
        return self._put(node, needed, base, result, name, "name=...")

    def add_guard(self, condition: Any, name: str | None) -> Ref:
        """The node that evaluates the condition of a block."""
        made = self.add_block({"kind": "guard"}, "when", bool, args={"condition": (condition, bool)}, name=name)
        self._conditions[made._node] = condition._text()
        return made

    def _put(self, node: dict[str, Any], needs: set[str], base: str, result: Any, name: str | None, naming: str) -> Ref:
        """Takes the node in under `name`, or the next free name made from `base`. `naming` is how to give another."""
        where = user_line()
        guard = self.levels[-1].guard
        if guard is not None:
            node["when"] = [guard]
            needs.add(guard["guard"])
        key = self._free_name(base) if name is None else name
        if len(key) > MOST_LETTERS:  # its parts were checked where they were written, but not with the number
            checked_name(key, "a node", str(where))
        if key == INPUT_NAME or key in self._nodes:
            first = "It means the run's own input." if key == INPUT_NAME else f"The first is at {self._where[key]}."
            problem = f"a node of {self.workflow} cannot be named {key!r}, which is taken"
            raise PlanError(problem, f"{first} Give this one another name: {naming}.", str(where))
        if len(self._nodes) >= MOST_NODES:
            raise PlanError(
                f"workflow {self.workflow} has more than {MOST_NODES} nodes",
                "Map over a list, which is one node however long the list is, or nest a part as a workflow of its own.",
                str(where),
            )
        self._nodes[key], self._needs[key], self._where[key] = node, needs, where
        return Ref(self, key, (), result, where)

    def node_of(self, ref: Ref) -> Mapping[str, Any]:
        """What was added for a Ref; {} for the run's input and for joins."""
        return self._nodes.get(ref._node, {})

    def _free_name(self, base: str) -> str:
        self._counts[base] = count = self._counts.get(base, 0) + 1
        return base if count == 1 else f"{base}-{count}"

    def _after(self, refs: Sequence[object], needs: set[str], name: str) -> list[dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for ref in refs:
            if type(ref) is not Ref or INPUT_NAME in self.own(ref)._nodes():
                raise PlanTypeError(f"{name} takes results of earlier nodes, not {short(ref)}", "", str(user_line()))
            needs.update(ref._nodes())
            # Of no consequence which part of a result is named: it is there with the whole.
            symbol = {ref._node: [{"ref": part._node} for part in ref._of]} if ref._of else {"ref": ref._node}
            found[canonical(symbol)] = symbol
        return [found[text] for text in sorted(found)]

    # -- values -------------------------------------------------------------------------------------------------

    def _template(self, value: Any, expected: Any, needs: set[str], at: str, where: str = "") -> Any:
        """JSON with refs in it as {"$": ...}. What holds no ref is a constant, written by the type expected there."""
        kind: Any = type(value)
        if kind is Ref or kind is Expr:
            self.own(value)
            wrong = shapes.misfit(value._type, expected)
            if wrong:
                raise PlanTypeError(f"{at}: {value!r} does not fit", f"{wrong}.", where or str(user_line()))
            needs.update(name for name in value._nodes() if name != INPUT_NAME)
            return {"$": value._json()}
        if kind is Zip:
            problem = f"{at}: {value!r} is only for the items of a map"
            raise PlanTypeError(problem, "Use it as step.map(zip_refs(a, b)).", where or str(user_line()))
        if kind is Made:
            return self._made(value, expected, needs, at, where)
        if not holds_ref(value):
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

    def _made(self, value: Made, expected: Any, needs: set[str], at: str, where: str) -> Any:
        """The object that build() describes, its fields by their own types."""
        self.own(value)
        wrong = shapes.misfit(value._type, expected)
        if wrong:
            raise PlanTypeError(f"{at}: {value!r} does not fit", f"{wrong}.", where or str(user_line()))
        known = shapes.fields_of(value._type) or {}
        at = f"build({shapes.name_of(value._type)})"
        made = {
            known[name][0]: self._template(part, known[name][1], needs, f"{at}.{name}", str(value._where))
            for name, part in value._fields.items()
        }
        return {"$": {"object": made}} if "$" in made else made

    def _items(self, value: Any, expected: Any, needs: set[str], at: str) -> Any:
        """The list a map runs over, as a template; every item of it has to be of the type expected."""
        kind: Any = type(value)
        if kind is Ref:
            self.own(value)
            self._item_fits(element_of(value, at), expected, f"{at}: the items of {value!r} do not fit")
            return self._template(value, shapes.MISSING, needs, at)
        if kind is Zip:
            self.own(value)
            lists = value._lists
            made: Any = tuple[tuple(_element(each) for each in lists)]  # type: ignore[misc]
            self._item_fits(made, expected, f"{at}: the items of {value!r} do not fit")
            parts: list[Any] = []
            for i, each in enumerate(lists):
                type_ = _item(expected, i)
                what = f"{at}: list {i + 1} of zip_refs()"
                if type(each) is Ref:
                    self._item_fits(_element(each), type_, f"{what} does not fit")
                    parts.append(self._template(each, shapes.MISSING, needs, at)["$"])
                elif holds_ref(each):
                    advice = (
                        "Make the list in a step, or give the refs to .map() as tuples: step.map([(a, b), (c, d)])."
                    )
                    raise PlanTypeError(f"{what} has refs in it", advice, str(user_line()))
                else:
                    parts.append({"const": self._json_of(list(each), _LIST[_known(type_)], what, "")})
            return {"$": {"zip": parts}}
        if kind not in _SEQUENCES:
            raise PlanTypeError(f"{at} runs over a list, not {value!r}", not_a_list(value), str(user_line()))
        return self._template(list(value), _LIST[_known(expected)], needs, at)

    def _item_fits(self, made: Any, expected: Any, problem: str) -> None:
        wrong = shapes.misfit(made, expected)
        if wrong:
            raise PlanTypeError(problem, f"{wrong}.", str(user_line()))

    def _constant(self, value: Any, expected: Any, at: str, where: str) -> Any:
        return self._quoted(self._json_of(value, expected, at, where))

    def _json_of(self, value: Any, expected: Any, at: str, where: str) -> Any:
        try:
            return codec(_known(expected)).constant(value)
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
        for line in self.unopened.values():
            raise PlanError("a when() or otherwise() was made and not entered", "Write: with when(...):", str(line))
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
        lines = {name: line.place for name, line in self._where.items()}
        plan = Plan(body, {**about, "where": lines, "conditions": self._conditions})
        check_branches(plan, self._where, self.overlaps, where)
        return plan


_LIST: Final[Any] = list
"""Subscripted with types that are only known when a workflow is built."""

building: Final[ContextVar[Builder | None]] = ContextVar("composer_building", default=None)


def current(what: str, instead: str) -> Builder:
    """The builder that runs. Outside of one raises a PlanError that says what to do `instead`."""
    builder = building.get()
    if builder is None:
        raise PlanError(f"{what} was called outside of a @workflow function", instead, str(user_line()))
    return builder


def element_of(ref: Ref, what: str) -> Any:
    """Type of the items of a list that is still to come; MISSING when not known. Raises PlanTypeError for no list."""
    try:
        return shapes.element(ref._type)
    except shapes.NoSuchField as error:
        problem = f"{what} runs over a list, not {ref!r}: {error.reason}"
        raise PlanTypeError(problem, _why_no_list(ref._type), str(user_line())) from None


def not_a_list(value: object) -> str:
    """Advice for who maps over a constant that is no list."""
    if isinstance(value, (set, frozenset)):
        return "A set has no order, and the plan needs one: sorted(...)."
    return _why_no_list(type(value))


def _why_no_list(tp: Any) -> str:
    kinds = shapes.kinds_of(tp)
    if kinds == frozenset(("text",)):
        return "Text is one value: take it apart inside a step that returns a list."
    if kinds == frozenset(("an object",)) and shapes.fields_of(tp) is None:
        return "An object has no order: make the list inside a step, such as list(found.values())."
    return "For one item call the step: step(item)."


def _element(items: Any) -> Any:
    """Type of the items of one list of a zip; it was checked to be one."""
    return _known(shapes.element(items._type)) if type(items) is Ref else Any


def _known(type_: Any) -> Any:
    return Any if type_ is shapes.MISSING else type_


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


def holds_ref(value: Any) -> bool:
    """Whether a value is a symbol, or has one in it."""
    kind = type(value)
    if kind in _PLAIN:
        return False
    if issubclass(kind, Symbol):
        return True
    if kind in _SEQUENCES:
        return any(map(holds_ref, value))
    if kind is dict:
        return any(map(holds_ref, value.values()))
    if issubclass(kind, BaseModel):
        return any(map(holds_ref, value.__dict__.values()))
    if dataclasses.is_dataclass(kind):
        return any(holds_ref(getattr(value, field.name, None)) for field in dataclasses.fields(kind))
    return False
