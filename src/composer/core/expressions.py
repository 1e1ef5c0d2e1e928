"""Values out of templates: symbols filled in, paths followed. JSON text in, JSON text out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from composer.core.plan import INPUT, INPUT_NAME, Plan


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


def render(plan: Plan, template: Any, value_of: Callable[[int], str]) -> str:
    """JSON text of a template. `value_of` gives the stored text of a node's output (INPUT: the run's input).

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
    name: str = symbol["ref"]
    text = value_of(INPUT if name == INPUT_NAME else plan.index[name])
    path = symbol.get("path")
    if not path:
        return text
    return json.dumps(select(json.loads(text), path, name), ensure_ascii=False)
