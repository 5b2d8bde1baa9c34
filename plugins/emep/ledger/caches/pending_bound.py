"""How many jobs of one user may wait at the same time (policy ``limits: pending_jobs``)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import func, select

from emep.ledger.store.database import Database
from emep.ledger.store.tables import Job
from emep.wire.base import JobState
from emep.wire.errors import TooManyError

KNOWN_SECONDS = 5.0
"""How long a count is believed: other API servers take jobs in too."""
MOST_USERS = 10_000


@dataclass
class _User:
    pending: int = 0
    """At most so many wait: as counted, and each that was taken in since."""
    counted_at: float = float("-inf")
    under_way: int = 0
    """Taken for requests that are being written in this moment."""


class PendingBound:
    """Places for jobs that wait. A request takes one before it is written, so counting is seldom needed."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._mutex = threading.Lock()
        self._users: dict[str, _User] = {}

    @contextmanager
    def places(
        self, wanted: Counter[str], limit: int
    ) -> Iterator[tuple[Counter[str], Callable[[str], None]]]:
        """How many of the places that each user wants are free, and a function to call for each new job.

        At the end of the block unused places are given back; a new job keeps its place while it waits.
        """
        with self._mutex:
            given = Counter({user: self._take(user, count, limit) for user, count in wanted.items()})
        new: Counter[str] = Counter()

        def is_new(user: str) -> None:
            new[user] += 1

        try:
            yield given, is_new
        finally:
            with self._mutex:
                for user, count in given.items():
                    self._users[user].under_way -= count
                    self._users[user].pending += new[user]

    def _take(self, user: str, wanted: int, limit: int) -> int:
        if user not in self._users and len(self._users) >= MOST_USERS:
            self._users = {name: one for name, one in self._users.items() if one.under_way}
        known, now = self._users.setdefault(user, _User()), self._database.clock()
        is_old = not 0 <= now - known.counted_at < KNOWN_SECONDS
        if is_old or known.pending + known.under_way + wanted > limit:
            known.pending, known.counted_at = self._count(user), now
        given = max(0, min(wanted, limit - known.pending - known.under_way))
        known.under_way += given
        return given

    def _count(self, user: str) -> int:
        query = select(func.count()).where(Job.state == JobState.PENDING.value, Job.user == user)
        with self._database.read() as session:
            return session.scalar(query) or 0


def too_many(user: str, limit: int) -> TooManyError:
    """The error that refuses one more job."""
    return TooManyError(
        f"{user} has {limit:,} jobs that wait, and no user may have more (policy `limits: pending_jobs`). "
        "Submit again when some of them have started, or cancel some",
        code="too_many_pending",
    )
