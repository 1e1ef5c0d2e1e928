"""runs, watch and explain: what users see of runs, live and afterwards."""

from __future__ import annotations

import anyio
import pytest

from composer import (
    Change,
    Client,
    NonRetryable,
    QueryError,
    Settings,
    sleep,
    step,
    wait_for_event,
    workflow,
)
from tests.working import until, working

pytestmark = pytest.mark.anyio

_go = anyio.Event()


@step
async def quick(n: int) -> int:
    """Returns at once."""
    return n


@step
async def held(n: int) -> int:
    """Waits until it is let go."""
    await _go.wait()
    return n


@step(retries=1)
async def broken(n: int) -> int:
    """Fails for good."""
    raise NonRetryable(f"{n} is bad")


@step(queue="nobody")
async def unserved(n: int) -> int:
    """Nobody serves its queue."""
    return n


@workflow
def holding(n: int) -> int:
    """A step that is held between two."""
    return quick(held(quick(n)))


@workflow
def failing(n: int) -> int:
    """Fails."""
    return broken(n)


@workflow
def waiting(n: int) -> tuple[int, int]:
    """Waits for an event, sleeps, and for a worker that does not come."""
    slept = sleep("1d")
    return wait_for_event("go", int, timeout="2d", after=quick(n)), unserved.after(slept)(unserved(n))


@workflow
def mapped(n: int) -> list[int]:
    """A map."""
    return quick.map([1, 2, 3])


def told(changes: list[Change]) -> list[tuple[str, str | None]]:
    """Events and nodes."""
    return [(change.event, change.node) for change in changes]


async def test_watch_tells_history_and_then_what_happens(database: str, namespace: str) -> None:
    """Every change is told once and in order, a start before its end; another watch goes on where this one stopped."""
    global _go
    _go = anyio.Event()
    async with working(database, namespace, [holding]) as site:
        handle = await site.client.start(holding, 1)
        seen: list[Change] = []

        async def follow() -> None:
            async for change in handle.watch():
                seen.append(change)

        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            await until(lambda: ("step-started", "held") in told(seen))
            assert ("step-completed", "held") not in told(seen)
            _go.set()
        assert told(seen) == [
            ("started", None),
            ("step-started", "quick"), ("step-completed", "quick"),
            ("step-started", "held"), ("step-completed", "held"),
            ("step-started", "quick-2"), ("step-completed", "quick-2"),
            ("run-completed", None),
        ]  # fmt: skip
        assert [change.version for change in seen] == sorted(change.version for change in seen)
        rest = [change async for change in site.client.watch(handle.id, after_version=2)]
        assert told(rest)[-3:] == told(seen)[-3:]
        assert ("step-completed", "quick") not in told(rest)


async def test_watch_tells_what_follows(database: str, namespace: str) -> None:
    """Maps, waits and failures are told as well."""
    async with working(database, namespace, [mapped, failing]) as site:
        handle = await site.client.start(mapped, 1)
        events = told([change async for change in handle.watch()])
        assert ("map-started", "quick") in events
        assert events.count(("step-completed", "quick")) == 3
        assert events[-1] == ("run-completed", None)
        bad = await site.client.start(failing, 7)
        changes = [change async for change in bad.watch()]
        assert changes[-1].event == "run-failed"
        failure = next(change for change in changes if change.event == "step-failed")
        assert (failure.outcome, failure.error) == ("failed", "NonRetryable: 7 is bad")


async def test_runs_are_listed(database: str, namespace: str) -> None:
    """The client lists what is asked for, lazily; what cannot be meant is refused before anything is read."""
    async with working(database, namespace, [mapped, failing]) as site:
        client = site.client
        good = await client.start(mapped, 1, tags={"customer": "7"})
        bad = [await client.start(failing, n) for n in range(3)]
        for handle in (good, *bad):
            await client.wait(handle.id, timeout=10)
        failed = [run async for run in client.runs(failing, status="failed", page=1)]
        assert [run.id for run in failed] == [handle.id for handle in reversed(bad)]
        assert {(run.error_code, run.error_message) for run in failed} == {
            ("node-failed", f"NonRetryable: {n} is bad") for n in range(3)
        }
        (one,) = [run async for run in client.runs(tags={"customer": "7"})]
        assert (one.id, one.workflow, one.status, one.nodes_settled, one.nodes_total) == (
            good.id,
            "mapped",
            "completed",
            1,
            1,
        )
        for wrong in ({"status": "faild"}, {"workflow": 7}, {"page": 0}):
            with pytest.raises(QueryError):
                [run async for run in client.runs(**wrong)]  # type: ignore[arg-type]


async def test_explain_says_what_every_open_node_waits_for(database: str, namespace: str) -> None:
    """A wait names its event and moment, a sleep its end, a step that nobody serves its queue, a blocked one what it needs."""
    async with working(database, namespace, [waiting]) as site:
        handle = await site.client.start(waiting, 1)

        async def waits() -> bool:
            return {n.name: n.state for n in (await handle.get()).nodes}["go"] == "waiting"

        await until(waits)
        explained = await handle.explain()
        texts = {node.node: node.text for node in explained.nodes}
        assert texts["go"].startswith("it waits for event 'go', until ")
        assert texts["sleep"].startswith("sleeps until ")
        assert "no live worker serves queue 'nobody'" in texts["unserved"]
        assert texts["unserved-2"] == "waits for unserved, sleep"
        assert [node.node for node in explained.nodes if node.is_stuck] == ["unserved"]
        assert str(explained).startswith(f"run {handle.id} of workflow 'waiting' is running: 4 of 5 nodes are open")
        assert "! unserved: " in str(explained)


async def test_explain_says_why_a_run_ended(database: str, namespace: str) -> None:
    """An ended run has no open nodes, and the reason of its end."""
    async with working(database, namespace, [failing]) as site:
        handle = await site.client.start(failing, 7)
        await site.client.wait(handle.id, timeout=10)
        explained = await site.client.explain(handle.id)
        assert (explained.status, list(explained.nodes)) == ("failed", [])
        assert explained.text == "node-failed at node 'broken': NonRetryable: 7 is bad"


async def test_sync_client_has_the_same(database: str, namespace: str) -> None:
    """Lists and watches are plain iterators there."""
    async with working(database, namespace, [mapped]) as site:
        handle = await site.client.start(mapped, 1)
        await site.client.wait(handle.id, timeout=10)

        def look() -> tuple[list[str], list[str], str]:
            with Client(settings=Settings(database_url=database, namespace=namespace)) as client:
                runs = [run.id for run in client.runs(mapped)]
                events = [change.event for change in client.watch(handle.id)]
                return runs, events, client.explain(handle.id).status

        runs, events, status = await anyio.to_thread.run_sync(look)
    assert (runs, events[0], events[-1], status) == ([handle.id], "started", "run-completed", "completed")
