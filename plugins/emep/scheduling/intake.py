"""The pending jobs of a cycle with their requests and verdicts, computed once and kept between plans."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from emep.policy.model import Policy
from emep.scheduling.cluster.index import ClusterIndex
from emep.scheduling.model import Job, Node, Reject, Verdict
from emep.scheduling.pending import PendingJob
from emep.scheduling.quota import LimitsByOwner
from emep.scheduling.reject import against_cluster, against_policy
from emep.scheduling.request import Request, request_of

_REMEMBERED: Final = 20_000
"""Requests of which verdicts are kept; then all are forgotten."""


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
        """The entry of a job; a new one unless this very object has one."""
        known = self._entries.get(job.id)
        if known is None or known.job is not job:
            known = self._entries[job.id] = self.make(job)
        return known

    def make(self, job: Job) -> PendingJob:
        """A new entry of a job; it shares verdicts with equal requests."""
        limits = self._limits.of(job)
        verdict = against_policy(job, self.policy, limits)
        request: Request | None = None
        if verdict is None:
            made = request_of(job, self.policy, self._index.pools)
            if len(self._requests) > _REMEMBERED:
                self._requests, self._verdicts = {}, {}
            request = self._requests.setdefault(made, made)
            if request not in self._verdicts:
                self._verdicts[request] = against_cluster(request, self._index)
            verdict = self._verdicts[request]
        value = self.policy.class_value(job.priority) if verdict is None else 0.0
        return PendingJob(job, verdict, request, value, limits, self.policy)
