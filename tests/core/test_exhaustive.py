"""Small plans, every order of everything: each state that can be reached keeps the invariants, and none is a dead end.

A state is the run, its task rows and what two workers hold, without the numbers that only grow. Time is abstract:
whatever can happen may happen now or later, so a lease can end and a body report at any moment after it was handed out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from composer.core.events import (
    CancelRequested,
    Delivery,
    Event,
    LeaseExpired,
    Report,
    RetryRequested,
    Signalled,
    StepCompleted,
    StepFailed,
    StepReleased,
    TimerFired,
)
from composer.core.plan import NodeOptions, Plan
from composer.core.retries import Retry
from composer.core.states import ENDED_RUN, RunStatus, TaskState
from tests.builders import a_failure, a_plan, says
from tests.core.model import ModelStore
from tests.search import explore

WORKERS = 2
SIGNALS = 2
"""Signals that are sent to a run."""
TWICE = NodeOptions(retries=Retry(2, 1.0), max_crashes=2)
ONCE = NodeOptions(max_crashes=2)
PLANS = {
    "chain": a_plan({"a": [], "b": ["a"]}, output="b", every=TWICE),
    "diamond": a_plan({"a": [], "b": ["a"], "c": ["after:a"], "d": ["b", "c"]}, every=NodeOptions(max_crashes=1)),
    "fan-in": a_plan({"a": [], "b": [], "c": ["a", "after:b"]}, output="c", every=ONCE),
    "fail-fast": a_plan({"a": [], "b": [], "c": ["a", "b"]}, every=ONCE, fail_fast=True),
    "after a skip": a_plan({"a": [], "b": ["a"], "c": ["after:b"]}, every=NodeOptions(max_crashes=1)),
    "fallback": a_plan(
        {"a": [], "g": [], "b": ["when:g"], "c": ["a", "unless:g"]},
        guards={"g": says("eq", "settled:a/state", ("failed",), kind="text")},
        output="either:b,c",
        every=NodeOptions(max_crashes=1),
    ),
    "nested blocks": a_plan(
        {"a": [], "b": [], "g": [], "h": ["when:g"], "c": ["when:h"], "d": ["maybe:c", "unless:h"], "e": ["unless:g"]},
        guards={"g": says("gt", "a", 1, kind="number"), "h": says("gt", "b", 1, kind="number")},
        every=NodeOptions(max_crashes=1),
    ),
    "unreadable": a_plan(
        {"a": [], "g": [], "b": ["when:g"], "c": ["unless:g"], "d": ["settled:a"]},
        guards={"g": says("gt", "settled:a/value", 1, kind="number")},
        every=NodeOptions(max_crashes=1),
    ),
    "fail-fast, handled": a_plan(
        {"a": [], "b": [], "g": [], "c": ["settled:a", "when:g"]},
        guards={"g": says("gt", "b", 1, kind="number")},
        every=NodeOptions(max_crashes=1),
        fail_fast=True,
    ),
}


def raw(*nodes: dict[str, Any], output: Any = None) -> Plan:
    """A plan of nodes of any kind, in their order."""
    return Plan({"format": 1, "workflow": "shop", "nodes": [{"args": {}, **node} for node in nodes], "output": output})


def a_wait(name: str, event: str = "go", **more: Any) -> dict[str, Any]:
    """A wait for an event."""
    return {"name": name, "kind": "wait", "event": event, "schema": {}, "timeout": None, **more}


REF = {name: {"$": {"ref": name}} for name in "awxrs"}
PLANS |= {
    "timeout": raw(
        a_wait("w", timeout=5),
        {"name": "a", "kind": "step", "step": "a", "args": {"x": {"$": {"settled": [{"ref": "w"}]}}}, "options": {"max_crashes": 1}},
    ),
    "two waits": raw(
        a_wait("w", timeout=5, on_timeout={"const": 0}), a_wait("x"),
        {"name": "a", "kind": "step", "step": "a", "args": {"x": REF["w"], "y": REF["x"]}, "options": {"max_crashes": 1}},
        output=REF["a"],
    ),
    "race": raw(
        {"name": "a", "kind": "step", "step": "a", "options": {"max_crashes": 1}},
        {"name": "s", "kind": "sleep", "args": {"for": 60}, "after": [{"ref": "a"}]},
        a_wait("w"),
        {"name": "r", "kind": "race", "of": [{"ref": "w"}, {"ref": "s"}]},
        {"name": "x", "kind": "step", "step": "x", "args": {"x": REF["r"], "y": {"$": {"maybe": [{"ref": "w"}]}}},
         "options": {"max_crashes": 1}},
        output=REF["x"],
    ),
    "sleeps": raw(
        {"name": "a", "kind": "step", "step": "a", "options": {"max_crashes": 1}},
        {"name": "s", "kind": "sleep", "args": {"for": REF["a"]}},
        a_wait("w", after=[{"ref": "s"}]),
        {"name": "x", "kind": "step", "step": "x", "after": [{"ref": "s"}], "options": {"max_crashes": 1}},
        output=REF["w"],
    ),
}  # fmt: skip
GUARDED = frozenset({"fallback", "nested blocks", "unreadable", "fail-fast, handled"})
"""Here bodies return 1 or 2, so that conditions say both."""
LEAST = {
    "chain": 1_800, "diamond": 500, "fan-in": 2_300, "fail-fast": 1_700, "after a skip": 300,
    "fallback": 400, "nested blocks": 1_200, "unreadable": 1_400, "fail-fast, handled": 700,
    "timeout": 200, "two waits": 100, "race": 900, "sleeps": 600,
}  # fmt: skip


@dataclass
class World:
    """A run and the bodies that still go on somewhere, whatever became of their leases."""

    store: ModelStore
    bodies: tuple[Delivery, ...] = ()
    sent: tuple[Event, ...] = ()
    """Reports that were made: each may arrive again."""
    cancelled: bool = False
    retried: bool = False
    outputs: tuple[str, ...] = ("1",)
    """What bodies may return."""

    @property
    def has_ended(self) -> bool:
        return self.store.run.status in ENDED_RUN

    def key(self) -> tuple[object, ...]:
        """What of it can make a difference later. The workers are interchangeable."""
        store = self.store
        rows = tuple(
            (node, row.state.value, row.failures, row.crashes, row.is_over, row.output)
            for node, row in sorted(store.rows.items())
        )
        current = {(node, row.attempt, row.delivery): row.crashes for node, row in store.rows.items()}
        bodies = sorted(
            (
                b.node,
                crashes - b.crashes if (crashes := current.get((b.node, b.attempt, b.delivery))) is not None else -1,
            )
            for b in self.bodies
        )
        run = store.run
        signals = tuple((each.name, each.node) for each in store.signals)
        rows += tuple(
            (node, row.has_timer) for node, row in sorted(store.rows.items()) if row.state is TaskState.WAITING
        )
        return (
            signals,
            run.status.value,
            run.letters.text,
            run.counters,
            rows,
            tuple(bodies),
            self.cancelled,
            self.retried,
        )

    def after(self, events: list[Event], *, body: Delivery | None = None, **flags: bool) -> World:
        store = self.store.copy()
        store.apply(events)
        bodies = tuple(each for each in self.bodies if each is not body)
        sent = (
            (*self.sent, *(event for event in events if isinstance(event, Report))) if body is not None else self.sent
        )
        cancelled, retried = self.cancelled or "cancelled" in flags, self.retried or "retried" in flags
        return replace(self, store=store, bodies=bodies, sent=sent, cancelled=cancelled, retried=retried)

    def moves(self) -> Iterator[tuple[str, World]]:
        """Everything that can happen next."""
        store = self.store
        for node, row in store.rows.items():
            if row.state is TaskState.READY and len(self.bodies) < WORKERS:
                claimed = store.copy()
                task = claimed.claim(node)
                yield f"claim {node}", replace(self, store=claimed, bodies=(*self.bodies, task))
            elif row.state is TaskState.DELAYED:
                woken = store.copy()
                woken.wake(node)
                yield f"wake {node}", replace(self, store=woken)
            elif row.state is TaskState.LEASED:
                expired = store.copy()
                expired.apply([LeaseExpired(expired.end_lease(node))])
                yield f"expire {node}", replace(self, store=expired)
            elif row.state is TaskState.WAITING and row.has_timer:
                fired = store.copy()
                fired.apply([TimerFired(node, "2026-01-01T00:00:00Z", row.attempt)])
                yield f"fire {node}", replace(self, store=fired)
        if store.run.status not in ENDED_RUN:
            for name in store.plan.events if len(store.signals) < SIGNALS else ():
                for dedupe in (None, "once"):
                    told = store.copy()
                    if told.apply([Signalled(name, "1", dedupe)]).made is not None:
                        yield f"signal {name} {dedupe or ''}", replace(self, store=told)
        for body in self.bodies:
            for output in self.outputs:
                yield f"complete {body.node} with {output}", self.after([StepCompleted(body, output)], body=body)
            yield f"fail {body.node}", self.after([StepFailed(body, a_failure())], body=body)
            yield f"release {body.node}", self.after([StepReleased(body)], body=body)
        if len(self.bodies) == WORKERS:
            both: list[Event] = [StepCompleted(self.bodies[0], "1"), StepFailed(self.bodies[1], a_failure())]
            yield "both", replace(self, store=self.after(both).store, bodies=(), sent=(*self.sent, *both))
        if not self.cancelled:
            for body in self.bodies:
                yield (
                    "complete, cancel",
                    self.after([StepCompleted(body, "1"), CancelRequested()], body=body, cancelled=True),
                )
                yield (
                    "cancel, fail",
                    self.after([CancelRequested(), StepFailed(body, a_failure())], body=body, cancelled=True),
                )
            yield "cancel", self.after([CancelRequested()], cancelled=True)
        if not self.retried and store.run.status is RunStatus.FAILED:
            yield "retry", self.after([RetryRequested()], retried=True)

    def check(self) -> None:
        """The invariants, and that no report which ever arrived changes anything when it arrives again."""
        self.store.check()
        for event in self.sent:
            again = self.store.copy()
            assert again.apply([event]).made is None, f"{event} counted twice"


@pytest.mark.parametrize("name", PLANS)
def test_every_state_keeps_the_invariants_and_can_end(name):
    """In every state that two workers can bring a small plan to the invariants hold, and from each the run can end."""
    outputs = ("1", "2") if name in GUARDED else ("1",)
    explored = explore(World(ModelStore.started(PLANS[name]), outputs=outputs))
    print(f"\n{name}: {explored}")
    assert explored.states >= LEAST[name]
