"""The store on PostgreSQL: one statement an operation, from the files in sql/.

Connections come from a pool and carry no session state of their own beyond the planner settings below, so any
connection serves any call. One more connection listens. See ports/store.py for the contract.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import anyio
import asyncpg

from composer.core.events import Delivery, MapCounts, StoredSignal
from composer.core.limits import MAX_PAYLOAD
from composer.core.plan import Node, Plan, node_read, plan_from_text
from composer.core.snapshot import Snapshot
from composer.core.states import RunStatus
from composer.errors import ClientError
from composer.ports.store import (
    AuditedRun,
    Beat,
    Borrowed,
    ClaimedTask,
    CommitAnswer,
    CommitAnswers,
    Due,
    DueWait,
    HistoryRow,
    ItemAnswer,
    ItemCommit,
    MapPage,
    NewRun,
    Presence,
    Renewal,
    RunChanges,
    RunCommit,
    RunHead,
    RunPage,
    RunQuery,
    RunRecord,
    StartAnswer,
    StoredValues,
    UnknownStep,
    Verdict,
    WorkerRecord,
)
from composer.ports.wakeups import RunEnd, Wakeups
from composer.postgres.encode import (
    encode_items,
    encode_one,
    encode_page,
    encode_rare,
    encode_start,
    encode_start_one,
    encode_steps,
)
from composer.postgres.errors import AGAIN_AT_ONCE, mapped
from composer.postgres.ids import RunIds, id_bounds
from composer.postgres.listen import Listener
from composer.postgres.migrate import check_schema, migrate
from composer.postgres.partitions import make_partitions
from composer.postgres.records import (
    audited_run,
    error_pattern,
    head_of,
    listed_run,
    map_counts,
    run_changes,
    run_record,
)
from composer.postgres.statements import statements
from composer.postgres.within import WHICH_DATABASE, BorrowedConnection, link_to

log = logging.getLogger("composer.postgres")

# Plans must not depend on statistics: made on empty tables, they would stay wrong until the next ANALYZE.
SESSION: Final = {
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "default_transaction_isolation": "read committed",
    # A client that dies without a word must not hold its locks for long.
    "idle_in_transaction_session_timeout": "30s",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
_MOST_AGAIN: Final = 5
_FIRST_ID: Final = "00000000-0000-0000-0000-000000000000"
_LONG_AGO: Final = datetime.fromtimestamp(0, UTC)
_NOBODY: Final[frozenset[int]] = frozenset()


class PostgresStore:
    """Runs of one namespace in one PostgreSQL schema."""

    def __init__(
        self,
        database_url: str,
        *,
        namespace: str = "default",
        schema: str = "composer",
        pooler: bool = False,
        connections: int = 8,
        migrate_first: bool = False,
        timeout: float = 30.0,
        max_payload: int = MAX_PAYLOAD,
    ) -> None:
        self.namespace, self.max_payload = namespace, max_payload
        self.wakeups = Wakeups()
        self.deadlocks = 0
        """Statements the server rolled back for a deadlock or a conflict, each then done again."""
        self._url, self._schema, self._pooler = database_url, schema, pooler
        self.listening = anyio.Event()
        """Set once notifications of other processes are heard; at once behind a pooler, where they never are."""
        self._connections, self._migrate_first, self._timeout = connections, migrate_first, timeout
        self._sql = statements(schema)
        self._ids = RunIds()
        self._pool: Any = None
        self._is_closed = False
        """Whether it was closed, and is not opened again by whoever comes late: nobody would close it then."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop that the connections belong to."""
        self._plans: dict[int, Plan] = {}
        self._plan_ids: dict[tuple[str, str, str], int] = {}
        self._repaired_to: tuple[datetime, str, int] = (_LONG_AGO, _FIRST_ID, 0)
        """Where the next page of repair_outbox begins: a run's creation and id, an outbox row's id."""
        self._opening = anyio.Lock()
        self._database: tuple[str, str] | None = None
        """The cluster's identifier and the database's oid, once somebody needed them."""

    # -- connections -----------------------------------------------------------------------------------
    async def open(self) -> None:
        """Connects, checks the schema (or brings it up to date, when asked to at the start)."""
        async with self._opening:
            if self._pool is not None:
                return
            with mapped("connecting"):
                pool = await asyncpg.create_pool(
                    self._url,
                    min_size=0,
                    max_size=self._connections,
                    reset=_keep,
                    init=_warm,
                    **self.connection_options(),
                )
            try:
                with mapped("connecting"):
                    connection = await pool.acquire()
                try:
                    if self._migrate_first:
                        await migrate(connection, self._schema)
                    else:
                        await check_schema(connection, self._schema)
                    with mapped("reading the clock"):
                        self._ids.heard(
                            await connection.fetchval("select extract(epoch from clock_timestamp())::float8")
                        )
                finally:
                    await pool.release(connection)
            except BaseException:
                pool.terminate()
                raise
            self._pool, self._loop, self._is_closed = pool, asyncio.get_running_loop(), False

    def connection_options(self) -> dict[str, Any]:
        """Arguments of asyncpg.connect() for a connection of the engine."""
        options: dict[str, Any] = {"command_timeout": self._timeout, "timeout": 10.0}
        if self._pooler:
            # Nothing may outlive a transaction there: no prepared statements, no session settings.
            options["statement_cache_size"] = 0
        else:
            options |= {
                "server_settings": {**SESSION, "application_name": "composer"},
                "max_cached_statement_lifetime": 0,
                "max_cacheable_statement_size": 0,
            }
        return options

    async def close(self) -> None:
        """Gives back every connection."""
        pool, self._pool, self._is_closed = self._pool, None, True
        if pool is not None:
            with anyio.move_on_after(5, shield=True) as scope:
                await pool.close()
            if scope.cancelled_caught:
                pool.terminate()

    def twin(self) -> PostgresStore:
        """Another handle, with connections of its own: few, since it is for a thread that does little."""
        return PostgresStore(
            self._url,
            namespace=self.namespace,
            schema=self._schema,
            pooler=self._pooler,
            connections=2,
            timeout=self._timeout,
            max_payload=self.max_payload,
        )

    async def listen(self) -> None:
        """Hears other processes until cancelled. Behind a pooler nothing can be heard, and polling is all there is."""
        if self._pooler:
            self.listening.set()
            return
        options = self.connection_options()
        await Listener(self._url, options, self._schema, self.namespace, self.wakeups, self.listening).run()

    async def _fetch(self, doing: str, text: str, *args: Any) -> list[Any]:
        if self._is_closed:
            raise ClientError(
                "the worker or client that had opened this store has ended: a client that shares it ends with it"
            )
        if self._pool is None:
            await self.open()
        pool: Any = self._pool
        if self._loop is not asyncio.get_running_loop():
            raise ClientError(
                "a client or worker was used from another event loop than the one it was opened in: open one in each loop"
            )
        tries = 0
        while True:
            with mapped(doing):
                try:
                    async with pool.acquire() as connection:
                        rows: list[Any] = await connection.fetch(text, *args)
                        return rows
                except AGAIN_AT_ONCE:
                    # By the order of locks this cannot happen; where it does, the statement was rolled back whole.
                    tries += 1
                    self.deadlocks += 1
                    log.warning("a statement was rolled back and is done again", extra={"doing": doing, "tries": tries})
                    if tries >= _MOST_AGAIN:
                        raise
            await anyio.sleep(0.01 * tries)

    # -- plans -------------------------------------------------------------------------------------------
    async def mint_run_ids(self, count: int) -> list[str]:
        """New run ids, rising."""
        if not self._ids.is_set:
            await self.open()
        return [self._ids.mint() for _ in range(count)]

    async def register_plan(self, plan: Plan) -> int:
        """The plan's id; stores it when it is new, and makes it what a start by name uses."""
        key = (plan.workflow, plan.shape, plan.options_hash)
        known = self._plan_ids.get(key)
        if known is not None:
            return known
        s = self._schema
        rows = await self._fetch(
            "registering a plan",
            f"with p as (insert into {s}.plans as p (namespace, workflow, shape, options_hash, body, about) values ($1, $2, $3, $4, $5, $6) "
            "on conflict (namespace, workflow, shape, options_hash) do update set about = p.about returning p.id), "
            f"w as (insert into {s}.workflows (namespace, name, plan) select $1, $2, id from p "
            "on conflict (namespace, name) do update set plan = excluded.plan, updated_at = now()) select id from p",
            self.namespace, *key, plan.text, json.dumps(dict(plan.about)),
        )  # fmt: skip
        plan_id: int = rows[0]["id"]
        self._plan_ids[key] = plan_id
        self._plans[plan_id] = plan
        return plan_id

    async def load_plan(self, plan_id: int) -> Plan:
        """A stored plan, kept for good once read: plans do not change."""
        if plan_id not in self._plans:
            rows = await self._fetch(
                "loading a plan",
                f"select body, about from {self._schema}.plans where namespace = $1 and id = $2",
                self.namespace,
                plan_id,
            )
            if not rows:
                raise KeyError(plan_id)
            self._plans[plan_id] = plan_from_text(rows[0]["body"], json.loads(rows[0]["about"]))
        return self._plans[plan_id]

    async def current_plan(self, workflow: str, shape: str) -> int | None:
        """The plan of this shape that new starts use, else the one registered last."""
        s = self._schema
        rows = await self._fetch(
            "looking for a plan",
            f"select p.id from {s}.plans p where p.namespace = $1 and p.workflow = $2 and p.shape = $3 order by exists "
            f"(select from {s}.workflows w where w.namespace = $1 and w.name = $2 and w.plan = p.id) desc, p.id desc limit 1",
            self.namespace, workflow, shape,
        )  # fmt: skip
        return rows[0]["id"] if rows else None

    async def named_plan(self, workflow: str) -> int | None:
        """The plan that new starts by this name use."""
        rows = await self._fetch(
            "looking for a workflow",
            f"select plan from {self._schema}.workflows where namespace = $1 and name = $2",
            self.namespace,
            workflow,
        )
        return rows[0]["plan"] if rows else None

    async def workflow_names(self, limit: int) -> list[str]:
        """Names of the workflows that processes registered."""
        rows = await self._fetch(
            "listing workflows",
            f'select name from {self._schema}.workflows where namespace = $1 order by name collate "C" limit $2',
            self.namespace,
            limit,
        )
        return [row["name"] for row in rows]

    # -- runs --------------------------------------------------------------------------------------------
    async def start_runs(self, runs: Sequence[NewRun], *, owner: str = "", lease: float = 0.0) -> list[StartAnswer]:
        """Stores new runs with their root tasks, in one statement."""
        if not runs:
            return []
        if len(runs) == 1 and runs[0].key is None and runs[0].transition.starts_are_ready:
            parameters = encode_start_one(self.namespace, runs[0], owner, lease)
            rows = await self._fetch("starting a run", self._sql.start_one, *parameters)
        else:
            parameters = encode_start(self.namespace, runs, owner, lease)
            rows = await self._fetch("starting runs", self._sql.start, *parameters)
        answers = [StartAnswer(str(row["run_id"]), row["created"], row["digest"], row["at"]) for row in rows]
        self._ids.heard(rows[0]["at"])
        if any(answer.created for answer in answers):
            self.wakeups.tasks_ready(
                {
                    run.plan.nodes[s.node].options.queue
                    for run in runs
                    for s in run.transition.starts
                    if s.node not in run.leased and s.is_ready
                }
            )
            if any(
                run.is_scheduled
                or run.plan.timeout is not None
                or any(s.wake_in is not None or s.wake_at is not None for s in run.transition.starts)
                for run in runs
            ):
                self.wakeups.timer_set()
        return answers

    def borrow(self, connection: object) -> Borrowed:
        """The caller's connection, for starts within its transaction."""
        return BorrowedConnection(link_to(connection), self.namespace, self._schema, self._which_database)

    async def _which_database(self) -> tuple[str, str]:
        if self._database is None:
            (row,) = await self._fetch("asking which database this is", WHICH_DATABASE)
            self._database = (row[0], row[1])
        return self._database

    async def claim_tasks(
        self, *, queues: Sequence[str], steps: Collection[str], limit: int, owner: str, lease: float
    ) -> list[ClaimedTask]:
        """Leases ready tasks, arguments included, in one statement."""
        rows = await self._fetch(
            "claiming tasks",
            self._sql.claim,
            self.namespace,
            list(queues),
            list(steps),
            limit,
            owner,
            lease,
            random.getrandbits(1),
        )
        return _all_claimed(rows, owner)

    async def commit(self, commits: Sequence[RunCommit], *, owner: str = "", lease: float = 0.0) -> CommitAnswers:
        """Applies transitions: all ordinary ones in one statement, all rare ones in another."""
        ordinary = [c for c in commits if not c.transition.is_rare]
        rare = [c for c in commits if c.transition.is_rare]
        found: dict[str, CommitAnswer] = {}
        at = 0.0
        if ordinary:
            made = ordinary[0].transition
            if len(ordinary) == 1 and len(made.changes) == 1 and made.starts_are_ready:
                parameters = encode_one(self.namespace, ordinary[0], owner, lease)
                rows = await self._fetch("committing", self._sql.commit_one, *parameters)
            else:
                parameters = encode_steps(self.namespace, ordinary, owner, lease)
                rows = await self._fetch("committing", self._sql.commit_steps, *parameters)
            at = self._answers(ordinary, rows, found, handed_over=True) or at
            # The ordinary commit takes reports in time only. One that comes after its lease was swept, and before anybody
            # claimed the task again, is heard by the other statement; only what that refuses is stale.
            rare += [c for c in ordinary if c.run_id in found and found[c.run_id].verdict is Verdict.STALE]
        if rare:
            rows = await self._fetch("committing", self._sql.commit_rare, *encode_rare(self.namespace, rare))
            at = self._answers(rare, rows, found, handed_over=False) or at
        if at:
            self._ids.heard(at)
        return CommitAnswers([found.get(c.run_id) or CommitAnswer(c.run_id, Verdict.GONE) for c in commits], at)

    def _answers(
        self, commits: Sequence[RunCommit], rows: Sequence[Any], found: dict[str, CommitAnswer], *, handed_over: bool
    ) -> float:
        """Reads a commit's rows into `found`, wakes whoever waits in this process; returns the database's time."""
        at = 0.0
        by_id = {str(row["id"]): row for row in rows}
        positions = [(c.run_id, (change.node, change.item)) for c in commits for change in c.transition.changes]
        ready: set[str] = set()
        timer = False
        for commit in commits:
            row = by_id.get(commit.run_id)
            if row is None:
                continue
            at = row["at"]
            made = commit.transition
            if row["won"]:
                self.wakeups.run_changed(commit.run_id)
                leased = commit.leased if handed_over else _NOBODY
                found[commit.run_id] = CommitAnswer(commit.run_id, Verdict.WON, leased=leased)
                if len(leased) < len(made.starts):
                    nodes = commit.plan.nodes
                    for start in made.starts:
                        if start.waits:
                            timer = timer or (start.wake_in is not None or start.wake_at is not None)
                        elif start.is_ready and start.node not in leased:
                            ready.add(nodes[start.node].options.queue)
                for change in made.changes:
                    if change.delay is not None:
                        timer = True
                    elif change.state == "ready":
                        ready.add(commit.plan.nodes[change.node].options.queue)
                if made.restarts:
                    self.wakeups.run_reopened(commit.run_id)
                if made.stops_open_tasks:
                    self.wakeups.run_stopped(commit.run_id)
                if made.ends_run:
                    result = made.result
                    end = RunEnd(commit.run_id, made.run.status.value, result.output, result.error) if result else None
                    self.wakeups.run_ended(commit.run_id, end)
                continue
            if row["quarantine"] is not None:
                found[commit.run_id] = CommitAnswer(commit.run_id, Verdict.QUARANTINED)
                continue
            now = Snapshot.stored(row["status"], row["version"], row["letters"], row["counters"])
            stale = frozenset(positions[ord - 1][1] for ord in row["ords"] or ())
            found[commit.run_id] = CommitAnswer(commit.run_id, Verdict.STALE if stale else Verdict.LOST, now, stale)
        if ready:
            self.wakeups.tasks_ready(ready)
        if timer:
            self.wakeups.timer_set()
        return at

    async def commit_items(self, commits: Sequence[ItemCommit]) -> list[ItemAnswer | None]:
        """Applies reports about map items, in one statement."""
        rows = await self._fetch("committing items", self._sql.commit_items, *encode_items(self.namespace, commits))
        positions = [(c.run_id, change) for c in commits for change in c.changes]
        by_run: dict[str, list[Any]] = {}
        for row in rows:
            by_run.setdefault(str(row["id"]), []).append(row)
        answers: list[ItemAnswer | None] = []
        timer = False
        for commit in commits:
            self.wakeups.run_changed(commit.run_id)
            found = by_run.get(commit.run_id)
            if found is None:
                answers.append(None)
                continue
            made = [positions[ord - 1][1].change for ord in found[0]["ords"] or ()]
            timer = timer or any(change.delay is not None for change in made)
            counts = {row["node"]: map_counts(row) for row in found if row["node"] is not None}
            answers.append(
                ItemAnswer(
                    head_of(found[0], commit.run_id),
                    frozenset((change.node, change.item) for change in made),
                    {node: each for node, each in counts.items() if each is not None},
                    is_quarantined=found[0]["quarantine"] is not None,
                )
            )
        if rows:
            self._ids.heard(rows[0]["at"])
            self.wakeups.tasks_ready(rows[0]["queues"] or ())
        if timer:
            self.wakeups.timer_set()
        return answers

    async def expand_map(self, page: MapPage) -> tuple[bool, MapCounts | None]:
        """Stores the page if it is the map's next one."""
        rows = await self._fetch("storing items", self._sql.expand_map, *encode_page(self.namespace, page))
        if rows[0]["is_ready"]:
            self.wakeups.tasks_ready({page.plan.nodes[page.node].options.queue})
        return rows[0]["stored"], map_counts(rows[0])

    async def withdraw_items(self, run_id: str, node: Node, limit: int) -> tuple[int, MapCounts | None]:
        """Withdraws items of a draining map that have not begun."""
        rows = await self._fetch(
            "withdrawing items",
            self._sql.withdraw_items,
            self.namespace,
            run_id,
            node.index,
            limit,
            json.dumps(node.name),
        )
        return rows[0]["found"] or 0, map_counts(rows[0])

    async def free_items(self, run_id: str, node: int) -> None:
        """Makes held items ready for which a map has room."""
        rows = await self._fetch("freeing items", self._sql.free_items, self.namespace, run_id, node)
        self.wakeups.tasks_ready(rows[0]["queues"] or ())

    async def take_due_waits(self, limit: int, pause: float) -> list[DueWait]:
        """Waiting tasks that are due."""
        rows = await self._fetch("looking for due waits", self._sql.due_waits, self.namespace, limit, pause)
        return [
            DueWait(head_of(row, row["run_id"]), row["node"], map_counts(row), row["attempt"], row["at"])
            for row in rows
        ]

    async def load_signals(self, run_id: str, names: Sequence[str] | None = None) -> list[StoredSignal]:
        """The run's signals, in the order they came."""
        wanted = None if names is None else list(names)
        rows = await self._fetch("reading signals", self._sql.load_signals, self.namespace, run_id, wanted)
        return [StoredSignal(row["id"], row["name"], row["payload"], row["dedupe"], row["node"]) for row in rows]

    async def load_heads(self, run_ids: Sequence[str]) -> dict[str, RunHead]:
        """Runs as they are now."""
        rows = await self._fetch("loading runs", self._sql.load_heads, self.namespace, list(run_ids))
        return {str(row["id"]): head_of(row, row["id"]) for row in rows}

    async def load_values(self, wanted: Sequence[tuple[str, int]]) -> StoredValues:
        """What read codes give, and the errors of nodes among them that failed."""
        rows = await self._fetch(
            "loading outputs",
            self._sql.load_values,
            self.namespace,
            [run for run, _ in wanted],
            [code for _, code in wanted],
        )
        return StoredValues(
            {(str(row["run_id"]), row["code"]): row["value"] for row in rows if row["value"] is not None},
            {(str(row["run_id"]), node_read(row["code"])[0]): row["error"] for row in rows if row["error"] is not None},
        )

    async def leased_to(self, owner: str, run_ids: Sequence[str] | None) -> list[ClaimedTask]:
        """Tasks of these runs, or of all, that `owner` holds."""
        if run_ids is None:
            held = f"select distinct run_id from {self._schema}.tasks where state = 'leased' and namespace = $1 and lease_owner = $2"
            run_ids = [str(row["run_id"]) for row in await self._fetch("reading back", held, self.namespace, owner)]
        rows = await self._fetch("reading back", self._sql.leased_to, self.namespace, owner, list(run_ids))
        return _all_claimed(rows, owner)

    async def renew(self, beats: Sequence[Beat], *, owner: str) -> list[Renewal]:
        """Extends leases and keeps heartbeat details, in one statement."""
        rows = await self._fetch(
            "renewing leases", self._sql.renew, self.namespace, [b.run_id for b in beats], [b.task.node for b in beats],
            [b.task.item for b in beats], [b.task.attempt for b in beats], [b.task.delivery for b in beats],
            [b.lease for b in beats], [b.details for b in beats], owner,
        )  # fmt: skip
        return [Renewal(row["answer"]) for row in rows]

    # -- what the coordinator's loops ask -----------------------------------------------------------------
    async def expired_tasks(self, limit: int) -> list[tuple[RunHead, Delivery]]:
        """Leased tasks whose lease is over."""
        rows = await self._fetch("looking for expired leases", self._sql.expired, self.namespace, limit)
        return [(head_of(row, row["run_id"]), _delivery(row, row["lease_owner"] or "")) for row in rows]

    async def move_due_tasks(self, limit: int) -> int:
        """Makes delayed tasks that are due ready."""
        row = (await self._fetch("moving due tasks", self._sql.move_due, self.namespace, limit))[0]
        if row["queues"]:
            self.wakeups.tasks_ready(row["queues"])
        return int(row["moved"])

    async def due_runs(self, limit: int) -> list[Due]:
        """Runs whose start or deadline has come."""
        rows = await self._fetch("looking for due runs", self._sql.due_runs, self.namespace, limit)
        return [Due(head_of(row, row["id"]), row["kind"]) for row in rows]

    async def next_due_in(self) -> float | None:
        """Seconds until the next thing comes due."""
        value = (await self._fetch("looking for the next timer", self._sql.next_due, self.namespace))[0]["seconds"]
        return None if value is None else max(0.0, value)

    async def repair_outbox(self, limit: int, older_than: float) -> tuple[int, int]:
        """Puts lost dispatches back, removes dead ones."""
        rows = await self._fetch(
            "repairing the outbox", self._sql.repair_outbox, self.namespace, limit, older_than, *self._repaired_to
        )
        row = rows[0]
        self._repaired_to = (
            row["after_created"] or _LONG_AGO,
            str(row["after_run"] or _FIRST_ID),
            row["after_row"] or 0,
        )
        if row["queues"]:
            self.wakeups.tasks_ready(row["queues"])
        return row["put"], row["removed"]

    async def quarantine(self, run_id: str, version: int, reason: str) -> bool:
        """Takes a run out of every loop; its ready tasks are held."""
        s = self._schema
        rows = await self._fetch(
            "quarantining a run",
            f"with r as (update {s}.runs set quarantine = $4, updated_at = clock_timestamp() "
            "where namespace = $1 and id = $2 and version = $3 and quarantine is null returning id), "
            f"o as (delete from {s}.outbox where namespace = $1 and run_id in (select id from r)) select id from r",
            self.namespace, run_id, version, reason[:10_000],
        )  # fmt: skip
        return bool(rows)

    async def release(self, run_id: str) -> bool:
        """Ends a quarantine: the run's ready tasks are handed out again."""
        s = self._schema
        rows = await self._fetch(
            "releasing a run",
            f"with r as (update {s}.runs set quarantine = null, updated_at = clock_timestamp() "
            "where namespace = $1 and id = $2 and quarantine is not null returning id), "
            f"o as (insert into {s}.outbox (namespace, queue, priority, run_id, node, item, step) "
            f"select t.namespace, t.queue, t.priority, t.run_id, t.node, t.item, t.step from {s}.tasks t "
            "where t.namespace = $1 and t.run_id in (select id from r) and t.state = 'ready' returning queue) "
            "select (select count(*) from r) as released, (select array_agg(distinct queue) from o) as queues",
            self.namespace, run_id,
        )  # fmt: skip
        self.wakeups.tasks_ready(rows[0]["queues"] or ())
        self.wakeups.timer_set()
        return bool(rows[0]["released"])

    async def make_partitions(self) -> None:
        """Makes the history partitions of the months ahead."""
        await self.open()
        with mapped("making partitions"):
            async with self._pool.acquire() as connection:
                await make_partitions(connection, self._schema)

    # -- what people ask -----------------------------------------------------------------------------------
    async def run_ends(self, run_ids: Sequence[str]) -> dict[str, RunEnd]:
        """Status, output and error of runs."""
        rows = await self._fetch("reading results", self._sql.run_ends, self.namespace, list(run_ids))
        return {str(row["id"]): RunEnd(str(row["id"]), row["status"], row["output"], row["error"]) for row in rows}

    async def get_run(self, run_id: str) -> RunRecord | None:
        """A run with its tasks, read in one statement: one instant."""
        rows = await self._fetch("reading a run", self._sql.get_run, self.namespace, run_id)
        return run_record(rows) if rows else None

    async def list_runs(self, query: RunQuery, after: str | None, limit: int) -> RunPage:
        """The next runs behind `after`."""
        lowest, highest = id_bounds(query.since, query.until)
        if after is not None:
            lowest, highest = (lowest, min(highest, after)) if query.newest_first else (max(lowest, after), highest)
        rows = await self._fetch(
            "listing runs", self._sql.list_runs, self.namespace, query.workflow, sorted(query.statuses or RunStatus),
            query.newest_first, lowest, highest, limit, json.dumps(dict(query.tags)) if query.tags else None,
            query.error_code and error_pattern(query.error_code), query.since, query.until,
        )  # fmt: skip
        reached = str(rows[0]["reached"]) if rows[0]["looked"] == limit else None
        return RunPage([listed_run(row) for row in rows if row["id"] is not None], reached)

    async def changes(self, run_id: str, after_version: int, limit: int) -> RunChanges | None:
        """A run and its transitions above a version, in one statement: one instant."""
        rows = await self._fetch("following a run", self._sql.changes, self.namespace, run_id, after_version, limit)
        return run_changes(rows) if rows else None

    async def audit(self, after: str | None, limit: int) -> list[AuditedRun]:
        """Runs with all there is of them, in one statement: one instant."""
        rows = await self._fetch("auditing runs", self._sql.audit, self.namespace, after or _FIRST_ID, limit)
        return [audited_run(row) for row in rows]

    async def history(self, run_id: str) -> list[HistoryRow]:
        """Every transition of the run, in version order."""
        rows = await self._fetch(
            "reading history",
            f"select version, at, changes from {self._schema}.history where namespace = $1 and run_id = $2 order by version",
            self.namespace, run_id,
        )  # fmt: skip
        return [HistoryRow(row["version"], row["at"], json.loads(row["changes"])) for row in rows]

    # -- who is alive --------------------------------------------------------------------------------------
    async def register_worker(self, worker: WorkerRecord, *, ttl: float) -> None:
        """Says that this incarnation lives."""
        s = self._schema
        await self._fetch(
            "registering a worker",
            # One that lapsed a day ago holds no lease that its registration could shorten.
            f"with lapsed_workers as materialized (select ctid as at from {s}.workers where namespace = $1 and id <> $2 "
            "and expires_at < now() - interval '1 day' limit 1000 for update skip locked), "
            f"g as (delete from {s}.workers x using lapsed_workers l where x.ctid = l.at) "
            f"insert into {s}.workers (namespace, id, host, boot_id, pid, started_at, queues, steps, expires_at) "
            "values ($1, $2, $3, $4, $5, $6, $7, $8, clock_timestamp() + make_interval(secs => $9::float8)) on conflict (namespace, id) do update "
            "set seen_at = clock_timestamp(), expires_at = excluded.expires_at, queues = excluded.queues, steps = excluded.steps",
            self.namespace, worker.worker_id, worker.host, worker.boot_id, worker.pid, worker.started_at, list(worker.queues),
            list(worker.steps), ttl,
        )  # fmt: skip

    async def presence(self) -> Presence:
        """Workers whose registrations have not lapsed."""
        rows = await self._fetch(
            "looking for workers",
            "select clock_timestamp() as at, w.* from (select 1) one left join (select id, host, boot_id, pid, started_at, queues, steps "
            f"from {self._schema}.workers where namespace = $1 and expires_at > clock_timestamp() order by id) w on true",
            self.namespace,
        )  # fmt: skip
        found = [
            WorkerRecord(
                row["id"], row["host"], row["boot_id"], row["pid"], row["started_at"], row["queues"], row["steps"]
            )
            for row in rows
            if row["id"] is not None
        ]
        return Presence(rows[0]["at"], found)

    async def forget_worker(self, worker_id: str) -> None:
        """Says that this incarnation has ended."""
        s = self._schema
        await self._fetch(
            "forgetting a worker",
            f"with s as (delete from {s}.sleepers where namespace = $1 and id = $2) delete from {s}.workers where namespace = $1 and id = $2",
            self.namespace, worker_id,
        )  # fmt: skip

    async def unknown_steps(
        self, *, queues: Sequence[str], steps: Collection[str], limit: int = 10_000
    ) -> list[UnknownStep]:
        """Steps that wait and that nobody knows."""
        rows = await self._fetch(
            "looking for steps that nobody knows",
            self._sql.unknown_steps,
            self.namespace,
            list(queues),
            list(steps),
            limit,
        )
        return [UnknownStep(row["step"], row["tasks"], str(row["run_id"])) for row in rows]

    async def expire_leases_of_gone(self, host: str, boot_id: str, alive: Collection[tuple[int, float]]) -> list[str]:
        """Ends at once the leases of registered workers of this host that are gone."""
        s = self._schema
        rows = await self._fetch(
            "looking for gone workers",
            f"with gone as materialized (select id from {s}.workers w where namespace = $1 and host = $2 and boot_id = $3 "
            "and not exists (select from unnest($4::int[], $5::float8[]) as a(pid, started_at) "
            "where a.pid = w.pid and abs(a.started_at - w.started_at) < 0.5)), "
            f"t as materialized (select namespace, run_id, node, item, lease_owner from {s}.tasks where state = 'leased' and namespace = $1 "
            "and lease_owner in (select id from gone) for no key update skip locked), "
            f"u as (insert into {s}.tasks as x (namespace, run_id, node, item, state, lease_owner, lease_expires_at) "
            "select namespace, run_id, node, item, 'leased', lease_owner, 'epoch' from t on conflict (namespace, run_id, node, item) do update "
            "set lease_expires_at = excluded.lease_expires_at), "
            f"w as (delete from {s}.workers where namespace = $1 and id in (select id from gone)), "
            f"s as (delete from {s}.sleepers where namespace = $1 and id in (select id from gone)) select id from gone",
            self.namespace, host, boot_id, [pid for pid, _ in alive], [start for _, start in alive],
        )  # fmt: skip
        if rows:
            self.wakeups.timer_set()
        return [row["id"] for row in rows]

    async def set_sleeping(self, sleeper: str, *, asleep: bool, ttl: float) -> None:
        """Says whether somebody of this process wants to be notified."""
        s = self._schema
        if asleep:
            await self._fetch(
                "going to sleep",
                # Every commit looks through the sleepers: those that were killed must not pile up.
                f"with lapsed_sleepers as materialized (select ctid as at from {s}.sleepers where namespace = $1 and id <> $2 "
                "and expires_at < now() - interval '1 minute' limit 1000 for update skip locked), "
                f"g as (delete from {s}.sleepers x using lapsed_sleepers l where x.ctid = l.at) "
                f"insert into {s}.sleepers (namespace, id, expires_at) values ($1, $2, clock_timestamp() + make_interval(secs => $3::float8)) "
                "on conflict (namespace, id) do update set expires_at = excluded.expires_at",
                self.namespace, sleeper, ttl,
            )  # fmt: skip
        else:
            await self._fetch(
                "waking up", f"delete from {s}.sleepers where namespace = $1 and id = $2", self.namespace, sleeper
            )


