"""C42: SIGTERM with work in hand."""

from __future__ import annotations

import signal
import time

import pytest

from composer import AsyncClient
from tests.system import flows
from tests.system.fixtures import clean
from tests.system.processes import Yard
from tests.working import until

pytestmark = pytest.mark.anyio


async def test_a_step_that_fits_the_grace_time_finishes_where_it_is(site: Yard, client: AsyncClient) -> None:
    """The step ends here at attempt 1, longer than its lease, with another worker alive that does not take it."""
    first = site.worker("--grace", "10", lease=1.0)
    handle = await client.start(flows.napping, 1, 3.0)
    await until(lambda: site.starts()["naps"] == 1, 20)
    other = site.worker(lease=1.0)
    await until(lambda: "workflow napping" in other.log.read_text(), 20)
    first.send(signal.SIGTERM)
    assert first.popen.wait(15) == 0
    assert await handle.result(timeout=10) == 4
    assert site.starts()["naps"] == 1
    assert await clean(client)


async def test_a_step_that_does_not_fit_starts_elsewhere_at_once(site: Yard, client: AsyncClient) -> None:
    """At the end of the grace time it is handed back and begins again within two seconds, for the same attempt."""
    first = site.worker("--grace", "1", lease=20)
    handle = await client.start(flows.napping, 1, 60.0)
    await until(lambda: site.starts()["naps"] == 1, 20)
    other = site.worker(lease=20)
    await until(lambda: "workflow napping" in other.log.read_text(), 20)
    first.send(signal.SIGTERM)
    at = time.monotonic()
    await until(lambda: site.starts()["naps"] == 2, 10)
    assert time.monotonic() - at < 1 + 2
    assert first.popen.wait(10) == 0
    assert {entry["attempt"] for entry in site.entries(node="naps")} == {1}
    view = await client.get(handle.id)
    assert view.status == "running"
    assert next(n for n in view.nodes if n.name == "naps").failures == 0
    await handle.cancel()


async def test_an_idle_worker_leaves_within_a_second(site: Yard, client: AsyncClient) -> None:
    """It claims nothing after the signal."""
    worker = site.worker()
    await (await client.start(flows.short, 1)).result(timeout=20)
    worker.send(signal.SIGTERM)
    at = time.monotonic()
    assert worker.popen.wait(5) == 0
    assert time.monotonic() - at < 1.5
    handle = await client.start(flows.short, 1)
    assert (await client.get(handle.id)).nodes[0].state == "ready"
