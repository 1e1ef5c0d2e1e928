"""Composer: durable workflows for Python. Steps are functions, a workflow is a DAG drawn once, PostgreSQL is the truth."""

from composer import _startup as _startup
from composer.app import Worker
from composer.client.async_client import AsyncClient, AsyncRunHandle, CancelResult, RetryResult
from composer.client.client import Client, RunHandle
from composer.client.views import NodeView, RunView
from composer.core.retries import Retry
from composer.define.context import StepContext, step_context
from composer.define.step import Step, step
from composer.define.surroundings import AroundStep, Lifespan, around_step, lifespan
from composer.define.workflow import Workflow, workflow
from composer.errors import (
    ComposerError,
    IdempotencyConflict,
    LifespanError,
    NonRetryable,
    PayloadError,
    PlanError,
    ProcessStepError,
    ResultTimeout,
    RetryAfter,
    RunCancelled,
    RunFailed,
    RunNotFound,
    RunNotRetryable,
    RunQuarantined,
    Snooze,
    StepCancelled,
    StoreUnavailable,
)
from composer.observe.logging import StepLogFilter
from composer.settings import Settings

__all__ = [
    "AroundStep",
    "AsyncClient",
    "AsyncRunHandle",
    "CancelResult",
    "Client",
    "ComposerError",
    "IdempotencyConflict",
    "Lifespan",
    "LifespanError",
    "NodeView",
    "NonRetryable",
    "PayloadError",
    "PlanError",
    "ProcessStepError",
    "ResultTimeout",
    "Retry",
    "RetryAfter",
    "RetryResult",
    "RunCancelled",
    "RunFailed",
    "RunHandle",
    "RunNotFound",
    "RunNotRetryable",
    "RunQuarantined",
    "RunView",
    "Settings",
    "Snooze",
    "Step",
    "StepCancelled",
    "StepContext",
    "StepLogFilter",
    "StoreUnavailable",
    "Worker",
    "Workflow",
    "around_step",
    "lifespan",
    "step",
    "step_context",
    "workflow",
]
