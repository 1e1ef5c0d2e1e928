"""Sends one document to a reviewer who stays silent and a manager who approves, and tells what happens.

$ python -m samples.approval

Worker and client share this process and, without a COMPOSER_DATABASE_URL, the embedded PostgreSQL server.
"""

from __future__ import annotations

import anyio

from composer import AsyncClient, AsyncRunHandle, Worker

from .workflow import MANAGER, Decision, Document, Verdict, hurried


async def main() -> None:
    """Starts a run with little patience, waits until it has come to the manager, and lets her decide."""
    document = Document("Budget 2027", author="ann", reviewer="rob", manager="mia")
    async with Worker([hurried]) as worker, AsyncClient(store=worker.store) as client:
        run = await client.start(hurried, document)
        print(f"run {run.id}: {document.title!r} waits for {document.reviewer}")
        while not await _waits_for(MANAGER, run):  # noqa: ASYNC110 - nobody tells, so it is looked up
            await anyio.sleep(0.05)
        print(f"{document.reviewer} gave no answer; now it waits for {document.manager}")
        await run.signal(MANAGER, Decision(approved=True, by=document.manager))
        verdict = await run.result(timeout=30)
        print(f"{verdict.title!r} was {'published' if verdict.published else 'turned down'} by {verdict.by}")


async def _waits_for(person: str, run: AsyncRunHandle[Verdict]) -> bool:
    return any(node.name == person and node.state == "waiting" for node in (await run.get()).nodes)


if __name__ == "__main__":
    anyio.run(main)
