"""Why a job waits: all that blocks it with numbers, its place in the order, and every term of its score.

Reasons describe the state after the plan's own decisions. Jobs with equal requests share the same facts, so
thousands of waiting jobs cost little more than a few.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from emep.scheduling.explain.estimate import Estimator
from emep.scheduling.explain.facts import FactFinder, Facts
from emep.scheduling.explain.scores import Scores
from emep.scheduling.explain.view import CycleView
from emep.scheduling.model import Job, Reason, ReasonCode, Waiting
from emep.scheduling.pending import Blocked, PendingJob
from emep.scheduling.quota import Limit
from emep.scheduling.request import Request, run_limit
from emep.wire.units import count_of, format_duration, is_or_are


class Explainer:
    """Explains what one cycle left waiting."""

    def __init__(self, cycle: CycleView) -> None:
        self._cycle = cycle
        self._facts = FactFinder(cycle)
        self._after: dict[tuple[int, object], int] = {}
        self._shared: dict[tuple[object, ...], tuple[Reason, ...]] = {}
        """Reasons shared by jobs with equal requests and nothing of their own that blocks them."""

    def explain_all(self) -> tuple[Waiting, ...]:
        """One answer per waiting job, in order."""
        cycle = self._cycle
        estimates = Estimator(cycle).estimate_all()
        scores = Scores(cycle.policy, cycle.tree, cycle.now)
        return tuple(
            Waiting(
                blocked.job.id,
                position,
                self._reasons(blocked),
                scores.of(blocked.job),
                *estimates[blocked.job.id],
            )
            for position, blocked in enumerate(cycle.blocked, start=1)
        )

    def reasons_of(
        self, asked: Iterable[PendingJob], decided: Collection[str]
    ) -> dict[str, tuple[Reason, ...]]:
        """The reasons that ``explain_all`` would give for these jobs, by id, without the ``decided`` ones.

        The cycle may have passed over whole lines of jobs of which none could start, so not every waiting job
        is among its ``blocked``. Such jobs have neither a promise nor a quota: only a backoff can set one
        apart.
        """
        looked_at = {blocked.job.id: blocked for blocked in self._cycle.blocked}
        found: dict[str, tuple[Reason, ...]] = {}
        for entry in asked:
            job = entry.job
            if entry.verdict is not None or job.id in decided:
                continue
            blocked = looked_at.get(job.id)
            if blocked is None:
                backs_off = job.not_before > self._cycle.now
                blocked = Blocked(entry, backing_off=True) if backs_off else entry.blocked
            found[job.id] = self._reasons(blocked)
        return found

    # ---- reasons -------------------------------------------------------------------------------------------

    def _reasons(self, blocked: Blocked) -> tuple[Reason, ...]:
        entry, reservations = blocked.entry, self._cycle.state.reservations
        if blocked is not entry.blocked or entry.job.id in self._cycle.reserved_at or not entry.request.gpus:
            return self._own_reasons(blocked)
        end = self._cycle.now + entry.limit
        before = tuple(len(reservations.before(pool, end)) for pool in entry.request.pools)
        key = (entry.key, entry.victims, before, entry.job.id in self._cycle.held_back)
        found = self._shared.get(key)
        if found is None:
            found = self._shared[key] = self._own_reasons(blocked)
        return found

    def _own_reasons(self, blocked: Blocked) -> tuple[Reason, ...]:
        job, cycle = blocked.job, self._cycle
        if blocked.holding:
            return (self._of_victims(job),)
        found: list[Reason] = []
        if blocked.backing_off:
            rest = format_duration(job.not_before - cycle.now)
            text = f"backs off after a failure of the infrastructure, for another {rest}"
            if job.waits_for:
                text = f"waits for {job.waits_for}, at most another {rest}"
            found.append(Reason(ReasonCode.BACKING_OFF, text))
        found += [self._of_quota(job, limit) for limit in blocked.quota]
        if blocked.behind is not None:
            text = f"nothing passes job {blocked.behind}, which does not fit yet (reservations: 0)"
            found.append(Reason(ReasonCode.BEHIND_RESERVATION, text))
        request = blocked.entry.request
        facts = self._facts.of(request)
        found += facts.reasons
        if facts.short and request.gpus:
            found = self._with_preemption(job, request, facts, found)
        if request.gpus:
            found += self._of_reservations(job, request, facts)
        return tuple(found) or (self._unexplained(job),)

    def _of_victims(self, job: Job) -> Reason:
        state, cycle = self._cycle.state, self._cycle
        mine = state.promised[job.id]
        going = mine[state.occupied[mine]]
        owners = state.owners_of(going)
        rest = max(0.0, state.release_of(job.id) - cycle.now)
        held = f"{count_of(len(mine), 'GPU')} {is_or_are(len(mine))} held for it"
        free = "comes free" if 1 in (len(mine), len(going)) else "come free"
        text = (
            f"{held}; {'it' if len(mine) == 1 else f'{len(going)} of them'} {free} when {_some(owners)} "
            f"{'has' if len(owners) == 1 else 'have'} yielded, in at most {format_duration(rest)}"
        )
        return Reason(ReasonCode.WAITING_FOR_PREEMPTION, text)

    def _of_quota(self, job: Job, limit: Limit) -> Reason:
        held = self._cycle.holdings.held(limit)
        more = f"{job.gpu_count} more {is_or_are(job.gpu_count)} too many"
        text = f"{limit.label} holds {held} of at most {count_of(limit.max_gpus or 0, 'GPU')}, {more}"
        return Reason(ReasonCode.QUOTA_EXCEEDED, text)

    def _with_preemption(self, job: Job, request: Request, facts: Facts, found: list[Reason]) -> list[Reason]:
        """Add how many GPUs preemption could free, for a job whose class may preempt."""
        classes = self._cycle.policy.victim_classes(job.queue, job.priority)
        if not classes:
            return found
        key = (id(request), classes)
        best = self._after.get(key)
        if best is None:
            best = self._after[key] = self._cycle.preemption.best_after(job, request, facts.pool)
        need = request.per_node or request.gpus
        if best >= need:
            return found
        where = "NVLink group" if request.nvlink else request.level or f"placement in pool {facts.pool}"
        where = "node" if request.node_count else where
        text = f"; no {where} can offer {need} even after preemption (best {best})"
        return [
            Reason(one.code, one.text + text) if one.code in _SHORTAGES and place == 0 else one
            for place, one in enumerate(_shortages_first(found))
        ]

    def _of_reservations(self, job: Job, request: Request, facts: Facts) -> list[Reason]:
        """The reservations that keep GPUs from the job that are free and that it could use now."""
        state, cycle = self._cycle.state, self._cycle
        limit = run_limit(job, cycle.policy)
        end = math.inf if limit is None else cycle.now + limit
        found: list[Reason] = []
        for pool in request.pools:
            eligible = state.index.eligible_cells(request.filter_for(pool))
            for one in state.reservations.before(pool, end):
                kept = one.gpus[state.free[one.gpus]]
                kept = kept[eligible[state.index.gpu_cell[kept]]]
                if len(kept) and one.job.id != job.id:
                    text = (
                        f"{len(kept)} of the {count_of(facts.free, 'free GPU')} {is_or_are(len(kept))} "
                        f"reserved for job {one.job.id} "
                        f"until it starts, in {format_duration(one.at - cycle.now)} (at {one.at:.17g}), "
                        "and this job may run longer"
                    )
                    found.append(Reason(ReasonCode.BEHIND_RESERVATION, text))
        return found

    def _unexplained(self, job: Job) -> Reason:
        """The reason of a job that fits, but that no shortage explains."""
        if job.id in self._cycle.held_back:
            text = "started now, it would make a job before it wait longer than overtaking: bounded allows"
            return Reason(ReasonCode.BEHIND_RESERVATION, text)
        if not job.gpu_count:
            text = "the nodes that have enough left are kept for CPU jobs before it"
            return Reason(ReasonCode.BEHIND_RESERVATION, text)
        text = f"needs {count_of(job.gpu_count, 'GPU')}, and will be looked at again in the next cycle"
        return Reason(ReasonCode.INSUFFICIENT_GPUS, text)


_SHORTAGES = (
    ReasonCode.NO_FREE_NVLINK_GROUP,
    ReasonCode.NO_TOPOLOGY_DOMAIN,
    ReasonCode.INSUFFICIENT_GPUS,
)


def _shortages_first(reasons: list[Reason]) -> list[Reason]:
    """Put the most specific shortage first: the one that preemption would have to cure."""
    rank = {code: place for place, code in enumerate(_SHORTAGES)}
    return sorted(reasons, key=lambda one: rank.get(one.code, len(rank)))


def _some(names: list[str]) -> str:
    if not names:
        return "what runs there"
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"job{'s' if len(names) > 1 else ''} {', '.join(names[:3])}{more}"
