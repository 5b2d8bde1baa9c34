"""The order of pending jobs: class, fair share, then submission (or shortest, or smallest) among equals."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heapreplace

from emep.policy.model import Policy
from emep.scheduling.durations import expected_duration, is_starving
from emep.scheduling.fair_share import Entity, FairTree
from emep.scheduling.model import Job
from emep.scheduling.pending import Leaf, PendingJob

AmongEquals = tuple[float, float, float, str]
"""(starving first, size, submission, id)."""


def key_among_equals(job: Job, policy: Policy, now: float) -> AmongEquals:
    """Order among jobs of one class whose users tie: (starving first, size, submission, id).

    Size counts where the order is not that of submission, nor bound to it (``overtaking``), and not for the
    starving.
    """
    if policy.order == "submit_time" or policy.overtaking == "bounded" or is_starving(job, policy, now):
        return (0.0, 0.0, job.submit_time, job.id)
    return (1.0, size_of(job, policy), job.submit_time, job.id)


def size_of(job: Job, policy: Policy) -> float:
    """Seconds under ``shortest``, GPU-seconds under ``smallest_area``, else 0: the smaller goes first."""
    if policy.order == "submit_time":
        return 0.0
    size = expected_duration(job, policy)
    return size * max(job.gpu_count, 1) if policy.order == "smallest_area" else size


class Line(list[tuple[AmongEquals, PendingJob]]):
    """Jobs of one class and one user, in order."""

    def __init__(self) -> None:
        super().__init__()
        self._sorts: Counter[tuple[bool, bool, int]] | None = None
        """How many there are of each (simple, quiet, GPUs); None: not counted."""

    def enter(self, key: AmongEquals, entry: PendingJob) -> None:
        """One more, at its place."""
        insort(self, (key, entry), key=_key)
        if self._sorts is not None:
            self._sorts[_sort_of(entry)] += 1

    def leave(self, key: AmongEquals) -> None:
        """The one with this key is gone."""
        _, entry = self.pop(bisect_left(self, key, key=_key))
        if self._sorts is not None:
            self._sorts[_sort_of(entry)] -= 1

    def none_fits(self, free: int, *, calm: bool) -> bool:
        """Whether no job here can start on so many free GPUs, or do anything else (``calm``: or preempt)."""
        if self._sorts is None:
            self._sorts = Counter(_sort_of(entry) for _, entry in self)
        return all(
            (simple or (calm and quiet)) and gpus > free
            for (simple, quiet, gpus), count in self._sorts.items()
            if count
        )


def _sort_of(entry: PendingJob) -> tuple[bool, bool, int]:
    return entry.simple, entry.quiet, entry.job.gpu_count


class Lines:
    """Pending jobs by class and user, each line in order; jobs can be added and taken out one by one."""

    def __init__(self) -> None:
        self.by_class: dict[float, dict[Leaf, Line]] = {}

    def line_of(self, entry: PendingJob) -> Line:
        """The line of the entry's class and user; made where there is none."""
        lines = self.by_class.get(entry.value)
        if lines is None:
            lines = self.by_class[entry.value] = {}
        line = lines.get(entry.leaf)
        if line is None:
            line = lines[entry.leaf] = Line()
        return line

    @staticmethod
    def of(entries: Iterable[PendingJob], policy: Policy, now: float) -> Lines:
        """The lines of these entries at ``now``."""
        made = Lines()
        for entry in entries:
            made.line_of(entry).append((key_among_equals(entry.job, policy, now), entry))
        for lines in made.by_class.values():
            for line in lines.values():
                line.sort(key=_key)
        return made


def _key(item: tuple[AmongEquals, PendingJob]) -> AmongEquals:
    return item[0]


