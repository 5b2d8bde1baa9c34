"""The production scheduler for the event loop, which reports every change to it and asks it for plans.

An ``IncrementalPlanner`` decides exactly what ``plan`` decides on a snapshot, in a fraction of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from emep.policy.model import Policy
from emep.scheduling.cluster.index import ClusterIndex
from emep.scheduling.model import Allocation, Hold, Job, Node, Plan, UsageRecord
from emep.scheduling.planner import IncrementalPlanner
from emep.simulation.studies.strategies import Strategy


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


class KeptScheduler:
    """A scheduler that keeps one planner and reports changes to it."""

    def __init__(self, policy: Policy, strategy: Strategy | None = None) -> None:
        """``strategy`` replaces best fit, for studies only."""
        self._strategy = strategy
        self._nodes: tuple[Node, ...] = ()
        self._planner = IncrementalPlanner((), policy)
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
            index = ClusterIndex(nodes)
            self._planner.reset(index if self._strategy is None else index.preferring(self._strategy(index)))
        elif self._strategy is not None:
            self._planner.index.preference = self._strategy(self._planner.index)
        found = self._planner.plan(now, usage, self._holds)
        self._holds = found.holds
        return found
