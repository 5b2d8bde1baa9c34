"""Reservations: the earliest time, and the GPUs, at which a job that does not fit now will fit.

Computed from the remaining limits of what runs. Among placements at that time it takes as few of the GPUs that
are free now as it can, so that as many of those as possible stay open to jobs that run past that time.
"""

from __future__ import annotations

import math

import numpy as np

from emep.scheduling._board import TIME_TOLERANCE, Board, Reserved
from emep.scheduling._cover import Room, Take, cover
from emep.scheduling._index import NO_GROUP, BoolArray, IntArray
from emep.scheduling.eligibility import Request
from emep.scheduling.model import Job
from emep.scheduling.placement import domains_at, fits


def earliest(
    board: Board, job: Job, request: Request, limit: float | None, pools: tuple[str, ...]
) -> Reserved | None:
    """The earliest reservation in one of the pools; None if it fits at no time that is known."""
    best: Reserved | None = None
    for pool in pools:
        found = _earliest_in(board, job, request, math.inf if limit is None else limit, pool)
        if found is not None and (best is None or found.at < best.at):
            best = found
    return best


def _earliest_in(board: Board, job: Job, request: Request, limit: float, pool: str) -> Reserved | None:
    index = board.index
    eligible = index.eligible_cells(request.filter_for(pool))[index.gpu_cell] & index.gpu_usable
    until = np.where(eligible, board.busy_until, np.inf)
    known = until[np.isfinite(until)]
    times = {board.now, *known.tolist()} | {one.end for one in board.reservations if math.isfinite(one.end)}
    candidates = sorted(time for time in times if time >= board.now)
    fits = _Fits(board, request, pool, until, limit)
    if not board.reservations:
        place_at = _first_true(fits, candidates)
    else:
        place_at = next((time for time in candidates if fits(time)), None)
    if place_at is None:
        return None
    open_then = fits.open_at(place_at)
    take = _sparing(
        request, board.room_of(request, pool, open_then), index.count_by_cell(open_then & board.free)
    )
    if take is None:
        return None
    gpus = _pick_coming(board, take, open_then)
    return Reserved(job, place_at, place_at + limit, pool, gpus, take)


class _Fits:
    """Whether a request fits at a time, for as long as it may run."""

    def __init__(
        self,
        board: Board,
        request: Request,
        pool: str,
        until: np.ndarray[tuple[int], np.dtype[np.float64]],
        limit: float,
    ) -> None:
        self._board, self._request, self._pool, self._until, self._limit = board, request, pool, until, limit

    def open_at(self, time: float) -> BoolArray:
        """GPUs that are free from ``time`` on for the whole run."""
        found: BoolArray = self._until <= time + TIME_TOLERANCE
        end = time + self._limit
        for one in self._board.reservations:
            if one.at < end - TIME_TOLERANCE and one.end > time + TIME_TOLERANCE:
                found[one.gpus] = False
        return found

    def __call__(self, time: float) -> bool:
        open_then = self.open_at(time)
        if int(open_then.sum()) < self._request.gpus:
            return False
        room = self._board.room_of(self._request, self._pool, open_then)
        return fits(self._request, room.index, room.available)


def _first_true(fits: _Fits, times: list[float]) -> float | None:
    """Binary search: without other reservations, what fits at a time fits later too."""
    if not times or not fits(times[-1]):
        return None
    low, high = 0, len(times) - 1
    while low < high:
        middle = (low + high) // 2
        if fits(times[middle]):
            high = middle
        else:
            low = middle + 1
    return times[low]


def _sparing(request: Request, room: Room, free_now: IntArray) -> Take | None:
    """A choice with as few GPUs that are free now as can be."""
    index, available = room.index, room.available
    free_now = np.minimum(free_now, available)
    coming = available - free_now
    nvlink, level = request.nvlink, request.level
    domain_of = domains_at(index, level)
    if nvlink:
        domain_of = np.where(
            index.cell_group == NO_GROUP, NO_GROUP, domain_of * (len(index.groups) + 1) + index.cell_group
        )
    best: tuple[int, int, int] | None = None
    for domain in np.unique(domain_of[(available > 0) & (domain_of != NO_GROUP)]).tolist():
        inside = domain_of == domain
        cost = _scarce(request, room, inside, coming)
        if cost is not None and (best is None or (cost, int(available[inside].sum()), domain) < best):
            best = (cost, int(available[inside].sum()), domain)
    if best is None:
        return None
    return _take_sparing(request, room, domain_of == best[2], coming)


def _scarce(request: Request, room: Room, inside: BoolArray, coming: IntArray) -> int | None:
    """How many GPUs that are free now a domain needs for the job; None if it cannot hold it."""
    index, available = room.index, room.available
    if not request.node_count:
        if int(available[inside].sum()) < request.gpus:
            return None
        return max(0, request.gpus - int(coming[inside].sum()))
    costs = _node_costs(request, room, inside, coming)
    return None if len(costs) < request.node_count else sum(cost for cost, _ in costs[: request.node_count])


def _node_costs(request: Request, room: Room, inside: BoolArray, coming: IntArray) -> list[tuple[int, int]]:
    index = room.index
    size = np.bincount(index.cell_node[inside], weights=room.available[inside], minlength=len(index.nodes))
    soon = np.bincount(index.cell_node[inside], weights=coming[inside], minlength=len(index.nodes))
    fitting = np.flatnonzero(size >= request.per_node).tolist()
    return sorted((max(0, request.per_node - int(soon[node])), node) for node in fitting)


def _take_sparing(request: Request, room: Room, inside: BoolArray, coming: IntArray) -> Take | None:
    index = room.index
    if not request.node_count:
        return _fill(room, np.flatnonzero(inside), coming, request.gpus)
    chosen: list[tuple[int, int]] = []
    for _, node in _node_costs(request, room, inside, coming)[: request.node_count]:
        cells = np.flatnonzero(inside & (index.cell_node == node))
        share = _fill(room, cells, coming, request.per_node)
        if share is None:
            return None
        chosen += share
    return tuple(sorted(chosen))


def _fill(room: Room, cells: IntArray, coming: IntArray, need: int) -> Take | None:
    """All from what comes free if that is enough, else all of that and the rest from what is free now."""
    soon = np.minimum(coming, room.available)
    in_time = int(soon[cells].sum())
    if in_time >= need:
        return cover(_with(room, soon), cells, need)
    rest = cover(_with(room, room.available - soon), cells, need - in_time)
    if rest is None:
        return None
    counts = {cell: int(soon[cell]) for cell in cells.tolist() if soon[cell]}
    for cell, count in rest:
        counts[cell] = counts.get(cell, 0) + count
    return tuple(sorted(counts.items()))


def _with(room: Room, available: IntArray) -> Room:
    return Room(room.index, available, room.group_free, room.node_free, room.spread)


def _pick_coming(board: Board, take: Take, open_then: BoolArray) -> IntArray:
    """In each cell the GPUs that come free before those that are free now, and of these the last."""
    chosen: list[int] = []
    for cell, count in take:
        first, last = board.index.cell_bounds[cell]
        found = np.flatnonzero(open_then[first:last])
        busy = found[~board.free[first:last][found]]
        idle = found[board.free[first:last][found]][::-1]
        chosen += (np.concatenate([busy, idle])[:count] + first).tolist()
    return np.array(sorted(chosen), dtype=np.int64)
