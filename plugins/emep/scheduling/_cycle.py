"""One cycle: the state of a plan while it is made, and the loop over pending jobs that makes it."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from emep.policy import Policy
from emep.scheduling._board import Board
from emep.scheduling._cpu import CpuReservations, place_cpu_job
from emep.scheduling._index import ClusterIndex, IntArray
from emep.scheduling.backfill import earliest
from emep.scheduling.eligibility import Request, request_of, run_limit
from emep.scheduling.explain import Blocked, Explainer
from emep.scheduling.fair_share import FairTree
from emep.scheduling.model import (
    GpuId,
    Hold,
    Job,
    Placement,
    Plan,
    Preempt,
    Reject,
    Reservation,
    Snapshot,
    Start,
)
from emep.scheduling.order import PendingOrder
from emep.scheduling.placement import place
from emep.scheduling.preemption import Preemption
from emep.scheduling.quota import Holdings
from emep.scheduling.reject import Verdict, against_cluster, against_policy

_NO_GPUS = np.zeros(0, dtype=np.int64)


class Cycle:
    """Looks at every pending job once, in order."""

    def __init__(self, snapshot: Snapshot, policy: Policy, now: float, index: ClusterIndex) -> None:
        self.snapshot, self.policy, self.now, self.index = snapshot, policy, now, index
        self.board = Board(index, snapshot, policy, now)
        self.holdings = Holdings(policy)
        self.holdings.add_all(snapshot.allocations, {node.name: node.pool for node in index.nodes})
        self.tree = FairTree(policy, snapshot.usage)
        self.preemption = Preemption(self.board, self.holdings, snapshot.allocations)
        self.starts: list[Start] = []
        self.preemptions: list[Preempt] = []
        self.rejections: list[Reject] = []
        self.blocked: list[Blocked] = []
        self.reserved_at: dict[str, float] = {}
        self._cpu_reservations = CpuReservations(self.board)
        self._requests: dict[Request, Request] = {}
        self._verdicts: dict[int, Verdict | None] = {}
        self._failed: dict[int, float] = {}
        """Request (by identity of its shared value) -> least end of a run that did not fit."""
        self._closed: dict[tuple[str, bool], str] = {}
        """Without backfill: (pool, CPU job?) -> the job that everybody there is behind."""
        self._count_promises()
        self._charge_entries()

    def _count_promises(self) -> None:
        """What is promised counts as held, or others of the same project would take its quota meanwhile."""
        pending = {job.id: job for job in self.snapshot.pending}
        for job_id in self.board.promised:
            job = pending[job_id]
            self.holdings.add(job, self._promise_pool(job), job.gpu_count)

    def _promise_pool(self, job: Job) -> str:
        gpus = self.board.promised[job.id]
        return self.index.nodes[self.index.gpu_node[gpus[0]]].pool if len(gpus) else ""

    # ---- consumption ---------------------------------------------------------------------------------------

    def _charge_entries(self) -> None:
        """What has started but not yet run for ``entry_charge`` counts as if it had."""
        for allocation in self.snapshot.allocations:
            rest = self.policy.entry_charge - (self.now - allocation.start_time)
            if rest > 0 and allocation.gpus:
                self._charge(allocation.job, allocation.gpus, min(rest, self.policy.entry_charge))

    def _charge(self, job: Job, gpus: Iterable[GpuId], seconds: float) -> None:
        billing, kinds = self.policy.billing, self.index.cell_type
        cells = self.index.gpu_cell[self.board.numbers(gpus)].tolist()
        rate = math.fsum(billing(kinds[cell]) for cell in cells)
        self.tree.charge(job.queue, job.project, job.user, rate * seconds)

    # ---- the loop ------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Make the plan."""
        ready = [job for job in self.snapshot.pending if not self._reject(job)]
        holders = [job for job in ready if job.id in self.board.promised]
        served = {
            job.id
            for job in PendingOrder(holders, self.tree, self.policy, self.now).drain()
            if self._serve_holder(job)
        }
        order = PendingOrder((job for job in ready if job.id not in served), self.tree, self.policy, self.now)
        while (job := order.next()) is not None:
            blocked = self._consider(job)
            if blocked is None:
                order.charged()
            else:
                self.blocked.append(blocked)

    def request(self, job: Job) -> Request:
        """The job's request; equal requests are one object."""
        made = request_of(job, self.policy, self.index)
        return self._requests.setdefault(made, made)

    def _reject(self, job: Job) -> bool:
        verdict = against_policy(job, self.policy)
        if verdict is None:
            request = self.request(job)
            if id(request) not in self._verdicts:
                self._verdicts[id(request)] = against_cluster(request, self.index)
            verdict = self._verdicts[id(request)]
        if verdict is not None:
            self.rejections.append(Reject(job.id, *verdict))
        return verdict is not None

    def _consider(self, job: Job) -> Blocked | None:
        """Start, preempt or reserve for a job; None if it started, else what is known of why it did not."""
        if job.not_before > self.now:
            return Blocked(job, backing_off=True)
        if job.id in self.board.promised:
            return Blocked(job, holding=True)
        over = self.holdings.exceeded(job)
        if over:
            return Blocked(job, quota=tuple(over))
        request, limit = self.request(job), run_limit(job, self.policy)
        is_cpu_job = not request.gpus
        pools = tuple(pool for pool in request.pools if (pool, is_cpu_job) not in self._closed)
        if not pools:
            first = self._closed.get((request.pools[0], is_cpu_job)) if request.pools else None
            return Blocked(job, behind=first)
        end = math.inf if limit is None else self.now + limit
        if self._try_start(job, request, pools, end):
            return None
        if not is_cpu_job and self._try_preempt(job, request, pools, limit):
            return Blocked(job, holding=True)
        self._reserve(job, request, pools, limit)
        return Blocked(job)

    # ---- starts --------------------------------------------------------------------------------------------

    def _serve_holder(self, job: Job) -> bool:
        """A preemptor starts as soon as what was promised to it, with what else is free, makes a placement.

        A promise that would not even make one when all of it has come free is withdrawn.
        """
        request, limit = self.request(job), run_limit(job, self.policy)
        end = math.inf if limit is None else self.now + limit
        mine = np.zeros(len(self.board.free), dtype=bool)
        mine[self.board.promised[job.id]] = True
        if job.not_before <= self.now:
            ready = (mine & ~self.board.occupied) | self.board.free
            for pool in request.pools:
                take = place(request, self.board.room_of(request, pool, ready))
                if take is not None:
                    gpus = self.board.pick(take, ready, mine)
                    self.holdings.add(job, self._promise_pool(job), -job.gpu_count)
                    self._start(job, gpus, pool, end, "has what was freed for it")
                    return True
        some_day = mine | self.board.free
        if not any(
            place(request, self.board.room_of(request, pool, some_day, self.board.host_at(math.inf)))
            for pool in request.pools
        ):
            self.holdings.add(job, self._promise_pool(job), -job.gpu_count)
            self.board.withdraw(job)
        return False

    def _try_start(self, job: Job, request: Request, pools: tuple[str, ...], end: float) -> bool:
        if not request.gpus:
            nodes = place_cpu_job(self.board, request, pools, self._cpu_reservations.kept_from(end))
            if nodes is not None:
                self.board.hosts.take(job, _NO_GPUS, nodes, end)
                passes = bool(self._cpu_reservations.made)
                self.starts.append(Start(job.id, Placement((), nodes), "fits", backfilled=passes))
            return nodes is not None
        failed = self._failed.get(id(request))
        if failed is not None and failed <= end:
            return False
        for pool in pools:
            gpus = self._find(request, pool, end)
            if gpus is not None:
                self._start(job, gpus, pool, end, "fits")
                return True
        self._failed[id(request)] = end
        return False

    def _find(self, request: Request, pool: str, end: float) -> IntArray | None:
        """GPUs for a run that ends at ``end`` and delays no reservation; None where there are none."""
        board, windows = self.board, self.board.windows
        if not windows.in_pool(pool):
            take = place(request, board.whole_room(request, pool))
            return None if take is None else board.pick(take)
        kind = request.filter_for(pool)
        if windows.counts(pool, kind):
            if windows.profile(pool, kind).slack(self.now, end) < request.gpus:
                return None
            take = place(request, board.whole_room(request, pool))
            return None if take is None else board.pick(take)
        take = place(request, board.room(request, pool, end))
        if take is None:
            return None
        blocked = windows.blocked_gpus(pool, end)
        return board.pick(take, board.free if blocked is None else board.free & ~blocked)

    def _start(self, job: Job, gpus: IntArray, pool: str, end: float, reason: str) -> None:
        names = self.index.gpu_names(gpus.tolist())
        nodes = tuple(dict.fromkeys(gpu.node for gpu in names))
        backfilled = bool(self.board.windows.in_pool(pool))
        self.board.start(job, gpus, nodes, pool, end)
        self.holdings.add(job, pool, len(names))
        self._charge(job, names, self.policy.entry_charge)
        self.starts.append(Start(job.id, Placement(names, nodes), reason, backfilled))

    # ---- preemption and reservations -----------------------------------------------------------------------

    def _try_preempt(self, job: Job, request: Request, pools: tuple[str, ...], limit: float | None) -> bool:
        choice = self.preemption.choose(job, request, pools, limit)
        if choice is None:
            return False
        self.preemptions += [
            Preempt(victim.job.id, job.id, choice.reason_for(victim), choice.code)
            for victim in choice.victims
        ]
        self.preemption.carry_out(job, choice)
        return True

    def _reserve(self, job: Job, request: Request, pools: tuple[str, ...], limit: float | None) -> None:
        allowed = self.policy.reservations
        if allowed == 0:
            for pool in pools:
                self._closed[pool, not request.gpus] = job.id
            return
        if not request.gpus:
            at = self._cpu_reservations.reserve(job, request, pools, allowed)
            if at is not None:
                self.reserved_at[job.id] = at
            return
        windows = self.board.windows
        open_pools = tuple(pool for pool in pools if allowed is None or len(windows.in_pool(pool)) < allowed)
        found = earliest(self.board, job, request, limit, open_pools)
        if found is not None:
            windows.add(found)
            self.reserved_at[job.id] = found.at

    # ---- the result ----------------------------------------------------------------------------------------

    def result(self, *, explain: bool) -> Plan:
        """The plan; with everybody's reasons if asked."""
        waiting = Explainer(self).explain_all() if explain else ()
        return Plan(
            starts=tuple(self.starts),
            preemptions=tuple(self.preemptions),
            reservations=self._reservations(),
            rejections=tuple(self.rejections),
            waiting=waiting,
            holds=tuple(
                Hold(job_id, self.index.gpu_names(gpus.tolist()))
                for job_id, gpus in sorted(self.board.promised.items())
            ),
        )

    def _reservations(self) -> tuple[Reservation, ...]:
        """In the order in which they were made."""
        self.board.windows.assign_all()
        found = {one.job.id: one for pool in self.index.pools for one in self.board.windows.in_pool(pool)}
        made: list[Reservation] = []
        for job_id, at in self.reserved_at.items():
            if job_id in found:
                names = self.index.gpu_names(found[job_id].gpus.tolist())
                nodes = tuple(dict.fromkeys(gpu.node for gpu in names))
                made.append(Reservation(job_id, at, Placement(names, nodes)))
            else:
                made.append(Reservation(job_id, at, Placement((), self._cpu_reservations.made[job_id])))
        return tuple(made)
