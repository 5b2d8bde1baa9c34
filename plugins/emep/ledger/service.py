"""The ledger service: one component for each concern, over one database, one policy and one clock.

Every public method of a component is one short transaction. Together the methods are all that the API, the
planner and the tick can do to the ledger.
"""

from __future__ import annotations

from collections.abc import Callable

from emep.ledger.allocations.allocations import Allocations
from emep.ledger.allocations.leases import Leases
from emep.ledger.allocations.logs import Logs
from emep.ledger.allocations.orders import Orders
from emep.ledger.context import LedgerContext
from emep.ledger.housekeeping.reconcile import TaskReconciler
from emep.ledger.housekeeping.timeouts import Housekeeping
from emep.ledger.jobs.dead_letters import DeadLetters
from emep.ledger.jobs.evictions import Evictions
from emep.ledger.jobs.jobs import Jobs
from emep.ledger.jobs.outcomes import JobOutcomes
from emep.ledger.jobs.submission import Submissions
from emep.ledger.jobs.validation import JobValidator
from emep.ledger.lifecycle.allocation import AllocationLifecycle
from emep.ledger.nodes.drains import Drains
from emep.ledger.nodes.nodes import Nodes
from emep.ledger.shares.shares import Shares
from emep.ledger.store.database import Database
from emep.policy.model import Policy
from emep.settings import Settings


class LedgerService:
    """The components of one ledger, each given the context and the components that it builds on."""

    def __init__(self, database: Database, policy: Callable[[], Policy], settings: Settings) -> None:
        self.context = context = LedgerContext(database, policy, settings)
        self.lifecycle = AllocationLifecycle(context)
        self.outcomes = JobOutcomes(context, self.lifecycle)
        evictions = Evictions(self.lifecycle, self.outcomes)
        self.submissions = Submissions(context, JobValidator(context))
        self.jobs = Jobs(context, self.outcomes)
        self.dead_letters = DeadLetters(context, evictions)
        self.allocations = Allocations(context, self.lifecycle, self.outcomes)
        self.leases = Leases(context, self.lifecycle, self.outcomes)
        self.orders = Orders(context, self.lifecycle)
        self.logs = Logs(context)
        self.nodes = Nodes(context, self.lifecycle, self.outcomes)
        self.drains = Drains(context, evictions)
        self.shares = Shares(context)
        self.tasks = TaskReconciler(context, self.outcomes)
        self.housekeeping = Housekeeping(context, self.lifecycle, self.outcomes, self.nodes, self.tasks)
