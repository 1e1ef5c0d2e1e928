"""Every exception a user can meet, in one tree.

    ComposerError
    ├── PlanError                a workflow or step cannot be built; raised while decorating, at the user's line
    │   ├── PlanTypeError        also a TypeError, for protocols Python probes (hash, len, iter)
    │   └── PlanAttributeError   also an AttributeError, so that hasattr and debuggers keep working
    ├── PayloadError             a value does not fit its annotation, or its JSON would lose something
    │   └── PayloadTooLarge      the value is fine, and its JSON is over the size limit
    ├── OutcomeError             Outcome.unwrap() of a node that has no value; says how it ended
    ├── SettingsError            a setting is missing, unreadable or contradicts another
    │   └── ModuleError          a module to be served is missing, breaks while imported, or defines nothing
    ├── LifespanError            the resources of a worker cannot be opened or closed
    ├── ClientError              a client used where or when it cannot work (also a RuntimeError)
    ├── WorkerError              a worker used where or when it cannot work (also a RuntimeError)
    ├── QueryError               a question about runs that cannot be meant
    ├── UnknownWorkflow          a start by a name that no worker has made known
    ├── RunNotFound              no such run here
    ├── RunQuarantined           the run could not be decided and was taken aside; says why
    ├── RunEnded                 a signal that comes too late
    ├── UnknownEvent             a signal that the run's workflow never waits for
    ├── RunNotRetryable          client.retry() on a run that is not failed
    ├── IdempotencyConflict      the key names a run with other input
    ├── TransactionError         a start cannot join the transaction given as within=; says why
    ├── RunFailed                the run failed; says where and why
    ├── RunCancelled             the run was cancelled
    ├── ResultTimeout            the run has not ended yet (also a TimeoutError)
    ├── StoreUnavailable         the database cannot be reached or refuses work; trying again can help
    ├── StoreError               the database refused a statement: a defect, never passing
    ├── SchemaError              the database holds no schema, an older or a newer one
    └── EmbeddedServerError      the embedded PostgreSQL cannot be started

    Exception
    ├── NonRetryable             a step's word: this failure is final
    ├── RetryAfter               a step's word: this failure may be retried after a delay
    ├── Snooze                   a step's word: not yet; try again later, at no cost
    └── ProcessStepError         what an @around_step sees of an exception in a process step

    BaseException
    └── StepCancelled            the run was stopped; raised inside a thread step where it checks

Facts are attributes and the text is built from them, so every error pickles. `code` is stable and kebab-case, and the
name of a page of the documentation.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, ClassVar


class ComposerError(Exception):
    """Root of everything Composer raises at a caller."""

    code: ClassVar[str] = "composer-error"

    @property
    def docs(self) -> str:
        """The page of the documentation that explains it: "errors/<code>"."""
        return f"errors/{self.code}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(cls: type[ComposerError], args: tuple[Any, ...], facts: dict[str, Any]) -> ComposerError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


class PlanError(ComposerError):
    """The workflow cannot become a plan. `where` is the user's own line, as file:line."""

    code = "plan-error"

    def __init__(self, problem: str, advice: str = "", where: str = "") -> None:
        super().__init__(problem, advice, where)
        self.problem, self.advice, self.where = problem, advice, where

    def __str__(self) -> str:
        return "\n  ".join(part for part in (self.problem, self.advice, self.where and f"at {self.where}") if part)


class PlanTypeError(PlanError, TypeError):
    """Also a TypeError, for protocols that Python or a library probes: hash(), len(), iter()."""


class PlanAttributeError(PlanError, AttributeError):
    """Also an AttributeError, so that hasattr() and debuggers keep working."""


class PayloadError(ComposerError):
    """A value does not fit its annotation, or would not survive its way through JSON."""

    code = "payload-error"


class PayloadTooLarge(PayloadError):
    """The JSON of a value is over the limit of Settings.max_payload: `what` has `size` bytes, `limit` are allowed."""

    code = "payload-too-large"

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(
            f"{what} has {size:,} bytes, and the limit is {limit:,}\n"
            "  Store it where the steps can read it, and pass its place; or raise max_payload (COMPOSER_MAX_PAYLOAD)."
        )
        self.what, self.size, self.limit = what, size, limit


class OutcomeError(ComposerError):
    """Outcome.unwrap() where there is no value. `state` says how the node ended, `error` why, if it failed."""

    code = "no-value"

    def __init__(self, state: str, error: object = None) -> None:
        super().__init__(state, error)
        self.state, self.error = state, error

    def __str__(self) -> str:
        reason = f": {self.error}" if self.error is not None else ""
        return f"there is no value, the node ended {self.state}{reason}\n  Ask .ok first, or use .value_or(default)."


class SettingsError(ComposerError):
    """A setting is missing, cannot be read, or contradicts another one."""

    code = "settings-error"


