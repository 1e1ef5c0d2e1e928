"""C56: context lost or leaked between steps."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections import Counter
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from composer import StepContext, StepLogFilter, around_step, step, step_context, workflow
from tests.working import working

pytestmark = pytest.mark.anyio

RUNS = 50
STEPS = 20
"""Of a run: 1,000 in all, on four threads."""

log = logging.getLogger("an.application")
tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")
at_start: contextvars.ContextVar[str] = contextvars.ContextVar("at_start", default="nothing")
own: contextvars.ContextVar[str] = contextvars.ContextVar("own", default="untouched")


class Kept(logging.Handler):
    """Keeps what was logged."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[dict[str, Any]] = []
        self.addFilter(StepLogFilter())

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record.__dict__)


def _body(n: int, kind: str) -> int:
    context = step_context()
    facts = {"expected": (context.run_id, context.workflow, context.node, context.attempt)}
    log.info("works", extra={**facts, "kind": kind, "thread_id": threading.get_ident()})
    seen = (own.get(), tenant.get(), at_start.get())
    if seen != ("untouched", f"tenant of {context.run_id}", "set at start"):
        log.error("saw what it must not see: %s", seen)
    own.set(f"{context.run_id} {context.node}")
    return n + 1


@step
async def on_loop(n: int) -> int:
    """Logs and sets a variable of its own, with others in between."""
    made = _body(n, "async")
    await anyio.lowlevel.checkpoint()
    assert own.get() == f"{step_context().run_id} {step_context().node}"
    return made


@step
def in_thread(n: int) -> int:
    """The same in a thread, which many share."""
    return _body(n, "thread")


@around_step
async def tenants(ctx: StepContext, call: Any) -> Any:
    """Sets the tenant of each attempt."""
    tenant.set(f"tenant of {ctx.run_id}")
    return await call()


@workflow
def many(n: int) -> int:
    """Coroutines and threads by turns."""
    value = n
    for _ in range(STEPS // 2):
        value = in_thread(on_loop(value))
    return value


async def test_each_record_and_each_body_has_its_own_context(database: str, namespace: str) -> None:
    """Of 1,000 log records none carries another's ids, a hook's variable is seen, and no body sees another's."""
    kept = Kept()
    log.addHandler(kept)
    log.setLevel(logging.INFO)
    log.propagate = False
    token = at_start.set("set at start")
    try:
        async with working(database, namespace, [many], around=[tenants], threads=4) as site:
            at_start.reset(token)
            handles = await site.client.start_many(many, [(n,) for n in range(RUNS)])
            for n, handle in enumerate(handles):
                assert await handle.result(timeout=60) == n + STEPS
    finally:
        log.removeHandler(kept)
    assert [record for record in kept.records if record["levelno"] >= logging.ERROR] == []
    assert len(kept.records) == RUNS * STEPS
    for record in kept.records:
        assert (record["run_id"], record["workflow"], record["node"], record["attempt"]) == record["expected"]
    assert Counter(record["kind"] for record in kept.records) == {
        "async": RUNS * STEPS // 2,
        "thread": RUNS * STEPS // 2,
    }
    threads = {record["thread_id"] for record in kept.records if record["kind"] == "thread"}
    assert len(threads) <= 8, "many bodies ran on each thread"
    assert (own.get(), tenant.get()) == ("untouched", "nobody"), "nothing reaches the application"


def test_a_record_outside_of_a_step_has_no_facts_of_one() -> None:
    """Nothing is added where no step runs, and every record passes."""
    record = logging.makeLogRecord({"msg": "x"})
    assert StepLogFilter().filter(record)
    assert not {"run_id", "node", "attempt"} & record.__dict__.keys()
