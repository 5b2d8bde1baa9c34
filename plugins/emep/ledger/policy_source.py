"""The policy file as it is now: read again when it changes, the last good one kept while it is broken."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from emep.policy import Policy, PolicyError, default_policy, load_policy

log = logging.getLogger(__name__)
LOOK_SECONDS = 2.0
SETTLE_SECONDS = 0.5
"""A file is read once it has been left alone for so long: half a file can be a policy, an empty one is."""


class PolicySource:
    """Call it for the policy. Raises PolicyError at construction where the file cannot be read at all."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._mutex = threading.Lock()
        self._stamp = self._read_stamp()
        self._policy = default_policy() if path is None else load_policy(path)
        self._looked_at = time.monotonic()

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
            log.info("policy read again from %s", self._path)
        except (PolicyError, OSError) as error:
            log.error("the changed policy file is not used, the former one stays: %s", error)
        except Exception:
            # Whoever asks for the policy must get one.
            log.exception("the changed policy file cannot be read, the former one stays")

    def _read_stamp(self) -> tuple[int, int] | None:
        if self._path is None:
            return None
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size
