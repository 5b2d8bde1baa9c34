"""Chooses the victims for a job that cannot be placed: the cheapest minimal set that makes enough room.

Candidates are running jobs that are preemptible (by their own field, else their queue's), whose class the
job's class may evict (the queue's matrix; tiers across queues), and that have run for ``min_runtime``. A job
within its guarantee may instead take back what others borrowed, whatever their class, least work lost first
(``_reclaim``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from emep.scheduling.cluster.arrays import BoolArray, Filter, IntArray
from emep.scheduling.model import Job
from emep.scheduling.pending import PendingJob
from emep.scheduling.placement.place import place
from emep.scheduling.plan_state import PlanState
from emep.scheduling.preemption.victim_index import VictimIndex
from emep.scheduling.preemption.victim_order import VictimCandidate
from emep.scheduling.preemption.victim_search import EXACT_CANDIDATES, VictimSearch, cheapest, prune
from emep.scheduling.quota import Holdings
from emep.scheduling.request import Request, is_preemptible
from emep.wire.units import count_of, format_duration


@dataclass(frozen=True, slots=True)
class Choice:
    """Victims, and the GPUs that the preemptor gets."""

    job: Job
    victims: tuple[VictimCandidate, ...]
    gpus: IntArray
    pool: str
    code: str

    def reason_for(self, victim: VictimCandidate) -> str:
        """Why this victim, in words."""
        lost = (
            f"loses {format_duration(victim.seconds_lost)} of work"
            if victim.seconds_lost
            else "loses no work"
        )
        why = "takes back its guarantee" if self.code == "reclaim" else f"is {self.job.priority}"
        return (
            f"job {self.job.id} needs {count_of(self.job.gpu_count, 'GPU')} and {why}; "
            f"job {victim.job.id} ({victim.job.priority}, {count_of(len(victim.gpus), 'GPU')}) {lost}"
        )


class Preemption:
    """Chooses victims in one plan; a victim is chosen once."""

    def __init__(self, state: PlanState, holdings: Holdings) -> None:
        self._state, self._holdings, self._policy = state, holdings, state.policy
        self._by_class: dict[tuple[str, str], list[VictimCandidate]] | None = None
        self._evicted: set[str] = set()
        self._offered: dict[frozenset[tuple[str, str]], list[int]] = {}
        """GPUs of all victims that are left, by the classes that may be evicted; for explanations."""
        self._fields: dict[tuple[frozenset[tuple[str, str]], Filter], VictimIndex] = {}
        """Candidates by the classes they are of and the kind of GPU that is asked for."""
        self._failed: dict[tuple[int, object, str], float] = {}

    # ---- candidates ----------------------------------------------------------------------------------------

    def _all(self) -> dict[tuple[str, str], list[VictimCandidate]]:
        """Running jobs that may be victims at all, by queue and class."""
        if self._by_class is None:
            self._by_class = {}
            policy, now = self._policy, self._state.now
            for allocation in self._state.occupancy.allocations.values():
                job = allocation.job
                if allocation.yielding or not allocation.gpus or not is_preemptible(job, policy):
                    continue
                if now - allocation.start_time < policy.preemption.min_runtime:
                    continue
                name = policy.resolve_class(job.queue, job.priority)
                if name is not None:
                    gpus = self._state.allocated[job.id]
                    candidate = VictimCandidate.of(allocation, gpus, policy.class_value(name), now)
                    self._by_class.setdefault((job.queue, name), []).append(candidate)
        return self._by_class

    def victims_for(self, job: Job) -> list[VictimCandidate]:
        """Running jobs that the job's class may evict."""
        classes = self._policy.victim_classes(job.queue, job.priority)
        if not classes:
            return []
        found = self._all()
        return [
            one for pair in sorted(classes) for one in found.get(pair, ()) if one.job.id not in self._evicted
        ]

    def borrowers_for(self, job: Job, pool: str) -> list[VictimCandidate]:
        """Running jobs from which a job within its guarantee may take GPUs of the pool back.

        A job that was evicted takes back only from jobs that ran before it was submitted. The job that
        evicted it has started since, so two owners never evict each other in turn.
        """
        if not self._holdings.guarantee_left(job, pool):
            return []
        own = {limit.label for limit in self._holdings.limits(job) if limit.guaranteed.get(pool, 0) > 0}
        found: list[VictimCandidate] = []
        for (queue, name), candidates in sorted(self._all().items()):
            if self._may_reclaim(job, queue, name):
                found += [one for one in candidates if self._is_borrower(one, own, pool)]
        if job.preempted:
            found = [one for one in found if one.start_time < job.submit_time]
        return found

    def _may_reclaim(self, job: Job, victim_queue: str, victim_class: str) -> bool:
        """Whether a guarantee may be taken back from this class.

        Not from one that may preempt the job in turn: the two would evict each other for ever. Across queues
        the highest tier is never a victim, and serving is not preempted for other queues.
        """
        if self._policy.may_preempt(victim_queue, victim_class, job.queue, job.priority):
            return False
        if job.queue == victim_queue:
            return True
        rules = self._policy.queues[victim_queue]
        allowed = self._policy.preemption.across_queues and rules.yields_to_other_queues
        return allowed and self._policy.tier(victim_class) != 0

    def _is_borrower(self, one: VictimCandidate, owners: set[str], pool: str) -> bool:
        if one.job.id in self._evicted:
            return False
        limits = self._holdings.limits(one.job)
        return (
            not any(limit.label in owners for limit in limits) and self._holdings.borrowed(one.job, pool) > 0
        )

    # ---- choice --------------------------------------------------------------------------------------------

    def choose(self, entry: PendingJob, pools: tuple[str, ...]) -> Choice | None:
        """The victims to evict for a job that cannot be placed; None where no set of them would do."""
        job, request, end = entry.job, entry.request, self._state.now + entry.limit
        for pool in pools:
            borrowers = self.borrowers_for(job, pool)
            if borrowers:
                choice = self._choose(job, request, pool, end, borrowers, "reclaim")
                if choice is not None:
                    return choice
        key = (
            id(request),
            self._policy.victim_classes(job.queue, job.priority),
            job.id if job.id in self._state.promised else "",
        )
        failed = self._failed.get(key)
        if failed is not None and failed <= end:
            return None
        for pool in pools if self._has_victims(job) else ():
            choice = self._choose_by_class(job, request, pool, end)
            if choice is not None:
                return choice
        self._failed[key] = end
        return None

    def _choose_by_class(self, job: Job, request: Request, pool: str, end: float) -> Choice | None:
        """Victims by class; few candidates are compared exactly, many by way of a field kept for the plan."""
        field = self._field(job, request, pool)
        if len(field) <= EXACT_CANDIDATES:
            return self._choose(job, request, pool, end, self.victims_for(job), "priority")
        state, index = self._state, self._state.index
        blocked = state.reservations.blocked_gpus(pool, end)
        kept = np.zeros(0, dtype=np.int64) if blocked is None else np.flatnonzero(blocked)
        eligible = index.eligible_cells(request.filter_for(pool))
        base = np.where(eligible, index.count_by_cell(self._base(job, pool, end)), 0)
        found = field.cheapest(request, base, kept)
        if found is None:
            return None
        victims, is_minimal = found
        if not is_minimal:
            search = self._search_among(job, request, pool, end, victims, "priority")
            victims = victims if search is None else prune(search, victims)
        choice = self._with(job, request, pool, end, victims, "priority")
        if choice is None and not index.unlimited_nodes:
            # Cores or memory are short where GPUs are not: look at every candidate.
            return self._choose(job, request, pool, end, self.victims_for(job), "priority")
        return choice

    def _field(self, job: Job, request: Request, pool: str) -> VictimIndex:
        classes = self._policy.victim_classes(job.queue, job.priority)
        kind = request.filter_for(pool)
        found = self._fields.get((classes, kind))
        if found is None:
            index = self._state.index
            usable = index.eligible_cells(kind)[index.gpu_cell] & index.gpu_usable
            found = VictimIndex(index, usable.tolist(), self.victims_for(job))
            self._fields[classes, kind] = found
        return found

    def _has_victims(self, job: Job) -> bool:
        classes = self._policy.victim_classes(job.queue, job.priority)
        return bool(classes) and any(pair in classes for pair in self._all())

    def _choose(
        self, job: Job, request: Request, pool: str, end: float, candidates: list[VictimCandidate], code: str
    ) -> Choice | None:
        search = self._search_among(job, request, pool, end, candidates, code)
        if search is None:
            return None
        victims = cheapest(search)
        return None if victims is None else self._with(job, request, pool, end, victims, code)

    def _with(
        self, job: Job, request: Request, pool: str, end: float, victims: list[VictimCandidate], code: str
    ) -> Choice | None:
        """The choice of these victims, with the placement that they make room for."""
        chosen = self._base(job, pool, end)
        for victim in victims:
            chosen[list(victim.gpus)] = True
        chosen &= self._open(pool, end)
        take = place(
            request,
            self._state.room_of(
                request, pool, chosen, self._state.host_without(one.job.id for one in victims)
            ),
        )
        if take is None:
            return None
        return Choice(job, tuple(victims), self._state.pick(take, chosen, self._state.free), pool, code)

    def _search_among(
        self, job: Job, request: Request, pool: str, end: float, candidates: list[VictimCandidate], code: str
    ) -> VictimSearch | None:
        """What the choice is made from; None where not even all candidates together make room."""
        state, index = self._state, self._state.index
        open_gpus = self._open(pool, end)
        eligible = index.eligible_cells(request.filter_for(pool))
        usable = (eligible[index.gpu_cell] & open_gpus).tolist()
        cell_of = index.gpu_cell_list
        useful: list[tuple[VictimCandidate, dict[int, int]]] = []
        for one in candidates:
            cells: dict[int, int] = {}
            for gpu in one.gpus:
                if usable[gpu]:
                    cells[cell_of[gpu]] = cells.get(cell_of[gpu], 0) + 1
            if cells:
                useful.append((one, cells))
        base = np.where(eligible, index.count_by_cell(self._base(job, pool, end) & open_gpus), 0)
        search = VictimSearch(state, request, pool, base, useful)
        if code == "reclaim":
            search.allow = lambda victims: self._within_borrowed(victims, pool)
            search.by_class = False
        return search if useful and search.feasible([one for one, _ in useful]) else None

    def _within_borrowed(self, victims: Iterable[VictimCandidate], pool: str) -> bool:
        """Whether the eviction leaves every owner at or above its guarantee, except for at most one job."""
        taken: dict[str, list[int]] = {}
        spare: dict[str, int] = {}
        for one in victims:
            for limit in self._holdings.limits(one.job):
                if limit.guaranteed.get(pool, 0) > 0:
                    taken.setdefault(limit.label, []).append(len(one.gpus))
                    spare[limit.label] = self._holdings.held_in(limit, pool) - limit.guaranteed[pool]
        return all(sum(sizes) - max(sizes) < spare[label] for label, sizes in taken.items())

    def _open(self, pool: str, end: float) -> BoolArray:
        """GPUs that may be used until ``end``: healthy, and not reserved for another job before then."""
        blocked = self._state.reservations.blocked_gpus(pool, end)
        usable = self._state.index.gpu_usable
        return usable if blocked is None else usable & ~blocked

    def _base(self, job: Job, pool: str, end: float) -> BoolArray:
        """What the job could use without a victim: free, its own by promise, or coming free by itself."""
        base: BoolArray = self._state.free | self._state.winding_down
        mine = self._state.promised.get(job.id)
        if mine is not None:
            base[mine] = True
        return base & self._open(pool, end)

    def best_after(self, job: Job, request: Request, pool: str) -> int:
        """GPUs that the best domain (node, where the job names a number of them) could offer at the most."""
        state, index = self._state, self._state.index
        classes = self._policy.victim_classes(job.queue, job.priority)
        gpus = self._offered.get(classes)
        if gpus is None:
            gpus = self._offered[classes] = [gpu for one in self.victims_for(job) for gpu in one.gpus]
        offered = self._base(job, pool, math.inf)
        offered[gpus] = True
        cells = state.room_of(request, pool, offered & index.gpu_usable).available
        domains = index.domains(request.nvlink, request.level)
        sums = domains.part_sums(cells) if request.node_count else domains.sums(cells)
        return int(sums.max(initial=0))

    def carry_out(self, job: Job, choice: Choice) -> None:
        """Record the evictions, and hold the GPUs for the preemptor from now on."""
        for victim in choice.victims:
            self._evicted.add(victim.job.id)
            for field in self._fields.values():
                field.remove(victim.job.id)
            self._state.evict(victim.job)
        self._state.promise(job, choice.gpus)
        self._holdings.add(job, choice.pool, job.gpu_count)
