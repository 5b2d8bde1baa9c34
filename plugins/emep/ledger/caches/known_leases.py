"""What an API server remembers of leases, so that an ordinary heartbeat is one statement."""

from __future__ import annotations

from typing import Any

MOST = 20_000
"""Allocations remembered; past it all are forgotten, and asked of the database again."""


class KnownLeases:
    """Digests of tokens, which never change for an allocation, and the last checkpoint that was written down.

    Nothing here may be relied on: what is missing, or differs, is looked up. Single operations on a dict are
    all it does, so threads need no lock.
    """

    def __init__(self) -> None:
        self._digests: dict[str, str] = {}
        self._checkpoints: dict[str, dict[str, Any]] = {}

    def digest(self, allocation_id: str) -> str | None:
        """The token's digest, where it has been read before."""
        return self._digests.get(allocation_id)

    def keep_digest(self, allocation_id: str, digest: str) -> None:
        """Remember a digest that the database has answered with."""
        _keep(self._digests, allocation_id, digest)

    def is_written(self, allocation_id: str, checkpoint: dict[str, Any] | None) -> bool:
        """Whether a heartbeat with this checkpoint has nothing new to say about it."""
        return checkpoint is None or self._checkpoints.get(allocation_id) == checkpoint

    def keep_checkpoint(self, allocation_id: str, checkpoint: dict[str, Any]) -> None:
        """Remember a checkpoint that is in the database."""
        _keep(self._checkpoints, allocation_id, checkpoint)


def _keep(known: dict[str, Any], key: str, value: object) -> None:
    if key not in known and len(known) >= MOST:
        known.clear()  # one query for each that is still heard of
    known[key] = value
