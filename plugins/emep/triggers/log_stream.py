"""Turns the log of a job's allocations into lines, each once. No I/O, so operators and triggers share it.

A job may have several allocations, one after the other (preempted, node lost); the stream goes on with the
next one's log from its beginning. A position is what survives a restart: an allocation, the byte after the
last line shown, and how many lines of it were shown before.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_LINE = 8192
"""Characters after which a line without an end is shown anyway."""


@dataclass
class LogStream:
    """The position in one job's log, and what was read of it so far."""

    allocation_id: str | None = None
    offset: int = 0
    """Byte to read from next, in the log of ``allocation_id``."""
    complete: bool = False
    """Nothing more will come from this allocation."""
    lines: int = 0
    """Lines of this allocation up to ``offset``, from where this reader or those before it began."""
    skip: int = 0
    """So many lines that come next were shown before."""
    _rest: str = field(default="", repr=False)

    def turn_to(self, allocation_id: str | None) -> list[str]:
        """Follow this allocation from now on; return the unfinished last line of the one before."""
        if allocation_id is None or allocation_id == self.allocation_id:
            return []
        rest = self.flush()
        self.allocation_id, self.offset, self.complete = allocation_id, 0, False
        self.lines = self.skip = 0
        return rest

    def was_shown(self, lines: int) -> None:
        """Continue after this many lines of the allocation, because they were shown before."""
        self.skip = max(0, lines - self.lines)

    def feed(self, text: str, next_offset: int, complete: bool) -> list[str]:
        """Take what was read at ``offset``; the lines that are now whole."""
        self.offset, self.complete = next_offset, complete
        *lines, self._rest = (self._rest + text).split("\n")
        if len(self._rest) > MAX_LINE:
            lines.append(self._rest)
            self._rest = ""
        return self._new([line.rstrip("\r") for line in lines]) + (self.flush() if complete else [])

    def flush(self) -> list[str]:
        """What is left without an end of line."""
        rest, self._rest = self._rest, ""
        return self._new([rest.rstrip("\r")]) if rest else []

    def _new(self, lines: list[str]) -> list[str]:
        """Count lines; those that were not shown before."""
        self.lines += len(lines)
        skipped = min(self.skip, len(lines))
        self.skip -= skipped
        return lines[skipped:]

    def position(self) -> dict[str, object]:
        """The position after the last line shown, for the reader that continues after a restart."""
        offset = self.offset - len(self._rest.encode())
        return {"allocation_id": self.allocation_id, "offset": offset, "lines": self.lines - self.skip}

    def handed_over(self) -> dict[str, object]:
        """The position for another kind of reader, which counts its lines from here."""
        return self.position() | {"lines": 0}

    @classmethod
    def at(cls, position: object) -> LogStream:
        """A stream that goes on at a position; anything else starts at the beginning."""
        if isinstance(position, dict) and isinstance(position.get("offset"), int) and position["offset"] >= 0:
            allocation_id = position.get("allocation_id")
            lines = position.get("lines", 0)
            if isinstance(allocation_id, str):
                return cls(allocation_id, position["offset"], lines=lines if isinstance(lines, int) else 0)
        return cls()
