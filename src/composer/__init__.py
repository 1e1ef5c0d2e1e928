"""Composer: durable workflows for Python. Steps are functions, a workflow is a DAG drawn once, PostgreSQL is the truth."""

from composer import _startup as _startup
from composer.app import Worker
from composer.client.async_client import AsyncClient, AsyncRunHandle, CancelResult, RetryResult
from composer.client.client import Client, RunHandle
from composer.client.explaining import Explanation, NodeExplanation
from composer.client.listing import RunSummary
from composer.client.signals import SignalResult
from composer.client.views import MapProgress, NodeView, RunView
from composer.client.watching import Change
from composer.core.retries import Retry
from composer.define.blocks import otherwise, race, sleep, sleep_until, wait_for_event, when
from composer.define.conditions import all_of, any_of, contains, is_none, not_, size
from composer.define.context import StepContext, step_context
from composer.define.joins import either, maybe, settled, settled_each, zip_refs
from composer.define.outcome import Outcome, StepError
from composer.define.step import Step, step
from composer.define.surroundings import AroundStep, Lifespan, around_step, lifespan
from composer.define.values import build
from composer.define.workflow import Workflow, workflow
from composer.errors import (
    ClientError,
    ComposerError,
    IdempotencyConflict,
    LifespanError,
    NonRetryable,
    OutcomeError,
    PayloadError,
    PayloadTooLarge,
    PlanError,
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
    Snooze,
    StepCancelled,
    StoreUnavailable,
    TransactionError,
    UnknownEvent,
    UnknownWorkflow,
    WorkerError,
)
from composer.observe.logging import StepLogFilter
from composer.settings import Settings

__all__ = [
    "AroundStep",
    "AsyncClient",
    "AsyncRunHandle",
    "CancelResult",
    "Change",
    "Client",
    "ClientError",
    "ComposerError",
    "Explanation",
    "IdempotencyConflict",
    "Lifespan",
    "LifespanError",
    "MapProgress",
    "NodeExplanation",
    "NodeView",
    "NonRetryable",
    "Outcome",
    "OutcomeError",
    "PayloadError",
    "PayloadTooLarge",
    "PlanError",
    "ProcessStepError",
    "QueryError",
    "ResultTimeout",
    "Retry",
    "RetryAfter",
    "RetryResult",
    "RunCancelled",
    "RunEnded",
    "RunFailed",
    "RunHandle",
    "RunNotFound",
    "RunNotRetryable",
    "RunQuarantined",
    "RunSummary",
    "RunView",
    "Settings",
    "SignalResult",
    "Snooze",
    "Step",
    "StepCancelled",
    "StepContext",
    "StepError",
    "StepLogFilter",
    "StoreUnavailable",
    "TransactionError",
    "UnknownEvent",
    "UnknownWorkflow",
    "Worker",
    "WorkerError",
    "Workflow",
    "all_of",
    "any_of",
    "around_step",
    "build",
    "contains",
    "either",
    "is_none",
    "lifespan",
    "maybe",
    "not_",
    "otherwise",
    "race",
    "settled",
    "settled_each",
    "size",
    "sleep",
    "sleep_until",
    "step",
    "step_context",
    "wait_for_event",
    "when",
    "workflow",
    "zip_refs",
]
