"""The FastAPI app that the plugin mounts at ``/emep`` in Airflow's API server."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import AsyncIterator
from types import FrameType
from typing import Any

from fastapi import Depends, FastAPI
from starlette.concurrency import run_in_threadpool

from emep.api import problems
from emep.api.answers import describe
from emep.api.auth import authenticate
from emep.api.guarded import GuardedRoute
from emep.api.half_open import end_half_open
from emep.api.limits import EndUnread
from emep.api.routes import allocations, dead_letters, health, jobs, leases, nodes, pages, shares, system
from emep.api.runtime import Runtime

log = logging.getLogger(__name__)
PREFIX = "/api/v1"
LISTEN_SECONDS = 0.5


def create_app(runtime: Runtime | None = None) -> FastAPI:
    """The app; without a runtime it builds one on Airflow's database when the server starts."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        started = await run_in_threadpool(_start, app, runtime)
        listening = asyncio.create_task(_listen(started)) if started is not None else None
        with _answer_on_shutdown(started), end_half_open():
            yield
        if listening is not None:
            listening.cancel()
        if started is not None:
            await run_in_threadpool(started.stop)

    app = FastAPI(
        title="EMEP",
        version="1",
        description="GPU jobs: gang, fair share, preemption and NVLink-aware placement.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(authenticate)],
    )
    app.router.route_class = GuardedRoute
    app.add_middleware(EndUnread)
    problems.install(app)
    app.openapi = lambda: describe(app)  # type: ignore[method-assign]
    app.include_router(system.root)
    app.include_router(pages.router)
    for router in (
        jobs.router,
        nodes.router,
        health.router,
        allocations.router,
        leases.router,
        dead_letters.router,
        shares.router,
        system.v1,
    ):
        app.include_router(router, prefix=PREFIX)
    return app


async def _listen(runtime: Runtime) -> None:
    """Tell the scheduler's thread regularly that this event loop is not blocked."""
    while True:
        runtime.runner.heard()
        await asyncio.sleep(LISTEN_SECONDS)


def _start(app: FastAPI, given: Runtime | None) -> Runtime | None:
    """Start scheduling. An error must not keep Airflow from starting: every route then reports it (503)."""
    try:
        runtime = given or _production_runtime()
        runtime.start()
    except Exception as error:
        app.state.broken = str(error).splitlines()[0] if str(error) else type(error).__name__
        log.exception("EMEP does not schedule: %s", app.state.broken)
        return None
    app.state.runtime = runtime
    return runtime


def _production_runtime() -> Runtime:
    from airflow.configuration import conf
    from airflow.settings import get_engine

    from emep.settings import get_settings

    if "emep.db.EmepDBManager" not in conf.get("database", "external_db_managers", fallback=""):
        log.warning(
            "[database] external_db_managers does not name emep.db.EmepDBManager: "
            "`airflow db migrate` will not create or upgrade EMEP's tables"
        )
    return Runtime.build(get_engine(), get_settings())  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def _answer_on_shutdown(runtime: Runtime | None) -> Any:
    """Let long polls answer when the server is told to stop.

    It waits for them before it ends the lifespan.
    """
    if runtime is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {}

    def stop(number: int, frame: FrameType | None) -> None:
        # Not here: it takes locks, and the thread that a handler interrupts may be holding them.
        _thread.start_new_thread(runtime.follower.stop, ())
        handler = before.get(number)
        if callable(handler):
            handler(number, frame)

    for number in map(int, (signal.SIGTERM, signal.SIGINT)):
        handler = signal.getsignal(number)
        if callable(handler):
            before[number] = handler
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is stop:
                signal.signal(number, handler)
