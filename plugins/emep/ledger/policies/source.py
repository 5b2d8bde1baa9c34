"""The policy file as it is now: read again when it changes, the last good one kept while it is broken."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from emep.policy import PolicyError, default_policy, load_policy
from emep.policy.model import Policy

log = logging.getLogger(__name__)
LOOK_SECONDS = 2.0
SETTLE_SECONDS = 0.5
"""A file is read once it has been left alone for so long: half a file can be a policy, an empty one is."""


@dataclass(frozen=True)
class PolicyProblem:
    """Why the file is not what is in force."""

    message: str
    """One sentence with file, line and key."""
    since: float
    """Seconds since 1970 at which the refused file was first seen."""


class PolicySource:
    """Call it for the policy; ``problem`` says why the file is refused, while it is."""

    def __init__(self, path: Path | None, fallback: Callable[[], Policy | None] = lambda: None) -> None:
        """``fallback`` gives the policy that was in force last, for a start with a broken file.

        Raises PolicyError where the file is refused and there is no such policy.
        """
        self._path = path
        self._mutex = threading.Lock()
        self._stamp = self._read_stamp()
        self.problem: PolicyProblem | None = None
        self._policy = default_policy() if path is None else self._first(path, fallback)
        self._looked_at = time.monotonic()

    def _first(self, path: Path, fallback: Callable[[], Policy | None]) -> Policy:
        try:
            return load_policy(path)
        except PolicyError as error:
            former = fallback()
            if former is None:
                raise
            self._refuse(error)
            return former

    def _refuse(self, error: Exception) -> None:
        self.problem = PolicyProblem(str(error), time.time())
        log.error("the policy file is not used, the policy that was in force before stays: %s", error)

    def __call__(self) -> Policy:
        """The policy; a changed file counts within three seconds."""
        if self._path is not None and time.monotonic() - self._looked_at > LOOK_SECONDS:
            with self._mutex:
                self._look()
        return self._policy

    def _look(self) -> None:
        self._looked_at = time.monotonic()
        stamp = self._read_stamp()
        if stamp == self._stamp or self._path is None:
            return
        if stamp is not None and 0 <= time.time() - stamp[0] / 1e9 < SETTLE_SECONDS:
            self._looked_at -= max(0.0, LOOK_SECONDS - SETTLE_SECONDS)
            return
        self._stamp = stamp
        try:
            self._policy = load_policy(self._path)
            self.problem = None
            log.info("policy read again from %s", self._path)
        except (PolicyError, OSError) as error:
            self._refuse(error)
        except Exception as error:
            # Every caller must get a policy.
            log.exception("the changed policy file cannot be read, the former one stays")
            self._refuse(error)

    def _read_stamp(self) -> tuple[int, int] | None:
        if self._path is None:
            return None
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size
