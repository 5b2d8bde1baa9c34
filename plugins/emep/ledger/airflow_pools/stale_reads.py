"""What Airflow's scheduler may have read on SQLite, which has no row locks.

There the scheduler reads a pool's open slots, and a moment later queues tasks by what it read; a grant that
is committed in between is not seen. So for ``SETTLE_SECONDS`` after a row was lowered, tasks that wait in the
pool may still be queued by its former value, and that many GPUs are in doubt. A job that needs them gets them
claimed: the row is lowered first, and the grant follows when no scheduler can have read it as it was.
"""

from __future__ import annotations

from collections.abc import Mapping

NO_LIMIT = 2**31 - 1
"""What a pool with -1 slots has."""
SETTLE_SECONDS = 5.0
"""Longer than the scheduler takes from reading its pools to its commit: SQLite's own patience with a lock."""


class StaleReads:
    """Former values of rows, and claims; in memory: SQLite serves one API server."""

    def __init__(self, settle_seconds: float = SETTLE_SECONDS) -> None:
        self.settle_seconds = settle_seconds
        self._former: dict[str, list[tuple[float, int]]] = {}
        self._claims: dict[str, int] = {}
        self._claimed_at = 0.0

    def was_visible(self, pool: str, slots: int, now: float) -> None:
        """The row said ``slots`` until now."""
        recent = [(at, value) for at, value in self._former.get(pool, ()) if now - at < self.settle_seconds]
        self._former[pool] = [*recent, (now, slots)]

    def highest(self, pool: str, slots: int, now: float) -> int:
        """The most slots that a scheduler may have read lately, where the row says ``slots`` now."""
        values = [value for at, value in self._former.get(pool, ()) if now - at < self.settle_seconds]
        values.append(slots)
        return NO_LIMIT if min(values) < 0 else max(values)

    def claim(self, wanted: Mapping[str, int], now: float) -> bool:
        """Keep so many GPUs of each pool from Airflow; whether that is news."""
        if self._claims == wanted:
            return False
        if not self._claims:
            self._claimed_at = now
        self._claims = dict(wanted)
        return True

    def claimed(self, pool: str) -> int:
        """GPUs of the pool that are claimed."""
        return self._claims.get(pool, 0)

    def is_settled(self, now: float) -> bool:
        """Whether the oldest claim is certain by now; False if there are no claims."""
        return bool(self._claims) and now - self._claimed_at >= self.settle_seconds

    def is_forgotten(self, now: float) -> bool:
        """Whether the claims are so old that their job must be gone, or placed elsewhere."""
        return bool(self._claims) and now - self._claimed_at >= 3 * self.settle_seconds
