"""The state of one plan in the making: GPUs free now, GPUs that come free, GPUs promised to jobs.

Free GPUs only ever become fewer while a plan is made, so what failed once for a request fails again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from emep.scheduling.cluster.arrays import BoolArray, Filter, FloatArray, IntArray
from emep.scheduling.cluster.hosts import HostRoom, capped
from emep.scheduling.cluster.index import ClusterIndex
from emep.scheduling.cluster.occupancy import Occupancy, sum_by
from emep.scheduling.model import Hold, Job
from emep.scheduling.placement.room import CellCounts, Room
from emep.scheduling.request import Request, run_limit
from emep.scheduling.reservations.reservations import Reservations


class PlanState:
    """Made for one plan and thrown away; the occupancy it starts from stays as it is."""

    def __init__(
        self, occupancy: Occupancy, now: float, pending: Mapping[str, Job], holds: Iterable[Hold]
    ) -> None:
        self.occupancy, self.policy, self.now = occupancy, occupancy.policy, now
        self.index: ClusterIndex = occupancy.index
        self.free: BoolArray = occupancy.free.copy()
        self.busy_until: FloatArray = occupancy.until.copy()
        self.occupied: BoolArray = occupancy.occupied
        self.allocated = occupancy.gpus
        self.winding_down: BoolArray = occupancy.winding_down.copy()
        """GPUs that come free by themselves within a grace period and are not promised to a job."""
        self.counts = occupancy.counts.copy()
        self.hosts = occupancy.hosts.copy()
        self.reservations = Reservations(self.index, now, self.free, self.busy_until)
        self.promised: dict[str, IntArray] = {}
        """Job id -> GPUs that are its own to take: free ones, or on their way to it."""
        self._releases: dict[str, float] = {}
        self._owner: dict[int, str] | None = None
        self._before_promise: dict[str, FloatArray] = {}
        self._end_graces()
        self._promise(pending, holds)

    # ---- the snapshot --------------------------------------------------------------------------------------

    def _end_graces(self) -> None:
        """Treat a yielding job without a deadline as if it had just been asked to yield."""
        for job_id in self.occupancy.without_deadline:
            gpus = self.allocated[job_id]
            deadline = self.now + self.policy.preemption.grace_period
            self.busy_until[gpus] = np.minimum(self.busy_until[gpus], deadline)

    def _promise(self, pending: Mapping[str, Job], holds: Iterable[Hold]) -> None:
        """Hold GPUs for pending preemptors: not free for other jobs, busy until the preemptors are done."""
        held: dict[str, list[int]] = {}
        for hold in holds:
            held.setdefault(hold.job_id, []).extend(self.index.numbers(hold.gpus).tolist())
        exact = set(held)
        if self.winding_down.any():
            for job_id, allocation in self.occupancy.allocations.items():
                cause = allocation.held_for
                if allocation.yielding and cause and cause not in exact:
                    held.setdefault(cause, []).extend(self.allocated[job_id])
        for job_id, gpus in held.items():
            if job_id in pending and pending[job_id].gpu_count:
                mine = np.array(sorted(set(gpus)), dtype=np.int64)
                self.promise(pending[job_id], mine[self.free[mine] | self.winding_down[mine]])

    def owners_of(self, gpus: IntArray) -> list[str]:
        """Ids of the jobs that run on any of these GPUs."""
        if self._owner is None:
            self._owner = {gpu: job_id for job_id, held in self.allocated.items() for gpu in held}
        return sorted({self._owner[gpu] for gpu in gpus.tolist() if gpu in self._owner})

    # ---- room ----------------------------------------------------------------------------------------------

    def free_of_kind(self, kind: Filter) -> int:
        """GPUs of a kind that are free now, reserved or not."""
        return self.counts.of_kind(kind)

    def room(self, request: Request, pool: str, end: float) -> Room:
        """What a job that ends at ``end`` may take in this pool now, off what is reserved before that."""
        blocked = self.reservations.blocked_cells(pool, end)
        cells = self.counts.by_cell
        return self._room(request, pool, cells if blocked is None else cells - blocked)

    def whole_room(self, request: Request, pool: str) -> Room:
        """What a job may take in this pool now if reservations do not matter for it."""
        return self._room(request, pool, self.counts.by_cell)

    def _room(self, request: Request, pool: str, cells: IntArray) -> Room:
        available = np.where(self.index.eligible_cells(request.filter_for(pool)), cells, 0)
        counts = self.counts
        return Room(
            self.index, self.capped(request, available), counts.by_group, counts.by_node, request.spread
        )

    def room_of(self, request: Request, pool: str, gpus: BoolArray, host: HostRoom | None = None) -> Room:
        """What a job may take in this pool of just these GPUs, beside these cores and memory (now's)."""
        index = self.index
        counts = index.count_by_cell(gpus)
        available = np.where(index.eligible_cells(request.filter_for(pool)), counts, 0)
        return Room(
            index,
            self.capped(request, available, host),
            sum_by(index.cell_group, counts, len(index.groups) + 1),
            sum_by(index.cell_node, counts, len(index.nodes)),
            request.spread,
        )

    def capped(self, request: Request, available: IntArray, host: HostRoom | None = None) -> IntArray:
        """``available``, cut down to the GPUs that the nodes' free cores and memory can feed."""
        if self.index.unlimited_nodes or not request.gpus:
            return available
        return capped(self.index, request, available, host or self.hosts.now)

    def host_at(self, time: float) -> HostRoom | None:
        """Cores and memory that are free at a time; None: no node limits them."""
        return None if self.index.unlimited_nodes else self.hosts.at(time)

    def host_without(self, victims: Iterable[str]) -> HostRoom | None:
        """Cores and memory that are free once these jobs are gone; None: no node limits them."""
        return None if self.index.unlimited_nodes else self.hosts.without(victims)

    def host_ends(self) -> set[float]:
        """Times at which cores and memory come free."""
        return self.hosts.ends()

    # ---- decisions -----------------------------------------------------------------------------------------

    def pick(
        self, take: CellCounts, allowed: BoolArray | None = None, preferred: BoolArray | None = None
    ) -> IntArray:
        """GPUs of a choice: in each cell the first that are allowed (free), ``preferred`` before others."""
        chosen: list[int] = []
        for cell, count in take:
            first, last = self.index.cell_bounds[cell]
            mask = self.free[first:last] if allowed is None else allowed[first:last]
            found = mask.nonzero()[0]
            if preferred is not None:
                found = found[np.argsort(~preferred[first:last][found], kind="stable")]
            chosen += (found[:count] + first).tolist()
        return np.array(sorted(chosen), dtype=np.int64)

    def start(self, job: Job, gpus: IntArray, nodes: Sequence[str], pool: str, end: float) -> None:
        """The job has these GPUs from now until ``end``."""
        self.promised.pop(job.id, None)
        self._remove(gpus, end)
        self.hosts.take(job, gpus.tolist(), nodes, end)
        self.reservations.started(pool, gpus, end)

    def release_of(self, job_id: str) -> float:
        """When everything that is promised to a job has come free at the latest."""
        return self._releases.get(job_id, self.now)

    def evict(self, job: Job) -> None:
        """Mark a job as a victim: its GPUs come free when its grace is over."""
        gpus = np.array(self.allocated[job.id], dtype=np.int64)
        deadline = self.now + self.policy.preemption.grace_period
        usable = gpus[self.index.gpu_usable[gpus]]
        self.busy_until[usable] = np.minimum(self.busy_until[usable], deadline)
        self.winding_down[gpus] = True
        self.reservations.upset()

    def promise(self, job: Job, gpus: IntArray) -> None:
        """Hold GPUs for a preemptor: no other job gets them, and they are busy until it is done."""
        gpus = gpus[self.index.gpu_usable[gpus]]
        limit = run_limit(job, self.policy)
        release = max([self.now, *self.busy_until[gpus].tolist()])
        self._releases[job.id] = release
        self._before_promise[job.id] = self.busy_until[gpus]
        self.promised[job.id] = gpus
        self.winding_down[gpus] = False
        self._remove(gpus, math.inf if limit is None else release + limit)
        self.reservations.upset()

    def withdraw(self, job: Job) -> None:
        """Drop a promise that can no longer make a placement."""
        gpus = self.promised.pop(job.id)
        self.busy_until[gpus] = self._before_promise.pop(job.id)
        idle = gpus[~self.occupied[gpus]]
        self.free[idle] = True
        self.winding_down[gpus[self.occupied[gpus]]] = True
        self.counts.add(idle.tolist(), 1)

    def _remove(self, gpus: IntArray, end: float) -> None:
        self.counts.add(gpus[self.free[gpus]].tolist(), -1)
        self.free[gpus] = False
        self.busy_until[gpus] = end
