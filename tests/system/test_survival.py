"""Real processes that are killed and told to leave: every run ends, and each result is applied once."""

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


async def test_a_killed_worker_is_replaced_within_seconds(site: Yard, client: AsyncClient) -> None:
    """kill -9 in the middle of a step: the next worker of the machine takes it at once; what had completed stays."""
    first = site.worker(lease=30)
    handle = await client.start(flows.napping, 1, 1.0)
    await until(lambda: site.starts()["naps"] == 1, 20)
    first.kill()
    at = time.monotonic()
    site.worker(lease=30)
    assert await handle.result(timeout=20) == 4
    assert time.monotonic() - at < 10, "it waited for the lease"
    assert site.starts() == {"quick": 1, "naps": 2, "quick-2": 1}
    assert {entry["attempt"] for entry in site.entries(node="naps")} == {1}, "a crash is no attempt"
    assert await clean(client)


async def test_a_coordinator_elsewhere_recovers_what_a_killed_worker_held(site: Yard, client: AsyncClient) -> None:
    """S39: a survivor's lease sweep finds the task, once, and its effect happens through the survivor."""
    dying = site.worker("--no-coordinator")
    handle = await client.start(flows.napping, 1, 1.0)
    await until(lambda: site.starts()["naps"] == 1, 20)
    # Stopped, it is still in its nap however long the other one takes to start.
    dying.send(signal.SIGSTOP)
    # Only the sweep can find it: no worker starts on this machine after the kill.
    survivor = site.worker("--no-coordinator")
    await until(lambda: "workflow napping" in survivor.log.read_text(), 20)
    dying.kill()
    assert site.starts()["naps"] == 1
    for _ in range(3):
        site.coordinator()
    assert await handle.result(timeout=30) == 4
    assert site.starts()["naps"] == 2
    assert await clean(client)


async def test_a_checkpoint_survives_the_worker(site: Yard, client: AsyncClient) -> None:
    """Heartbeat details are there for the delivery after a kill -9."""
    first = site.worker()
    handle = await client.start(flows.counting, 40)
    await until(lambda: site.starts()["checkpoints"] == 1, 20)

    async def kept() -> bool:
        record = await client.store.get_run(handle.id)
        return record is not None and record.tasks[0].details is not None and int(record.tasks[0].details) >= 10

    await until(kept, 20)
    first.kill()
    site.worker()
    assert await handle.result(timeout=30) == 40
    assert site.entries(phase="start")[-1]["begun_at"] >= 10


async def test_a_worker_that_is_told_to_leave_leaves_nothing_behind(site: Yard, client: AsyncClient) -> None:
    """SIGTERM: no new tasks, what cannot finish is given back at once, exit code 0, no waiting for a lease."""
    first = site.worker("--grace", "1", lease=30)
    handle = await client.start(flows.napping, 1, 8.0)
    await until(lambda: site.starts()["naps"] == 1, 20)
    first.send(signal.SIGTERM)
    assert first.popen.wait(15) == 0
    record = await client.store.get_run(handle.id)
    assert record is not None
    naps = next(task for task in record.tasks if task.state not in ("completed",))
    assert (naps.state, naps.attempt, naps.failures, naps.crashes) == ("ready", 1, 0, 0)
    assert (await client.cancel(handle.id)).accepted
    assert await clean(client)


async def test_a_second_signal_ends_a_worker_at_once(site: Yard, client: AsyncClient) -> None:
    """Whoever asks twice does not wait for the grace time."""
    first = site.worker()
    await client.start(flows.napping, 1, 20.0)
    await until(lambda: site.starts()["naps"] == 1, 20)
    first.send(signal.SIGTERM)
    await until(lambda: first.said("stopping"), 10)

    def insist() -> bool:
        first.send(signal.SIGTERM)
        return not first.is_running

    await until(insist, 10)
    assert first.popen.returncode != 0


async def test_a_cancel_reaches_bodies_of_another_process(site: Yard, client: AsyncClient) -> None:
    """A coroutine, and a thread that beats every 50 ms, end within 200 ms of the cancel's answer, far within their lease."""
    site.worker(lease=30)
    for flow, arguments, node in ((flows.napping, (1, 30.0), "naps"), (flows.counting, (600,), "checkpoints")):
        handle = await client.start(flow, *arguments)
        await until(lambda node=node: site.starts()[node] == 1, 20)
        assert (await handle.cancel()).accepted
        at = time.time()
        await until(lambda node=node: site.entries(phase="stopped", node=node), 10)
        (stopped,) = site.entries(phase="stopped", node=node)
        assert stopped["at"] - at < 0.2
    assert await clean(client)
