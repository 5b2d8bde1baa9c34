"""Reservations: the earliest time, and the GPUs, at which a job that does not fit now will fit.

Computed from the remaining limits of what runs. Among placements at that time it takes as few of the GPUs that
are free now as it can, so that as many of those as possible stay open to jobs that run past that time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from emep.scheduling._board import Board
from emep.scheduling._cover import Room, Take, cover
from emep.scheduling._grid import Grid
from emep.scheduling._index import BoolArray, IntArray
from emep.scheduling._profile import TIME_TOLERANCE
from emep.scheduling._windows import Reserved
from emep.scheduling.eligibility import Request
from emep.scheduling.model import Job
from emep.scheduling.placement import fits

_NONE = np.zeros(0, dtype=np.int64)


def earliest(board: Board, job: Job, request: Request, limit: float, pools: Iterable[str]) -> Reserved | None:
    """The earliest reservation in one of the pools; None if it fits at no time that is known."""
    best: Reserved | None = None
    for pool in pools:
        found = _earliest_in(board, job, request, limit, pool)
        if found is not None and (best is None or found.at < best.at):
            best = found
    return best


def _earliest_in(board: Board, job: Job, request: Request, limit: float, pool: str) -> Reserved | None:
    kind = request.filter_for(pool)
    if board.index.cells_of(kind) == 0:
        return None
    if request.plain and board.windows.counts(pool, kind):
        time = board.windows.profile(pool, kind).earliest(request.gpus, limit)
        return None if time is None else Reserved(job, request, pool, time, time + limit, _NONE)
    found = _Search(board, request, pool, limit).run()
    if found is None:
        return None
    time, open_then = found
    gpus = choose_sparing(board, request, pool, open_then, time)
    return None if gpus is None else Reserved(job, request, pool, time, time + limit, gpus)


class _Search:
    """When a request fits for as long as it may run, where it matters which GPUs are free."""

    def __init__(self, board: Board, request: Request, pool: str, limit: float) -> None:
        self._board, self._request, self._pool, self._limit = board, request, pool, limit
        index = board.index
        self._eligible: BoolArray = (
            index.eligible_cells(request.filter_for(pool))[index.gpu_cell] & index.gpu_usable
        )
        self._others = board.windows.before(pool, math.inf)

    def run(self) -> tuple[float, BoolArray] | None:
        """The earliest time and the GPUs that are open then; None if it is not known to come."""
        if self._others:
            grid = self._board.windows.grid(self._pool)
            return self._one_by_one() if grid is None else self._in_grid(grid)
        times = self._times()
        time = self._first(times)
        return None if time is None else (time, self._open_at(time))

    def _times(self) -> list[float]:
        """Times at which something comes free."""
        board, until = self._board, self._board.busy_until[self._eligible]
        times = {board.now, *until[np.isfinite(until)].tolist()}
        times.update(one.end for one in self._others if math.isfinite(one.end))
        times.update(board.host_ends())
        return sorted(time for time in times if time >= board.now)

    def _first(self, times: list[float]) -> float | None:
        """Binary search: without other reservations, what fits at a time fits later too."""
        if not self._fits(times[-1], self._open_at(times[-1])):
            return None
        low, high = 0, len(times) - 1
        while low < high:
            middle = (low + high) // 2
            if self._fits(times[middle], self._open_at(times[middle])):
                high = middle
            else:
                low = middle + 1
        return times[low]

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
        found: BoolArray = self._eligible & (self._board.busy_until <= time + TIME_TOLERANCE)
        end = time + self._limit
        for one in self._others:
            if one.at < end - TIME_TOLERANCE and one.end > time + TIME_TOLERANCE:
                found[one.gpus] = False
        return found

    def _fits(self, time: float, open_then: BoolArray) -> bool:
        if int(open_then.sum()) < self._request.gpus:
            return False
        room = room_at(self._board, self._request, self._pool, open_then, time)
        return fits(self._request, room.index, room.available)


def room_at(board: Board, request: Request, pool: str, open_then: BoolArray, time: float) -> Room:
    """The room that a request has at a time on the GPUs that are open then."""
    return board.room_of(request, pool, open_then, board.host_at(time))


def choose_sparing(
    board: Board, request: Request, pool: str, open_then: BoolArray, time: float
) -> IntArray | None:
    """GPUs for a reservation at a time, as few that are free now as can be; None where it does not fit."""
    room = room_at(board, request, pool, open_then, time)
    take = _sparing(request, room, board.index.count_by_cell(open_then & board.free))
    return None if take is None else _pick_coming(board, take, open_then)


def _sparing(request: Request, room: Room, free_now: IntArray) -> Take | None:
    available = room.available
    coming = available - np.minimum(free_now, available)
    domain_of = room.index.domains(request.nvlink, request.level).of_cell
    best: tuple[int, int, int] | None = None
    for domain in np.unique(domain_of[(available > 0) & (domain_of >= 0)]).tolist():
        inside = domain_of == domain
        cost = _scarce(request, room, inside, coming)
        if cost is not None:
            best = min(best or (cost + 1, 0, 0), (cost, int(available[inside].sum()), domain))
    if best is None:
        return None
    return _take_sparing(request, room, domain_of == best[2], coming)


def _scarce(request: Request, room: Room, inside: BoolArray, coming: IntArray) -> int | None:
    """How many GPUs that are free now a domain needs for the job; None if it cannot hold it."""
    if not request.node_count:
        if int(room.available[inside].sum()) < request.gpus:
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
        share = _fill(room, np.flatnonzero(inside & (index.cell_node == node)), coming, request.per_node)
        if share is None:
            return None
        chosen += share
    return tuple(sorted(chosen))


def _fill(room: Room, cells: IntArray, coming: IntArray, need: int) -> Take | None:
    """All from what comes free if that is enough, else all of that and the rest from what is free now."""
    in_time = int(coming[cells].sum())
    if in_time >= need:
        return cover(_with(room, coming), cells, need)
    rest = cover(_with(room, room.available - coming), cells, need - in_time)
    if rest is None:
        return None
    counts = {cell: int(coming[cell]) for cell in cells.tolist() if coming[cell]}
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
