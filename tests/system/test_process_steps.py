"""Steps with isolation="process": they compute elsewhere, can be killed, and nothing of them is left behind."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from composer import AsyncClient, PlanError, RunCancelled, RunFailed, StepContext, Worker, around_step, step
from composer.testing import run_workflow
from composer.worker.incarnation import process_started
from composer.worker.processes import ProcessPool
from tests.system import isolated
from tests.system.fixtures import clean
from tests.system.processes import Yard
from tests.working import until, working

pytestmark = pytest.mark.anyio


def alive(*pids: int) -> list[int]:
    """Those of the processes that run; a zombie does not."""
    return [pid for pid in pids if process_started(pid) is not None]


def here(folder: Path) -> list[int]:
    """Process ids of the bodies that left theirs."""
    return [int(file.name) for file in folder.iterdir() if file.name.isdigit()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where bodies leave their process ids."""
    made = tmp_path / "pids"
    made.mkdir()
    return made


async def test_a_process_computes_and_is_used_again(database: str, namespace: str) -> None:
    """Results of any type come back, from another process, and one process runs body after body."""
    async with working(database, namespace, isolated.FLOWS) as site:
        found = await (await site.client.start(isolated.digesting, "x")).result(timeout=30)
        assert found.hex.startswith("2d711642")
        assert found.pid != os.getpid()
        again = await (await site.client.start(isolated.digesting, "y")).result(timeout=10)
        assert again.pid == found.pid
        assert len(await (await site.client.start(isolated.two_digests, "x")).result(timeout=10)) == 64
        os.kill(found.pid, signal.SIGKILL)
        handle = await site.client.start(isolated.digesting, "z")
        other = (await handle.result(timeout=30)).pid
        assert other != found.pid
        assert (await handle.get()).nodes[0].failures == 0, "that it died while it was idle is nothing to a step"
        assert alive(other) == [other]
        assert await site.verified() == []
    assert alive(other) == [], "a worker that leaves ends its processes"


async def test_under_test_a_process_step_runs_in_this_process() -> None:
    """run_workflow starts no process: the step runs in a thread, so that a debugger and coverage see it."""
    assert (await run_workflow(isolated.digesting, "x")).value.pid == os.getpid()


async def test_no_more_processes_than_the_settings_say(database: str, namespace: str) -> None:
    """Of many tasks at most `processes` compute at a time, each is run, and other steps are not held up by them."""
    async with working(database, namespace, isolated.FLOWS, processes=2) as site:
        handles = await site.client.start_many(isolated.digesting, [(f"{n}",) for n in range(60)])
        fast = await site.client.start_many(isolated.beside, [(n,) for n in range(200)])
        for n, handle in enumerate(fast):
            assert await handle.result(timeout=30) == n + 1
        pids = {(await handle.result(timeout=30)).pid for handle in handles}
        assert 1 <= len(pids) <= 2
        assert await site.verified() == []


async def test_a_timeout_kills_the_process_and_what_it_started(database: str, namespace: str, folder: Path) -> None:
    """A body that never returns is ended by its timeout, twice by its policy, with the program it had started."""
    async with working(database, namespace, isolated.FLOWS, processes=1) as site:
        handle = await site.client.start(isolated.running_over, str(folder))
        with pytest.raises(RunFailed, match="timeout of 1 s") as caught:
            await handle.result(timeout=30)
        assert caught.value.attempt == 2
        pids = here(folder)
        programs = [int((folder / f"{pid}").read_text()) for pid in pids]
        assert len(pids) == 2
        await until(lambda: alive(*pids, *programs) == [])
        assert site.worker.loop.is_idle, "the slot is free"
        assert await (await site.client.start(isolated.digesting, "x")).result(timeout=30)
        assert await site.verified() == []


@pytest.mark.parametrize("flow", [isolated.stopped, isolated.held])
async def test_a_cancel_kills_the_process(database: str, namespace: str, folder: Path, flow: Any) -> None:
    """A cancel ends a body that computes, in Python or in native code, within a second."""
    async with working(database, namespace, isolated.FLOWS) as site:
        handle = await site.client.start(flow, str(folder))
        await until(lambda: here(folder), 30)
        at = time.monotonic()
        await handle.cancel("enough")
        await until(lambda: alive(*here(folder)) == [])
        assert time.monotonic() - at < 1.0
        with pytest.raises(RunCancelled):
            await handle.result(timeout=5)
        await until(lambda: site.worker.loop.is_idle)
        assert await site.verified() == []


