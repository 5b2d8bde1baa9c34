"""Which job runs on which GPUs: the part of a plan's state that lasts from one plan to the next.

It follows from the nodes and the allocations alone, whatever the order in which allocations came and went. So
a kept occupancy and a fresh one are equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from emep.policy.model import Policy
from emep.scheduling.cluster.arrays import BoolArray, Filter, FloatArray, IntArray
from emep.scheduling.cluster.hosts import Hosts
from emep.scheduling.cluster.index import NO_GROUP, ClusterIndex
from emep.scheduling.model import Allocation, Job
from emep.scheduling.request import is_preemptible, run_limit


class FreeCounts:
    """How many GPUs are free: by cell, NVLink group and node, and by kind of GPU as asked for."""

    def __init__(self, index: ClusterIndex, free: BoolArray) -> None:
        self.index = index
        self.by_cell: IntArray = index.count_by_cell(free)
        # One more than there are groups: NO_GROUP (-1) reads the last, which is always 0.
        self.by_group: IntArray = sum_by(index.cell_group, self.by_cell, len(index.groups) + 1)
        self.by_node: IntArray = sum_by(index.cell_node, self.by_cell, len(index.nodes))
        self._by_kind: dict[Filter, int] = {}

    def copy(self) -> FreeCounts:
        """One that can be changed by itself."""
        made = FreeCounts.__new__(FreeCounts)
        made.index = self.index
        made.by_cell, made.by_group = self.by_cell.copy(), self.by_group.copy()
        made.by_node, made._by_kind = self.by_node.copy(), self._by_kind.copy()
        return made

    def add(self, gpus: Iterable[int], sign: int) -> None:
        """GPUs become free (1) or taken (-1)."""
        index = self.index
        cell_of = index.gpu_cell_list
        cells: dict[int, int] = {}
        for gpu in gpus:
            cell = cell_of[gpu]
            cells[cell] = cells.get(cell, 0) + sign
        for cell, count in cells.items():
            self.by_cell[cell] += count
            self.by_node[index.cell_node[cell]] += count
            group = index.cell_group[cell]
            if group != NO_GROUP:
                self.by_group[group] += count
        for kind in self._by_kind:
            eligible = index.eligible_cells(kind)
            self._by_kind[kind] += sum(count for cell, count in cells.items() if eligible[cell])

    def of_kind(self, kind: Filter) -> int:
        """Free GPUs that fit a filter."""
        found = self._by_kind.get(kind)
        if found is None:
            found = self._by_kind[kind] = int(self.by_cell[self.index.eligible_cells(kind)].sum())
        return found


class Occupancy:
    """Mutable: allocations come, change and go."""

    def __init__(self, index: ClusterIndex, policy: Policy) -> None:
        self.index, self.policy = index, policy
        self.free: BoolArray = index.gpu_usable.copy()
        self.until: FloatArray = np.where(index.gpu_usable, -np.inf, np.inf)
        """Until when each GPU is busy at the latest: -inf for a free one, inf for one that takes no work."""
        self.occupied: BoolArray = np.zeros(len(self.free), dtype=bool)
        """GPUs that something runs on (or winds down on)."""
        self.winding_down: BoolArray = self.occupied.copy()
        """GPUs of allocations that were told to yield."""
        self.allocations: dict[str, Allocation] = {}
        self.gpus: dict[str, list[int]] = {}
        """Job id -> the GPUs it runs on."""
        self.without_deadline: set[str] = set()
        """Yielding allocations that do not say when they will be killed."""
        self.preemptible = 0
        """How many allocations could be victims at all."""
        self.counts = FreeCounts(index, self.free)
        self.hosts = Hosts(index)

    @property
    def yielding(self) -> bool:
        """Whether anything was told to yield."""
        return bool(self.winding_down.any())

    def add(self, allocation: Allocation) -> None:
        """A job runs."""
        self.add_all((allocation,))

    def add_all(self, allocations: Iterable[Allocation]) -> None:
        """Jobs run. GPUs that the cluster does not know (of a node just removed) are left out."""
        number_of = self.index.gpu_number.get
        every: list[int] = []
        ends: list[float] = []
        yielding: list[int] = []
        taken: list[tuple[Job, list[int], tuple[str, ...], float]] = []
        for allocation in allocations:
            job_id = allocation.job.id
            gpus = [number for gpu in allocation.gpus if (number := number_of(gpu)) is not None]
            end = self.latest_end(allocation)
            self.allocations[job_id] = allocation
            self.preemptible += is_preemptible(allocation.job, self.policy)
            self.gpus[job_id] = gpus
            every += gpus
            ends += [end] * len(gpus)
            if allocation.yielding:
                yielding += gpus
                if allocation.releases_at is None:
                    self.without_deadline.add(job_id)
            taken.append((allocation.job, gpus, allocation.nodes, end))
        self._occupy(np.array(every, dtype=np.int64), np.array(ends))
        self.winding_down[yielding] = True
        self.hosts.take_all(taken)

    def _occupy(self, gpus: IntArray, ends: FloatArray) -> None:
        self.counts.add(gpus[self.free[gpus]].tolist(), -1)
        self.free[gpus] = False
        self.occupied[gpus] = True
        self.until[gpus] = np.where(self.index.gpu_usable[gpus], ends, np.inf)

    def drop(self, job_id: str) -> None:
        """A job is gone from its GPUs."""
        self.preemptible -= is_preemptible(self.allocations.pop(job_id).job, self.policy)
        gpus = np.array(self.gpus.pop(job_id), dtype=np.int64)
        usable = self.index.gpu_usable[gpus]
        self.free[gpus] = usable
        self.occupied[gpus] = False
        self.winding_down[gpus] = False
        self.until[gpus] = np.where(usable, -np.inf, np.inf)
        self.counts.add(gpus[usable].tolist(), 1)
        self.without_deadline.discard(job_id)
        self.hosts.give_back(job_id)

    def change(self, before: Allocation, after: Allocation) -> None:
        """Replace an allocation of the same job on the same GPUs, whose end has changed, at its place."""
        job_id = after.job.id
        self.allocations[job_id] = after
        if before.yielding == after.yielding and self.latest_end(before) == self.latest_end(after):
            return
        gpus, end = np.array(self.gpus[job_id], dtype=np.int64), self.latest_end(after)
        self.until[gpus] = np.where(self.index.gpu_usable[gpus], end, np.inf)
        self.winding_down[gpus] = after.yielding
        self.without_deadline.discard(job_id)
        if after.yielding and after.releases_at is None:
            self.without_deadline.add(job_id)
        self.hosts.change_end(job_id, end)

    def latest_end(self, allocation: Allocation) -> float:
        """When it is over by its limit, or by the deadline of its yielding; inf without either."""
        limit = run_limit(allocation.job, self.policy)
        end = math.inf if limit is None else allocation.start_time + limit
        if allocation.yielding and allocation.releases_at is not None:
            end = min(end, allocation.releases_at)
        return end


def sum_by(key: IntArray, counts: IntArray, size: int) -> IntArray:
    """Sums of ``counts`` by ``key``; a key below 0 counts nowhere."""
    known = key != NO_GROUP
    return np.bincount(key[known], weights=counts[known], minlength=size).astype(np.int64)
