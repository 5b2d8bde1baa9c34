"""One watch of the ledger for all triggers of a triggerer: a single long poll of ``GET /jobs:changes``.

A thousand triggers that each poll delay the loop by a third of a second; one shared poll does not measurably.
Hubs are kept by event loop and connection. The hub's tasks run in an empty context, because the
triggerer finds a trigger's log by its context and the hub belongs to no trigger.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar
from weakref import WeakKeyDictionary

from emep.hooks.emep import async_client

if TYPE_CHECKING:
    from emep.client import AsyncEmepClient
    from emep.wire.allocations import LogChunk
    from emep.wire.jobs import Explanation, JobView

log = logging.getLogger(__name__)

POLL_SECONDS = 20.0
BEYOND = 2**53
"""Later than any cursor that there is."""
MAX_BACKOFF = 15.0
CONCURRENT_READS = 16
"""Log and job reads in flight for all triggers together."""
GATHER_SECONDS = 1.0
"""How long questions why a job waits are gathered: one plan answers all of them."""
EXPLAINED_AT_ONCE = 500


class Subscription:
    """One trigger's view of its job: the newest state that the hub has seen."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self.job: JobView | None = None
        self._news = asyncio.Event()

    def put(self, job: JobView) -> None:
        """Take a newer state of the job from the ledger."""
        self.job = job
        self._news.set()

    def wake(self) -> None:
        """Make the waiter read the job again, because its known state may be wrong."""
        self.job = None
        self._news.set()

    async def changed(self, within: float) -> bool:
        """Wait for news, at most ``within`` seconds; False when there was none."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._news.wait()
        news = self._news.is_set()
        self._news.clear()
        return news


class Hub:
    """The shared watch; get it with ``Hub.get``."""

    _hubs: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Hub]]] = WeakKeyDictionary()

    def __init__(self, conn_id: str) -> None:
        self.conn_id = conn_id
        self._client: AsyncEmepClient | None = None
        self._opening = asyncio.Lock()
        self._reads = asyncio.Semaphore(CONCURRENT_READS)
        self._subscriptions: dict[str, set[Subscription]] = {}
        self._watching = asyncio.Event()
        self._watch_task: asyncio.Task[None] | None = None
        self._cursor: int | None = None
        self._asked: dict[str, asyncio.Future[Explanation | None]] = {}
        self._asking: set[asyncio.Task[None]] = set()

    @classmethod
    async def get(cls, conn_id: str) -> Hub:
        """The hub of the running loop for a connection. Heavy modules are imported in a thread, once."""
        await asyncio.to_thread(_import_heavy_modules)
        hubs = cls._hubs.setdefault(asyncio.get_running_loop(), {})
        if conn_id not in hubs:
            hubs[conn_id] = cls(conn_id)
        return hubs[conn_id]

    @asynccontextmanager
    async def subscribe(self, job_id: str) -> AsyncIterator[Subscription]:
        """Watch a job while the block lasts. The first state comes as soon as the ledger answers."""
        subscription = Subscription(job_id)
        self._subscriptions.setdefault(job_id, set()).add(subscription)
        if self._watch_task is None or self._watch_task.done():
            # News from now on is enough: each subscriber reads its job once the watch has its cursor.
            self._watching.clear()
            self._cursor = None
            self._watch_task = asyncio.create_task(
                self._watch(), name=f"emep watch {self.conn_id}", context=contextvars.Context()
            )
        try:
            yield subscription
        finally:
            await self._leave(subscription)

    async def _leave(self, subscription: Subscription) -> None:
        others = self._subscriptions.get(subscription.job_id, set())
        others.discard(subscription)
        if not others:
            self._subscriptions.pop(subscription.job_id, None)
        if not self._subscriptions and self._watch_task is not None:
            task, self._watch_task = self._watch_task, None
            client, self._client = self._client, None
            task.cancel()
            if client is not None:
                await client.aclose()

    async def watching(self) -> None:
        """Wait until the watch has its cursor: whatever is read after this misses no change."""
        await self._watching.wait()

    async def job(self, job_id: str) -> JobView:
        """The job as the ledger has it now. Raises EmepApiError, EmepConnectionError."""
        client = await self.client()
        async with self._reads:
            return await client.job(job_id)

    async def logs(self, allocation_id: str, offset: int) -> LogChunk:
        """Text of an allocation's log from ``offset`` on. Raises EmepApiError, EmepConnectionError."""
        client = await self.client()
        async with self._reads:
            return await client.logs(allocation_id, offset)

    async def explanation(self, job_id: str) -> Explanation | None:
        """Why a job waits; None where no answer comes. Questions of a second are one call."""
        if not self._asked:
            task = asyncio.create_task(self._explain(), context=contextvars.Context())
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
        answer = self._asked.setdefault(job_id, asyncio.get_running_loop().create_future())
        # A trigger that is cancelled must not take the answer from another one of the same job.
        return await asyncio.shield(answer)

    async def _explain(self) -> None:
        await asyncio.sleep(GATHER_SECONDS)
        asked, self._asked = self._asked, {}
        found: dict[str, Explanation] = {}
        try:
            client = await self.client()
            ids = list(asked)
            for first in range(0, len(ids), EXPLAINED_AT_ONCE):
                answer = await client.explain_jobs(ids[first : first + EXPLAINED_AT_ONCE])
                found.update((one.job_id, one) for one in answer.items)
        except Exception as error:
            log.debug("EMEP does not say why jobs wait: %s", error)
        finally:
            for job_id, future in asked.items():
                if not future.done():
                    future.set_result(found.get(job_id))

    async def client(self) -> AsyncEmepClient:
        """The one client of this hub, opened at its first use."""
        async with self._opening:
            if self._client is None:
                self._client = await async_client(self.conn_id)
            return self._client

    async def _watch(self) -> None:
        """Poll for changes for ever; an outage of the API costs a growing pause, nothing else."""
        failures = 0
        while True:
            try:
                await self._poll_once()
                failures = 0
            except asyncio.CancelledError:
                raise
            except Exception as error:
                failures += 1
                pause = min(MAX_BACKOFF, 0.5 * 2 ** min(failures, 6)) * random.uniform(0.5, 1.0)
                log.warning("EMEP's ledger cannot be watched (%s); again in %.1f s", error, pause)
                if failures == 1:
                    await self._forget_client()
                await asyncio.sleep(pause)

    async def _poll_once(self) -> None:
        client = await self.client()
        if self._cursor is None:
            self._cursor = await _cursor_now(client)
            self._watching.set()
            for subscription in self._everybody():
                subscription.wake()
        changes = await client.changes(self._cursor, POLL_SECONDS)
        if changes.cursor < self._cursor:
            # The ledger began anew: what is known of any job may be wrong.
            for subscription in self._everybody():
                subscription.wake()
        self._cursor = changes.cursor
        for job in changes.jobs:
            for subscription in self._subscriptions.get(job.id, ()):
                subscription.put(job)

    def _everybody(self) -> list[Subscription]:
        return [subscription for group in self._subscriptions.values() for subscription in group]

    async def _forget_client(self) -> None:
        """Open a new client next time: the connection's host or password may have been corrected."""
        async with self._opening:
            if self._client is not None:
                client, self._client = self._client, None
                await client.aclose()


async def _cursor_now(client: AsyncEmepClient) -> int:
    """A cursor from which on no change is missed: beyond its newest the ledger answers with its newest."""
    return (await client.changes(BEYOND, 0)).cursor


def _import_heavy_modules() -> None:
    for name in ("emep.client", "emep.wire.documents"):
        import_module(name)
