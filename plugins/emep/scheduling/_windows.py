"""Reservations of one plan: what they keep from whom.

While every reservation of a pool is *plain* (any GPUs of one kind will do, as many as asked), only numbers
count: a profile of free GPUs over time says exactly what may start without delaying anybody, and GPUs are
assigned to reservations last. As soon as one asks for more (a group, a level, a number of nodes), GPUs are
assigned when the reservation is made, and jobs that run into it keep off them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from emep.scheduling._index import BoolArray, Filter, IntArray
from emep.scheduling._profile import TIME_TOLERANCE, Profile
from emep.scheduling.eligibility import Request
from emep.scheduling.model import Job

if TYPE_CHECKING:
    from emep.scheduling._board import Board

_WITH_CARE: Final = 8
"""Plain reservations are assigned by the order of placement while they are at most so many."""


@dataclass(slots=True)
class Reserved:
    """One reservation; its window is [at, end)."""

    job: Job
    request: Request
    pool: str
    at: float
    end: float
    gpus: IntArray


class Windows:
    """All reservations, by pool."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._of_pool: dict[str, list[Reserved]] = {}
        self._profiles: dict[str, Profile] = {}
        self._dirty: set[str] = set()
        self._blocked: dict[tuple[str, int], IntArray] = {}

    def in_pool(self, pool: str) -> list[Reserved]:
        """Reservations of a pool by time."""
        return self._of_pool.get(pool, [])

    def add(self, reserved: Reserved) -> None:
        """Keep GPUs for a job from a time on."""
        held = self._of_pool.setdefault(reserved.pool, [])
        held.append(reserved)
        held.sort(key=lambda one: one.at)
        profile = self._profiles.get(reserved.pool)
        if profile is not None:
            if self.counts(reserved.pool, reserved.request.filter_for(reserved.pool)):
                profile.take(reserved.request.gpus, reserved.at, reserved.end)
            else:
                del self._profiles[reserved.pool]
        self._blocked.clear()

    # ---- numbers -------------------------------------------------------------------------------------------

    def counts(self, pool: str, kind: Filter) -> bool:
        """Whether all reservations of the pool are plain and of this kind of GPU."""
        return all(one.request.plain and one.request.filter_for(pool) == kind for one in self.in_pool(pool))

    def profile(self, pool: str, kind: Filter) -> Profile:
        """Free GPUs of a kind over time, less what is reserved; only while ``counts`` is true of it."""
        found = self._profiles.get(pool)
        if found is None:
            board, index = self._board, self._board.index
            cells = index.eligible_cells(kind)
            found = Profile(board.now, board.busy_until[cells[index.gpu_cell] & index.gpu_usable])
            for one in self.in_pool(pool):
                found.take(one.request.gpus, one.at, one.end)
            if self.in_pool(pool):
                self._profiles[pool] = found
        return found

    # ---- GPUs ----------------------------------------------------------------------------------------------

    def before(self, pool: str, end: float) -> list[Reserved]:
        """Reservations that begin before ``end``, each with GPUs of its own."""
        self._assign(pool)
        return [one for one in self.in_pool(pool) if one.at < end - TIME_TOLERANCE]

    def blocked_gpus(self, pool: str, end: float) -> BoolArray | None:
        """GPUs reserved for others at some time before ``end``; None: no GPU is."""
        found = self.before(pool, end)
        if not found:
            return None
        blocked = np.zeros(len(self._board.free), dtype=bool)
        for one in found:
            blocked[one.gpus] = True
        return blocked

    def blocked_cells(self, pool: str, end: float) -> IntArray | None:
        """Per cell, how many of the GPUs free now are reserved at some time before ``end``; None: none."""
        count = len(self.before(pool, end))
        if not count:
            return None
        found = self._blocked.get((pool, count))
        if found is None:
            blocked = self.blocked_gpus(pool, end)
            assert blocked is not None  # noqa: S101 - there are reservations before that end
            found = self._blocked[pool, count] = self._board.index.count_by_cell(blocked & self._board.free)
        return found

    # ---- what changes --------------------------------------------------------------------------------------

    def started(self, pool: str, gpus: IntArray, end: float) -> None:
        """Somebody has these GPUs from now until ``end``: numbers change, and so may the best assignment."""
        self._blocked.clear()
        if not self.in_pool(pool):
            return
        self._dirty.add(pool)
        profile = self._profiles.get(pool)
        if profile is not None:
            first = self._of_pool[pool][0].request.filter_for(pool)
            cells = self._board.index.eligible_cells(first)
            profile.take(int(cells[self._board.index.gpu_cell[gpus]].sum()), self._board.now, end)

    def upset(self) -> None:
        """Victims go and GPUs are held: nothing that was worked out stays true but the times promised."""
        self._blocked.clear()
        self._profiles.clear()
        self._dirty.update(self._of_pool)

    def assign_all(self) -> None:
        """Give every reservation its GPUs, for those who want to see them."""
        for pool in self._of_pool:
            self._assign(pool)

    def _assign(self, pool: str) -> None:
        held = self.in_pool(pool)
        unassigned = any(len(one.gpus) == 0 for one in held)
        if not held or not (unassigned or pool in self._dirty):
            return
        self._dirty.discard(pool)
        if not (self.counts(pool, held[0].request.filter_for(pool)) or len(held) == 1):
            return
        # From left to right: whatever is free when a reservation begins will do, nobody later is hurt by it.
        from emep.scheduling.backfill import choose_sparing

        board, until = self._board, self._board.busy_until.copy()
        for one in held:
            open_then = board.index.gpu_usable & (until <= one.at + TIME_TOLERANCE)
            gpus = None
            if len(held) <= _WITH_CARE:
                gpus = choose_sparing(board, one.request, pool, open_then, one.at)
            if gpus is None:
                gpus = self._any(one, open_then)
            one.gpus = gpus
            until[gpus] = max(one.end, board.now) if math.isfinite(one.end) else math.inf
        self._blocked.clear()

    def _any(self, one: Reserved, open_then: BoolArray) -> IntArray:
        """GPUs that are busy now before those that are free, and of these the last."""
        board, index = self._board, self._board.index
        cells = index.eligible_cells(one.request.filter_for(one.pool))
        found = np.flatnonzero(open_then & cells[index.gpu_cell])
        idle = board.free[found]
        order = np.concatenate([found[~idle], found[idle][::-1]])
        return np.sort(order[: one.request.gpus])
