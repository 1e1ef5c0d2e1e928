"""One wide map under four workers that are killed at random: each item's result counts once."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from composer import AsyncClient
from composer.core.history import fold
from composer.worker.loop import MOST_REPORTS
from tests.system import flows
from tests.system.fixtures import clean
from tests.system.processes import Yard
from tests.working import until

pytestmark = pytest.mark.anyio

ITEMS = 10_000
KILLS = 5


async def test_a_map_of_ten_thousand_survives_its_workers(site: Yard, client: AsyncClient) -> None:
    """With four workers of which one is killed again and again, every item completes once, rows and counts agree, history folds."""
    draw = random.Random(7)
    workers = [site.worker() for _ in range(4)]
    handle = await client.start(flows.wide, ITEMS)

    async def completed() -> int:
        nodes = {node.name: node.items for node in (await client.get(handle.id)).nodes}
        items = nodes["item"]
        return items.completed if items is not None else 0

    for number in range(KILLS):

        async def is_there(at: int = (number + 1) * ITEMS // (KILLS + 2)) -> bool:
            return await completed() >= at

        await until(is_there, 60)
        victim = draw.randrange(len(workers))
        workers[victim].kill()
        workers[victim] = site.worker()
    assert await handle.result(timeout=90) == ITEMS * (ITEMS - 1) // 2

    started = Counter(entry["item"] for entry in site.entries(node="item", phase="start"))
    assert sorted(started) == list(range(ITEMS)), "some item never ran"
    again = sum(count - 1 for count in started.values())
    print(f"{again} items began again after {KILLS} kills")
    # What a killed worker had in its slots, and what had ended there and was in a commit or about to be.
    assert again <= KILLS * (100 + 2 * MOST_REPORTS + 100), "more was lost than the killed workers held"

    (run,) = await client.store.audit(None, 10)
    plan = await client.store.load_plan(run.record.head.plan_id)
    folded = fold(plan, [row.changes for row in run.history])
    node = plan.index["item"]
    tallies = {at[1]: tally for at, tally in folded.tasks.items() if at[0] == node and at[1] >= 0}
    assert {tally.completions for tally in tallies.values()} == {1}
    assert len(tallies) == ITEMS
    counts = run.record.maps[node]
    assert (counts.total, counts.completed, counts.failed, counts.withdrawn) == (ITEMS, ITEMS, 0, 0)
    assert sum(task.state == "completed" for task in run.record.tasks if task.node == node and task.item >= 0) == ITEMS
    assert await clean(client)
