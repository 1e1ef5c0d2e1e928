"""The samples that stand in other people's applications do what they show."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from samples.sqlalchemy_orders import main as send_invoices
from tests.servers import query
from tests.system.processes import ROOT

pytestmark = pytest.mark.anyio


@pytest.fixture
def shop(fresh_database: str, tmp_path: Path) -> Iterator[Callable[[], Any]]:
    """Starts the service as a process; gives the process and its address. All are killed at the end."""
    running: list[subprocess.Popen[bytes]] = []
    log = (tmp_path / "shop.log").open("wb")

    def start() -> tuple[subprocess.Popen[bytes], str]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        process = subprocess.Popen(
            [sys.executable, "-m", "samples.fastapi_service", str(port)],
            cwd=ROOT, stdout=log, stderr=log, env={**os.environ, "COMPOSER_DATABASE_URL": fresh_database},
        )  # fmt: skip
        running.append(process)
        return process, f"http://127.0.0.1:{port}"

    with log:
        yield start
        for process in running:
            process.kill()
            process.wait()


async def placed(http: httpx.AsyncClient, number: str) -> httpx.Response:
    """The answer to an order of a lamp, once the service is up."""
    with anyio.fail_after(30):
        while True:
            try:
                return await http.post("/orders", json={"number": number, "item": "lamp"})
            except httpx.ConnectError:
                await anyio.sleep(0.05)


async def events(http: httpx.AsyncClient, number: str, last: str | None = None) -> AsyncIterator[dict[str, str]]:
    """The server-sent events of an order, until the stream ends; `last` is the id a browser has seen last."""
    event: dict[str, str] = {}
    headers = {} if last is None else {"Last-Event-ID": last}
    async with http.stream("GET", f"/orders/{number}/progress", headers=headers) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        async for line in response.aiter_lines():
            if line:
                name, _, value = line.partition(": ")
                event[name] = value
            else:
                yield event
                event = {}


def data_of(event: dict[str, str]) -> Any:
    """What an event says."""
    return json.loads(event["data"])


async def test_service_starts_a_run_with_the_order_and_streams_it(shop: Callable[[], Any], fresh_database: str) -> None:
    """Orders are fulfilled and watched; what the database refuses leaves neither order nor run; SIGTERM ends it cleanly."""
    process, address = shop()
    async with httpx.AsyncClient(base_url=address, timeout=20) as http:
        answer = (await placed(http, "1")).json()
        assert answer["progress"] == "/orders/1/progress"
        with anyio.fail_after(30):
            *changes, done = [event async for event in events(http, "1")]
        told = [(data["event"], data["node"]) for data in map(data_of, changes)]
        assert (told[0], told[-1]) == (("started", None), ("run-completed", None))
        bodies = [
            (event, node) for node in ("charge", "reserve", "send") for event in ("step-started", "step-completed")
        ]
        assert sorted(told[1:-1]) == sorted(bodies)
        assert told.index(("step-started", "send")) > told.index(("step-completed", "charge"))
        assert done["event"] == "done"
        assert json.loads(done["data"]) == {"status": "completed", "output": "lamp for 1, with receipt of 1"}
        for seen, change in enumerate(changes):
            # Nothing after it is missing. Some before it may come again: a version is told whole or once more.
            *again, last = [event async for event in events(http, "1", change["id"])]
            rest = told[seen + 1 :]
            assert [(data["event"], data["node"]) for data in map(data_of, again)][len(again) - len(rest) :] == rest
            assert last == done

        assert [(await placed(http, number)).status_code for number in ("2", "3")] == [201, 201]
        sold_out, taken = await placed(http, "4"), await placed(http, "1")
        assert (sold_out.status_code, taken.status_code) == (409, 409)
        assert "sold out" in sold_out.text
        assert (await http.get("/orders/4/progress")).status_code == 404
    orders = await query(fresh_database, "select number, run_id from orders order by number")
    runs = await query(fresh_database, "select id::text from composer.runs")
    assert [order["number"] for order in orders] == ["1", "2", "3"]
    assert {order["run_id"] for order in orders} == {run["id"] for run in runs}
    process.send_signal(signal.SIGTERM)
    # uvicorn raises the signal again once it has stopped.
    assert await anyio.to_thread.run_sync(process.wait, 20) in (0, -signal.SIGTERM)


async def test_orders_of_a_service_that_was_killed_are_fulfilled_by_the_next(shop: Callable[[], Any]) -> None:
    """The service is killed as soon as it has answered; the one started after it brings the order to its end."""
    process, address = shop()
    async with httpx.AsyncClient(base_url=address, timeout=20) as http:
        assert (await placed(http, "1")).status_code == 201
        process.send_signal(signal.SIGKILL)
        await anyio.to_thread.run_sync(process.wait, 20)
    _, address = shop()
    async with httpx.AsyncClient(base_url=address, timeout=40) as http:
        assert (await placed(http, "2")).status_code == 201
        with anyio.fail_after(60):
            done = [event async for event in events(http, "1")][-1]
        assert json.loads(done["data"])["status"] == "completed"


def test_sqlalchemy_sample_sends_what_was_committed(fresh_database: str) -> None:
    """Invoices whose transaction commits are sent, the one whose transaction fails is not there, nor has it a run."""
    assert send_invoices(fresh_database) == [
        "Invoice 1: Ada owes 120.00 (sent)",
        "Invoice 2: Grace owes 80.50 (sent)",
    ]


def test_sqlalchemy_sample_runs_as_its_docstring_says(fresh_database: str) -> None:
    """The command of the sample's docstring prints what was sent."""
    done = subprocess.run(
        [sys.executable, "-m", "samples.sqlalchemy_orders"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
        env={**os.environ, "COMPOSER_DATABASE_URL": fresh_database},
    )  # fmt: skip
    assert done.stdout.splitlines()[0].endswith("Ada owes 120.00 (sent)")
