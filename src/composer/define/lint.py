"""What is found in a workflow without running it, beside what its builder refuses.

unheard() reads the source: the few questions a Ref cannot hear, `is`, `match`, type(), id(). It is the only defence
against a plan that is quietly wrong, so what it finds is an error. It must therefore be sure: a name counts as a Ref
only if it is a parameter, or if all that is assigned to it are results of steps, maps and joins, or parts of such
names. A name that is also set to None, say, is left alone.

problems() reads the plan: what may be meant and mostly is not, such as a sleep that holds nothing up. These are
warnings, which `composer check` prints.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from types import ModuleType
from typing import Any, TypeAlias

from composer.core.plan import Node, Plan
from composer.define.branches import uncovered

_Assigned: TypeAlias = dict[str, list[ast.expr | None]]


def unheard(fn: Any, is_step: Callable[[object], bool]) -> Iterator[tuple[int, str]]:
    """Line and problem of every question the builder `fn` puts to a Ref that the Ref can neither answer nor refuse."""
    try:
        lines, first = inspect.getsourcelines(fn)
        tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    except (OSError, SyntaxError, IndexError):
        return
    if not isinstance(tree, ast.FunctionDef):
        return
    scope = {**fn.__globals__, **_captured(fn)}
    refs = _names_of_refs(tree, lambda call: _calls_step(call, scope, is_step))
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
            asked, by = (node.left, *node.comparators), "`is`"
        elif isinstance(node, ast.Match):
            asked, by = (node.subject,), "`match`"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("type", "id"):
            asked, by = tuple(node.args), f"`{node.func.id}()`"
        else:
            continue
        for each in asked:
            if _root(each) in refs:
                yield first + each.lineno - 1, f"{by} sees the Ref {ast.unparse(each)}, never the value"
                break


def _captured(fn: Any) -> dict[str, Any]:
    """The names a local function takes from around it, as far as they are set by now."""
    found: dict[str, Any] = {}
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # defined further down
            continue
    return found


def _names_of_refs(tree: ast.FunctionDef, makes_ref: Callable[[ast.Call], bool]) -> set[str]:
    parameters = {each.arg for each in (*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs)}
    assigned = _assigned(tree)
    refs = parameters | set(assigned)
    while True:  # what is assigned from a name that turned out to hold no Ref holds none either
        kept = {
            name
            for name in refs
            if all(
                makes_ref(value) if isinstance(value, ast.Call) else value is not None and _root(value) in refs
                for value in assigned.get(name, ())
            )
        }
        if kept == refs:
            return refs
        refs = kept


def _assigned(tree: ast.FunctionDef) -> _Assigned:
    """What each name is set to; None where that is an item or anything else that is not plain to see."""
    found: _Assigned = {}

    def put(target: ast.AST, value: ast.expr | None) -> None:
        if isinstance(target, ast.Name):
            found.setdefault(target.id, []).append(value)
        else:
            for each in ast.walk(target):
                if isinstance(each, ast.Name):
                    found.setdefault(each.id, []).append(None)

    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if not isinstance(target, (ast.Attribute, ast.Subscript)):
                    put(target, node.value)
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            put(node.target, node.value)
        elif isinstance(node, (ast.AugAssign, ast.For, ast.comprehension)):
            put(node.target, None)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            put(node.optional_vars, None)
        elif isinstance(node, ast.arguments) and node is not tree.args:  # a function inside has names of its own
            for each in (*node.posonlyargs, *node.args, *node.kwonlyargs):
                found.setdefault(each.arg, []).append(None)
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            found.setdefault(node.name, []).append(None)
    return found


def _root(node: ast.expr) -> str:
    """The name a path such as `order.items[0]` begins with; "" for anything else."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _calls_step(call: ast.Call, scope: dict[str, Any], is_step: Callable[[object], bool]) -> bool:
    """Whether a call makes a Ref: `charge(...)`, `flows.charge(...)`, `charge.options(...).map(...)`, `zip_refs(...)`."""
    node: ast.expr = call.func
    attributes: list[str] = []
    while isinstance(node, (ast.Call, ast.Attribute)):
        if isinstance(node, ast.Attribute):
            attributes.insert(0, node.attr)
            node = node.value
        else:
            node = node.func
    found: object = scope.get(node.id) if isinstance(node, ast.Name) else None
    while attributes and isinstance(found, ModuleType):
        found = vars(found).get(attributes.pop(0))
    return is_step(found) and "fn" not in attributes


