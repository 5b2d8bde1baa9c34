"""The reservations of one plan, and the GPUs that they keep from other jobs.

Each takes certain GPUs for certain times, and jobs that run into it keep off them. Where all GPUs of a kind
make up one cell, only numbers count: a profile of free GPUs over time says exactly what may start without
delaying a reserved job, and GPUs are assigned last.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from emep.scheduling.cluster.arrays import BoolArray, Filter, FloatArray, IntArray
from emep.scheduling.cluster.index import ClusterIndex
from emep.scheduling.model import Job
from emep.scheduling.request import Request
from emep.scheduling.reservations.grid import Grid
from emep.scheduling.reservations.profile import TIME_TOLERANCE, Profile


@dataclass(slots=True)
class ReservedWindow:
    """One reservation; its window is [at, end)."""

    job: Job
    request: Request
    pool: str
    at: float
    end: float
    gpus: IntArray
    """None yet, while only numbers count."""


class Reservations:
    """All reservations, by pool."""

    def __init__(self, index: ClusterIndex, now: float, free: BoolArray, busy_until: FloatArray) -> None:
        """``free`` and ``busy_until``: the plan's own arrays by GPU, which it changes in place."""
        self._index, self._now, self._free, self._busy_until = index, now, free, busy_until
        self._of_pool: dict[str, list[ReservedWindow]] = {}
        self._profiles: dict[str, Profile] = {}
        self._grids: dict[str, Grid | None] = {}
        self._blocked: dict[tuple[str, int], IntArray] = {}
        self._blocked_of_kind: dict[tuple[Filter, int], int] = {}

    def in_pool(self, pool: str) -> list[ReservedWindow]:
        """Reservations of a pool by time."""
        return self._of_pool.get(pool) or []

    def add(self, reserved: ReservedWindow) -> None:
        """Keep GPUs for a job from a time on."""
        pool = reserved.pool
        held = self._of_pool.setdefault(pool, [])
        held.append(reserved)
        held.sort(key=lambda one: one.at)
        profile, grid = self._profiles.get(pool), self._grids.get(pool)
        if profile is not None:
            profile.take(reserved.request.gpus, reserved.at, reserved.end)
        if grid is not None:
            grid.take(reserved.gpus, reserved.at, reserved.end)
        self._blocked.clear()
        self._blocked_of_kind.clear()

    # ---- numbers -------------------------------------------------------------------------------------------

    def counts(self, pool: str, kind: Filter) -> bool:
        """Whether only numbers count: one cell, and all reservations of the pool plain ones of this kind."""
        index = self._index
        if index.cells_of(kind) != 1 or not index.unlimited_nodes:
            return False
        return all(one.request.plain and one.request.filter_for(pool) == kind for one in self.in_pool(pool))

    def profile(self, pool: str, kind: Filter) -> Profile:
        """Free GPUs of a kind over time, less what is reserved; only while ``counts`` is true of it."""
        found = self._profiles.get(pool)
        if found is None:
            index = self._index
            cells = index.eligible_cells(kind)
            found = Profile(self._now, self._busy_until[cells[index.gpu_cell] & index.gpu_usable])
            for one in self.in_pool(pool):
                found.take(one.request.gpus, one.at, one.end)
            self._profiles[pool] = found
        return found

    # ---- GPUs ----------------------------------------------------------------------------------------------

    def grid(self, pool: str) -> Grid | None:
        """GPUs of a pool over time, less what is reserved; None where that would be too large."""
        if pool not in self._grids:
            self._grids[pool] = self._make_grid(pool)
        return self._grids[pool]

    def _make_grid(self, pool: str) -> Grid | None:
        index = self._index
        in_pool = (index.cell_pool == index.pool_number[pool])[index.gpu_cell]
        gpus = np.flatnonzero(in_pool & index.gpu_usable)
        if not Grid.affordable(self._now, gpus, self._busy_until):
            return None
        made = Grid(self._now, gpus, self._busy_until)
        for one in self.before(pool, math.inf):
            made.take(one.gpus, one.at, one.end)
        return made

    def before(self, pool: str, end: float) -> list[ReservedWindow]:
        """Reservations that begin before ``end``, each with GPUs of its own."""
        found = [one for one in self.in_pool(pool) if one.at < end - TIME_TOLERANCE]
        if any(not len(one.gpus) for one in found):
            self._assign(pool)
        return found

    def blocked_gpus(self, pool: str, end: float) -> BoolArray | None:
        """GPUs reserved for others at some time before ``end``; None: no GPU is."""
        found = self.before(pool, end)
        if not found:
            return None
        blocked = np.zeros(len(self._free), dtype=bool)
        for one in found:
            blocked[one.gpus] = True
        return blocked

    def blocked_cells(self, pool: str, end: float) -> IntArray | None:
        """Per cell, how many of the GPUs free now are reserved at some time before ``end``; None: none."""
        held = self.before(pool, end)
        if not held:
            return None
        found = self._blocked.get((pool, len(held)))
        if found is None:
            gpus = held[0].gpus if len(held) == 1 else np.unique(np.concatenate([one.gpus for one in held]))
            cells = self._index.gpu_cell[gpus[self._free[gpus]]]
            found = np.bincount(cells, minlength=self._index.cell_count)
            self._blocked[pool, len(held)] = found
        return found

    def blocked_of_kind(self, pool: str, kind: Filter, end: float) -> int:
        """How many of the GPUs of a kind that are free now are reserved at some time before ``end``."""
        cells = self.blocked_cells(pool, end)
        if cells is None:
            return 0
        key = (kind, len(self.before(pool, end)))
        found = self._blocked_of_kind.get(key)
        if found is None:
            eligible = self._index.eligible_cells(kind)
            found = self._blocked_of_kind[key] = int(cells[eligible].sum())
        return found

    # ---- what changes --------------------------------------------------------------------------------------

    def started(self, pool: str, gpus: IntArray, end: float) -> None:
        """A job has these GPUs from now until ``end``."""
        self._blocked.clear()
        self._blocked_of_kind.clear()
        now, grid = self._now, self._grids.get(pool)
        if grid is not None:
            grid.take(gpus, now, end)
        profile = self._profiles.get(pool)
        if profile is not None and pool in self._of_pool:
            cells = self._index.eligible_cells(self._of_pool[pool][0].request.filter_for(pool))
            profile.take(int(cells[self._index.gpu_cell[gpus]].sum()), now, end)
        else:
            self._profiles.pop(pool, None)

    def upset(self) -> None:
        """Victims go and GPUs are held: forget what was derived from the state before."""
        self._blocked.clear()
        self._blocked_of_kind.clear()
        self._profiles.clear()
        self._grids.clear()

    def assign_all(self) -> None:
        """Give every reservation its GPUs, so that they can be shown."""
        for pool in self._of_pool:
            self.before(pool, math.inf)

    def _assign(self, pool: str) -> None:
        """Assign GPUs in order of start: any GPU that is free when a reservation begins will do for it.

        GPUs that are busy now come before those that are free, and of these the last first.
        """
        index, until = self._index, self._busy_until.copy()
        for one in self.in_pool(pool):
            cells = index.eligible_cells(one.request.filter_for(pool))
            open_then = index.gpu_usable & (until <= one.at + TIME_TOLERANCE) & cells[index.gpu_cell]
            found = np.flatnonzero(open_then)
            idle = self._free[found]
            order = np.concatenate([found[~idle], found[idle][::-1]])
            one.gpus = np.sort(order[: one.request.gpus])
            until[one.gpus] = one.end
