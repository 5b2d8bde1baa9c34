"""How long a job will take, from what the same (user, job type, GPUs) took before.

Users overstate limits or leave them to the queue's default. The estimate is the mean of the last two runs
alike (D. Tsafrir, Y. Etsion, D. Feitelson, IEEE TPDS 18(6), 2007: the same user's recent history beats longer
averages), never more than the limit. It orders jobs and dates estimates; nothing is ever killed by it.
"""

from __future__ import annotations

from collections import deque

from emep.scheduling.model import Job

Kind = tuple[str, str, int]
"""User, job type, GPUs."""
_REMEMBERED = 2


def kind_of(job: Job) -> Kind:
    """What counts as the same work."""
    return (job.user, job.job_type, job.gpu_count)


class DurationHistory:
    """Durations of completed work by kind."""

    def __init__(self) -> None:
        self._last: dict[Kind, deque[float]] = {}

    def add(self, kind: Kind, seconds: float) -> None:
        """Remember that work of this kind took so long, in all its runs together."""
        self._last.setdefault(kind, deque(maxlen=_REMEMBERED)).append(seconds)

    def estimate(self, job: Job) -> float | None:
        """Seconds that the job will take; None where nothing alike has completed."""
        known = self._last.get(kind_of(job))
        if not known:
            return None
        mean = sum(known) / len(known)
        return mean if job.max_duration is None else min(mean, job.max_duration)
