"""C34: payloads over the limit are said, not silence. What a payload costs is counted in seconds of this process's own work."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

import composer
from composer import RunFailed, step, step_context, wait_for_event, workflow
from composer.errors import PayloadTooLarge, SettingsError
from composer.settings import Settings, read_settings
from tests.working import working

pytestmark = pytest.mark.anyio
MB = 1_000_000
LIST = Path(composer.__file__).parent / "postgres/sql/list_runs.sql"


@step(retries=5)
async def makes(size: int) -> str:
    """Text of that size."""
    return "x" * (size - 2)


@step(retries=5)
def makes_rows(size: int) -> list[dict[str, Any]]:
    """The same in many small values, of letters that take two bytes."""
    return [{"key": "é" * 400, "n": n} for n in range(size // 830)]


@step
async def length(text: str) -> int:
    """What arrived."""
    return len(text)


@step(retries=5)
def beats(size: int) -> int:
    """A checkpoint of that size."""
    step_context().heartbeat("x" * size)
    return size


@step
async def raises(size: int) -> None:
    """An error of that size."""
    raise ValueError("x" * size)


@workflow
def made(size: int) -> int:
    """From step to step."""
    return length(makes(size))


@workflow
def rows(size: int) -> list[dict[str, Any]]:
    """A result."""
    return makes_rows(size)


@workflow
def passed(text: str) -> int:
    """An input."""
    return length(text)


@workflow
def twice(size: int) -> list[str]:
    """Two results that fit, in one output that may not."""
    text = makes(size)
    return [text, text]


@workflow
def doubled(text: str) -> list[str]:
    """A run without steps, whose output is larger than its input."""
    return [text, text]


@workflow
def taking_rows(given: list[dict[str, Any]]) -> int:
    """Many small values."""
    return 1


@workflow
def beating(size: int) -> int:
    """A checkpoint."""
    return beats(size)


@workflow
def failing(size: int) -> None:
    """An error."""
    raises(size)


@workflow
def asking(n: int) -> int:
    """An event's payload."""
    return length(wait_for_event("text", str))


FLOWS = [made, rows, passed, twice, doubled, beating, failing, asking]


async def test_outputs_up_to_the_limit_work_and_above_it_fail_the_step_for_good(database: str, namespace: str) -> None:
    """0.9 and 1.1 MB in under a second; 5 and 60 MB fail at attempt 1 with size and limit, and no lease is lost on the way."""
    async with working(database, namespace, FLOWS, lease=2.0) as site:
        for size in (900_000, 1_100_000, 2 * MB):
            began = time.process_time()
            assert await (await site.client.start(made, size)).result(timeout=10) == size - 2
            assert time.process_time() - began < 1
        for flow, size in ((made, 2 * MB + 1), (made, 5 * MB), (made, 60 * MB), (rows, 5 * MB)):
            run = await site.client.start(flow, size)
            with pytest.raises(RunFailed) as caught:
                await run.result(timeout=30)
            error = caught.value
            assert (error.failure, error.kind, error.attempt) == ("node-failed", "payload-too-large", 1)
            assert "and the limit is 2,000,000" in error.message
            assert flow is rows or f"the result of step makes has {size:,} bytes" in error.message
            node = (await run.get()).nodes[0]
            assert (node.failures, node.crashes) == (1, 0)
        assert len(await (await site.client.start(rows, 1_900_000)).result(timeout=10)) == 1_900_000 // 830
        assert await site.verified() == []


