"""Ships a run's log to the API, by byte offset, from where the API's copy ends."""

from __future__ import annotations

import asyncio
import logging

from emep.agent.folders import RunFolder
from emep.client import AsyncEmepClient, EmepApiError, EmepConnectionError

log = logging.getLogger(__name__)

BATCH_SECONDS = 0.5
BATCH_BYTES = 256 * 1024
_RETRY_FIRST, _RETRY_MAXIMUM = 0.5, 5.0


class LogShipper:
    """One run's log. ``client`` calls with the run's lease token.

    It waits for an API that is away, for ever. If the API refuses (the lease is no longer this run's), the
    shipping ends, because the ledger keeps no more of that log.
    """

    def __init__(self, client: AsyncEmepClient, allocation_id: str, folder: RunFolder) -> None:
        self._client, self._allocation, self._folder = client, allocation_id, folder
        self._offset = folder.shipped()
        self._batch = BATCH_BYTES
        self._finishing = asyncio.Event()
        self.refused = False
        self._unreadable = False

    def finish(self) -> None:
        """Mark the log as complete: ``run`` returns once the API has all of it."""
        self._finishing.set()

    async def run(self) -> None:
        """Ship until ``finish`` was called and the end is reached, or the API refuses."""
        pause = _RETRY_FIRST
        while not self.refused:
            last_round = self._finishing.is_set()
            chunk = await asyncio.to_thread(self._read)
            if not chunk and not last_round:
                await self._idle()
                continue
            try:
                # The empty batch at the end says that it is the end.
                if await self._send(chunk, final=not chunk):
                    return
                pause = _RETRY_FIRST
            except (EmepConnectionError, EmepApiError) as error:
                log.warning("log of %s: %s; trying again", self._allocation, error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, _RETRY_MAXIMUM)

    async def _idle(self) -> None:
        """Wait for more to gather, or for the end."""
        try:
            async with asyncio.timeout(BATCH_SECONDS):
                await self._finishing.wait()
        except TimeoutError:
            return

    def _read(self) -> bytes:
        try:
            with self._folder.log.open("rb") as file:
                file.seek(self._offset)
                return file.read(self._batch)
        except FileNotFoundError:
            return b""
        except OSError as error:
            # A disk that fails: the rest cannot be had, and the run's end must not wait for it.
            if not self._unreadable:
                log.warning("log of %s cannot be read: %s", self._allocation, error)
            self._unreadable = True
            return b""

    async def _send(self, chunk: bytes, *, final: bool) -> bool:
        """Send one batch; True once the API has all of it. Raises errors that are worth another try."""
        try:
            receipt = await self._client.append_logs(self._allocation, self._offset, chunk, final)
        except EmepApiError as error:
            if error.status == 413 and self._batch > 1024:
                self._batch //= 2
            elif error.status == 409 and isinstance(error.problem.get("expected_offset"), int):
                self._move(error.problem["expected_offset"])
            elif error.status >= 500 or error.status in (408, 425, 429):
                raise
            else:
                log.warning("log of %s is not wanted any more: %s", self._allocation, error)
                self.refused = True
            return False
        self._move(receipt.next_offset)
        return final

    def _move(self, offset: int) -> None:
        """Continue where the API's copy ends; after a restore that may be before this agent's offset."""
        self._offset = max(0, offset)
        try:
            self._folder.set_shipped(self._offset)
        except OSError as error:
            # Only a restarted agent would miss it, and then the API says where its copy ends.
            log.warning("log of %s: %s", self._allocation, error)
