"""Where settings become adapters and services: the only module that knows which store is which."""

from __future__ import annotations

import gc
import inspect
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import metadata
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.to_thread

from composer.coordinator.services import run_coordinator
from composer.define.context import NO_LIFESPAN
from composer.define.source import line_of, user_line
from composer.define.step import Step
from composer.define.surroundings import Around, Lifespan, Opener
from composer.define.workflow import Workflow
from composer.errors import LifespanError, PlanError, WorkerError
from composer.hosting import Hosted
from composer.ports.store import Store
from composer.settings import Settings, read_settings
from composer.worker import incarnation
from composer.worker.loop import WorkerLoop, steps_of
from composer.worker.processes import address_of

log = logging.getLogger("composer")


@asynccontextmanager
async def open_store(settings: Settings) -> AsyncGenerator[Store]:
    """The store the settings name, connected; the embedded server is started or joined, and its schema made."""
    # Here and not above: `import composer` loads no driver.
    from composer.postgres.store import PostgresStore

    async with _database(settings) as url:
        store = PostgresStore(
            url,
            namespace=settings.namespace,
            schema=settings.schema,
            pooler=settings.pooler,
            max_payload=settings.max_payload,
            # Nobody runs migrations for a server that nobody set up.
            migrate_first=settings.database_url is None,
        )
        await store.open()
        try:
            yield store
        finally:
            await store.close()


async def migrate(settings: Settings) -> list[str]:
    """Brings the schema of the settings' database up to this release. Returns the names of the migrations applied."""
    from composer.postgres.migrate import migrate_at

    async with _database(settings) as url:
        return await migrate_at(url, settings.schema)


async def examine(settings: Settings) -> Sequence[Any]:
    """What the database's settings and state mean, as postgres.doctor.Finding."""
    from composer.postgres import doctor

    async with _database(settings) as url:
        found = await doctor.examine(url, schema=settings.schema, namespace=settings.namespace)
    other = other_composer()
    return [*found, doctor.Finding("distribution", doctor.Level.PROBLEM, other)] if other else found


@asynccontextmanager
async def _database(settings: Settings) -> AsyncGenerator[str]:
    """The URL of the settings' database, the embedded one kept running meanwhile."""
    if settings.database_url is not None:
        yield settings.database_url
        return
    from composer.postgres.embedded import EmbeddedPostgres

    server = EmbeddedPostgres(settings.home)
    url = await anyio.to_thread.run_sync(server.start)
    try:
        yield url
    finally:
        await anyio.to_thread.run_sync(server.close)


