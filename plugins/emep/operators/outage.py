"""Repeats calls of EMEP's API through an outage, so that a restart of the server costs a task no try.

The API is part of Airflow's API server. While that is away, Airflow's worker waits by itself (docs/operate.md
names the settings), so operators' calls of EMEP wait too. The job goes on meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
PATIENCE_SECONDS = 600.0
"""How long an answer is waited for: as long as a supervisor bears silence (``lease.max_silence``)."""
PAUSES = (1.0, 5.0)
"""Shortest and longest pause between two calls, in seconds."""
BUSY = frozenset({408, 425, 429})


def is_outage(error: Exception) -> bool:
    """Whether a call failed because the API is away, starting or busy: the same call may succeed soon."""
    from emep.client import EmepApiError, EmepConnectionError

    if isinstance(error, EmepApiError):
        return error.status >= 500 or error.status in BUSY
    return isinstance(error, EmepConnectionError)


def through_outage(work: Callable[[], T], log: Any, *, patience: float | None = None) -> T:
    """Call ``work``, again after each outage, and return its result; it must be safe to repeat.

    Raises what ``work`` raises: at once if that is no outage, otherwise after ``patience`` seconds (None: ten
    minutes).
    """
    until = time.monotonic() + (PATIENCE_SECONDS if patience is None else patience)
    pause, said = PAUSES[0], False
    while True:
        try:
            return work()
        except Exception as error:
            left = until - time.monotonic()
            if not is_outage(error) or left <= 0:
                raise
            if not said:
                log.warning("%s; trying again for %.0f s", error, left)
                said = True
        time.sleep(min(pause, max(0.0, left)))
        pause = min(PAUSES[1], pause * 1.5)
