"""Pending jobs as a cycle sees them, with all that stays the same between plans computed once."""

from __future__ import annotations

import math
from dataclasses import dataclass

from emep.policy.model import Policy
from emep.scheduling.model import Job, Verdict
from emep.scheduling.quota import Limit
from emep.scheduling.request import Request, run_limit

Leaf = tuple[str, str, str]
"""Queue, project, user."""


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