async def test_inputs_above_the_limit_are_refused_before_anything_is_sent(database: str, namespace: str) -> None:
    """start() raises at once with size, limit and what to do; nothing is stored."""
    async with working(database, namespace, FLOWS) as site:
        for size in (900_000, 1_100_000):
            assert await (await site.client.start(passed, "x" * size)).result(timeout=10) == size
        for size in (5 * MB, 60 * MB):
            began = time.process_time()
            with pytest.raises(
                PayloadTooLarge, match=r"(?s)the input of workflow passed has .* pass its place"
            ) as caught:
                await site.client.start(passed, "x" * size, idempotency_key="k")
            assert time.process_time() - began < 1
            assert (caught.value.size, caught.value.limit) == (size + len('{"text":""}'), 2 * MB)
            with pytest.raises(PayloadTooLarge):
                await site.client.start_many(passed, [("a",), ("x" * size,)])
        began = time.process_time()
        with pytest.raises(PayloadTooLarge):
            await site.client.start(taking_rows, [{"key": "x" * 400, "n": n} for n in range(60 * MB // 420)])
        assert time.process_time() - began < 1, "it is not read again to be compared"
        assert (await site.client.start(passed, "a", idempotency_key="k")).created
        with pytest.raises(PayloadTooLarge, match="the reason of cancel"):
            await site.client.cancel("0" * 32, reason="x" * 5 * MB)


async def test_signals_above_the_limit_are_refused_and_lists_load_no_payload(database: str, namespace: str) -> None:
    """signal() raises at once with size and limit, and the run still waits; a list of runs reads no input and no output."""
    async with working(database, namespace, FLOWS) as site:
        for size in (900_000, 1_100_000):
            run = await site.client.start(asking, 1)
            await run.signal("text", "x" * size)
            assert await run.result(timeout=10) == size
        run = await site.client.start(asking, 1)
        for size in (5 * MB, 60 * MB):
            began = time.process_time()
            with pytest.raises(PayloadTooLarge, match="the payload of event 'text' of workflow 'asking' has") as caught:
                await run.signal("text", "x" * size)
            assert time.process_time() - began < 1
            assert (caught.value.size, caught.value.limit) == (size + 2, 2 * MB)
        await run.signal("text", "short")
        assert await run.result(timeout=10) == len("short")
        assert {each.status async for each in site.client.runs()} == {"completed"}
    columns = set(re.findall(r"\b\w+\b", re.sub("--.*", "", LIST.read_text())))
    assert columns.isdisjoint({"input", "output", "details", "payload"}), "what a list reads of a run"
    assert columns >= {"error", "letters", "tags"}


async def test_a_run_output_above_the_limit_fails_the_run_until_it_is_raised(database: str, namespace: str) -> None:
    """Its steps stay completed; a retry under a larger limit ends it without running one of them again."""
    async with working(database, namespace, FLOWS) as site:
        run = await site.client.start(twice, 1_100_000)
        with pytest.raises(
            RunFailed, match="the run's output has 2,200,003 bytes, and the limit is 2,000,000"
        ) as caught:
            await run.result(timeout=10)
        assert (caught.value.failure, caught.value.node) == ("payload-too-large", None)
        with pytest.raises(RunFailed, match="the run's output has"):
            await (await site.client.start(doubled, "x" * 1_100_000)).result(timeout=10)
        assert await site.verified() == []
    async with working(database, namespace, FLOWS, max_payload=4 * MB) as site:
        await site.client.retry(run.id)
        result = await site.client.handle(twice, run.id).result(timeout=10)
        assert [len(text) for text in result] == [1_100_000 - 2] * 2
        assert (await site.client.get(run.id)).nodes[0].attempt == 1
        assert await (await site.client.start(made, 3 * MB)).result(timeout=10) == 3 * MB - 2


async def test_checkpoints_are_refused_in_the_step_and_errors_are_cut(database: str, namespace: str) -> None:
    """heartbeat() raises where it is called; an error of 20 MB is stored with its first characters."""
    async with working(database, namespace, FLOWS, max_payload=MB) as site:
        assert await (await site.client.start(beating, 900_000)).result(timeout=10) == 900_000
        with pytest.raises(RunFailed, match="the checkpoint of node beats has 5,000,002 bytes") as caught:
            await (await site.client.start(beating, 5 * MB)).result(timeout=10)
        assert (caught.value.kind, caught.value.error_type, caught.value.attempt) == (
            "payload-too-large", "PayloadTooLarge", 1,
        )  # fmt: skip
        assert "test_c34.py" in caught.value.traceback
        with pytest.raises(RunFailed) as caught:
            await (await site.client.start(failing, 20 * MB)).result(timeout=10)
        assert len(caught.value.message) == 16_000


def test_the_limit_is_a_setting() -> None:
    """By argument or environment, in whole bytes within reason."""
    assert Settings().max_payload == 2 * MB
    assert read_settings({"COMPOSER_MAX_PAYLOAD": "5000000"}).max_payload == 5 * MB
    with pytest.raises(SettingsError, match="COMPOSER_MAX_PAYLOAD='5 MB': expected whole bytes"):
        read_settings({"COMPOSER_MAX_PAYLOAD": "5 MB"})
    for bad in (0, 999, 10**9, 1.5, True):
        with pytest.raises(SettingsError, match=r"max_payload=.*expected whole bytes, from 1,000 to 64,000,000"):
            Settings(max_payload=bad)  # type: ignore[arg-type]
