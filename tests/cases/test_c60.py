"""C60: notebooks, and the sync and async client mixed up."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import anyio
import nbformat
import pytest
from nbclient import NotebookClient

from composer import AsyncClient, Client, ClientError, RunFailed, Settings, Worker, step, workflow
from tests.working import until, working

pytestmark = pytest.mark.anyio

NOTEBOOK = Path(__file__).parents[2] / "samples/notebook.ipynb"


@step
async def add(n: int) -> int:
    """One more."""
    return n + 1


began = threading.Semaphore(0)
let_go = threading.Event()


@step
def blocks(n: int) -> int:
    """Blocks its thread until it is let go."""
    began.release()
    assert let_go.wait(10)
    return n + 1


@step
async def starts_another(n: int) -> int:
    """Takes the blocking client where it must not."""
    assert blocking is not None
    return blocking.start(plus, n).result()


blocking: Client | None = None


@workflow
def plus(n: int) -> int:
    """One step."""
    return add(n)


@workflow
def slow(n: int) -> int:
    """One step that blocks."""
    return blocks(n)


@workflow
def nested(n: int) -> int:
    """One step that starts a run."""
    return starts_another(n)


@pytest.fixture
def kernel_environment(database: str, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kernel started now finds: this module's database."""
    monkeypatch.setenv("COMPOSER_DATABASE_URL", database)
    monkeypatch.setenv("COMPOSER_NAMESPACE", namespace)


def outputs(notebook: Any) -> list[str]:
    """The text of every cell's outputs."""
    return [
        "".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs)
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


@pytest.mark.filterwarnings("default")
def test_notebook_runs_from_top_to_bottom(kernel_environment: None) -> None:
    """The sample notebook, in a real kernel: defined in cells, run, watched; the worker stops and the kernel lives on."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell("print('alive', worker.loop is not None)"))
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    said = outputs(notebook)
    assert said[-1] == "alive True\n"
    assert "'5.4 degrees apart'" in said
    assert any("AsyncClient" in text for text in said)
    assert any("('compare', 'completed')" in text for text in said)


def test_notebook_is_stored_without_outputs() -> None:
    """What a reader sees comes from the reader's own kernel."""
    cells = [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in cells)


async def test_sync_client_refuses_a_running_loop_at_once(database: str, namespace: str) -> None:
    """Opening a Client where a loop runs, and each call of one, raises within moments and names AsyncClient; none returns a coroutine."""
    made = Client(settings=Settings(database_url=database, namespace=namespace))
    with pytest.raises(ClientError, match="AsyncClient"), made:
        pass
    # Entered in another thread, as an application's module would have.
    client = await anyio.to_thread.run_sync(made.__enter__)
    try:
        began = time.monotonic()
        for call in (
            lambda: client.start(plus, 1),
            lambda: client.get("x"),
            lambda: client.cancel("x"),
            lambda: next(client.runs()),
            lambda: next(client.watch(str(uuid.uuid4()))),
        ):
            with pytest.raises(ClientError, match="AsyncClient"):
                call()
        assert time.monotonic() - began < 2
    finally:
        await anyio.to_thread.run_sync(client.__exit__, None, None, None)


async def test_sync_client_in_an_async_step_fails_the_step_with_the_reason(database: str, namespace: str) -> None:
    """A step on the loop that uses Client fails at once, with the advice in its error, and the worker goes on."""
    global blocking
    settings = Settings(database_url=database, namespace=namespace)
    # Entered in another thread, as an application's module would have.
    blocking = await anyio.to_thread.run_sync(Client(settings=settings).__enter__)
    try:
        async with working(database, namespace, [plus, nested]) as site:
            with pytest.raises(RunFailed, match="AsyncClient"):
                await (await site.client.start(nested, 1)).result(timeout=2)
            assert await (await site.client.start(plus, 1)).result(timeout=10) == 2
    finally:
        await anyio.to_thread.run_sync(blocking.__exit__, None, None, None)
        blocking = None


def forget(client: AsyncClient) -> None:
    """Makes the mistake."""
    client.start(plus, 1)  # type: ignore[unused-coroutine]
    gc.collect()


async def test_forgotten_await_is_warned_about(database: str, namespace: str) -> None:
    """A start that nobody awaits is a coroutine that Python warns about, and starts nothing."""
    async with AsyncClient(settings=Settings(database_url=database, namespace=namespace)) as client:
        with pytest.warns(RuntimeWarning, match="never awaited"):
            forget(client)


async def test_blocking_step_does_not_hold_up_the_loop(database: str, namespace: str) -> None:
    """While plain functions block their threads, the loop beside them is never held up for 50 ms."""
    lags: list[float] = []

    async def measure() -> None:
        worst = 0.0
        try:
            while True:
                began = time.monotonic()
                await anyio.sleep(0.005)
                worst = max(worst, time.monotonic() - began - 0.005)
        finally:
            lags.append(worst)

    async with working(database, namespace, [plus, slow]) as site:
        for _ in range(5):  # A busy machine holds up everybody now and then.
            async with anyio.create_task_group() as group:
                let_go.clear()
                handles = await site.client.start_many(slow, [(n,) for n in range(4)])
                for _ in handles:
                    await until(lambda: began.acquire(blocking=False))
                group.start_soon(measure)
                for n in range(20):
                    assert await (await site.client.start(plus, n)).result(timeout=10) == n + 1
                let_go.set()
                assert [await handle.result(timeout=10) for handle in handles] == [1, 2, 3, 4]
                group.cancel_scope.cancel()
            if lags[-1] < 0.05:
                break
    assert min(lags) < 0.05


async def test_async_client_in_a_second_loop_is_refused(database: str, namespace: str) -> None:
    """A client opened in one loop and used in another raises within 2 s, and goes on working in its own."""
    refused: list[BaseException] = []

    async def use(client: AsyncClient) -> None:
        try:
            await client.start(plus, 1)
        except ClientError as error:
            refused.append(error)

    async with working(database, namespace, [plus]) as site:
        await site.client.start(plus, 0)
        thread = threading.Thread(target=asyncio.run, args=(use(site.client),))
        began = time.monotonic()
        thread.start()
        await anyio.to_thread.run_sync(thread.join)
        assert time.monotonic() - began < 2
        assert "another event loop" in str(refused[0])
        assert await (await site.client.start(plus, 1)).result(timeout=10) == 2


async def test_worker_in_a_cell_stops_without_ending_the_process(database: str, namespace: str) -> None:
    """A worker that was started in one task and is stopped in another ends in time, and the process goes on."""
    settings = Settings(database_url=database, namespace=namespace)
    worker = await asyncio.create_task(Worker([plus], settings).start())
    with anyio.fail_after(5):
        await asyncio.create_task(worker.stop())
