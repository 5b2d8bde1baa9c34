"""When waiting jobs may start: an estimate for people, never a promise (a reservation is one).

Three bounds, the latest counts: the job's own earliest fit, given when the GPUs it could use come free; its
place in line, with every job before it taking GPUs in order for as long as they are expected to run; what it
waits for besides (backoff, quota). History (``estimated_duration``) is used for how long others will take.
"""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush

import numpy as np

from emep.scheduling.durations import expected_duration
from emep.scheduling.explain.view import CycleView
from emep.scheduling.model import Job
from emep.scheduling.pending import Blocked
from emep.scheduling.request import Request
from emep.scheduling.reservations.cpu import nodes_for
from emep.scheduling.reservations.release import earliest_release
from emep.wire.units import count_of, format_duration, is_or_are

Estimate = tuple[float | None, str]


class Estimator:
    """Estimates for what one cycle left waiting."""

    def __init__(self, cycle: CycleView) -> None:
        self._cycle = cycle
        self._own: dict[Request, float] = {}
        self._lines: dict[str, _Line] = {}

    def estimate_all(self) -> dict[str, Estimate]:
        """Estimate and its words by job id."""
        return {blocked.job.id: self._estimate(blocked) for blocked in self._cycle.blocked}

    def _estimate(self, blocked: Blocked) -> Estimate:
        cycle, job = self._cycle, blocked.job
        if blocked.holding:
            return self._say(cycle.state.release_of(job.id), "when its victims have yielded")
        request = blocked.entry.request
        reserved = cycle.reserved_at.get(job.id)
        if reserved is not None:
            if request.gpus:
                self._stand_in_line(job, request, reserved)
            return self._say(reserved, "reserved")
        own = self._earliest(request)
        if own == math.inf:
            return None, f"never: {self._why_never(request)}"
        quota = max((self._quota_free(job, limit.label) for limit in blocked.quota), default=cycle.now)
        start = max(own, quota, job.not_before, cycle.now)
        if request.gpus and not blocked.quota and not blocked.backing_off:
            start = self._stand_in_line(job, request, start)
        if start == math.inf:
            return None, "unknown: jobs before it, or that hold its quota, have no max_duration"
        return self._say(start, "estimated")

    def _say(self, at: float, words: str) -> Estimate:
        rest = max(0.0, at - self._cycle.now)
        return at, f"{words}, in {'about ' if words == 'estimated' else ''}{format_duration(rest)}"

    # ---- a job's own earliest fit --------------------------------------------------------------------------

    def _earliest(self, request: Request) -> float:
        found = self._own.get(request)
        if found is None:
            if request.gpus:
                found = min((self._earliest_in(request, pool) for pool in request.pools), default=math.inf)
            else:
                found = self._cycle.now if nodes_for(self._cycle.index, request).any() else math.inf
            self._own[request] = found
        return found

    def _earliest_in(self, request: Request, pool: str) -> float:
        """When the first domain has enough GPUs free; exact but for host memory, cores and reservations."""
        state, index = self._cycle.state, self._cycle.index
        kind = request.filter_for(pool)
        eligible = index.eligible_cells(kind)[index.gpu_cell] & index.gpu_usable
        return max(self._cycle.now, earliest_release(index, request, eligible, state.busy_until))

    def _why_never(self, request: Request) -> str:
        if not request.gpus:
            return "no node that it could use takes work (lost, drained or out)"
        state, index = self._cycle.state, self._cycle.index
        usable = np.zeros(len(index.gpu_usable), dtype=bool)
        for pool in request.pools:
            usable |= index.eligible_cells(request.filter_for(pool))[index.gpu_cell]
        out = int((usable & ~index.gpu_usable).sum())
        endless = int((usable & index.gpu_usable & np.isposinf(state.busy_until)).sum())
        owners = "a job" if endless == 1 else "jobs"
        words = [f"{endless} {is_or_are(endless)} held by {owners} without max_duration"] if endless else []
        take = "takes" if out == 1 else "take"
        words += [f"{out} {take} no work (unhealthy, drained, or used by others)"] if out else []
        mine = count_of(int(usable.sum()), "GPU")
        return (
            f"of the {mine} it could use, {' and '.join(words) or 'none come free'}; "
            f"what is left never holds {request.gpus} as asked"
        )

    # ---- the line ------------------------------------------------------------------------------------------

    def _stand_in_line(self, job: Job, request: Request, earliest: float) -> float:
        """The earliest of its pools' lines; the job takes its GPUs there."""
        if len(request.pools) == 1:
            line = self._line(request.pools[0])
        else:
            line = min((self._line(pool) for pool in request.pools), key=lambda one: one.ready(request.gpus))
        duration = expected_duration(job, self._cycle.policy)
        return line.join(request.gpus, earliest, duration)

    def _line(self, pool: str) -> _Line:
        found = self._lines.get(pool)
        if found is None:
            index, state = self._cycle.index, self._cycle.state
            usable = (index.cell_pool == index.pool_number.get(pool, -1))[index.gpu_cell] & index.gpu_usable
            until = np.maximum(state.busy_until[usable], self._cycle.now)
            times, counts = np.unique(until[np.isfinite(until)], return_counts=True)
            found = self._lines[pool] = _Line(
                self._cycle.now, list(zip(times.tolist(), counts.tolist(), strict=True))
            )
        return found

    def _quota_free(self, job: Job, label: str) -> float:
        """When enough of what is held under a limit comes free for the job."""
        cycle = self._cycle
        limit = next(one for one in cycle.holdings.limits(job) if one.label == label)
        excess = cycle.holdings.held(limit) + job.gpu_count - (limit.max_gpus or 0)
        ends = sorted(
            (max(cycle.now, cycle.occupancy.latest_end(one)), len(one.gpus))
            for one in cycle.occupancy.allocations.values()
            if any(other.label == label for other in cycle.holdings.limits(one.job))
        )
        for end, count in ends:
            excess -= count
            if excess <= 0:
                return end
        return math.inf


class _Line:
    """GPUs of one pool by number only, handed out strictly in order."""

    def __init__(self, now: float, releases: list[tuple[float, int]]) -> None:
        self._releases = releases
        heapify(self._releases)
        self._time, self._free = now, 0

    def ready(self, need: int) -> float:
        """When the next in line would have its GPUs; moves the line there."""
        while self._free < need:
            if not self._releases:
                return math.inf
            time, count = heappop(self._releases)
            self._time = max(self._time, time)
            self._free += count
        return self._time

    def join(self, need: int, earliest: float, duration: float) -> float:
        """When the next in line starts."""
        start = max(self.ready(need), earliest)
        if start < math.inf:
            self._free -= need
            if duration < math.inf:
                heappush(self._releases, (start + duration, need))
        return start
