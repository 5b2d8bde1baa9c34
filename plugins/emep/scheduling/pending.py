"""Pending jobs as a cycle looks at them: what does not change from one plan to the next, worked out once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from emep.policy.model import Policy
from emep.scheduling.cluster.index import ClusterIndex
from emep.scheduling.model import Job, Node, Reject
from emep.scheduling.quota import Limit, LimitsByOwner
from emep.scheduling.reject import Verdict, against_cluster, against_policy
from emep.scheduling.request import Request, request_of, run_limit

Leaf = tuple[str, str, str]
"""Queue, project, user."""


_REMEMBERED = 20_000
"""Requests of which verdicts are kept; then all are forgotten."""


class PendingJob:
    """One job with everything that follows from it, the policy and the nodes."""

    __slots__ = (
        "blocked",
        "job",
        "key",
        "leaf",
        "limit",
        "limits",
        "pool",
        "quiet",
        "request",
        "simple",
        "value",
        "verdict",
        "victims",
    )

    def __init__(
        self,
        job: Job,
        verdict: Verdict | None,
        request: Request | None,
        value: float,
        limits: tuple[Limit, ...],
        policy: Policy,
    ) -> None:
        self.job, self.verdict, self.value = job, verdict, value
        self.blocked = Blocked(self)
        """The answer for most jobs that wait: looked at, and nothing special."""
        self._set_request(request)
        limit = run_limit(job, policy)
        self.limit = math.inf if limit is None else limit
        self.leaf: Leaf = (job.queue, job.project, job.user)
        self.limits = limits
        """Those that limit or guarantee something."""
        self.victims = () if verdict else policy.victim_classes(job.queue, job.priority)
        self.quiet = bool(
            request
            and request.gpus
            and len(request.pools) == 1
            and all(limit.max_gpus is None for limit in limits)
        )
        """Whether it is one of the many while nothing can be preempted: GPUs of one pool, and no quota."""
        self.simple = self.quiet and not limits and not self.victims
        """Whether it is one of the many: it cannot preempt at all."""

    def _set_request(self, request: Request | None) -> None:
        self.pool = ""
        """Its pool, if there is but one."""
        self.key = 0
        """The same for all jobs with an equal request, while one of them is known."""
        if request is not None:
            self.request: Request = request
            self.key = id(request)
            if len(request.pools) == 1:
                self.pool = request.pools[0]


@dataclass(frozen=True, slots=True)
class Blocked:
    """A job that was looked at and not started."""

    entry: PendingJob
    backing_off: bool = False
    quota: tuple[Limit, ...] = ()
    holding: bool = False
    """Its GPUs are held for it; it waits for victims to go."""
    behind: str | None = None
    """No backfill at all: the job that no other in its pools may pass."""

    @property
    def job(self) -> Job:
        """The job itself."""
        return self.entry.job


def book_of(index: ClusterIndex, policy: Policy) -> PendingJobs:
    """The pending jobs known under a policy, kept beside the index from one plan to the next."""
    book: PendingJobs | None = index.derived.get("pending")
    if book is None or book.policy is not policy:
        book = index.derived["pending"] = PendingJobs(index, policy)
    return book


def validate_job(job: Job, nodes: Sequence[Node] | ClusterIndex, policy: Policy) -> Reject | None:
    """Why the job can never run; None if it could run on the healthy, empty cluster.

    A pool without any known node rejects nothing for its size: its nodes may not have reported yet.
    """
    index = nodes if isinstance(nodes, ClusterIndex) else ClusterIndex(nodes)
    # The book remembers its verdict on equal requests.
    verdict = book_of(index, policy).make(job).verdict
    return None if verdict is None else Reject(job.id, *verdict)


class PendingJobs:
    """Entries by job, kept as long as callers hand in the same job objects."""

    def __init__(self, index: ClusterIndex, policy: Policy) -> None:
        self._index, self.policy = index, policy
        self._entries: dict[str, PendingJob] = {}
        self._requests: dict[Request, Request] = {}
        self._verdicts: dict[Request, Verdict | None] = {}
        self._limits = LimitsByOwner(policy)

    def entries(self, jobs: Iterable[Job]) -> list[PendingJob]:
        """One entry per job; those of jobs that are not asked for any more are forgotten now and then."""
        found = [self.entry(job) for job in jobs]
        if len(self._entries) > 2 * len(found) + 1000:
            self._entries = {entry.job.id: entry for entry in found}
        return found

    def entry(self, job: Job) -> PendingJob:
        """The entry of a job, made where there is none of just this object."""
        known = self._entries.get(job.id)
        if known is None or known.job is not job:
            known = self._entries[job.id] = self.make(job)
        return known

    def make(self, job: Job) -> PendingJob:
        """A new entry of a job, with what is known of its like."""
        limits = self._limits.of(job)
        verdict = against_policy(job, self.policy, limits)
        request: Request | None = None
        if verdict is None:
            made = request_of(job, self.policy, self._index)
            if len(self._requests) > _REMEMBERED:
                self._requests, self._verdicts = {}, {}
            request = self._requests.setdefault(made, made)
            if request not in self._verdicts:
                self._verdicts[request] = against_cluster(request, self._index)
            verdict = self._verdicts[request]
        value = self.policy.class_value(job.priority) if verdict is None else 0.0
        return PendingJob(job, verdict, request, value, limits, self.policy)
