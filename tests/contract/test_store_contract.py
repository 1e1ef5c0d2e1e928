"""What every store does, by the docstrings of ports/store.py: the same tests on memory and on each PostgreSQL."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest

from composer.apply import Applier
from composer.core.events import (
    CancelRequested,
    DeadlinePassed,
    Delivery,
    LeaseExpired,
    RetryRequested,
    Started,
    StepCompleted,
    StepReleased,
    StepSnoozed,
)
from composer.core.history import fold
from composer.core.plan import INPUT
from composer.ports.store import Beat, ClaimedTask, Renewal, StoredValues, Verdict, WorkerRecord
from composer.ports.wakeups import RunEnd
from tests.builders import a_plan as built_plan
from tests.builders import says
from tests.contract.driver import RETRIES, Driver, a_chain, a_diamond, a_plan, done, failed

GRANT_ALL = lambda run_id, node: True  # noqa: E731


# -- plans ---------------------------------------------------------------------------------------------------


async def test_plan_has_one_id_and_comes_back_as_it_was(driver: Driver) -> None:
    """Registering a plan again gives the same id, another plan another one, and loading gives the plan's own text."""
    store, plan = driver.store, a_diamond(timeout=60.0)
    first = await store.register_plan(plan)
    assert await store.register_plan(a_diamond(timeout=60.0)) == first
    assert await store.register_plan(a_diamond()) != first
    assert (await store.load_plan(first)).text == plan.text


async def test_plan_that_does_not_exist_raises_key_error(driver: Driver) -> None:
    """Loading a plan that was never stored raises KeyError."""
    with pytest.raises(KeyError):
        await driver.store.load_plan(987_654)


async def test_a_workflow_name_gives_the_plan_registered_last(driver: Driver) -> None:
    """A name gives the newest plan of its workflow, whatever its shape or options; a name nobody registered gives None."""
    store = driver.store
    assert await store.named_plan("flow") is None
    assert await store.workflow_names(10) == []
    first = await store.register_plan(a_plan())
    assert await store.named_plan("flow") == first
    for newer in (a_plan(timeout=60.0), a_diamond()):
        assert await store.named_plan("flow") != (newest := await store.register_plan(newer))
        assert await store.named_plan("flow") == newest
    for name in ("b", "B", "a-b", "a"):
        await store.register_plan(a_plan(workflow=name))
    assert await store.workflow_names(10) == ["B", "a", "a-b", "b", "flow"]
    assert await store.workflow_names(2) == ["B", "a"]


async def test_run_ids_rise(driver: Driver) -> None:
    """Minted ids are UUIDs of version 7, in rising order, over several calls."""
    ids = [*await driver.store.mint_run_ids(50), *await driver.store.mint_run_ids(50)]
    assert ids == sorted(set(ids))
    assert {each[14] for each in ids} == {"7"}


# -- start ---------------------------------------------------------------------------------------------------


async def test_start_stores_the_run_with_its_roots_ready(driver: Driver) -> None:
    """A started run is running at version 1, with its roots ready, its input kept to the letter and one history row."""
    text = '{"b": 1, "a": "\\u0000 \u00e9", "big": 123456789012345678901234567890}'
    plan = a_plan({"a": [], "b": [], "c": ["a", "b"]})
    run = await driver.new(plan, text, priority=3, tags={"team": "x"})
    (answer,) = await driver.store.start_runs([run])
    assert (answer.run_id, answer.created) == (run.run_id, True)
    record = await driver.record(run.run_id)
    assert (record.head.snapshot.status, record.head.snapshot.version) == ("running", 1)
    assert record.head.snapshot.letters.text == "AA."
    assert (record.input, record.output, record.error) == (text, None, None)
    assert (record.workflow, record.namespace, record.priority) == ("flow", driver.store.namespace, 3)
    assert record.tags == {"team": "x"}
    assert (record.finished_at, record.starts_at, record.deadline_at, record.quarantine) == (None, None, None, None)
    assert await driver.states(run.run_id) == {"a": "ready", "b": "ready"}
    (row,) = await driver.store.history(run.run_id)
    assert row.version == 1
    assert row.changes == run.transition.history


async def test_start_with_a_key_that_is_taken_answers_with_its_run(driver: Driver) -> None:
    """A second start with the same key and input makes no run and answers with the first one."""
    first = await driver.start_answer(key="k", text='{"x": 1}')
    second = await driver.start_answer(key="k", text='{"x": 1}')
    assert (first.created, second.created) == (True, False)
    assert second.run_id == first.run_id
    assert second.digest == first.digest
    assert len(await driver.claim()) == 1


async def test_start_with_a_taken_key_shows_the_digest_it_was_first_used_with(driver: Driver) -> None:
    """A start with a taken key and another input answers with the digest of the first input."""
    first = await driver.start_answer(key="k", text='{"x": 1}')
    run = await driver.new(text='{"x": 2}', key="k")
    (second,) = await driver.store.start_runs([run])
    assert (second.run_id, second.created, second.digest) == (first.run_id, False, first.digest)
    assert run.digest != first.digest


async def test_key_belongs_to_its_workflow(driver: Driver) -> None:
    """The same key of another workflow makes another run."""
    one = await driver.start_answer(a_plan(workflow="one"), key="k")
    two = await driver.start_answer(a_plan(workflow="two"), key="k")
    assert one.created
    assert two.created
    assert one.run_id != two.run_id


async def test_parallel_starts_with_one_key_make_one_run(driver: Driver) -> None:
    """Of ten starts at once with one key, one makes the run, and all answer with it."""
    runs = [await driver.new(key="k") for _ in range(10)]
    answers: list[Any] = []

    async def start(run: Any) -> None:
        answers.extend(await driver.store.start_runs([run]))

    async with anyio.create_task_group() as group:
        for run in runs:
            group.start_soon(start, run)
    assert len({answer.run_id for answer in answers}) == 1
    assert [answer.created for answer in answers].count(True) == 1
    assert len(await driver.claim()) == 1


async def test_parallel_batches_with_the_same_keys_in_opposite_order_all_answer(driver: Driver) -> None:
    """Two batches at once with the same keys in opposite order make one run a key, and neither fails."""
    one = [await driver.new(key=f"k{i}") for i in range(40)]
    two = [await driver.new(key=f"k{i}") for i in reversed(range(40))]
    answers: dict[str, list[Any]] = {}

    async def start(name: str, runs: list[Any]) -> None:
        answers[name] = await driver.store.start_runs(runs)

    async with anyio.create_task_group() as group:
        group.start_soon(start, "one", one)
        group.start_soon(start, "two", two)
    assert [a.run_id for a in answers["one"]] == [a.run_id for a in reversed(answers["two"])]
    assert len(await driver.claim()) == 40
    assert getattr(driver.store, "deadlocks", 0) == 0


async def test_start_of_the_same_run_again_changes_nothing(driver: Driver) -> None:
    """A start repeated after an unknown outcome leaves one run with one history row, and answers created=False."""
    for key in (None, "k"):
        run = await driver.new(key=key)
        (first,) = await driver.store.start_runs([run])
        (again,) = await driver.store.start_runs([run])
        assert (first.created, again.created) == (True, False)
        assert again.run_id == run.run_id
        assert len(await driver.store.history(run.run_id)) == 1
        assert len(await driver.claim()) == 1


async def test_start_of_the_same_run_again_does_not_set_it_back(driver: Driver) -> None:
    """A start repeated after the run has gone on leaves it where it is."""
    run = await driver.new()
    await driver.store.start_runs([run])
    await driver.apply(run.run_id, done(await driver.claim_one()))
    before = await driver.dump([run.run_id])
    await driver.store.start_runs([run])
    assert await driver.dump([run.run_id]) == before


async def test_start_many_answers_in_the_order_of_the_runs(driver: Driver) -> None:
    """A batch of a hundred, some with keys taken before or within it, is answered one a run and in order."""
    taken = await driver.start(key="k7")
    runs = [await driver.new(key=f"k{i % 50}" if i % 2 else None) for i in range(100)]
    answers = await driver.store.start_runs(runs)
    holders: dict[str, str] = {"k7": taken}
    for run, answer in zip(runs, answers, strict=True):
        if run.key is None:
            assert (answer.run_id, answer.created) == (run.run_id, True)
        else:
            created = run.key not in holders
            holder = holders.setdefault(run.key, run.run_id)
            assert (answer.run_id, answer.created) == (holder, created)


