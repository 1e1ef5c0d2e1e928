"""C57: decorated steps and what type checkers, help() and unit tests see of them."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import pydoc
import re
import subprocess
import sys
import textwrap
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from composer import PlanError, step, workflow

ROOT = Path(__file__).parents[2]

HEAD = '''
from dataclasses import dataclass
from typing import Generic, TypeVar

from composer import AsyncClient, Client, step, workflow

T = TypeVar("T")


@dataclass
class Box(Generic[T]):
    value: T


@dataclass
class Order:
    id: str
    items: list[str]


class Prices:
    """What a step that wants an object calls: the step itself is a function of the module."""

    def total(self, order: Order) -> int:
        return len(order.items)


@step
async def charge(order: Order, currency: str = "EUR") -> int:
    """Takes the money."""
    return Prices().total(order)


@step(retries=2, timeout="5s")
def pack(order: Order, *, fragile: bool = False) -> Box[str]:
    """Packs it."""
    return Box(order.id)


@step
async def label(box: Box[str], paid: int) -> str:
    return f"{box.value} {paid}"


@workflow
def fulfil(order: Order, gift: bool = False) -> str:
    """All of it."""
    return label(pack(order, fragile=True), charge(order, currency="USD"))
'''

GOOD = """
async def use(client: AsyncClient, order: Order) -> str:
    run = await client.start(fulfil, order, idempotency_key="k")
    bound = await client.start(fulfil.bind(order, gift=True))
    text: str = await run.result(timeout=1)
    return text + await bound.result()


def use_sync(client: Client, order: Order) -> str:
    return client.start(fulfil, order).result().upper()


async def unit_test() -> None:
    paid: int = await charge.fn(Order("a", []))
    box: Box[str] = pack.fn(Order("a", []), fragile=True)
    assert (paid, box.value.upper()) == (0, "A")
"""

BAD = """
@workflow
def wrong(order: Order) -> str:
    charge("order")  # bad: argument
    charge()  # bad: argument
    pack(order, fragil=True)  # bad: argument
    label(charge(order), 1)  # bad: argument
    return label(pack(order), pack(order))  # bad: argument


@workflow
def wrong_result(order: Order) -> str:
    return charge(order)  # bad: return


async def use(client: AsyncClient, order: Order) -> None:
    await client.start(fulfil, "order")  # bad: argument
    await client.start(fulfil)  # bad: argument
    client.start(fulfil, order)  # bad: await
    (await client.start(fulfil, order)).result()  # bad: await
    number: int = await (await client.start(fulfil, order)).result()  # bad: assign


async def unit_test() -> None:
    charge.fn(Order("a", []))  # bad: await
    number: str = await charge.fn(Order("a", []))  # bad: assign
"""

SAYS = {
    "argument": r"argument|parameter|No overload|not assignable|Expected \d|Missing",
    "await": r"await|coroutine",
    "return": r"return",
    "assign": r"assign|declared",
}


def flagged(checker: str, folder: Path) -> dict[tuple[str, int], str]:
    """Message by file and line."""
    files = [str(folder / "good.py"), str(folder / "bad.py")]
    command = {
        "mypy": ["mypy", "--strict", "--output=json", f"--cache-dir={folder}/cache", "--config-file=", *files],
        "pyright": ["pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(folder)],
    }[checker]
    (folder / "pyrightconfig.json").write_text(
        json.dumps(
            {
                "typeCheckingMode": "strict",
                "reportUnusedVariable": False,
                "reportUnusedImport": False,
                "extraPaths": [str(ROOT / "src")],
            }
        )
    )
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(ROOT / "src"), "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    if checker == "mypy":
        messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return {
            (Path(m["file"]).name, m["line"]): f"{m['message']} {m['code']}"
            for m in messages
            if m["severity"] == "error"
        }
    found: dict[tuple[str, int], str] = {}
    for m in json.loads(done.stdout)["generalDiagnostics"]:
        if m["severity"] == "error":
            found[Path(m["file"]).name, m["range"]["start"]["line"] + 1] = f"{m['message']} {m.get('rule')}"
    return found


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_the_good_file_is_clean_and_each_bad_line_is_flagged_for_what_it_is(checker: str, tmp_path: Path) -> None:
    """Strict, without an ignore comment; messages are about the argument, the await, the result."""
    (tmp_path / "good.py").write_text(HEAD + GOOD)
    (tmp_path / "bad.py").write_text(HEAD + BAD)
    found = flagged(checker, tmp_path)
    assert [each for each in found.items() if each[0][0] == "good.py"] == []
    for number, line in enumerate((HEAD + BAD).splitlines(), 1):
        marked = re.search(r"# bad: (\w+)$", line)
        if marked:
            message = found.pop(("bad.py", number), "")
            assert re.search(SAYS[marked[1]], message, re.IGNORECASE), f"{line.strip()} -> {message!r}"
    assert found == {}, "nothing else is flagged"


def test_help_signature_and_name_are_the_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """inspect.signature, __doc__, __name__, __module__ and help() show the original."""
    module: dict[str, Any] = {"__name__": "shop"}
    file = tmp_path / "shop.py"
    file.write_text(HEAD)
    monkeypatch.syspath_prepend(tmp_path)
    module = vars(__import__("shop"))
    charge, pack, fulfil = module["charge"], module["pack"], module["fulfil"]
    assert str(inspect.signature(charge)).replace("shop.", "") == "(order: Order, currency: str = 'EUR') -> int"
    assert (charge.__name__, charge.__doc__, charge.__module__) == ("charge", "Takes the money.", "shop")
    assert (pack.__name__, pack.__qualname__, fulfil.__doc__) == ("pack", "pack", "All of it.")
    assert "fragile: bool = False" in str(inspect.signature(pack))
    shown = pydoc.plain(pydoc.render_doc(charge))
    assert (
        "charge(order: shop.Order, currency: str = 'EUR') -> int" in shown or "charge(order: Order, currency" in shown
    )
    assert "Takes the money." in shown
    monkeypatch.delitem(sys.modules, "shop")


def test_a_unit_test_calls_the_plain_function() -> None:
    """.fn gives the plain value or coroutine; the step itself says so instead of running without its durability."""

    @step
    async def later(n: int) -> int:
        return n + 1

    @step
    def now(n: int) -> int:
        return n + 2

    coroutine: Coroutine[Any, Any, int] = later.fn(1)
    assert inspect.iscoroutine(coroutine)
    assert (asyncio.run(coroutine), now.fn(1)) == (2, 3)
    with pytest.raises(PlanError, match=r"step now\(\) was called outside .*\n.*now\.fn\(\.\.\.\)"):
        now(1)

    @workflow
    def both(n: int) -> int:
        return now(later(n))

    assert textwrap.dedent(str(both.plan.body["output"])) == "{'$': {'ref': 'now'}}"
