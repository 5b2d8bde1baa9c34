"""Remembers that a process was told to stop; safe for signals at any moment, and repeated ones."""

from __future__ import annotations


class StopRequest:
    """``on_signal`` is the handler, ``is_set`` the question.

    A plain attribute and no ``threading.Event``: that one's ``set`` holds a lock, and a handler runs in the
    main thread between any two of its instructions. A second signal (one to the process group, one from the
    supervisor) in the middle of the first one's ``set`` would wait for the lock that its own thread holds,
    for ever.
    """

    def __init__(self) -> None:
        self._told = False

    def on_signal(self, number: int, frame: object) -> None:
        """Note it; does nothing else."""
        self._told = True

    def is_set(self) -> bool:
        """True once a signal has come."""
        return self._told
