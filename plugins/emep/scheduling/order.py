"""The order of pending jobs: class, fair share, then submission (or shortest, or smallest) among equals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush

from emep.policy import Policy
from emep.scheduling._entry import Entry, Leaf
from emep.scheduling.eligibility import run_limit
from emep.scheduling.model import Job

AmongEquals = tuple[float, float, float, str]
"""(starving first, size, submission, id)."""
Line = list[tuple[AmongEquals, Entry]]
"""Jobs of one class and one user, in order."""


def expected_duration(job: Job, policy: Policy) -> float:
    """Seconds a run is expected to take, for order and estimates only: history, else its limit, else inf."""
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


def key_among_equals(job: Job, policy: Policy, now: float) -> AmongEquals:
    """Order among jobs of one class whose users tie: (starving first, size, submission, id).

    Size is 0 under ``submit_time`` and for the starving, seconds under ``shortest``, GPU-seconds under
    ``smallest_area``.
    """
    if policy.order == "submit_time" or is_starving(job, policy, now):
        return (0.0, 0.0, job.submit_time, job.id)
    size = expected_duration(job, policy)
    if policy.order == "smallest_area":
        size *= max(job.gpu_count, 1)
    return (1.0, size, job.submit_time, job.id)


class Lines:
    """Pending jobs by class and user, each line in order; jobs can be added and taken out one by one."""

    def __init__(self) -> None:
        self.by_class: dict[float, dict[Leaf, Line]] = {}

    @staticmethod
    def of(entries: Iterable[Entry], policy: Policy, now: float) -> Lines:
        """The lines of these entries at ``now``."""
        made = Lines()
        for entry in entries:
            line = made.by_class.setdefault(entry.value, {}).setdefault(entry.leaf, [])
            line.append((key_among_equals(entry.job, policy, now), entry))
        for lines in made.by_class.values():
            for line in lines.values():
                line.sort(key=_key)
        return made


def _key(item: tuple[AmongEquals, Entry]) -> AmongEquals:
    return item[0]


class PendingOrder:
    """Goes through lines in order; a charge on the way moves its user back for what is left."""

    def __init__(self, lines: Lines, rank_of: Callable[[Leaf], int]) -> None:
        """``rank_of``: place of a user by fair share, equal places tie; asked again after every charge."""
        self._lines, self._rank_of = lines, rank_of
        self._stale = True

    def charged(self) -> None:
        """Consumption has changed: ranks are to be taken anew."""
        self._stale = True

    def __iter__(self) -> Iterator[Entry]:
        for value in sorted(self._lines.by_class, reverse=True):
            lines = self._lines.by_class[value]
            if len(lines) == 1:
                for line in lines.values():
                    yield from (entry for _, entry in line)
            elif lines:
                yield from self._merge(lines)

    def _merge(self, lines: dict[Leaf, Line]) -> Iterator[Entry]:
        """Lines of several users, the best ranked one's first job first."""
        places = dict.fromkeys(lines, 0)
        heap: list[tuple[int, AmongEquals, Leaf]] = []
        self._stale = True
        while places:
            if self._stale:
                heap = [(self._rank_of(leaf), lines[leaf][place][0], leaf) for leaf, place in places.items()]
                heapify(heap)
                self._stale = False
            rank, _, leaf = heappop(heap)
            place = places[leaf]
            line = lines[leaf]
            if place + 1 < len(line):
                places[leaf] = place + 1
                heappush(heap, (rank, line[place + 1][0], leaf))
            else:
                del places[leaf]
            yield line[place][1]
