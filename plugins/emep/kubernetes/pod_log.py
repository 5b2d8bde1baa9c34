"""Ships one pod's log to EMEP, as agents do: from there it reaches the task's log and ``emep logs``.

The ledger knows how much it has, so a killed triggerer causes neither a gap nor a repetition. If something
cannot be read, a line in the log itself says so: an empty log means that the container wrote nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from emep.kubernetes.client import KubeClient, KubeError
from emep.kubernetes.logs import TAIL_BYTES, LogLines, unseen
from emep.kubernetes.status import Phase, PodState

if TYPE_CHECKING:
    from emep.client import AsyncEmepClient

log = logging.getLogger(__name__)

QUIET_SECONDS = 600.0
"""Seconds after which a silent stream is opened again, because its connection may have died unnoticed."""
PAUSE = 0.25
"""Seconds between two pieces of a log, so that many small lines make few calls."""
PIECE = 512 * 1024
CONNECTED_SECONDS = 0.5
"""Seconds without a refusal after which a stream counts as open; a silent container sends nothing at all."""
READ_AGAIN = (0.3, 5.0)
"""Shortest and longest pause before a log that breaks off is read again, in seconds."""
ENDED_PATIENCE = 20.0
"""How long to ask for the log of an ended container while its node refuses it."""
NOTE = "[EMEP: "
NEWS_SECONDS = 30.0


class Place(Protocol):
    """Where pods are read."""

    @property
    def path(self) -> str:
        """Path of the namespace's pods."""

    async def client(self) -> KubeClient:
        """The cluster's API."""


