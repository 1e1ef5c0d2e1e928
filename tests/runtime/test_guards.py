"""Conditions, joins and outcomes in real runs: what bodies get as arguments, in memory and on a server."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from composer import NonRetryable, step, workflow
from composer.core.plan import Plan
from composer.testing import crash_everywhere, run_workflow
from tests.builders import says
from tests.working import working

pytestmark = pytest.mark.anyio
DECLINED = says("eq", "settled:charge/state", ("failed",), kind="text")


@step
async def charge(amount: int) -> int:
    """Declines what is over a hundred."""
    if amount > 100:
        raise NonRetryable("declined")
    return amount


@step
async def told(outcome: dict[str, Any], total: int | None, small: bool) -> str:
    """Everything it was given, as text."""
    return json.dumps([outcome["state"], outcome["value"], (outcome["error"] or {}).get("message"), total, small])


def with_guards(flow: Any, change: Callable[[dict[str, Any]], None]) -> Any:
    """The workflow with its plan rewritten: conditions as data, whatever the definitions can write today."""
    body = json.loads(flow.plan.text)
    change(body)
    flow._plan = Plan(body)
    return flow


def fallback() -> Any:
    """charge, and if it was declined a report of how; else a report with the value."""

    @workflow
    def pay(amount: int) -> str:
        charge(amount)
        return told({}, 0, True)

    def change(body: dict[str, Any]) -> None:
        report = next(node for node in body["nodes"] if node["name"] == "told")
        report["args"] = {
            "outcome": {"$": {"settled": [{"ref": "charge"}]}},
            "total": {"$": {"maybe": [{"ref": "receipt"}]}},
            "small": {"$": says("lt", "input/amount", 10, kind="number")},
        }
        guard = {"name": "declined", "kind": "guard", "args": {"condition": {"$": DECLINED}}}
        receipt = {"name": "receipt", "kind": "step", "step": "charge", "args": {"amount": {"$": {"ref": "charge"}}}}
        receipt["when"] = [{"guard": "declined", "is": False}]
        charged = next(node for node in body["nodes"] if node["name"] == "charge")
        body["nodes"] = [charged, guard, receipt, report]

    return with_guards(pay, change)


async def test_bodies_get_outcomes_joins_and_answers() -> None:
    """A step gets an Outcome, a value or null through maybe(), and the answer of an expression, as the branch was taken."""
    good = await run_workflow(fallback(), 7)
    assert json.loads(good.value) == ["completed", 7, None, 7, True]
    assert [(node.name, node.state, node.answer) for node in good.run.nodes] == [
        ("charge", "completed", None), ("declined", "completed", False), ("receipt", "completed", None), ("told", "completed", None),
    ]  # fmt: skip


async def test_failed_charge_is_told_and_the_run_completes() -> None:
    """A declined charge is read as an Outcome with its error; the receipt lies in the branch not taken, so the run completes."""
    bad = await run_workflow(fallback(), 101)
    assert json.loads(bad.value) == ["failed", None, "declined", None, False]
    assert {node.name: node.answer for node in bad.run.nodes if node.answer is not None} == {"declined": True}
    assert bad.ran("receipt") == 0


async def test_crash_after_every_transition_changes_nothing() -> None:
    """Whenever the worker dies, the run with conditions and outcomes ends as it does without."""
    for amount in (7, 101):
        calm, *rest = await crash_everywhere(fallback(), amount)
        assert len(rest) >= 2
        assert {each.value for each in rest} == {calm.value}


async def test_server_hands_errors_to_bodies(database: str, namespace: str) -> None:
    """On PostgreSQL, claimed or handed over, a body gets the error of a failed node; every invariant holds after."""
    flow = fallback()
    async with working(database, namespace, [flow]) as site:
        runs = [await site.client.start(flow, amount) for amount in (7, 101, 101)]
        made = [json.loads(await run.result(timeout=20)) for run in runs]
        assert made[0] == ["completed", 7, None, 7, True]
        assert made[1] == made[2] == ["failed", None, "declined", None, False]
        nodes = {node.name: node for node in (await site.client.get(runs[1].id)).nodes}
        assert (nodes["declined"].answer, nodes["receipt"].state) == (True, "skipped")
        assert await site.verified() == []


async def test_run_that_ends_with_its_start_is_known_to_have(database: str, namespace: str) -> None:
    """A run whose only block is not taken ends in the transition that starts it, and its result is there at once."""

    @workflow
    def maybe_pay(amount: int) -> int | None:
        return charge(amount)

    def change(body: dict[str, Any]) -> None:
        condition = says("gt", "input/amount", 0, kind="number")
        body["nodes"][0]["when"] = [{"guard": "any", "is": True}]
        body["nodes"].insert(0, {"name": "any", "kind": "guard", "args": {"condition": {"$": condition}}})
        body["output"] = {"$": {"maybe": [{"ref": "charge"}]}}

    flow = with_guards(maybe_pay, change)
    async with working(database, namespace, [flow], poll_interval=30.0) as site:
        for _ in range(3):
            run = await site.client.start(flow, 0)
            assert await run.result(timeout=10) is None
        assert await (await site.client.start(flow, 5)).result(timeout=10) == 5
        assert await site.verified() == []
