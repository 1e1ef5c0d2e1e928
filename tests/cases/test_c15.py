"""C15: back-off that overflows, and a job that disappears."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from composer import PlanError, Retry, step, workflow
from tests.working import until, working

pytestmark = pytest.mark.anyio


@step(retries=Retry(attempts=None, delay=0.05, backoff=5, max_delay="400d", jitter=1.0))
async def never(n: int) -> int:
    """Always fails."""
    raise OSError("never")


@workflow
def trying(n: int) -> int:
    """One step."""
    return never(n)


@pytest.mark.parametrize("failures", [16, 47, 1_100])
async def test_a_step_that_has_failed_often_keeps_a_next_attempt(database: str, namespace: str, failures: int) -> None:
    """However often it has failed, the next attempt has a moment within the documented ceiling of 366 days."""
    async with working(database, namespace, [trying]) as site:
        handle = await site.client.start(trying, 1)

        async def waits() -> bool:
            return (await site.client.get(handle.id)).nodes[0].state == "delayed"

        await until(waits)
        connection = await asyncpg.connect(database)
        edit = "update composer.tasks set failures = $1, wake_at = now() where namespace = $2 and run_id = $3 and node = 0 and state = 'delayed'"
        while await connection.execute(edit, failures - 1, namespace, handle.id) != "UPDATE 1":
            pass
        await connection.close()
        await site.client.store.move_due_tasks(10)

        async def failed_again() -> bool:
            node = (await site.client.get(handle.id)).nodes[0]
            return node.failures >= failures and node.state == "delayed"

        await until(failed_again)
        node = (await site.client.get(handle.id)).nodes[0]
        assert node.next_attempt_at is not None
        assert datetime.now(UTC) < node.next_attempt_at <= datetime.now(UTC) + timedelta(days=366)
        await handle.cancel()
        assert (await handle.get()).status == "cancelled"


BAD = [
    ("attempts", 0), ("attempts", -1), ("delay", -1), ("delay", float("nan")), ("delay", timedelta.max),
    ("max_delay", float("inf")), ("jitter", 2), ("backoff", 0.5),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), BAD)
def test_a_bad_policy_is_refused_when_the_step_is_defined(field: str, value: object) -> None:
    """The error names the field."""
    with pytest.raises(PlanError, match=field):
        Retry(**{field: value})  # type: ignore[arg-type]


async def test_no_delay_and_one_attempt_are_what_they_say(database: str, namespace: str) -> None:
    """One attempt is one execution; a zero delay retries at once, as often as allowed and no more."""

    @step(retries=Retry(attempts=1))
    async def once(n: int) -> int:
        raise OSError("once")

    @step(retries=Retry(attempts=4, delay=0))
    async def at_once(n: int) -> int:
        raise OSError("again")

    @workflow
    def both(n: int) -> int:
        once(n)
        return at_once(n)

    async with working(database, namespace, [both]) as site:
        handle = await site.client.start(both, 1)
        assert (await site.client.wait(handle.id, timeout=10)).status == "failed"
        nodes = {node.name: node.failures for node in (await handle.get()).nodes}
        assert nodes == {"once": 1, "at_once": 4}
        assert site.worker.loop.executed == 5