async def test_a_drain_gives_back_what_does_not_end_in_time(database: str, namespace: str, folder: Path) -> None:
    """After the grace time the process is killed and its task is ready again, at no cost."""
    async with working(database, namespace, isolated.FLOWS, grace=0.3) as site:
        handle = await site.client.start(isolated.stopped, str(folder))
        await until(lambda: here(folder), 30)
    assert alive(*here(folder)) == []
    async with working(database, namespace, [isolated.beside]) as site:
        (node,) = (await site.client.get(handle.id)).nodes
        assert (node.state, node.attempt, node.failures, node.crashes) == ("ready", 1, 0, 0)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("exit", r"exit code 3"),
        ("close", r"exit code 1"),
        ("kill", r"killed by SIGKILL: out of memory, most likely"),
        ("segfault", r"killed by SIGSEGV: a crash in native code"),
    ],
)
async def test_a_process_that_dies_is_a_failure_of_the_attempt(
    database: str, namespace: str, how: str, why: str
) -> None:
    """A dead process fails the attempt with its cause; the policy decides on another; the worker goes on."""
    async with working(database, namespace, isolated.FLOWS) as site:
        handle = await site.client.start(isolated.dying, how)
        assert await handle.result(timeout=30) == f"survived {how}"
        (node,) = (await handle.get()).nodes
        assert (node.attempt, node.failures, node.crashes) == (2, 1, 0)
        always = await site.client.start(isolated.dying, f"{how} always")
        with pytest.raises(RunFailed, match=why) as caught:
            await always.result(timeout=30)
        assert caught.value.error_type == "ProcessDied"
        assert (await always.get()).error["kind"] == "process-died"
        assert await site.verified() == []


@pytest.mark.parametrize(
    ("how", "type_name", "message", "attempts"),
    [
        ("two", "TwoArguments", "a b", 4),
        ("unprintable", "Unprintable", "its text cannot be made: RuntimeError", 4),
        ("exit", "SystemExit", "4", 4),
        ("interrupt", "KeyboardInterrupt", "KeyboardInterrupt", 4),
        ("generator", "GeneratorExit", "closed", 4),
        ("odd", "Odd", "no Exception", 4),
        ("textless", "Textless", "its text cannot be made: Textless", 4),
        ("lock", "PayloadError", "has no JSON", 1),
        ("surrogate", "PayloadError", "lone surrogate", 1),
        ("group", "ExceptionGroup", r"several \(2 sub-exceptions\)", 4),
        ("final", "ValueError", "never", 1),
        ("policy", "KeyError", "not again", 1),
        ("result", "PayloadError", "its result cannot be written as str", 1),
        ("resources", "PlanError", "a process step has none", 4),
    ],
)
async def test_what_a_body_raises_comes_back_as_text(
    database: str, namespace: str, how: str, type_name: str, message: str, attempts: int
) -> None:
    """Type, text and traceback of any exception come back, and it is retried or not as in a thread."""
    async with working(database, namespace, isolated.FLOWS) as site:
        handle = await site.client.start(isolated.raising, how)
        with pytest.raises(RunFailed, match=message) as caught:
            await handle.result(timeout=30)
        assert (caught.value.error_type, caught.value.attempt) == (type_name, attempts)
        if type_name not in ("PayloadError", "Unprintable", "Textless"):
            assert "isolated.py" in caught.value.traceback
            assert "process_child" not in caught.value.traceback


async def test_threads_that_a_body_leaves_behind_hold_nothing_up(database: str, namespace: str) -> None:
    """A body that leaves 200 threads and an exit that hangs is reported; the next runs in its process, which ends with the worker."""
    async with working(database, namespace, isolated.FLOWS, processes=1) as site:
        pid = await (await site.client.start(isolated.littering, 200)).result(timeout=30)
        assert (await (await site.client.start(isolated.digesting, "x")).result(timeout=30)).pid == pid
        with anyio.fail_after(10):
            await site.worker.stop()
        assert alive(pid) == []