class PendingOrder:
    """Goes through lines in order; a charge on the way moves its user back for what is left."""

    def __init__(self, lines: Lines, tree: Callable[[], FairTree]) -> None:
        """``tree`` is asked for only where several users wait in one class."""
        self._lines, self._tree = lines, tree
        self._stale = self._drop = False
        self._looked_into: dict[tuple[float, Leaf], int] = {}

    def charged(self) -> None:
        """Record that consumption has changed, so that users are ordered again."""
        self._stale = True

    def drop_line_if_hopeless(self, entry: PendingJob, free: int, *, calm: bool) -> None:
        """Pass over the rest of the line of the entry just handed out, if none in it can start.

        ``free``: GPUs in its pool; ``calm``: nothing can be preempted. Looked into again when GPUs have gone.
        """
        if self._looked_into.get((entry.value, entry.leaf)) != free:
            self._looked_into[entry.value, entry.leaf] = free
            self._drop = self._lines.line_of(entry).none_fits(free, calm=calm)

    def __iter__(self) -> Iterator[PendingJob]:
        for value in sorted(self._lines.by_class, reverse=True):
            lines = self._lines.by_class[value]
            if len(lines) == 1:
                for line in lines.values():
                    for item in line:
                        yield item[1]
                        if self._drop:
                            break
                self._drop = False
            elif lines:
                yield from _Merge(lines, self._tree()).run(self)

    @property
    def is_stale(self) -> bool:
        """Whether there was a charge since ``take_stale``."""
        return self._stale

    def take_stale(self) -> bool:
        """Whether there was a charge since the last question."""
        stale, self._stale = self._stale, False
        return stale

    def take_drop(self) -> bool:
        """Whether a line was dropped since the last question."""
        drop, self._drop = self._drop, False
        return drop


class _Merge:
    """Lines of several users of one class: the best served last, in the order of the tree."""

    def __init__(self, lines: dict[Leaf, Line], tree: FairTree) -> None:
        self._tree = tree
        self._lines: dict[int, Line] = {}
        self._places: dict[int, int] = {}
        self._left: dict[int, int] = {}
        """Lines with jobs left below each entity; one that has none is not in it."""
        for leaf, line in lines.items():
            entity: Entity | None = tree.leaf(*leaf)
            self._lines[id(entity)], self._places[id(entity)] = line, 0
            while entity is not None:
                self._left[id(entity)] = self._left.get(id(entity), 0) + 1
                entity = entity.parent

    def run(self, order: PendingOrder) -> Iterator[PendingJob]:
        """All jobs; after each charge the tree is walked anew from the top."""
        order.take_stale()
        while self._left:
            for tied in self._tree.classes(self._left):
                waiting = [one for one in tied if id(one) in self._left]
                if len(waiting) == 1:
                    yield from self._alone(waiting[0], order)
                else:
                    yield from self._together(waiting, order)
                if order.take_stale():
                    break

    def _alone(self, entity: Entity, order: PendingOrder) -> Iterator[PendingJob]:
        """Jobs of one user, until there is a charge."""
        line = self._lines[id(entity)]
        for place in range(self._places[id(entity)], len(line)):
            self._places[id(entity)] = place + 1
            yield line[place][1]
            if order.take_drop():
                break
            if order.is_stale:
                if place + 1 == len(line):
                    break
                return
        self._finish(entity)

    def _together(self, tied: list[Entity], order: PendingOrder) -> Iterator[PendingJob]:
        """Jobs of users that tie, until there is a charge."""
        heap = [self._head(place, entity) for place, entity in enumerate(tied)]
        heapify(heap)
        while heap:
            _, place = heap[0]
            entity = tied[place]
            line, next_place = self._lines[id(entity)], self._places[id(entity)]
            self._places[id(entity)] = next_place + 1
            yield line[next_place][1]
            if order.take_drop() or next_place + 1 == len(line):
                self._finish(entity)
                heappop(heap)
            else:
                heapreplace(heap, self._head(place, entity))
            if order.is_stale:
                return

    def _head(self, place: int, entity: Entity) -> tuple[AmongEquals, int]:
        return self._lines[id(entity)][self._places[id(entity)]][0], place

    def _finish(self, entity: Entity) -> None:
        """A line is at its end."""
        above: Entity | None = entity
        while above is not None:
            if self._left[id(above)] == 1:
                del self._left[id(above)]
            else:
                self._left[id(above)] -= 1
            above = above.parent
