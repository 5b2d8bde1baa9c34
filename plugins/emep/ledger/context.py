"""The context that all components of the ledger share: database, policy in force, clock and caches."""

from __future__ import annotations

from collections.abc import Callable

from emep.ledger.airflow_pools.pools import Pools
from emep.ledger.caches.known_leases import KnownLeases
from emep.ledger.caches.known_nodes import KnownNodes
from emep.ledger.caches.pending_bound import PendingBound
from emep.ledger.policies.effective import EffectivePolicy
from emep.ledger.store.database import Database
from emep.policy.model import Policy
from emep.settings import Settings


class LedgerContext:
    """Shared by the components of one ledger service. It holds no rows and decides nothing."""

    def __init__(self, database: Database, policy: Callable[[], Policy], settings: Settings) -> None:
        self.database = database
        self.policies = EffectivePolicy(policy, database)
        self.known_leases = KnownLeases()
        self.known_nodes = KnownNodes(database)
        self.pending_bound = PendingBound(database)
        self.settings = settings
        self.pools = Pools(database, self.alive_for)
        database.guard = self.pools

    @property
    def policy(self) -> Policy:
        """The policy in force: the file's, with the operators' weights over it."""
        return self.policies()

    @property
    def now(self) -> float:
        """Seconds since 1970."""
        return self.database.clock()

    def alive_for(self) -> float:
        """How long after an agent's last sign of life its node counts as alive, in seconds."""
        health = self.policy.health
        return health.report_every * health.failed_checks