async def test_scheduled_run_holds_its_key_and_starts_when_due(driver: Driver) -> None:
    """A run with a delay has status scheduled and no task, holds its key, and is due only once the delay is over."""
    run_id = await driver.start(key="k", starts=(30.0, None))
    assert await driver.start(key="k") == run_id
    record = await driver.record(run_id)
    assert record.head.snapshot.status == "scheduled"
    assert record.starts_at is not None
    assert await driver.claim() == []
    assert await driver.store.due_runs(10) == []
    due_in = await driver.store.next_due_in()
    assert due_in is not None
    assert 20 < due_in <= 30
    await driver.later(31)
    (due,) = await driver.store.due_runs(10)
    assert (due.head.run_id, due.kind) == (run_id, "start")
    assert await driver.store.next_due_in() == 0.0
    await driver.apply(run_id, Started())
    assert await driver.store.due_runs(10) == []
    assert (await driver.head(run_id)).snapshot.status == "running"
    assert (await driver.claim_one()).run.run_id == run_id


async def test_run_scheduled_for_a_moment_keeps_it(driver: Driver) -> None:
    """A run with start_at is due at that moment."""
    at = datetime.now(UTC) + timedelta(days=400)
    run_id = await driver.start(starts=(None, at))
    assert (await driver.record(run_id)).starts_at == at
    past = await driver.start(starts=(None, datetime(2001, 2, 3, tzinfo=UTC)))
    assert [due.head.run_id for due in await driver.store.due_runs(10)] == [past]


async def test_deadline_of_a_scheduled_run_counts_from_its_start(driver: Driver) -> None:
    """A scheduled run of a workflow with a timeout gets its deadline when it starts."""
    run_id = await driver.start(a_plan(timeout=60.0), starts=(100.0, None))
    assert (await driver.record(run_id)).deadline_at is None
    await driver.later(101)
    await driver.apply(run_id, Started())
    due_in = await driver.store.next_due_in()
    assert due_in is not None
    assert 50 < due_in <= 60
    assert await driver.store.due_runs(10) == []


async def test_start_can_hand_the_roots_over(driver: Driver) -> None:
    """A start with an owner leases the named roots to it at once, as delivery 1, and nobody else can claim them."""
    run = await driver.new(a_plan({"a": [], "b": []}))
    run = type(run)(**{name: getattr(run, name) for name in run.__slots__} | {"leased": frozenset({0})})
    await driver.store.start_runs([run], owner="me", lease=15.0)
    task = await driver.task(run.run_id)
    assert (task.state, task.owner, task.attempt, task.delivery) == ("leased", "me", 1, 1)
    assert [claimed.step for claimed in await driver.claim()] == ["b"]
    assert await driver.store.expired_tasks(10) == []
    await driver.later(16)
    assert len(await driver.store.expired_tasks(10)) == 2


# -- claim ---------------------------------------------------------------------------------------------------


async def queued(driver: Driver, queue: str = "default", **more: Any) -> str:
    """A run of one step in a queue."""
    return await driver.start(a_plan(options={"a": {"queue": queue}}, workflow=queue), **more)


def runs_of(tasks: list[ClaimedTask]) -> list[str]:
    return [task.run.run_id for task in tasks]


async def test_claim_serves_queues_in_the_order_given(driver: Driver) -> None:
    """Tasks of the queue named first come first, whatever their priority; other queues are left alone."""
    low = await queued(driver, "low", priority=100)
    other = await queued(driver, "other")
    high = await queued(driver, "high")
    assert runs_of(await driver.claim(queues=("high", "low"))) == [high, low]
    assert runs_of(await driver.claim(queues=("other",))) == [other]


async def test_claim_takes_larger_priorities_first_then_older_tasks(driver: Driver) -> None:
    """Within a queue the larger priority comes first, and of equal ones the older task."""
    normal = await driver.start()
    low = await driver.start(priority=-5)
    high = await driver.start(priority=5)
    also_high = await driver.start(priority=5)
    assert runs_of([*await driver.claim(1), *await driver.claim(2), *await driver.claim(1)]) == [
        high,
        also_high,
        normal,
        low,
    ]


async def test_priority_of_a_task_is_its_nodes_and_its_runs(driver: Driver) -> None:
    """The priorities of node and run add up, within -100 and 100."""
    plan = a_plan(options={"a": {"priority": 60}}, workflow="urgent")
    both = await driver.start(plan, priority=60)
    alone = await driver.start(priority=99)
    under = await driver.start(plan, priority=-100)
    assert runs_of(await driver.claim()) == [both, alone, under]


async def test_claim_takes_only_steps_the_worker_knows(driver: Driver) -> None:
    """Tasks of other steps stay for others, also when they are more urgent."""
    await driver.start(a_plan({"x": []}, workflow="x"), priority=50)
    known = await driver.start()
    assert runs_of(await driver.claim(1, steps={"a"})) == [known]
    assert await driver.claim(steps=()) == []
    assert [task.step for task in await driver.claim(steps={"a", "x"})] == ["x"]


async def test_claim_takes_no_more_than_its_limit(driver: Driver) -> None:
    """A claim gives at most `limit` tasks over all queues, and the rest later."""
    for i in range(6):
        await queued(driver, ("one", "two")[i % 2])
    queues = ("one", "two")
    assert [len(await driver.claim(4, queues=queues)) for _ in range(3)] == [4, 2, 0]


async def test_claim_leases_the_task(driver: Driver) -> None:
    """A claimed task is leased to the owner as the next delivery of the same attempt, until the lease is over."""
    run_id = await driver.start()
    claimed = await driver.claim_one(owner="me", lease=20.0)
    assert (claimed.task.attempt, claimed.task.delivery, claimed.task.worker) == (1, 1, "me")
    assert claimed.task.claimed_at > 0
    task = await driver.task(run_id)
    assert (task.state, task.owner, task.attempt, task.delivery) == ("leased", "me", 1, 1)
    assert task.started_at is not None
    assert task.lease_expires_at is not None
    await driver.later(19)
    assert await driver.store.expired_tasks(10) == []
    await driver.later(2)
    assert [(head.run_id, found) for head, found in await driver.store.expired_tasks(10)] == [
        (run_id, Delivery(0, 1, 1, worker="me", claimed_at=found.claimed_at))
        for _, found in await driver.store.expired_tasks(10)
    ]


async def test_heartbeat_timeout_of_a_step_is_its_lease(driver: Driver) -> None:
    """A step with a heartbeat_timeout is leased for that long, whatever the worker's own lease."""
    await driver.start(a_plan(options={"a": {"heartbeat_timeout": 100.0}}))
    await driver.claim_one(lease=15.0)
    await driver.later(99)
    assert await driver.store.expired_tasks(10) == []
    await driver.later(2)
    assert len(await driver.store.expired_tasks(10)) == 1


async def test_claim_brings_what_the_arguments_read(driver: Driver) -> None:
    """A claimed task carries the outputs its arguments name, to the letter, and the run's input only where it is read."""
    text, output = '{"x": "\\u0000"}', '{"z":1, "a" : 2.50}'
    plan = a_plan({"a": ["input"], "b": ["a"], "c": ["b", "a", "input"], "d": ["after:c"]})
    run_id = await driver.start(plan, text)
    first = await driver.claim_one()
    assert dict(first.values) == {INPUT: text}
    await driver.apply(run_id, done(first, output))
    second = await driver.claim_one()
    assert dict(second.values) == {0: output}
    await driver.apply(run_id, done(second, '"b"'))
    third = await driver.claim_one()
    assert dict(third.values) == {0: output, 1: '"b"', INPUT: text}
    await driver.apply(run_id, done(third))
    last = await driver.claim_one()
    assert dict(last.values) == {}
    assert last.run == await driver.head(run_id)
    assert (last.input, last.details) == (None, None)


async def test_claims_at_once_hand_out_every_task_once(driver: Driver) -> None:
    """Eight claims at once of fifty tasks get every one of them exactly once."""
    started = [await driver.new(priority=i % 3) for i in range(50)]
    await driver.store.start_runs(started)
    claimed: list[ClaimedTask] = []

    async def claim(owner: str) -> None:
        for _ in range(20):
            claimed.extend(await driver.claim(7, owner=owner))

    async with anyio.create_task_group() as group:
        for i in range(8):
            group.start_soon(claim, f"w{i}")
    assert sorted(runs_of(claimed)) == sorted(run.run_id for run in started)


