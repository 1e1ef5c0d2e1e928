"""The model store: what ports/store.py promises of a commit, in plain Python over one run, and the invariants of core.md.

Every commit checks what must hold between two versions, `check` what must hold at one. Time is abstract: a lease is
over when somebody says so, and a delayed task can become ready at any moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from composer.core.decide import decide
from composer.core.events import Delivery, Event, Report, Scheduled, Started, StoredSignal, TimerFired
from composer.core.history import fold
from composer.core.plan import INPUT, Plan
from composer.core.snapshot import Snapshot
from composer.core.states import ENDED_RUN, OPEN_TASK, SETTLED, RunStatus, TaskState
from composer.core.transition import Fence, NeedValues, TaskChange, Transition

HEARD = frozenset({TaskState.LEASED, TaskState.READY, TaskState.DELAYED, TaskState.HELD})
"""States in which the current delivery is still heard: nobody has claimed the task since."""


def _about(event: Event) -> int | None:
    """The node whose task an event is about, when its fence is that task's."""
    if isinstance(event, TimerFired):
        return event.node
    return event.task.node if isinstance(event, Report) else None


@dataclass(slots=True)
class Row:
    """A task row."""

    node: int
    state: TaskState = TaskState.READY
    attempt: int = 1
    delivery: int = 0
    failures: int = 0
    crashes: int = 0
    is_over: bool = False
    """Its lease is over."""
    output: str | None = None
    error: str | None = None
    has_timer: bool = False
    """A coordinator looks at it some time: it waits, and not for an event alone."""

    @property
    def is_open(self) -> bool:
        return self.state in OPEN_TASK

    def handed_out(self) -> Delivery:
        return Delivery(self.node, self.attempt, self.delivery, -1, self.failures, self.crashes, "w")


@dataclass
class Outcome:
    """What became of a batch: the transition that was committed (None when nothing was), and what was dropped why."""

    made: Transition | None
    dropped: list[tuple[Event, str]]


