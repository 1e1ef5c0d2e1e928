"""Testing workflows: in memory, on a clock that is turned instead of waited for."""

from composer.testing.clock import VirtualClock
from composer.testing.driver import Later, StepExecution, WorkflowResult, WorkflowStuck, crash_everywhere, run_workflow

__all__ = [
    "Later",
    "StepExecution",
    "VirtualClock",
    "WorkflowResult",
    "WorkflowStuck",
    "crash_everywhere",
    "run_workflow",
]
