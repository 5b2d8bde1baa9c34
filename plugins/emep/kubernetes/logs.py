"""A container's log as the cluster's API streams it: lines with their times, each taken once.

No I/O. A stream that breaks is opened again from the second of the last line, and lines taken before are
skipped by their time, which has nanoseconds. After a restart the position is found from the shipped bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

TAIL_BYTES = 4096
"""Bytes at the end of the shipped log that are enough to find its position again."""


@dataclass
class LogLines:
    """Takes the stream's bytes and returns the bytes of the log that are new."""

    last: tuple[str, int] = ("", 0)
    """Time of the last line taken: the second as text, and the nanoseconds in it."""
    _rest: bytes = field(default=b"", repr=False)

    @property
    def since(self) -> str | None:
        """Where to open the stream again; None: at its beginning."""
        return f"{self.last[0]}Z" if self.last[0] else None

    def reopened(self) -> None:
        """The stream begins anew: half a line that was left comes again in full."""
        self._rest = b""

    def feed(self, chunk: bytes) -> bytes:
        """The log's own bytes in a chunk of the stream, without the times and without repetitions."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return b"".join(self._take(line + b"\n") for line in lines)

    def finish(self) -> bytes:
        """What is left without an end of line, once nothing more comes."""
        rest, self._rest = self._rest, b""
        return self._take(rest) if rest else b""

    def _take(self, line: bytes) -> bytes:
        stamp, space, text = line.partition(b" ")
        moment = _moment(stamp) if space else None
        if moment is None:
            # Not a line of the log: the kubelet's own word on why there is none.
            return line
        if moment <= self.last:
            return b""
        self.last = moment
        return text


def _moment(stamp: bytes) -> tuple[str, int] | None:
    """A time such as 2026-01-01T00:00:00.12Z in a form that compares; None where it is none."""
    text = stamp.decode("ascii", "replace")
    if len(text) < 20 or text[10] != "T" or not text.endswith("Z"):
        return None
    second, _, fraction = text[:-1].partition(".")
    if fraction and not fraction.isdigit():
        return None
    return second, int(fraction.ljust(9, "0")[:9]) if fraction else 0


def unseen(log: bytes, kept: int, tail: bytes) -> bytes:
    """The part of ``log`` after the ``kept`` bytes that were shipped, whose end is ``tail``.

    The kubelet may have rotated the beginning away. Then this looks for the tail; if it is not found, the
    whole log is new.
    """
    if log[max(0, kept - len(tail)) : kept] == tail:
        return log[kept:]
    at = log.rfind(tail) if tail else -1
    return log if at < 0 else log[at + len(tail) :]
