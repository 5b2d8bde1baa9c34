"""Shortest first without starvation: which jobs may start ahead of submission order.

Among equals (one class, entities that tie) a job may start ahead of its turn only if no other job
is made to wait longer than the longest wait that submission order by itself gives. Every waiting job is
projected into the future in submission order, each at the earliest time that delays no job before it (GPUs
counted, limits taken as durations). The longest projected wait W is the bound: one more job may start now if,
all other jobs projected anew, no projected wait grows past W (or past ``starvation_bound``, where that is
longer). So W never grows through overtaking, only through arrivals, as in plain submission order; and
a job that is not the one that waits longest has slack, which short jobs use. Jobs of another class, or of an
entity that is ahead in fair share, are not delayed at all.

Projection as such is conservative backfill (A. Mu'alem, D. Feitelson, IEEE TPDS 12(6), 2001); slack in it
goes back to D. Talby, D. Feitelson, "Supporting priorities and improving utilization of the IBM SP scheduler
using slack-based backfilling", IPPS 1999. Here the slack follows from the queue itself and needs no setting.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from emep.policy.model import Policy
from emep.scheduling.cluster.index import ClusterIndex
from emep.scheduling.fair_share import Entity, FairTree
from emep.scheduling.order import Line, Lines, size_of
from emep.scheduling.pending import Leaf, PendingJob
from emep.scheduling.plan_state import PlanState
from emep.scheduling.quota import Holdings

TOLERANCE: Final = 1e-6
"""Seconds; two sums of the same durations may differ by rounding."""


PROTECTED: Final = 256
"""So many of the jobs that wait among equals, in submission order, are projected; the others follow them."""
TRIES: Final = 64
"""At most so many are tried ahead of their turn among equals in one plan, shortest first."""


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """What the projection needs to know of one waiting job."""

    id: str
    submit_time: float
    gpus: int
    duration: float
    """Its limit: what it may hold GPUs for; infinite for one without."""
    size: float
    """What the order sorts by: expected seconds, or GPU-seconds."""


class Timeline:
    """GPUs free over time, from now on: ``free[i]`` of them from ``times[i]`` until ``times[i + 1]``."""

    __slots__ = ("free", "times")

    def __init__(self, times: list[float], free: list[int]) -> None:
        self.times, self.free = times, free

    @classmethod
    def of_ends(cls, now: float, free_now: int, ends: Iterable[tuple[float, int]]) -> Timeline:
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

    def copy(self) -> Timeline:
        """One that can be changed by itself."""
        return Timeline(self.times.copy(), self.free.copy())

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
        self._take(begin, place, end, gpus)  # noqa: V201 - the else of the inner loop leaves the outer one
        return times[begin]

    def take_now(self, gpus: int, duration: float) -> None:
        """Take GPUs from now on."""
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


class ProjectedQueue:
    """Jobs that wait among equals, in submission order, and their projected starts."""

    def __init__(self, profile: Timeline, waiting: Sequence[WaitingJob], floor: float) -> None:
        """``floor``: waits up to so many seconds are always allowed (``starvation_bound``)."""
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

    def may_start(self, chosen: WaitingJob) -> bool:
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

    def start_of(self, one: WaitingJob) -> float:
        """When it is projected to start; inf for one that comes after all that are projected."""
        return self.starts.get(one.id, math.inf)

    def started(self, chosen: WaitingJob) -> None:
        """``chosen`` has started: it waits no longer, and holds its GPUs."""
        self._waiting = [one for one in self._waiting if one is not chosen]
        self._profile.take_now(chosen.gpus, chosen.duration)

    def waits_until(self, chosen: WaitingJob, time: float) -> None:
        """Record that ``chosen`` fits at ``time``, although counting GPUs would let it start earlier."""
        if math.isfinite(time):
            self.bound = max(self.bound, time - chosen.submit_time)

    def occupy(self) -> Timeline:
        """The free GPUs left for jobs after these equals, whose projected starts must not be delayed."""
        profile = self._profile.copy()
        for one in self._waiting:
            profile.take_earliest(one.gpus, one.duration)
        return profile

    def _project(
        self, profile: Timeline, order: Sequence[WaitingJob], before: dict[str, float] | None
    ) -> dict[str, float]:
        """Start of each; cut short at the first one that would have to wait too long against ``before``."""
        found: dict[str, float] = {}
        for one in order:
            start = profile.take_earliest(one.gpus, one.duration)
            if before is not None and start > TOLERANCE + max(before[one.id], one.submit_time + self.bound):
                return found
            found[one.id] = start
        return found


# ---- inside a cycle ---------------------------------------------------------------------------------------


class CycleActions(Protocol):
    """The parts of a cycle that the rule reads and calls."""

    policy: Policy
    index: ClusterIndex
    state: PlanState
    holdings: Holdings
    now: float
    reserved_at: dict[str, float]

    @property
    def tree(self) -> FairTree:
        """Fair shares, with what this plan has started so far."""

    def has_room(self, entry: PendingJob) -> bool:
        """Whether the job could be placed now without touching what is reserved."""

    def try_start(self, entry: PendingJob) -> bool:
        """Start the job now if it can be placed."""

    def reserve(self, entry: PendingJob) -> None:
        """Reserve for the job, where its pools have reservations left."""


class Overtaking:
    """One cycle's starts under the rule, before the cycle's own pass.

    The rule is applied pool by pool to the jobs that wait, class by class and, within a class, from the
    entities served first to those served last. What may start is placed for real. A job that counting GPUs
    would start now, but whose shape (a group, a node) does not fit, keeps a real reservation first, so that
    no other job takes what it waits for.
    """

    def __init__(self, cycle: CycleActions, lines: Lines, served: set[str]) -> None:
        """``served``: jobs that have started in this cycle already."""
        self._cycle, self._lines = cycle, lines
        self._started = served.copy()
        self.held_back: set[str] = set()
        """Jobs with GPUs that the rule has looked at and not started: nothing else may start them now."""

    def run(self) -> set[str]:
        """Start every job that the rule lets start; their ids."""
        for value in sorted(self._lines.by_class, reverse=True):
            while self._serve(value):
                pass  # a start has moved its user back, so the groups of equals have changed
        self.held_back -= self._started
        return self._started

    def _serve(self, value: float) -> bool:
        """One pass over a class and those above it; whether its order is to be taken anew."""
        profiles: dict[str, Timeline] = {}
        for above in sorted((one for one in self._lines.by_class if one >= value), reverse=True):
            lines = self._lines.by_class[above]
            for group in _groups(lines, self._cycle):
                for pool, equals in self._by_pool(group).items():
                    profile = profiles.get(pool) or self._profile(pool)
                    started = 0
                    queue = ProjectedQueue(
                        profile,
                        [one for one, _ in equals[:PROTECTED]],
                        self._cycle.policy.starvation_bound or 0.0,
                    )
                    if above == value:
                        started = self._start_some(queue, equals)
                    if started and len(lines) > 1:
                        return True
                    profiles[pool] = queue.occupy()
        return False

    def _by_pool(self, group: list[PendingJob]) -> dict[str, list[tuple[WaitingJob, PendingJob]]]:
        """Those of a group that could start if GPUs were free, by the first pool they may use."""
        cycle, found = self._cycle, {}  # type: ignore[var-annotated]
        for entry in group:
            job = entry.job
            if (
                job.id in self._started
                or not entry.request.gpus
                or not entry.request.pools
                or job.not_before > cycle.now
                or job.id in cycle.state.promised
                or cycle.holdings.exceeded(job)
            ):
                continue
            self.held_back.add(job.id)
            candidate = WaitingJob(
                job.id, job.submit_time, entry.request.gpus, entry.limit, size_of(job, cycle.policy)
            )
            found.setdefault(entry.request.pools[0], []).append((candidate, entry))
        return found

    def _profile(self, pool: str) -> Timeline:
        """Free GPUs of a pool over time, from what runs and what was started by this plan."""
        index, state = self._cycle.index, self._cycle.state
        inside = (index.cell_pool == index.pool_number.get(pool, -1))[index.gpu_cell] & index.gpu_usable
        free = int((state.free & inside).sum())
        times, counts = np.unique(state.busy_until[inside & ~state.free], return_counts=True)
        return Timeline.of_ends(self._cycle.now, free, zip(times.tolist(), counts.tolist(), strict=True))

    def _start_some(self, queue: ProjectedQueue, equals: list[tuple[WaitingJob, PendingJob]]) -> int:
        """Start the jobs that may start, shortest first; how many started."""
        cycle = self._cycle
        several = len({entry.leaf for _, entry in equals}) > 1
        self._reserve_by_shape(queue, equals)
        started = tries = 0
        for candidate, entry in sorted(
            equals, key=lambda pair: (pair[0].size, pair[0].submit_time, pair[0].id)
        ):
            its_turn = queue.start_of(candidate) <= cycle.now + TOLERANCE
            if (not its_turn and tries >= TRIES) or not cycle.has_room(entry):
                continue
            tries += not its_turn
            if queue.may_start(candidate) and cycle.try_start(entry):
                queue.started(candidate)
                self._started.add(candidate.id)
                started += 1
                if several:
                    break
        return started

    def _reserve_by_shape(self, queue: ProjectedQueue, equals: list[tuple[WaitingJob, PendingJob]]) -> None:
        cycle = self._cycle
        for candidate, entry in equals[:PROTECTED]:
            if queue.start_of(candidate) <= cycle.now + TOLERANCE and not cycle.has_room(entry):
                cycle.reserve(entry)
                queue.waits_until(candidate, cycle.reserved_at.get(candidate.id, math.inf))


def _groups(lines: dict[Leaf, Line], cycle: CycleActions) -> Iterator[list[PendingJob]]:
    """The jobs of one class by equals: users that tie in fair share, the best served last."""
    if len(lines) < 2:
        yield from ([entry for _, entry in line] for line in lines.values())
        return
    tree: FairTree = cycle.tree
    left: dict[int, int] = {}
    line_of: dict[int, Line] = {}
    for leaf, line in lines.items():
        entity: Entity | None = tree.leaf(*leaf)
        line_of[id(entity)] = line
        while entity is not None:
            left[id(entity)] = left.get(id(entity), 0) + len(line)
            entity = entity.parent
    for tied in tree.classes(left):
        items = [item for one in tied for item in line_of.get(id(one), ())]
        if items:
            yield [entry for _, entry in sorted(items, key=lambda item: item[0])]
