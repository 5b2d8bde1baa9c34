"""Replaying a workload with the production scheduler."""

from __future__ import annotations

from collections.abc import Sequence

from emep.policy.model import Policy
from emep.scheduling.model import Node
from emep.simulation.read.failures import Failure
from emep.simulation.read.jobs import JobSpec
from emep.simulation.run.engine import Progress, Simulation
from emep.simulation.run.recording import Recording
from emep.simulation.run.schedulers import KeptScheduler
from emep.simulation.studies.strategies import Strategy


def replay(
    nodes: Sequence[Node],
    specs: Sequence[JobSpec],
    policy: Policy,
    failures: Sequence[Failure] = (),
    *,
    progress: Progress | None = None,
    strategy: Strategy | None = None,
) -> Recording:
    """Simulate a workload on a cluster under a policy as it was loaded; ``strategy`` is for studies only."""
    rules = policy.for_simulation()
    scheduler = KeptScheduler(rules, strategy)
    return Simulation(nodes, specs, rules, scheduler, failures=failures, progress=progress).run()