async def test_run_past_its_deadline_is_not_claimed(driver: Driver) -> None:
    """Tasks of a run whose deadline has passed are not handed out any more."""
    await driver.start(a_plan(timeout=60.0))
    await driver.later(61)
    assert await driver.claim() == []


async def test_runs_past_their_deadline_do_not_hold_up_others(driver: Driver) -> None:
    """A run past its deadline at the head of the queue costs a worker with one slot no more than one empty claim."""
    await driver.start(a_plan(timeout=60.0, workflow="late"), priority=1)
    await driver.later(61)
    waiting = await driver.start()
    claims = [runs_of(await driver.claim(1)) for _ in range(2)]
    assert [waiting] in claims


async def test_quarantined_run_is_not_claimed_and_holds_up_nobody(driver: Driver) -> None:
    """A run in quarantine is never handed out, also when a retry of it comes due, and leaves the queue to the others."""
    plan = a_plan({"a": [], "b": []}, options={"a": RETRIES}, workflow="bad")
    bad = await driver.start(plan, priority=5)
    (a, _b) = await driver.claim()
    await driver.apply(bad, failed(a))
    await driver.apply(bad, StepReleased(_b.task))
    head = await driver.head(bad)
    assert await driver.store.quarantine(bad, head.snapshot.version, "cannot be decided")
    assert await driver.claim() == []
    await driver.later(11)
    await driver.store.move_due_tasks(10)
    waiting = await driver.start()
    claims = [runs_of(await driver.claim(1)) for _ in range(3)]
    assert claims.count([waiting]) == 1
    assert claims.count([]) == 2


# -- commit --------------------------------------------------------------------------------------------------


async def test_commit_that_wins_applies_everything(driver: Driver) -> None:
    """A completed step has its output, its user is ready, the version grew by one, and history says so."""
    run_id = await driver.start(a_chain(2))
    claimed = await driver.claim_one()
    head = await driver.head(run_id)
    answer = await driver.commit(head, done(claimed, '"out"'))
    assert (answer.run_id, answer.verdict, answer.stale, answer.leased) == (
        run_id,
        Verdict.WON,
        frozenset(),
        frozenset(),
    )
    task = await driver.task(run_id, "s0")
    assert (task.state, task.output, task.owner, task.lease_expires_at) == ("completed", '"out"', None, None)
    assert (task.attempt, task.delivery) == (1, 1)
    assert task.finished_at is not None
    assert await driver.states(run_id) == {"s0": "completed", "s1": "ready"}
    assert (await driver.head(run_id)).snapshot.letters.text == "CA"
    rows = await driver.store.history(run_id)
    assert [row.version for row in rows] == [1, 2]
    assert rows[1].changes["events"][0]["outcome"] == "completed"


async def test_commit_on_an_old_version_loses_and_says_what_the_run_is_now(driver: Driver) -> None:
    """Of two decisions on one version the second changes nothing, and its answer carries the run as it is."""
    run_id = await driver.start(a_plan({"a": [], "b": []}))
    a, b = await driver.claim()
    head = await driver.head(run_id)
    assert (await driver.commit(head, done(a))).verdict is Verdict.WON
    before = await driver.dump([run_id])
    answer = await driver.commit(head, done(b))
    assert (answer.verdict, answer.stale) == (Verdict.LOST, frozenset())
    assert answer.now == (await driver.head(run_id)).snapshot
    assert await driver.dump([run_id]) == before


async def test_rare_commit_on_an_old_version_loses_too(driver: Driver) -> None:
    """A stop decided on an old version changes nothing, and its answer carries the run as it is."""
    run_id = await driver.start()
    head = await driver.head(run_id)
    await driver.commit(head, done(await driver.claim_one()))
    before = await driver.dump([run_id])
    answer = await driver.commit(head, CancelRequested("late"))
    assert (answer.verdict, answer.now) == (Verdict.LOST, (await driver.head(run_id)).snapshot)
    assert await driver.dump([run_id]) == before


async def test_commit_of_a_run_that_does_not_exist_is_gone(driver: Driver) -> None:
    """A commit of a run that nobody started answers gone."""
    run_id = await driver.start()
    commit = await driver.commit_of(await driver.head(run_id), done(await driver.claim_one()))
    (other,) = await driver.store.mint_run_ids(1)
    gone = type(commit)(other, commit.plan_id, commit.plan, commit.transition)
    answers = (await driver.store.commit([gone, commit])).answers
    assert [(answer.run_id, answer.verdict) for answer in answers] == [(other, Verdict.GONE), (run_id, Verdict.WON)]


async def test_commit_answers_in_the_order_of_the_commits(driver: Driver) -> None:
    """A batch of ordinary and rare commits, won and lost, is answered one a run and in its order, with the time."""
    runs = [await driver.start() for _ in range(6)]
    claimed = {task.run.run_id: task for task in await driver.claim()}
    heads = {run_id: await driver.head(run_id) for run_id in runs}
    for run_id in runs[::3]:
        await driver.apply(run_id, CancelRequested())
    events: dict[str, Any] = {
        run_id: CancelRequested("x") if i % 2 else done(claimed[run_id]) for i, run_id in enumerate(runs)
    }
    batch = [await driver.commit_of(heads[run_id], events[run_id]) for run_id in reversed(runs)]
    answers = await driver.store.commit(batch)
    assert [answer.run_id for answer in answers.answers] == list(reversed(runs))
    assert [answer.verdict for answer in answers.answers] == [
        Verdict.LOST if i % 3 == 0 else Verdict.WON for i in reversed(range(6))
    ]
    assert answers.at > 0


async def test_report_of_an_earlier_delivery_is_stale(driver: Driver) -> None:
    """A report whose task was claimed again is stale: it loses the whole commit of its run, which names it."""
    run_id = await driver.start(a_plan({"a": [], "b": []}))
    a, b = await driver.claim()
    await driver.apply(run_id, StepReleased(a.task))
    again = await driver.claim_one(owner="other")
    before = await driver.dump([run_id])
    answer = await driver.commit(await driver.head(run_id), done(a), done(b))
    assert (answer.verdict, answer.stale) == (Verdict.STALE, frozenset({(0, -1)}))
    assert answer.now == (await driver.head(run_id)).snapshot
    assert await driver.dump([run_id]) == before
    assert (await driver.commit(await driver.head(run_id), done(again), done(b))).verdict is Verdict.WON


async def test_one_bad_fence_loses_that_run_only(driver: Driver) -> None:
    """In a batch of three runs the one with a stale report loses, and the other two win."""
    runs = [await driver.start() for _ in range(3)]
    claimed = {task.run.run_id: task for task in await driver.claim()}
    await driver.apply(runs[1], StepReleased(claimed[runs[1]].task))
    await driver.claim_one(owner="other")
    batch = [await driver.commit_of(await driver.head(run_id), done(claimed[run_id])) for run_id in runs]
    answers = (await driver.store.commit(batch)).answers
    assert [answer.verdict for answer in answers] == [Verdict.WON, Verdict.STALE, Verdict.WON]
    assert answers[1].stale == frozenset({(0, -1)})


async def test_applier_drops_the_stale_report_and_keeps_the_others(driver: Driver) -> None:
    """Of two reports of one run the stale one is ignored with a reason, and the other is applied."""
    run_id = await driver.start(a_plan({"a": [], "b": []}))
    a, b = await driver.claim()
    await driver.apply(run_id, StepReleased(a.task))
    await driver.claim_one(owner="other")
    applied = await driver.apply(run_id, done(a), done(b))
    assert [(each.run_id, each.event) for each in applied.ignored] == [(run_id, done(a))]
    assert await driver.states(run_id) == {"a": "leased", "b": "completed"}


async def test_report_is_applied_once(driver: Driver) -> None:
    """The same report again, also as a batch of its own on the new version, changes nothing."""
    run_id = await driver.start(a_chain(2))
    claimed = await driver.claim_one()
    await driver.apply(run_id, done(claimed, "1"))
    before = await driver.dump([run_id])
    applied = await driver.apply(run_id, done(claimed, "2"))
    assert len(applied.ignored) == 1
    assert await driver.dump([run_id]) == before


async def expire(driver: Driver, run_id: str) -> None:
    """The sweep finds the run's leases over and puts their tasks back."""
    await driver.later(16)
    found = [each for head, each in await driver.store.expired_tasks(100) if head.run_id == run_id]
    assert found
    await driver.apply(run_id, *(LeaseExpired(each) for each in found), owner="")


