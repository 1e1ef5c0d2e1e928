"""A stage: runs a workflow as users write it, in memory on a virtual clock or on a real server, and says how it went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import anyio

from composer import AsyncClient, Settings, Worker
from composer.testing import Later, run_workflow
from composer.testing.driver import WorkflowStuck
from composer.verify import Verified, verify
from tests.working import opened


@dataclass
class Played:
    """How a run ended."""

    status: str
    output: Any
    error: Mapping[str, Any] | None
    states: dict[str, str]
    """State of every node, by name."""
    run_id: str = ""

    @property
    def code(self) -> str | None:
        """The error's code."""
        return self.error["code"] if self.error else None


class MemoryStage:
    """In memory: time is turned."""

    is_real = False

    async def play(self, flow: Any, *args: Any, signals: Mapping[str, Any] | None = None) -> Played:
        """Runs it to its end."""
        try:
            result = await run_workflow(flow, *args, signals=signals)
        except WorkflowStuck as error:
            raise AssertionError(str(error)) from None
        run = result.run
        return Played(run.status, run.output, run.error, {node.name: node.state for node in run.nodes}, run.id)


class PostgresStage:
    """On a server, with a worker: time passes, so that workflows here wait for tenths of seconds."""

    is_real = True

    def __init__(self, url: str, namespace: str) -> None:
        self._url, self._namespace = url, namespace

    async def play(self, flow: Any, *args: Any, signals: Mapping[str, Any] | None = None) -> Played:
        """Runs it to its end, and finds nothing wrong with what it left."""
        settings = Settings(database_url=self._url, namespace=self._namespace, poll_interval=0.1)
        async with (
            opened(self._url, self._namespace) as store,
            Worker([flow], settings, store=store),
            AsyncClient(store=store, settings=settings) as client,
        ):
            handle = await client.start(flow, *args)
            began = anyio.current_time()
            for event, payloads in (signals or {}).items():
                for each in payloads if isinstance(payloads, list) else [payloads]:
                    later = each if isinstance(each, Later) else Later(0.0, each)
                    assert isinstance(later.delay, float | int)
                    await anyio.sleep(max(0.0, began + later.delay - anyio.current_time()))
                    await client.signal(handle.id, event, later.payload)
            await client.wait(handle.id, timeout=20)
            run = await handle.get()
            assert [violation async for violation in verify(store, Verified())] == []
        return Played(run.status, run.output, run.error, {node.name: node.state for node in run.nodes}, run.id)


Stage = MemoryStage | PostgresStage