@pytest.mark.parametrize(("how", "result"), [("after", "after 2"), ("snooze", "snooze 1")])
async def test_a_steps_verbs_cross(database: str, namespace: str, how: str, result: str) -> None:
    """RetryAfter and Snooze, with its checkpoints, mean what they mean in a thread."""
    async with working(database, namespace, isolated.FLOWS) as site:
        assert await (await site.client.start(isolated.raising, how)).result(timeout=30) == result


async def test_heartbeats_cross_and_a_dead_process_goes_on_from_its_checkpoint(
    database: str, namespace: str, folder: Path
) -> None:
    """Checkpoints reach the database before the process dies, and the next attempt begins there."""
    async with working(database, namespace, isolated.FLOWS) as site:
        handle = await site.client.start(isolated.counting_on, 20, str(folder))

        async def kept() -> bool:
            record = await site.client.store.get_run(handle.id)
            return record is not None and record.tasks[0].details == "11"

        await until(kept, 30)
        await until(lambda: here(folder))
        os.kill(*here(folder), signal.SIGKILL)
        assert await handle.result(timeout=30) == list(range(11, 20))


async def test_log_records_cross_with_their_facts(
    database: str, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Records of any logger come out of the worker's handlers, with run, node, attempt and the extra."""
    caplog.set_level(logging.INFO)
    async with working(database, namespace, isolated.FLOWS) as site:
        handle = await site.client.start(isolated.logging_there, "hello")
        await handle.result(timeout=30)
    records = {record.getMessage(): record.__dict__ for record in caplog.records}
    plainly, context = records["plainly hello"], records["by the context"]
    for each in (plainly, context, records["with a traceback"]):
        assert (each["run_id"], each["workflow"], each["node"], each["attempt"]) == (
            handle.id,
            "logging_there",
            "logs",
            1,
        )
    assert (plainly["colour"], plainly["name"], plainly["levelname"]) == ("red", "tests.isolated", "WARNING")
    assert context["name"] == "composer.step"
    assert "ValueError: hello" in records["with a traceback"]["exc_text"]


async def test_what_stands_around_sees_values_and_texts(database: str, namespace: str) -> None:
    """An around_step of the worker gets the result as a value, and an exception as type and text, and may pass both on."""
    seen: list[Any] = []

    @around_step
    async def watch(ctx: StepContext, call: Any) -> Any:
        isolated.tenant.set("the worker's")
        try:
            value = await call()
        except Exception as error:
            seen.append(f"{type(error).__name__} {error}")
            raise
        seen.append(value)
        return value

    async with (
        Worker(isolated.FLOWS, database_url=database, namespace=namespace, around=[watch]) as worker,
        AsyncClient(store=worker.store) as client,
    ):
        found = await (await client.start(isolated.digesting, "x")).result(timeout=30)
        assert seen == [found]
        assert isinstance(seen[0], isolated.Digest)
        there = await (await client.start(isolated.logging_there, "x")).result(timeout=30)
        assert there == "nobody", "context variables stay in the worker"
        with pytest.raises(RunFailed) as caught:
            await (await client.start(isolated.raising, "policy")).result(timeout=30)
        assert caught.value.error_type == "KeyError"
        assert seen[-1] == "ProcessStepError KeyError: 'not again'"


@pytest.mark.parametrize("body", ["stopped", "held"])
async def test_nothing_is_left_of_a_worker_that_was_killed(
    site: Yard, client: AsyncClient, folder: Path, body: str
) -> None:
    """kill -9 of the worker ends its processes within a second, also one in native code; another worker goes on."""
    first = site.worker("--no-coordinator", module="tests.system.isolated")
    handle = await client.start(getattr(isolated, body), str(folder))
    await until(lambda: here(folder), 30)
    pids = here(folder)
    assert alive(*pids) == pids
    first.kill()
    at = time.monotonic()
    await until(lambda: alive(*pids) == [], 5)
    assert time.monotonic() - at < 1.0
    site.worker(module="tests.system.isolated")
    await until(lambda: len(here(folder)) == 2, 30)
    await handle.cancel()
    await until(lambda: alive(*here(folder)) == [])
    assert await clean(client)


async def test_sigterm_to_the_whole_group_leaves_a_process_its_grace_time(site: Yard, client: AsyncClient) -> None:
    """A service manager tells every process: the one of a step finishes its body all the same, and the worker exits with 0."""
    worker = site.worker("--grace", "20", module="tests.system.lasting")
    from tests.system import lasting

    handle = await client.start(lasting.lasting, str(site.folder))
    file = site.folder / "began"
    await until(file.exists, 30)
    pid = int(file.read_text())
    os.kill(pid, signal.SIGTERM)
    worker.send(signal.SIGTERM)
    (site.folder / "go").touch()
    assert await asyncio.to_thread(worker.popen.wait, 20) == 0
    assert await handle.result(timeout=10) == "done"
    assert alive(pid) == []


async def test_idle_processes_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that had nothing to do for a while ends by itself, and the next body gets a new one."""
    monkeypatch.setattr("composer.worker.processes._IDLE", 0.2)
    pool = ProcessPool([isolated.digest])
    first = await pool.acquire()
    pool.release(first)
    assert pool.pids == [first.pid]
    await until(lambda: pool.pids == [])
    assert alive(first.pid) == []
    second = await pool.acquire()
    assert second.pid != first.pid
    pool.release(second)
    os.kill(second.pid, signal.SIGKILL)
    await until(lambda: second.has_ended)
    third = await pool.acquire()
    assert third is not second, "one that died while it was idle is not lent again"
    pool.release(third)
    await pool.close()
    assert pool.pids == alive(first.pid, second.pid, third.pid) == []


SCRIPT = """
import os, sys
import anyio
from composer import AsyncClient, Worker, step, workflow

@step(isolation="process")
def double(n: int) -> int:
    assert os.getpid() != int(os.environ["MAIN_PID"])
    return 2 * n

@workflow
def doubling(n: int) -> int:
    return double(n)

async def main():
    os.environ["MAIN_PID"] = str(os.getpid())
    async with Worker([doubling]) as worker, AsyncClient(store=worker.store) as client:
        print("result", await (await client.start(doubling, 21)).result(timeout=60))

"""


async def run_script(folder: Path, database: str, namespace: str, end: str) -> str:
    """What a script prints that is its own worker."""
    file = folder / "script.py"
    file.write_text(SCRIPT + end)
    environment = {**os.environ, "COMPOSER_DATABASE_URL": database, "COMPOSER_NAMESPACE": namespace}
    done = await anyio.run_process([sys.executable, str(file)], check=False, env=environment, stderr=subprocess.STDOUT)
    return done.stdout.decode()


async def test_a_script_that_is_its_own_worker_has_process_steps(database: str, namespace: str, tmp_path: Path) -> None:
    """Steps of `__main__` are found in the script's file; one that starts its worker unguarded is told what to write."""
    guarded = await run_script(tmp_path, database, namespace, 'if __name__ == "__main__":\n    anyio.run(main)\n')
    assert "result 42" in guarded
    told = await run_script(tmp_path, database, namespace, "anyio.run(main)\n")
    assert 'put what starts it under `if __name__ == "__main__":`' in told
    assert "RunFailed" in told


def test_a_step_that_no_process_can_find_is_refused_where_it_is_defined() -> None:
    """Closures, coroutines, nodes and other values are refused with the reason."""

    def inner(n: int) -> int:
        return n

    async def waits(n: int) -> int:
        return n

    with pytest.raises(PlanError, match="inside another one") as caught:
        step(isolation="process")(inner)
    assert "module-level" in str(caught.value)
    with pytest.raises(PlanError, match="async def"):
        step(isolation="process")(waits)
    with pytest.raises(PlanError, match="'thread' or 'process'"):
        step(isolation="proces")(inner)  # type: ignore[call-overload]
    with pytest.raises(PlanError, match="belongs to the code"):
        isolated.digest.options(isolation="thread")


def _nameless(n: int) -> int:
    return n


def test_a_step_that_its_module_does_not_hold_is_refused_by_the_worker() -> None:
    """The worker says before it starts that no process would find the step."""
    lost = step(isolation="process", name="lost")(_nameless)
    with pytest.raises(PlanError, match="not to be found in module"):
        Worker([], steps=[lost])
