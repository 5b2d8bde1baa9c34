"""A small event loop around the scheduling core: time, work and accounting, and no decision of its own.

It stands in for the ledger: every decision of ``plan`` is carried out as it says, and checked for what can
never be right (a GPU given twice, half a gang, a start of what is not pending). None of its arithmetic is the
product's.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from tests.builders.scheduling import JobBuilder, NodeBuilder

from emep.policy import Policy
from emep.scheduling.cluster.index import ClusterIndex
from emep.scheduling.model import Allocation, GpuId, Hold, Job, Node, Plan, Snapshot, UsageRecord
from emep.scheduling.plan import plan

PlanFunction = Callable[[Snapshot, Policy, float], Plan]


@dataclass(frozen=True)
class Work:
    """A job and how long it truly takes, which the core is never told."""

    job: Job
    duration: float


def work(job_id: str, submit: float, gpus: int, run: float, **fields: object) -> Work:
    """A job in the scenarios' notation ``(submit, gpus, run)``; its limit is ``run`` unless given."""
    given = {"id": job_id, "submit_time": float(submit), "gpu_count": gpus, "max_duration": float(run)}
    return Work(JobBuilder(given).having(**fields).build(), float(run))


@dataclass
class Run:
    """One stay of a job on its GPUs."""

    job_id: str
    gpus: tuple[GpuId, ...]
    start: float
    end: float = math.inf
    completed: bool = False


@dataclass
class History:
    """What happened."""

    runs: list[Run] = field(default_factory=list)
    evictions: list[tuple[float, str, str]] = field(default_factory=list)
    """Time, victim, cause."""
    rejected: dict[str, str] = field(default_factory=dict)
    reservations: list[tuple[float, str, float]] = field(default_factory=list)
    """Time of the plan, job, time of its reservation; the first reservation of each plan only."""
    usage: dict[tuple[str, str, str], float] = field(default_factory=dict)
    """Undecayed GPU-seconds by (queue, project, user), as the loop charged them."""
    cycles: int = 0
    unfinished: set[str] = field(default_factory=set)

    def start_of(self, job_id: str) -> float:
        """First start of a job; infinity where it never ran."""
        return min((run.start for run in self.runs if run.job_id == job_id), default=math.inf)

    def end_of(self, job_id: str) -> float:
        return max(run.end for run in self.runs if run.job_id == job_id)

    def starts(self) -> dict[str, float]:
        return {run.job_id: self.start_of(run.job_id) for run in self.runs}


