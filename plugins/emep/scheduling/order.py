"""The order in which pending jobs are looked at: class, fair share, then time, shortest or smallest among equals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush

from emep.policy import Policy
from emep.scheduling.eligibility import run_limit
from emep.scheduling.fair_share import Entity, FairTree
from emep.scheduling.model import Job

Within = tuple[float, ...] | tuple[object, ...]


def expected_duration(job: Job, policy: Policy) -> float:
    """Seconds a run is expected to take, for ordering and estimates only: history, else the limit, else inf."""
    if job.estimated_duration is not None:
        return job.estimated_duration
    limit = run_limit(job, policy)
    return math.inf if limit is None else limit


def waited(job: Job, now: float) -> float:
    """Seconds since the job last entered the queue."""
    return now - (job.submit_time if job.queued_at is None else job.queued_at)


def is_starving(job: Job, policy: Policy, now: float) -> bool:
    """Whether the job has waited so long that it goes back to submission order."""
    return policy.starvation_bound is not None and waited(job, now) >= policy.starvation_bound


def key_among_equals(job: Job, policy: Policy, now: float) -> tuple[float, float, float, str]:
    """Order among jobs of one class whose users tie: (not starving, size, submission, id).

    Size is 0 under ``submit_time`` and for the starving, seconds under ``shortest``, GPU-seconds under
    ``smallest_area``.
    """
    if policy.order == "submit_time" or is_starving(job, policy, now):
        return (0.0, 0.0, job.submit_time, job.id)
    size = expected_duration(job, policy)
    if policy.order == "smallest_area":
        size *= max(job.gpu_count, 1)
    return (1.0, size, job.submit_time, job.id)


class PendingOrder:
    """Hands out pending jobs one at a time; a charge in between moves its entity back for what is left."""

    def __init__(self, jobs: Iterable[Job], tree: FairTree, policy: Policy, now: float) -> None:
        self._tree = tree
        self._classes: dict[float, dict[int, list[tuple[tuple[float, float, float, str], Job]]]] = {}
        self._leaves: dict[int, Entity] = {}
        for job in jobs:
            leaf = tree.leaf(job.queue, job.project, job.user)
            self._leaves[id(leaf)] = leaf
            users = self._classes.setdefault(policy.class_value(job.priority), {})
            users.setdefault(id(leaf), []).append((key_among_equals(job, policy, now), job))
        for users in self._classes.values():
            for waiting in users.values():
                waiting.sort(key=lambda item: item[0], reverse=True)
        self._values = sorted(self._classes)
        self._heap: list[tuple[int, tuple[float, float, float, str], int]] = []
        self._stale = True

    def next(self) -> Job | None:
        """The first of the jobs that were not handed out yet; None when all were."""
        while self._values:
            users = self._classes[self._values[-1]]
            if self._stale:
                self._rebuild(users)
            if not self._heap:
                self._values.pop()
                self._stale = True
                continue
            _, _, leaf = heappop(self._heap)
            waiting = users[leaf]
            _, job = waiting.pop()
            if waiting:
                heappush(self._heap, (self._tree.rank_of(self._leaves[leaf]), waiting[-1][0], leaf))
            else:
                del users[leaf]
            return job
        return None

    def drain(self) -> Iterator[Job]:
        """All that is left, in order."""
        while (job := self.next()) is not None:
            yield job

    def charged(self) -> None:
        """Consumption has changed: ranks are to be taken anew."""
        self._stale = True

    def _rebuild(self, users: dict[int, list[tuple[tuple[float, float, float, str], Job]]]) -> None:
        rank_of = self._tree.rank_of
        self._heap = [(rank_of(self._leaves[leaf]), waiting[-1][0], leaf) for leaf, waiting in users.items()]
        heapify(self._heap)
        self._stale = False
