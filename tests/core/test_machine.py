"""Random runs of random plans, event by event, against a naive interpreter that knows only the plan and what happened."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from composer.core.events import (
    CancelRequested,
    DeadlinePassed,
    Delivery,
    Event,
    LeaseExpired,
    Report,
    RetryRequested,
    StepCompleted,
    StepFailed,
    StepReleased,
    StepSnoozed,
    StepStopped,
)
from composer.core.plan import Need, NodeOptions, Plan
from composer.core.retries import Retry
from composer.core.states import ENDED_RUN, RunStatus, TaskState
from tests.builders import a_failure, a_plan
from tests.core.model import ModelStore

SEEN: Counter[str] = Counter()
"""What the machine has done, over all examples: a machine that never meets a late report proves nothing."""
LEAST = {
    "claim": 300,
    "applied": 300,
    "stale": 100,
    "late": 20,
    "duplicate": 50,
    "expiry": 50,
    "retry": 10,
    "batch": 100,
}


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """A DAG of 3 to 12 nodes with plain and after dependencies and every option that decide() knows."""
    count = draw(st.integers(3, 12))
    nodes: dict[str, list[str]] = {}
    options: dict[str, NodeOptions] = {}
    for i in range(count):
        # Few of the many earlier nodes: chains and diamonds rather than everything after everything.
        needs = draw(st.sets(st.integers(max(0, i - 4), i - 1), max_size=3)) if i else set()
        nodes[f"n{i:02}"] = [draw(st.sampled_from(["", "", "after:"])) + f"n{need:02}" for need in sorted(needs)]
        options[f"n{i:02}"] = NodeOptions(
            retries=Retry(draw(st.integers(1, 3)), draw(st.sampled_from([0.0, 0.0, 1.0]))),
            max_crashes=draw(st.integers(1, 3)),
            on_crash=draw(st.sampled_from(["retry", "retry", "fail"])),
        )
    output = draw(st.sampled_from([None, f"n{count - 1:02}"]))
    more = {"fail_fast": True} if draw(st.integers(0, 3)) == 0 else {}
    return a_plan(nodes, output=output, node_options=options, **more)


def fence(task: Delivery) -> tuple[int, int]:
    return task.attempt, task.delivery


class Reference:
    """The plan interpreted from scratch at every question: no letters, no versions, no transitions."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.ends: dict[int, str] = {}
        """How nodes ended by their own doing: C or F."""
        self.stopped: RunStatus | None = None
        self.left = ""
        """The letters that a stop left behind."""
        self.failures: Counter[int] = Counter()
        self.crashes: Counter[int] = Counter()
        self.heard: dict[int, tuple[int, int]] = {}
        """Attempt and delivery that would be heard, by node."""
        self.leased: set[int] = set()

    def letters(self) -> str:
        if self.stopped:
            return self.left
        known: dict[int, str] = {}
        for node in self.plan.nodes:
            if node.index in self.ends:
                known[node.index] = self.ends[node.index]
                continue
            needs = [(term.need, known[n]) for term in node.terms for n in term.nodes]
            if any(letter in ".A" for _, letter in needs):
                letter = "."
            elif any(letter == "F" or (letter == "S" and need is Need.PLAIN) for need, letter in needs):
                letter = "S"
            else:
                letter = "A"
            known[node.index] = letter
        return "".join(known.values())

    def status(self) -> RunStatus:
        letters = self.letters()
        if self.stopped:
            return self.stopped
        if set(letters) & set(".A"):
            return RunStatus.RUNNING
        needed = [letters[n] for term in self.plan.output_terms for n in term.nodes]
        return RunStatus.FAILED if "F" in letters or set(needed) - {"C"} else RunStatus.COMPLETED

    def batch(self, events: list[Event]) -> bool:
        """Takes the events one after the other; returns whether any of them counted."""
        counted = False
        best: dict[int, Report] = {}
        for event in events:
            if isinstance(event, Report):
                rivals = [best[event.task.node]] if event.task.node in best else []
                best[event.task.node] = max([*rivals, event], key=lambda e: (e.task.delivery, not isinstance(e, LeaseExpired)))  # fmt: skip
        for event in events:
            if isinstance(event, Report) and best[event.task.node] is not event:
                continue
            if isinstance(event, RetryRequested) and counted:
                continue
            counted = self.one(event) or counted
        return counted

    def one(self, event: Event) -> bool:
        status = self.status()
        if isinstance(event, RetryRequested):
            if status is not RunStatus.FAILED:
                return False
            self.stopped = None
            self.ends = {node: end for node, end in self.ends.items() if end == "C"}
            self.failures.clear()
            self.crashes.clear()
            self.heard.clear()
            self.leased.clear()
            return True
        if status is not RunStatus.RUNNING:
            return False
        if isinstance(event, CancelRequested | DeadlinePassed):
            self.stop(RunStatus.CANCELLED if isinstance(event, CancelRequested) else RunStatus.FAILED, self.letters())
            return True
        assert isinstance(event, Report)
        node = event.task.node
        before = self.letters()
        if before[node] != "A" or self.heard.get(node) != fence(event.task):
            return False
        options = self.plan.nodes[node].options
        if isinstance(event, LeaseExpired):
            if node not in self.leased:
                return False
            self.leased.discard(node)
            self.crashes[node] += 1
            if options.on_crash == "retry" and self.crashes[node] < options.max_crashes:
                return True
        self.leased.discard(node)
        del self.heard[node]
        if isinstance(event, StepCompleted):
            self.ends[node] = "C"
        elif isinstance(event, StepFailed | LeaseExpired):
            self.failures[node] += 1
            assert options.retries.attempts is not None
            final = isinstance(event, StepFailed) and not event.retryable
            if final or self.failures[node] >= options.retries.attempts:
                self.ends[node] = "F"
                if self.plan.fail_fast:
                    self.stop(RunStatus.FAILED, before)
        return True

    def stop(self, status: RunStatus, before: str) -> None:
        """What was open is cancelled at once: a failure that stops the run skips nothing any more."""
        self.left = "".join(self.ends.get(i, "S" if letter == "S" else "X") for i, letter in enumerate(before))
        self.stopped = status