async def put_back(driver: Driver, run_id: str) -> None:
    """The sweep puts the run's tasks back, and their pause after the crash is over."""
    await expire(driver, run_id)
    await driver.later(30)
    await driver.store.move_due_tasks(100)


async def test_late_report_is_heard_until_the_task_is_claimed_again(driver: Driver) -> None:
    """A report that comes after the sweep put its task back, and before anybody claimed it, is applied, and nobody runs it again."""
    run_id = await driver.start(a_chain(2))
    claimed = await driver.claim_one(owner="slow")
    await put_back(driver, run_id)
    task = await driver.task(run_id, "s0")
    assert (task.state, task.attempt, task.delivery, task.crashes) == ("ready", 1, 1, 1)
    answer = await driver.commit(await driver.head(run_id), done(claimed, '"late"'), owner="slow")
    assert answer.verdict is Verdict.WON
    assert (await driver.task(run_id, "s0")).output == '"late"'
    assert [task.step for task in await driver.claim()] == ["s1"]


async def test_late_report_is_heard_while_its_task_waits_out_a_crash(driver: Driver) -> None:
    """A report that comes while its task waits for its next try after a crash is applied, and the try does not come."""
    run_id = await driver.start(a_plan(options={"a": RETRIES}))
    claimed = await driver.claim_one()
    await expire(driver, run_id)
    assert (await driver.task(run_id)).state == "delayed"
    assert (await driver.commit(await driver.head(run_id), done(claimed))).verdict is Verdict.WON
    await driver.later(100)
    assert await driver.store.move_due_tasks(10) == 0
    assert (await driver.task(run_id)).wake_at is None
    assert await driver.claim() == []


async def test_late_report_is_refused_after_the_task_was_claimed_again(driver: Driver) -> None:
    """A report that comes after somebody else claimed its task is stale, and the other's report counts."""
    run_id = await driver.start()
    late = await driver.claim_one(owner="slow")
    await put_back(driver, run_id)
    again = await driver.claim_one(owner="quick")
    assert (again.task.attempt, again.task.delivery, again.task.crashes) == (1, 2, 1)
    answer = await driver.commit(await driver.head(run_id), done(late, '"late"'), owner="slow")
    assert (answer.verdict, answer.stale) == (Verdict.STALE, frozenset({(0, -1)}))
    assert (await driver.commit(await driver.head(run_id), done(again, '"quick"'))).verdict is Verdict.WON
    assert (await driver.task(run_id)).output == '"quick"'


async def test_expiry_is_refused_when_the_lease_was_renewed_meanwhile(driver: Driver) -> None:
    """A sweep that read the task before its lease was renewed changes nothing."""
    run_id = await driver.start()
    claimed = await driver.claim_one()
    await driver.later(16)
    ((head, found),) = await driver.store.expired_tasks(10)
    await driver.store.renew([Beat(run_id, claimed.task, 15.0)], owner="w")
    answer = await driver.commit(head, LeaseExpired(found), owner="")
    assert (answer.verdict, answer.stale) == (Verdict.STALE, frozenset({(0, -1)}))
    assert (await driver.task(run_id)).state == "leased"


async def test_expiry_is_refused_when_the_step_was_reported_meanwhile(driver: Driver) -> None:
    """A sweep that read the task before it was completed loses, and is ignored when it is decided again."""
    run_id = await driver.start()
    claimed = await driver.claim_one()
    await driver.later(16)
    ((head, found),) = await driver.store.expired_tasks(10)
    await driver.apply(run_id, done(claimed))
    assert (await driver.commit(head, LeaseExpired(found), owner="")).verdict is Verdict.LOST
    assert len((await driver.apply(run_id, LeaseExpired(found))).ignored) == 1
    assert (await driver.task(run_id)).state == "completed"


async def test_too_many_crashes_fail_the_step(driver: Driver) -> None:
    """Crashes count up over deliveries, and the last one that is allowed fails the run with worker-lost."""
    run_id = await driver.start()
    for crash in (1, 2, 3):
        claimed = await driver.claim_one()
        assert (claimed.task.delivery, claimed.task.crashes) == (crash, crash - 1)
        await put_back(driver, run_id)
    task = await driver.task(run_id)
    assert (task.state, task.attempt, task.delivery, task.crashes, task.failures) == ("failed", 1, 3, 3, 1)
    record = await driver.record(run_id)
    assert record.head.snapshot.status == "failed"
    assert json.loads(record.error or "")["kind"] == "worker-lost"


async def test_release_makes_the_task_ready_at_once_as_another_delivery(driver: Driver) -> None:
    """A released task can be claimed at once, as the same attempt with the checkpoint kept; its old delivery is refused."""
    run_id = await driver.start()
    claimed = await driver.claim_one()
    await driver.apply(run_id, StepReleased(claimed.task, '{"page":3}'))
    task = await driver.task(run_id)
    assert (task.state, task.attempt, task.delivery, task.failures, task.crashes) == ("ready", 1, 2, 0, 0)
    assert (await driver.commit(await driver.head(run_id), done(claimed))).verdict is Verdict.STALE
    again = await driver.claim_one()
    assert (again.task.attempt, again.task.delivery, again.details) == (1, 3, '{"page":3}')


async def test_snooze_waits_and_costs_nothing(driver: Driver) -> None:
    """A snoozed task is claimable once its delay is over, as the same attempt; its old delivery is refused all the while."""
    run_id = await driver.start()
    claimed = await driver.claim_one()
    await driver.apply(run_id, StepSnoozed(claimed.task, 20.0))
    task = await driver.task(run_id)
    assert (task.state, task.attempt, task.delivery, task.failures) == ("delayed", 1, 2, 0)
    assert task.wake_at is not None
    assert (await driver.commit(await driver.head(run_id), StepSnoozed(claimed.task, 20.0))).verdict is Verdict.STALE
    assert await driver.store.move_due_tasks(10) == 0
    assert await driver.claim() == []
    await driver.later(21)
    assert await driver.store.move_due_tasks(10) == 1
    assert (await driver.claim_one()).task.delivery == 3


async def test_retry_waits_for_its_delay_and_is_moved_when_due(driver: Driver) -> None:
    """A failure within the budget is delayed as the next attempt, keeps its error, and is ready once the delay is over."""
    run_id = await driver.start(a_plan(options={"a": RETRIES}))
    claimed = await driver.claim_one()
    await driver.apply(run_id, failed(claimed, "first", details='"half"'))
    task = await driver.task(run_id)
    assert (task.state, task.attempt, task.delivery, task.failures) == ("delayed", 2, 1, 1)
    assert json.loads(task.error or "")["message"] == "first"
    due_in = await driver.store.next_due_in()
    assert due_in is not None
    assert 5 < due_in <= 10
    assert await driver.store.move_due_tasks(10) == 0
    await driver.later(11)
    assert await driver.store.next_due_in() == 0.0
    assert await driver.store.move_due_tasks(10) == 1
    assert await driver.store.next_due_in() is None
    again = await driver.claim_one()
    assert (again.task.attempt, again.task.delivery, again.task.failures, again.details) == (2, 2, 1, '"half"')
    assert (await driver.commit(await driver.head(run_id), done(claimed))).verdict is Verdict.STALE
    await driver.apply(run_id, done(again))
    assert (await driver.record(run_id)).error is None


async def test_move_due_moves_no_more_than_its_limit(driver: Driver) -> None:
    """Of five due tasks a pass with limit three moves three, the next two, the third none."""
    for _ in range(5):
        await driver.start()
    for claimed in await driver.claim():
        await driver.apply(claimed.run.run_id, StepSnoozed(claimed.task, 5.0))
    await driver.later(6)
    assert [await driver.store.move_due_tasks(3) for _ in range(3)] == [3, 2, 0]
    assert len(await driver.claim()) == 5


async def test_failure_without_budget_ends_the_run(driver: Driver) -> None:
    """A step that failed for good fails its run with its error, and what reads it never runs."""
    run_id = await driver.start(a_chain(2))
    await driver.apply(run_id, failed(await driver.claim_one(), "boom"))
    record = await driver.record(run_id)
    assert record.head.snapshot.status == "failed"
    assert record.head.snapshot.letters.text == "FS"
    assert record.finished_at is not None
    assert json.loads(record.error or "")["message"] == "boom"
    assert (await driver.task(run_id, "s0")).state == "failed"
    assert await driver.states(run_id) == {"s0": "failed"}


