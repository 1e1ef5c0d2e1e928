"""Plan: a workflow's static DAG as a value. Equal meaning, equal text, equal hash.

A plan is JSON (`body`), so that a run can keep the one it started with for life and any process can read it.
What the engine asks of it at every transition (who needs whom, what a node reads) is worked out once, when the
plan is read, and lies beside the body as tuples of node indices.

The shape hash covers nodes, wires, guards, steps and parameters; the options hash covers retries, timeouts,
queues and the like. A run can adopt a plan of the same shape with other options; never another shape.

Wire format: in arguments a symbol is {"$": symbol}; user data that has a key "$" is quoted as
{"$": {"const": ...}} or {"$": {"object": {...}}}. A symbol is {"ref": node, "path": [...]} or a join
{"either" | "maybe" | "settled" | "settled_each": [symbols], "path": [...]} or an expression
{"op": ..., "args": [...], "as": kind} or {"const": ...}. The node called "input" is the run's own input. A map's list may
also be {"zip": [symbols]}.

A guard is a node of kind "guard" with one argument, "condition"; what hangs on its answer says so with
"when": [{"guard": name, "is": true or false}], and all of them have to hold.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, Literal

from composer.core.retries import NO_RETRY, Retry
from composer.errors import PlanError

INPUT: Final = -1
"""Index of the run itself: its task row holds the run's input, output and error."""
INPUT_NAME: Final = "input"
MOST_NODES: Final = 2_000
"""The letters of a run are one text, rewritten at every transition; beyond 2 kB PostgreSQL stores it elsewhere every time."""
MOST_CRASHES: Final = 3


class Need(StrEnum):
    """How a node depends on others: a row of the join table in readiness.py."""

    PLAIN = "plain"
    AFTER = "after"
    MAYBE = "maybe"
    EITHER = "either"
    SETTLED = "settled"
    RACE = "race"
    GUARD_YES = "guard-yes"
    GUARD_NO = "guard-no"


@dataclass(frozen=True, slots=True)
class Term:
    """One dependency of a node: what kind, and on which nodes (one, but for EITHER)."""

    need: Need
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """How a node runs. Durations in seconds. The defaults are left out of the plan's text, so that a new option
    in a later release changes no hash."""

    retries: Retry = NO_RETRY
    timeout: float | None = None
    heartbeat_timeout: float | None = None
    heartbeat: Literal["auto", "manual"] = "auto"
    queue: str = "default"
    priority: int = 0
    on_crash: Literal["retry", "fail"] = "retry"
    max_crashes: int = MOST_CRASHES
    max_concurrency: int | None = None
    """Items of a map that may run at once; None is no limit."""
    tolerate: int | str = 0
    """Failed items that do not fail a map: a number, or a share such as "5%"."""
    concurrency: int | None = None
    rate_limit: str | None = None
    compensate_on: Literal["completed", "started"] = "completed"

    def as_json(self) -> dict[str, Any]:
        """Only what differs from the defaults."""
        out: dict[str, Any] = {}
        for name in self.__slots__:
            value = getattr(self, name)
            if value != getattr(_DEFAULTS, name):
                out[name] = value.as_json() if isinstance(value, Retry) else value
        return out

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> NodeOptions:
        """Options as a plan holds them. What this release does not know is passed over: a newer one wrote it."""
        known = {name: value[name] for name in cls.__slots__ if name in value}
        if "retries" in known:
            known["retries"] = Retry.from_json(known["retries"])
        return cls(**known)


_DEFAULTS: Final = NodeOptions()


@dataclass(frozen=True, slots=True)
class Node:
    """A step's place in a plan. `args` is a template: JSON with symbols in it, by parameter name."""

    index: int
    name: str
    kind: str
    step: str
    args: Mapping[str, Any]
    options: NodeOptions
    undo: Literal["result", "all"] | None
    terms: tuple[Term, ...]
    """What has to settle first, and what follows from how it settled."""
    needs: tuple[int, ...]
    """Every node named in `terms`, each once."""
    users: tuple[int, ...]
    """The nodes that have this one in their `needs`."""
    reads: tuple[int, ...]
    """What the arguments read, as read codes (see `read_code`)."""
    reads_settled: tuple[int, ...] = ()
    """Nodes depended on through settled(): where they failed, their errors are read."""
    over: str = ""
    """A map's parameter that takes one item; its argument is the list."""
    list_reads: tuple[int, ...] = ()
    """What a map's list reads, as read codes."""
    event: str = ""
    """The event that a wait is for."""
    wait_timeout: float | None = None
    """Seconds a wait lasts at most."""
    on_timeout: Mapping[str, Any] | None = None
    """{"const": value}, when there is an answer that stands in for the event."""
    of: tuple[int, ...] = ()
    """The waits and sleeps a race is between."""


