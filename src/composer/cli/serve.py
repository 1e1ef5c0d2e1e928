"""`composer worker` and `composer coordinator`: processes that stay until they are told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Annotated, Any

import anyio
import typer

from composer.app import Worker, calm_collector, open_store, other_composer
from composer.cli.options import DatabaseUrl, Home, JsonLogs, Namespace
from composer.cli.supervise import SAME_WORD, Line, Supervisor, command_of, imported_files
from composer.coordinator.services import run_coordinator
from composer.define.workflow import Workflow
from composer.errors import sole_error
from composer.observe.logging import configure_logging, configure_user_logging
from composer.settings import Settings, read_settings
from composer.worker.discovery import discover

log = logging.getLogger("composer")

_GRACE_OF_RELOAD = 5.0


def worker(
    context: typer.Context,
    modules: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODULE...]",
            help="Modules that define workflows and steps, or module:attribute; default: [tool.composer] modules of pyproject.toml.",
            show_default=False,
        ),
    ] = None,
    database_url: DatabaseUrl = None,
    home: Home = None,
    namespace: Namespace = None,
    queue: Annotated[
        list[str] | None, typer.Option("--queue", help="A queue to serve, most important first; repeatable.")
    ] = None,
    concurrency: Annotated[int | None, typer.Option("--concurrency", help="Steps at the same time.")] = None,
    threads: Annotated[int | None, typer.Option("--threads", help="Plain-function steps at the same time.")] = None,
    step_processes: Annotated[
        int | None,
        typer.Option("--step-processes", help="Steps with isolation='process' at the same time; default: one a core."),
    ] = None,
    lease: Annotated[float | None, typer.Option("--lease", help="Seconds a worker may be silent.")] = None,
    grace: Annotated[
        float | None, typer.Option("--grace", help="Seconds running steps get when the worker stops.")
    ] = None,
    coordinator: Annotated[
        bool, typer.Option("--coordinator/--no-coordinator", help="Run the coordinator's loops here too.")
    ] = True,
    pooler: Annotated[
        bool | None, typer.Option("--pooler/--no-pooler", help="The URL leads through a pooler in transaction mode.")
    ] = None,
    processes: Annotated[
        int, typer.Option("--processes", min=1, help="Worker processes, kept going by a parent process.")
    ] = 1,
    reload: Annotated[bool, typer.Option("--reload", help="Start anew when a source file changes.")] = False,
    json_logs: JsonLogs = False,
    supervised: Annotated[int | None, typer.Option("--supervised", hidden=True)] = None,
) -> None:
    """Run the steps of MODULE's workflows until SIGTERM or Ctrl-C."""
    configure_logging(as_json=json_logs)
    settings = read_settings(
        database_url=database_url, home=home, namespace=namespace, queues=tuple(queue) if queue else None, concurrency=concurrency,
        threads=threads, processes=step_processes, lease=lease, grace=grace, coordinator=coordinator, pooler=pooler,
    )  # fmt: skip
    if processes > 1 or reload:
        command = command_of(
            context,
            without=("processes", "reload"),
            # Whoever edits does not want to wait for half a minute.
            with_={"grace": grace if grace is not None or not reload else _GRACE_OF_RELOAD},
        )

        async def supervise() -> int:
            code = await Supervisor(command, processes, reload=reload).run()
            # Only its end is left to come: whoever goes on telling it must not take the exit code away.
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            return code

        try:
            sys.exit(anyio.run(supervise))
        except BaseExceptionGroup as errors:
            raise sole_error(errors) from None
    line = Line(supervised) if supervised is not None else None
    try:
        found = discover(modules or [])
    finally:
        if line is not None:
            line.say(files=imported_files())
    configure_user_logging(as_json=json_logs)
    made = Worker(found.workflows, settings, steps=found.steps, lifespan=found.lifespan, around=found.around)
    for warning in (*found.warnings, other_composer()):
        if warning:
            log.warning(warning)

    async def work(until: Until) -> None:
        async with made:
            typer.echo(_serves(made), err=True)
            await _tell_unknown_steps(made)
            async with anyio.create_task_group() as group:
                group.start_soon(_drain_when_told, made, until)
                if line is not None:
                    line.say(serves=True)
                    group.start_soon(_drain_when_told, made, line.until_alone)
                await made.wait_stopped()
                group.cancel_scope.cancel()

    run_until_told(work)


