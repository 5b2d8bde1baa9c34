"""The state of one plan in the making: which GPUs are free now, which come free when, what is promised to whom.

Free GPUs only ever become fewer while a plan is made, so what failed once for a request fails again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from emep.policy import Policy
from emep.scheduling._cover import Room, Take
from emep.scheduling._index import NO_GROUP, BoolArray, ClusterIndex, FloatArray, IntArray
from emep.scheduling.eligibility import Request, run_limit
from emep.scheduling.model import Allocation, Job, Snapshot

TIME_TOLERANCE: Final = 1e-6
"""Seconds; two sums of the same durations may differ by rounding."""


@dataclass(frozen=True, slots=True)
class Reserved:
    """A reservation by GPU numbers; the window is [at, end)."""

    job: Job
    at: float
    end: float
    pool: str
    gpus: IntArray
    take: Take


class Board:
    """Mutable; made for one plan and thrown away."""

    def __init__(self, index: ClusterIndex, snapshot: Snapshot, policy: Policy, now: float) -> None:
        self.index, self.policy, self.now = index, policy, now
        self.free: BoolArray = index.gpu_usable.copy()
        self.busy_until: FloatArray = np.where(index.gpu_usable, -np.inf, np.inf)
        self.cpu_free: FloatArray = index.node_cpu.copy()
        self.memory_free: FloatArray = index.node_memory.copy()
        self.occupied: BoolArray = np.zeros(len(self.free), dtype=bool)
        """GPUs that something runs on (or winds down on) by now."""
        self.winding_down: BoolArray = self.occupied.copy()
        """GPUs that come free by themselves within a grace period and are promised to nobody."""
        self.allocated: dict[str, IntArray] = {}
        """Job id -> the GPUs it runs on."""
        self.owner: IntArray = np.full(len(self.free), -1, dtype=np.int64)
        """Who runs on each GPU, as a number into the snapshot's allocations; -1: nobody."""
        self.reservations: list[Reserved] = []
        self.promised: dict[str, IntArray] = {}
        """Job id -> GPUs that are its own to take: free ones, or on their way to it."""
        self._releases: dict[str, float] = {}
        pending = {job.id: job for job in snapshot.pending}
        for number, allocation in enumerate(snapshot.allocations):
            self._occupy(allocation, number)
        self._promise(snapshot, pending)
        self.free_cells: IntArray = index.count_by_cell(self.free)
        # One more than there are groups: NO_GROUP (-1) reads the last, which is always 0.
        self.group_free: IntArray = _sum_by(index.cell_group, self.free_cells, len(index.groups) + 1)
        self.node_free: IntArray = _sum_by(index.cell_node, self.free_cells, len(index.nodes))
        self._blocked: dict[int, IntArray] = {}

    # ---- the snapshot --------------------------------------------------------------------------------------

    def _occupy(self, allocation: Allocation, number: int) -> None:
        gpus = self.numbers(allocation.gpus)
        self.free[gpus] = False
        self.occupied[gpus] = True
        self.owner[gpus] = number
        self.allocated[allocation.job.id] = gpus
        if allocation.yielding:
            self.winding_down[gpus] = True
        self.busy_until[gpus] = np.maximum(self.busy_until[gpus], self.end_of(allocation))
        self._charge_nodes(allocation.job, gpus, allocation.nodes, 1.0)

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
                self.promise(pending[job_id], np.array(sorted(set(gpus)), dtype=np.int64))

    def numbers(self, gpus: Iterable[tuple[str, int]]) -> IntArray:
        """Numbers of GPUs by name; names that the cluster does not know (a node just removed) are left out."""
        known = self.index.gpu_number
        return np.array([known[gpu] for gpu in gpus if gpu in known], dtype=np.int64)

    # ---- room ----------------------------------------------------------------------------------------------

    def room(self, request: Request, pool: str, end: float) -> Room:
        """What a job that ends at ``end`` may take in this pool now."""
        eligible = self.index.eligible_cells(request.filter_for(pool))
        available = np.where(eligible, self.free_cells - self.blocked_cells(end), 0)
        return Room(
            self.index, self.capped(request, available), self.group_free, self.node_free, request.spread
        )

    def room_of(
        self, request: Request, pool: str, gpus: BoolArray, gone: Sequence[tuple[Job, Sequence[int]]] = ()
    ) -> Room:
        """What a job may take in this pool of just these GPUs, once ``gone`` are gone."""
        index = self.index
        counts = index.count_by_cell(gpus)
        available = np.where(index.eligible_cells(request.filter_for(pool)), counts, 0)
        return Room(
            index,
            self.capped(request, available, gone),
            _sum_by(index.cell_group, counts, len(index.groups) + 1),
            _sum_by(index.cell_node, counts, len(index.nodes)),
            request.spread,
        )

    def capped(
        self, request: Request, available: IntArray, gone: Sequence[tuple[Job, Sequence[int]]] = ()
    ) -> IntArray:
        """``available``, cut down to the GPUs that the nodes' cores and memory can feed once ``gone`` are gone."""
        caps = self.node_caps(request, gone)
        if caps is None:
            return available
        per_cell = caps[self.index.cell_node]
        if bool((available <= per_cell).all()) and not self.index.has_many_cells:
            return available
        left = caps.copy()
        result = np.minimum(available, per_cell)
        for cell in np.flatnonzero(result).tolist():
            node = self.index.cell_node[cell]
            result[cell] = min(result[cell], left[node])
            left[node] -= result[cell]
        return result

    def node_caps(self, request: Request, gone: Sequence[tuple[Job, Sequence[int]]] = ()) -> IntArray | None:
        """Per node, for how many of the job's GPUs it has cores and memory; None: for all of them anywhere."""
        if self.index.unlimited_nodes or not request.gpus:
            return None
        cpu_free, memory_free = self.cpu_free, self.memory_free
        if gone:
            cpu_free, memory_free = cpu_free.copy(), memory_free.copy()
            for job, gpus in gone:
                self._give_back(job, gpus, cpu_free, memory_free)
        cpu, memory = request.cpu / request.gpus, request.memory / request.gpus
        caps = np.full(len(self.index.nodes), float(request.gpus))
        if cpu > 0:
            caps = np.minimum(caps, np.floor(cpu_free / cpu + 1e-9))
        if memory > 0:
            caps = np.minimum(caps, np.floor(memory_free / memory + 1e-9))
        return np.maximum(caps, 0).astype(np.int64)

    def _give_back(
        self, job: Job, gpus: Sequence[int], cpu_free: FloatArray, memory_free: FloatArray
    ) -> None:
        for gpu in gpus:
            node = self.index.gpu_node[gpu]
            cpu_free[node] += job.cpu / len(gpus)
            memory_free[node] += job.memory / len(gpus)

    def blocked_gpus(self, end: float) -> BoolArray | None:
        """GPUs reserved for others at some time before ``end``; None: no GPU is."""
        count = self.windows_before(end)
        if not count:
            return None
        blocked = np.zeros(len(self.free), dtype=bool)
        for reservation in self.reservations[:count]:
            blocked[reservation.gpus] = True
        return blocked

    def blocked_cells(self, end: float) -> IntArray:
        """Per cell, how many of the GPUs free now are reserved at some time before ``end``."""
        count = self.windows_before(end)
        found = self._blocked.get(count)
        if found is None:
            blocked = self.blocked_gpus(end)
            if blocked is None:
                found = np.zeros(self.index.cell_count, dtype=np.int64)
            else:
                found = self.index.count_by_cell(blocked & self.free)
            self._blocked[count] = found
        return found

    def windows_before(self, end: float) -> int:
        """How many reservations (they are sorted by time) begin before ``end``."""
        return sum(1 for reservation in self.reservations if reservation.at < end - TIME_TOLERANCE)

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

    def start(self, job: Job, gpus: IntArray, nodes: Sequence[str], end: float) -> None:
        """The job has these GPUs from now until ``end``."""
        self.promised.pop(job.id, None)
        self._remove(gpus, end)
        self._charge_nodes(job, gpus, nodes, 1.0)

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

    def promise(self, job: Job, gpus: IntArray) -> None:
        """Hold these GPUs for a preemptor: nobody else gets them, and they are busy until it will be done."""
        gpus = gpus[self.index.gpu_usable[gpus]]
        limit = run_limit(job, self.policy)
        release = max([self.now, *self.busy_until[gpus].tolist()])
        self._releases[job.id] = release
        self.promised[job.id] = gpus
        self.winding_down[gpus] = False
        self._remove(gpus, math.inf if limit is None else release + limit)

    def _remove(self, gpus: IntArray, end: float) -> None:
        freed = gpus[self.free[gpus]]
        self.free[gpus] = False
        self.busy_until[gpus] = end
        if hasattr(self, "free_cells"):
            self._blocked.clear()
            cells = self.index.gpu_cell[freed]
            np.subtract.at(self.free_cells, cells, 1)
            groups = self.index.cell_group[cells]
            np.subtract.at(self.group_free, groups[groups != NO_GROUP], 1)
            np.subtract.at(self.node_free, self.index.cell_node[cells], 1)

    def reserve(self, reservation: Reserved) -> None:
        """Keep GPUs for a job from a time on."""
        self.reservations.append(reservation)
        self.reservations.sort(key=lambda one: one.at)
        self._blocked.clear()

    def _charge_nodes(self, job: Job, gpus: IntArray, nodes: Sequence[str], sign: float) -> None:
        """Take (or give back) cores and memory: by GPUs per node, or evenly over a CPU job's nodes."""
        if len(gpus):
            on, counts = np.unique(self.index.gpu_node[gpus], return_counts=True)
            part = sign * counts / len(gpus)
        else:
            known = [self.index.node_number[name] for name in nodes if name in self.index.node_number]
            if not known:
                return
            on, part = np.array(known, dtype=np.int64), np.full(len(known), sign / len(known))
        self.cpu_free[on] -= job.cpu * part
        self.memory_free[on] -= job.memory * part


def _sum_by(key: IntArray, counts: IntArray, size: int) -> IntArray:
    known = key != NO_GROUP
    return np.bincount(key[known], weights=counts[known], minlength=size).astype(np.int64)