@dataclass(frozen=True, eq=False)
class Plan:
    """`body` is hashed and stored; `about` (docstrings, lines) is only shown. Read back by plan_from_text()."""

    body: Mapping[str, Any]
    about: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @cached_property
    def workflow(self) -> str:
        """Name of the workflow."""
        name: str = self.body["workflow"]
        return name

    @cached_property
    def timeout(self) -> float | None:
        """Seconds a run may take from its real start; None is no limit."""
        value: float | None = self.body.get("options", {}).get("timeout")
        return value

    @cached_property
    def fail_fast(self) -> bool:
        """Whether the first failure stops the rest at once."""
        return bool(self.body.get("options", {}).get("fail_fast", False))

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Node name to its place in `nodes`."""
        return {node["name"]: i for i, node in enumerate(self.body["nodes"])}

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes in topological order, ties by name: the letters of a run are in this order."""
        terms = [self._terms_of(node) for node in self.body["nodes"]]
        needs = [tuple(dict.fromkeys(n for term in each for n in term.nodes)) for each in terms]
        users: list[list[int]] = [[] for _ in terms]
        for i, each in enumerate(needs):
            for n in each:
                users[n].append(i)
        return tuple(
            Node(
                index=i,
                name=node["name"],
                kind=node["kind"],
                step=node.get("step", ""),
                args=node.get("args", {}),
                options=NodeOptions.from_json(node.get("options", {})),
                undo=node.get("undo"),
                terms=terms[i],
                needs=needs[i],
                users=tuple(users[i]),
                reads=self._reads([v for k, v in node.get("args", {}).items() if k != node.get("over")]),
                reads_settled=_through_settled(terms[i]),
                over=node.get("over", ""),
                event=node.get("event", ""),
                wait_timeout=node.get("timeout"),
                on_timeout=node.get("on_timeout"),
                of=tuple(self.index[each["ref"]] for each in node.get("of", ())),
                list_reads=self._reads(node["args"][node["over"]]) if "over" in node else (),
            )
            for i, node in enumerate(self.body["nodes"])
        )

    @cached_property
    def roots(self) -> tuple[int, ...]:
        """Nodes that need no other: they start with the run."""
        return tuple(node.index for node in self.nodes if not node.needs)

    @cached_property
    def output(self) -> Any:
        """Template of the run's output."""
        return self.body["output"]

    @cached_property
    def output_terms(self) -> tuple[Term, ...]:
        """What the output depends on."""
        return tuple(self._terms_in(self.output))

    @cached_property
    def output_reads(self) -> tuple[int, ...]:
        """What the run's output reads, as read codes."""
        return self._reads(self.output)

    @cached_property
    def output_reads_settled(self) -> tuple[int, ...]:
        """Nodes the run's output depends on through settled()."""
        return _through_settled(self.output_terms)

    @cached_property
    def handleable(self) -> frozenset[int]:
        """Nodes that somebody reads through settled(): whether their failure fails the run depends on who ran."""
        return frozenset(n for node in self.nodes for n in _through_settled(node.terms)) | {*self.output_reads_settled}

    @cached_property
    def events(self) -> Mapping[str, tuple[int, ...]]:
        """The events that runs wait for, and the nodes that do."""
        found: dict[str, list[int]] = {}
        for node in self.nodes:
            if node.kind == "wait":
                found.setdefault(node.event, []).append(node.index)
        return {name: tuple(nodes) for name, nodes in found.items()}

    def is_read(self, index: int) -> bool:
        """Whether anybody reads the node's output."""
        return index in self.output_reads or any(
            index in self.nodes[user].reads or index in self.nodes[user].of for user in self.nodes[index].users
        )

    @cached_property
    def read_each(self) -> frozenset[int]:
        """Maps that something reads item by item, through settled_each: no failed item fails them."""
        codes = [code for node in self.nodes for code in (*node.reads, *node.list_reads)] + list(self.output_reads)
        return frozenset(node for node, what, _ in map(node_read, codes) if what is Read.OUTCOMES)

    @cached_property
    def text(self) -> str:
        """The body as canonical JSON: what is stored."""
        return canonical(self.body)

    @cached_property
    def shape(self) -> str:
        """Digest of everything but the options: what a run can never change."""
        body = {k: v for k, v in self.body.items() if k != "options"}
        body["nodes"] = [{k: v for k, v in node.items() if k != "options"} for node in self.body["nodes"]]
        return _digest(canonical(body))

    @cached_property
    def options_hash(self) -> str:
        """Digest of the options: retries, timeouts, queues, priorities."""
        options = [self.body.get("options", {}), *(node.get("options", {}) for node in self.body["nodes"])]
        return _digest(canonical(options))

    def _terms_of(self, node: Mapping[str, Any]) -> tuple[Term, ...]:
        terms = [*self._terms_in(node.get("args", {}))]
        for symbol in node.get("after", ()):
            if "ref" in symbol:
                terms.append(Term(Need.AFTER, (self.index[symbol["ref"]],)))
            else:
                terms += self._terms_of_symbol(symbol)
        if "of" in node:
            terms.append(Term(Need.RACE, tuple(self.index[each["ref"]] for each in node["of"])))
        for guard in node.get("when", ()):
            terms.append(Term(Need.GUARD_YES if guard["is"] else Need.GUARD_NO, (self.index[guard["guard"]],)))
        return tuple(dict.fromkeys(terms))

    def _terms_in(self, template: Any) -> Iterator[Term]:
        for symbol in symbols(template):
            yield from self._terms_of_symbol(symbol)

    def _terms_of_symbol(self, symbol: Mapping[str, Any]) -> Iterator[Term]:
        if "ref" in symbol:
            if symbol["ref"] != INPUT_NAME:
                yield Term(Need.PLAIN, (self.index[symbol["ref"]],))
        elif "op" in symbol or "zip" in symbol:
            for part in symbol.get("zip") or symbol["args"]:
                yield from self._terms_of_symbol(part)
        elif "const" not in symbol:
            for word, need in _JOINS.items():
                if word in symbol:
                    names = [part["ref"] for part in symbol[word]]
                    nodes = tuple(self.index[name] for name in names if name != INPUT_NAME)
                    if need is Need.EITHER and len(nodes) < len(names):
                        # The input is always there: a branch is taken whatever becomes of the others.
                        need = Need.MAYBE
                    if nodes:
                        yield Term(need, nodes)

    def _reads(self, template: Any) -> tuple[int, ...]:
        return tuple(dict.fromkeys(code for symbol in symbols(template) for code in self._codes(symbol)))

    def _codes(self, symbol: Mapping[str, Any]) -> Iterator[int]:
        if "ref" in symbol:
            yield self.read_code(symbol)
        for word in _JOINS:
            for part in symbol.get(word, ()):
                yield self.read_code(part, joined=word)
        for part in symbol.get("zip", symbol.get("args", ())):
            yield from self._codes(part)

    def read_code(self, ref: Mapping[str, Any], *, joined: str = "") -> int:
        """What a store is asked for when `ref` is read: see `node_read`. `joined` is the join that it stands in."""
        if ref["ref"] == INPUT_NAME:
            return INPUT
        index = self.index[ref["ref"]]
        if self.body["nodes"][index]["kind"] != "map":
            return index
        if joined == "settled_each":
            return outcomes_code(index)
        path = ref.get("path")
        return part_code(index, path[0]) if path and isinstance(path[0], int) else list_code(index)


