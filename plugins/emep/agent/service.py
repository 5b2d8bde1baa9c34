"""The agent itself: registers the node, reports its health, takes orders, and keeps the runs."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from contextlib import suppress

from emep.agent.environment import engine_environment
from emep.agent.folders import Key, RunFolders
from emep.agent.node import NodeReporter
from emep.agent.run import Launch, Run, describe
from emep.agent.settings import AgentSettings, AgentStartError
from emep.agent.telemetry import Telemetry
from emep.client import AsyncEmepClient, EmepError, agent_token
from emep.client.retry import NO_RETRY
from emep.wire.base import Directive
from emep.wire.nodes import PollAnswer, PollRequest, RunningAllocation, StartOrder, StopOrder

log = logging.getLogger(__name__)

_QUIET_PAUSE = 1.0
"""Seconds between polls while the API repeats orders that are being carried out."""
_DRAIN_SECONDS = 1.0
_FAREWELL_SECONDS = 10.0
"""How long an agent that is told to end waits for an API that does not answer."""
_BACKOFF_FIRST, _BACKOFF_MAXIMUM = 0.5, 10.0
CLEAN_EVERY = 3600.0
KEPT_ORDER_SECONDS = 10.0
"""How long an order that waits for its GPU stays valid without being repeated."""


class Agent:
    """One node's agent. ``run`` returns once ``stop`` was called and everything it started has ended."""

    def __init__(self, settings: AgentSettings, telemetry: Telemetry, folders: RunFolders) -> None:
        self._settings, self._telemetry, self._folders = settings, telemetry, folders
        self._client = AsyncEmepClient(settings.api_url, agent_token(settings.secret), retry=NO_RETRY)
        self._node = NodeReporter(settings, telemetry, self._client)
        self._runs: dict[Key, Run] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        """Set when the running work has changed, so that the poll under way is out of date."""
        self._waiting: dict[Key, tuple[float, StartOrder]] = {}
        """Orders whose GPU is not free yet, and when each came."""
        self._gave_up = False
        """True if the last poll was abandoned: its answer, if there was one, is not carried out."""
        self._stopping = asyncio.Event()
        self._at_once = False
        self._draining: set[asyncio.Task[None]] = set()

    def stop(self, *, at_once: bool = False) -> None:
        """End every run (checkpoint first, unless ``at_once``), then the agent. May be called again."""
        self._at_once = self._at_once or at_once
        self._stopping.set()
        for run in list(self._runs.values()):
            self._stop_run(run)
        self._changed.set()

    async def run(self) -> None:
        """Serve until stopped. Raises AgentStartError if the API refuses, or is not there in time."""
        try:
            self._adopt()
            if not await self._register():
                return
            async with asyncio.TaskGroup() as group:
                reporting = self._node.report_for_ever(self._sessions)
                loops = [group.create_task(reporting), group.create_task(self._clean())]
                if self._settings.report_only:
                    await self._stopping.wait()
                else:
                    await self._take_orders()
                for loop in loops:
                    loop.cancel()
        finally:
            left = [*self._tasks.values(), *self._draining]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            await self._client.aclose()

    # --- runs -----------------------------------------------------------------------------------------------

    def _adopt(self) -> None:
        """Adopt the runs that an earlier agent of this node started, and drop those it did not start."""
        for folder in self._folders.all():
            if folder.path.name.startswith("."):
                continue
            order = folder.order()
            if folder.done() is not None:
                continue
            if order is None or folder.claim() is None:
                # Never started. If it is still wanted the API repeats the order.
                self._folders.discard(folder)
                continue
            run = Run(order, folder, self._client)
            log.info("%s (epoch %d) is adopted: %s", *run.key, describe(order))
            self._keep(run, asyncio.create_task(run.adopt()))

    def _keep(self, run: Run, task: asyncio.Task[None]) -> None:
        self._runs[run.key], self._tasks[run.key] = run, task

        async def follow() -> None:
            await run.let_go.wait()
            self._start_waiting()
            await run.gone.wait()
            self._changed.set()

        follower = asyncio.create_task(follow())

        def over(done: asyncio.Task[None]) -> None:
            follower.cancel()
            self._runs.pop(run.key, None)
            self._tasks.pop(run.key, None)
            self._changed.set()
            if not done.cancelled() and (error := done.exception()) is not None:
                log.error("%s: watching epoch %d failed", *run.key, exc_info=error)

        task.add_done_callback(over)

    def _stop_run(self, run: Run) -> None:
        directive = Directive.ABORT if self._at_once else Directive.CHECKPOINT_AND_EXIT
        run.stop(
            directive, self._settings.stop_grace, note=f"the agent of node {self._settings.name} was stopped"
        )

    def _listed(self) -> list[RunningAllocation]:
        """Runs that are active or may still start. The API gives the GPUs of all others to other jobs."""
        now = time.monotonic()
        self._waiting = {
            key: kept for key, kept in self._waiting.items() if now - kept[0] < KEPT_ORDER_SECONDS
        }
        keys = [run.key for run in self._runs.values() if run.listed]
        keys += [key for key in self._waiting if key not in self._runs]
        return [RunningAllocation(allocation_id=name, epoch=epoch) for name, epoch in keys]

    def _start(self, order: StartOrder) -> bool:
        """Carry out a start order; False if there is nothing to do (yet)."""
        key = (order.allocation_id, order.epoch)
        if key in self._runs or self._stopping.is_set():
            return False
        problem = self._mismatch(order)
        if problem is None and (holder := self._holder_of(order)) is not None:
            # What ran there before has not ended; the order is repeated until it has.
            if key not in self._waiting:
                log.info("%s waits: its GPU is still held by %s (epoch %d)", key[0], *holder)
            self._waiting[key] = (time.monotonic(), order)
            return False
        try:
            folder = self._folders.create(order)
        except OSError as error:
            log.error("%s cannot be started, it is tried again: %s", key[0], error)
            self._node.cannot_start = f"the agent's state folder takes nothing: {error.strerror or error}"
            return False
        if folder is None:
            return False
        run = Run(order, folder, self._client)
        if problem is not None:
            log.error("%s: %s", key[0], problem)
            self._keep(run, asyncio.create_task(run.refuse(problem)))
            return True
        log.info("%s (epoch %d) starts: %s", *key, describe(order))
        environment = engine_environment(
            order,
            os.environ,
            api_url=self._client.api_url,
            result_path=str(folder.result),
            devices=self._telemetry.device_environment([gpu.index for gpu in order.gpus]),
            passed=self._settings.pass_environment,
        )
        if self._settings.require_landlock:
            environment["EMEP_REQUIRE_LANDLOCK"] = "1"
        run_as = self._settings.run_as
        if run_as is not None:
            environment |= run_as.environment()
            try:
                run_as.prepare(environment)
            except OSError as error:
                problem = (
                    f"its folder {error.filename} cannot be made for user {run_as.name}: {error.strerror}"
                )
                log.error("%s: %s", key[0], problem)
                self._keep(run, asyncio.create_task(run.refuse(problem)))
                return True
        launch = Launch(self._settings.engine_command, environment, run_as.words if run_as else None)
        self._keep(run, asyncio.create_task(run.start(launch)))
        return True

    def _start_waiting(self) -> None:
        """Start orders whose GPU is free now, without waiting until the API repeats them.

        If an order was withdrawn meanwhile, the next poll's answer stops its run.
        """
        waiting, self._waiting = self._waiting, {}
        for came_at, order in waiting.values():
            if time.monotonic() - came_at < KEPT_ORDER_SECONDS:
                self._start(order)

    def _mismatch(self, order: StartOrder) -> str | None:
        """Why the granted GPUs are not this node's, in a sentence."""
        for gpu in order.gpus:
            own = self._node.gpus.get(gpu.index)
            if own is None:
                return f"node {self._settings.name} has no GPU {gpu.index}, which was granted"
            if own.uuid != gpu.uuid:
                return (
                    f"GPU {gpu.index} of node {self._settings.name} is {own.uuid}, "
                    f"but {gpu.uuid} was granted: the node's GPUs have changed"
                )
        return None

    def _holder_of(self, order: StartOrder) -> Key | None:
        wanted = {gpu.index for gpu in order.gpus}
        for run in self._runs.values():
            if not run.let_go.is_set() and wanted & {gpu.index for gpu in run.order.gpus}:
                return run.key
        return None

    # --- orders ---------------------------------------------------------------------------------------------

    async def _register(self) -> bool:
        """Register. If the API is away, wait for it a little, or for ever if runs must be watched.

        False if the agent was stopped meanwhile and nothing runs.
        """
        deadline = time.monotonic() + self._settings.connect_patience
        pause = _BACKOFF_FIRST
        while not (self._stopping.is_set() and not self._runs):
            self._changed.clear()
            problem = await self._node.register()
            if problem is None:
                return True
            if not self._runs and time.monotonic() > deadline:
                raise AgentStartError(str(problem))
            log.warning("%s; trying again", problem)
            await self._sleep(pause)
            pause = min(pause * 2, _BACKOFF_MAXIMUM)
        return False

    def _sessions(self) -> dict[int, int]:
        """GPU index -> session of the run that holds it."""
        return {
            gpu.index: run.session
            for run in self._runs.values()
            if run.listed and run.session is not None
            for gpu in run.order.gpus
        }

    async def _take_orders(self) -> None:
        """Poll until the agent was told to stop and nothing runs any more."""
        pause = _BACKOFF_FIRST
        while not (self._stopping.is_set() and not self._listed()):
            try:
                news = await self._poll_once()
            except EmepError as error:
                log.warning("poll: %s; trying again", error)
                await self._node.register_if_unknown(error)
                await self._sleep(pause)
                pause = min(pause * 2, _BACKOFF_MAXIMUM)
                continue
            pause = _BACKOFF_FIRST
            if not news:
                await self._sleep(_QUIET_PAUSE)
        await self._say_farewell()

    async def _poll_once(self) -> bool:
        """One long poll, abandoned once its list is out of date. False if it brought only known orders."""
        self._changed.clear()
        request = PollRequest(
            running=self._listed(), timeout=self._settings.poll_timeout, gave_up=self._gave_up
        )
        polling = asyncio.create_task(self._client.poll(self._settings.name, request))
        changed = asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait([polling, changed], return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
            self._gave_up = not polling.done()
            if self._gave_up:
                self._drain(polling)
        return not polling.done() or self._carry_out(polling.result())

    def _drain(self, polling: asyncio.Task[PollAnswer]) -> None:
        """Let an abandoned poll end by itself, and ignore its answer.

        Its start orders are not carried out: the next poll did not list them, so their GPUs may belong to
        another job by now. The next poll says that this one was abandoned, and gets the orders again.
        """

        async def drain() -> None:
            with suppress(EmepError, TimeoutError):
                async with asyncio.timeout(_DRAIN_SECONDS):
                    answer = await polling
                    self._carry_out(
                        PollAnswer(orders=[one for one in answer.orders if isinstance(one, StopOrder)])
                    )

        task = asyncio.create_task(drain())
        self._draining.add(task)
        task.add_done_callback(self._draining.discard)

    def _carry_out(self, answer: PollAnswer) -> bool:
        """Carry out the answer's orders; False if all of them are being carried out already."""
        carried_out = [
            self._start(order) if isinstance(order, StartOrder) else self._carry_out_stop(order)
            for order in answer.orders
        ]
        if any(carried_out):
            self._changed.set()
        return not answer.orders or any(carried_out)

    def _carry_out_stop(self, order: StopOrder) -> bool:
        key = (order.allocation_id, order.epoch)
        if self._waiting.pop(key, None) is not None:
            return True
        run = self._runs.get(key)
        return run is not None and run.stop(order.directive, order.grace_seconds)

    async def _say_farewell(self) -> None:
        """Send the last reports, then report that nothing runs here; the machine may be shutting down."""
        with suppress(TimeoutError):
            async with asyncio.timeout(5.0):
                if self._tasks:
                    await asyncio.wait(list(self._tasks.values()))
        with suppress(EmepError, TimeoutError):
            async with asyncio.timeout(_FAREWELL_SECONDS):
                await self._client.poll(
                    self._settings.name, PollRequest(running=self._listed(), timeout=0, leaving=True)
                )

    async def _clean(self) -> None:
        while True:
            try:
                removed = await asyncio.to_thread(self._folders.clean, time.time())
            except OSError as error:
                log.warning("old run folders cannot be removed: %s", error)
            else:
                if removed:
                    log.info("%d old run folders removed", removed)
            await asyncio.sleep(CLEAN_EVERY)

    async def _sleep(self, seconds: float) -> None:
        """Wait until the time is over, the agent is told to stop, or the running work changes."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
