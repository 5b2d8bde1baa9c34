"""The state of the scheduler's thread for ``/emep/health``, timed by a monotonic clock."""

from __future__ import annotations

import errno
import threading
import time
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError

BEHIND_SECONDS = 10.0
"""A change that no plan has looked at for so long makes the scheduler late."""
_FULL = ("disk is full", "no space left", "could not extend file", "disk full")


@dataclass(frozen=True)
class Health:
    """One answer: ``ok`` means that decisions are made."""

    state: str
    """idle, planning, behind, failing or stopped."""
    failing: str = ""
    """What fails: database, disk_full or plan."""
    plan_age: float | None = None
    """Seconds since the last plan of any server; None before the first, or where it cannot be asked."""

    @property
    def ok(self) -> bool:
        """Whether decisions are made."""
        return self.state in ("idle", "planning", "behind")


class HealthRecord:
    """Written by the scheduler's thread after each round, read by requests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failing = ""
        self._late_since: float | None = None

    def went_well(self, *, has_news: bool) -> None:
        """Record a round without error; ``has_news``: changes still wait because another server plans."""
        with self._lock:
            self._failing = ""
            if not has_news:
                self._late_since = None
            elif self._late_since is None:
                self._late_since = time.monotonic()

    def failed(self, error: BaseException) -> None:
        """A round has failed."""
        with self._lock:
            self._failing = failure_code(error)

    @property
    def failing(self) -> str:
        """What failed in the last round; empty if it went well."""
        with self._lock:
            return self._failing

    @property
    def is_late(self) -> bool:
        """Whether changes have waited for a plan for longer than ``BEHIND_SECONDS``."""
        with self._lock:
            since = self._late_since
        return since is not None and time.monotonic() - since > BEHIND_SECONDS


def failure_code(error: BaseException) -> str:
    """A stable word for what went wrong; the log has the rest."""
    seen: BaseException | None = error
    while seen is not None:
        text = str(seen).lower()
        if any(words in text for words in _FULL) or getattr(seen, "errno", None) == errno.ENOSPC:
            return "disk_full"
        if isinstance(seen, SQLAlchemyError):
            return "database"
        seen = seen.__cause__ or seen.__context__
    return "database" if type(error).__name__ == "UnavailableError" else "plan"
