"""A document waits for its reviewer; in time it goes to the manager; when nobody answers it is turned down.

Nothing is held while it waits: no slot, no connection, only a row with a moment. What a person decides comes from outside,
by `client.signal`, and is checked by `Decision` before it is stored. Who was asked and when is in the run's history.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from composer import Workflow, either, otherwise, step, wait_for_event, when, workflow

REVIEWER = "reviewer"
MANAGER = "manager"


@dataclass(frozen=True)
class Document:
    """What is to be approved."""

    title: str
    author: str
    reviewer: str
    manager: str


@dataclass(frozen=True)
class Decision:
    """What a person says."""

    approved: bool
    by: str
    reason: str = ""


NOBODY = Decision(approved=False, by="nobody", reason="nobody answered in time")
"""Stands in for the answer of somebody who gave none."""


@dataclass(frozen=True)
class Verdict:
    """What became of the document."""

    title: str
    published: bool
    by: str
    reason: str


@step(retries=3)
async def ask(person: str, document: Document) -> str:
    """Tells a person that a document waits for them. Returns what they were told."""
    return f"{document.title!r} of {document.author} waits for you, {person}"


@step(retries=3)
async def publish(document: Document, decision: Decision) -> Verdict:
    """Makes an approved document public."""
    return Verdict(document.title, published=True, by=decision.by, reason=decision.reason)


@step(retries=3)
async def turn_down(document: Document, decision: Decision) -> Verdict:
    """Tells the author that the document was not approved, and why."""
    return Verdict(document.title, published=False, by=decision.by, reason=decision.reason)


def approval_flow(name: str, *, patience: timedelta, last_patience: timedelta) -> Workflow[[Document], Verdict]:
    """The workflow, with its own patience: a real one waits for days, a demonstration for seconds."""

    @workflow(name=name)
    def approval(document: Document) -> Verdict:
        asked = ask(document.reviewer, document)
        first = wait_for_event(REVIEWER, Decision, timeout=patience, on_timeout=NOBODY, after=asked)
        with when(first.by == NOBODY.by, name="no-answer"):
            escalated = ask.named("ask-manager")(document.manager, document)
            second = wait_for_event(MANAGER, Decision, timeout=last_patience, on_timeout=NOBODY, after=escalated)
        # The manager's word where it came to that, else the reviewer's.
        decision = either(second, first, overlap=True)
        with when(decision.approved, name="approved"):
            published = publish(document, decision)
        with otherwise():
            turned_down = turn_down(document, decision)
        return either(published, turned_down)

    return approval


approval = approval_flow("approval", patience=timedelta(days=2), last_patience=timedelta(days=1))
hurried = approval_flow("approval-hurried", patience=timedelta(seconds=1), last_patience=timedelta(seconds=1))