async def _tell_unknown_steps(made: Worker) -> None:
    """Says which runs wait for steps that nobody serves: a module was forgotten, or a step was renamed."""
    for each in await made.store.unknown_steps(queues=made.settings.queues, steps=sorted(made.steps)):
        log.warning(
            f"{each.tasks} {'task waits' if each.tasks == 1 else 'tasks wait'} for step {each.step}, which no live worker knows: "
            "serve the module that defines it too, or give the step its old name, @step(name=...)",
            extra={"step": each.step, "tasks": each.tasks, "run_id": each.run_id},
        )


async def _drain_when_told(made: Worker, until: Until) -> None:
    await until()
    log.info("stopping: no new tasks; running steps get the grace time", extra={"grace": made.settings.grace})
    made.drain()


def coordinator(
    database_url: DatabaseUrl = None,
    home: Home = None,
    namespace: Namespace = None,
    lease: Annotated[
        float | None, typer.Option("--lease", help="The workers' lease in seconds: how often to look.")
    ] = None,
    pooler: Annotated[
        bool | None, typer.Option("--pooler/--no-pooler", help="The URL leads through a pooler in transaction mode.")
    ] = None,
    json_logs: JsonLogs = False,
) -> None:
    """Run the coordinator's loops alone; any number of replicas may."""
    configure_logging(as_json=json_logs)
    settings = read_settings(database_url=database_url, home=home, namespace=namespace, lease=lease, pooler=pooler)

    async def work(until: Until) -> None:
        async with open_store(settings) as store, anyio.create_task_group() as group:
            group.start_soon(store.listen)
            group.start_soon(run_coordinator, store, settings)
            typer.echo(f"coordinator of namespace {settings.namespace!r}, process {os.getpid()}", err=True)
            await until()
            group.cancel_scope.cancel()

    run_until_told(work)


Until = Callable[[], Awaitable[None]]


def run_until_told(work: Callable[[Until], Awaitable[None]]) -> None:
    """Runs `work` in an event loop, uvloop's where it is installed. It may await the first SIGTERM or SIGINT; a second ends it hard."""

    async def main() -> None:
        told = anyio.Event()
        async with anyio.create_task_group() as group:
            await group.start(_hear_signals, told)
            await work(told.wait)
            group.cancel_scope.cancel()

    calm_collector()
    try:
        anyio.run(main, backend_options={"use_uvloop": _has_uvloop()})
    except BaseExceptionGroup as errors:
        # What ended the work, and not the task group it ended in.
        raise sole_error(errors) from None


async def _hear_signals(told: anyio.Event, *, task_status: Any = anyio.TASK_STATUS_IGNORED) -> None:
    loop = asyncio.get_running_loop()
    first = math.inf

    def hear(number: int) -> None:
        nonlocal first
        first = min(first, loop.time())
        if told.is_set():
            if loop.time() - first < SAME_WORD:
                return
            log.error("told twice to stop: ending at once; what was running is recovered by others")
            os._exit(128 + number)
        told.set()

    def hear_late(number: int, _: object) -> None:
        loop.call_soon_threadsafe(hear, number)

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        try:
            loop.add_signal_handler(number, hear, number)
        except NotImplementedError:  # a loop without signals, as on Windows
            signal.signal(number, hear_late)
    task_status.started()
    try:
        await anyio.sleep_forever()
    finally:
        for number in numbers:
            with contextlib.suppress(NotImplementedError):
                loop.remove_signal_handler(number)
            signal.signal(number, before[number])


def _has_uvloop() -> bool:
    return find_spec("uvloop") is not None


def _serves(made: Worker) -> str:
    settings: Settings = made.settings
    where = "embedded PostgreSQL in " + str(settings.home) if settings.database_url is None else "PostgreSQL"
    flows: list[Workflow[..., Any]] = sorted(made.workflows, key=lambda flow: flow.name)
    lines = [
        f"worker {made.loop.id} on {where}, namespace {settings.namespace!r}, queues {', '.join(settings.queues)}, "
        f"{settings.concurrency} slots" + ("" if settings.coordinator else ", without coordinator")
    ]
    if made.lifespan is not None:
        lines.append(f"  lifespan {getattr(made.lifespan, '__name__', made.lifespan)}")
    if made.around:
        lines.append(f"  around each step: {', '.join(getattr(each, '__name__', repr(each)) for each in made.around)}")
    isolated = sorted(name for name, step in made.steps.items() if step.isolation == "process")
    if isolated:
        lines.append(f"  in processes, {made.loop.process_places} at a time: {', '.join(isolated)}")
    lines += [
        f"  workflow {flow.name} ({flow.module}): {', '.join(sorted(flow.steps)) or 'no steps'}" for flow in flows
    ]
    others = sorted(made.steps.keys() - {name for flow in flows for name in flow.steps})
    if others:
        lines.append(f"  steps of no workflow here: {', '.join(others)}")
    return "\n".join(lines)