class ModuleError(SettingsError):
    """A module that a worker shall serve is missing, breaks while it is imported, or defines nothing to serve.

    `module` is its name, `tried` the folders that were searched.
    """

    code = "module-error"

    def __init__(self, module: str, problem: str, advice: str = "", tried: tuple[str, ...] = ()) -> None:
        super().__init__(module, problem, advice, tried)
        self.module, self.problem, self.advice, self.tried = module, problem, advice, tried

    def __str__(self) -> str:
        return "\n  ".join(part for part in (self.problem, self.advice) if part)


class LifespanError(ComposerError):
    """The lifespan of a worker failed while `phase` "opening" or "closing"; its own exception is the cause.

    `lifespan` names it. While it opens, no task has been taken yet; when it closes, all work is stored already.
    """

    code = "lifespan-failed"

    def __init__(self, lifespan: str, phase: str, reason: str, where: str = "") -> None:
        super().__init__(lifespan, phase, reason, where)
        self.lifespan, self.phase, self.reason, self.where = lifespan, phase, reason, where

    def __str__(self) -> str:
        opening = self.phase == "opening"
        told = "The worker has taken no task." if opening else "All steps had ended before; nothing of a run is lost."
        lines = (
            f"lifespan {self.lifespan} failed while {self.phase}: {self.reason}",
            told,
            self.where and f"at {self.where}",
        )
        return "\n  ".join(part for part in lines if part)


class UnknownWorkflow(ComposerError):
    """No workflow of this name is known in this namespace, so it cannot be started by name; `known` are those that are."""

    code = "unknown-workflow"

    def __init__(self, workflow: str, namespace: str, known: Sequence[str] = ()) -> None:
        super().__init__(workflow, namespace, tuple(known))
        self.workflow, self.namespace, self.known = workflow, namespace, tuple(known)

    def __str__(self) -> str:
        close = get_close_matches(self.workflow, self.known, 3)
        meant = f"Did you mean {' or '.join(map(repr, close))}? " if close else ""
        return (
            f"no workflow {self.workflow!r} is known in namespace {self.namespace!r}\n"
            f"  {meant}A worker makes its workflows known when it begins, and a start with the @workflow itself does, too."
        )


class _AboutRun(ComposerError):
    def __init__(self, run_id: str, problem: str, advice: str = "") -> None:
        super().__init__(run_id, problem, advice)
        self.run_id, self.problem, self.advice = run_id, problem, advice

    def __str__(self) -> str:
        return "\n  ".join(part for part in (f"run {self.run_id} {self.problem}", self.advice) if part)


class RunNotFound(_AboutRun):
    """No run of this id in this namespace."""

    code = "run-not-found"

    def __init__(self, run_id: str, namespace: str = "default") -> None:
        super().__init__(
            run_id,
            f"does not exist in namespace {namespace!r}",
            "Check the id, the database URL and the namespace; a run that was started within a transaction is there once "
            "that has committed, and runs past their retention are gone.",
        )
        self.namespace = namespace


class RunQuarantined(_AboutRun):
    """The run could not be decided and was taken aside; `reason` says why. Nothing of it is lost."""

    code = "run-quarantined"

    def __init__(self, run_id: str, reason: str) -> None:
        super().__init__(
            run_id, f"is quarantined: {reason}", "Mend the cause, then client.release(run_id): it goes on where it was."
        )
        self.reason = reason


class RunNotRetryable(_AboutRun):
    """client.retry() needs a failed run; `status` says what it is instead."""

    code = "run-not-retryable"

    def __init__(self, run_id: str, status: str, problem: str = "", advice: str = "") -> None:
        super().__init__(
            run_id,
            problem or f"is {status}, and only a failed run can be retried",
            advice or "Start a new run instead.",
        )
        self.status = status


class ClientError(ComposerError, RuntimeError):
    """A client was used where or when it cannot work: closed, in a running event loop, in a forked process."""

    code = "client-error"


class WorkerError(ComposerError, RuntimeError):
    """A worker was used where or when it cannot work: not running, started twice, stopped in another event loop."""

    code = "worker-error"


class QueryError(ComposerError):
    """What runs() was asked for cannot be meant: an unknown status, a moment without a time zone."""

    code = "query-error"


class RunEnded(_AboutRun):
    """The run has ended, so what was asked of it comes too late; `status` says how it ended."""

    code = "run-ended"

    def __init__(self, run_id: str, status: str, problem: str = "") -> None:
        super().__init__(
            run_id, problem or f"has ended: it is {status}", "Nothing was stored. Start a new run instead."
        )
        self.status = status


class UnknownEvent(_AboutRun):
    """The run's workflow waits for no event of this name; `known` are those it waits for."""

    code = "unknown-event"

    def __init__(self, run_id: str, workflow: str, event: str, known: Sequence[str]) -> None:
        names = ", ".join(map(repr, known))
        close = get_close_matches(event, known, 1)
        meant = f"Did you mean {close[0]!r}? " if close else ""
        super().__init__(
            run_id,
            f"of workflow {workflow!r} waits for no event {event!r}",
            f"{meant}It waits for {names}." if known else "It waits for no event at all.",
        )
        self.workflow, self.event, self.known = workflow, event, tuple(known)


