"""Fair shares as one plan sees them: what was consumed, plus what starts are charged on the spot."""

from __future__ import annotations

import math
from collections.abc import Iterable

from emep.scheduling.cluster.occupancy import Occupancy
from emep.scheduling.fair_share import FairTree
from emep.scheduling.model import GpuId, UsageRecord
from emep.scheduling.pending import Leaf


class Shares:
    """Fair shares in one plan. The tree is built when first asked for: a single user never needs it."""

    def __init__(
        self, occupancy: Occupancy, now: float, leaves: Iterable[Leaf], usage: Iterable[UsageRecord]
    ) -> None:
        """``leaves``: users of pending jobs, who are known whether they have consumed anything or not."""
        self._occupancy, self._policy, self._now = occupancy, occupancy.policy, now
        self._leaves, self._usage = leaves, usage
        self._tree: FairTree | None = None
        self._charges: list[tuple[Leaf, float]] = []

    def tree(self) -> FairTree:
        """The tree with all charges so far."""
        if self._tree is None:
            self._tree = FairTree(self._policy, self._usage)
            for leaf in sorted(set(self._leaves)):
                self._tree.leaf(*leaf)
            self._charge_entries(self._tree)
            for leaf, seconds in self._charges:
                self._tree.charge(*leaf, seconds)
        return self._tree

    def charge(self, leaf: Leaf, gpus: Iterable[GpuId]) -> None:
        """A job of this user starts on these GPUs."""
        seconds = self._rate(gpus) * self._policy.entry_charge
        self._charges.append((leaf, seconds))
        if self._tree is not None:
            self._tree.charge(*leaf, seconds)

    def _charge_entries(self, tree: FairTree) -> None:
        """What has started but not yet run for ``entry_charge`` counts as if it had."""
        charge = self._policy.entry_charge
        for allocation in self._occupancy.allocations.values():
            job, rest = allocation.job, charge - (self._now - allocation.start_time)
            tree.leaf(job.queue, job.project, job.user)
            if rest > 0 and allocation.gpus:
                seconds = min(rest, charge) * self._rate(allocation.gpus)
                tree.charge(job.queue, job.project, job.user, seconds)

    def _rate(self, gpus: Iterable[GpuId]) -> float:
        """What these GPUs are charged together for one second."""
        index, policy = self._occupancy.index, self._policy
        numbers = index.numbers(gpus).tolist()
        if not policy.gpu_billing:
            return float(len(numbers))
        kinds, cell_of = index.cell_type, index.gpu_cell_list
        return math.fsum(policy.billing(kinds[cell_of[gpu]]) for gpu in numbers)
