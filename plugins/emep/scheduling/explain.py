"""Why a job waits: all that blocks it with numbers, its place in the order, and every term of its score.

Reasons describe the state after the plan's own decisions. Jobs with equal requests share the same facts, so
thousands of waiting jobs cost little more than a few.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from emep.scheduling._entry import Blocked, Entry
from emep.scheduling._score import Scores
from emep.scheduling.eligibility import Request, run_limit
from emep.scheduling.estimate import Estimator
from emep.scheduling.model import Job, Reason, ReasonCode, Waiting
from emep.scheduling.placement import fits
from emep.scheduling.quota import Limit
from emep.units import count_of, format_duration, is_or_are

if TYPE_CHECKING:
    from emep.scheduling._cycle import Cycle


@dataclass(slots=True)
class Facts:
    """What is true of a request in the best of its pools, whoever asks."""

    pool: str = ""
    free: int = 0
    reasons: list[Reason] = field(default_factory=list)
    short: bool = False
    """Whether it does not fit, reservations apart."""
    blocked_until: float = math.inf
    """The end of a run that reservations leave room for; inf: any."""


class Explainer:
    """Explains what one cycle left waiting."""

    def __init__(self, cycle: Cycle) -> None:
        self._cycle = cycle
        self._facts: dict[Request, Facts] = {}
        self._after: dict[tuple[int, object], int] = {}
        self._shared: dict[tuple[object, ...], tuple[Reason, ...]] = {}
        """Reasons of those of whom nothing is true but what is true of their like."""

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

    def reasons_of(self, asked: Iterable[Entry], decided: Collection[str]) -> dict[str, tuple[Reason, ...]]:
        """What ``explain_all`` would give as reasons of these jobs, by id; ``decided`` ones are left out.

        The cycle may have passed over whole lines of jobs of which nobody could start, so that not every job
        that waits is among its ``blocked``. Those have neither a promise nor a quota: their backoff is all
        that would set them apart.
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
        entry, windows = blocked.entry, self._cycle.board.windows
        if blocked is not entry.blocked or entry.job.id in self._cycle.reserved_at or not entry.request.gpus:
            return self._own_reasons(blocked)
        end = self._cycle.now + entry.limit
        before = tuple(len(windows.before(pool, end)) for pool in entry.request.pools)
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
        facts = self._facts_of(request) if request.gpus else self._cpu_facts(request)
        found += facts.reasons
        if facts.short and request.gpus:
            found = self._with_preemption(job, request, facts, found)
        if request.gpus:
            found += self._of_reservations(job, request, facts)
        return tuple(found) or (self._unexplained(job),)

    def _of_victims(self, job: Job) -> Reason:
        board, cycle = self._cycle.board, self._cycle
        mine = board.promised[job.id]
        going = mine[board.occupied[mine]]
        owners = board.owners_of(going)
        rest = max(0.0, board.release_of(job.id) - cycle.now)
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
        """Whose class may preempt is also told how far preemption would get."""
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
        board, cycle = self._cycle.board, self._cycle
        limit = run_limit(job, cycle.policy)
        end = math.inf if limit is None else cycle.now + limit
        found: list[Reason] = []
        for pool in request.pools:
            eligible = board.index.eligible_cells(request.filter_for(pool))
            for one in board.windows.before(pool, end):
                kept = one.gpus[board.free[one.gpus]]
                kept = kept[eligible[board.index.gpu_cell[kept]]]
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
        """What fits now did not when it was looked at: only a promise made since could say so."""
        if job.id in self._cycle.held_back:
            text = "started now, it would make a job before it wait longer than anybody is to wait"
            return Reason(ReasonCode.BEHIND_RESERVATION, text)
        text = f"needs {count_of(job.gpu_count, 'GPU')}, and will be looked at again in the next cycle"
        return Reason(ReasonCode.INSUFFICIENT_GPUS, text)

    # ---- facts of requests ---------------------------------------------------------------------------------

    def _facts_of(self, request: Request) -> Facts:
        found = self._facts.get(request)
        if found is None:
            every = [self._facts_in(request, pool) for pool in request.pools]
            if every:
                found = max(every, key=lambda facts: (not facts.short, facts.free))
            else:
                found = Facts(reasons=[Reason(ReasonCode.QUEUE_CLOSED, "its queue has no pools")], short=True)
            self._facts[request] = found
        return found

    def _facts_in(self, request: Request, pool: str) -> Facts:
        board, index = self._cycle.board, self._cycle.index
        eligible = index.eligible_cells(request.filter_for(pool))
        if not eligible.any():
            text = f"pool {pool} has no node yet that the job could use"
            return Facts(pool, 0, [Reason(ReasonCode.QUEUE_CLOSED, text)], short=True)
        free = np.where(eligible, board.counts.by_cell, 0)
        facts = Facts(pool, int(free.sum()))
        if fits(request, index, free):
            self._host_shortage(request, facts, free)
            return facts
        facts.short = True
        self._gpu_shortage(request, facts, free)
        self._out_of_service(facts, eligible[index.gpu_cell])
        return facts

    def _gpu_shortage(self, request: Request, facts: Facts, free: np.ndarray) -> None:
        index, need = self._cycle.index, request.gpus
        if facts.free < need:
            text = f"needs {count_of(need, 'GPU')}, {facts.free} free in pool {facts.pool}"
            facts.reasons.append(Reason(ReasonCode.INSUFFICIENT_GPUS, text))
        if request.nvlink:
            most = int(index.domains(True, request.level).sums(free).max(initial=0))
            if most < need:
                text = f"needs {count_of(need, 'GPU')} in one NVLink group, largest free {most} of {need}"
                facts.reasons.append(Reason(ReasonCode.NO_FREE_NVLINK_GROUP, text))
        if request.level:
            most = int(index.domains(False, request.level).sums(free).max(initial=0))
            if most < need:
                needed = f"needs {count_of(need, 'GPU')} in one {request.level}"
                text = f"{needed}, the {request.level} with most free has {most}"
                facts.reasons.append(Reason(ReasonCode.NO_TOPOLOGY_DOMAIN, text))
        if request.node_count:
            domains = index.domains(request.nvlink, request.level)
            whole = domains.domain_of_part[domains.part_sums(free) >= request.per_node]
            most = int(np.bincount(whole).max()) if len(whole) else 0
            if most < request.node_count:
                each = count_of(request.per_node, "free GPU")
                text = f"needs {count_of(request.node_count, 'node')} with {each} each, {most} fit"
                facts.reasons.append(Reason(ReasonCode.NO_TOPOLOGY_DOMAIN, text))

    def _out_of_service(self, facts: Facts, eligible: np.ndarray) -> None:
        out = np.flatnonzero(eligible & ~self._cycle.index.gpu_usable)
        kinds = self._cycle.index.count_states(out.tolist())
        words = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        if kinds:
            usable, take = count_of(int(eligible.sum()), "GPU"), "takes" if len(out) == 1 else "take"
            text = f"{len(out)} of the {usable} it could use {take} no work: {words}"
            facts.reasons.append(Reason(ReasonCode.UNHEALTHY_GPUS, text))

    def _host_shortage(self, request: Request, facts: Facts, free: np.ndarray) -> None:
        board, index = self._cycle.board, self._cycle.index
        if fits(request, index, board.capped(request, free)):
            return
        facts.short = True
        nodes = np.unique(index.cell_node[free > 0])
        cpu, memory = request.cpu / request.gpus, request.memory / request.gpus
        if float(board.hosts.now.cpu[nodes].min()) < request.cpu:
            most = max(0.0, float(board.hosts.now.cpu[nodes].max()))
            needed = f"needs {count_of(cpu, 'core')} beside each GPU"
            text = f"{needed}, a node with free GPUs has at most {most:g} left"
            facts.reasons.append(Reason(ReasonCode.INSUFFICIENT_CPU, text))
        if float(board.hosts.now.memory[nodes].min()) < request.memory:
            most = max(0.0, float(board.hosts.now.memory[nodes].max()))
            text = (
                f"needs {_gib(memory)} beside each GPU, a node with free GPUs has at most {_gib(most)} left"
            )
            facts.reasons.append(Reason(ReasonCode.INSUFFICIENT_MEMORY, text))

    def _cpu_facts(self, request: Request) -> Facts:
        found = self._facts.get(request)
        if found is not None:
            return found
        board, index, facts = self._cycle.board, self._cycle.index, Facts(short=True)
        nodes = np.zeros(len(index.nodes), dtype=bool)
        for pool in request.pools:
            nodes |= index.eligible_nodes(pool, request.affinity, request.anti_affinity)
        nodes &= index.node_schedulable
        if not nodes.any():
            text = f"no node of {', '.join(request.pools) or 'its queue'} takes work"
            facts.reasons.append(Reason(ReasonCode.QUEUE_CLOSED, text))
        else:
            count = request.node_count or 1
            cpu, memory = request.cpu / count, request.memory / count
            most_cpu, most_memory = (
                float(board.hosts.now.cpu[nodes].max()),
                float(board.hosts.now.memory[nodes].max()),
            )
            if most_cpu < cpu or most_memory >= memory:
                most = max(0.0, most_cpu)
                needed = f"needs {count_of(cpu, 'core')} on a node"
                text = f"{needed}, at most {most:g} {is_or_are(most)} left on one"
                facts.reasons.append(Reason(ReasonCode.INSUFFICIENT_CPU, text))
            if most_memory < memory:
                text = (
                    f"needs {_gib(memory)} on a node, at most {_gib(max(0.0, most_memory))} are left on one"
                )
                facts.reasons.append(Reason(ReasonCode.INSUFFICIENT_MEMORY, text))
        self._facts[request] = facts
        return facts


_SHORTAGES = (
    ReasonCode.NO_FREE_NVLINK_GROUP,
    ReasonCode.NO_TOPOLOGY_DOMAIN,
    ReasonCode.INSUFFICIENT_GPUS,
)


def _shortages_first(reasons: list[Reason]) -> list[Reason]:
    """The most specific shortage in front: it is the one that preemption would have to cure."""
    rank = {code: place for place, code in enumerate(_SHORTAGES)}
    return sorted(reasons, key=lambda one: rank.get(one.code, len(rank)))


def _some(names: list[str]) -> str:
    if not names:
        return "what runs there"
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"job{'s' if len(names) > 1 else ''} {', '.join(names[:3])}{more}"


def _gib(size: float) -> str:
    return f"{size / 1024**3:.3g}Gi"
