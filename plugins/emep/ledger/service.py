"""The ledger service.

Every method one short transaction, everything the API, the planner and the tick may do.
"""

from __future__ import annotations

from emep.ledger.dead_letters import DeadLetters
from emep.ledger.drains import Drains
from emep.ledger.jobs import Jobs
from emep.ledger.leases import Leases
from emep.ledger.logs import Logs
from emep.ledger.orders import Orders
from emep.ledger.shares import Shares


class LedgerService(Jobs, Leases, Orders, Logs, Drains, DeadLetters, Shares):
    """Jobs, nodes, allocations, logs and reclamation over one database, one policy and one clock."""