async def test_result_is_on_the_run(driver: Driver) -> None:
    """A completed run has its output to the letter, its end, and no open task."""
    run_id = await driver.start()
    await driver.apply(run_id, done(await driver.claim_one(), '{"b": 1, "a": 2}'))
    record = await driver.record(run_id)
    assert (record.head.snapshot.status, record.output, record.error) == ("completed", '{"b": 1, "a": 2}', None)
    assert record.finished_at is not None
    ends = await driver.store.run_ends([run_id])
    assert ends == {run_id: RunEnd(run_id, "completed", '{"b": 1, "a": 2}', None)}


async def test_stop_cancels_every_open_task(driver: Driver) -> None:
    """A cancel ends ready, leased and delayed tasks alike, keeps completed ones, and nothing of the run is left to claim."""
    names = ("completed", "leased", "delayed", "ready")
    plan = a_plan({**{name: [] for name in names}, "user": list(names)}, options={"delayed": RETRIES})
    run_id = await driver.start(plan)
    claimed = {task.step: task for task in await driver.claim()}
    await driver.apply(
        run_id, done(claimed["completed"]), failed(claimed["delayed"]), StepReleased(claimed["ready"].task)
    )
    assert await driver.states(run_id) == {name: name for name in names}
    await driver.apply(run_id, CancelRequested("why"))
    expected = {"completed": "completed", "leased": "cancelled", "delayed": "cancelled", "ready": "cancelled"}
    assert await driver.states(run_id) == expected
    record = await driver.record(run_id)
    assert (record.head.snapshot.status, record.head.snapshot.letters.text.count("X")) == ("cancelled", 4)
    assert json.loads(record.error or "") == {"code": "cancelled", "message": "why"}
    assert all(task.wake_at is None and task.lease_expires_at is None and task.owner is None for task in record.tasks)
    assert await driver.claim() == []
    await driver.later(100)
    assert await driver.store.move_due_tasks(10) == 0
    assert await driver.store.expired_tasks(10) == []
    assert await driver.store.next_due_in() is None
    applied = await driver.apply(run_id, done(claimed["leased"]))
    assert len(applied.ignored) == 1


async def test_report_in_the_batch_that_stops_its_run_keeps_its_outcome(driver: Driver) -> None:
    """A step that completes in the same batch as a cancel is completed, and its siblings are cancelled."""
    run_id = await driver.start(a_plan({"a": [], "b": []}))
    a, _ = await driver.claim()
    await driver.apply(run_id, done(a, '"kept"'), CancelRequested())
    assert await driver.states(run_id) == {"a": "completed", "b": "cancelled"}
    assert (await driver.task(run_id)).output == '"kept"'


async def test_fail_fast_stops_the_rest(driver: Driver) -> None:
    """With fail_fast the first failure cancels what is still leased or ready."""
    run_id = await driver.start(a_plan({"a": [], "b": [], "c": ["a", "b"]}, fail_fast=True))
    a, _ = await driver.claim()
    await driver.apply(run_id, failed(a))
    assert await driver.states(run_id) == {"a": "failed", "b": "cancelled"}
    assert (await driver.head(run_id)).snapshot.status == "failed"


async def test_deadline_stops_the_run(driver: Driver) -> None:
    """A run past its deadline is due, and stopped by that it has failed with code deadline."""
    run_id = await driver.start(a_plan(timeout=60.0))
    assert await driver.store.due_runs(10) == []
    await driver.claim_one()
    await driver.later(61)
    (due,) = await driver.store.due_runs(10)
    assert (due.kind, due.head) == ("deadline", await driver.head(run_id))
    await driver.apply(run_id, DeadlinePassed())
    record = await driver.record(run_id)
    assert record.head.snapshot.status == "failed"
    assert json.loads(record.error or "")["code"] == "deadline"
    assert (await driver.task(run_id)).state == "cancelled"
    assert await driver.store.due_runs(10) == []


async def test_retry_of_a_failed_run_opens_its_tasks_again(driver: Driver) -> None:
    """A retried task is the next attempt with fresh budgets and nothing left of the last try; the run is open, with a new deadline."""
    run_id = await driver.start(a_plan({"a": [], "b": []}, options={"a": RETRIES}, timeout=60.0))
    a, b = await driver.claim()
    await driver.apply(run_id, done(b, '"kept"'))
    await driver.apply(run_id, failed(a, retryable=False, details='"half"'))
    before = await driver.task(run_id)
    assert (before.state, before.attempt, before.delivery, before.failures) == ("failed", 1, 1, 1)
    await driver.later(100)
    await driver.apply(run_id, RetryRequested())
    task = await driver.task(run_id)
    assert (task.state, task.attempt, task.delivery, task.failures, task.crashes) == ("ready", 2, 1, 0, 0)
    assert (task.output, task.error, task.details, task.finished_at, task.started_at) == (None, None, None, None, None)
    assert (await driver.task(run_id, "b")).output == '"kept"'
    record = await driver.record(run_id)
    assert (record.head.snapshot.status, record.error, record.finished_at) == ("running", None, None)
    due_in = await driver.store.next_due_in()
    assert due_in is not None
    assert 50 < due_in <= 60
    assert (await driver.commit(await driver.head(run_id), done(a))).verdict is Verdict.STALE
    again = await driver.claim_one()
    assert (again.task.attempt, again.task.delivery) == (2, 2)
    await driver.apply(run_id, done(again))
    assert (await driver.head(run_id)).snapshot.status == "completed"


async def test_step_opened_again_later_than_its_retry_keeps_its_fence(driver: Driver) -> None:
    """A completed step that a retry sets back, and that becomes ready only after another, is a new attempt with a new delivery."""
    plan = a_plan({"f": [], "u": ["settled:f"], "z": ["u"]}, output="f")
    run_id = await driver.start(plan)
    await driver.apply(run_id, failed(await driver.claim_one()))
    old = await driver.claim_one()
    assert old.step == "u"
    await driver.apply(run_id, done(old))
    await driver.apply(run_id, failed(await driver.claim_one()))
    assert (await driver.head(run_id)).snapshot.status == "failed"
    await driver.apply(run_id, RetryRequested(rerun_stale=True))
    assert (await driver.task(run_id, "f")).state == "ready"
    applied = await driver.apply(run_id, done(await driver.claim_one()), grant=GRANT_ALL)
    handed = applied.handed or await driver.claim()
    assert [(task.step, task.task.attempt, task.task.delivery) for task in handed] == [("u", 2, 2)]
    assert (await driver.commit(await driver.head(run_id), done(old))).verdict is Verdict.STALE
    await driver.apply(run_id, done(handed[0], '"new"'))
    assert (await driver.task(run_id, "u")).output == '"new"'


async def test_commit_can_hand_over_what_it_makes_ready(driver: Driver) -> None:
    """A task named as leased goes to the committing owner at once, as delivery 1; the others can be claimed."""
    run_id = await driver.start(a_plan({"a": [], "b": ["a"], "c": ["a"]}))
    claimed = await driver.claim_one(owner="me")
    answer = await driver.commit(await driver.head(run_id), done(claimed, '"x"'), leased=("b",), owner="me", lease=30.0)
    assert (answer.verdict, answer.leased) == (Verdict.WON, frozenset({1}))
    task = await driver.task(run_id, "b")
    assert (task.state, task.owner, task.attempt, task.delivery) == ("leased", "me", 1, 1)
    assert [task.step for task in await driver.claim()] == ["c"]
    await driver.later(20)
    assert [found.node for _, found in await driver.store.expired_tasks(10)] == [2]
    (held,) = await driver.store.leased_to("me", [run_id])
    assert (held.step, held.task.attempt, held.task.delivery, dict(held.values)) == ("b", 1, 1, {0: '"x"'})


async def test_applier_hands_over_with_arguments(driver: Driver) -> None:
    """What a worker is granted comes with the outputs its arguments read, and its report is applied."""
    run_id = await driver.start(a_diamond())
    applied = await driver.apply(run_id, done(await driver.claim_one(), '"t"'), grant=GRANT_ALL)
    assert [(task.step, dict(task.values)) for task in applied.handed] == [("left", {0: '"t"'}), ("right", {0: '"t"'})]
    assert await driver.claim() == []
    left, right = applied.handed
    await driver.apply(run_id, done(left, '"l"'))
    applied = await driver.apply(run_id, done(right, '"r"'), grant=GRANT_ALL)
    assert [(task.step, dict(task.values)) for task in applied.handed] == [("bottom", {1: '"l"', 2: '"r"'})]
    await driver.apply(run_id, done(applied.handed[0]))
    assert (await driver.head(run_id)).snapshot.status == "completed"