def _through_settled(terms: Sequence[Term]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(n for term in terms if term.need is Need.SETTLED for n in term.nodes))


# A map that is read through settled_each does not fail for its items; for want of a list it fails like any node.
_JOINS: Final = {"either": Need.EITHER, "maybe": Need.MAYBE, "settled": Need.SETTLED, "settled_each": Need.PLAIN}


# -- read codes: what a task reads, as one number a value, so that a row of numbers names all of it ------------
# n >= 0 the output of node n; INPUT the run's input; below, what a map makes of its items' outputs: all of them in a
# list, all of them as outcomes, or one. sql/_read.sql knows these numbers too, and a contract test compares the two.

_PARTS: Final = 10_000
_SPAN: Final = 200_001
"""Indices -100,000 to 100,000."""


def list_code(node: int) -> int:
    """All outputs of a map, in a list."""
    return -2 - 2 * node


def outcomes_code(node: int) -> int:
    """One outcome an item of a map, in a list."""
    return -3 - 2 * node


def part_code(node: int, index: int) -> int:
    """One element of a map's list; an index past all maps reads the whole list, and then says that it is not there."""
    half = _SPAN // 2
    return -_PARTS - node * _SPAN - (index + half) if -half <= index <= half else list_code(node)


class Read(StrEnum):
    """What a read code asks for."""

    OUTPUT = "output"
    LIST = "list"
    OUTCOMES = "outcomes"
    PART = "part"


