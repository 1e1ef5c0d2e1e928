"""`composer verify` and `composer doctor`."""

from __future__ import annotations

import sys
from dataclasses import asdict

import anyio

from composer.app import examine, open_store
from composer.cli.output import AsJson, put, say
from composer.settings import Settings
from composer.verify import Verified, Violation
from composer.verify import verify as verify_store


def verify(settings: Settings, as_json: AsJson = False) -> None:
    """Check the promises on every run of a live database. Exit code 1 when one is broken."""
    verified = Verified()

    async def run() -> list[Violation]:
        async with open_store(settings) as store:
            return [violation async for violation in verify_store(store, verified)]

    found = anyio.run(run)
    if as_json:
        put({**asdict(verified), "violations": found})
    else:
        for each in found:
            say(f"invariant {each.invariant}, run {each.run_id}: {each.problem}")
        say(
            f"{verified.runs} runs, {verified.transitions} transitions, {verified.tasks} tasks: {len(found)} violations"
        )
    sys.exit(1 if found else 0)


def doctor(settings: Settings, as_json: AsJson = False) -> None:
    """Look at the database's settings and state. Exit code 1 when there is a problem; warnings are none."""
    found = anyio.run(examine, settings)
    if as_json:
        put(list(found))
    else:
        for each in found:
            say(
                f"{each.level.value:8} {each.name}: {each.value}" + (f"\n         {each.advice}" if each.advice else "")
            )
    sys.exit(1 if any(each.level == "problem" for each in found) else 0)