async def test_late_report_hands_nothing_over(driver: Driver) -> None:
    """A commit that is heard late says that nothing was handed over, and what it made ready can be claimed."""
    run_id = await driver.start(a_chain(2))
    claimed = await driver.claim_one()
    await put_back(driver, run_id)
    answer = await driver.commit(await driver.head(run_id), done(claimed), leased=("s1",))
    assert (answer.verdict, answer.leased) == (Verdict.WON, frozenset())
    assert await driver.store.leased_to("w", [run_id]) == []
    assert [task.step for task in await driver.claim()] == ["s1"]


async def test_many_reports_of_one_run_are_one_transition(driver: Driver) -> None:
    """Twenty steps reported together raise the version by one, and all of them are completed."""
    run_id = await driver.start(a_plan({**{f"n{i:02}": [] for i in range(20)}, "z": [f"n{i:02}" for i in range(20)]}))
    claimed = await driver.claim()
    await driver.apply(run_id, *(done(task, str(task.task.node)) for task in claimed))
    assert (await driver.head(run_id)).snapshot.version == 2
    last = await driver.claim_one()
    assert dict(last.values) == {node: str(node) for node in range(20)}


async def test_commits_at_once_of_one_run_apply_every_report_once(driver: Driver) -> None:
    """Ten workers that report ten branches of one run at the same time all get theirs in, each in a version of its own."""
    run_id = await driver.start(a_plan({**{f"n{i}": [] for i in range(10)}, "z": [f"n{i}" for i in range(10)]}))
    claimed = await driver.claim()
    async with anyio.create_task_group() as group:
        for task in claimed:
            group.start_soon(driver.apply, run_id, done(task))
    head = await driver.head(run_id)
    assert (head.snapshot.version, head.snapshot.letters.text) == (11, "C" * 10 + "A")
    assert [row.version for row in await driver.store.history(run_id)] == list(range(1, 12))
    assert len(await driver.claim()) == 1
    assert getattr(driver.store, "deadlocks", 0) == 0


# -- leases ----------------------------------------------------------------------------------------------------


async def test_renew_says_what_became_of_each_lease(driver: Driver) -> None:
    """Answers come in the order of the beats: owned, expired, cancelled, lost to another, lost with its end, unknown."""
    owned = await driver.start(priority=6)
    expired = await driver.start(priority=5)
    cancelled = await driver.start(priority=4)
    retaken = await driver.start(priority=3)
    ended = await driver.start(priority=2)
    claimed = {task.run.run_id: task for task in await driver.claim(lease=15.0)}
    await driver.later(16)
    await driver.store.renew([Beat(owned, claimed[owned].task, 15.0)], owner="w")
    for head, found in await driver.store.expired_tasks(10):
        if head.run_id in (expired, retaken):
            await driver.apply(head.run_id, LeaseExpired(found))
    await driver.later(5)
    await driver.store.move_due_tasks(10)
    assert runs_of(await driver.claim(1)) == [expired]
    await driver.apply(expired, StepReleased((await driver.store.leased_to("w", [expired]))[0].task))
    # `expired` was claimed again and released, so its first delivery is lost; `retaken` was only put back.
    await driver.apply(cancelled, CancelRequested())
    await driver.apply(ended, done(claimed[ended]))
    (unknown,) = await driver.store.mint_run_ids(1)
    runs = [owned, expired, cancelled, retaken, ended]
    beats = [Beat(run_id, claimed[run_id].task, 15.0) for run_id in runs] + [Beat(unknown, claimed[owned].task, 15.0)]
    assert await driver.store.renew(beats, owner="w") == [
        Renewal.OWNED,
        Renewal.LOST,
        Renewal.CANCELLED,
        Renewal.EXPIRED,
        Renewal.LOST,
        Renewal.LOST,
    ]


async def test_renew_extends_the_lease_and_keeps_details(driver: Driver) -> None:
    """A renewal moves the lease's end on by what it asks for; new details replace the old, none keeps them."""
    run_id = await driver.start()
    claimed = await driver.claim_one(lease=15.0)
    await driver.later(10)
    assert await driver.store.renew([Beat(run_id, claimed.task, 60.0, '{"done":5}')], owner="w") == [Renewal.OWNED]
    await driver.later(50)
    assert await driver.store.expired_tasks(10) == []
    await driver.store.renew([Beat(run_id, claimed.task, 1.0)], owner="w")
    assert (await driver.task(run_id)).details == '{"done":5}'
    await driver.later(2)
    assert len(await driver.store.expired_tasks(10)) == 1
    await put_back(driver, run_id)
    assert (await driver.claim_one()).details == '{"done":5}'


async def test_renew_by_an_earlier_owner_does_not_extend_the_new_lease(driver: Driver) -> None:
    """The worker that lost its task can neither extend the new owner's lease nor leave details there."""
    run_id = await driver.start()
    first = await driver.claim_one(owner="old")
    await put_back(driver, run_id)
    await driver.claim_one(owner="new", lease=15.0)
    assert await driver.store.renew([Beat(run_id, first.task, 900.0, '"mine"')], owner="old") == [Renewal.LOST]
    assert (await driver.task(run_id)).details is None
    await driver.later(16)
    assert len(await driver.store.expired_tasks(10)) == 1


async def test_renew_of_nothing_answers_nothing(driver: Driver) -> None:
    """Empty batches are answered with nothing."""
    assert await driver.store.renew([], owner="w") == []
    assert await driver.store.start_runs([]) == []
    assert (await driver.store.commit([])).answers == []
    assert await driver.store.load_heads([]) == {}
    assert await driver.store.load_values([]) == StoredValues()
    assert await driver.store.run_ends([]) == {}


async def test_expired_tasks_come_oldest_first_within_the_limit(driver: Driver) -> None:
    """The lease that ended first is named first, and no more than `limit` are named."""
    runs = []
    for lease in (30.0, 10.0, 20.0):
        runs.append(await driver.start())
        await driver.claim_one(lease=lease)
    await driver.later(31)
    found = await driver.store.expired_tasks(2)
    assert [head.run_id for head, _ in found] == [runs[1], runs[2]]
    assert found[0][0] == await driver.head(runs[1])


async def test_leases_of_workers_that_are_gone_end_at_once(driver: Driver) -> None:
    """Leases of a registered process of this host and boot that is not alive end; those of others go on."""

    def worker(name: str, pid: int, started: float = 1.0, host: str = "h", boot: str = "b") -> WorkerRecord:
        return WorkerRecord(name, host, boot, pid, started, ("default",), ("a",))

    workers = [
        worker("gone", 1),
        worker("alive", 2),
        worker("recycled", 3),
        worker("elsewhere", 4, host="x"),
        worker("before", 5, boot="x"),
    ]
    runs = {}
    for each in workers:
        await driver.store.register_worker(each, ttl=30.0)
        await driver.store.register_worker(each, ttl=30.0)
        runs[await driver.start()] = each.worker_id
        await driver.claim_one(owner=each.worker_id)
    gone = await driver.store.expire_leases_of_gone("h", "b", [(2, 1.1), (3, 99.0)])
    assert sorted(gone) == ["gone", "recycled"]
    found = await driver.store.expired_tasks(10)
    assert sorted(runs[head.run_id] for head, _ in found) == ["gone", "recycled"]
    assert await driver.store.expire_leases_of_gone("h", "b", [(2, 1.1)]) == []
    await driver.store.forget_worker("alive")
    assert await driver.store.expire_leases_of_gone("h", "b", []) == []


async def test_unknown_steps_are_those_that_wait_for_nobody(driver: Driver) -> None:
    """Steps of ready tasks are named with their count and a run, unless the asker or a live worker knows them."""
    runs = [await driver.start(a_plan({"lost": []}, workflow="x")) for _ in range(2)]
    await driver.start()
    unknown = driver.store.unknown_steps
    both = await unknown(queues=["default"], steps=[])
    assert [(each.step, each.tasks) for each in both] == [("a", 1), ("lost", 2)]
    assert both[1].run_id in runs
    assert [each.step for each in await unknown(queues=["default"], steps=["a"])] == ["lost"]
    assert await unknown(queues=["other"], steps=[]) == []
    other = WorkerRecord("w", "h", "b", 1, 1.0, ("default",), ("lost",))
    await driver.store.register_worker(other, ttl=30.0)
    assert await unknown(queues=["default"], steps=["a"]) == []
    await driver.later(31)
    assert [each.step for each in await unknown(queues=["default"], steps=["a"])] == ["lost"]
    await driver.claim(10, steps={"a", "lost"})
    assert await unknown(queues=["default"], steps=[]) == [], "a task that somebody runs waits for nobody"


