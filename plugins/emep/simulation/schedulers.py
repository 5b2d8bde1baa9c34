"""The production scheduler as the event loop drives it: told of every change, asked for a plan.

Two drivers of the same decisions: ``SnapshotScheduler`` hands the whole state to ``plan`` each time, as the
ledger does; ``KeptScheduler`` tells a ``Planner`` of the differences, which is what makes long replays quick.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from emep.policy import Policy
from emep.scheduling import ClusterIndex, Planner, plan
from emep.scheduling.model import Allocation, Hold, Job, Node, Plan, Snapshot, UsageRecord
from emep.simulation.strategies import Strategy


class Scheduler(Protocol):
    """What the event loop needs of a scheduler."""

    def submit(self, job: Job) -> None:
        """A job waits, for the first time or again; or something about a waiting one changed."""

    def leave(self, job_id: str) -> None:
        """A job waits no longer: it starts, or has ended."""

    def start(self, allocation: Allocation) -> None:
        """A job runs."""

    def change(self, allocation: Allocation) -> None:
        """Something about a running job changed."""

    def end(self, job_id: str) -> None:
        """A job runs no longer."""

    def plan(self, nodes: tuple[Node, ...], now: float, usage: Sequence[UsageRecord]) -> Plan:
        """Decide at ``now``; ``nodes`` is the same object as long as nothing about the cluster changes."""


class SnapshotScheduler:
    """A snapshot of everything for each plan."""

    def __init__(self, policy: Policy, strategy: Strategy | None = None) -> None:
        """``strategy`` replaces what placement prefers among equally compact places, for studies only."""
        self._policy, self._strategy = policy, strategy
        self._pending: dict[str, Job] = {}
        self._allocations: dict[str, Allocation] = {}
        self._index: ClusterIndex | None = None
        self._holds: tuple[Hold, ...] = ()

    def submit(self, job: Job) -> None:
        """See ``Scheduler``."""
        self._pending[job.id] = job

    def leave(self, job_id: str) -> None:
        """See ``Scheduler``."""
        del self._pending[job_id]

    def start(self, allocation: Allocation) -> None:
        """See ``Scheduler``."""
        self._allocations[allocation.job.id] = allocation

    change = start

    def end(self, job_id: str) -> None:
        """See ``Scheduler``."""
        del self._allocations[job_id]

    def plan(self, nodes: tuple[Node, ...], now: float, usage: Sequence[UsageRecord]) -> Plan:
        """See ``Scheduler``."""
        if self._index is None or self._index.source is not nodes:
            self._index = ClusterIndex(nodes)
        snapshot = Snapshot(
            nodes=nodes,
            pending=tuple(self._pending.values()),
            allocations=tuple(self._allocations.values()),
            usage=tuple(usage),
            holds=self._holds,
        )
        index = self._index if self._strategy is None else self._strategy(self._index)
        found = plan(snapshot, self._policy, now, index, explain=False)
        self._holds = found.holds
        return found


class KeptScheduler:
    """A planner that is kept and told of changes: the same decisions, in a fraction of the time."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._nodes: tuple[Node, ...] = ()
        self._planner = Planner((), policy)
        self._pending: set[str] = set()
        self._holds: tuple[Hold, ...] = ()

    def submit(self, job: Job) -> None:
        """See ``Scheduler``."""
        if job.id in self._pending:
            self._planner.leave(job.id)
        self._pending.add(job.id)
        self._planner.submit(job)

    def leave(self, job_id: str) -> None:
        """See ``Scheduler``."""
        self._pending.remove(job_id)
        self._planner.leave(job_id)

    def start(self, allocation: Allocation) -> None:
        """See ``Scheduler``."""
        self._planner.start(allocation)

    def change(self, allocation: Allocation) -> None:
        """See ``Scheduler``."""
        self._planner.change(allocation)

    def end(self, job_id: str) -> None:
        """See ``Scheduler``."""
        self._planner.end(job_id)

    def plan(self, nodes: tuple[Node, ...], now: float, usage: Sequence[UsageRecord]) -> Plan:
        """See ``Scheduler``."""
        if self._nodes is not nodes:
            self._nodes = nodes
            self._planner.reset(nodes)
        found = self._planner.plan(now, usage, self._holds)
        self._holds = found.holds
        return found
