"""Logs of allocations, kept in the database so that any API server can take them and show them.

A log may grow as long as its work runs. The newest bytes are kept, and a line marks where older ones were
cut.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from emep.ledger.context import LedgerContext
from emep.ledger.states import LIVE_ALLOCATION_STATES, AllocationState
from emep.ledger.store.database import Transaction
from emep.ledger.store.repository import get_allocation
from emep.ledger.store.tables import Allocation
from emep.ledger.store.tables import LogChunk as Row
from emep.wire.allocations import LogChunk
from emep.wire.errors import ConflictError

READ_BYTES = 256 * 1024
TAIL_SECONDS = 5.0
"""How long after an allocation's end its readers wait for the rest of its log, where nothing closed it."""
LATE_SECONDS = 60.0
"""How long after the end of an allocation the rest of its log is taken, unless it was closed."""
POD_SECONDS = 3600.0
"""The same for a pod: its log is in the cluster until a triggerer has read it, which then closes it here."""
PIECE_BYTES = 4096
"""Shorter pieces share a row, so that their number is bounded too."""


@dataclass
class _Part:
    """A contiguous piece of a log."""

    data: bytes
    begin: int
    """Where they begin."""
    cut: int
    """How many bytes before them were requested but are no longer kept."""


class Logs:
    """Keeps and reads the logs of allocations."""

    def __init__(self, context: LedgerContext) -> None:
        self._context = context

    def append(self, allocation_id: str, offset: int, data: bytes, *, final: bool = False) -> int:
        """Add bytes that begin at ``offset``, skip those stored before, and return the next offset.

        ``final``: the log is complete with these bytes. The newest ``max_log_bytes`` are kept.

        Raises ConflictError with ``expected_offset`` where bytes are missing before ``offset``, and (code
        ``log_closed``) for new bytes of a log whose allocation is over: at once where it was closed, after
        ``LATE_SECONDS`` (a pod's: ``POD_SECONDS``) otherwise.
        """

        def work(tx: Transaction) -> int:
            allocation = get_allocation(tx.session, allocation_id, lock=True)
            size = allocation.log_size
            if offset > size:
                raise ConflictError(
                    f"offset: {offset} leaves a gap, the log has {size} bytes so far; send from there",
                    code="log_gap",
                    field="offset",
                    expected_offset=size,
                )
            fresh = data[size - offset :]
            if fresh:
                self._check_open(allocation)
            if final and not allocation.log_closed:
                allocation.log_closed = True
            if not fresh:
                return size
            self._keep(tx.session, allocation, fresh)
            return size + len(fresh)

        return self._context.database.write(work)

    def _check_open(self, allocation: Allocation) -> None:
        if AllocationState(allocation.state) in LIVE_ALLOCATION_STATES:
            return
        late = self._context.now - (allocation.ended_at or self._context.now)
        limit = POD_SECONDS if allocation.runtime == "kubernetes" else LATE_SECONDS
        if allocation.log_closed or late > limit:
            raise ConflictError(
                f"allocation {allocation.id} is {allocation.state}: its lease is over, and its log "
                "accepts no more",
                code="log_closed",
            )

    def _keep(self, session: Session, allocation: Allocation, fresh: bytes) -> None:
        """Write new bytes down, and forget pieces that are wholly older than the newest that are kept."""
        most, size = self._context.settings.max_log_bytes, allocation.log_size
        allocation.log_size = size + len(fresh)
        fresh = fresh[-most:]
        begin = allocation.log_size - len(fresh)
        last = _short_piece_before(session, allocation.id, begin) if len(fresh) < PIECE_BYTES else None
        if last is None:
            row = Row(allocation_id=allocation.id, chunk_offset=begin, size=len(fresh), data=fresh)
            session.add(row)
        else:
            last.data, last.size = last.data + fresh, last.size + len(fresh)
        floor = allocation.log_size - most
        if floor > 0:
            session.flush()
            session.execute(
                delete(Row)
                .where(Row.allocation_id == allocation.id, Row.chunk_offset + Row.size <= floor)
                .execution_options(synchronize_session=False)
            )

    def read(self, allocation_id: str, offset: int) -> LogChunk:
        """Text from a byte offset on, at most 256 KiB, never half a character.

        Bytes that are not kept any more are named in one line of their own. ``complete`` once the allocation
        is over, nothing more comes, and all of it has been read.
        """
        with self._context.database.read() as session:
            allocation = get_allocation(session, allocation_id)
            part = _read(session, allocation, offset)
        is_over = AllocationState(allocation.state) not in LIVE_ALLOCATION_STATES
        at_end = part.begin + len(part.data) >= allocation.log_size
        text, used = _decode(part.data, final=at_end and is_over)
        if part.cut:
            most = self._context.settings.max_log_bytes
            text = f"[{part.cut} bytes of this log were not kept: a log keeps its newest {most}]\n{text}"
        end = part.begin + used
        is_closed = (
            allocation.log_closed
            or self._context.now - (allocation.ended_at or self._context.now) >= TAIL_SECONDS
        )
        complete = is_over and is_closed and end >= allocation.log_size
        return LogChunk(text=text, next_offset=end, complete=complete)


def _short_piece_before(session: Session, allocation_id: str, begin: int) -> Row | None:
    """The piece that ends at ``begin``, where it is short."""
    query = select(Row).where(Row.allocation_id == allocation_id).order_by(Row.chunk_offset.desc()).limit(1)
    last = session.scalars(query).first()
    is_next = last is not None and last.size < PIECE_BYTES and last.chunk_offset + last.size == begin
    return last if is_next else None


def _read(session: Session, allocation: Allocation, offset: int) -> _Part:
    """The kept bytes from ``offset`` on; after a gap they start at the beginning of a line."""
    mine = Row.allocation_id == allocation.id
    before = session.scalar(select(func.max(Row.chunk_offset)).where(mine, Row.chunk_offset <= offset))
    query = (
        select(Row.chunk_offset, Row.data)
        .where(mine, Row.chunk_offset >= (before or 0))
        .order_by(Row.chunk_offset)
    )
    part = _Part(b"", offset, 0)
    for start, piece in session.execute(query.execution_options(yield_per=16)):
        position = part.begin + len(part.data)
        if start > position:
            if part.data:
                break
            part.cut += start - position
            part.begin = position = start
        part.data += piece[max(0, position - start) :]
        if len(part.data) >= READ_BYTES:
            break
    if not part.data and allocation.log_size > part.begin:
        part.cut, part.begin = part.cut + allocation.log_size - part.begin, allocation.log_size
    if part.cut:
        skipped = _to_a_line(part.data)
        part.data, part.begin, part.cut = part.data[skipped:], part.begin + skipped, part.cut + skipped
    part.data = part.data[:READ_BYTES]
    return part


def _to_a_line(data: bytes) -> int:
    """Bytes before the first line that is whole, or before the first whole character of a very long line."""
    found = data.find(b"\n", 0, PIECE_BYTES)
    if found >= 0:
        return found + 1
    return next((at for at, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0)


def _decode(data: bytes, *, final: bool) -> tuple[str, int]:
    """Text of the bytes and how many of them it is.

    A character that is not complete yet waits for its rest.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    text = decoder.decode(data, final)
    pending = 0 if final else len(decoder.getstate()[0])
    return text, len(data) - pending
