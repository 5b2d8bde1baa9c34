"""Logs of allocations, kept in the database so that any API server can take them and show them."""

from __future__ import annotations

import codecs

from sqlalchemy import func, select

from emep.api.schemas import LogChunk
from emep.exceptions import ConflictError
from emep.ledger.base import LedgerBase
from emep.ledger.database import Transaction
from emep.ledger.repository import get_allocation
from emep.ledger.states import LIVE_ALLOCATION_STATES, AllocationState
from emep.ledger.tables import LogChunk as Row

READ_BYTES = 256 * 1024
TAIL_SECONDS = 5.0
"""How long after the end of an allocation the rest of its log may still come, where nobody has closed it."""


class Logs(LedgerBase):
    """The part of the ledger service that keeps logs."""

    def append_log(self, allocation_id: str, offset: int, data: bytes, *, final: bool = False) -> int:
        """Add bytes that begin at ``offset``; those that are there already are ignored. Answers the next
        offset.

        ``final`` says that nothing more comes.

        Raises ConflictError with ``expected_offset`` where bytes are missing before ``offset``.
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
            if final:
                allocation.log_closed = True
            if not fresh:
                return size
            if size < self.settings.max_log_bytes:
                tx.session.add(
                    Row(allocation_id=allocation_id, chunk_offset=size, size=len(fresh), data=fresh)
                )
            allocation.log_size = size + len(fresh)
            return size + len(fresh)

        return self.database.write(work)

    def read_log(self, allocation_id: str, offset: int) -> LogChunk:
        """Text from a byte offset on, at most 256 KiB, never half a character.

        ``complete`` once the allocation is over, nothing more comes, and all of it has been read.
        """
        with self.database.read() as session:
            allocation = get_allocation(session, allocation_id)
            last = session.scalar(
                select(func.max(Row.chunk_offset)).where(
                    Row.allocation_id == allocation_id, Row.chunk_offset <= offset
                )
            )
            data, position = b"", offset
            query = (
                select(Row.chunk_offset, Row.data)
                .where(Row.allocation_id == allocation_id, Row.chunk_offset >= (last or 0))
                .order_by(Row.chunk_offset)
            )
            for start, piece in session.execute(query.execution_options(yield_per=16)):
                data += piece[max(0, position - start) :]
                position = max(position, start + len(piece))
                if len(data) >= READ_BYTES:
                    break
            kept = session.execute(
                select(func.max(Row.chunk_offset + Row.size)).where(Row.allocation_id == allocation_id)
            ).scalar()
        is_over = AllocationState(allocation.state) not in LIVE_ALLOCATION_STATES
        data = data[:READ_BYTES]
        end = offset + len(data)
        at_end = end >= (kept or 0)
        text, used = _decode(data, final=at_end and is_over)
        end = offset + used
        if at_end and allocation.log_size > max(kept or 0, offset):
            text += f"\n[{allocation.log_size - (kept or 0)} more bytes were not kept]\n"
            end = allocation.log_size
        is_closed = allocation.log_closed or self.now - (allocation.ended_at or self.now) >= TAIL_SECONDS
        complete = is_over and is_closed and end >= allocation.log_size
        return LogChunk(text=text, next_offset=end, complete=complete)


def _decode(data: bytes, *, final: bool) -> tuple[str, int]:
    """Text of the bytes and how many of them it is.

    A character that is not complete yet waits for its rest.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    text = decoder.decode(data, final)
    pending = 0 if final else len(decoder.getstate()[0])
    return text, len(data) - pending