# -- the rest of what loops and people ask ---------------------------------------------------------------------


async def test_due_runs_keeps_to_its_limit(driver: Driver) -> None:
    """No more than `limit` starts are named, and none that is not due."""
    for delay in (5.0, 5.0, 5.0, 500.0):
        await driver.start(starts=(delay, None))
    await driver.later(6)
    assert len(await driver.store.due_runs(2)) == 2
    assert len(await driver.store.due_runs(10)) == 3


async def test_next_due_is_the_earliest_of_all(driver: Driver) -> None:
    """Of a retry, a start and a deadline the earliest counts, and there is none when nothing waits."""
    assert await driver.store.next_due_in() is None
    for plan, starts, low, high in (
        (a_plan(timeout=300.0), (None, None), 250, 300),
        (None, (200.0, None), 150, 200),
        (a_plan(options={"a": RETRIES}), (None, None), 5, 10),
    ):
        run_id = await driver.start(plan, starts=starts)
        if low == 5:
            for claimed in await driver.claim():
                if claimed.run.run_id == run_id:
                    await driver.apply(run_id, failed(claimed))
        due_in = await driver.store.next_due_in()
        assert due_in is not None
        assert low < due_in <= high


async def test_run_that_has_ended_has_no_deadline_to_come(driver: Driver) -> None:
    """A run that completed in time is neither due later nor named by the timers."""
    run_id = await driver.start(a_plan(timeout=60.0))
    await driver.apply(run_id, done(await driver.claim_one()))
    assert await driver.store.next_due_in() is None
    await driver.later(100)
    assert await driver.store.due_runs(10) == []


async def lose_dispatch(driver: Driver, run_id: str) -> None:
    """Takes the run's hand-outs away, as no code of ours does."""
    store: Any = driver.store
    if driver.is_postgres:
        await store._fetch("testing", "delete from composer.outbox where run_id = $1", run_id)
    else:
        for key in [key for key in store._outbox if key[0] == run_id]:
            del store._outbox[key]


async def test_lost_dispatch_is_put_back_when_it_is_old(driver: Driver) -> None:
    """A ready task that nobody would be handed is put back once it is old enough, and only once."""
    lost, waits = await driver.start(), await driver.start()
    await lose_dispatch(driver, lost)
    assert runs_of(await driver.claim()) == [waits]
    assert await driver.store.repair_outbox(10, 60.0) == (0, 0)
    await driver.later(61)
    assert await driver.store.repair_outbox(10, 60.0) == (1, 0)
    assert await driver.store.repair_outbox(10, 60.0) == (0, 0)
    assert runs_of(await driver.claim()) == [lost]


async def test_repair_leaves_scheduled_ended_and_quarantined_runs_alone(driver: Driver) -> None:
    """Runs that wait for their start, have ended, or are in quarantine get no hand-outs."""
    await driver.start(starts=(900.0, None))
    ended = await driver.start()
    await driver.apply(ended, done(await driver.claim_one()))
    bad = await driver.start()
    await driver.store.quarantine(bad, 1, "x")
    await driver.later(61)
    assert await driver.store.repair_outbox(10, 60.0) == (0, 0)
    assert await driver.claim() == []


async def test_quarantine_takes_the_run_out_of_every_loop(driver: Driver) -> None:
    """A run in quarantine is not claimed, swept, timed or committed, keeps its status, and says why it is there."""
    run_id = await driver.start(a_plan({"a": [], "b": []}, timeout=60.0))
    claimed = (await driver.claim(1))[0]
    head = await driver.head(run_id)
    assert not await driver.store.quarantine(run_id, head.snapshot.version + 1, "of another version")
    assert await driver.store.quarantine(run_id, head.snapshot.version, "cannot be decided")
    assert not await driver.store.quarantine(run_id, head.snapshot.version, "again")
    record = await driver.record(run_id)
    assert (record.quarantine, record.head.snapshot.status) == ("cannot be decided", "running")
    await driver.later(100)
    assert await driver.claim() == []
    assert await driver.store.expired_tasks(10) == []
    assert await driver.store.due_runs(10) == []
    assert await driver.store.next_due_in() is None
    for event in (done(claimed), CancelRequested()):
        assert (await driver.commit(head, event)).verdict is Verdict.QUARANTINED
    assert len((await driver.apply(run_id, done(claimed))).ignored) == 1
    (unknown,) = await driver.store.mint_run_ids(1)
    assert not await driver.store.quarantine(unknown, 1, "x")


async def test_run_that_cannot_be_decided_is_quarantined_alone(driver: Driver) -> None:
    """A run whose decision raises goes to quarantine, and the other run of the batch goes on."""
    good, bad = await driver.start(), await driver.start()
    claimed = {task.run.run_id: task for task in await driver.claim()}
    odd: Any = Delivery(0, 1, 1)
    object.__setattr__(odd, "node", "no number")
    applied = await Applier(driver.store).apply({bad: [StepCompleted(odd, "1")], good: [done(claimed[good])]})
    assert (await driver.head(good)).snapshot.status == "completed"
    assert (await driver.record(bad)).quarantine is not None
    assert [each.run_id for each in applied.ignored] == [bad]


async def test_run_ends_tells_of_open_and_ended_runs(driver: Driver) -> None:
    """Runs are told with their status, output and error, ended or not; unknown ones are left out."""
    open_run, failed_run = await driver.start(), await driver.start()
    tasks = {task.run.run_id: task for task in await driver.claim()}
    await driver.apply(failed_run, failed(tasks[failed_run], "boom"))
    (unknown,) = await driver.store.mint_run_ids(1)
    ends = await driver.store.run_ends([unknown, failed_run, open_run])
    assert ends.keys() == {open_run, failed_run}
    assert ends[open_run] == RunEnd(open_run, "running", None, None)
    assert (ends[failed_run].status, ends[failed_run].output) == ("failed", None)
    assert json.loads(ends[failed_run].error or "")["message"] == "boom"


async def test_unknown_runs_are_none_or_left_out(driver: Driver) -> None:
    """A run that does not exist is None, has no history, and is left out of what is loaded."""
    (unknown,) = await driver.store.mint_run_ids(1)
    assert await driver.store.get_run(unknown) is None
    assert await driver.store.history(unknown) == []
    assert await driver.store.load_heads([unknown]) == {}
    assert await driver.store.load_values([(unknown, INPUT), (unknown, 0)]) == StoredValues()
    assert await driver.store.leased_to("w", [unknown]) == []


async def test_load_values_gives_completed_outputs_and_the_input(driver: Driver) -> None:
    """Outputs of completed nodes and the input come by run and node; what is not completed is left out."""
    run_id = await driver.start(a_chain(2), '{"i": 1}')
    await driver.apply(run_id, done(await driver.claim_one(), '"out"'))
    found = await driver.store.load_values([(run_id, 0), (run_id, INPUT), (run_id, 1), (run_id, 9)])
    assert found == StoredValues({(run_id, 0): '"out"', (run_id, INPUT): '{"i": 1}'})


async def test_failed_nodes_are_read_by_their_error(driver: Driver) -> None:
    """What read a failed node through settled() is claimed with its error, apart from outputs; load_values gives both."""
    run_id = await driver.start(a_plan({"a": [], "b": [], "c": ["settled:a", "b"]}), '{"i": 1}')
    for task in await driver.claim():
        await driver.apply(run_id, done(task, '"out"') if task.task.node else failed(task))
    (c,) = await driver.claim()
    (held,) = await driver.store.leased_to("w", [run_id])
    for reader in (c, held):
        assert dict(reader.values) == {1: '"out"'}
        assert list(reader.errors) == [0]
        assert json.loads(reader.errors[0])["message"] == "no"
        assert reader.run.snapshot.letters.text == "FCA"
    found = await driver.store.load_values([(run_id, node) for node in (INPUT, 0, 1, 2)])
    assert found == StoredValues({(run_id, INPUT): '{"i": 1}', (run_id, 1): '"out"'}, {(run_id, 0): c.errors[0]})