def node_read(code: int) -> tuple[int, Read, int]:
    """A read code taken apart: the node (INPUT for the run's input), what is read of it, and for a PART its index."""
    if code >= INPUT:
        return code, Read.OUTPUT, 0
    if code > -_PARTS:
        node, kind = divmod(-2 - code, 2)
        return node, Read.OUTCOMES if kind else Read.LIST, 0
    node, at = divmod(-code - _PARTS, _SPAN)
    return node, Read.PART, at - _SPAN // 2


def node_of(code: int) -> int:
    """The node that a read code reads; INPUT for the run's input."""
    return code if code >= INPUT else node_read(code)[0]


def symbols(template: Any) -> Iterator[Mapping[str, Any]]:
    """Every symbol of a template, in the order it is written."""
    if isinstance(template, dict):
        if "$" in template:
            symbol = template["$"]
            if "object" in symbol:
                for value in symbol["object"].values():
                    yield from symbols(value)
            elif "const" not in symbol:
                yield symbol
        else:
            for value in template.values():
                yield from symbols(value)
    elif isinstance(template, list):
        for value in template:
            yield from symbols(value)


def names_in(symbol: Mapping[str, Any]) -> Iterator[str]:
    """Names of the nodes a symbol reads; "input" for the run's input."""
    if "ref" in symbol:
        yield symbol["ref"]
    for word in _JOINS:
        for part in symbol.get(word, ()):
            yield from names_in(part)
    for part in symbol.get("zip", symbol.get("args", ())):
        yield from names_in(part)


_CANONICAL: Final = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, check_circular=False
).encode


def canonical(value: object) -> str:
    """JSON with one spelling a value: sorted keys, no spaces."""
    return _CANONICAL(value)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def ordered(needs: Mapping[str, Sequence[str] | set[str]]) -> list[str]:
    """Node names in topological order, ties by name: the order follows from the content, not from the order of the lines.

    `needs` maps every node to the nodes it depends on. Raises PlanError naming the nodes of a cycle.
    """
    waiting = {name: len(set(each)) for name, each in needs.items()}
    users: dict[str, list[str]] = {}
    for name, each in needs.items():
        for need in set(each):
            users.setdefault(need, []).append(name)
    ready = [name for name, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    out: list[str] = []
    while ready:
        name = heapq.heappop(ready)
        out.append(name)
        for user in users.get(name, ()):
            waiting[user] -= 1
            if waiting[user] == 0:
                heapq.heappush(ready, user)
    if len(out) < len(needs):
        stuck = sorted(name for name, count in waiting.items() if count > 0)
        raise PlanError(
            f"these nodes wait for each other: {', '.join(stuck[:8])}",
            "A plan has no cycles; repeat() is the way to loop.",
        )
    return out


def plan_from_text(text: str, about: Mapping[str, Any] | None = None) -> Plan:
    """The plan that was stored as `text`. Raises PlanError when it is of a format this release cannot read."""
    body = json.loads(text)
    if body.get("format") != 1:
        raise PlanError(
            f"the plan of workflow {body.get('workflow')!r} has format {body.get('format')!r}, and this release reads format 1",
            "A newer Composer wrote it: upgrade this process.",
        )
    return Plan(body, about or {})
