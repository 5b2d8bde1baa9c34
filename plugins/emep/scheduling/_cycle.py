"""One cycle: the state of a plan while it is made, and the loop over pending jobs that makes it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from emep.policy import Policy
from emep.scheduling._board import Board
from emep.scheduling._cpu import CpuReservations, place_cpu_job
from emep.scheduling._entry import Blocked, Entry, EntryBook
from emep.scheduling._index import ClusterIndex, IntArray
from emep.scheduling._occupancy import Occupancy
from emep.scheduling._overtake import Overtaking
from emep.scheduling._shares import Shares
from emep.scheduling.backfill import earliest, find_now
from emep.scheduling.explain import Explainer
from emep.scheduling.fair_share import FairTree
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
from emep.scheduling.placement import place
from emep.scheduling.preemption import Preemption
from emep.scheduling.quota import Holdings


class Cycle:
    """Looks at every pending job once, in order."""

    def __init__(
        self,
        occupancy: Occupancy,
        holdings: Holdings,
        book: EntryBook,
        now: float,
        pending: Sequence[Entry],
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
        self.board = Board(occupancy, now, {job_id: one.job for job_id, one in self._by_id.items()}, holds)
        self.preemption = Preemption(self.board, self.holdings)
        self.starts: list[Start] = []
        self.preemptions: list[Preempt] = []
        self.rejections: list[Reject] = []
        self.blocked: list[Blocked] = []
        self.reserved_at: dict[str, float] = {}
        self._shares = Shares(occupancy, now, (entry.leaf for entry in pending), usage)
        self._cpu_reservations = CpuReservations(self.board)
        self._failed: dict[int, float] = {}
        """Request (by ``Entry.key``) -> least end of a run that did not fit."""
        self._explain = explain
        self._full: set[str] = set()
        """Pools that have all the reservations they may have."""
        self._closed: dict[tuple[str, bool], str] = {}
        """Without backfill: (pool, CPU job?) -> the job that everybody there is behind."""
        self.held_back: set[str] = set()
        """Jobs that would make others wait too long if they started now."""
        for job_id in self.board.promised:
            self._count_promise(self._by_id[job_id].job, 1)

    @property
    def tree(self) -> FairTree:
        """Fair shares, with what this plan has started so far."""
        return self._shares.tree()

    def _count_promise(self, job: Job, sign: int) -> None:
        """What is promised counts as held, or others of its project would take its quota meanwhile."""
        gpus = self.board.promised[job.id]
        pool = self.index.nodes[self.index.gpu_node[gpus[0]]].pool if len(gpus) else ""
        self.holdings.add(job, pool, sign * job.gpu_count)

    # ---- the loop ------------------------------------------------------------------------------------------

    def run(self, lines: Lines) -> None:
        """Make the plan; ``lines`` are those of the pending jobs that are not rejected."""
        for entry in self.pending:
            if entry.verdict is not None:
                self.rejections.append(Reject(entry.job.id, *entry.verdict))
        served = self._serve_holders()
        if self.policy.overtaking == "bounded" and self.policy.order != "submit_time":
            overtaking = Overtaking(self, lines, served)
            served |= overtaking.run()
            self.held_back = overtaking.held_back
        order = PendingOrder(lines, self._shares.tree)
        failed, full, promised, now = self._failed, self._full, self.board.promised, self.now
        calm = not self.occupancy.preemptible
        for entry in order:
            if (
                (entry.simple or (calm and entry.quiet))
                and entry.pool in full
                and entry.job.not_before <= now
                and (not promised or entry.job.id not in promised)
            ):
                # One of the many that can neither preempt nor reserve: has its like failed already?
                end_that_failed = failed.get(entry.key)
                if end_that_failed is not None and end_that_failed <= now + entry.limit:
                    self.blocked.append(entry.blocked)
                    if not self._explain:
                        free = self.board.free_of_kind((entry.pool, "", 0, (), ()))
                        order.drop_line_if_hopeless(entry, free, calm=calm)
                    continue
            if entry.job.id in served:
                continue
            blocked = self._consider(entry)
            if blocked is None:
                order.charged()
            else:
                self.blocked.append(blocked)

    def _consider(self, entry: Entry) -> Blocked | None:
        """Start, preempt or reserve for a job; None if it started, else what is known of why it did not."""
        job, request = entry.job, entry.request
        if job.not_before > self.now:
            return Blocked(entry, backing_off=True)
        if job.id in self.board.promised:
            return Blocked(entry, holding=True)
        over = self.holdings.exceeded(job)
        if over:
            return Blocked(entry, quota=tuple(over))
        is_cpu_job = not request.gpus
        pools = tuple(pool for pool in request.pools if (pool, is_cpu_job) not in self._closed)
        if not pools:
            first = self._closed.get((request.pools[0], is_cpu_job)) if request.pools else None
            return Blocked(entry, behind=first)
        if job.id not in self.held_back and self._try_start(entry, pools, self.now + entry.limit):
            return None
        if not is_cpu_job and self._try_preempt(entry, pools):
            return Blocked(entry, holding=True)
        self._reserve(entry, pools)
        return entry.blocked

    # ---- for those who go ahead of their turn --------------------------------------------------------------

    def has_room(self, entry: Entry) -> bool:
        """Whether the job could be placed now without touching what is reserved."""
        failed = self._failed.get(id(entry.request))
        end = self.now + entry.limit
        if failed is not None and failed <= end:
            return False
        return any(find_now(self.board, entry.request, pool, end) is not None for pool in entry.request.pools)

    def try_start(self, entry: Entry) -> bool:
        """Start the job now if it can be placed."""
        return self._try_start(entry, entry.request.pools, self.now + entry.limit)

    def reserve(self, entry: Entry) -> None:
        """Reserve for the job, where its pools have reservations left."""
        if self.policy.reservations != 0:
            self._reserve(entry, entry.request.pools)

    # ---- starts --------------------------------------------------------------------------------------------

    def _serve_holders(self) -> set[str]:
        """Preemptors first, in order; the ids of those that start."""
        if not self.board.promised:
            return set()
        holders = [self._by_id[job_id] for job_id in self.board.promised]
        lines = Lines.of((one for one in holders if one.verdict is None), self.policy, self.now)
        order = PendingOrder(lines, self._shares.tree)
        return {entry.job.id for entry in order if self._serve_holder(entry)}

    def _serve_holder(self, entry: Entry) -> bool:
        """A preemptor starts as soon as what was promised to it, with what else is free, makes its placement.

        A promise that would not even make one when all of it has come free is withdrawn.
        """
        job, request, board = entry.job, entry.request, self.board
        mine = np.zeros(len(board.free), dtype=bool)
        mine[board.promised[job.id]] = True
        if job.not_before <= self.now:
            ready = (mine & ~board.occupied) | board.free
            for pool in request.pools:
                take = place(request, board.room_of(request, pool, ready))
                if take is not None:
                    gpus = board.pick(take, ready, mine)
                    self._count_promise(job, -1)
                    self._start(entry, gpus, pool, "has what was freed for it")
                    return True
        some_day, empty = mine | board.free, board.host_at(math.inf)
        if not any(place(request, board.room_of(request, pool, some_day, empty)) for pool in request.pools):
            self._count_promise(job, -1)
            board.withdraw(job)
        return False

    def _try_start(self, entry: Entry, pools: tuple[str, ...], end: float) -> bool:
        request = entry.request
        if not request.gpus:
            return self._try_start_cpu_job(entry, pools, end)
        failed = self._failed.get(entry.key)
        if failed is not None and failed <= end:
            return False
        for pool in pools:
            gpus = find_now(self.board, request, pool, end)
            if gpus is not None:
                self._start(entry, gpus, pool, "fits")
                return True
        enough = any(self.board.free_of_kind(request.filter_for(pool)) >= request.gpus for pool in pools)
        self._failed[entry.key] = end if enough else -math.inf
        return False

    def _try_start_cpu_job(self, entry: Entry, pools: tuple[str, ...], end: float) -> bool:
        kept = self._cpu_reservations.kept_from(end)
        nodes = place_cpu_job(self.board, entry.request, pools, kept)
        if nodes is None:
            return False
        self.board.hosts.take(entry.job, (), nodes, end)
        passes = bool(self._cpu_reservations.made)
        self.starts.append(Start(entry.job.id, Placement((), nodes), "fits", backfilled=passes))
        return True

    def _start(self, entry: Entry, gpus: IntArray, pool: str, reason: str) -> None:
        placement = self.index.placement(gpus.tolist())
        backfilled = bool(self.board.windows.in_pool(pool))
        self.board.start(entry.job, gpus, placement.nodes, pool, self.now + entry.limit)
        self.holdings.add(entry.job, pool, len(gpus))
        self._shares.charge(entry.leaf, placement.gpus)
        self.starts.append(Start(entry.job.id, placement, reason, backfilled))

    # ---- preemption and reservations -----------------------------------------------------------------------

    def _try_preempt(self, entry: Entry, pools: tuple[str, ...]) -> bool:
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

    def _reserve(self, entry: Entry, pools: tuple[str, ...]) -> None:
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
        windows = self.board.windows
        open_pools = [pool for pool in pools if allowed is None or len(windows.in_pool(pool)) < allowed]
        found = earliest(self.board, job, request, entry.limit, open_pools)
        if found is not None:
            windows.add(found)
            if allowed is not None and len(windows.in_pool(found.pool)) >= allowed:
                self._full.add(found.pool)
            self.reserved_at[job.id] = found.at

    # ---- the result ----------------------------------------------------------------------------------------

    def result(self) -> Plan:
        """The plan; with everybody's reasons if asked."""
        waiting = Explainer(self).explain_all() if self._explain else ()
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
                made.append(Reservation(job_id, at, self.index.placement(found[job_id].gpus.tolist())))
            else:
                made.append(Reservation(job_id, at, Placement((), self._cpu_reservations.made[job_id])))
        return tuple(made)
