"""One scheduling cycle: reject, serve preemptors, then start, preempt, reserve or wait, job by job."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from emep.policy.model import Policy
from emep.scheduling.charges import Shares
from emep.scheduling.cluster.arrays import IntArray
from emep.scheduling.cluster.index import ClusterIndex
from emep.scheduling.cluster.occupancy import Occupancy
from emep.scheduling.explain.reasons import Explainer
from emep.scheduling.fair_share import FairTree
from emep.scheduling.intake import PendingJobs
from emep.scheduling.model import (
    Hold,
    Job,
    Placement,
    Plan,
    Preempt,
    Reject,
    Reservation,
    Start,
    UsageRecord,
)
from emep.scheduling.order import Lines, PendingOrder
from emep.scheduling.overtaking import Overtaking
from emep.scheduling.pending import Blocked, PendingJob
from emep.scheduling.placement.place import place
from emep.scheduling.plan_state import PlanState
from emep.scheduling.preemption.choose import Preemption
from emep.scheduling.quota import Holdings
from emep.scheduling.reservations.backfill import earliest, find_now
from emep.scheduling.reservations.cpu import CpuReservations, place_cpu_job


class Cycle:
    """Looks at every pending job once, in order, and keeps what it decides."""

    def __init__(
        self,
        occupancy: Occupancy,
        holdings: Holdings,
        book: PendingJobs,
        now: float,
        pending: Sequence[PendingJob],
        usage: Iterable[UsageRecord],
        holds: Iterable[Hold],
        *,
        explain: bool,
    ) -> None:
        self.policy: Policy = occupancy.policy
        self.index: ClusterIndex = occupancy.index
        self.occupancy, self.holdings, self.book, self.now = occupancy, holdings, book, now
        self.pending = pending
        self._by_id = {entry.job.id: entry for entry in pending} if holds or occupancy.yielding else {}
        self.state = PlanState(
            occupancy, now, {job_id: one.job for job_id, one in self._by_id.items()}, holds
        )
        self.preemption = Preemption(self.state, self.holdings)
        self.starts: list[Start] = []
        self.preemptions: list[Preempt] = []
        self.rejections: list[Reject] = []
        self.blocked: list[Blocked] = []
        self.reserved_at: dict[str, float] = {}
        self._shares = Shares(occupancy, now, (entry.leaf for entry in pending), usage)
        self._cpu_reservations = CpuReservations(self.state)
        self._failed: dict[int, float] = {}
        """Request (by ``PendingJob.key``) -> least end of a run that did not fit."""
        self._explain = explain
        self._calm = not occupancy.preemptible
        """Whether nothing that runs could be a victim."""
        self._full: set[str] = set()
        """Pools that have all the reservations they may have."""
        self._closed: dict[tuple[str, bool], str] = {}
        """Without backfill: (pool, CPU job?) -> the job that no other may pass there."""
        self.held_back: set[str] = set()
        """Jobs that would make others wait too long if they started now."""
        for job_id in self.state.promised:
            self._count_promise(self._by_id[job_id].job, 1)

    @property
    def tree(self) -> FairTree:
        """Fair shares, with what this plan has started so far."""
        return self._shares.tree()

    def _count_promise(self, job: Job, sign: int) -> None:
        """Count reserved GPUs as held, because other jobs of the project would take the quota otherwise."""
        gpus = self.state.promised[job.id]
        pool = self.index.nodes[self.index.gpu_node[gpus[0]]].pool if len(gpus) else ""
        self.holdings.add(job, pool, sign * job.gpu_count)

    # ---- the steps -----------------------------------------------------------------------------------------

    def run(self, lines: Lines) -> None:
        """Make the plan; ``lines`` are those of the pending jobs that are not rejected."""
        # 1. Reject what can never run.
        self.rejections += [
            Reject(one.job.id, *one.verdict) for one in self.pending if one.verdict is not None
        ]
        # 2. Preemptors start on what was freed for them.
        started = self._serve_holders()
        # 3. Where the policy bounds overtaking, jobs start ahead of submission order within that bound.
        started |= self._overtake(lines, started)
        # 4. Look at every other pending job once, in order: class, fair share, submission.
        order = PendingOrder(lines, self._shares.tree)
        for entry in order:
            if entry.job.id in started:
                continue
            if self._fails_like_another(entry):
                self.blocked.append(entry.blocked)
                self._pass_over_hopeless_lines(entry, order)
                continue
            # 5. It starts, preempts, reserves or waits.
            blocked = self._decide(entry)
            if blocked is None:
                order.charged()
            else:
                self.blocked.append(blocked)

    def _decide(self, entry: PendingJob) -> Blocked | None:
        """Start, preempt or reserve for a job; None if it started, else what is known of why it did not."""
        job, request = entry.job, entry.request
        # 5.1 Wait: it backs off, its victims are on their way out, its quota is full, or no job may pass.
        if job.not_before > self.now:
            return Blocked(entry, backing_off=True)
        if job.id in self.state.promised:
            return Blocked(entry, holding=True)
        over = self.holdings.exceeded(job)
        if over:
            return Blocked(entry, quota=tuple(over))
        is_cpu_job = not request.gpus
        pools = tuple(pool for pool in request.pools if (pool, is_cpu_job) not in self._closed)
        if not pools:
            first = self._closed.get((request.pools[0], is_cpu_job)) if request.pools else None
            return Blocked(entry, behind=first)
        # 5.2 Start: it fits, and passes no reservation.
        if job.id not in self.held_back and self._try_start(entry, pools, self.now + entry.limit):
            return None
        # 5.3 Preempt: its class may, and a feasible minimal set of victims exists.
        if not is_cpu_job and self._try_preempt(entry, pools):
            return Blocked(entry, holding=True)
        # 5.4 Reserve, while its pools have reservations left; and wait.
        self._reserve(entry, pools)
        return entry.blocked

    # ---- fast paths ----------------------------------------------------------------------------------------

    def _fails_like_another(self, entry: PendingJob) -> bool:
        """Whether the job can only start, its pool has no reservation left, and an equal one has failed."""
        if not (entry.simple or (self._calm and entry.quiet)) or entry.pool not in self._full:
            return False
        if entry.job.not_before > self.now or entry.job.id in self.state.promised:
            return False
        end_that_failed = self._failed.get(entry.key)
        return end_that_failed is not None and end_that_failed <= self.now + entry.limit

    def _pass_over_hopeless_lines(self, entry: PendingJob, order: PendingOrder) -> None:
        """Skip the rest of the job's line if none of it can start, unless the plan must explain each job."""
        if not self._explain:
            free = self.state.free_of_kind((entry.pool, "", 0, (), ()))
            order.drop_line_if_hopeless(entry, free, calm=self._calm)

    # ---- overtaking ----------------------------------------------------------------------------------------

    def _overtake(self, lines: Lines, started: set[str]) -> set[str]:
        """Ids of the jobs that start ahead of submission order (and of ``started``)."""
        if self.policy.overtaking != "bounded" or self.policy.order == "submit_time":
            return set()
        overtaking = Overtaking(self, lines, started)
        ahead = overtaking.run()
        self.held_back = overtaking.held_back
        return ahead

    def has_room(self, entry: PendingJob) -> bool:
        """Whether the job could be placed now without touching what is reserved."""
        failed = self._failed.get(id(entry.request))
        end = self.now + entry.limit
        if failed is not None and failed <= end:
            return False
        return any(find_now(self.state, entry.request, pool, end) is not None for pool in entry.request.pools)

    def try_start(self, entry: PendingJob) -> bool:
        """Start the job now if it can be placed."""
        return self._try_start(entry, entry.request.pools, self.now + entry.limit)

    def reserve(self, entry: PendingJob) -> None:
        """Reserve for the job, where its pools have reservations left."""
        if self.policy.reservations != 0:
            self._reserve(entry, entry.request.pools)

    # ---- starts --------------------------------------------------------------------------------------------

    def _serve_holders(self) -> set[str]:
        """Preemptors first, in order; the ids of those that start."""
        if not self.state.promised:
            return set()
        holders = [self._by_id[job_id] for job_id in self.state.promised]
        lines = Lines.of((one for one in holders if one.verdict is None), self.policy, self.now)
        order = PendingOrder(lines, self._shares.tree)
        return {entry.job.id for entry in order if self._serve_holder(entry)}

    def _serve_holder(self, entry: PendingJob) -> bool:
        """Start a preemptor if its reserved GPUs, with other free ones, make a placement.

        A reservation that makes no placement even with all of its GPUs free is withdrawn.
        """
        job, request, state = entry.job, entry.request, self.state
        mine = np.zeros(len(state.free), dtype=bool)
        mine[state.promised[job.id]] = True
        if job.not_before <= self.now:
            ready = (mine & ~state.occupied) | state.free
            for pool in request.pools:
                take = place(request, state.room_of(request, pool, ready))
                if take is not None:
                    gpus = state.pick(take, ready, mine)
                    self._count_promise(job, -1)
                    self._start(entry, gpus, pool, "has what was freed for it")
                    return True
        some_day, empty = mine | state.free, state.host_at(math.inf)
        if not any(place(request, state.room_of(request, pool, some_day, empty)) for pool in request.pools):
            self._count_promise(job, -1)
            state.withdraw(job)
        return False

    def _try_start(self, entry: PendingJob, pools: tuple[str, ...], end: float) -> bool:
        request = entry.request
        if not request.gpus:
            return self._try_start_cpu_job(entry, pools, end)
        failed = self._failed.get(entry.key)
        if failed is not None and failed <= end:
            return False
        for pool in pools:
            gpus = find_now(self.state, request, pool, end)
            if gpus is not None:
                self._start(entry, gpus, pool, "fits")
                return True
        enough = any(self.state.free_of_kind(request.filter_for(pool)) >= request.gpus for pool in pools)
        self._failed[entry.key] = end if enough else -math.inf
        return False

    def _try_start_cpu_job(self, entry: PendingJob, pools: tuple[str, ...], end: float) -> bool:
        kept = self._cpu_reservations.kept_from(end)
        nodes = place_cpu_job(self.state, entry.request, pools, kept)
        if nodes is None:
            return False
        self.state.hosts.take(entry.job, (), nodes, end)
        passes = bool(self._cpu_reservations.made)
        self.starts.append(Start(entry.job.id, Placement((), nodes), "fits", backfilled=passes))
        return True

    def _start(self, entry: PendingJob, gpus: IntArray, pool: str, reason: str) -> None:
        placement = self.index.placement(gpus.tolist())
        backfilled = bool(self.state.reservations.in_pool(pool))
        self.state.start(entry.job, gpus, placement.nodes, pool, self.now + entry.limit)
        self.holdings.add(entry.job, pool, len(gpus))
        self._shares.charge(entry.leaf, placement.gpus)
        self.starts.append(Start(entry.job.id, placement, reason, backfilled))

    # ---- preemption and reservations -----------------------------------------------------------------------

    def _try_preempt(self, entry: PendingJob, pools: tuple[str, ...]) -> bool:
        if not entry.victims and not entry.limits:
            return False
        choice = self.preemption.choose(entry, pools)
        if choice is None:
            return False
        self.preemptions += [
            Preempt(victim.job.id, entry.job.id, choice.reason_for(victim), choice.code)
            for victim in choice.victims
        ]
        self.preemption.carry_out(entry.job, choice)
        return True

    def _reserve(self, entry: PendingJob, pools: tuple[str, ...]) -> None:
        job, request, allowed = entry.job, entry.request, self.policy.reservations
        if allowed == 0:
            for pool in pools:
                self._closed[pool, not request.gpus] = job.id
            return
        if not request.gpus:
            at = self._cpu_reservations.reserve(job, request, pools, allowed)
            if at is not None:
                self.reserved_at[job.id] = at
            return
        reservations = self.state.reservations
        open_pools = [pool for pool in pools if allowed is None or len(reservations.in_pool(pool)) < allowed]
        found = earliest(self.state, job, request, entry.limit, open_pools)
        if found is not None:
            reservations.add(found)
            if allowed is not None and len(reservations.in_pool(found.pool)) >= allowed:
                self._full.add(found.pool)
            self.reserved_at[job.id] = found.at

    # ---- the result ----------------------------------------------------------------------------------------

    def result(self) -> Plan:
        """The plan; with the reasons of every waiting job if asked."""
        waiting = Explainer(self).explain_all() if self._explain else ()
        return Plan(
            starts=tuple(self.starts),
            preemptions=tuple(self.preemptions),
            reservations=self._reservations(),
            rejections=tuple(self.rejections),
            waiting=waiting,
            holds=tuple(
                Hold(job_id, self.index.gpu_names(gpus.tolist()))
                for job_id, gpus in sorted(self.state.promised.items())
            ),
        )

    def _reservations(self) -> tuple[Reservation, ...]:
        """In the order in which they were made."""
        self.state.reservations.assign_all()
        found = {
            one.job.id: one for pool in self.index.pools for one in self.state.reservations.in_pool(pool)
        }
        made: list[Reservation] = []
        for job_id, at in self.reserved_at.items():
            if job_id in found:
                made.append(Reservation(job_id, at, self.index.placement(found[job_id].gpus.tolist())))
            else:
                made.append(Reservation(job_id, at, Placement((), self._cpu_reservations.made[job_id])))
        return tuple(made)
