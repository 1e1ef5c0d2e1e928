"""Conditions, joins and outcomes in real runs: what bodies get as arguments, in memory and on a server."""

from __future__ import annotations

import json

import pytest

from composer import NonRetryable, Outcome, maybe, otherwise, settled, step, when, workflow
from composer.testing import crash_everywhere, run_workflow
from tests.working import working

pytestmark = pytest.mark.anyio


@step
async def charge(amount: int) -> int:
    """Declines what is over a hundred."""
    if amount > 100:
        raise NonRetryable("declined")
    return amount


@step
async def told(outcome: Outcome[int], receipt: int | None, reason: str | None, small: bool) -> str:
    """Everything it was given, as text."""
    message = outcome.error.message if outcome.error else None
    return json.dumps([outcome.state, outcome.value, message, receipt, reason, small])


@step
async def why(outcome: Outcome[int]) -> str:
    """What went wrong."""
    return outcome.error.type if outcome.error else "nothing"


@workflow
def pay(amount: int) -> str:
    """A charge; if it was declined the reason, else a receipt; and a report in both cases."""
    charged = charge(amount)
    with when(settled(charged).failed):
        reason = why(settled(charged))
    with otherwise():
        receipt = charge.named("receipt")(charged)
    return told(settled(charged), maybe(receipt), maybe(reason), amount < 10)


@workflow
def maybe_pay(amount: int) -> int | None:
    """Ends with its start when there is nothing to pay."""
    with when(amount > 0):
        charged = charge(amount)
    return maybe(charged)


GOOD = ["completed", 7, None, 7, None, True]
BAD = ["failed", None, "declined", None, "NonRetryable", False]


async def test_bodies_get_outcomes_joins_and_answers() -> None:
    """A step gets an Outcome, a value or None through maybe(), and the answer of an expression, as the branch was taken."""
    good, bad = await run_workflow(pay, 7), await run_workflow(pay, 101)
    assert (json.loads(good.value), json.loads(bad.value)) == (GOOD, BAD)
    assert (good.ran("receipt"), good.ran("why"), bad.ran("receipt"), bad.ran("why")) == (1, 0, 0, 1)


async def test_crash_after_every_transition_changes_nothing() -> None:
    """Whenever the worker dies, a run with conditions and outcomes ends as it does without."""
    for amount in (7, 101):
        calm, *rest = await crash_everywhere(pay, amount)
        assert len(rest) >= 2
        assert {each.value for each in rest} == {calm.value}


async def test_server_hands_errors_to_bodies(database: str, namespace: str) -> None:
    """On PostgreSQL, claimed or handed over, a body gets the error of a failed node; every invariant holds after."""
    async with working(database, namespace, [pay]) as site:
        runs = [await site.client.start(pay, amount) for amount in (7, 101, 101)]
        assert [json.loads(await run.result(timeout=20)) for run in runs] == [GOOD, BAD, BAD]
        nodes = {node.name: node.state for node in (await site.client.get(runs[1].id)).nodes}
        assert (nodes["charge"], nodes["receipt"], nodes["why"]) == ("failed", "skipped", "completed")
        assert await site.verified() == []


async def test_run_that_ends_with_its_start_is_known_to_have(database: str, namespace: str) -> None:
    """A run whose only block is not taken ends in the transition that starts it, and its result is there at once."""
    async with working(database, namespace, [maybe_pay], poll_interval=30.0) as site:
        for _ in range(3):
            assert await (await site.client.start(maybe_pay, 0)).result(timeout=10) is None
        assert await (await site.client.start(maybe_pay, 5)).result(timeout=10) == 5
        assert await site.verified() == []
