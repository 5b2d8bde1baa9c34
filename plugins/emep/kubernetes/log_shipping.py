"""The shipping of a pod's log as a task beside its trigger, from the pod's creation to its last line.

It depends neither on the job's state nor on what the trigger does meanwhile: work that ends in its first
second has been requeued or completed before the cluster says that it ran. The cluster keeps no log of a
deleted pod, so code that deletes a pod awaits ``before_end`` first.
"""

from __future__ import annotations

import asyncio
import base64
import contextvars
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from emep.kubernetes import status
from emep.kubernetes.client import KubeError, KubeUnreachableError
from emep.kubernetes.manifest import LOG_OF, TOKEN_KEY
from emep.kubernetes.pod_log import Place, PodLog
from emep.kubernetes.status import Phase, PodState

if TYPE_CHECKING:
    from emep.client import AsyncEmepClient

log = logging.getLogger(__name__)

ATTACH_SECONDS = 2.5
"""How long a pod's end waits for its log to be opened; in a container's first second that is impossible."""
REST_SECONDS = 15.0
"""Seconds for the rest of the log of a pod that has ended."""
NOTE_SECONDS = 5.0
"""For the line that says that a log is not whole."""


class LogShipping:
    """Reads one pod's log into the ledger; ``wake`` it when something of the pod has changed."""

    def __init__(
        self,
        place: Place,
        name: str,
        container: str,
        holder: Callable[[], Awaitable[AsyncEmepClient]],
        allocation_id: str,
        state: Callable[[], PodState | None],
    ) -> None:
        self._news = asyncio.Event()
        self._state = state
        self._log = PodLog(place, name, container, holder, allocation_id, state, self._wait)
        self._task: asyncio.Task[None] | None = None

    def start(self, *, wanted: bool = True) -> None:
        """Begin, or begin again after a failure. ``wanted`` false: close the log, which stays empty."""
        if self._task is not None and not _has_failed(self._task):
            return
        work = self._log.ship() if wanted else self._log.close()
        # A trigger finds its log by its context; lines of this task do not belong there.
        self._task = asyncio.create_task(work, context=contextvars.Context())

    def wake(self) -> None:
        """Something of the pod has changed."""
        self._news.set()

    async def _wait(self, seconds: float) -> None:
        await _within(self._news.wait(), seconds)
        self._news.clear()

    @property
    def is_done(self) -> bool:
        """Whether nothing more is sent."""
        return self._task is None or self._task.done()

    async def before_end(self) -> None:
        """Wait until the pod may be told to end, or deleted, without its log being lost; some seconds."""
        state = self._state()
        if self.is_done or state is None or not state.placed or state.phase is Phase.BROKEN:
            return
        if state.phase in (Phase.FINISHED, Phase.LOST):
            await self.shipped(REST_SECONDS)
        else:
            await _within(self._log.attached.wait(), ATTACH_SECONDS)

    async def shipped(self, within: float) -> None:
        """Wait until all of the log is in the ledger, at most so many seconds."""
        if self._task is not None and not self._task.done():
            await asyncio.wait({self._task}, timeout=within)

    async def finish(self, within: float, why: str) -> None:
        """As ``shipped``; a log that is not whole by then is closed with ``why``."""
        await self.shipped(within)
        if self._task is not None and (not self._task.done() or _has_failed(self._task)):
            await self.close()
            try:
                await _within(self._log.give_up(why), NOTE_SECONDS)
            except Exception as error:
                log.warning("that a log is not whole cannot be told: %s", error)

    async def close(self) -> None:
        """Stop. The next trigger that adopts the pod continues from what the ledger has."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


async def adopted(
    place: Place,
    pod: Mapping[str, Any],
    ledger: Callable[[], Awaitable[AsyncEmepClient]],
    state: Callable[[str], PodState | None],
) -> LogShipping | None:
    """Start shipping the log of a pod whose lease was over before this trigger knew it; None if it cannot.

    The ledger gives out no token of a lease that is over, but the pod's own Secret has it. ``state`` is
    called with the container's name.
    """
    from emep.client import lease_token

    metadata = pod["metadata"]
    container = str((metadata.get("annotations") or {}).get(LOG_OF, "base"))
    if not container:
        return None
    name, allocation_id = str(metadata["name"]), status.identity(pod)[1]
    path = place.path.removesuffix("/pods") + f"/secrets/{name}"
    try:
        secret = await (await place.client()).get(path)
        token = base64.b64decode(secret["data"][TOKEN_KEY]).decode()
    except (KubeError, KubeUnreachableError, KeyError, ValueError) as error:
        log.warning("the log of pod %s cannot be kept, its Secret cannot be read: %s", name, error)
        return None

    async def holder() -> AsyncEmepClient:
        return (await ledger()).as_caller(lease_token(token))

    shipping = LogShipping(place, name, container, holder, allocation_id, lambda: state(container))
    shipping.start()
    return shipping


async def _within(work: Awaitable[Any], seconds: float) -> None:
    """Await something, at most so long."""
    try:
        async with asyncio.timeout(seconds):
            await work
    except TimeoutError:
        return


def _has_failed(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None
