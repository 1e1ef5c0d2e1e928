"""Store: where runs live. Two implementations, memory and PostgreSQL, are held to one contract suite.

Rules every implementation keeps:

- All changes to a run compare and swap its version. `commit` is atomic a run: everything a transition asks for, or
  nothing. A version grows by one a transition.
- A change to a task counts only under its fence (core.transition.Fence); one bad fence loses the whole run's commit.
- Only `commit` ever waits for a lock, and only on runs taken in id order, so nothing can deadlock. Claims, renewals
  and sweeps pass over what somebody else holds.
- Moments are the store's own: callers give durations.
- Payloads are JSON texts and come back as they were given.

Errors: StoreUnavailable when the database cannot be reached or refuses work (trying again can help). After it, a
`commit` may or may not have happened: submit it again, the fence answers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Protocol

from composer.core.events import Delivery, MapCounts, StoredSignal
from composer.core.items import ItemChange
from composer.core.plan import Node, Plan
from composer.core.snapshot import Snapshot
from composer.core.states import RunStatus
from composer.core.transition import Transition
from composer.ports.wakeups import RunEnd, Wakeups

SUSPECT: Final = 2
"""Lost workers from which on a task is claimed apart from others like it: by default the next one is its last."""


@dataclass(frozen=True, slots=True)
class RunHead:
    """What a decision needs of a stored run."""

    run_id: str
    plan_id: int
    snapshot: Snapshot
    priority: int = 0
    """What its tasks inherit."""


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to be stored, with the transition that starts it (version 1)."""

    run_id: str
    workflow: str
    plan_id: int
    plan: Plan
    transition: Transition
    input: str
    key: str | None = None
    """Idempotency key, unique within (namespace, workflow)."""
    digest: str = ""
    """Digest of workflow name and input: what a second start with the same key is compared by."""
    priority: int = 0
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    starts_in: float | None = None
    """Seconds until it starts; the transition then starts nothing."""
    starts_at: datetime | None = None
    """The moment it starts, instead. With neither it starts now."""
    leased: frozenset[int] = frozenset()
    """Nodes whose tasks go to `owner` at once."""

    @property
    def is_scheduled(self) -> bool:
        """Whether it starts later."""
        return self.starts_in is not None or self.starts_at is not None


@dataclass(frozen=True, slots=True)
class StartAnswer:
    """Which run has the key, whether this call made it, and the digest it was first started with."""

    run_id: str
    created: bool
    digest: str
    claimed_at: float = 0.0


@dataclass(frozen=True, slots=True)
class ClaimedTask:
    """A leased task with everything its body needs."""

    run: RunHead
    task: Delivery
    step: str
    values: Mapping[int, str]
    """What its arguments read, as stored, by read code (core.plan)."""
    input: str | None = None
    """The item, for a map item."""
    details: str | None = None
    """What the last heartbeat of any attempt left, as JSON text."""
    errors: Mapping[int, str] = field(default_factory=dict[int, str])
    """Errors of the nodes among those that failed, by node: what settled() reads. The run's letters say which did."""


@dataclass(frozen=True, slots=True)
class StoredValues:
    """What stored values are: outputs by (run id, read code), errors of failed nodes by (run id, node)."""

    outputs: Mapping[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])
    errors: Mapping[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])


@dataclass(frozen=True, slots=True)
class RunCommit:
    """One run's share of a commit."""

    run_id: str
    plan_id: int
    plan: Plan
    transition: Transition
    priority: int = 0
    leased: frozenset[int] = frozenset()
    """Nodes whose new tasks go to the committing owner at once, instead of into the outbox."""
    deadline_in: float | None = None
    """With a transition that restarts the run: seconds until its new deadline; None leaves it without one."""


class Verdict(StrEnum):
    """What became of one run's commit."""

    WON = "won"
    LOST = "lost"
    """The version was not the expected one: decide again on `now`."""
    STALE = "stale"
    """A fence was not met: drop the changes at `stale`, decide the rest again on `now`."""
    GONE = "gone"
    """There is no such run."""
    QUARANTINED = "quarantined"
    """The run was taken out of every loop; what is reported of it now waits for nothing and is dropped."""


