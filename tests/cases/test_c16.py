"""C16: a long or timed-out step must not run twice at once. Threads that time out: tests/runtime/test_worker.py."""

from __future__ import annotations

import anyio
import pytest

from composer import AsyncClient, NonRetryable, Retry, step, workflow
from tests.system import flows
from tests.system.fixtures import clean
from tests.system.processes import Yard
from tests.working import until, working

pytestmark = pytest.mark.anyio
attempts: list[int] = []


@step(timeout=0.1, retries=Retry(attempts=5, delay=0, no_retry_on=(TimeoutError,)))
async def final_timeout(n: int) -> int:
    """Longer than its timeout, which is declared final."""
    attempts.append(n)
    await anyio.sleep(5)
    return n


@step(retries=5)
async def final_error(n: int) -> int:
    """Fails for good."""
    attempts.append(n)
    raise NonRetryable("no")


@workflow
def timing_out(n: int) -> int:
    """One step."""
    return final_timeout(n)


@workflow
def erring(n: int) -> int:
    """One step."""
    return final_error(n)


async def test_a_step_longer_than_its_lease_runs_once(site: Yard, client: AsyncClient) -> None:
    """Two and a half lease times without a timeout of its own, two workers: one execution."""
    for _ in range(2):
        site.worker(lease=1.0)
    handle = await client.start(flows.napping, 1, 2.5)
    await until(lambda: site.starts()["naps"] == 1, 20)
    assert await handle.result(timeout=20) == 4
    assert site.starts()["naps"] == 1
    assert await clean(client)


@pytest.mark.parametrize("flow", [timing_out, erring])
async def test_what_is_declared_final_is_not_tried_again(database: str, namespace: str, flow) -> None:
    """A non-retryable error, and a timeout that no_retry_on names, are one execution."""
    attempts.clear()
    async with working(database, namespace, [timing_out, erring]) as worker:
        handle = await worker.client.start(flow, 1)
        assert (await worker.client.wait(handle.id, timeout=10)).status == "failed"
        assert attempts == [1]
