"""Backfill: what may start now, and reservations for what may not.

A reservation is the earliest time, and the GPUs, at which a job that does not fit now will fit.

Computed from the remaining limits of what runs. Among placements at that time it takes as few of the GPUs
that are free now as it can, so that as many of those as possible stay open to jobs that run past that time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from emep.scheduling.cluster.arrays import BoolArray, IntArray
from emep.scheduling.cluster.domains import Domains
from emep.scheduling.model import Job
from emep.scheduling.placement.feasibility import fits
from emep.scheduling.placement.place import place
from emep.scheduling.placement.room import Room
from emep.scheduling.plan_state import PlanState
from emep.scheduling.request import Request
from emep.scheduling.reservations.grid import Grid
from emep.scheduling.reservations.profile import TIME_TOLERANCE
from emep.scheduling.reservations.release import earliest_release
from emep.scheduling.reservations.reservations import ReservedWindow

_NONE = np.zeros(0, dtype=np.int64)


def find_now(state: PlanState, request: Request, pool: str, end: float) -> IntArray | None:
    """GPUs for a run from now to ``end`` that delays no reservation; None where there are none."""
    reservations, kind = state.reservations, request.filter_for(pool)
    free = state.free_of_kind(kind)
    if free < request.gpus:
        return None
    if not reservations.in_pool(pool):
        take = place(request, state.whole_room(request, pool))
        return None if take is None else state.pick(take)
    if reservations.counts(pool, kind):
        if reservations.profile(pool, kind).slack(end) < request.gpus:
            return None
        take = place(request, state.whole_room(request, pool))
        return None if take is None else state.pick(take)
    if request.plain and free - reservations.blocked_of_kind(pool, kind, end) < request.gpus:
        return None
    take = place(request, state.room(request, pool, end))
    if take is None:
        return None
    blocked = reservations.blocked_gpus(pool, end)
    if blocked is None:
        # It ends before anything reserved is needed: then it leaves others what is not reserved.
        return state.pick(take, state.free, reservations.blocked_gpus(pool, math.inf))
    return state.pick(take, state.free & ~blocked)


def earliest(
    state: PlanState, job: Job, request: Request, limit: float, pools: Iterable[str]
) -> ReservedWindow | None:
    """The earliest reservation in one of the pools; None if it fits at no time that is known."""
    best: ReservedWindow | None = None
    for pool in pools:
        found = _earliest_in(state, job, request, limit, pool)
        if found is not None and (best is None or found.at < best.at):
            best = found
    return best


def _earliest_in(
    state: PlanState, job: Job, request: Request, limit: float, pool: str
) -> ReservedWindow | None:
    kind = request.filter_for(pool)
    if state.index.cells_of(kind) == 0:
        return None
    if request.plain and state.reservations.counts(pool, kind):
        time = state.reservations.profile(pool, kind).earliest(request.gpus, limit)
        return None if time is None else ReservedWindow(job, request, pool, time, time + limit, _NONE)
    found = _Search(state, request, pool, limit).run()
    if found is None:
        return None
    time, open_then = found
    gpus = choose_sparing(state, request, pool, open_then, time)
    return None if gpus is None else ReservedWindow(job, request, pool, time, time + limit, gpus)


class _Search:
    """Finds when a request fits for its whole run, where it matters which GPUs are free."""

    def __init__(self, state: PlanState, request: Request, pool: str, limit: float) -> None:
        self._state, self._request, self._pool, self._limit = state, request, pool, limit
        index = state.index
        self._eligible: BoolArray = (
            index.eligible_cells(request.filter_for(pool))[index.gpu_cell] & index.gpu_usable
        )
        self._others = state.reservations.before(pool, math.inf)

    def run(self) -> tuple[float, BoolArray] | None:
        """The earliest time and the GPUs that are open then; None if it is not known to come."""
        if self._others:
            grid = self._state.reservations.grid(self._pool)
            return self._one_by_one() if grid is None else self._in_grid(grid)
        return self._alone()

    def _alone(self) -> tuple[float, BoolArray] | None:
        """Without other reservations, what fits at a time fits later too."""
        state, request = self._state, self._request
        released = earliest_release(state.index, request, self._eligible, state.busy_until)
        time = max(state.now, released)
        if time == math.inf:
            return None
        open_then = self._open_at(time)
        if state.index.unlimited_nodes or self._fits(time, open_then):
            return time, open_then
        return self._one_by_one()

    def _times(self) -> list[float]:
        """Times at which something comes free."""
        state, until = self._state, self._state.busy_until[self._eligible]
        times = {state.now, *until[np.isfinite(until)].tolist()}
        times.update(one.end for one in self._others if math.isfinite(one.end))
        times.update(state.host_ends())
        return sorted(time for time in times if time >= state.now)

    def _in_grid(self, grid: Grid) -> tuple[float, BoolArray] | None:
        for time, gpus in grid.open_steps(self._eligible, self._limit, self._request.gpus):
            open_then = np.zeros(len(self._eligible), dtype=bool)
            open_then[gpus] = True
            if self._fits(time, open_then):
                return time, open_then
        return None

    def _one_by_one(self) -> tuple[float, BoolArray] | None:
        for time in self._times():
            open_then = self._open_at(time)
            if self._fits(time, open_then):
                return time, open_then
        return None

    def _open_at(self, time: float) -> BoolArray:
        """GPUs that are free from ``time`` on for the whole run."""
        found: BoolArray = self._eligible & (self._state.busy_until <= time + TIME_TOLERANCE)
        end = time + self._limit
        for one in self._others:
            if one.at < end - TIME_TOLERANCE and one.end > time + TIME_TOLERANCE:
                found[one.gpus] = False
        return found

    def _fits(self, time: float, open_then: BoolArray) -> bool:
        if int(open_then.sum()) < self._request.gpus:
            return False
        room = room_at(self._state, self._request, self._pool, open_then, time)
        return fits(self._request, room.index, room.available)


def room_at(state: PlanState, request: Request, pool: str, open_then: BoolArray, time: float) -> Room:
    """The room that a request has at a time on the GPUs that are open then."""
    return state.room_of(request, pool, open_then, state.host_at(time))


def choose_sparing(
    state: PlanState, request: Request, pool: str, open_then: BoolArray, time: float
) -> IntArray | None:
    """GPUs for a reservation at a time, as few that are free now as can be; None where it does not fit."""
    index = state.index
    available = room_at(state, request, pool, open_then, time).available
    coming = np.minimum(available, index.count_by_cell(open_then & ~state.free))
    domains = index.domains(request.nvlink, request.level)
    if request.node_count:
        inside = _nodes(request, domains, available, coming)
    else:
        inside = _domain(request, domains, available, coming)
    if inside is None:
        return None
    most = request.per_node or request.gpus
    chosen: list[int] = []
    for unit in inside:
        counts = _fill(unit, available, coming, most)
        chosen += _pick_coming(state, counts, open_then)
    return np.array(sorted(chosen), dtype=np.int64)


def _domain(
    request: Request, domains: Domains, available: IntArray, coming: IntArray
) -> list[IntArray] | None:
    """The cells of the domain that needs the fewest GPUs that are free now, of those the smallest."""
    size = domains.sums(available)
    holds = np.flatnonzero(size >= request.gpus)
    if not len(holds):
        return None
    cost = np.maximum(request.gpus - domains.sums(coming)[holds], 0)
    best = holds[np.lexsort((holds, size[holds], cost))[0]]
    return [np.flatnonzero(domains.of_cell == best)]


def _nodes(
    request: Request, domains: Domains, available: IntArray, coming: IntArray
) -> list[IntArray] | None:
    """The cells of ``node_count`` nodes of one domain that together need the fewest GPUs free now."""
    parts = np.flatnonzero(domains.part_sums(available) >= request.per_node)
    cost = np.maximum(request.per_node - domains.part_sums(coming)[parts], 0)
    order = np.lexsort((parts, cost, domains.domain_of_part[parts]))
    parts, cost = parts[order], cost[order]
    best: tuple[int, IntArray] | None = None
    for domain in np.unique(domains.domain_of_part[parts]).tolist():
        inside = np.flatnonzero(domains.domain_of_part[parts] == domain)[: request.node_count]
        total = int(cost[inside].sum())
        if len(inside) == request.node_count and (best is None or total < best[0]):
            best = (total, parts[inside])
    if best is None:
        return None
    return [np.flatnonzero(domains.part_of_cell == part) for part in best[1].tolist()]


def _fill(cells: IntArray, available: IntArray, coming: IntArray, need: int) -> list[tuple[int, int]]:
    """What comes free first, cell by cell, and only then what is free now."""
    counts: dict[int, int] = {}
    for offered in (coming, available - coming):
        for cell in cells[offered[cells] > 0].tolist():
            count = min(need, int(offered[cell]))
            if count:
                counts[cell] = counts.get(cell, 0) + count
                need -= count
    return list(counts.items())


def _pick_coming(state: PlanState, counts: list[tuple[int, int]], open_then: BoolArray) -> list[int]:
    """In each cell the GPUs that come free before those that are free now, and of these the last."""
    chosen: list[int] = []
    for cell, count in counts:
        first, last = state.index.cell_bounds[cell]
        found = open_then[first:last].nonzero()[0]
        idle = state.free[first:last][found]
        order = np.concatenate([found[~idle], found[idle][::-1]])
        chosen += (order[:count] + first).tolist()
    return chosen
