"""A cached index of the nodes to validate submissions with, kept until a node registers, changes or goes."""

from __future__ import annotations

import threading
import time

from sqlalchemy import func, select

from emep.ledger.store.database import Database
from emep.ledger.store.node_rows import read_nodes
from emep.ledger.store.tables import Node
from emep.scheduling.cluster.index import ClusterIndex

LOOK_SECONDS = 1.0
"""How old the copy may be that a job is accepted by. Before one is refused for good, it is compared."""
Version = tuple[int, int]


class KnownNodes:
    """One index of all nodes for thousands of submissions."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._mutex = threading.Lock()
        self._kept: tuple[Version, ClusterIndex] | None = None
        self._compared_at = 0.0

    def index(self, *, check: bool = False) -> ClusterIndex:
        """The index of all nodes, at most a second out of date; with ``check`` it is up to date."""
        kept = self._kept
        if kept is not None and not check and time.monotonic() - self._compared_at < LOOK_SECONDS:
            return kept[1]
        with self._mutex, self._database.read_consistent() as session:
            # What can never run depends on descriptions alone, and each new one counts as a registration.
            row = session.execute(select(func.count(), func.sum(Node.registrations))).one()
            version = (int(row[0]), int(row[1] or 0))
            if self._kept is None or self._kept[0] != version:
                self._kept = (version, ClusterIndex(read_nodes(session, alive_since=0.0)))
            self._compared_at = time.monotonic()
            return self._kept[1]

    def forget(self) -> None:
        """Compare at the next look: a node has changed."""
        self._compared_at = 0.0
