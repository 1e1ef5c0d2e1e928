"""What is kept of an exception: type name, text, causes and traceback, whatever the exception does when asked.

It is user code that answers here: `__str__` may raise, never end, give megabytes or text that no database holds. Every
question is put once, guarded, and its answer is cut. The exception itself is never pickled, so that whoever reads the
failure needs none of its classes.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from composer.core.events import Failure, FailureKind
from composer.errors import NonRetryable, PayloadError, PayloadTooLarge, RetryAfter, Snooze, StepCancelled, sole_error

_ENGINE: Final = f"{Path(__file__).parent}/"
"""Frames of files in here say nothing to a reader."""
MOST_TEXT: Final = 16_000
"""Characters of a message and of a traceback that are kept."""
_MOST_NAME: Final = 200
_MOST_CAUSES: Final = 10
"""Exceptions behind the one that was raised: the nearest are kept, and always the last, where it began."""
_MOST_CAUSE_TEXT: Final = 500
_MOST_MEMBERS: Final = 5
"""Exceptions of a group that its message names; the traceback shows more."""
_MOST_FRAMES: Final = 30


@dataclass(frozen=True, slots=True)
class Raised:
    """What an exception of a body means for its attempt."""

    failure: Failure
    retryable: bool
    retry_after: float | None = None

    def frame(self) -> dict[str, Any]:
        """Its way from a step's own process to the worker, as JSON."""
        failure = self.failure
        return {
            "failed": [failure.kind, failure.type, failure.message, failure.traceback, failure.causes],
            "retryable": self.retryable,
            "retry_after": self.retry_after,
        }

    @staticmethod
    def of_frame(frame: Mapping[str, Any]) -> Raised:
        """What `frame` sent."""
        kind, type_name, message, trace, causes = frame["failed"]
        failure = Failure(FailureKind(kind), type_name, message, trace, tuple(causes))
        return Raised(failure, frame["retryable"], frame["retry_after"])


def raised_by(error: BaseException, no_retry_on: Sequence[type[BaseException]]) -> Raised | Snooze | StepCancelled:
    """What an exception of a body means, under a policy's `no_retry_on`. Never raises, whatever the exception is.

    Of a task group with one error, that error counts.
    """
    sole = sole_error(error)
    if isinstance(sole, (Snooze, StepCancelled)):
        return sole
    delay = max(0.0, sole.delay) if isinstance(sole, RetryAfter) else None
    # A payload that does not fit now will not fit the next time.
    retryable = not isinstance(sole, (NonRetryable, PayloadError, *no_retry_on))
    cause = error
    if isinstance(sole, (NonRetryable, RetryAfter)) and sole.__cause__ is not None:
        cause = sole.__cause__
    kind = _kind_of(sole) if isinstance(sole, PayloadError) else FailureKind.ERROR
    return Raised(_failure_of(error, kind, named=cause), retryable, delay)


def refused(error: PayloadError) -> Raised:
    """A result that cannot be kept. Without a traceback: nothing in it is the user's."""
    return Raised(Failure(_kind_of(error), type(error).__name__, storable(str(error))), retryable=False)


def mismatch(why: str) -> Raised:
    """Stored arguments that the step as it is now cannot take."""
    return Raised(Failure(FailureKind.PAYLOAD_MISMATCH, "PayloadMismatch", storable(why)), retryable=False)


def _kind_of(error: PayloadError) -> FailureKind:
    return FailureKind.PAYLOAD_TOO_LARGE if isinstance(error, PayloadTooLarge) else FailureKind.PAYLOAD


def _failure_of(error: BaseException, kind: FailureKind, *, named: BaseException) -> Failure:
    """The failure as it is stored. `named` gives the type name."""
    behind = list(_behind(error))
    kept = behind if len(behind) <= _MOST_CAUSES else [*behind[: _MOST_CAUSES - 1], behind[-1]]
    causes = [_line(each) for each in kept if each is not named]
    left_out = len(behind) - len(kept)
    if left_out:
        causes.insert(-1, f"... {left_out} more ...")
    return Failure(kind, name_of(named), text_of(error), _traceback_of(error, kept, left_out), tuple(causes))


