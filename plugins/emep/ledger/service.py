"""The ledger service: one component for each concern, over one database, one policy and one clock.

Every public method of a component is one short transaction; together they are everything that the API, the
planner and the tick may do.
"""

from __future__ import annotations

from collections.abc import Callable

from emep.ledger.allocations import Allocations
from emep.ledger.context import LedgerContext
from emep.ledger.database import Database
from emep.ledger.dead_letters import DeadLetters
from emep.ledger.drains import Drains
from emep.ledger.ends import JobOutcomes
from emep.ledger.evictions import Evictions
from emep.ledger.jobs import Jobs
from emep.ledger.judging import JobValidator
from emep.ledger.leases import Leases
from emep.ledger.lifecycle import AllocationLifecycle
from emep.ledger.logs import Logs
from emep.ledger.nodes import Nodes
from emep.ledger.orders import Orders
from emep.ledger.reclaim import Housekeeping
from emep.ledger.reconcile import TaskReconciler
from emep.ledger.shares import Shares
from emep.ledger.submission import Submissions
from emep.policy import Policy
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
