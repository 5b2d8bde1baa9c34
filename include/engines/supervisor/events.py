"""The supervisor's event queue: threads and signal handlers put events, the main thread takes them."""

from __future__ import annotations

import os
import select
import signal
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

JUDGED_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT})
"""Signals that are events: held back in every process and thread of a run that cannot take them as such."""


class Events:
    """A queue whose reader is woken by a pipe.

    Reading a ``queue`` instead would lose signals: Python runs their handlers in the main thread only,
    between two instructions, and a main thread that waits for a lock is not woken where the signal came just
    before it began to wait, or to another thread. ``put`` writes to the pipe, and so does the interpreter
    itself at the moment a signal arrives.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[str, Any]] = deque()
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def put(self, kind: str, value: Any) -> None:
        """Add an event; from any thread or handler. Never waits."""
        self._waiting.append((kind, value))
        # A full pipe wakes the reader, too.
        with suppress(BlockingIOError):
            os.write(self._write, b"\0")

    def get(self, timeout: float | None = None) -> tuple[str, Any] | None:
        """The next event; None if none has come within ``timeout`` seconds (None: waits for ever)."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self._waiting:
            patience = None if until is None else max(0.0, until - time.monotonic())
            if not select.select([self._read], [], [], patience)[0]:
                return None
            with suppress(BlockingIOError):
                os.read(self._read, 4096)
        return self._waiting.popleft()

    @contextmanager
    def signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT are events (``signal``, number) while the block lasts; in the main thread only.

        They are let through if they were held back, and held back again afterwards.
        """
        before = {number: signal.signal(number, self._on_signal) for number in JUDGED_SIGNALS}
        descriptor = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, JUDGED_SIGNALS)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            signal.set_wakeup_fd(descriptor)
            for number, handler in before.items():
                signal.signal(number, handler)

    def close(self) -> None:
        """Give the pipe back; nothing is put any more."""
        os.close(self._read)
        os.close(self._write)

    def _on_signal(self, number: int, frame: object) -> None:
        self.put("signal", number)


@contextmanager
def signals_held_back() -> Iterator[None]:
    """What is started in the block, a process or a thread, begins with the judged signals blocked.

    In a process they wait until it has its handlers (masks outlive exec, handlers do not); in a thread they
    are left to the main thread.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, JUDGED_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
