"""Limits (``max_gpus``) and guarantees (``guaranteed_gpus``) of queues and projects, nested ones included."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from emep.policy.model import Policy
from emep.scheduling.cluster.index import ClusterIndex
from emep.scheduling.model import Allocation, Job


@dataclass(frozen=True, slots=True)
class Limit:
    """One queue's or project's numbers."""

    label: str
    """``queue merge`` or ``project org/team``."""
    max_gpus: int | None
    guaranteed: Mapping[str, int]


def limits_of(policy: Policy, queue: str, project: str) -> Iterator[Limit]:
    """Everything that limits or guarantees a job of this queue and project, from the top."""
    rules = policy.queues.get(queue)
    if rules is not None:
        yield Limit(f"queue {queue}", rules.max_gpus, rules.guaranteed_gpus)
    for path, project_rules in policy.project_chain(project):
        yield Limit(f"project {path}", project_rules.max_gpus, project_rules.guaranteed_gpus)


class LimitsByOwner:
    """Those of ``limits_of`` that limit or guarantee something, looked up once for each queue and project."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._known: dict[tuple[str, str], tuple[Limit, ...]] = {}

    def of(self, job: Job) -> tuple[Limit, ...]:
        """The job's, from the top."""
        key = (job.queue, job.project)
        found = self._known.get(key)
        if found is None:
            found = tuple(
                limit
                for limit in limits_of(self._policy, *key)
                if limit.max_gpus is not None or limit.guaranteed
            )
            self._known[key] = found
        return found


class Holdings:
    """GPUs that queues and projects hold while a plan is made, in all and by pool."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._total: dict[str, int] = {}
        self._by_pool: dict[tuple[str, str], int] = {}
        self._limits = LimitsByOwner(policy)

    def limits(self, job: Job) -> tuple[Limit, ...]:
        """What limits the job or guarantees it something."""
        return self._limits.of(job)

    def add(self, job: Job, pool: str, gpus: int) -> None:
        """The job holds ``gpus`` more GPUs of the pool (fewer, if negative)."""
        for limit in self.limits(job):
            self._total[limit.label] = self._total.get(limit.label, 0) + gpus
            key = (limit.label, pool)
            self._by_pool[key] = self._by_pool.get(key, 0) + gpus

    def add_allocation(self, allocation: Allocation, index: ClusterIndex, sign: int = 1) -> None:
        """Count what runs (or, with -1, what does not any more)."""
        if allocation.gpus and self.limits(allocation.job):
            pool = index.pool_of(allocation.gpus[0].node)
            self.add(allocation.job, pool, sign * len(allocation.gpus))

    def copy(self) -> Holdings:
        """One that can be changed by itself."""
        made = Holdings(self._policy)
        made._total, made._by_pool, made._limits = self._total.copy(), self._by_pool.copy(), self._limits
        return made

    def held(self, limit: Limit) -> int:
        """GPUs held under one limit now."""
        return self._total.get(limit.label, 0)

    def held_in(self, limit: Limit, pool: str) -> int:
        """GPUs of one pool held under one limit now."""
        return self._by_pool.get((limit.label, pool), 0)

    def exceeded(self, job: Job) -> list[Limit]:
        """The hard limits that would be exceeded if the job started now."""
        return [
            limit
            for limit in self.limits(job)
            if limit.max_gpus is not None
            and job.gpu_count
            and self.held(limit) + job.gpu_count > limit.max_gpus
        ]

    def guarantee_left(self, job: Job, pool: str) -> bool:
        """Whether an owner above the job has a guarantee in the pool that the job would still be within."""
        return any(
            self.held_in(limit, pool) + job.gpu_count <= limit.guaranteed[pool]
            for limit in self.limits(job)
            if limit.guaranteed.get(pool, 0) > 0
        )

    def borrowed(self, job: Job, pool: str) -> float:
        """How many GPUs of the pool may be taken back from the job's owners: what is beyond guarantees.

        The least over all owners above the job that have a guarantee; without any, all is borrowed (inf).
        """
        return min(
            (
                float(self.held_in(limit, pool) - limit.guaranteed[pool])
                for limit in self.limits(job)
                if limit.guaranteed.get(pool, 0) > 0
            ),
            default=float("inf"),
        )
