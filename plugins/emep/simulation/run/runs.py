"""One run of a job on its GPUs: its progress, its end, and the work saved if it must stop."""

from __future__ import annotations

import math
from dataclasses import dataclass

from emep.scheduling.model import Allocation

EPSILON = 1e-6
"""Virtual time is kept in whole microseconds: instants that are equal on paper are equal."""


def instant(seconds: float) -> float:
    """A time rounded to microseconds."""
    return round(seconds, 6)


@dataclass(slots=True)
class Run:
    """A job on its GPUs. Work is in seconds on them; a resumed run works only after ``restart`` seconds."""

    allocation: Allocation
    saved: float
    """Work that earlier runs left in a checkpoint."""
    restart: float
    duration: float
    """All the work there is."""
    ends_at: float
    """When it completes, or is killed at its limit."""
    over_limit: bool
    """Whether ``ends_at`` is the limit and not the end of the work."""
    epoch: int
    yields_at: float | None = None
    """When it exits, once told to yield."""
    counts_as_infrastructure: bool = False
    """Told to yield because of a bad GPU, not for another job."""
    told_done: float = 0.0
    """Work done when it was told to yield."""
    keeps: float = 0.0
    """What of it will be in a checkpoint when it exits."""

    @property
    def start(self) -> float:
        """When the run began."""
        return self.allocation.start_time

    def work_done(self, now: float) -> float:
        """Work done up to ``now``, saved or not, if it has worked all the time."""
        return min(self.duration, self.saved + max(0.0, now - self.start - self.restart))

    def work_in_checkpoints(self, now: float) -> float:
        """Work that scheduled checkpoints hold at ``now``; without a schedule, what the run began with."""
        interval = self.allocation.job.checkpoint_interval
        if not interval:
            return self.saved
        fresh = self.work_done(now) - self.saved
        return self.saved + math.floor(fresh / interval + EPSILON) * interval

    def done_until(self, now: float) -> float:
        """Work done up to ``now``: one that yields has worked until it was told."""
        return self.work_done(now) if self.yields_at is None else self.told_done

    def kept_without_warning(self, now: float) -> float:
        """What is saved if the node dies now: a checkpoint that is being written does not exist yet."""
        kept = self.work_in_checkpoints(now)
        return kept if self.yields_at is None else min(kept, self.told_done)

    def last_checkpoint(self, now: float) -> float | None:
        """When the last scheduled checkpoint of this run was taken; None where there was none yet."""
        held = self.work_in_checkpoints(now) - self.saved
        return self.start + self.restart + held if held > 0 else None


def plan_run(
    allocation: Allocation,
    *,
    saved: float,
    restart: float,
    duration: float,
    limited: bool,
    epoch: int,
) -> Run:
    """A run that begins now: it ends when its work is done, or at its limit where that comes first.

    A run that ends exactly at its limit has completed. ``limited`` is False for a job whose limit is only its
    own duration: what a restart costs in the simulator must not kill it.
    """
    needed = restart + duration - saved
    limit = allocation.job.max_duration
    over = limited and limit is not None and needed > limit + EPSILON
    length = limit if over and limit is not None else needed
    return Run(
        allocation=allocation,
        saved=saved,
        restart=restart,
        duration=duration,
        ends_at=instant(allocation.start_time + length),
        over_limit=over,
        epoch=epoch,
    )
