"""step_context(): what a running step is told, and how its heartbeats and checkpoints travel."""

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

import pytest

from composer.define.context import StepContext, enter, leave, step_context
from composer.errors import PayloadError, PlanError, StepCancelled


class Link:
    def __init__(self) -> None:
        self.beats: list[str | None] = []
        self.stopped = False

    def beat(self, details: str | None) -> None:
        self.beats.append(details)


def a_context(link: Link | None = None, **changes: Any) -> StepContext:
    facts: dict[str, Any] = {
        "run_id": "r1",
        "workflow": "fulfil",
        "node": "charge",
        "item": -1,
        "attempt": 1,
        "fence": 7,
        "details": None,
        "resources": {"pool": 1},
        "link": link or Link(),
    }
    return StepContext(**{**facts, **changes})


@dataclass
class Page:
    cursor: str
    done: int


def test_outside_of_a_step_there_is_no_context() -> None:
    with pytest.raises(PlanError, match="outside of a running step") as caught:
        step_context()
    assert __file__ in caught.value.where


def test_enter_and_leave_set_the_context_also_for_threads() -> None:
    context = a_context()
    token = enter(context)
    try:
        assert step_context() is context
        assert asyncio.run(asyncio.to_thread(step_context)) is context
    finally:
        leave(token)
    with pytest.raises(PlanError):
        step_context()


def test_the_idempotency_key_is_the_tasks_and_not_the_attempts() -> None:
    assert a_context(attempt=1).idempotency_key == a_context(attempt=2, fence=9).idempotency_key == "r1/charge"
    assert a_context(item=0).idempotency_key == "r1/charge/0"
    assert a_context().resources == {"pool": 1}


def test_a_heartbeat_carries_a_checkpoint_that_can_be_read_back_by_type() -> None:
    link = Link()
    context = a_context(link)
    assert context.heartbeat_details(int) is None
    assert context.heartbeat_details(int, default=0) == 0
    context.heartbeat()
    context.heartbeat(Page("x", 3))
    assert link.beats == [None, '{"cursor":"x","done":3}']
    assert context.heartbeat_details(Page) == Page("x", 3)
    context.heartbeat()
    assert context.heartbeat_details(Page) == Page("x", 3)
    assert a_context(details=link.beats[1]).heartbeat_details(Page, default=None) == Page("x", 3)


def test_a_checkpoint_of_another_type_is_refused() -> None:
    with pytest.raises(PayloadError, match="valid integer"):
        a_context(details='"x"').heartbeat_details(int, default=0)
    with pytest.raises(PayloadError):
        a_context().heartbeat(object())


def test_a_stopped_run_is_heard_at_the_next_check() -> None:
    link = Link()
    context = a_context(link)
    context.check_cancelled()
    assert not context.cancelled
    link.stopped = True
    assert context.cancelled
    with pytest.raises(StepCancelled, match="run r1 was stopped while charge was running"):
        context.check_cancelled()
    with pytest.raises(StepCancelled):
        context.heartbeat(3)
    assert link.beats == ["3"]


def test_the_log_carries_run_node_and_attempt_beside_the_callers_extra(caplog: pytest.LogCaptureFixture) -> None:
    context = a_context(attempt=2)
    with caplog.at_level(logging.INFO, "composer.step"):
        context.log.info("paid %s", 3, extra={"amount": 3})
    record = caplog.records[0].__dict__
    assert caplog.messages == ["paid 3"]
    assert (record["run_id"], record["node"], record["attempt"], record["amount"]) == ("r1", "charge", 2, 3)
    assert context.log is context.log
