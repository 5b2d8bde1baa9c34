"""Ships one pod's log to EMEP, as agents do: from there it reaches the task's log and ``emep logs``.

The ledger keeps how much it has, so a triggerer that is killed leaves no gap and nothing twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from emep.runtime.kubernetes.client import KubeError, KubeUnreachableError
from emep.runtime.kubernetes.logs import TAIL_BYTES, LogLines, unseen
from emep.runtime.kubernetes.status import Phase, PodState

if TYPE_CHECKING:
    from emep.client import AsyncEmepClient
    from emep.triggers.pod_hub import PodHub

log = logging.getLogger(__name__)

QUIET_SECONDS = 600.0
"""A stream that is silent for as long is opened again: the connection may be gone without a word."""
PAUSE = 0.25
"""Between two pieces of a log, so that many small lines make few calls."""
PIECE = 512 * 1024


class PodLog:
    """The shipping of one container's log. ``state`` tells what the watch knows of the pod now."""

    def __init__(
        self,
        pods: PodHub,
        name: str,
        container: str,
        holder: AsyncEmepClient,
        allocation_id: str,
        state: Callable[[], PodState | None],
    ) -> None:
        self._pods, self._name, self._container = pods, name, container
        self._holder, self._allocation_id, self._state = holder, allocation_id, state
        self._lines = LogLines()
        self._offset = 0
        self._fresh_start = True

    async def ship(self) -> None:
        """Until the container has ended and all of its log is shipped. Outages cost time only."""
        pause = 0.5
        await self._resume()
        while True:
            try:
                await self._follow()
                pause = 0.5
            except (KubeError, KubeUnreachableError) as error:
                log.debug("the log of %s breaks off: %s", self._name, error)
                if isinstance(error, KubeError) and error.status == 404:
                    break
            state = self._state()
            if state is None or state.phase in (Phase.FINISHED, Phase.LOST):
                break
            await asyncio.sleep(pause)
            pause = min(5.0, pause * 2)
        await self._send(self._lines.finish(), final=True)

    async def close(self) -> None:
        """Nothing of it is wanted: say at once that nothing comes."""
        await self._resume()
        await self._send(b"", final=True)

    async def _resume(self) -> None:
        """How much the ledger has already."""
        from emep.client import EmepError, calls

        while True:
            try:
                found = await self._holder.raw(calls.allocation(self._allocation_id))
                self._offset = int(found["log_size"])
                start = max(0, self._offset - TAIL_BYTES)
                tail = await self._holder.logs(self._allocation_id, start) if self._offset else None
                self._tail = tail.text.encode() if tail is not None else b""
                return
            except EmepError as error:
                log.debug("the log of %s waits: %s", self._name, error)
                await asyncio.sleep(2.0)

    async def _follow(self) -> None:
        client = await self._pods.client()
        path = f"{self._pods.path}/{self._name}/log"
        query = {"container": self._container, "follow": "true", "timestamps": "true"}
        if self._fresh_start and self._offset:
            await self._catch_up(path)
        self._fresh_start = False
        self._lines.reopened()
        since = self._lines.since
        async with client.stream(path, silence=QUIET_SECONDS, **query, sinceTime=since) as chunks:
            async for chunk in chunks:
                if await self._send(self._lines.feed(chunk)):
                    await asyncio.sleep(PAUSE)

    async def _catch_up(self, path: str) -> None:
        """After a restart: what came while nobody read."""
        client = await self._pods.client()
        whole = bytearray()
        query = {"container": self._container, "timestamps": "true"}
        async with client.stream(path, silence=60.0, **query) as chunks:
            async for chunk in chunks:
                whole += self._lines.feed(chunk)
        # Half a line that the container has not ended yet comes again with the stream that follows.
        await self._send(unseen(bytes(whole), self._offset, self._tail))

    async def _send(self, data: bytes, *, final: bool = False) -> bool:
        """Append to the ledger's log, however long that takes; False where there was nothing."""
        from emep.client import EmepApiError, EmepError

        if not data and not final:
            return False
        pieces = [data[at : at + PIECE] for at in range(0, len(data), PIECE)] or [b""]
        for index, piece in enumerate(pieces):
            while True:
                last = final and index == len(pieces) - 1
                try:
                    receipt = await self._holder.append_logs(self._allocation_id, self._offset, piece, last)
                    self._offset = receipt.next_offset
                    break
                except EmepApiError as error:
                    if error.status < 500 and error.status != 429:
                        log.warning("the log of %s is not taken: %s", self._name, error)
                        return False
                except EmepError as error:
                    log.debug("the log of %s waits: %s", self._name, error)
                await asyncio.sleep(2.0)
        return True