def storable(text: str) -> str:
    """Text that PostgreSQL and JSON can hold, cut: NUL and lone surrogates are written out."""
    # str.encode, and not text.encode: a subclass of str may do as it likes.
    return str.encode(text, "utf-8", "backslashreplace").decode().replace("\0", "\\x00")[:MOST_TEXT]


def name_of(error: BaseException) -> str:
    """The name of its class."""
    try:
        return storable(type(error).__qualname__)[:_MOST_NAME]
    except BaseException:  # a metaclass of the user's
        return "Exception"


def text_of(error: BaseException) -> str:
    """Its text, or why it has none. The text of a group names the exceptions in it."""
    try:
        text = storable(str(error))
    except BaseException as second:
        return f"<its text cannot be made: {name_of(second)}>"
    if isinstance(error, BaseExceptionGroup):
        members = list(_members(error))
        shown = "; ".join(_line(each) for each in members[:_MOST_MEMBERS])
        text = f"{text}: {shown}" + (f"; and {len(members) - _MOST_MEMBERS} more" if members[_MOST_MEMBERS:] else "")
    return text[:MOST_TEXT]


def _line(error: BaseException) -> str:
    return f"{name_of(error)}: {text_of(error)}"[:_MOST_CAUSE_TEXT]


def _members(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """The exceptions in a group and in the groups in it, depth first."""
    waiting: list[BaseException] = [group]
    while waiting:
        each = waiting.pop()
        if isinstance(each, BaseExceptionGroup):
            waiting += reversed(each.exceptions)
        else:
            yield each


def _behind(error: BaseException) -> Iterator[BaseException]:
    """The chain of causes and contexts, the nearest first; a chain that bites its tail ends there."""
    seen = {id(error)}
    while True:
        cause = error.__cause__
        if cause is None and not error.__suppress_context__:
            cause = error.__context__
        if cause is None or id(cause) in seen:
            return
        seen.add(id(cause))
        yield cause
        error = cause


_THEN: Final = "\n... and then:\n\n"


def _traceback_of(error: BaseException, causes: list[BaseException], left_out: int) -> str:
    """Much as Python prints it, the oldest cause first, without locals: they hold what must not be stored.

    Python's own TracebackException would read a chain whole, however long, once for each exception in it.
    """
    parts = [_one_traceback(each) for each in (error, *causes)]
    if left_out:
        parts.insert(-1, f"... {left_out} more exceptions ...\n")
    # Each gets its share, so that a long one cannot push the others out.
    share = MOST_TEXT // len(parts) - len(_THEN)
    return _THEN.join(_end_of(part, share) for part in reversed(parts))


def _one_traceback(error: BaseException) -> str:
    """The frames of one exception and its text; of a group also those of the first exceptions in it."""
    try:
        trace = outermost = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename.startswith(_ENGINE):
                outermost = trace.tb_next
            trace = trace.tb_next
        frames = traceback.format_list(traceback.extract_tb(outermost, limit=-_MOST_FRAMES))
        notes = [f"{note}\n" for note in getattr(error, "__notes__", ())]
        head = ["Traceback (most recent call last):\n"] if frames else []
        text = "".join([*head, *frames, f"{name_of(error)}: {text_of(error)}\n", *notes])
    except BaseException as second:
        return f"{name_of(error)}: {text_of(error)}\n<its traceback cannot be made: {name_of(second)}>\n"
    if isinstance(error, BaseExceptionGroup):
        for number, each in enumerate(list(_members(error))[:_MOST_MEMBERS], 1):
            text += f"\n{number}: {_one_traceback(each)}"
            text += "".join(f"caused by {_line(cause)}\n" for cause in islice(_behind(each), 1))
    return text


def _end_of(text: str, most: int) -> str:
    """The last characters: a traceback says the most at its end."""
    return str.encode(text[-most:], "utf-8", "backslashreplace").decode().replace("\0", "\\x00")[-most:]