class IdempotencyConflict(_AboutRun):
    """The idempotency key belongs to a run that was started with other input."""

    code = "idempotency-conflict"

    def __init__(self, run_id: str, workflow: str, key: str) -> None:
        super().__init__(
            run_id,
            f"of workflow {workflow!r} holds the idempotency key {key!r}, with another input",
            "The same key always means the same input: use another key for another input, or fetch that run.",
        )
        self.workflow, self.key = workflow, key


class TransactionError(ComposerError):
    """A start cannot join what was given as `within=`. Nothing was started; `problem` says why, `advice` what to do."""

    code = "transaction-error"

    def __init__(self, problem: str, advice: str = "") -> None:
        super().__init__(problem, advice)
        self.problem, self.advice = problem, advice

    def __str__(self) -> str:
        return "\n  ".join(part for part in (f"start(within=...): {self.problem}", self.advice) if part)


class RunFailed(_AboutRun):
    """The run failed. `node` is where it began, `error_type`, `message` and `traceback` say how.

    `failure` says why the run failed: "node-failed", "deadline", "payload-too-large", ... Of a node that failed, `kind`
    says why: "error", "timeout", "payload", ... `causes` are the exceptions behind the one that was raised, as
    "type: message", the nearest first.
    """

    code = "run-failed"

    def __init__(
        self,
        run_id: str,
        workflow: str,
        *,
        failure: str,
        node: str | None = None,
        error_type: str = "",
        message: str = "",
        traceback: str = "",
        attempt: int | None = None,
        kind: str = "",
        causes: Sequence[str] = (),
    ) -> None:
        where = f" at node {node!r}" if node else ""
        tries = f" (attempt {attempt})" if attempt else ""
        text = ": ".join(part for part in (error_type, message) if part)
        super().__init__(
            run_id,
            f"of workflow {workflow!r} failed{where}{tries} [{kind or failure}]: {text}"
            + "".join(f"\n  caused by {cause}" for cause in causes),
            "client.retry(run_id) resumes it where it stopped, once the cause is mended.",
        )
        self.workflow, self.failure, self.node, self.attempt = workflow, failure, node, attempt
        self.error_type, self.message, self.traceback = error_type, message, traceback
        self.kind, self.causes = kind, tuple(causes)


class RunCancelled(_AboutRun):
    """The run was cancelled; `reason` is what the caller of cancel() gave."""

    code = "run-cancelled"

    def __init__(self, run_id: str, workflow: str, reason: str = "") -> None:
        super().__init__(run_id, f"of workflow {workflow!r} was cancelled" + (f": {reason}" if reason else ""))
        self.workflow, self.reason = workflow, reason


class ResultTimeout(_AboutRun, TimeoutError):
    """result(timeout=...) ran out; the run itself goes on."""

    code = "result-timeout"


class StoreUnavailable(ComposerError):
    """The database cannot be reached, or refuses work just now. Trying again can help."""

    code = "store-unavailable"


class StoreError(ComposerError):
    """The database refused what it was asked. Trying again cannot help: a defect here, or a hand in the tables."""

    code = "store-error"


class SchemaError(ComposerError):
    """The database holds no Composer schema, an older one, or one of a newer release."""

    code = "schema-error"


class EmbeddedServerError(ComposerError):
    """The embedded PostgreSQL cannot be started; the text says what to change."""

    code = "embedded-server-error"


class NonRetryable(Exception):
    """Raise it in a step: the failure is final, whatever the retry policy says."""


class RetryAfter(Exception):
    """Raise it in a step: the attempt failed, and the next one shall wait `delay` (seconds or a timedelta)."""

    def __init__(self, delay: float | timedelta, message: str = "") -> None:
        super().__init__(delay, message)
        self.delay = _seconds("RetryAfter", delay)
        self.message = message

    def __str__(self) -> str:
        return self.message or f"retry after {self.delay:g} s"


class Snooze(Exception):
    """Raise it in a step: nothing went wrong, look again after `delay` (seconds or a timedelta). Spends no attempt."""

    def __init__(self, delay: float | timedelta) -> None:
        super().__init__(delay)
        self.delay = _seconds("Snooze", delay)


def _seconds(what: str, delay: Any) -> float:
    number = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if isinstance(number, bool) or not isinstance(number, (int, float)) or number != number:
        raise TypeError(f"{what}({delay!r}): expected seconds as a number, or a timedelta")
    return float(number)


class ProcessStepError(Exception):
    """What an @around_step sees when a step raised in its own process: the text of the exception, not the object.

    `type_name`, `message` and `traceback` are the original's. Raised on, the attempt fails as the original says.
    """

    def __init__(self, type_name: str, message: str, traceback: str = "") -> None:
        super().__init__(type_name, message, traceback)
        self.type_name, self.message, self.traceback = type_name, message, traceback

    def __str__(self) -> str:
        return f"{self.type_name}: {self.message}"


class StepCancelled(BaseException):
    """The run was stopped. A BaseException, so that `except Exception` in a step does not swallow it."""


def sole_error(error: BaseException) -> BaseException:
    """What a task group raised, when it is a single exception: that one, out of its groups; else the group."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