class PodLog:
    """Ships one container's log.

    ``state`` returns the pod's known state, None once it is gone. ``news`` waits until that changes, at most
    so many seconds. ``holder`` is the ledger's client with the lease's token.
    """

    def __init__(
        self,
        place: Place,
        name: str,
        container: str,
        holder: Callable[[], Awaitable[AsyncEmepClient]],
        allocation_id: str,
        state: Callable[[], PodState | None],
        news: Callable[[float], Awaitable[None]],
    ) -> None:
        self._place, self._name, self._container = place, name, container
        self._holder, self._allocation_id, self._state, self._news = holder, allocation_id, state, news
        self._lines = LogLines()
        self._offset, self._tail = 0, b""
        self._fresh_start = True
        self._began = False
        self.attached = asyncio.Event()
        """The log is being read: what the container says from now on arrives, even when the pod goes."""

    async def ship(self) -> None:
        """Ship the log until the container has ended and all of it is sent. Outages cost only time."""
        try:
            await self._resume()
            if self._tail.rstrip(b"]\n").rpartition(b"\n")[2].startswith(NOTE.encode()):
                # The log was closed with a note: all that could be read is there.
                return
            await self._close_with(await self._read_all())
        finally:
            self.attached.set()

    async def close(self) -> None:
        """Close the log at once, because it is not to be kept."""
        self.attached.set()
        await self._resume()
        await self._send(b"", final=True)

    async def give_up(self, why: str) -> None:
        """Close the log as it is, and say why. ``ship`` must have been cancelled."""
        await self._resume()
        await self._close_with(why)

    # ---- reading -------------------------------------------------------------------------------------------

    async def _read_all(self) -> str:
        """Read to the end of the log; return why something is missing, or an empty text."""
        pause, trouble, whole, until = READ_AGAIN[0], "", False, float("inf")
        while True:
            state = self._state()
            ended = _has_ended(state)
            if ended and whole:
                return ""
            if state is None:
                return trouble or "the pod was gone before"
            self._began = self._began or state.began
            if state.phase in (Phase.WAITING, Phase.BROKEN):
                await self._news(NEWS_SECONDS)
                continue
            if ended:
                until = min(until, time.monotonic() + ENDED_PATIENCE)
            try:
                await self._follow()
                pause, trouble, whole = READ_AGAIN[0], "", True
            except Exception as error:
                log.debug("the log of %s breaks off: %s", self._name, error)
                if not (whole and isinstance(error, KubeError) and error.status in (400, 404)):
                    # Otherwise it was read to its end, and the node has cleared it away since.
                    trouble, whole = " ".join(str(error).split()) or type(error).__name__, False
                if time.monotonic() > until:
                    return trouble
            if not (whole and _has_ended(self._state())):
                # The watch reports an end a moment later than the stream.
                await self._news(3 * pause if whole else pause)
                pause = min(READ_AGAIN[1], pause * 2)

    async def _follow(self) -> None:
        client = await self._place.client()
        path = f"{self._place.path}/{self._name}/log"
        query = {"container": self._container, "follow": "true", "timestamps": "true"}
        if self._fresh_start and self._offset:
            await self._catch_up(path)
        self._fresh_start = False
        since = self._lines.since
        connected = asyncio.get_running_loop().call_later(CONNECTED_SECONDS, self.attached.set)
        try:
            async with client.stream(path, silence=QUIET_SECONDS, **query, sinceTime=since) as chunks:
                self.attached.set()
                self._lines.reopened()
                async for chunk in chunks:
                    if await self._send(self._lines.feed(chunk)):
                        await asyncio.sleep(PAUSE)
        finally:
            connected.cancel()

    async def _catch_up(self, path: str) -> None:
        """Read, after a restart, what the container wrote meanwhile."""
        client = await self._place.client()
        whole = bytearray()
        lines = LogLines()
        query = {"container": self._container, "timestamps": "true"}
        async with client.stream(path, silence=60.0, **query) as chunks:
            async for chunk in chunks:
                whole += lines.feed(chunk)
        self._lines = lines
        # Half a line that the container has not ended yet comes again with the stream that follows.
        await self._send(unseen(bytes(whole), self._offset, self._tail))

    # ---- writing -------------------------------------------------------------------------------------------

    async def _resume(self) -> None:
        """Ask the ledger how much it has already."""
        from emep.client import EmepError, calls

        while True:
            try:
                holder = await self._holder()
                found = await holder.raw(calls.allocation(self._allocation_id))
                self._offset = int(found["log_size"])
                self._began = self._began or found["first_heartbeat_at"] is not None
                start = max(0, self._offset - TAIL_BYTES)
                tail = await holder.logs(self._allocation_id, start) if self._offset else None
                self._tail = tail.text.encode() if tail is not None else b""
                return
            except (EmepError, RuntimeError) as error:
                # RuntimeError: the client was closed meanwhile, because its connection was opened anew.
                log.debug("the log of %s waits: %s", self._name, error)
                await asyncio.sleep(2.0)

    async def _close_with(self, why: str) -> None:
        """Send what is left, and the note where something is missing; nothing more comes."""
        rest = self._lines.finish()
        if why and (self._offset or rest or await self._has_begun()):
            what = "the rest of the log" if self._offset or rest else "the log"
            note = f"{NOTE}{what} of pod {self._name} could not be read: {why}]\n"
            rest += (b"\n" if rest or not self._ends_a_line() else b"") + note.encode()
        await self._send(rest, final=True)

    def _ends_a_line(self) -> bool:
        return not self._offset or self._tail.endswith(b"\n")

    async def _has_begun(self) -> bool:
        """Whether the container ever ran: the watch may have missed that, but the ledger knows heartbeats."""
        if not self._began:
            await self._resume()
        return self._began

    async def _send(self, data: bytes, *, final: bool = False) -> bool:
        """Append to the ledger's log, repeating until that succeeds; False if there was nothing to send."""
        if not data and not final:
            return False
        pieces = [data[at : at + PIECE] for at in range(0, len(data), PIECE)] or [b""]
        for index, piece in enumerate(pieces):
            if not await self._append(piece, final and index == len(pieces) - 1):
                return False
        self._tail = data[-TAIL_BYTES:] or self._tail
        return True

    async def _append(self, piece: bytes, final: bool) -> bool:
        from emep.client import EmepApiError, EmepError

        while True:
            try:
                holder = await self._holder()
                receipt = await holder.append_logs(self._allocation_id, self._offset, piece, final)
                self._offset = receipt.next_offset
                return True
            except EmepApiError as error:
                expected = error.problem.get("expected_offset")
                if isinstance(expected, int) and expected < self._offset:
                    # A ledger that was set back to an older copy: go on from what it has.
                    log.warning("the log of %s has lost %d bytes", self._name, self._offset - expected)
                    self._offset = expected
                    continue
                if error.status < 500 and error.status != 429:
                    log.warning("the log of %s is not taken: %s", self._name, error)
                    return False
            except (EmepError, RuntimeError) as error:
                log.debug("the log of %s waits: %s", self._name, error)
            await asyncio.sleep(2.0)


def _has_ended(state: PodState | None) -> bool:
    return state is None or state.phase in (Phase.FINISHED, Phase.LOST)
