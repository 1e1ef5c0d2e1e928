"""C01: A loop that is blocked, and a worker that is stopped: leases and late reports."""

from __future__ import annotations

import signal

import pytest

from composer import AsyncClient
from tests.system import flows
from tests.system.fixtures import clean
from tests.system.processes import Yard
from tests.working import until

pytestmark = pytest.mark.anyio


async def test_a_stopped_worker_that_comes_back_is_refused(site: Yard, client: AsyncClient) -> None:
    """C01, second part: SIGSTOP past the lease, another worker finishes, SIGCONT: one result, the old one refused and logged."""
    first = site.worker("--no-coordinator", lease=1.0)
    handle = await client.start(flows.napping, 1, 1.0)
    await until(lambda: site.starts()["naps"] == 1, 20)
    first.send(signal.SIGSTOP)
    second = site.worker()
    await until(lambda: site.starts()["naps"] == 2, 30)
    assert await handle.result(timeout=20) == 4
    first.send(signal.SIGCONT)
    await until(lambda: first.said("lease was lost") or first.said("report was not applied"), 10)
    deliveries = {
        entry["pid"]: (entry["attempt"], entry["delivery"]) for entry in site.entries(phase="start", node="naps")
    }
    assert deliveries[first.popen.pid] == (1, 1)
    assert deliveries[second.popen.pid] == (1, 2)
    second.kill()
    assert await (await client.start(flows.short, 1)).result(timeout=20) == 3, (
        "the first worker serves on without a restart"
    )
    assert site.starts(node="quick-2")["quick-2"] == 2
    assert await clean(client)


async def test_a_step_that_blocks_the_loop_keeps_its_lease_and_is_named(site: Yard, client: AsyncClient) -> None:
    """C01, first part: three lease times without the loop: one execution each, and the log says which step, and where."""
    busy = site.worker(lease=1.0)
    hogging = await client.start(flows.hogging, 1, 3.5)
    await until(lambda: site.starts()["hog"] == 1, 20)
    other = site.worker(lease=1.0)
    assert await hogging.result(timeout=30) == 3
    assert site.starts()["hog"] == 1
    named = busy.said("blocks the event loop")
    assert named
    assert named[-1]["step"] == "hog"
    assert "flows.py" in named[-1]["line"]
    assert named[-1]["seconds"] >= 2
    assert other.is_running
    assert await clean(client)