class Replay:
    """Carries out the core's plans for a list of work until nothing is left to do.

    ``grace``: seconds between a victim's order to yield and its exit (it completes if its work ends before).
    ``planner``: ``plan`` without explanations unless given.
    """

    def __init__(
        self,
        nodes: Iterable[NodeBuilder | Node],
        policy: Policy,
        works: Iterable[Work],
        *,
        grace: float = 0.0,
        max_cycles: int = 100_000,
        planner: PlanFunction | None = None,
        watch: Callable[[Snapshot, Plan, float], None] | None = None,
    ) -> None:
        works = list(works)
        self.nodes = tuple(node.build() if isinstance(node, NodeBuilder) else node for node in nodes)
        self.policy, self.grace, self.max_cycles = policy, grace, max_cycles
        self.planner, self.watch = planner or self._plan, watch
        self.index = ClusterIndex(self.nodes)
        self.remaining = {item.job.id: item.duration for item in works}
        self.events: list[tuple[float, int, Job]] = []
        for number, item in enumerate(works):
            heapq.heappush(self.events, (item.job.submit_time, number, item.job))
        self.pending: dict[str, Job] = {}
        self.running: dict[str, tuple[Allocation, Run]] = {}
        self.charged: dict[tuple[str, str, str], float] = defaultdict(float)
        self.history = History(usage=defaultdict(float))
        self.holds: tuple[Hold, ...] = ()
        self.now = self.charged_until = 0.0
        self.types = {GpuId(node.name, gpu.index): gpu.gpu_type for node in self.nodes for gpu in node.gpus}

    def run(self) -> History:
        """Until all work is done, nothing more can happen, or ``max_cycles`` plans were made."""
        while self.history.cycles < self.max_cycles:
            moment = self._next_moment()
            if moment is None:
                break
            self._advance(moment)
            self._cycle()
        self.history.unfinished = set(self.pending) | set(self.running)
        return self.history

    # ---- time ----------------------------------------------------------------------------------------------

    def _leaves_at(self, allocation: Allocation, run: Run) -> float:
        done = run.start + self.remaining[run.job_id]
        return min(done, allocation.releases_at) if allocation.releases_at is not None else done

    def _next_moment(self) -> float | None:
        moments = [self._leaves_at(*entry) for entry in self.running.values()]
        if self.events:
            moments.append(self.events[0][0])
        return min(moments, default=None)

    def _advance(self, moment: float) -> None:
        self._charge(moment)
        self.now = moment
        for job_id, (allocation, run) in list(self.running.items()):
            if self._leaves_at(allocation, run) <= moment:
                self._leave(job_id, allocation, run)
        while self.events and self.events[0][0] <= moment:
            job = heapq.heappop(self.events)[2]
            self.pending[job.id] = job

    def _leave(self, job_id: str, allocation: Allocation, run: Run) -> None:
        del self.running[job_id]
        run.end = self.now
        run.completed = run.start + self.remaining[job_id] <= self.now
        if not run.completed:
            self.remaining[job_id] -= self.now - run.start
            self.pending[job_id] = replace(allocation.job, preempted=True, queued_at=self.now)

    def _charge(self, moment: float) -> None:
        """Exact decayed consumption: the integral of rate x 2^-(age / half_life)."""
        elapsed, half_life = moment - self.charged_until, self.policy.half_life
        kept = 2 ** -(elapsed / half_life) if half_life else 1.0
        fresh = (1 - kept) * half_life / math.log(2) if half_life else elapsed
        for entity in self.charged:
            self.charged[entity] *= kept
        for allocation, _ in self.running.values():
            job = allocation.job
            entity = (job.queue, job.project, job.user)
            billed = sum(self.policy.billing(self.types[gpu]) for gpu in allocation.gpus)
            self.charged[entity] += billed * fresh
            self.history.usage[entity] += len(allocation.gpus) * elapsed
        self.charged_until = moment

    def _plan(self, snapshot: Snapshot, policy: Policy, now: float) -> Plan:
        return plan(snapshot, policy, now, self.index, explain=False)

    # ---- decisions -----------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        return Snapshot(
            nodes=self.nodes,
            pending=tuple(self.pending.values()),
            allocations=tuple(allocation for allocation, _ in self.running.values()),
            usage=tuple(UsageRecord(*entity, seconds) for entity, seconds in self.charged.items()),
            holds=self.holds,
        )

    def _cycle(self) -> None:
        for _ in range(100):
            snapshot = self.snapshot()
            decided = self.planner(snapshot, self.policy, self.now)
            self.history.cycles += 1
            if self.watch is not None:
                self.watch(snapshot, decided, self.now)
            self._carry_out(decided)
            left = [job_id for job_id, entry in self.running.items() if self._leaves_at(*entry) <= self.now]
            if not left:
                return
            self._advance(self.now)
        raise AssertionError(f"at {self.now} a hundred plans in one instant came to no rest")

    def _carry_out(self, decided: Plan) -> None:
        self.holds = decided.holds
        for rejection in decided.rejections:
            self.history.rejected[rejection.job_id] = rejection.message
            del self.pending[rejection.job_id]
        for reservation in decided.reservations[:1]:
            self.history.reservations.append((self.now, reservation.job_id, reservation.at))
        for order in decided.preemptions:
            allocation, run = self.running[order.job_id]
            assert not allocation.yielding, f"{order.job_id} was told to yield twice"
            told = replace(
                allocation, yielding=True, held_for=order.for_job, releases_at=self.now + self.grace
            )
            self.running[order.job_id] = (told, run)
            self.history.evictions.append((self.now, order.job_id, order.for_job))
        held = {gpu for allocation, _ in self.running.values() for gpu in allocation.gpus}
        for start in decided.starts:
            job = self.pending.pop(start.job_id)
            gpus = start.placement.gpus
            assert len(set(gpus)) == len(gpus) == job.gpu_count, (
                f"{job.id}: {gpus} are not {job.gpu_count} GPUs"
            )
            assert held.isdisjoint(gpus), f"{job.id}: {gpus} are held already"
            assert set(gpus) <= set(self.types), f"{job.id}: {gpus} do not exist"
            held.update(gpus)
            run = Run(job.id, gpus, self.now)
            self.history.runs.append(run)
            self.running[job.id] = (Allocation(job, gpus, self.now, start.placement.nodes), run)