@dataclass(frozen=True, slots=True)
class Problem:
    """What is doubtful about a plan: a stable `code`, the node ("" for the workflow as a whole), where it was written
    as file:line ("" when not known), and what to do about it."""

    code: str
    node: str
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where or self.node}: {self.text} [{self.code}]"


def problems(plan: Plan) -> list[Problem]:
    """What is doubtful about a plan, in the order of its nodes; what is certainly wrong was refused while it was drawn."""
    lines: dict[str, str] = plan.about.get("where", {})
    bodies: dict[str, Any] = {body["name"]: body for body in plan.body["nodes"]}
    racing = {each["ref"] for body in bodies.values() if body["kind"] == "race" for each in body["of"]}
    returned = {i for term in plan.output_terms for i in term.nodes}
    guards = {each["guard"] for body in bodies.values() for each in body.get("when", ())}
    found: list[Problem] = []

    def add(code: str, node: str, text: str) -> None:
        found.append(Problem(code, node, lines.get(node, ""), text))

    for node in plan.nodes:
        body = bodies[node.name]
        if node.kind == "sleep" and not node.users and node.index not in returned and node.name not in racing:
            add(
                "idle-sleep",
                node.name,
                f"nothing comes after {node.name}, so it only delays the end of the run: step.after(...)",
            )
        if node.kind == "guard" and node.name not in guards:
            add(
                "empty-block", node.name, f"there is no node in the block of {node.name}: its condition decides nothing"
            )
        if node.kind == "wait" and body["timeout"] is None and plan.timeout is None and node.name not in racing:
            add("waits-for-ever", node.name, f"{node.name} waits without a timeout, in a workflow that has none")
        longest = body.get("timeout") if node.kind == "wait" else node.args.get("for") if node.kind == "sleep" else None
        if plan.timeout is not None and isinstance(longest, (int, float)) and longest >= plan.timeout:
            add(
                "past-the-deadline",
                node.name,
                f"{node.name} takes {longest:g} s, and the whole run only {plan.timeout:g} s",
            )
    waits = [node for node in plan.nodes if node.kind == "wait"]
    for one, other in combinations(waits, 2):
        event = bodies[one.name]["event"]
        if (
            event == bodies[other.name]["event"]
            and not _comes_after(plan, one, other)
            and not _excluded(bodies, one, other)
        ):
            text = f"{one.name} and {other.name} wait for {event!r} side by side: the one that began first gets it"
            add("one-event-two-waits", other.name, text)
    for parts in uncovered(plan):
        shown = f"either({', '.join(parts)})"
        add(
            "no-output",
            "",
            f"the result is {shown}, of which none may have run: the run fails then. An otherwise() is missing",
        )
    return found


def _comes_after(plan: Plan, one: Node, other: Node) -> bool:
    """Whether `other`, which is later in the plan, needs `one`."""
    reached = {one.index}
    for node in plan.nodes[one.index + 1 : other.index + 1]:
        if not reached.isdisjoint(node.needs):
            reached.add(node.index)
    return other.index in reached


def _excluded(bodies: dict[str, Any], one: Node, other: Node) -> bool:
    """Whether the two stand in the two branches of one condition."""
    answers = [{each["guard"]: each["is"] for each in bodies[node.name].get("when", ())} for node in (one, other)]
    return any(answers[1].get(guard, answer) is not answer for guard, answer in answers[0].items())
