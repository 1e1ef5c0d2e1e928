"""C33: types that change or break on the way."""

from __future__ import annotations

import socket
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from composer import AsyncClient, PayloadError, PlanError, RunFailed, step
from tests.cases import flows_c33
from tests.cases.flows_c33 import BACK, ITEMS, KINDS, THROUGH
from tests.system.fixtures import clean
from tests.system.processes import Yard
from tests.working import until

pytestmark = pytest.mark.anyio
MODULE = "tests.cases.flows_c33"


async def test_every_kind_arrives_equal_in_a_worker_that_was_started_afterwards(
    site: Yard, client: AsyncClient
) -> None:
    """A makes it, its worker is killed, B gets an equal value of the declared type in another process; so do map items."""
    first = site.worker("--queue", "first", module=MODULE)
    runs = {name: await client.start(flow, 1) for name, flow in THROUGH.items()}
    maps = {name: await client.start(flow, 2) for name, flow in ITEMS.items()}

    async def all_made() -> bool:
        views = [await client.get(run.id) for run in (*runs.values(), *maps.values())]
        return all(view.nodes[0].state == "completed" for view in views)

    await until(all_made, 60)
    first.kill()
    site.worker("--queue", "second", module=MODULE)
    for name, run in runs.items():
        type_name = type(KINDS[name][1]).__name__
        assert (await run.result(timeout=30)).startswith(f"{type_name} is equal: "), name
        items = await maps[name].result(timeout=30)
        assert len(items) == 2
        assert all(each.startswith(f"{type_name} is equal: ") for each in items), name
    for name, flow in BACK.items():
        value = KINDS[name][1]
        result: Any = await (await client.start(flow, value)).result(timeout=30)
        assert (type(result), result) == (type(value), value), name
        assert repr(result) == repr(value) or name in ("set", "aware", "offset", "model"), name
    assert await clean(client)


async def test_what_no_json_holds_fails_the_step_at_once_with_path_and_type(site: Yard, client: AsyncClient) -> None:
    """A lambda, a socket and a float for a Decimal: attempt 1 is the last; a user's exception stays what it is."""
    site.worker("--queue", "first", module=MODULE)
    for what, kind in (("lambda", "function"), ("socket", "socket")):
        with pytest.raises(RunFailed) as caught:
            await (await client.start(flows_c33.unsaids, what)).result(timeout=30)
        error = caught.value
        assert (error.node, error.kind, error.attempt) == ("unsaid", "payload", 1)
        assert "step unsaid: its result cannot be written as dict[str, Any]: deep[1]: " in error.message
        assert f"has no JSON ({kind})" in error.message
    with pytest.raises(RunFailed, match=r"\[1\]: 1.5 would come back as Decimal\('1.5'\) \(float and Decimal\)"):
        await (await client.start(flows_c33.wrongs, 1)).result(timeout=30)
    with pytest.raises(RunFailed, match="mine") as caught:
        await (await client.start(flows_c33.raisings, 1)).result(timeout=30)
    assert (caught.value.error_type, caught.value.kind) == ("Ours", "error")


async def test_what_cannot_travel_is_refused_at_definition_or_start(client: AsyncClient) -> None:
    """With step and parameter, and the type."""
    with pytest.raises(
        PlanError, match=r"step of_function: call is .*, which JSON cannot carry\n  a function has no JSON"
    ):

        @step
        def of_function(call: Callable[[], int]) -> int:
            return call()

    with pytest.raises(PlanError, match="step of_socket: the result is socket, which JSON cannot carry"):

        @step
        def of_socket(n: int) -> socket.socket:
            return socket.socket()

    bad: Any = {"price": 1.1}
    with pytest.raises(PayloadError, match="workflow back-decimal: got cannot be written as Decimal"):
        await client.start(BACK["decimal"], bad)
    with pytest.raises(PayloadError, match=r"1.1 would come back as Decimal\('1.1'\) \(float and Decimal\)"):
        await client.start(BACK["decimal"], 1.1)
    assert BACK["decimal"].bind(Decimal("1.1")).bound_input == '{"got":"1.1"}'
