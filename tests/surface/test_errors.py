"""The tree of errors: every class has a code and a page, and passes through pickle and copy with all its facts."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import pkgutil
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import composer
from composer import errors
from composer.core.conditions import NotOfKind
from composer.core.expressions import NotAList, Unevaluable, Unreadable
from composer.core.items import NoItems
from composer.define.comparing import Incomparable
from composer.define.shapes import NoSuchField
from composer.errors import (
    ClientError,
    ComposerError,
    EmbeddedServerError,
    IdempotencyConflict,
    LifespanError,
    ModuleError,
    NonRetryable,
    OutcomeError,
    PayloadError,
    PayloadTooLarge,
    PlanAttributeError,
    PlanError,
    PlanTypeError,
    ProcessStepError,
    QueryError,
    ResultTimeout,
    RetryAfter,
    RunCancelled,
    RunEnded,
    RunFailed,
    RunNotFound,
    RunNotRetryable,
    RunQuarantined,
    SchemaError,
    SettingsError,
    Snooze,
    StepCancelled,
    StoreError,
    StoreUnavailable,
    TransactionError,
    UnknownEvent,
    UnknownWorkflow,
    WorkerError,
    sole_error,
)
from composer.testing.driver import WorkflowStuck
from composer.worker.processes import ProcessDied
from tests.surface import error_index

DOCS = Path(__file__).parents[2] / "docs/errors"

SAMPLES: list[BaseException] = [
    ComposerError("text"),
    PlanError("what", "do", "app.py:1"),
    PlanTypeError("what", "do", "app.py:1"),
    PlanAttributeError("what", "do", "app.py:1"),
    PayloadError("a.b: no"),
    PayloadTooLarge("the input of workflow w", 3_000_000, 2_000_000),
    OutcomeError("failed", {"kind": "error"}),
    SettingsError("lease=0"),
    ModuleError("app", "there is no module 'app'", "Look.", ("/srv",)),
    LifespanError("pool", "opening", "refused", "app.py:1"),
    ClientError("closed"),
    WorkerError("closed"),
    QueryError("status='done'"),
    UnknownWorkflow("fulfill", "n", ["fulfil"]),
    RunNotFound("r", "n"),
    RunQuarantined("r", "why"),
    RunNotRetryable("r", "completed"),
    RunEnded("r", "completed"),
    UnknownEvent("r", "w", "aproval", ["approval"]),
    TransactionError("no transaction is in progress", "Begin one."),
    IdempotencyConflict("r", "w", "k"),
    RunFailed(
        "r", "w", failure="node-failed", node="a", error_type="ValueError", message="no", traceback="Traceback",
        attempt=3, kind="error", causes=["KeyError: 'x'"],
    ),
    RunCancelled("r", "w", "asked"),
    ResultTimeout("r", "has not ended", "wait"),
    StoreUnavailable("away"),
    StoreError("defect"),
    SchemaError("older"),
    EmbeddedServerError("no room"),
    WorkflowStuck("never"),
    NonRetryable("final"),
    RetryAfter(timedelta(seconds=3), "later"),
    RetryAfter(2.5),
    Snooze(timedelta(minutes=1)),
    StepCancelled("stopped"),
    ProcessStepError("ValueError", "no", "Traceback"),
    ProcessDied("killed", began=True),
    Unreadable("charge", ["a", 0], "nothing there"),
    Unevaluable("charge", ["a"], "no number", '"x"', "a number"),
    NotAList("null"),
    NoItems("NotAList", "it is null"),
    NotOfKind("x", "number", "a number"),
    Incomparable("it is always None"),
    NoSuchField("no field", ["near"]),
]  # fmt: skip


def classes() -> Iterator[type[BaseException]]:
    """Every exception class that the package defines."""
    for module in pkgutil.walk_packages(composer.__path__, "composer."):
        if module.name.endswith("__main__") or module.name.startswith("composer.redis"):
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if not inspect.isclass(value) or not issubclass(value, BaseException) or value.__module__ != module.name:
                continue
            if not value.__name__.startswith("_"):
                yield value


def facts(error: BaseException) -> tuple[Any, ...]:
    return type(error), error.args, str(error), {k: v for k, v in vars(error).items() if not k.startswith("__")}


PASSAGES: dict[str, Callable[[BaseException], BaseException]] = {
    "pickle": lambda error: pickle.loads(pickle.dumps(error)),
    "oldest pickle": lambda error: pickle.loads(pickle.dumps(error, 0)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("passage", PASSAGES)
@pytest.mark.parametrize("error", SAMPLES, ids=lambda each: type(each).__name__)
def test_an_error_passes_with_all_its_facts(error: BaseException, passage: str) -> None:
    """Class, arguments, text and attributes are the same afterwards."""
    assert facts(PASSAGES[passage](error)) == facts(error)


def test_notes_pass_too() -> None:
    """What was added to an error on its way is kept."""
    error = PayloadTooLarge("x", 2, 1)
    error.add_note("seen by me")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["seen by me"]


def test_every_class_of_the_package_is_among_the_samples() -> None:
    """None is missing from the tests above, and those a user can meet are in composer.errors."""
    assert set(classes()) - {type(each) for each in SAMPLES} == set()
    met = {each.__name__ for each in classes() if issubclass(each, ComposerError)}
    assert met - {"WorkflowStuck"} <= set(vars(errors))


def test_the_tree_is_drawn_as_it_is() -> None:
    """The docstring of composer.errors names every class of it, under its parent."""
    drawn = re.findall(r"^    ([ │├└─]*)(\w+)  ", errors.__doc__ or "", re.MULTILINE)
    parents: list[str] = []
    shown: set[tuple[str, str]] = set()
    for bars, name in drawn:
        depth = len(bars) // 4 - 1
        del parents[depth:]
        if parents:
            shown.add((parents[-1], name))
        parents.append(name)
    roots = re.findall(r"^    (ComposerError|Exception|BaseException)$", errors.__doc__ or "", re.MULTILINE)
    assert roots == ["ComposerError", "Exception", "BaseException"]
    named = {name for _, name in drawn}
    own = {
        name for name, each in vars(errors).items()
        if inspect.isclass(each) and issubclass(each, BaseException) and not name.startswith("_")
    }  # fmt: skip
    assert named | {"ComposerError"} == own
    assert {
        ("PlanError", "PlanTypeError"),
        ("PlanError", "PlanAttributeError"),
        ("PayloadError", "PayloadTooLarge"),
    } <= shown


def test_every_class_has_a_code_and_a_page() -> None:
    """Codes are kebab-case; a page of the documentation is named after each and shows the class."""
    for each in classes():
        if not issubclass(each, ComposerError) or each is ComposerError:
            continue
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", each.code)
        page = DOCS / f"{each.code}.md"
        assert page.exists(), page.name
        assert f"`{each.__name__}`" in page.read_text(), f"{page.name} does not name {each.__name__}"
    assert PayloadTooLarge("x", 2, 1).docs == "errors/payload-too-large"


def test_the_index_is_written_from_the_tree_and_the_pages() -> None:
    """docs/errors/index.md is what `python -m tests.surface.error_index` writes, and links to every page there is."""
    page = (DOCS / "index.md").read_text()
    assert page == error_index.index()
    assert {each.stem for each in DOCS.glob("*.md")} - {"index"} == set(re.findall(r"\(([\w-]+)\.md\)", page))


def test_a_class_with_a_parents_code_is_that_error_for_protocols() -> None:
    """One code is one error; a class that shares its parent's only adds a base of Python's own."""
    for each in classes():
        for parent in each.__mro__[1:]:
            if issubclass(parent, ComposerError) and not parent.__name__.startswith("_"):
                shares = getattr(each, "code", None) == parent.code
                assert not shares or issubclass(each, (TypeError, AttributeError)), each


@pytest.mark.parametrize("bad", ["30 sec", None, True, float("nan"), [1]])
@pytest.mark.parametrize("verb", [RetryAfter, Snooze])
def test_a_delay_that_is_none_is_refused_where_it_is_written(verb: Any, bad: Any) -> None:
    """RetryAfter("30 sec") says what it takes instead of failing later."""
    with pytest.raises(TypeError, match=rf"{verb.__name__}\(.*expected seconds as a number, or a timedelta"):
        verb(bad)


def test_of_a_group_with_one_error_that_error_counts() -> None:
    """Groups in groups too; a group with two stays itself."""
    alone = ValueError("x")
    assert sole_error(ExceptionGroup("a", [ExceptionGroup("b", [alone])])) is alone
    two = ExceptionGroup("a", [alone, KeyError("y")])
    assert sole_error(two) is two
