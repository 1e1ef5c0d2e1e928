"""What is kept of an exception, whatever it does when it is asked."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from composer.core.events import Failure
from composer.worker import failures
from composer.worker.failures import MOST_TEXT, Raised, raised_by


def failure(error: BaseException) -> Failure:
    """What an attempt keeps of it."""
    raised = raised_by(error, ())
    assert isinstance(raised, Raised)
    assert Raised.of_frame(json.loads(json.dumps(raised.frame()))) == raised, "its way out of a step's own process"
    return raised.failure


def kept(error: BaseException) -> Failure:
    """The failure as a worker would store it, once it went through JSON."""
    made = failure(error)
    text = made.encode(node="a", attempt=1)
    text.encode()
    assert len(text) < 8 * MOST_TEXT
    back = json.loads(text)
    for each in (back["type"], back["message"], back.get("traceback", ""), *back.get("causes", [])):
        each.encode()
        assert "\0" not in each
    assert (back["type"], back["message"]) == (made.type, made.message)
    return made


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except BaseException as caught:
        return caught


class NoText(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class NoEnd(Exception):
    def __str__(self) -> str:
        return str(self)


class Leaves(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class NoPickle(Exception):
    def __init__(self, a: int, b: object) -> None:
        super().__init__("it holds a lock")
        self.lock = threading.Lock()

    def __reduce__(self) -> Any:
        raise TypeError("not me")


class NoName(type):
    def __getattribute__(cls, name: str) -> Any:
        if name == "__qualname__":
            raise RuntimeError("no name")
        return super().__getattribute__(name)


class Nameless(Exception, metaclass=NoName):
    pass


class OddText(str):
    def encode(self, *args: Any) -> bytes:
        raise ValueError("no bytes")


class Odd(Exception):
    def __str__(self) -> str:
        return OddText("odd")


@pytest.mark.parametrize(
    ("error", "type_", "message"),
    [
        (ValueError("plain"), "ValueError", "plain"),
        (NoText(), "NoText", "<its text cannot be made: ValueError>"),
        (NoEnd(), "NoEnd", "<its text cannot be made: RecursionError>"),
        (Leaves(), "Leaves", "<its text cannot be made: SystemExit>"),
        (NoPickle(1, 2), "NoPickle", "it holds a lock"),
        (Nameless("x"), "Exception", "x"),
        (Odd(), "Odd", "odd"),
        (SystemExit(3), "SystemExit", "3"),
        (KeyboardInterrupt(), "KeyboardInterrupt", ""),
        (ValueError("nul \0 and \ud800"), "ValueError", "nul \\x00 and \\ud800"),
        (KeyError("\0"), "KeyError", "'\\x00'"),
        (ValueError(b"\xff", object), "ValueError", "(b'\\xff', <class 'object'>)"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_an_exception_is_kept_by_name_and_text(error: BaseException, type_: str, message: str) -> None:
    """Type name and best-effort text, in a form that JSON and PostgreSQL hold; the traceback names this file."""
    made = kept(raised(error))
    assert (made.type, made.message) == (type_, message)
    assert "test_failures.py" in made.traceback
    assert message.splitlines()[:1] == [] or message[:20] in made.traceback


def test_a_huge_message_is_cut() -> None:
    """Of fifty megabytes the first characters stay, and the traceback keeps its end."""
    made = kept(raised(ValueError("x" * 50_000_000)))
    assert len(made.message) == MOST_TEXT
    assert len(made.traceback) <= MOST_TEXT


def chain(length: int) -> BaseException:
    error: BaseException = KeyError("the root")
    for n in range(length):
        error = raised(RuntimeError(f"level {n}"), error)
    return error


def test_a_chain_of_causes_is_kept_nearest_first() -> None:
    """All of a short one, in the failure and in the traceback; causes by `from` and by context alike."""
    try:
        try:
            raise KeyError("inner")
        except KeyError:
            raise ValueError("outer")  # noqa: B904
    except ValueError as caught:
        made = kept(raised(RuntimeError("top"), caught))
    assert made.causes == ("ValueError: outer", "KeyError: 'inner'")
    assert made.traceback.index("KeyError: 'inner'") < made.traceback.index("ValueError: outer")
    assert made.traceback.index("ValueError: outer") < made.traceback.index("RuntimeError: top")


def test_a_context_that_was_suppressed_is_no_cause() -> None:
    """`raise ... from None` says so."""
    try:
        try:
            raise KeyError("inner")
        except KeyError:
            raise ValueError("outer") from None
    except ValueError as caught:
        assert kept(caught).causes == ()


def test_a_long_chain_is_bounded_and_shows_where_it_began() -> None:
    """Of 20,000 exceptions the nearest nine and the root stay, and how many were left out."""
    made = kept(chain(20_000))
    assert len(made.causes) == 11
    assert made.causes[0] == "RuntimeError: level 19998"
    assert made.causes[-2:] == ("... 19990 more ...", "KeyError: 'the root'")
    assert "KeyError: 'the root'" in made.traceback and "19990 more exceptions" in made.traceback
    assert made.traceback.rstrip().endswith("RuntimeError: level 19999")


def test_a_chain_that_bites_its_tail_ends() -> None:
    """A cycle of causes is followed once."""
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert kept(one).causes == ("ValueError: two",)


def test_a_group_names_what_is_in_it() -> None:
    """Also in groups in it; the traceback has those of the members, with their causes."""
    first = raised(ValueError("first"), KeyError("why"))
    made = kept(raised(ExceptionGroup("two failed", [first, ExceptionGroup("inner", [raised(OSError("second"))])])))
    assert made.type == "ExceptionGroup"
    assert made.message == "two failed (2 sub-exceptions): ValueError: first; OSError: second"
    assert "caused by KeyError: 'why'" in made.traceback
    assert made.traceback.count("test_failures.py") >= 3


def test_a_large_or_deep_group_is_bounded() -> None:
    """A thousand members, a thousand levels: the first are named, the rest counted."""
    wide = kept(ExceptionGroup("many", [ValueError(str(n)) for n in range(1_000)]))
    assert wide.message.endswith("ValueError: 4; and 995 more")
    deep: ExceptionGroup[Exception] = ExceptionGroup("g", [ValueError("core")])
    for _ in range(400):
        deep = ExceptionGroup("g", [deep])
    assert kept(deep).message == "g (1 sub-exception): ValueError: core"


def test_notes_are_in_the_traceback() -> None:
    """What was added with add_note() is kept."""
    error = ValueError("x")
    error.add_note("while reading line 7")
    assert "while reading line 7" in kept(raised(error)).traceback


def test_a_traceback_that_cannot_be_made_leaves_name_and_text() -> None:
    """Whatever fails in making it, the failure is stored."""
    error = ValueError("x")
    error.__notes__ = 3  # type: ignore[assignment]
    made = kept(raised(error))
    assert made.traceback == "ValueError: x\n<its traceback cannot be made: TypeError>\n"


def test_the_engines_own_frames_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader sees the frames below the last one of the engine's."""
    error = raised(ValueError("x"))
    assert __file__ in failure(error).traceback
    monkeypatch.setattr(failures, "_ENGINE", __file__)
    assert failure(error).traceback == "ValueError: x\n"
    assert failures.MOST_TEXT == 16_000
