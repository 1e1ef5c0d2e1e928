"""Values out of templates: symbols filled in, paths followed. JSON text in, JSON text out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from composer.core.plan import Plan, Read, node_read

ABSENT: Final = ""
"""Stands for one item of a map's list that the list turned out not to have. Never a JSON text."""


class Unreadable(Exception):
    """A path leads nowhere in the value it is asked of."""

    def __init__(self, node: str, path: Sequence[str | int], why: str) -> None:
        super().__init__(node, tuple(path), why)
        self.node, self.path, self.why = node, path, why

    def __str__(self) -> str:
        steps = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in self.path)
        return f"{self.node}{steps}: {self.why}"


def select(value: Any, path: Sequence[str | int], node: str) -> Any:
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


def shown(template: Any) -> str:
    """A template as people read it: `order.items` for a symbol, "a constant" for a value."""
    symbol: dict[str, Any] = template.get("$", {}) if isinstance(template, dict) else {}
    if "ref" in symbol:
        path = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in symbol.get("path", ()))
        return f"{symbol['ref']}{path}"
    if "zip" in symbol:
        return f"zip_refs({', '.join(shown({'$': part}) for part in symbol['zip'])})"
    return "a constant"


def _zip(plan: Plan, parts: Sequence[Mapping[str, Any]], value_of: Callable[[int], str]) -> str:
    lists: list[list[str]] = []
    for part in parts:
        try:
            lists.append(elements(_symbol(plan, part, value_of)))
        except NotAList as error:
            raise Unreadable(shown({"$": part}), (), f"it is {error}, not a list") from None
    lengths = [len(each) for each in lists]
    if len(set(lengths)) > 1:
        named = ", ".join(f"{shown({'$': part})} has {n}" for part, n in zip(parts, lengths, strict=True))
        raise Unreadable("zip_refs", (), f"the lists differ in length: {named}")
    return "[" + ",".join(f"[{','.join(row)}]" for row in zip(*lists, strict=True)) + "]"


def render(plan: Plan, template: Any, value_of: Callable[[int], str]) -> str:
    """JSON text of a template. `value_of` gives the stored text of a read code (core.plan).

    A value that is passed on whole is spliced in as the text it was stored as: never parsed, never rounded.
    Raises Unreadable.
    """
    if isinstance(template, dict):
        if "$" in template:
            return _symbol(plan, template["$"], value_of)
        return _object(plan, template, value_of)
    if isinstance(template, list):
        return "[" + ",".join(render(plan, item, value_of) for item in template) + "]"
    return json.dumps(template, ensure_ascii=False)


def _object(plan: Plan, fields: Mapping[str, Any], value_of: Callable[[int], str]) -> str:
    return "{" + ",".join(f"{json.dumps(k)}:{render(plan, v, value_of)}" for k, v in fields.items()) + "}"


def _symbol(plan: Plan, symbol: Mapping[str, Any], value_of: Callable[[int], str]) -> str:
    if "const" in symbol:
        return json.dumps(symbol["const"], ensure_ascii=False)
    if "object" in symbol:
        return _object(plan, symbol["object"], value_of)
    if "zip" in symbol:
        return _zip(plan, symbol["zip"], value_of)
    if "settled_each" in symbol:
        return value_of(plan.read_code(symbol["settled_each"][0], joined="settled_each"))
    name: str = symbol["ref"]
    path = symbol.get("path")
    code = plan.read_code(symbol)
    what = node_read(code)[1]
    text = value_of(code)
    if path and what is Read.PART:
        if text == ABSENT:
            raise Unreadable(name, path[:1], "the list has no such item")
        path = path[1:]
    if not path:
        return text
    return json.dumps(select(json.loads(text), path, name), ensure_ascii=False)