class Worker:
    """A worker inside this process: in an application, a notebook, a test. An async context manager.

    Runs the steps of `workflows` (and any `steps` beside them), and the coordinator's loops unless the settings say
    otherwise. On the way out it stops taking tasks, lets running steps finish for the grace time and gives back the rest.
    It hears no signals: those are the process's. Several may run in a process, also on one store.

    `lifespan`, a function under @lifespan or any other that gives an async context manager, is entered before the first
    task is taken and left after the last body has ended; its value is step_context().resources. `around` is what stands
    around each attempt, the outermost first. Entering raises LifespanError when the lifespan fails.
    """

    def __init__(
        self,
        workflows: Sequence[Workflow[..., Any]],
        settings: Settings | None = None,
        *,
        steps: Sequence[Step[..., Any]] = (),
        lifespan: Opener | None = None,
        around: Sequence[Around] = (),
        store: Store | None = None,
        **options: Any,
    ) -> None:
        if lifespan is not None and not isinstance(lifespan, Lifespan) and inspect.isasyncgenfunction(lifespan):
            raise PlanError(
                f"Worker(lifespan={lifespan.__name__}): it is a bare async generator function",
                "Put @lifespan above it.",
                str(user_line()),
            )
        self.settings = settings or read_settings(**options)
        self.workflows = list(workflows)
        self.steps = steps_of(self.workflows, steps)
        self.lifespan = lifespan
        self.around = list(around)
        for step in self.steps.values():
            if step.isolation == "process":
                address_of(step)
        self._given = store
        self._hosted: Hosted | None = None
        self._loop: WorkerLoop | None = None
        self._stopped = anyio.Event()

    async def __aenter__(self) -> Self:
        return await self._open(guard=True)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._hosted is not None
        await self._hosted.leave(error)

    async def start(self) -> Self:
        """Starts it where no block can be, as in a cell of a notebook; it works in this loop until `stop`."""
        return await self._open(guard=False)

    async def stop(self) -> None:
        """Ends what `start` began, as the end of the block does. Raises what ended the worker before that, if anything did."""
        if self._hosted is None:
            raise WorkerError("the worker was not started: `await worker.start()` comes before `await worker.stop()`")
        if self._hosted.is_elsewhere:
            raise WorkerError(
                "the worker runs in another event loop than this one: stop it in the one it was started in"
            )
        await self._hosted.leave()

    async def _open(self, *, guard: bool) -> Self:
        if self._hosted is not None:
            raise WorkerError("a worker runs once: make another Worker to start again")
        if incarnation.step_process_of is not None:
            raise PlanError(
                "a Worker was started while the process of a step (isolation='process') imported its modules",
                'Such a process imports the script its worker was started from: put what starts it under `if __name__ == "__main__":`.',
                str(user_line()),
            )
        self._hosted = Hosted(self._running(), "composer worker")
        await self._hosted.enter(guard=guard)
        return self

    @asynccontextmanager
    async def _running(self) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            given = self._given
            store: Store = given if given is not None else await stack.enter_async_context(open_store(self.settings))
            resources = NO_LIFESPAN
            if self.lifespan is not None:
                resources = await stack.enter_async_context(_opened(self.lifespan))
            self._loop = WorkerLoop(store, self.settings, self.steps, resources=resources, around=self.around)
            for workflow in self.workflows:
                # A start by name, from a process without the code, needs the plan stored.
                await store.register_plan(workflow.plan)
            services = await stack.enter_async_context(anyio.create_task_group())
            services.start_soon(store.listen)
            if self.settings.coordinator:
                services.start_soon(run_coordinator, store, self.settings)
            services.start_soon(self._work)
            yield
            assert self._hosted is not None
            if not self._hosted.in_haste:
                self.drain()
                await self._stopped.wait()
            services.cancel_scope.cancel()

    async def _work(self) -> None:
        try:
            await self.loop.run()
        finally:
            self._stopped.set()

    @property
    def loop(self) -> WorkerLoop:
        """The running loop. Raises WorkerError before the worker is started."""
        if self._loop is None:
            raise WorkerError("the worker is not running: use it as `async with Worker([flow]):`")
        return self._loop

    @property
    def store(self) -> Store:
        """The store it works on: AsyncClient(store=worker.store) shares it, and hears ends without a notification."""
        return self.loop._store

    def drain(self) -> None:
        """No new tasks from now on."""
        self.loop.drain()

    async def wait_stopped(self) -> None:
        """Returns once the worker has drained."""
        await self._stopped.wait()


@asynccontextmanager
async def _opened(lifespan: Opener) -> AsyncGenerator[Any]:
    """What a lifespan yields, opened and closed with errors that say which it was."""
    async with AsyncExitStack() as stack:
        try:
            resources = await stack.enter_async_context(lifespan())
        except Exception as error:
            raise _lifespan_failed(lifespan, "opening", error) from error
        yield resources
        try:
            await stack.aclose()
        except Exception as error:
            raise _lifespan_failed(lifespan, "closing", error) from error


def _lifespan_failed(lifespan: Opener, phase: str, error: Exception) -> LifespanError:
    name, where = repr(lifespan), ""
    if isinstance(lifespan, Lifespan):
        name, where = f"{lifespan.name} of {lifespan.module}", lifespan.where
    return LifespanError(name, phase, f"{type(error).__name__}: {error}", line_of(error) or where)


def calm_collector() -> None:
    """Has the garbage collector look less often, in a process that is Composer's own.

    A worker makes some hundred short-lived objects a step and hardly a cycle; with Python's defaults it spends a tenth
    of its time looking for some. What was imported lives for ever and is not looked at again.
    """
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)


def other_composer() -> str | None:
    """A warning when another distribution that is imported as `composer` is installed beside this one, else None."""
    try:
        other = metadata.version("composer")
    except metadata.PackageNotFoundError:
        return None
    return (
        f"the distribution 'composer' {other} is installed too: it is another project with the same import name, and files of "
        "the two overwrite each other. Uninstall both, then install composer-workflows"
    )
