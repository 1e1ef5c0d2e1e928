"""The keeper passes on every sign of life and every checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from composer.core.plan import NodeOptions
from composer.define.step import step
from composer.errors import StoreUnavailable
from composer.memory.store import MemoryStore
from composer.ports.store import Beat, Renewal
from composer.worker.attempt import Attempt
from composer.worker.leases import Keeper
from tests.builders import a_plan, a_task

pytestmark = pytest.mark.anyio


@step
async def step_a() -> None:
    """Never run here."""


class Answering(MemoryStore):
    """A store that answers renewals as it is told, and keeps them."""

    def __init__(self, *answers: Renewal | StoreUnavailable) -> None:
        super().__init__()
        self.answers, self.beats = list(answers), list[Beat]()
        self.meanwhile: Callable[[], None] = lambda: None

    async def renew(self, beats: Sequence[Beat], *, owner: str) -> list[Renewal]:
        self.beats += beats
        self.meanwhile()
        answer = self.answers.pop(0)
        if isinstance(answer, StoreUnavailable):
            raise answer
        return [answer]


class Host:
    """As much of a worker as an attempt that only beats needs."""

    resources: Any = None
    closing = False
    keeper: Keeper

    def beat(self, attempt: Attempt) -> None:
        self.keeper.beat(attempt)

    def report(self, attempt: Attempt, event: Any) -> None: ...

    def body_ended(self, attempt: Attempt) -> None: ...


def kept(store: MemoryStore, options: NodeOptions) -> tuple[Keeper, Attempt]:
    """A keeper and the one attempt whose lease it keeps."""
    host = Host()
    host.keeper = Keeper(
        store,
        owner="w",
        lease=15.0,
        lost=lambda attempt, answer: None,
        record=lambda: pytest.fail("not here"),
        step_at=lambda code: None,
    )
    plan = a_plan({"a": []}, every=options)
    attempt = Attempt(host, a_task(plan), plan, step_a)
    host.keeper.hold(attempt)
    return host.keeper, attempt


MANUAL = NodeOptions(heartbeat="manual", heartbeat_timeout=3.0)


async def test_a_beat_that_met_a_busy_task_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A manual heartbeat whose renewal found the task locked is not lost."""
    store = Answering(Renewal.BUSY, Renewal.OWNED)
    keeper, attempt = kept(store, MANUAL)
    attempt.beat(None)
    now = attempt.started
    await keeper._renew_due(now + 2.0)
    await keeper._renew_due(now + 4.0)
    await keeper._renew_due(now + 8.0)  # Silent since: only the step's own heartbeats renew.
    assert len(store.beats) == 2


async def test_a_beat_that_met_an_absent_database_is_sent_again() -> None:
    """A manual heartbeat whose renewal failed is not lost."""
    store = Answering(StoreUnavailable("away"), Renewal.OWNED)
    keeper, attempt = kept(store, MANUAL)
    attempt.beat(None)
    with pytest.raises(StoreUnavailable):
        await keeper._renew_due(attempt.started + 2.0)
    await keeper._renew_due(attempt.started + 2.5)
    assert len(store.beats) == 2


async def test_a_checkpoint_made_during_a_renewal_is_stored_soon() -> None:
    """A newer checkpoint than the one under way is stored within the second, and not with the next renewal of the lease."""
    store = Answering(Renewal.OWNED, Renewal.OWNED)
    keeper, attempt = kept(store, NodeOptions())
    attempt.beat("1")
    store.meanwhile = lambda: attempt.beat("2")
    await keeper._renew_due(attempt.started + 1.5)
    store.meanwhile = lambda: None
    await keeper._renew_due(attempt.started + 3.0)
    assert [beat.details for beat in store.beats] == ["1", "2"]
