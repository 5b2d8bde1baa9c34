"""``overtaking: bounded`` inside a cycle: who starts ahead of submission order, before the cycle's own pass.

The rule is ``overtaking``'s; here it is applied pool by pool to the jobs that wait, class by class and,
within a class, from the entities served first to those served last. What may start is placed for real. A job
that counting GPUs would start now, but whose shape (a group, a node) does not fit, keeps a real reservation
first, so that nobody takes from it what it waits for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from emep.scheduling._entry import Entry, Leaf
from emep.scheduling.fair_share import Entity, FairTree
from emep.scheduling.order import Line, Lines, size_of
from emep.scheduling.overtaking import TOLERANCE, Candidate, Profile, Queue

if TYPE_CHECKING:
    from emep.scheduling._cycle import Cycle

PROTECTED: Final = 256
"""So many of those who wait among equals, in submission order, are projected; the others come after them."""
TRIES: Final = 64
"""At most so many are tried ahead of their turn among equals in one plan, shortest first."""


class Overtaking:
    """One cycle's starts under the rule."""

    def __init__(self, cycle: Cycle, lines: Lines, served: set[str]) -> None:
        """``served``: jobs that have started in this cycle already."""
        self._cycle, self._lines = cycle, lines
        self._started = served.copy()
        self.held_back: set[str] = set()
        """Jobs with GPUs that the rule has looked at and not started: nothing else may start them now."""

    def run(self) -> set[str]:
        """Start whoever may start; their ids."""
        for value in sorted(self._lines.by_class, reverse=True):
            while self._serve(value):
                pass  # a start has moved its user back: equals are others now
        self.held_back -= self._started
        return self._started

    def _serve(self, value: float) -> bool:
        """One pass over a class and those above it; whether its order is to be taken anew."""
        profiles: dict[str, Profile] = {}
        for above in sorted((one for one in self._lines.by_class if one >= value), reverse=True):
            lines = self._lines.by_class[above]
            for group in _groups(lines, self._cycle):
                for pool, equals in self._by_pool(group).items():
                    profile = profiles.get(pool) or self._profile(pool)
                    started = 0
                    queue = Queue(
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

    def _by_pool(self, group: list[Entry]) -> dict[str, list[tuple[Candidate, Entry]]]:
        """Those of a group that could start if GPUs were free, by the first pool they may use."""
        cycle, found = self._cycle, {}  # type: ignore[var-annotated]
        for entry in group:
            job = entry.job
            if (
                job.id in self._started
                or not entry.request.gpus
                or not entry.request.pools
                or job.not_before > cycle.now
                or job.id in cycle.board.promised
                or cycle.holdings.exceeded(job)
            ):
                continue
            self.held_back.add(job.id)
            candidate = Candidate(
                job.id, job.submit_time, entry.request.gpus, entry.limit, size_of(job, cycle.policy)
            )
            found.setdefault(entry.request.pools[0], []).append((candidate, entry))
        return found

    def _profile(self, pool: str) -> Profile:
        """Free GPUs of a pool over time, from what runs and what was started by this plan."""
        index, board = self._cycle.index, self._cycle.board
        inside = (index.cell_pool == index.pool_number.get(pool, -1))[index.gpu_cell] & index.gpu_usable
        free = int((board.free & inside).sum())
        times, counts = np.unique(board.busy_until[inside & ~board.free], return_counts=True)
        return Profile.of_ends(self._cycle.now, free, zip(times.tolist(), counts.tolist(), strict=True))

    def _start_some(self, queue: Queue, equals: list[tuple[Candidate, Entry]]) -> int:
        """Start whoever may, shortest first; how many did."""
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

    def _reserve_by_shape(self, queue: Queue, equals: list[tuple[Candidate, Entry]]) -> None:
        cycle = self._cycle
        for candidate, entry in equals[:PROTECTED]:
            if queue.start_of(candidate) <= cycle.now + TOLERANCE and not cycle.has_room(entry):
                cycle.reserve(entry)
                queue.waits_until(candidate, cycle.reserved_at.get(candidate.id, math.inf))


def _groups(lines: dict[Leaf, Line], cycle: Cycle) -> Iterator[list[Entry]]:
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
