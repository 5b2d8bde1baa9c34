"""One cycle of decisions: ``plan(snapshot, policy, now)``, pure, the same input always the same output.

In order: jobs that can never run are rejected; preemptors get what is held for them; then every other pending
job is looked at once, in order. It starts where it fits (past a reservation only if it uses no reserved GPU or
ends in time), else preempts where it may, else reserves while its pool has reservations left, else waits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from emep.policy import Policy
from emep.scheduling._board import Board
from emep.scheduling._cpu import place_cpu_job
from emep.scheduling._index import ClusterIndex, IntArray
from emep.scheduling.backfill import earliest
from emep.scheduling.eligibility import Request, request_of, run_limit
from emep.scheduling.explain import Blocked, Explainer
from emep.scheduling.fair_share import FairTree
from emep.scheduling.model import (
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
from emep.scheduling.reject import validate_job


def plan(
    snapshot: Snapshot,
    policy: Policy,
    now: float,
    index: ClusterIndex | None = None,
    *,
    explain: bool = True,
) -> Plan:
    """Decide everything there is to decide at ``now`` (seconds, of the caller's epoch).

    ``index`` is ``ClusterIndex(snapshot.nodes)``, for callers that plan often over the same nodes.
    ``explain=False`` leaves out ``Plan.waiting``, for callers that do not show it to anybody. The caller hands
    ``Plan.holds`` back as ``Snapshot.holds`` next time, so that a preemptor finds what was freed for it.
    """
    if index is None or not index.matches(snapshot.nodes):
        index = ClusterIndex(snapshot.nodes)
    cycle = Cycle(snapshot, policy, now, index)
    cycle.run()
    return cycle.result(explain=explain)


class Cycle:
    """The state of one plan while it is made."""

    def __init__(self, snapshot: Snapshot, policy: Policy, now: float, index: ClusterIndex) -> None:
        self.snapshot, self.policy, self.now, self.index = snapshot, policy, now, index
        self.board = Board(index, snapshot, policy, now)
        self.holdings = Holdings(policy)
        self.holdings.add_all(snapshot.allocations, {node.name: node.pool for node in index.nodes})
        self.tree = FairTree(policy, snapshot.usage)
        self._charge_entries()
        self.preemption = Preemption(self.board, self.holdings, snapshot.allocations)
        self.starts: list[Start] = []
        self.preemptions: list[Preempt] = []
        self.reservations: list[Reservation] = []
        self.rejections: list[Reject] = []
        self.blocked: list[Blocked] = []
        self.reserved_at: dict[str, float] = {}
        self._requests: dict[Request, Request] = {}
        self._failed: dict[int, float] = {}
        """Request (by identity of its shared value) -> least end of a run that did not fit."""
        self._reserved_in: dict[str, int] = {}
        self._closed: dict[tuple[str, bool], str] = {}
        """FCFS: (pool, CPU job?) -> the job that everybody there is behind."""

    def _charge_entries(self) -> None:
        """What has started but not yet run for ``entry_charge`` counts as if it had."""
        for allocation in self.snapshot.allocations:
            rest = self.policy.entry_charge - (self.now - allocation.start_time)
            if rest > 0 and allocation.gpus:
                self._charge(allocation.job, allocation.gpus, min(rest, self.policy.entry_charge))

    def _charge(self, job: Job, gpus: Iterable[tuple[str, int]], seconds: float) -> None:
        billing = self.policy.billing
        kinds = self.index.cell_type
        numbers = self.board.numbers(gpus)
        rate = math.fsum(billing(kinds[cell]) for cell in self.index.gpu_cell[numbers].tolist())
        self.tree.charge(job.queue, job.project, job.user, rate * seconds)

    # ---- the cycle -----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Look at every pending job once."""
        ready: list[Job] = []
        for job in self.snapshot.pending:
            verdict = self._rejection(job)
            if verdict is not None:
                self.rejections.append(verdict)
            else:
                ready.append(job)
        order = PendingOrder(ready, self.tree, self.policy, self.now)
        holders = [job for job in ready if job.id in self.board.promised]
        for job in PendingOrder(holders, self.tree, self.policy, self.now).drain():
            self._serve_holder(job)
        served = {start.job_id for start in self.starts}
        order.charged()
        while (next_job := order.next()) is not None:
            if next_job.id in served:
                continue
            before = len(self.starts)
            self._consider(next_job)
            if len(self.starts) > before:
                order.charged()

    def request(self, job: Job) -> Request:
        """The job's request; equal requests are one object."""
        made = request_of(job, self.policy, self.index)
        return self._requests.setdefault(made, made)

    def _rejection(self, job: Job) -> Reject | None:
        return validate_job(job, self.index, self.policy)

    def _serve_holder(self, job: Job) -> None:
        """A preemptor starts as soon as what it was promised, with what else is free, makes its placement."""
        request, limit = self.request(job), run_limit(job, self.policy)
        end = math.inf if limit is None else self.now + limit
        mine = np.zeros(len(self.board.free), dtype=bool)
        mine[self.board.promised[job.id]] = True
        ready = (mine & ~self.board.occupied & self.index.gpu_usable) | self.board.free
        for pool in request.pools:
            take = place(request, self.board.room_of(request, pool, ready))
            if take is not None:
                self._start(job, self.board.pick(take, ready, mine), pool, end, "has what was freed for it")
                return

    def _consider(self, job: Job) -> None:
        if job.not_before > self.now:
            self.blocked.append(Blocked(job, backing_off=True))
            return
        limits = self.holdings.exceeded(job)
        if limits:
            self.blocked.append(Blocked(job, quota=tuple(limits)))
            return
        if job.id in self.board.promised and self._promise_holds(job):
            self.blocked.append(Blocked(job, holding=True))
            return
        request, limit = self.request(job), run_limit(job, self.policy)
        pools = tuple(pool for pool in request.pools if (pool, not request.gpus) not in self._closed)
        if not pools:
            self.blocked.append(
                Blocked(
                    job,
                    behind=self._closed.get((request.pools[0], not request.gpus)) if request.pools else None,
                )
            )
            return
        if self._try_start(job, request, pools, limit):
            return
        if request.gpus and self._try_preempt(job, request, pools, limit):
            self.blocked.append(Blocked(job, holding=True))
            return
        self._reserve(job, request, pools, limit)
        self.blocked.append(Blocked(job))

    def _try_start(self, job: Job, request: Request, pools: tuple[str, ...], limit: float | None) -> bool:
        end = math.inf if limit is None else self.now + limit
        if not request.gpus:
            return self._start_cpu_job(job, request, pools, end)
        key = id(request)
        failed = self._failed.get(key)
        if failed is not None and failed <= end:
            return False
        for pool in pools:
            take = place(request, self.board.room(request, pool, end))
            if take is not None:
                allowed = self.board.free
                blocked = self.board.blocked_gpus(end)
                # One that ends in time takes reserved GPUs first: the others are all that longer jobs may use.
                reserved = self.board.blocked_gpus(math.inf)
                gpus = self.board.pick(take, allowed if blocked is None else allowed & ~blocked, reserved)
                self._start(job, gpus, pool, end, "fits")
                return True
        self._failed[key] = end
        return False

    def _start_cpu_job(self, job: Job, request: Request, pools: tuple[str, ...], end: float) -> bool:
        nodes = place_cpu_job(self.board, request, pools, end)
        if nodes is None:
            return False
        self.board.start(job, np.zeros(0, dtype=np.int64), nodes, end)
        self.starts.append(Start(job.id, Placement((), nodes), "fits", self._passes_others(job)))
        return True

    def _start(self, job: Job, gpus: IntArray, pool: str, end: float, reason: str) -> None:
        names = self.index.gpu_names(gpus.tolist())
        nodes = tuple(dict.fromkeys(gpu.node for gpu in names))
        self.board.start(job, gpus, nodes, end)
        self.holdings.add(job, pool, len(names))
        self._charge(job, names, self.policy.entry_charge)
        backfilled = self._passes_others(job)
        self.starts.append(Start(job.id, Placement(names, nodes), reason, backfilled))

    def _passes_others(self, job: Job) -> bool:
        return bool(self.reservations)

    # ---- preemption ----------------------------------------------------------------------------------------

    def _promise_holds(self, job: Job) -> bool:
        """Whether what is held for the job, with what is free, still makes a placement."""
        request = self.request(job)
        mine = self.board.free.copy()
        mine[self.board.promised[job.id]] = True
        mine &= self.index.gpu_usable
        return any(
            place(request, self.board.room_of(request, pool, mine)) is not None for pool in request.pools
        )

    def _try_preempt(self, job: Job, request: Request, pools: tuple[str, ...], limit: float | None) -> bool:
        choice = self.preemption.choose(job, request, pools, limit)
        if choice is None:
            return False
        for victim in choice.victims:
            self.preemptions.append(Preempt(victim.job.id, job.id, choice.reason_for(victim), choice.code))
        self.preemption.carry_out(job, choice)
        return True

    # ---- reservations --------------------------------------------------------------------------------------

    def _reserve(self, job: Job, request: Request, pools: tuple[str, ...], limit: float | None) -> None:
        allowed = self.policy.reservations
        if allowed == 0:
            for pool in pools:
                self._closed[pool, not request.gpus] = job.id
            return
        open_pools = tuple(
            pool for pool in pools if allowed is None or self._reserved_in.get(pool, 0) < allowed
        )
        if not open_pools or not request.gpus:
            return
        found = earliest(self.board, job, request, limit, open_pools)
        if found is None:
            return
        self.board.reserve(found)
        self.reserved_at[job.id] = found.at
        self._reserved_in[found.pool] = self._reserved_in.get(found.pool, 0) + 1
        names = self.index.gpu_names(found.gpus.tolist())
        nodes = tuple(dict.fromkeys(gpu.node for gpu in names))
        self.reservations.append(Reservation(job.id, found.at, Placement(names, nodes)))

    # ---- the result ----------------------------------------------------------------------------------------

    def result(self, *, explain: bool) -> Plan:
        """The plan; with everybody's reasons if asked."""
        waiting = Explainer(self).explain_all() if explain else ()
        return Plan(
            starts=tuple(self.starts),
            preemptions=tuple(self.preemptions),
            reservations=tuple(self.reservations),
            rejections=tuple(self.rejections),
            waiting=waiting,
            holds=tuple(
                Hold(job_id, self.index.gpu_names(gpus.tolist()))
                for job_id, gpus in sorted(self.board.promised.items())
            ),
        )
