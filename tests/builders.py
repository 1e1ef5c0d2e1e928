"""Plans, runs and tasks with defaults: a test overrides what it is about and leaves out the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from composer.core.events import Delivery, Failure, FailureKind, StepCompleted, StepFailed
from composer.core.plan import INPUT_NAME, NodeOptions, Plan, canonical, names_in, ordered
from composer.core.retries import Retry
from composer.core.snapshot import Counters, Letters, Snapshot
from composer.core.states import RunStatus
from composer.ports.store import ClaimedTask, RunHead

RUN_ID: Final = "01890000-0000-7000-8000-000000000001"
_JOINS: Final = ("either", "maybe", "settled")


def a_plan(
    nodes: Mapping[str, Sequence[str]] | None = None,
    *,
    output: Any = None,
    guards: Mapping[str, Mapping[str, Any]] | None = None,
    workflow: str = "shop",
    every: NodeOptions | None = None,
    node_options: Mapping[str, NodeOptions] | None = None,
    **options: Any,
) -> Plan:
    """A plan written as data: each node with what it needs, for example {"a": [], "b": ["a"], "c": ["after:b", "either:a,b"]}.

    A need is a node's name (its output is an argument; "input" is the run's), "after:x", "maybe:x", "settled:x",
    "either:x,y", "after:settled:x", "when:g" (guard g said yes) or "unless:g" (no). `guards` are the conditions of the
    nodes that are guards, by name: of these the needs say only in which blocks they lie.

    `output` is a template; text is taken as a need, None as the constant null.
    `every` are the options of nodes that `node_options` does not name; `options` those of the workflow. The step of
    node "a" is called "step_a".
    """
    nodes = {"a": []} if nodes is None else nodes
    special = node_options or {}
    made: dict[str, dict[str, Any]] = {}
    conditions = guards or {}
    needs: dict[str, list[str]] = {}
    for name, terms in nodes.items():
        node: dict[str, Any] = {"name": name, "kind": "step", "step": f"step_{name}", "args": {}}
        after: list[dict[str, Any]] = []
        when: list[dict[str, Any]] = []
        if name in conditions:
            node = {"name": name, "kind": "guard", "args": {"condition": {"$": conditions[name]}}}
        for number, term in enumerate(terms):
            if term.startswith("after:"):
                after.append(_symbol(term.removeprefix("after:")))
            elif term.startswith(("when:", "unless:")):
                when.append({"guard": _names(term)[0], "is": term.startswith("when:")})
            else:
                node["args"][f"x{number}"] = {"$": _symbol(term)}
        if after:
            node["after"] = sorted(after, key=canonical)
        if when:
            node["when"] = when
        given = special.get(name, every)
        if given is not None and given.as_json():
            node["options"] = given.as_json()
        made[name] = node
        read = [each for term in terms for each in _names(term)] + [*names_in(conditions.get(name, {}))]
        needs[name] = [each for each in read if each != INPUT_NAME]
    body: dict[str, Any] = {
        "format": 1,
        "workflow": workflow,
        "params": {},
        "nodes": [made[name] for name in ordered(needs)],
        "output": {"$": _symbol(output)} if isinstance(output, str) else output,
    }
    if options:
        body["options"] = options
    return Plan(body)


def says(op: str, *args: Any, kind: str | None = None) -> dict[str, Any]:
    """An expression. Text that names a need as in a_plan() is one, with a path after a slash: "a", "settled:a/value/n"; the
    rest of the arguments are constants, as is text in a tuple of one."""
    parts = [_operand(each) for each in args]
    return {"op": op, "args": parts} | ({} if kind is None else {"as": kind})


def _operand(given: Any) -> dict[str, Any]:
    if isinstance(given, str):
        term, *path = given.split("/")
        return _symbol(term) | ({"path": [int(p) if p.isdigit() else p for p in path]} if path else {})
    if isinstance(given, dict) and ("op" in given or "ref" in given):
        return given
    return {"const": given[0] if isinstance(given, tuple) else given}


def _symbol(term: str) -> dict[str, Any]:
    word, _, rest = term.partition(":")
    if word in _JOINS:
        return {word: [{"ref": name} for name in rest.split(",")]}
    return {"ref": term}


def _names(term: str) -> list[str]:
    return term.rpartition(":")[2].split(",")


def tried(attempts: int | None = 3, **retry: Any) -> NodeOptions:
    """Options of a node that is tried `attempts` times, by default with a second in between."""
    return NodeOptions(retries=Retry(**{"attempts": attempts, "backoff": 1.0, "jitter": 0.0, **retry}))


def a_run(
    letters: str = "A",
    status: RunStatus | str = RunStatus.RUNNING,
    *,
    version: int = 1,
    first_failure: int = -1,
    retries: int = 0,
) -> Snapshot:
    """A run as a decision sees it."""
    return Snapshot(RunStatus(status), version, Letters(letters), Counters(first_failure, retries))


def a_delivery(node: int = 0, attempt: int = 1, delivery: int = 1, **facts: Any) -> Delivery:
    """A task in a worker's hands."""
    return Delivery(node, attempt, delivery, **facts)


def a_failure(message: str = "no", type_: str = "ValueError", kind: FailureKind = FailureKind.ERROR) -> Failure:
    """What a body raised."""
    return Failure(kind, type_, message)


def completed(task: Delivery | int = 0, output: str = '"done"') -> StepCompleted:
    """The report that a body returned; a number is the first delivery of that node."""
    return StepCompleted(_delivery(task), output)


def failed(task: Delivery | int = 0, *, retryable: bool = True, **facts: Any) -> StepFailed:
    """The report that a body raised; a number is the first delivery of that node."""
    return StepFailed(_delivery(task), facts.pop("failure", a_failure()), retryable, **facts)


def _delivery(task: Delivery | int) -> Delivery:
    return a_delivery(task) if isinstance(task, int) else task


def a_task(
    plan: Plan | None = None,
    task: Delivery | None = None,
    *,
    run_id: str = RUN_ID,
    run: Snapshot | None = None,
    plan_id: int = 1,
    values: Mapping[int, str] | None = None,
    **facts: Any,
) -> ClaimedTask:
    """A claimed task: by default the first delivery of the first node of a run in which nothing else has happened."""
    plan = plan or a_plan()
    task = task or a_delivery()
    head = RunHead(run_id, plan_id, run or a_run(Letters.blocked(len(plan.nodes)).text))
    return ClaimedTask(head, task, plan.nodes[task.node].step, values or {}, **facts)
