"""The parts of a cycle that explanations read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Protocol

from emep.policy.model import Policy
from emep.scheduling.cluster.index import ClusterIndex
from emep.scheduling.cluster.occupancy import Occupancy
from emep.scheduling.fair_share import FairTree
from emep.scheduling.model import Job
from emep.scheduling.pending import Blocked
from emep.scheduling.quota import Holdings
from emep.scheduling.request import Request

if TYPE_CHECKING:
    from emep.scheduling.plan_state import PlanState


class PreemptionLimits(Protocol):
    """How far preemption could get."""

    def best_after(self, job: Job, request: Request, pool: str) -> int:
        """GPUs that the best domain could offer at the most."""


class CycleView(Protocol):
    """One cycle after its decisions: what it left waiting, and the state that it left."""

    @property
    def policy(self) -> Policy:
        """The policy of the plan."""

    @property
    def index(self) -> ClusterIndex:
        """The cluster."""

    @property
    def occupancy(self) -> Occupancy:
        """What ran before the plan."""

    @property
    def state(self) -> PlanState:
        """GPUs, cores and memory after the plan's decisions."""

    @property
    def holdings(self) -> Holdings:
        """GPUs held under quotas and guarantees after the plan's decisions."""

    @property
    def preemption(self) -> PreemptionLimits:
        """What preemption can still do."""

    @property
    def tree(self) -> FairTree:
        """Fair shares, with what the plan has started."""

    @property
    def now(self) -> float:
        """Seconds since the caller's epoch."""

    @property
    def blocked(self) -> Sequence[Blocked]:
        """Jobs that were looked at and not started, in order."""

    @property
    def reserved_at(self) -> Mapping[str, float]:
        """Job id -> when its reservation begins."""

    @property
    def held_back(self) -> AbstractSet[str]:
        """Jobs that would make others wait too long if they started now."""
