"""Real processes that are killed, stopped, blocked and told to leave: every run ends, and each result is applied once."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import asyncpg
import pytest

from composer import AsyncClient, RunFailed, Settings
from composer.verify import Verified, verify
from tests.system import flows
from tests.system.processes import Yard, yard
from tests.working import until

pytestmark = pytest.mark.anyio


@pytest.fixture
def site(database: str, namespace: str, tmp_path: Path):
    """Processes on this module's database."""
    with yard(database, namespace, tmp_path) as made:
        yield made


@pytest.fixture
async def client(database: str, namespace: str):
    """A client on the same."""
    async with AsyncClient(settings=Settings(database_url=database, namespace=namespace)) as made:
        yield made


async def clean(client: AsyncClient) -> bool:
    """Whether every invariant holds."""
    return [violation async for violation in verify(client.store, Verified())] == []


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
    handle = await client.start(flows.napping, 1, 1.5)
    await until(lambda: site.starts()["naps"] == 1, 20)
    # Only the sweep can find it: no worker starts on this machine after the kill.
    survivor = site.worker("--no-coordinator")
    await until(lambda: "workflow napping" in survivor.log.read_text(), 20)
    for _ in range(3):
        site.coordinator()
    dying.kill()
    assert await handle.result(timeout=30) == 4
    assert site.starts()["naps"] == 2
    assert await clean(client)


async def test_a_stopped_worker_that_comes_back_is_refused(site: Yard, client: AsyncClient) -> None:
    """C01, second part: SIGSTOP past the lease, another worker finishes, SIGCONT: one result, the old one refused and logged."""
    first = site.worker("--no-coordinator")
    handle = await client.start(flows.napping, 1, 1.0)
    await until(lambda: site.starts()["naps"] == 1, 20)
    first.send(signal.SIGSTOP)
    second = site.worker()
    await until(lambda: site.starts()["naps"] == 2, 30)
    assert await handle.result(timeout=20) == 4
    first.send(signal.SIGCONT)
    await until(lambda: first.said("lease was lost") or first.said("report was not applied"), 10)
    deliveries = {entry["pid"]: (entry["attempt"], entry["delivery"]) for entry in site.entries(phase="start", node="naps")}
    assert deliveries[first.popen.pid] == (1, 1)
    assert deliveries[second.popen.pid] == (1, 2)
    second.kill()
    assert await (await client.start(flows.short, 1)).result(timeout=20) == 3, "the first worker serves on without a restart"
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
    assert all(b - a >= 0.15 for a, b in zip(starts, starts[1:], strict=False)), "the back-off is kept"
    for other, n in zip(others, range(20), strict=True):
        assert await other.result(timeout=20) == n + 2
    assert await clean(client)


async def test_a_checkpoint_survives_the_worker(site: Yard, client: AsyncClient) -> None:
    """Heartbeat details are there for the delivery after a kill -9."""
    first = site.worker()
    handle = await client.start(flows.counting, 60)
    await until(lambda: site.starts()["checkpoints"] == 1, 20)

    async def kept() -> bool:
        record = await client.store.get_run(handle.id)
        return record is not None and record.tasks[0].details is not None and int(record.tasks[0].details) >= 10

    await until(kept, 20)
    first.kill()
    site.worker()
    assert await handle.result(timeout=30) == 60
    assert site.entries(phase="start")[-1]["begun_at"] >= 10


async def test_a_worker_that_is_told_to_leave_leaves_nothing_behind(site: Yard, client: AsyncClient) -> None:
    """SIGTERM: no new tasks, what cannot finish is given back at once, exit code 0, no waiting for a lease."""
    first = site.worker(lease=30)
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
    at = time.monotonic()
    first.send(signal.SIGTERM)
    assert first.popen.wait(5) != 0
    assert time.monotonic() - at < 2


async def test_a_lost_listener_comes_back_and_hears(site: Yard, client: AsyncClient, database: str) -> None:
    """C04: after its LISTEN backend was terminated a worker hears again; no run waits for a poll."""
    worker = site.worker()
    await (await client.start(flows.short, 1)).result(timeout=20)
    connection = await asyncpg.connect(database)
    try:
        listening = "select pid from pg_stat_activity where datname = current_database() and query ilike 'listen %'"
        before = {row["pid"] for row in await connection.fetch(listening)}
        assert before
        await connection.execute("select pg_terminate_backend(pid) from unnest($1::int[]) as x(pid)", list(before))

        async def back() -> bool:
            now = {row["pid"] for row in await connection.fetch(listening)}
            return bool(now) and not now & before

        await until(back, 5)
        took: list[float] = []
        for n in range(20):
            at = time.monotonic()
            assert await (await client.start(flows.short, n)).result(timeout=10) == n + 2
            took.append(time.monotonic() - at)
        assert sorted(took)[10] < 0.3
        assert worker.is_running
    finally:
        await connection.close()