class Runs(RuleBasedStateMachine):
    """One run of one plan. Bodies never end by themselves: each can report at any time, late and more than once."""

    @initialize(plan=plans())
    def start(self, plan: Plan) -> None:
        self.store = ModelStore.started(plan)
        self.reference = Reference(plan)
        self.bodies: list[Delivery] = []
        self.sent: list[Event] = []

    def in_state(self, *states: TaskState) -> list[int]:
        return sorted(node for node, row in self.store.rows.items() if row.state in states)

    # -- what happens --------------------------------------------------------------------------------------
    @precondition(lambda self: self.in_state(TaskState.READY))
    @rule(pick=st.integers(0, 99), many=st.integers(1, 3))
    def claim(self, pick: int, many: int) -> None:
        ready = self.in_state(TaskState.READY)
        for i in range(min(many, len(ready))):
            self.hand_out(ready[(pick + i) % len(ready)])

    def hand_out(self, node: int) -> None:
        task = self.store.claim(node)
        self.bodies.append(task)
        self.reference.heard[node] = fence(task)
        self.reference.leased.add(node)
        SEEN["claim"] += 1

    @precondition(lambda self: self.store.run.status is RunStatus.RUNNING)
    @rule(picks=st.lists(st.integers(0, 99), min_size=1, max_size=6))
    def work(self, picks: list[int]) -> None:
        """Some tasks go through without trouble, so that the rest happens deep in a run too."""
        for pick in picks:
            if self.in_state(TaskState.DELAYED):
                self.wake(pick)
            if self.in_state(TaskState.READY):
                self.claim(pick, 1)
                self.happens([StepCompleted(self.bodies[-1], f'"{pick}"')])

    @precondition(lambda self: self.store.run.status in (RunStatus.COMPLETED, RunStatus.CANCELLED))
    @rule(plan=plans())
    def start_another(self, plan: Plan) -> None:
        self.start(plan)

    @precondition(lambda self: self.in_state(TaskState.DELAYED))
    @rule(pick=st.integers(0, 99))
    def wake(self, pick: int) -> None:
        delayed = self.in_state(TaskState.DELAYED)
        self.store.wake(delayed[pick % len(delayed)])

    @precondition(lambda self: self.bodies)
    @rule(data=st.data())
    def report(self, data: st.DataObject) -> None:
        self.happens([self.a_report(data)])

    @precondition(lambda self: self.in_state(TaskState.LEASED))
    @rule(pick=st.integers(0, 99))
    def expire(self, pick: int) -> None:
        self.happens([self.an_expiry(pick)])

    @precondition(lambda self: self.in_state(TaskState.LEASED, TaskState.READY))
    @rule(pick=st.integers(0, 99), reclaim=st.booleans(), data=st.data())
    def be_slow(self, pick: int, reclaim: bool, data: st.DataObject) -> None:
        """A body whose lease is swept reports after that, before or after somebody else claims the task."""
        if not self.in_state(TaskState.LEASED):
            self.claim(pick, 1)
        expiry = self.an_expiry(pick)
        slow = next(task for task in reversed(self.bodies) if task.node == expiry.task.node)
        self.happens([expiry])
        if self.store.rows[slow.node].state is TaskState.DELAYED and reclaim:
            self.store.wake(slow.node)
        if self.store.rows[slow.node].state is TaskState.READY and reclaim:
            self.hand_out(slow.node)
        self.happens([self.a_report_of(slow, data)])

    @precondition(lambda self: self.sent)
    @rule(pick=st.integers(0, 99))
    def repeat(self, pick: int) -> None:
        SEEN["duplicate"] += 1
        before = self.store.run
        self.happens([self.sent[pick % len(self.sent)]])
        assert self.store.run == before, "a report that was applied or refused is never applied again"

    @precondition(lambda self: self.bodies)
    @rule(pick=st.integers(0, 99), off=st.sampled_from([(1, 0), (0, 1), (-1, 0), (0, -1)]))
    def report_of_another_delivery(self, pick: int, off: tuple[int, int]) -> None:
        task = self.bodies[pick % len(self.bodies)]
        row = self.store.rows[task.node]
        forged = replace(task, worker="", attempt=row.attempt + off[0], delivery=row.delivery + off[1])
        self.happens([StepCompleted(forged, '"forged"')])

    @precondition(lambda self: self.bodies)
    @rule(data=st.data(), size=st.integers(2, 5))
    def batch(self, data: st.DataObject, size: int) -> None:
        events: list[Event] = [self.a_report(data) for _ in range(size)]
        if self.in_state(TaskState.LEASED) and data.draw(st.booleans()):
            events.append(self.an_expiry(data.draw(st.integers(0, 99))))
        more = data.draw(st.sampled_from([None] * 3 + [CancelRequested(), DeadlinePassed(), RetryRequested()]))
        if more is not None:
            events.insert(data.draw(st.integers(0, len(events))), more)
        if data.draw(st.booleans()):
            events.reverse()
        SEEN["batch"] += 1
        self.happens(events)

    @rule(
        event=st.sampled_from([CancelRequested(), DeadlinePassed(), RetryRequested(), RetryRequested(True)]),
        luck=st.integers(0, 5),
    )
    def stop_or_retry_at_any_time(self, event: Event, luck: int) -> None:
        if luck == 0 or self.store.run.status is not RunStatus.RUNNING or isinstance(event, RetryRequested):
            self.happens([event])

    @precondition(lambda self: self.store.run.status is RunStatus.FAILED)
    @rule(rerun_stale=st.booleans())
    def retry(self, rerun_stale: bool) -> None:
        SEEN["retry"] += 1
        self.happens([RetryRequested(rerun_stale)])

    def a_report(self, data: st.DataObject) -> Report:
        # Mostly by bodies that are current, else nothing would ever go on.
        current = [task for task in self.bodies if self.reference.heard.get(task.node) == fence(task)]
        task = data.draw(st.sampled_from(current if current and data.draw(st.integers(0, 3)) else self.bodies))
        return self.a_report_of(task, data)

    def a_report_of(self, task: Delivery, data: st.DataObject) -> Report:
        match data.draw(st.integers(0, 9)):
            case 0 | 1 | 2 | 3:
                return StepCompleted(task, f'"{task.node} {task.attempt} {task.delivery}"')
            case 4 | 5:
                return StepFailed(task, a_failure())
            case 6:
                return StepFailed(task, a_failure(), retryable=False)
            case 7:
                return StepSnoozed(task, data.draw(st.sampled_from([0.0, 5.0])))
            case 8:
                return StepReleased(task)
            case _:
                return StepStopped(task)

    def an_expiry(self, pick: int) -> LeaseExpired:
        SEEN["expiry"] += 1
        leased = self.in_state(TaskState.LEASED)
        return LeaseExpired(self.store.end_lease(leased[pick % len(leased)]))

    def happens(self, events: list[Event]) -> None:
        """Applies a batch to the store and to the reference, and compares."""
        version = self.store.run.version
        first = events[0]
        late = len(events) == 1 and isinstance(first, Report) and first.task.node not in self.reference.leased
        outcome = self.store.apply(events)
        expected = self.reference.batch(events)
        self.sent += [event for event in events if isinstance(event, Report) and event.task.worker]
        assert (outcome.made is not None) == expected
        assert self.store.run.version == version + expected
        assert all(reason for _, reason in outcome.dropped)
        SEEN["applied"] += expected
        SEEN["stale"] += any(reason == "stale" for _, reason in outcome.dropped)
        SEEN["late"] += expected and late
        SEEN[self.store.run.status.value] += expected and self.store.run.status in ENDED_RUN

    # -- what holds ----------------------------------------------------------------------------------------
    @invariant()
    def the_reference_agrees(self) -> None:
        run, reference = self.store.run, self.reference
        assert run.letters.text == reference.letters()
        assert run.status is reference.status()
        for node, row in self.store.rows.items():
            if row.is_open:
                assert (row.failures, row.crashes) == (reference.failures[node], reference.crashes[node])

    @invariant()
    def the_invariants_hold(self) -> None:
        self.store.check()


Runs.TestCase.settings = settings(max_examples=80, stateful_step_count=50, report_multiple_bugs=False)
TestRuns = Runs.TestCase


def test_machine_met_what_it_is_for():
    """The random runs above claimed, reported late, twice and out of turn, expired, retried and were stopped often enough."""
    if SEEN:  # else this test runs alone
        print("\n", dict(SEEN))
        assert {word: SEEN[word] for word, least in LEAST.items() if SEEN[word] < least} == {}
