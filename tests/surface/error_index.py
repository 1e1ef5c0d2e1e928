"""Writes docs/errors/index.md of the pages beside it: `python -m tests.surface.error_index`."""

from __future__ import annotations

import re
from pathlib import Path

from composer import errors
from composer.core.events import FailureKind
from composer.testing.driver import WorkflowStuck

FOLDER = Path(__file__).parents[2] / "docs/errors"
RUN_CODES = ("node-failed", "deadline", "no-output", "output-unreadable", "payload-too-large")
_OTHER_PAGE = {"error": "node-failed", "payload": "payload-error"}


def classes_by_code() -> dict[str, list[str]]:
    """Names of the classes of each code, in the order of the tree."""
    drawn = re.findall(r"[├└]── (\w+)", errors.__doc__ or "")
    found: dict[str, list[str]] = {}
    for each in [*(vars(errors)[name] for name in drawn), WorkflowStuck]:
        if issubclass(each, errors.ComposerError):
            found.setdefault(each.code, []).append(each.__name__)
    return found


def meaning(code: str) -> str:
    """The first sentence of a code's page."""
    title, _, rest = (FOLDER / f"{code}.md").read_text().partition("\n\n")
    assert title == f"# {code}"
    return rest.partition("\n\n")[0].replace("\n", " ")


def index() -> str:
    """The page as it should be."""
    lines = [
        "# Errors",
        "",
        "<!-- Written by tests/surface/error_index.py; the first sentence of each page is its meaning here. -->",
        "",
        "Everything that Composer raises at a caller is a `ComposerError` with a stable `code`, and `docs` names its page. Facts",
        "are attributes, and every error passes through `pickle` and `copy` with them. A step's own words (`NonRetryable`,",
        "`RetryAfter`, `Snooze`, `StepCancelled`) stand outside of the tree.",
        "",
        "| Code | Class | Meaning |",
        "|---|---|---|",
    ]
    for code, names in classes_by_code().items():
        lines.append(f"| [`{code}`]({code}.md) | {', '.join(f'`{name}`' for name in names)} | {meaning(code)} |")
    lines += [
        "",
        "## Why a run failed",
        "",
        "`RunFailed.failure`, and `code` in a run's stored error:",
        "",
        "| Code | Meaning |",
        "|---|---|",
        *(f"| [`{code}`]({code}.md) | {meaning(code)} |" for code in RUN_CODES),
        "",
        "## Why a node failed",
        "",
        "`RunFailed.kind`, and `kind` in a node's stored error:",
        "",
        "| Kind | Meaning |",
        "|---|---|",
    ]
    for kind in FailureKind:
        page = _OTHER_PAGE.get(kind.value, kind.value)
        text = "The step raised an exception." if kind is FailureKind.ERROR else meaning(page)
        lines.append(f"| [`{kind.value}`]({page}.md) | {text} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (FOLDER / "index.md").write_text(index())
