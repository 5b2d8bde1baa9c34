"""How long a job has waited, and how long a run of it is expected to take."""

from __future__ import annotations

import math

from emep.policy.model import Policy
from emep.scheduling.model import Job
from emep.scheduling.request import run_limit


def expected_duration(job: Job, policy: Policy) -> float:
    """Seconds that a run is expected to take (from history, else its limit, else inf); never for killing."""
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