@dataclass(frozen=True, slots=True)
class CommitAnswer:
    """What became of one run's commit."""

    run_id: str
    verdict: Verdict
    now: Snapshot | None = None
    stale: frozenset[tuple[int, int]] = frozenset()
    """(node, item) of the changes whose fence was not met."""
    leased: frozenset[int] = frozenset()
    """Of the nodes that were to be handed over at once, those that were."""


@dataclass(frozen=True, slots=True)
class CommitAnswers:
    """Answers in the order of the commits, and the database's time, in seconds since the epoch."""

    answers: Sequence[CommitAnswer]
    at: float


@dataclass(frozen=True, slots=True)
class ItemCommit:
    """Reports about map items of one run. Each counts by itself, under its own fence."""

    run_id: str
    plan: Plan
    changes: Sequence[ItemChange]


@dataclass(frozen=True, slots=True)
class ItemAnswer:
    """What became of them."""

    head: RunHead
    """The run afterwards."""
    applied: frozenset[tuple[int, int]]
    """(node, item) of those that were applied. The others are stale, or their map goes on no more: see the head."""
    maps: Mapping[int, MapCounts] = field(default_factory=dict[int, MapCounts])
    """How far the maps of those that were applied are now, by node."""
    is_quarantined: bool = False


@dataclass(frozen=True, slots=True)
class MapPage:
    """Some items of a map, to be stored."""

    run_id: str
    plan: Plan
    node: int
    first: int
    """Index of the first of them: as many are stored already."""
    total: int
    """Items in all."""
    inputs: Sequence[str]
    """Each as JSON text."""
    tolerance: int
    retries: int
    """How often the run has been retried."""
    digest: str
    """Of the whole list and of what all items are given: a retry keeps the completed items of an equal one."""
    priority: int = 0
    """The run's."""


@dataclass(frozen=True, slots=True)
class DueWait:
    """A waiting task that a coordinator has to look at, and for a map how far it is: None before its first page."""

    head: RunHead
    node: int
    counts: MapCounts | None = None
    attempt: int = 0
    at: str = ""
    """The time then, as ISO 8601 text."""


class Renewal(StrEnum):
    """What a renewal found."""

    OWNED = "owned"
    BUSY = "busy"
    """Somebody is changing the task just now: ask again, the lease still runs."""
    EXPIRED = "expired"
    """The sweep put it back and nobody has claimed it yet: a report is still heard."""
    CANCELLED = "cancelled"
    LOST = "lost"
    """Another worker has it, or it has ended: stop."""


@dataclass(frozen=True, slots=True)
class Beat:
    """One lease to renew: the delivery, for how long, and what a heartbeat wants kept."""

    run_id: str
    task: Delivery
    lease: float
    details: str | None = None


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """A task row, for people."""

    node: int
    item: int
    state: str
    attempt: int
    delivery: int
    failures: int
    crashes: int
    queue: str
    owner: str | None
    output: str | None
    error: str | None
    details: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    wake_at: datetime | None
    lease_expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run row with its tasks, for people."""

    head: RunHead
    workflow: str
    namespace: str
    priority: int
    tags: Mapping[str, str]
    quarantine: str | None
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    starts_at: datetime | None
    deadline_at: datetime | None
    input: str
    output: str | None
    error: str | None
    tasks: Sequence[TaskRecord]
    maps: Mapping[int, MapCounts] = field(default_factory=dict[int, MapCounts])
    """How far its maps are, by node."""


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """One transition of a run, as stored."""

    version: int
    at: datetime
    changes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RunQuery:
    """Which runs to list. None and empty ask for nothing in particular."""

    workflow: str | None = None
    statuses: frozenset[RunStatus] = frozenset()
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    """All of them, with these values."""
    error_code: str | None = None
    """What the run's error has as `code`, or as `kind` where a node failed."""
    since: datetime | None = None
    """Created at or after."""
    until: datetime | None = None
    """Created before."""
    newest_first: bool = True


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run's own row, for lists: no payloads. `error` is there for failed and cancelled runs."""

    head: RunHead
    workflow: str
    tags: Mapping[str, str]
    quarantine: str | None
    created_at: datetime
    finished_at: datetime | None
    error: str | None


