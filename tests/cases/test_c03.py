"""C03: A step that kills its worker every time."""

from __future__ import annotations

import time
from functools import partial
from itertools import pairwise

import pytest

from composer import AsyncClient, RunFailed
from tests.system import flows
from tests.system.fixtures import clean
from tests.system.processes import Process, Yard
from tests.working import until

pytestmark = pytest.mark.anyio


async def test_a_step_that_kills_its_worker_ends_the_run_after_its_budget(site: Yard, client: AsyncClient) -> None:
    """C03: max_crashes + attempts - 1 = 5 starts, then a worker-lost failure; ordinary runs beside it succeed."""
    handle = await client.start(flows.killing, 1)
    others = await client.start_many(flows.short, [(n,) for n in range(20)])
    site.coordinator(lease=1.0)
    deaths = 0
    worker = site.worker("--no-coordinator", lease=1.0)
    deadline = time.monotonic() + 60
    while (await client.get(handle.id)).status == "running":
        assert time.monotonic() < deadline
        if not worker.is_running:
            deaths += 1
            worker = site.worker("--no-coordinator", lease=1.0)
        await until(lambda: True)
    with pytest.raises(RunFailed, match="worker was lost") as caught:
        await handle.result(timeout=5)
    assert caught.value.error_type == "WorkerLost"
    assert site.starts()["killer"] == 5
    assert deaths <= 5
    starts = [entry["at"] for entry in site.entries(phase="start", node="killer")]
    assert all(b - a >= 0.15 for a, b in pairwise(starts)), "the back-off is kept"
    for other, n in zip(others, range(20), strict=True):
        assert await other.result(timeout=20) == n + 2
    assert await clean(client)


async def test_it_does_not_take_the_others_along_until_they_are_given_up(site: Yard, client: AsyncClient) -> None:
    """What a lost worker had comes back all at once, with what ended it; still only that one is given up."""
    others = await client.start_many(flows.short, [(n,) for n in range(20)])
    handle = await client.start(flows.killing, 1)
    site.coordinator(lease=1.0)

    async def all_are_back() -> bool:
        views = [await client.get(run.id) for run in (handle, *others)]
        return not any(node.state in ("leased", "delayed") for view in views for node in view.nodes)

    async def is_over(worker: Process) -> bool:
        return not worker.is_running or (await client.get(handle.id)).status != "running"

    while (await client.get(handle.id)).status == "running":
        await until(all_are_back, 20)
        await until(partial(is_over, site.worker("--no-coordinator", lease=1.0)), 20)
    site.worker()
    for other, n in zip(others, range(20), strict=True):
        assert await other.result(timeout=20) == n + 2
    with pytest.raises(RunFailed, match="worker was lost"):
        await handle.result(timeout=5)
    assert site.starts()["killer"] == 5
    assert await clean(client)
