"""Values out of templates and conditions: symbols filled in, joins decided, paths followed. JSON text in, JSON text out.

What reads a node has been found ready by readiness.py before; so a join finds here what it needs, and says so in an
error where it does not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from composer.core.conditions import COMPARISONS, NotOfKind, compare, contains, shown, size
from composer.core.outcomes import outcome_state, outcome_text
from composer.core.plan import INPUT, INPUT_NAME, Plan, Read, node_read
from composer.core.states import NodeState
from composer.core.values import ABSENT, Values

Path = Sequence[str | int]


class Unreadable(Exception):
    """A path leads nowhere in the value it is asked of."""

    def __init__(self, node: str, path: Path, why: str) -> None:
        super().__init__(node, tuple(path), why)
        self.node, self.path, self.why = node, path, why

    def __str__(self) -> str:
        steps = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in self.path)
        return f"{self.node}{steps}: {self.why}"


class Unevaluable(Unreadable):
    """A value is there and is not what the condition takes it for. `value` is its JSON, shortened; `kind` what it should be."""

    def __init__(self, node: str, path: Path, why: str, value: str, kind: str) -> None:
        super().__init__(node, path, why)
        self.args = (node, tuple(path), why, value, kind)
        self.value, self.kind = value, kind


def select(value: Any, path: Path, node: str) -> Any:
    """The part of a decoded JSON value that `path` names. Raises Unreadable."""
    items: list[Any] = []
    for depth, key in enumerate(path):
        try:
            if isinstance(value, dict):
                value = cast("dict[str, Any]", value)[str(key)]
            elif isinstance(value, list) and isinstance(key, int):
                items = value
                value = items[key]
            else:
                kind = "null" if value is None else type(value).__name__
                raise Unreadable(node, path[: depth + 1], f"the value there is {kind}, which has no parts")
        except KeyError:
            known = sorted(cast("dict[str, Any]", value))[:8]
            raise Unreadable(node, path[: depth + 1], f"there is no such key; it has {known}") from None
        except IndexError:
            raise Unreadable(node, path[: depth + 1], f"the list has {len(items)} items") from None
    return value


class NotAList(Exception):
    """A value that was to be taken apart is no list; the text says what it is."""


_DECODE: Final = json.JSONDecoder().raw_decode
_SPACE: Final = frozenset(" \t\n\r")
_KINDS: Final = {dict: "an object", str: "text", bool: "a truth value", type(None): "null"}


def elements(text: str) -> list[str]:
    """The elements of a JSON list, each as the text it is written as: nothing is rounded or spelled anew. Raises NotAList."""
    at = _skip(text, 0)
    if text[at : at + 1] != "[":
        raise NotAList(_KINDS.get(type(json.loads(text)), "a number"))
    at = _skip(text, at + 1)
    found: list[str] = []
    if text[at] == "]":
        return found
    while True:
        _, end = _DECODE(text, at)
        found.append(text[at:end])
        at = _skip(text, end)
        if text[at] == "]":
            return found
        at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def template_shown(template: Any) -> str:
    """A template as people read it: `order.items` for a symbol, "a constant" for a value."""
    symbol: dict[str, Any] = template.get("$", {}) if isinstance(template, dict) else {}
    if "ref" in symbol:
        path = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in symbol.get("path", ()))
        return f"{symbol['ref']}{path}"
    if "zip" in symbol:
        return f"zip_refs({', '.join(template_shown({'$': part}) for part in symbol['zip'])})"
    return "a constant"


def render(plan: Plan, template: Any, values: Values) -> str:
    """JSON text of a template.

    A value that is passed on whole is spliced in as the text it was stored as: never parsed, never rounded.
    Raises Unreadable; KeyError with the node's place when a text that is needed is not at hand.
    """
    return _Reader(plan, values).text(template)


def evaluate(plan: Plan, template: Any, values: Values) -> bool:
    """The answer of a condition. Raises Unreadable or Unevaluable, naming node, path, value and kind; KeyError as render()."""
    reader = _Reader(plan, values)
    try:
        if isinstance(template, dict) and "$" in template:
            return reader.truth(template["$"])
    except RecursionError:
        raise Unreadable("the condition", (), "a value is nested too deeply") from None
    raise Unevaluable("the condition", (), "it is no expression", shown(template), "bool")


class _Reader:
    """One reading of one template: a text that several paths lead into is decoded once."""

    __slots__ = ("_decoded", "_plan", "_values")

    def __init__(self, plan: Plan, values: Values) -> None:
        self._plan, self._values = plan, values
        self._decoded: dict[int, Any] = {}

    # -- as text -----------------------------------------------------------------------------------------
    def text(self, template: Any) -> str:
        """JSON text of a template."""
        if isinstance(template, dict):
            if "$" in template:
                return self._symbol(template["$"])
            return self._object(cast("dict[str, Any]", template))
        if isinstance(template, list):
            items: list[Any] = template
            return "[" + ",".join(map(self.text, items)) + "]"
        return _json(template)

    def _object(self, fields: Mapping[str, Any]) -> str:
        return "{" + ",".join(f"{json.dumps(key)}:{self.text(value)}" for key, value in fields.items()) + "}"

    def _symbol(self, symbol: Mapping[str, Any]) -> str:
        if "object" in symbol:
            return self._object(symbol["object"])
        whole = self._whole(symbol)
        return _json(self.value(symbol)) if whole is None else whole

    def _whole(self, symbol: Mapping[str, Any]) -> str | None:
        """The stored text of what a symbol stands for; None when it is a part of one, or made here."""
        if "zip" in symbol:
            return self._zip(symbol["zip"])
        if "settled" in symbol or "settled_each" in symbol:
            if symbol.get("path"):
                return self._whole_value(symbol)
            return self._outcome(symbol) if "settled" in symbol else self._each(symbol)
        place = self._place(symbol)
        return self._stored(*place) if place is not None and not place[1] else None

    def _whole_value(self, symbol: Mapping[str, Any]) -> str | None:
        """settled(x).value, not taken apart."""
        if "settled" in symbol and list(symbol["path"]) == ["value"]:
            part = symbol["settled"][0]
            if self._state(part) == "completed" and not part.get("path"):
                return self._stored(*self._read(part))
        return None

    # -- as a value --------------------------------------------------------------------------------------
    def value(self, symbol: Mapping[str, Any]) -> Any:
        """What a symbol stands for, decoded."""
        if "op" in symbol:
            return self._operation(symbol)
        if "const" in symbol:
            return symbol["const"]
        path = symbol.get("path", ())
        if "settled" in symbol:
            part = symbol["settled"][0]
            if list(path) == ["state"]:
                return self._state(part)
            if path and path[0] == "value" and self._state(part) == "completed":
                return self._at(*self._read(part, path[1:]))
            name = f"settled({part['ref']})"
            return select(_decoded(self._outcome(symbol), name), path, name)
        if "settled_each" in symbol:
            name = f"settled_each({symbol['settled_each'][0]['ref']})"
            return select(_decoded(self._each(symbol), name), path, name)
        place = self._place(symbol)
        return None if place is None else self._at(*place)

    def truth(self, symbol: Mapping[str, Any]) -> bool:
        """What a symbol stands for, which has to be true or false."""
        value = self.value(symbol)
        if not isinstance(value, bool):
            raise _unevaluable(symbol, NotOfKind(value, "bool", "true or false"))
        return value

    def _operation(self, symbol: Mapping[str, Any]) -> Any:
        op: str = symbol["op"]
        parts: Sequence[Mapping[str, Any]] = symbol["args"]
        match op:
            case "and":
                return all(self.truth(part) for part in parts)
            case "or":
                return any(self.truth(part) for part in parts)
            case "not":
                return not self.truth(parts[0])
            case "is_none":
                return self.value(parts[0]) is None
            case _:
                pass
        values = [self.value(part) for part in parts]
        kind = symbol.get("as", "json")
        try:
            if op == "size":
                return size(values[0])
            if op == "contains":
                return contains(values[0], values[1], kind)
            if op in COMPARISONS:
                return compare(op, values[0], values[1], kind)
        except NotOfKind as error:
            second = len(values) > 1 and error.value is values[1] and error.value is not values[0]
            raise _unevaluable(parts[second], error) from None
        raise Unevaluable(f"{op}()", (), "this release knows no such operation", shown(values[:1]), kind)

    # -- where it is -------------------------------------------------------------------------------------
    def _index(self, part: Mapping[str, Any]) -> int:
        name: str = part["ref"]
        return INPUT if name == INPUT_NAME else self._plan.index[name]

    def _place(self, symbol: Mapping[str, Any]) -> tuple[int, Path] | None:
        """Read code and path of what a ref or a join stands for; None for null, and for what is no place in a stored text."""
        path: Path = symbol.get("path", ())
        if "ref" in symbol:
            return self._read(symbol)
        if "maybe" in symbol:
            (part,) = symbol["maybe"]
            index = self._index(part)
            if self._values.letter(index) == NodeState.SKIPPED:
                return None
            return self._read(part, path)
        if "either" in symbol:
            for part in symbol["either"]:
                index = self._index(part)
                if self._values.letter(index) == NodeState.COMPLETED:
                    return self._read(part, path)
            names = ", ".join(part["ref"] for part in symbol["either"])
            raise Unreadable(f"either({names})", path, "no branch was taken")
        return None

    def _read(self, ref: Mapping[str, Any], more: Path = ()) -> tuple[int, Path]:
        """The read code of a ref, and the path that is left to go in what it gives."""
        code = self._plan.read_code(ref)
        path: Path = (*ref.get("path", ()), *more)
        return code, path[1:] if node_read(code)[1] is Read.PART else path

    def _stored(self, code: int, path: Path = ()) -> str:
        text = self._values.outputs[code]
        if text == ABSENT:
            node, _, at = node_read(code)
            raise Unreadable(self._name(node), (at, *path), "the list has no such item")
        return text

    def _at(self, code: int, path: Path) -> Any:
        name = self._name(node_read(code)[0])
        if code not in self._decoded:
            self._decoded[code] = _decoded(self._stored(code, path), name)
        return select(self._decoded[code], path, name)

    def _zip(self, parts: Sequence[Mapping[str, Any]]) -> str:
        lists: list[list[str]] = []
        for part in parts:
            try:
                lists.append(elements(self._symbol(part)))
            except NotAList as error:
                raise Unreadable(template_shown({"$": part}), (), f"it is {error}, not a list") from None
        lengths = [len(each) for each in lists]
        if len(set(lengths)) > 1:
            named = ", ".join(f"{template_shown({'$': part})} has {n}" for part, n in zip(parts, lengths, strict=True))
            raise Unreadable("zip_refs", (), f"the lists differ in length: {named}")
        return "[" + ",".join(f"[{','.join(row)}]" for row in zip(*lists, strict=True)) + "]"

    def _name(self, index: int) -> str:
        return INPUT_NAME if index == INPUT else self._plan.nodes[index].name

    # -- outcomes ----------------------------------------------------------------------------------------
    def _state(self, part: Mapping[str, Any]) -> str:
        index = self._index(part)
        letter = self._values.letter(index)
        if index in self._values.timed_out and letter == NodeState.COMPLETED:
            return "timed-out"
        try:
            return outcome_state(letter, self._values.errors[index] if letter == NodeState.FAILED else None)
        except KeyError:
            if letter == NodeState.FAILED:
                raise
            raise Unreadable(f"settled({part['ref']})", (), "it has not settled") from None

    def _outcome(self, symbol: Mapping[str, Any]) -> str:
        (part,) = symbol["settled"]
        index, state = self._index(part), self._state(part)
        if self._values.letter(index) == NodeState.COMPLETED:
            code, path = self._read(part)
            return outcome_text(state, _json(self._at(code, path)) if path else self._stored(code))
        failed = self._values.letter(index) == NodeState.FAILED
        return outcome_text(state, None, self._values.errors[index] if failed else None)

    def _each(self, symbol: Mapping[str, Any]) -> str:
        """An Outcome an item."""
        return self._values.outputs[self._plan.read_code(symbol["settled_each"][0], joined="settled_each")]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _decoded(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(name, (), f"its JSON cannot be read: {error}") from None


def _unevaluable(symbol: Mapping[str, Any], error: NotOfKind) -> Unevaluable:
    node, path = _named(symbol)
    return Unevaluable(node, path, str(error), error.shown, error.kind)


def _named(symbol: Mapping[str, Any]) -> tuple[str, Path]:
    """What an error calls an operand."""
    path: Path = symbol.get("path", ())
    if "ref" in symbol:
        return symbol["ref"], path
    if "op" in symbol:
        return f"{symbol['op']}({', '.join(map(_shown_name, symbol['args']))})", ()
    for word in ("maybe", "either", "settled", "settled_each"):
        if word in symbol:
            return f"{word}({', '.join(map(_shown_name, symbol[word]))})", path
    return "the constant", ()


def _shown_name(symbol: Mapping[str, Any]) -> str:
    if "const" in symbol:
        return shown(symbol["const"])
    node, path = _named(symbol)
    return node + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path)
