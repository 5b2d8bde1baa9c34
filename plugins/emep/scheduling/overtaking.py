"""Shortest first without starving anybody: who may go ahead of submission order, and who may not.

Among equals (one class, entities that tie) a job may start ahead of its turn only if nobody is made to wait
longer for it than the longest wait that submission order by itself gives. Everybody who waits is projected
into the future in submission order, each at the earliest time that delays nobody before it (GPUs counted,
limits taken as durations). The longest projected wait W is the bound: one more job may start now if,
everybody else projected anew, no projected wait grows past W (or past ``starvation_bound``, where that is
longer). So W never grows through overtaking, only through arrivals, as in plain submission order; and whoever
is not the one that waits longest has slack, which is what short jobs use. Nobody of another class, or of an
entity that is ahead in fair share, is delayed at all.

Projection as such is conservative backfill (A. Mu'alem, D. Feitelson, IEEE TPDS 12(6), 2001); slack in it
goes back to D. Talby, D. Feitelson, "Supporting priorities and improving utilization of the IBM SP scheduler
using slack-based backfilling", IPPS 1999. Here the slack follows from the queue itself and needs no setting.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

TOLERANCE = 1e-6
"""Seconds; two sums of the same durations may differ by rounding."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """What the projection needs to know of one waiting job."""

    id: str
    submit_time: float
    gpus: int
    duration: float
    """Its limit: what it may hold GPUs for; infinite for one without."""
    size: float
    """What the order sorts by: expected seconds, or GPU-seconds."""


class Profile:
    """GPUs free over time, from now on: ``free[i]`` of them from ``times[i]`` until ``times[i + 1]``."""

    __slots__ = ("free", "times")

    def __init__(self, times: list[float], free: list[int]) -> None:
        self.times, self.free = times, free

    @classmethod
    def of_ends(cls, now: float, free_now: int, ends: Iterable[tuple[float, int]]) -> Profile:
        """From what is free now and (time, GPUs) of what comes free; an end that is overdue counts as now."""
        times, free = [now], [free_now]
        for time, gpus in sorted(ends):
            if math.isinf(time):
                continue
            if time <= times[-1]:
                free[-1] += gpus
            else:
                times.append(time)
                free.append(free[-1] + gpus)
        return cls(times, free)

    def copy(self) -> Profile:
        """One that can be changed by itself."""
        return Profile(self.times.copy(), self.free.copy())

    def take_earliest(self, gpus: int, duration: float) -> float:
        """Take GPUs for a while at the first time they are free that long; the time, inf if never."""
        times, free = self.times, self.free
        count = len(times)
        begin = 0
        while True:
            while begin < count and free[begin] < gpus:
                begin += 1
            if begin == count:
                return math.inf
            end = times[begin] + duration
            place = begin + 1
            while place < count and times[place] < end - TOLERANCE:
                if free[place] < gpus:
                    break
                place += 1
            else:
                break
            begin = place
        self._take(begin, place, end, gpus)
        return times[begin]

    def take_now(self, gpus: int, duration: float) -> None:
        """Take GPUs from now on, whoever else wants them."""
        end, place = self.times[0] + duration, 1
        while place < len(self.times) and self.times[place] < end - TOLERANCE:
            place += 1
        self._take(0, place, end, gpus)

    def _take(self, begin: int, place: int, end: float, gpus: int) -> None:
        times, free = self.times, self.free
        if math.isfinite(end) and (place == len(times) or times[place] > end + TOLERANCE):
            times.insert(place, end)
            free.insert(place, free[place - 1])
        for index in range(begin, place):
            free[index] -= gpus


class Queue:
    """Jobs that wait among equals, in submission order, and their projected starts."""

    def __init__(self, profile: Profile, waiting: Sequence[Candidate], floor: float) -> None:
        """``floor``: waits up to so many seconds are nobody's concern (``starvation_bound``)."""
        self._profile = profile
        self._waiting = list(waiting)
        self.starts = self._project(profile.copy(), self._waiting, None)
        self.bound = max([floor, *self._known_waits()])

    def _known_waits(self) -> list[float]:
        return [
            self.starts[one.id] - one.submit_time
            for one in self._waiting
            if math.isfinite(self.starts[one.id])
        ]

    def may_start(self, chosen: Candidate) -> bool:
        """Whether ``chosen`` may start now; if so the projection goes on as if it had started."""
        rest = [one for one in self._waiting if one is not chosen]
        profile = self._profile
        if self.start_of(chosen) > profile.times[0] + TOLERANCE:
            trial = profile.copy()
            trial.take_now(chosen.gpus, chosen.duration)
            projected = self._project(trial, rest, self.starts)
            if len(projected) < len(rest):
                return False
            self.starts = projected
        return True

    def start_of(self, one: Candidate) -> float:
        """When it is projected to start; inf for one that comes after all that are projected."""
        return self.starts.get(one.id, math.inf)

    def started(self, chosen: Candidate) -> None:
        """``chosen`` has started: it waits no longer, and holds its GPUs."""
        self._waiting = [one for one in self._waiting if one is not chosen]
        self._profile.take_now(chosen.gpus, chosen.duration)

    def waits_until(self, chosen: Candidate, time: float) -> None:
        """Counting GPUs does not tell when ``chosen`` fits: it will at ``time``, and its wait is a wait."""
        if math.isfinite(time):
            self.bound = max(self.bound, time - chosen.submit_time)

    def occupy(self) -> Profile:
        """What is left for those after these equals: their projected starts are not to be delayed."""
        profile = self._profile.copy()
        for one in self._waiting:
            profile.take_earliest(one.gpus, one.duration)
        return profile

    def _project(
        self, profile: Profile, order: Sequence[Candidate], before: dict[str, float] | None
    ) -> dict[str, float]:
        """Start of each; cut short at the first one that would have to wait too long against ``before``."""
        found: dict[str, float] = {}
        for one in order:
            start = profile.take_earliest(one.gpus, one.duration)
            if before is not None and start > TOLERANCE + max(before[one.id], one.submit_time + self.bound):
                return found
            found[one.id] = start
        return found