@dataclass(frozen=True, slots=True)
class RunPage:
    """Runs of one page, in order; `reached` is where the next one begins, None after the last."""

    runs: Sequence[ListedRun]
    reached: str | None


@dataclass(frozen=True, slots=True)
class BegunTask:
    """A body that was begun and of which no transition tells the end: it runs, or its run was stopped."""

    node: int
    attempt: int
    delivery: int
    is_stopped: bool
    worker: str | None
    """None once it was stopped."""
    at: datetime


@dataclass(frozen=True, slots=True)
class RunChanges:
    """A run at one instant, and the transitions that led there."""

    head: RunHead
    history: Sequence[HistoryRow]
    begun: Sequence[BegunTask]
    """Of nodes, not of map items."""


@dataclass(frozen=True, slots=True)
class Presence:
    """Who lives, at a moment of the store's."""

    at: datetime
    workers: Sequence[WorkerRecord]


@dataclass(frozen=True, slots=True)
class AuditedRun:
    """A run with all its tasks (map items too), its whole history, and its hand-outs."""

    record: RunRecord
    history: Sequence[HistoryRow]
    dispatched: frozenset[tuple[int, int]]
    """(node, item) of its outbox rows."""


@dataclass(frozen=True, slots=True)
class Due:
    """A run with something that has come due: its start or its deadline."""

    head: RunHead
    kind: str
    """"start" or "deadline"."""


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """One incarnation of a worker process: never a name that a later process could have too."""

    worker_id: str
    host: str
    boot_id: str
    """Differs between boots and machines, so that a pid is only ever compared where it means something."""
    pid: int
    started_at: float
    """Start of the process on its own machine, to tell a recycled pid from the same process."""
    queues: Sequence[str]
    steps: Sequence[str]


class Borrowed(Protocol):
    """A connection of the caller's, lent for starts that commit or roll back with the caller's own transaction.

    Nobody is told of such a run before the commit, and a statement that fails is not tried again: the transaction is the
    caller's, and so is what its driver raises, other than what is named below.
    """

    is_blocking: bool
    """Whether the connection is used without awaiting, in the thread that lends it."""

    async def prepare(self) -> None:
        """What has to be known before, asked on the store's own connections, in its loop. Raises StoreUnavailable."""
        ...

    def start_now(self, runs: Sequence[NewRun]) -> list[StartAnswer]:
        """start_runs(), for a blocking connection, in its own thread."""
        ...

    async def start_runs(self, runs: Sequence[NewRun]) -> list[StartAnswer]:
        """Stores new runs in one statement of the caller's transaction; answers as Store.start_runs.

        A blocking connection blocks the loop, as its owner's other statements do. Raises TransactionError where there is
        no transaction, a failed one, or one in another database than the store's; SchemaError.
        """
        ...


@dataclass(frozen=True, slots=True)
class UnknownStep:
    """A step that tasks wait for and nobody knows."""

    step: str
    tasks: int
    """How many wait."""
    run_id: str
    """One of their runs."""