async def test_failure_is_read_by_a_task_handed_over_at_once(driver: Driver) -> None:
    """A reader through settled() that the committing worker takes at once gets the error it has just reported."""
    run_id = await driver.start(a_plan({"a": [], "b": ["settled:a"]}))
    applied = await driver.apply(run_id, failed(await driver.claim_one()), grant=GRANT_ALL)
    (handed,) = applied.handed
    assert json.loads(handed.errors[0])["message"] == "no"
    assert (handed.run.snapshot.letters.text, dict(handed.values)) == ("FA", {})


async def test_late_report_on_a_run_retried_elsewhere_is_refused_not_quarantined(driver: Driver) -> None:
    """A worker that knows a run from before a retry, and asks for an error which that cleared, looks again and is refused."""
    condition = says("and", says("eq", "settled:a/state", ("failed",), kind="text"), says("is_none", "b"))
    run_id = await driver.start(built_plan({"a": [], "b": [], "g": [], "c": ["when:g"]}, guards={"g": condition}))
    a, b = sorted(await driver.claim(), key=lambda task: task.task.node)
    await driver.apply(run_id, failed(a))
    (held,) = await driver.store.leased_to("w", [run_id])
    slow = Applier(driver.store, owner="w")
    await slow.remember(held)
    await driver.apply(run_id, DeadlinePassed())
    await driver.apply(run_id, RetryRequested())
    applied = await slow.apply({run_id: [done(b)]}, patience=0)
    assert [each.reason for each in applied.ignored] == ["the task was handed out again, or ended, since this delivery"]
    assert (await driver.record(run_id)).quarantine is None
    assert applied.heads[run_id].snapshot == (await driver.head(run_id)).snapshot


async def test_run_without_a_step_to_take_ends_with_its_start(driver: Driver) -> None:
    """A condition on the input is answered in the transition that starts the run, and its answer is in the run's row."""
    condition = says("gt", "input/n", 5, kind="number")
    plan = built_plan({"g": [], "a": ["when:g"]}, guards={"g": condition}, output="maybe:a")
    run_id = await driver.start(plan, '{"n": 5}')
    head = await driver.head(run_id)
    assert (head.snapshot.status, head.snapshot.letters.text) == ("completed", "CS")
    assert head.snapshot.counters.no == (0,)
    assert (await driver.store.run_ends([run_id]))[run_id].output == "null"
    (row,) = await driver.store.history(run_id)
    assert row.changes["guards"] == {"g": False}
    taken = await driver.start(plan, '{"n": 6}')
    assert (await driver.claim_one()).run.run_id == taken


async def test_leased_to_gives_what_the_owner_holds_of_these_runs(driver: Driver) -> None:
    """Only leased tasks of the named runs and this owner are given, as a claim gives them."""
    mine, other = await driver.start(text='{"n": 1}'), await driver.start()
    tasks = {task.run.run_id: task for task in await driver.claim(owner="me")}
    assert await driver.store.leased_to("you", [mine, other]) == []
    (held,) = await driver.store.leased_to("me", [mine])
    assert held.run == tasks[mine].run
    assert held.values == tasks[mine].values
    fence = (held.task.node, held.task.item, held.task.attempt, held.task.delivery, held.task.worker)
    assert fence == (0, -1, 1, 1, "me")
    await driver.apply(mine, done(tasks[mine]))
    assert [task.run.run_id for task in await driver.store.leased_to("me", [mine, other])] == [other]


async def test_history_has_every_version_in_order(driver: Driver) -> None:
    """History has one row a version from 1 on, each with its time, and folds to the run."""
    plan = a_diamond(options={"top": RETRIES})
    run_id = await driver.start(plan)
    await driver.apply(run_id, failed(await driver.claim_one()))
    await driver.later(11)
    await driver.store.move_due_tasks(10)
    while claimed := await driver.claim():
        for task in claimed:
            await driver.apply(run_id, done(task))
    rows = await driver.store.history(run_id)
    assert [row.version for row in rows] == list(range(1, 7))
    assert all(row.at.tzinfo is not None for row in rows)
    folded = fold(plan, [row.changes for row in rows])
    assert folded.run == (await driver.head(run_id)).snapshot
    assert all(tally.completions == 1 for tally in folded.tasks.values())
    assert folded.tasks[0, -1].failures == 1


# -- wake-ups ----------------------------------------------------------------------------------------------------


async def rang(bell: Any) -> bool:
    """Whether the bell rang, without waiting."""
    return await bell.wait(0)


async def test_start_release_and_timer_ring_for_ready_tasks(driver: Driver) -> None:
    """Whoever waits for tasks of a queue is rung when one becomes ready there, and not for other queues."""
    wakeups = driver.store.wakeups
    with wakeups.on_tasks(("default",)) as bell, wakeups.on_tasks(("other",)) as other:
        run_id = await driver.start(a_chain(2))
        assert await rang(bell)
        claimed = await driver.claim_one()
        assert not await rang(bell)
        await driver.apply(run_id, StepReleased(claimed.task))
        assert await rang(bell)
        await driver.apply(run_id, StepSnoozed((await driver.claim_one()).task, 5.0))
        assert not await rang(bell)
        await driver.later(6)
        await driver.store.move_due_tasks(10)
        assert await rang(bell)
        await driver.apply(run_id, done(await driver.claim_one()))
        assert await rang(bell)
        await driver.claim_one()
        assert not await rang(bell)
        assert not await rang(other)


async def test_what_is_handed_over_rings_nobody(driver: Driver) -> None:
    """A task that goes to the committing worker at once wakes no other."""
    with driver.store.wakeups.on_tasks(("default",)) as bell:
        run_id = await driver.start(a_chain(2))
        claimed = await driver.claim_one()
        assert await rang(bell)
        await driver.apply(run_id, done(claimed), grant=GRANT_ALL)
        assert not await rang(bell)


async def test_timers_ring_for_delays_starts_and_deadlines(driver: Driver) -> None:
    """Whoever waits for timers is rung by a delayed start, a run with a deadline, a snooze and a retry."""
    with driver.store.wakeups.on_timers() as bell:
        run_id = await driver.start(a_plan(options={"a": RETRIES}))
        assert not await rang(bell)
        await driver.start(starts=(60.0, None))
        assert await rang(bell)
        await driver.start(a_plan(timeout=60.0), priority=-1)
        assert await rang(bell)
        await driver.apply(run_id, failed((await driver.claim(1))[0]))
        assert await rang(bell)
        assert not await rang(bell)


async def test_ends_and_stops_are_told(driver: Driver) -> None:
    """Whoever waits for a run hears how it ended; bodies of a stopped run hear of the stop."""
    completed, cancelled = await driver.start(), await driver.start()
    claimed = {task.run.run_id: task for task in await driver.claim()}
    heard: list[RunEnd | None] = []
    stopped: list[str] = []
    wakeups = driver.store.wakeups
    with (
        wakeups.on_end(completed, heard.append),
        wakeups.on_end(cancelled, heard.append),
        wakeups.on_stops(stopped.append),
    ):
        await driver.apply(completed, done(claimed[completed], "7"))
        assert stopped == []
        await driver.apply(cancelled, CancelRequested("x"))
    assert [(end.run_id, end.status, end.output) for end in heard if end] == [
        (completed, "completed", "7"),
        (cancelled, "cancelled", None),
    ]
    assert stopped == [cancelled]


async def test_namespaces_do_not_see_each_other(driver: Driver) -> None:
    """A twin in another namespace neither claims, loads nor sweeps what is in this one, and may use the same keys."""
    store: Any = driver.store
    if not driver.is_postgres:
        other = type(store)(namespace="other")
    else:
        other = type(store)(store._url, namespace=f"{store.namespace}x", connections=1)
    run_id = await driver.start(key="k")
    try:
        stranger = Driver(other)
        assert (await stranger.start_answer(key="k")).created
        await driver.claim_one(lease=0.001)
        await driver.later(5)
        assert runs_of(await stranger.claim()) != [run_id]
        assert await other.expired_tasks(10) == []
        assert await other.load_heads([run_id]) == {}
        assert await other.get_run(run_id) is None
        assert await other.history(run_id) == []
        assert not await other.quarantine(run_id, 1, "x")
    finally:
        await other.close()
