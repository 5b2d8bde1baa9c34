"""Replaying with the production scheduler: what is kept between two plans, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from emep.policy import Policy
from emep.scheduling import ClusterIndex, plan
from emep.scheduling.model import Hold, Node, Plan, Snapshot
from emep.simulation.engine import Progress, Simulation
from emep.simulation.failures import Failure
from emep.simulation.jobs import JobSpec
from emep.simulation.recording import Recording


class Scheduler:
    """``plan`` with the cluster's index kept while nodes stay as they are, and what is held handed back."""

    def __init__(self) -> None:
        self._index: ClusterIndex | None = None
        self._holds: tuple[Hold, ...] = ()

    def __call__(self, snapshot: Snapshot, policy: Policy, now: float) -> Plan:
        """Decisions at ``now``."""
        if self._index is None or not self._index.matches(snapshot.nodes):
            self._index = ClusterIndex(snapshot.nodes)
        if self._holds:
            snapshot = replace(snapshot, holds=self._holds)
        found = plan(snapshot, policy, now, self._index, explain=False)
        self._holds = found.holds
        return found


def replay(
    nodes: Sequence[Node],
    specs: Sequence[JobSpec],
    policy: Policy,
    failures: Sequence[Failure] = (),
    progress: Progress | None = None,
) -> Recording:
    """Simulate a workload on a cluster under a policy as it was loaded."""
    simulation = Simulation(
        nodes, specs, policy.for_simulation(), Scheduler(), failures=failures, progress=progress
    )
    return simulation.run()
