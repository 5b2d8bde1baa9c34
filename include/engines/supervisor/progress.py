"""Progress for people: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import Any, TextIO

LINE_SECONDS = 1.0
"""Least time between two plain lines of one rank; the first and the last are always shown."""
_WIDTH = 30


class Progress:
    """Shows ``tensors 12/146``."""

    def __init__(self, out: TextIO, *, terminal: bool | None = None) -> None:
        self._out = out
        self._terminal = out.isatty() if terminal is None else terminal
        self._shown: dict[tuple[int, str], float] = {}
        self._open = False

    def show(self, rank: int, ranks: int, progress: dict[str, Any]) -> None:
        """Show one rank's progress (``what``, ``done``, ``total``)."""
        what, done, total = str(progress["what"]), int(progress["done"]), int(progress["total"])
        name = f"rank {rank}: {what}" if ranks > 1 else what
        now, key = time.monotonic(), (rank, what)
        ended = done >= total
        if not ended and now - self._shown.get(key, -LINE_SECONDS) < (
            0.1 if self._terminal else LINE_SECONDS
        ):
            return
        self._shown[key] = now
        if self._terminal:
            filled = _WIDTH * done // total if total else _WIDTH
            bar = "#" * filled + "." * (_WIDTH - filled)
            self._out.write(f"\r\x1b[K{name} [{bar}] {done}/{total}" + ("\n" if ended else ""))
            self._open = not ended
        else:
            self._out.write(f"{name} {done}/{total}\n")
        self._out.flush()

    def close(self) -> None:
        """End a bar that is still open."""
        if self._open:
            self._out.write("\n")
            self._out.flush()
            self._open = False
