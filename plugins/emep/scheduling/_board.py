"""The state of one plan in the making: GPUs free now, GPUs that come free, what is promised to whom.

Free GPUs only ever become fewer while a plan is made, so what failed once for a request fails again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from emep.policy import Policy
from emep.scheduling._cover import Room, Take
from emep.scheduling._host import HostRoom, Hosts
from emep.scheduling._index import NO_GROUP, BoolArray, ClusterIndex, FloatArray, IntArray
from emep.scheduling._windows import Windows
from emep.scheduling.eligibility import Request, run_limit
from emep.scheduling.model import Allocation, Job, Snapshot


class Candidate(Protocol):
    """What a board needs to know of a running job that may go."""

    @property
    def job(self) -> Job:
        """The job."""

    @property
    def gpus(self) -> Sequence[int]:
        """Its GPUs by number."""


class Board:
    """Mutable; made for one plan and thrown away."""

    def __init__(self, index: ClusterIndex, snapshot: Snapshot, policy: Policy, now: float) -> None:
        self.index, self.policy, self.now = index, policy, now
        self.free: BoolArray = index.gpu_usable.copy()
        self.busy_until: FloatArray = np.where(index.gpu_usable, -np.inf, np.inf)
        self.hosts = Hosts(index)
        self.windows = Windows(self)
        self.occupied: BoolArray = np.zeros(len(self.free), dtype=bool)
        """GPUs that something runs on (or winds down on) by now."""
        self.winding_down: BoolArray = self.occupied.copy()
        """GPUs that come free by themselves within a grace period and are promised to nobody."""
        self.allocated: dict[str, IntArray] = {}
        """Job id -> the GPUs it runs on."""
        self.owner: IntArray = np.full(len(self.free), -1, dtype=np.int64)
        """Who runs on each GPU, as a number into the snapshot's allocations; -1: nobody."""
        self.promised: dict[str, IntArray] = {}
        """Job id -> GPUs that are its own to take: free ones, or on their way to it."""
        self._releases: dict[str, float] = {}
        self._before_promise: dict[str, FloatArray] = {}
        pending = {job.id: job for job in snapshot.pending}
        for number, allocation in enumerate(snapshot.allocations):
            self._occupy(allocation, number)
        self.free_cells: IntArray = index.count_by_cell(self.free)
        # One more than there are groups: NO_GROUP (-1) reads the last, which is always 0.
        self.group_free: IntArray = _sum_by(index.cell_group, self.free_cells, len(index.groups) + 1)
        self.node_free: IntArray = _sum_by(index.cell_node, self.free_cells, len(index.nodes))
        self._promise(snapshot, pending)

    # ---- the snapshot --------------------------------------------------------------------------------------

    def _occupy(self, allocation: Allocation, number: int) -> None:
        gpus = self.numbers(allocation.gpus)
        self.free[gpus] = False
        self.occupied[gpus] = True
        self.owner[gpus] = number
        self.allocated[allocation.job.id] = gpus
        if allocation.yielding:
            self.winding_down[gpus] = True
        end = self.end_of(allocation)
        self.busy_until[gpus] = np.maximum(self.busy_until[gpus], end)
        self.hosts.take(allocation.job, gpus, allocation.nodes, end)

    def end_of(self, allocation: Allocation) -> float:
        """When it is over at the latest; now for one that is overdue."""
        limit = run_limit(allocation.job, self.policy)
        end = math.inf if limit is None else allocation.start_time + limit
        if allocation.yielding:
            grace = self.now + self.policy.preemption.grace_period
            end = min(end, grace if allocation.releases_at is None else allocation.releases_at)
        return max(end, self.now)

    def _promise(self, snapshot: Snapshot, pending: dict[str, Job]) -> None:
        """GPUs held for pending preemptors: not free for anybody else, and busy until those will be done."""
        held: dict[str, list[int]] = {}
        exact = {hold.job_id for hold in snapshot.holds}
        for hold in snapshot.holds:
            held.setdefault(hold.job_id, []).extend(self.numbers(hold.gpus).tolist())
        for allocation in snapshot.allocations:
            if allocation.yielding and allocation.held_for and allocation.held_for not in exact:
                held.setdefault(allocation.held_for, []).extend(self.numbers(allocation.gpus).tolist())
        for job_id, gpus in held.items():
            if job_id in pending:
                mine = np.array(sorted(set(gpus)), dtype=np.int64)
                self.promise(pending[job_id], mine[self.free[mine] | self.winding_down[mine]])

    def numbers(self, gpus: Iterable[tuple[str, int]]) -> IntArray:
        """Numbers of GPUs by name; names that the cluster does not know (a node just removed) are left out."""
        known = self.index.gpu_number
        return np.array([known[gpu] for gpu in gpus if gpu in known], dtype=np.int64)

    # ---- room ----------------------------------------------------------------------------------------------

    def room(self, request: Request, pool: str, end: float) -> Room:
        """What a job that ends at ``end`` may take in this pool now, off what is reserved before that."""
        blocked = self.windows.blocked_cells(pool, end)
        return self._room(request, pool, self.free_cells if blocked is None else self.free_cells - blocked)

    def whole_room(self, request: Request, pool: str) -> Room:
        """What a job may take in this pool now if reservations do not matter for it."""
        return self._room(request, pool, self.free_cells)

    def _room(self, request: Request, pool: str, cells: IntArray) -> Room:
        available = np.where(self.index.eligible_cells(request.filter_for(pool)), cells, 0)
        return Room(
            self.index, self.capped(request, available), self.group_free, self.node_free, request.spread
        )

    def room_of(self, request: Request, pool: str, gpus: BoolArray, host: HostRoom | None = None) -> Room:
        """What a job may take in this pool of just these GPUs, beside these cores and memory (now's)."""
        index = self.index
        counts = index.count_by_cell(gpus)
        available = np.where(index.eligible_cells(request.filter_for(pool)), counts, 0)
        return Room(
            index,
            self.capped(request, available, host),
            _sum_by(index.cell_group, counts, len(index.groups) + 1),
            _sum_by(index.cell_node, counts, len(index.nodes)),
            request.spread,
        )

    def capped(self, request: Request, available: IntArray, host: HostRoom | None = None) -> IntArray:
        """``available``, cut down to the GPUs that the nodes' free cores and memory can feed."""
        if self.index.unlimited_nodes or not request.gpus:
            return available
        left = (host or self.hosts.now).caps(request)
        per_cell = left[self.index.cell_node]
        if bool((available <= per_cell).all()) and not self.index.has_many_cells:
            return available
        result = np.minimum(available, per_cell)
        for cell in np.flatnonzero(result).tolist():
            node = self.index.cell_node[cell]
            result[cell] = min(result[cell], left[node])
            left[node] -= result[cell]
        return result

    def host_at(self, time: float) -> HostRoom | None:
        """Cores and memory that are free at a time; None: nobody counts them."""
        return None if self.index.unlimited_nodes else self.hosts.at(time)

    def host_without(self, victims: Iterable[Candidate]) -> HostRoom | None:
        """Cores and memory that are free once these are gone; None: nobody counts them."""
        if self.index.unlimited_nodes:
            return None
        return self.hosts.without((one.job, one.gpus) for one in victims)

    def host_ends(self) -> set[float]:
        """Times at which cores and memory come free."""
        return self.hosts.ends()

    # ---- decisions -----------------------------------------------------------------------------------------

    def pick(
        self, take: Take, allowed: BoolArray | None = None, preferred: BoolArray | None = None
    ) -> IntArray:
        """GPUs of a choice: in each cell the first free (and allowed) ones, ``preferred`` ones before others."""
        chosen: list[int] = []
        for cell, count in take:
            first, last = self.index.cell_bounds[cell]
            mask = self.free[first:last] if allowed is None else allowed[first:last]
            found = np.flatnonzero(mask)
            if preferred is not None:
                found = found[np.argsort(~preferred[first:last][found], kind="stable")]
            chosen += (found[:count] + first).tolist()
        return np.array(sorted(chosen), dtype=np.int64)

    def start(self, job: Job, gpus: IntArray, nodes: Sequence[str], pool: str, end: float) -> None:
        """The job has these GPUs from now until ``end``."""
        self.promised.pop(job.id, None)
        self._remove(gpus, end)
        self.hosts.take(job, gpus, nodes, end)
        self.windows.started(pool, gpus, end)

    def release_of(self, job_id: str) -> float:
        """When everything that is promised to a job has come free at the latest."""
        return self._releases.get(job_id, self.now)

    def evict(self, job: Job) -> None:
        """A victim is on its way out: its GPUs come free when its grace is over."""
        gpus = self.allocated[job.id]
        self.busy_until[gpus] = np.minimum(
            self.busy_until[gpus], self.now + self.policy.preemption.grace_period
        )
        self.winding_down[gpus] = True
        self.windows.upset()

    def promise(self, job: Job, gpus: IntArray) -> None:
        """Hold these GPUs for a preemptor: nobody else gets them, and they are busy until it will be done."""
        gpus = gpus[self.index.gpu_usable[gpus]]
        limit = run_limit(job, self.policy)
        release = max([self.now, *self.busy_until[gpus].tolist()])
        self._releases[job.id] = release
        self._before_promise[job.id] = self.busy_until[gpus]
        self.promised[job.id] = gpus
        self.winding_down[gpus] = False
        self._remove(gpus, math.inf if limit is None else release + limit)
        self.windows.upset()

    def withdraw(self, job: Job) -> None:
        """Take back a promise that does not make a placement any more."""
        gpus = self.promised.pop(job.id)
        self.busy_until[gpus] = self._before_promise.pop(job.id)
        idle = gpus[~self.occupied[gpus]]
        self.free[idle] = True
        self.winding_down[gpus[self.occupied[gpus]]] = True
        self._count(idle, 1)

    def _remove(self, gpus: IntArray, end: float) -> None:
        freed = gpus[self.free[gpus]]
        self.free[gpus] = False
        self.busy_until[gpus] = end
        self._count(freed, -1)

    def _count(self, gpus: IntArray, sign: int) -> None:
        cells = self.index.gpu_cell[gpus]
        np.add.at(self.free_cells, cells, sign)
        groups = self.index.cell_group[cells]
        np.add.at(self.group_free, groups[groups != NO_GROUP], sign)
        np.add.at(self.node_free, self.index.cell_node[cells], sign)


def _sum_by(key: IntArray, counts: IntArray, size: int) -> IntArray:
    known = key != NO_GROUP
    return np.bincount(key[known], weights=counts[known], minlength=size).astype(np.int64)