@dataclass
class ModelStore:
    """One run, its tasks and its history."""

    plan: Plan
    run: Snapshot
    rows: dict[int, Row] = field(default_factory=dict)
    history: list[dict[str, object]] = field(default_factory=list)
    output: str | None = None
    error: str | None = None
    input: str = "{}"
    signals: list[StoredSignal] = field(default_factory=list)
    results: frozenset[tuple[int, int]] = frozenset()
    """(node, delivery) of every result that was applied."""

    @classmethod
    def started(cls, plan: Plan, *, scheduled: bool = False, text: str = "{}") -> ModelStore:
        """A new run."""
        store = cls(plan, Snapshot.unborn(len(plan.nodes)), input=text)
        store.apply([Scheduled() if scheduled else Started()])
        return store

    def copy(self) -> ModelStore:
        rows = {node: replace(row) for node, row in self.rows.items()}
        return ModelStore(
            self.plan, self.run, rows, list(self.history), self.output, self.error, self.input, list(self.signals), self.results
        )  # fmt: skip

    # -- what loops and workers do -----------------------------------------------------------------------
    def claim(self, node: int) -> Delivery:
        """Hands a ready task to a worker. Does not touch the run."""
        row = self.rows[node]
        assert row.state is TaskState.READY
        row.state, row.is_over = TaskState.LEASED, False
        row.delivery += 1
        return row.handed_out()

    def wake(self, node: int) -> None:
        """The moment of a delayed task has come."""
        assert self.rows[node].state is TaskState.DELAYED
        self.rows[node].state = TaskState.READY

    def end_lease(self, node: int) -> Delivery:
        """The lease of a task is over; returns what the recovery loop reads."""
        assert self.rows[node].state is TaskState.LEASED
        self.rows[node].is_over = True
        return self.rows[node].handed_out()

    def apply(self, events: Sequence[Event]) -> Outcome:
        """Decides and commits: changes whose fence is not met are dropped, and the rest decided again."""
        events, dropped = list(events), []
        while True:
            decision = self.decide(events)
            stale = frozenset[int]() if decision.is_empty else self.commit(decision)
            if not stale:
                return Outcome(None if decision.is_empty else decision, dropped + decision.ignored)
            for event in [each for each in events if _about(each) in stale]:
                events.remove(event)
                dropped.append((event, "stale"))

    def decide(self, events: Sequence[Event]) -> Transition:
        """What follows, with the values a decision asks for loaded."""
        values: dict[int, str] = {}
        errors: dict[int, str] = {}
        signals: dict[str, list[StoredSignal]] = {}
        while isinstance(decision := decide(self.plan, self.run, events, values, errors, signals), NeedValues):
            known = values.keys() | errors.keys()
            assert decision.nodes or decision.signals, "asked for nothing"
            assert signals.keys().isdisjoint(decision.signals), "asked for what it was given"
            signals |= {name: [each for each in self.signals if each.name == name] for name in decision.signals}
            assert known.isdisjoint(decision.nodes), "asked for what it was given"
            for node in decision.nodes:
                if node != INPUT and self.rows[node].state is TaskState.FAILED:
                    errors[node] = self.rows[node].error or ""
                else:
                    values[node] = self.value(node)
        return decision

    def value(self, node: int) -> str:
        if node == INPUT:
            return self.input
        row = self.rows[node]
        assert row.state is TaskState.COMPLETED
        assert row.output is not None
        return row.output

    def commit(self, made: Transition) -> frozenset[int]:
        """Applies a transition, or nothing of it. Returns the nodes whose fence was not met."""
        assert made.run.version == self.run.version + 1, "a version grows by one a transition"
        stale = frozenset(change.node for change in made.changes if not self._holds(change))
        if stale:
            return stale
        named = {change.node for change in made.changes}
        assert len(named) == len(made.changes), "a task has one outcome in a transition"
        assert named.isdisjoint(start.node for start in made.starts), "a task is not ended and opened in one transition"
        assert not made.stops_open_tasks or all(start.has_ended for start in made.starts), "what stops starts nothing"
        before = {node: (row.attempt, row.delivery, row.output) for node, row in self.rows.items()}
        for change in made.changes:
            self._change(change)
        if made.stops_open_tasks:
            for row in self.rows.values():
                if row.is_open:
                    row.state, row.is_over = TaskState.CANCELLED, False
        for start in made.starts:
            letters = made.run.letters
            assert all(letters[need] in SETTLED for need in self.plan.nodes[start.node].needs), "started too early"
            old = self.rows.get(start.node)
            assert old is None or start.reopened, "a task that exists is opened again without saying so"
            assert old is None or not old.is_open, "a task that is open is opened again"
            attempt, delivery = (old.attempt + 1, old.delivery) if old else (1, 0)
            self.rows[start.node] = row = Row(start.node, attempt=attempt, delivery=delivery)
            if start.waits:
                row.state, row.has_timer = TaskState.WAITING, start.wake_in is not None or start.wake_at is not None
            elif not start.is_ready:
                row.state = TaskState.FAILED if start.error is not None else TaskState.COMPLETED
                row.output, row.error = start.output, start.error
        taken = dict(made.taken)
        assert len(taken) == len(made.taken), "a signal is taken once"
        for number, each in enumerate(self.signals):
            if each.id in taken:
                assert each.node is None, "a signal is taken once"
                self.signals[number] = replace(each, node=taken[each.id])
        for new in made.signals:
            self.signals.append(StoredSignal(len(self.signals) + 1, new.name, new.payload, new.dedupe, new.node))
        if made.result is not None:
            self.output, self.error = made.result.output, made.result.error
        reopened = {start.node for start in made.starts}
        for node, (attempt, delivery, output) in before.items():
            row = self.rows[node]
            assert row.attempt >= attempt, "an attempt never shrinks"
            assert row.delivery >= delivery, "a delivery never shrinks"
            assert output is None or row.output == output or node in reopened, "an output changes only through retry"
        self.run = made.run
        self.history.append(made.history)
        made.history_text.encode()
        return stale

    def _holds(self, change: TaskChange) -> bool:
        row = self.rows.get(change.node)
        if change.fence is Fence.WAITING:
            return row is not None and row.state is TaskState.WAITING and change.attempt in (0, row.attempt)
        if row is None or change.item != -1 or (row.attempt, row.delivery) != (change.attempt, change.delivery):
            return False
        if change.fence is Fence.EXPIRY:
            return row.state is TaskState.LEASED and row.is_over
        return row.state in HEARD

    def _change(self, change: TaskChange) -> None:
        row = self.rows[change.node]
        if change.state is TaskState.COMPLETED and change.fence is not Fence.WAITING:
            assert (change.node, change.delivery) not in self.results, "a result is applied at most once a delivery"
            self.results |= {(change.node, change.delivery)}
        assert (change.delay is not None) == (change.state is TaskState.DELAYED), "a delay is for delayed tasks"
        row.state, row.is_over = change.state, False
        row.attempt += change.attempt_add
        row.delivery += change.delivery_add
        row.failures += change.failures_add
        row.crashes += change.crashes_add
        row.output, row.error = change.output, change.error

    # -- what must hold ----------------------------------------------------------------------------------
    def check(self) -> None:
        """The invariants of core.md that speak of one instant."""
        run, plan = self.run, self.plan
        is_open = {node for node, row in self.rows.items() if row.is_open}
        if run.status in ENDED_RUN:
            assert not is_open, "a finished run has no open task"
            assert run.letters.are_settled, "a finished run has no open node"
        elif run.status is RunStatus.SCHEDULED:
            assert not self.rows, "a scheduled run has no task"
        else:
            assert is_open, "a running run has something that will move it"
            active = {i for i, letter in enumerate(run.letters.text) if letter in "AW"}
            assert is_open == active, "a node is active exactly while its task is open"
        for node in plan.nodes:
            letter = run.letters[node.index]
            # A completed node stays completed while a retry runs again what came before it.
            if letter in "AW" or (letter in "CF" and not run.counters.retries):
                assert all(run.letters[need] in SETTLED for need in node.needs), "nothing starts before its needs"
            if node.kind == "guard":
                assert letter not in "AW" and node.index not in self.rows, "a guard has no task"
                continue
            if letter == "C" and (node.kind != "sleep" or node.index in self.rows):
                assert self.rows[node.index].state is TaskState.COMPLETED
            if letter == "F":
                assert self.rows[node.index].state is TaskState.FAILED
            if letter == "S":
                assert node.index not in self.rows or not self.rows[node.index].is_open
        self.check_history()

    def check_history(self) -> None:
        """Folding the history gives the run and what each task has spent."""
        folded = fold(self.plan, self.history)
        assert folded.run == self.run
        answered = {n.index for n in self.plan.nodes if n.kind == "guard" and self.run.letters[n.index] == "C"}
        assert set(folded.answers) == answered
        assert {guard for guard, answer in folded.answers.items() if not answer} == set(self.run.counters.no)
        told = {key[0]: (t.attempt, t.failures, t.crashes) for key, t in folded.tasks.items()}
        steps = {n.index for n in self.plan.nodes if n.kind == "step"}
        spent = {node: (row.attempt, row.failures, row.crashes) for node, row in self.rows.items() if node in steps}
        assert told == spent
        for (node, _), tally in folded.tasks.items():
            assert tally.completions == (self.rows[node].state is TaskState.COMPLETED), "one result an opening"