async def _warm(connection: Any) -> None:
    """Has the driver look up the types of the statements' arrays now, and not in the first statement that counts."""
    await connection.fetchrow(
        "select $1::uuid[], $2::int[], $3::text[], $4::smallint[], $5::float8[], $6::bool[], $7::timestamptz[]",
        *[[]] * 7,
    )


async def _keep(connection: Any) -> None:
    """Nothing to reset: the engine's connections carry no state from one call to the next."""


def _delivery(row: Any, owner: str) -> Delivery:
    return Delivery(
        row["node"],
        row["attempt"],
        row["delivery"],
        row["item"],
        row["failures"],
        row["crashes"],
        owner,
        row["at"] or 0.0,
    )


def _all_claimed(rows: Sequence[Any], owner: str) -> list[ClaimedTask]:
    """The claimed tasks of some rows. What items of one map read is sent with the first of them only."""
    tasks = [_claimed(row, owner) for row in rows]
    shared = {
        (task.run.run_id, task.task.node): task
        for task in tasks
        if task.task.item >= 0 and (task.values or task.errors)
    }
    if not shared:
        return tasks
    return [
        replace(task, values=first.values, errors=first.errors)
        if task.task.item >= 0 and (first := shared.get((task.run.run_id, task.task.node)))
        else task
        for task in tasks
    ]


def _claimed(row: Any, owner: str) -> ClaimedTask:
    values: dict[int, str] = {}
    errors: dict[int, str] = {}
    if row["nodes"]:
        for code, output, error in zip(row["nodes"], row["outputs"], row["errors"], strict=True):
            if output is not None:
                values[code] = output
            if error is not None:
                errors[node_read(code)[0]] = error
    return ClaimedTask(
        head_of(row, row["run_id"]), _delivery(row, owner), row["step"], values, row["input"], row["details"], errors
    )