class Store(Protocol):
    """The runs of one namespace. See the module's docstring for the rules."""

    namespace: str
    max_payload: int
    """Bytes that the JSON of one input, result, checkpoint or signal may have."""
    wakeups: Wakeups

    async def open(self) -> None:
        """Connects. Idempotent. Raises StoreUnavailable, SchemaError."""
        ...

    async def close(self) -> None:
        """Gives back every connection. Idempotent."""
        ...

    def twin(self) -> Store | None:
        """Another handle on the same runs, for another event loop; None when this store belongs to one loop only."""
        ...

    async def listen(self) -> None:
        """Feeds what other processes announce into `wakeups`, until cancelled. Returns at once where there is nothing to hear."""
        ...

    async def mint_run_ids(self, count: int) -> list[str]:
        """New run ids: UUIDv7 on the database's clock, rising."""
        ...

    async def register_plan(self, plan: Plan) -> int:
        """The plan's id here; stores it when it is new. The same plan always has the same id."""
        ...

    async def load_plan(self, plan_id: int) -> Plan:
        """A stored plan. Raises KeyError."""
        ...

    async def current_plan(self, workflow: str, shape: str) -> int | None:
        """The plan of this shape that new starts of the workflow use, else the one of this shape registered last."""
        ...

    async def named_plan(self, workflow: str) -> int | None:
        """The plan that a start by the workflow's name uses: the one a process registered last. None for an unknown name."""
        ...

    async def workflow_names(self, limit: int) -> list[str]:
        """Up to `limit` names of workflows that can be started by name, in alphabetical order."""
        ...

    async def start_runs(self, runs: Sequence[NewRun], *, owner: str = "", lease: float = 0.0) -> list[StartAnswer]:
        """Stores new runs, in one statement. One answer a run, in order. A key that is taken answers with its run.

        Starting the same run id again changes nothing and answers `created` as the store finds it: False.
        """
        ...

    def borrow(self, connection: object) -> Borrowed:
        """The caller's connection (or session, or alias) for starts within its transaction; nothing is sent yet.

        Raises TransactionError for what is no connection, and where runs are in no database.
        """
        ...

    async def claim_tasks(
        self, *, queues: Sequence[str], steps: Collection[str], limit: int, owner: str, lease: float
    ) -> list[ClaimedTask]:
        """Leases up to `limit` ready tasks of these steps, by queue order, then priority, then age. Never waits.

        Of those that have lost SUSPECT workers and more there is at most one: the one that ends its worker must not take the
        others along until they are given up. A claim that brings one may have left others where they are.
        `lease` is in seconds, for steps without a heartbeat_timeout of their own.
        """
        ...

    async def commit(self, commits: Sequence[RunCommit], *, owner: str = "", lease: float = 0.0) -> CommitAnswers:
        """Applies transitions, each run once, all in one statement. Waits for run rows in id order."""
        ...

    async def commit_items(self, commits: Sequence[ItemCommit]) -> list[ItemAnswer | None]:
        """Applies reports about map items, each run once, all in one statement; waits for run rows in id order.

        Additive: no version is asked for. What settles frees held items. One answer a commit, in order; None: no such run.
        """
        ...

    async def expand_map(self, page: MapPage) -> tuple[bool, MapCounts | None]:
        """Stores the page if it is the map's next one. Whether it did, and how far the map is.

        None for a map that has not begun, or goes on no more.
        """
        ...

    async def withdraw_items(self, run_id: str, node: Node, limit: int) -> tuple[int, MapCounts | None]:
        """Withdraws up to `limit` items of a draining map that have not begun. How many, and how far the map is."""
        ...

    async def free_items(self, run_id: str, node: int) -> None:
        """Makes held items ready for which a map has room."""
        ...

    async def take_due_waits(self, limit: int, pause: float) -> list[DueWait]:
        """Waiting tasks that are due; nobody else gets them for `pause` seconds. Never waits."""
        ...

    async def load_signals(self, run_id: str, names: Sequence[str] | None = None) -> list[StoredSignal]:
        """The run's signals, or those of some names, in the order they came: kept ones and taken ones."""
        ...

    async def load_heads(self, run_ids: Sequence[str]) -> dict[str, RunHead]:
        """Runs as they are now; those that do not exist are left out."""
        ...

    async def load_values(self, wanted: Sequence[tuple[str, int]]) -> StoredValues:
        """What (run id, read code) give, see core.plan, and the errors of nodes among them that failed. The rest is left out."""
        ...

    async def leased_to(self, owner: str, run_ids: Sequence[str] | None) -> list[ClaimedTask]:
        """Tasks of these runs, or of all (None), that `owner` holds: what a lost answer may have handed over."""
        ...

    async def renew(self, beats: Sequence[Beat], *, owner: str) -> list[Renewal]:
        """Extends leases and keeps heartbeat details, in one statement. One answer a beat, in order. Never waits."""
        ...

    async def expired_tasks(self, limit: int) -> list[tuple[RunHead, Delivery]]:
        """Leased tasks whose lease is over, oldest first. Takes no locks: the commit's fence looks again."""
        ...

    async def move_due_tasks(self, limit: int) -> int:
        """Makes up to `limit` delayed tasks that are due ready; returns how many. Never waits."""
        ...

    async def due_runs(self, limit: int) -> list[Due]:
        """Runs whose start or deadline has come. Takes no locks: the commit's version looks again."""
        ...

    async def next_due_in(self) -> float | None:
        """Seconds until the next delayed or waiting task, start or deadline; 0.0 when overdue, None when there is none."""
        ...

    async def repair_outbox(self, limit: int, older_than: float) -> tuple[int, int]:
        """Puts ready tasks without an outbox row back into it, and removes outbox rows whose task is not ready.

        Looks at tasks untouched for `older_than` seconds: at up to `limit` runs and outbox rows a call, at the next ones
        with the next call, and round again. Returns (put back, removed).
        """
        ...

    async def run_ends(self, run_ids: Sequence[str]) -> dict[str, RunEnd]:
        """Status, output and error of runs, ended or not; those that do not exist are left out."""
        ...

    async def get_run(self, run_id: str) -> RunRecord | None:
        """A run with its tasks (no map items), or None."""
        ...

    async def history(self, run_id: str) -> list[HistoryRow]:
        """Every transition of the run, in version order."""
        ...

    async def list_runs(self, query: RunQuery, after: str | None, limit: int) -> RunPage:
        """The next runs behind `after`, by id, which is the order of their creation.

        Workflow and status lead the way; among the runs they leave, it looks at `limit` for those that fit the rest, so
        that a page may hold fewer, or none, and still not be the last. Takes no locks.
        """
        ...

    async def changes(self, run_id: str, after_version: int, limit: int) -> RunChanges | None:
        """A run with up to `limit` transitions above a version, oldest first, read at one instant; None when there is no such run."""
        ...

    async def audit(self, after: str | None, limit: int) -> list[AuditedRun]:
        """Up to `limit` runs with ids above `after`, by id, each with all there is of it, read at one instant."""
        ...

    async def quarantine(self, run_id: str, version: int, reason: str) -> bool:
        """Takes a run that cannot be decided out of every loop, if it is still at `version`. Nothing is lost."""
        ...

    async def release(self, run_id: str) -> bool:
        """Ends a quarantine: the run's ready tasks are handed out again. False when there was none."""
        ...

    async def register_worker(self, worker: WorkerRecord, *, ttl: float) -> None:
        """Says that this incarnation lives, and what it serves, for `ttl` seconds."""
        ...

    async def presence(self) -> Presence:
        """Workers that said they live and have not been silent for longer than they promised."""
        ...

    async def forget_worker(self, worker_id: str) -> None:
        """Says that this incarnation has ended."""
        ...

    async def unknown_steps(
        self, *, queues: Sequence[str], steps: Collection[str], limit: int = 10_000
    ) -> list[UnknownStep]:
        """Steps that ready tasks of these queues wait for, and that are neither in `steps` nor known to a live worker.

        By name. Looks at the `limit` tasks of each queue that are next to be claimed. Takes no locks.
        """
        ...

    async def expire_leases_of_gone(self, host: str, boot_id: str, alive: Collection[tuple[int, float]]) -> list[str]:
        """Ends at once the leases of registered workers of this host and boot that are not among `alive` (pid, start).

        Returns their worker ids.
        """
        ...

    async def set_sleeping(self, sleeper: str, *, asleep: bool, ttl: float) -> None:
        """Says whether somebody of this process sleeps and wants to be notified."""
        ...

    async def make_partitions(self) -> None:
        """Makes the history partitions of the months ahead. Safe to call from many replicas."""
        ...
