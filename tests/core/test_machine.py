"""Random runs of random plans, event by event, against a naive interpreter that knows only the plan and what happened."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from composer.core.events import (
    CancelRequested,
    DeadlinePassed,
    Delivery,
    Event,
    LeaseExpired,
    Report,
    RetryRequested,
    Signalled,
    StepCompleted,
    StepFailed,
    StepReleased,
    StepSnoozed,
    StepStopped,
    TimerFired,
)
from composer.core.plan import Need, Node, NodeOptions, Plan, Term
from composer.core.retries import Retry
from composer.core.states import ENDED_RUN, RunStatus, TaskState
from tests.builders import a_failure, a_plan, says
from tests.core.model import ModelStore

SEEN: Counter[str] = Counter()
"""What the machine has done, over all examples: a machine that never meets a late report proves nothing."""
LEAST = {
    "claim": 300,
    "applied": 300,
    "stale": 100,
    "late": 10,
    "duplicate": 50,
    "expiry": 50,
    "retry": 10,
    "batch": 100,
    "yes": 20,
    "no": 50,
    "unevaluable": 5,
    "handled": 5,
    "fired": 20,
    "signalled": 20,
    "slept": 50,
    "raced": 20,
    "outrun": 10,
}


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """A DAG of 3 to 12 nodes of every kind but maps, with every kind of dependency and every option decide() knows."""
    count = draw(st.integers(3, 12))
    more = {"fail_fast": True} if draw(st.integers(0, 3)) == 0 else {}
    nodes: dict[str, list[str]] = {}
    options: dict[str, NodeOptions] = {}
    guards: dict[str, dict[str, Any]] = {}
    others: dict[str, dict[str, Any]] = {}
    """Waits, sleeps and races."""

    def add_other(what: dict[str, Any], blocks: Sequence[str], *needs: str) -> str:
        name = f"n{len(nodes):02}"
        nodes[name] = [*needs, *blocks]
        others[name] = {"event": name, "schema": {}, **what} if what["kind"] == "wait" else what
        return name

    def a_wait() -> dict[str, Any]:
        # One event a wait: which of two takes a signal is told elsewhere.
        ends = [{"timeout": None}, {"timeout": 5}, {"timeout": 5, "on_timeout": {"const": 7}}]
        return {"kind": "wait", **draw(st.sampled_from(ends))}

    def after(steps: Sequence[str]) -> list[str]:
        order = st.sampled_from(["after:", "after:", "after:settled:"])
        needs = draw(st.sets(st.sampled_from(steps), max_size=2)) if steps else set[str]()
        return [draw(order) + need for need in sorted(needs)]

    while len(nodes) < count:
        i = len(nodes)
        # Few of the many earlier nodes: chains and diamonds rather than everything after everything.
        earlier = [f"n{need:02}" for need in range(max(0, i - 4), i)]
        name, steps = f"n{i:02}", [each for each in earlier if each not in guards]
        bodies = [each for each in steps if each not in others]
        blocks = [
            draw(st.sampled_from(["when:", "when:", "unless:"])) + each
            for each in earlier
            if each in guards and draw(st.integers(0, 3))
        ]
        # A guard or a sleep that fails fast is told elsewhere.
        match draw(st.sampled_from(["step"] * 6 + ["guard"] * (4 if steps else 0) + ["wait", "sleep", "race"])):
            case "guard":
                nodes[name] = blocks
                read = draw(st.sampled_from(steps))
                kinds = ["fails", "absent"] if more else ["fails", "absent", "large", "large", "large"]
                guards[name] = {
                    "fails": says("eq", f"settled:{read}/state", ("failed",), kind="text"),
                    "absent": says("is_none", f"maybe:{read}"),
                    "large": says("gt", read, 4, kind="number"),
                }[draw(st.sampled_from(kinds))]
            case "wait":
                add_other(a_wait(), blocks, *after(steps))
            case "sleep":
                lengths: list[Any] = [60, 0]
                if bodies and not more:
                    lengths.append({"$": {"ref": bodies[-1]}})
                length = draw(st.sampled_from(lengths))
                needs = [*after(steps), f"after:{bodies[-1]}"] if isinstance(length, dict) else after(steps)
                add_other({"kind": "sleep", "args": {"for": length}}, blocks, *needs)
            case "race":
                # No two that may end while they begin, as a wait does whose event is there: which is first then is told elsewhere.
                first = a_wait() if draw(st.booleans()) else {"kind": "sleep", "args": {"for": 60}}
                rest = [{"kind": "sleep", "args": {"for": 60}}] * draw(st.integers(1, 2))
                of = [add_other(each, blocks, *after(steps)) for each in (first, *rest)]
                # In the order of the plan it comes after them; what it depends on is only the race.
                add_other({"kind": "race", "of": [{"ref": each} for each in of]}, [], *(f"after:{each}" for each in of))
            case _:
                needs = sorted(draw(st.sets(st.sampled_from(steps), max_size=3))) if steps else []
                how = st.sampled_from(
                    ["", "", "", "after:", "after:", "maybe:", "settled:", "settled:", "after:settled:"]
                )
                nodes[name] = [*(draw(how) + need for need in needs), *blocks]
                if len(steps) > 1 and draw(st.integers(0, 4)) == 0:
                    nodes[name].append(f"either:{steps[-1]},{steps[0]}")
                options[name] = NodeOptions(
                    retries=Retry(draw(st.integers(1, 3)), draw(st.sampled_from([0.0, 0.0, 1.0]))),
                    max_crashes=draw(st.integers(1, 3)),
                    on_crash=draw(st.sampled_from(["retry", "retry", "fail"])),
                )
    last = [name for name in nodes if name not in guards][-1]
    output = draw(st.sampled_from([None, last, f"maybe:{last}", f"settled:{last}", f"either:{last},n00"]))
    plan = a_plan(nodes, guards=guards, output=output, node_options=options, **more)
    made = [
        {
            key: value
            for key, value in {**node, **others.get(node["name"], {})}.items()
            if key not in _left_out(others, node)
        }
        for node in plan.body["nodes"]
    ]
    return Plan({**plan.body, "nodes": made})


def _left_out(others: Mapping[str, Mapping[str, Any]], node: Mapping[str, Any]) -> Sequence[str]:
    """What a_plan() wrote of a node that is no step after all."""
    other = others.get(node["name"])
    return () if other is None else ("step", "after") if other["kind"] == "race" else ("step",)


def fence(task: Delivery) -> tuple[int, int]:
    return task.attempt, task.delivery


class Reference:
    """The plan interpreted from scratch at every question: no letters, no versions, no transitions."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.ends: dict[int, str] = {}
        """How steps ended by their own doing: C or F."""
        self.outputs: dict[int, str] = {}
        self.stopped: RunStatus | None = None
        self.left = ""
        """The letters that a stop left behind."""
        self.failures: Counter[int] = Counter()
        self.crashes: Counter[int] = Counter()
        self.heard: dict[int, tuple[int, int]] = {}
        """Attempt and delivery that would be heard, by node."""
        self.leased: set[int] = set()
        self.kept: dict[str, list[str]] = {}
        """Payloads that nobody has taken yet, by event."""
        self.outrun: set[int] = set()
        """What lost a race, and what was skipped when it was won: the run does without it from then on."""
        self.absorb()

    def letters(self) -> str:
        return self.left if self.stopped else "".join(self.interpret()[0])

    def interpret(self) -> tuple[list[str], dict[int, bool]]:
        """Letters, and the answers of guards."""
        known: list[str] = []
        answers: dict[int, bool] = {}
        for node in self.plan.nodes:
            lost = "S" if node.index in self.outrun else None
            letter = self.ends.get(node.index) or lost or self.verdict(node.terms, known, answers)
            if letter == "A" and node.kind in ("wait", "sleep"):
                letter = "F" if node.kind == "sleep" and self.length(node) is None else "W"
            if letter == "A" and node.kind == "guard":
                answer = self.answer(node, known)
                letter = "F" if answer is None else "C"
                if answer is not None:
                    answers[node.index] = answer
            known.append(letter)
        return known, answers

    @staticmethod
    def verdict(terms: Sequence[Term], known: Sequence[str], answers: Mapping[int, bool]) -> str:
        """What becomes of a node with these dependencies: blocked, active or skipped."""
        if any(known[n] in ".AW" for term in terms for n in term.nodes if term.need is not Need.RACE):
            return "."
        for term in terms:
            ends = [known[n] for n in term.nodes]
            match term.need:
                case Need.SETTLED:
                    fits = True
                case Need.PLAIN:
                    fits = ends == ["C"]
                case Need.AFTER | Need.MAYBE:
                    fits = ends != ["F"]
                case Need.RACE:
                    fits = "C" in ends
                    if not fits and set(ends) & set(".AW"):
                        return "."
                case Need.EITHER:
                    fits = "F" not in ends and "C" in ends
                case Need.GUARD_YES | Need.GUARD_NO:
                    fits = ends == ["C"] and answers.get(term.nodes[0], True) is (term.need is Need.GUARD_YES)
            if not fits:
                return "S"
        return "A"

    def length(self, node: Node) -> int | None:
        """Seconds that a sleep lasts; None when what it is to last cannot be read."""
        length = node.args["for"]
        value: Any = json.loads(self.outputs[node.reads[0]]) if isinstance(length, dict) else length
        return value if isinstance(value, int) else None

    def answer(self, node: Node, known: Sequence[str]) -> bool | None:
        """What a guard says; None when it cannot say."""
        condition, read = node.args["condition"]["$"], node.needs
        asked = next(n for n in read if self.plan.nodes[n].kind != "guard")
        match condition["op"]:
            case "eq":
                # A wait whose time was over has ended as "timed-out".
                return known[asked] == "F" and self.plan.nodes[asked].kind != "wait"
            case "is_none":
                return known[asked] == "S"
            case _:
                value = json.loads(self.outputs[asked])
                return value > 4 if isinstance(value, int) else None

    def unhandled(self) -> set[int]:
        """Failed nodes that fail the run, or will: nobody who reads their outcome ran or may run, or somebody misses them."""
        known, answers = self.interpret()
        whole = ["C" if letter == "F" else letter for letter in known]
        told = {".": ".", "A": "C", "S": "S"}[self.verdict(self.plan.output_terms, known, answers)]
        readers = [(node.terms, known[node.index]) for node in self.plan.nodes] + [(self.plan.output_terms, told)]
        found: set[int] = set()
        for index, letter in enumerate(known):
            if letter == "F":
                reading = [(term.need, terms, end) for terms, end in readers for term in terms if index in term.nodes]
                is_read = any(need is Need.SETTLED and end != "S" for need, _, end in reading)
                is_missed = any(
                    need is not Need.SETTLED and end == "S" and self.verdict(terms, whole, answers) == "A"
                    for need, terms, end in reading
                )
                if is_missed or not is_read:
                    found.add(index)
        return found

    def status(self) -> RunStatus:
        if self.stopped:
            return self.stopped
        letters, answers = self.interpret()
        if set(letters) & set(".AW"):
            return RunStatus.RUNNING
        has_output = self.verdict(self.plan.output_terms, letters, answers) == "A"
        return RunStatus.FAILED if self.unhandled() or not has_output else RunStatus.COMPLETED

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
            stale = self.stale() if event.rerun_stale else set[int]()
            self.stopped = None
            self.ends = {node: end for node, end in self.ends.items() if end == "C" and node not in stale}
            won = {member for node in self.plan.nodes if node.index in self.ends for member in node.of}
            self.outrun &= won
            self.failures.clear()
            self.crashes.clear()
            self.heard.clear()
            self.leased.clear()
            self.absorb()
            return True
        if status is not RunStatus.RUNNING:
            return False
        if isinstance(event, CancelRequested | DeadlinePassed):
            self.stop(RunStatus.CANCELLED if isinstance(event, CancelRequested) else RunStatus.FAILED, self.letters())
            return True
        if isinstance(event, Signalled):
            self.kept.setdefault(event.name, []).append(event.payload)
            self.absorb()
            return True
        if isinstance(event, TimerFired):
            before = self.letters()
            if before[event.node] != "W":
                return False
            node_fired = self.plan.nodes[event.node]
            stand_in = {"const": event.at} if node_fired.kind == "sleep" else node_fired.on_timeout
            self.ends[event.node] = "F" if stand_in is None else "C"
            if stand_in is not None:
                self.outputs[event.node] = json.dumps(stand_in["const"])
            self.follow(event.node, before)
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
            self.outputs[node] = event.output
        elif isinstance(event, StepFailed | LeaseExpired):
            self.failures[node] += 1
            assert options.retries.attempts is not None
            final = isinstance(event, StepFailed) and not event.retryable
            if final or self.failures[node] >= options.retries.attempts:
                self.ends[node] = "F"
        self.follow(node, before)
        return True

    def follow(self, node: int, before: str) -> None:
        """What comes of a node's end: a stop, or waits that begin and find their event there."""
        if self.ends.get(node) == "F" and self.plan.fail_fast and not self.is_read_settled(node):
            self.stop(RunStatus.FAILED, before)
            return
        self.absorb()
        if self.plan.fail_fast and self.status() is RunStatus.RUNNING and self.unhandled():
            self.stop(RunStatus.FAILED, self.letters())

    def absorb(self) -> None:
        """What ends as soon as it may: waits whose event is there, sleeps of no length, races with a winner; and so on."""
        while any(
            self.ends_at_once(node, letter) for node, letter in zip(self.plan.nodes, self.letters(), strict=True)
        ):
            pass

    def ends_at_once(self, node: Node, letter: str) -> bool:
        index = node.index
        if letter == "W" and node.kind == "wait" and self.kept.get(node.event):
            self.outputs[index] = self.kept[node.event].pop(0)
        elif letter == "W" and node.kind == "sleep" and self.length(node) == 0 and not self.plan.is_read(index):
            pass  # Nobody asks when it ended.
        elif letter == "A" and node.kind == "race":
            letters = self.letters()
            self.outputs[index] = self.outputs[next(member for member in node.of if letters[member] == "C")]
            self.outrun |= {member for member in node.of if letters[member] in ".WS"}
        else:
            return False
        self.ends[index] = "C"
        return True

    def is_read_settled(self, node: int) -> bool:
        """Whether anybody could handle a failure of the node."""
        every = [*(term for each in self.plan.nodes for term in each.terms), *self.plan.output_terms]
        return any(term.need is Need.SETTLED and node in term.nodes for term in every)

    def stale(self) -> set[int]:
        """What a retry could change, through data or through the answers of guards."""
        letters = self.letters()
        changing: set[int] = set()
        while True:
            # A race that is run again brings back what it outran.
            kept = {m for node in self.plan.nodes if node.index not in changing for m in node.of if m in self.outrun}
            more = {index for index, letter in enumerate(letters) if letter != "C" and index not in kept}
            more |= {
                node.index
                for node in self.plan.nodes
                for term in node.terms
                if not changing.isdisjoint(term.nodes)
                if node.kind == "guard"
                or not changing.isdisjoint(node.reads)
                or term.need in (Need.GUARD_YES, Need.GUARD_NO)
                or any(letters[member] == "C" and member in changing for member in node.of)
            }
            if more <= changing:
                return changing
            changing |= more

    def stop(self, status: RunStatus, before: str) -> None:
        """What was open is cancelled at once: a failure that stops the run skips nothing any more."""
        self.left = "".join(self.ends.get(i, letter if letter in "SCF" else "X") for i, letter in enumerate(before))
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
                self.happens([StepCompleted(self.bodies[-1], str(pick % 10) if pick % 4 else '"some"')])

    @precondition(lambda self: self.store.run.status in (RunStatus.COMPLETED, RunStatus.CANCELLED))
    @rule(plan=plans())
    def start_another(self, plan: Plan) -> None:
        self.start(plan)

    @precondition(lambda self: self.in_state(TaskState.DELAYED))
    @rule(pick=st.integers(0, 99))
    def wake(self, pick: int) -> None:
        delayed = self.in_state(TaskState.DELAYED)
        self.store.wake(delayed[pick % len(delayed)])

    @precondition(lambda self: any(self.store.rows[node].has_timer for node in self.in_state(TaskState.WAITING)))
    @rule(pick=st.integers(0, 99))
    def fire(self, pick: int) -> None:
        due = [node for node in self.in_state(TaskState.WAITING) if self.store.rows[node].has_timer]
        node = due[pick % len(due)]
        SEEN["fired"] += 1
        self.happens([TimerFired(node, "2026-01-01T00:00:00Z", self.store.rows[node].attempt)])

    @precondition(lambda self: self.store.plan.events and len(self.store.signals) < 8)
    @rule(pick=st.integers(0, 99), payload=st.sampled_from(["1", "7", '"some"']))
    def signal(self, pick: int, payload: str) -> None:
        names = sorted(self.store.plan.events)
        SEEN["signalled"] += 1
        self.happens([Signalled(names[pick % len(names)], payload)])

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
                return StepCompleted(task, data.draw(st.sampled_from(["1", "7", '"some"'])))
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
        ended = self.ended()
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
        if outcome.made is not None:
            fresh = [self.store.plan.nodes[node] for node in self.ended() - ended]
            SEEN["slept"] += sum(node.kind == "sleep" for node in fresh)
            SEEN["raced"] += sum(node.kind == "race" for node in fresh)
            SEEN["outrun"] += sum(m in self.store.rows and m not in self.ended() for node in fresh for m in node.of)
            for word, said in (("yes", True), ("no", False)):
                SEEN[word] += sum(answer is said for answer in outcome.made.history.get("guards", {}).values())
            SEEN["unevaluable"] += len(outcome.made.history.get("unevaluable", {}))
            SEEN["handled"] += (
                "F" in outcome.made.run.letters.text and not self.reference.stopped and not self.reference.unhandled()
            )

    def ended(self) -> set[int]:
        """The nodes that have completed."""
        return {index for index, letter in enumerate(self.store.run.letters.text) if letter == "C"}

    # -- what holds ----------------------------------------------------------------------------------------
    @invariant()
    def the_reference_agrees(self) -> None:
        run, reference = self.store.run, self.reference
        assert run.letters.text == reference.letters()
        assert run.status is reference.status()
        if run.status is RunStatus.FAILED and not reference.stopped and reference.unhandled():
            assert run.counters.first_failure in reference.unhandled(), (
                "the run's error is of a failure that was handled"
            )
            assert json.loads(self.store.error or "")["node"] == self.store.plan.nodes[run.counters.first_failure].name
        for node, row in self.store.rows.items():
            if row.is_open:
                assert (row.failures, row.crashes) == (reference.failures[node], reference.crashes[node])

    @invariant()
    def the_invariants_hold(self) -> None:
        self.store.check()


def test_random_runs_of_random_plans() -> None:
    """Store and reference agree after every event; and the runs claimed, reported late, expired, raced and so on often enough."""
    SEEN.clear()
    run_state_machine_as_test(
        Runs, settings=settings(max_examples=200, stateful_step_count=50, report_multiple_bugs=False)
    )
    print("\n", dict(SEEN))
    assert {word: SEEN[word] for word, least in LEAST.items() if SEEN[word] < least} == {}
