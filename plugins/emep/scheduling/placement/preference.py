"""Placement by a given order of cells, for studies that compare placement strategies (first fit, random)."""

from __future__ import annotations

import numpy as np

from emep.scheduling.cluster.arrays import IntArray
from emep.scheduling.cluster.index import NO_GROUP
from emep.scheduling.placement.room import CellCounts, Room
from emep.scheduling.request import Request


def place_by_preference(request: Request, room: Room, ranks: IntArray) -> CellCounts | None:
    """Place the request on the suitable cells with the lowest ranks.

    Requirements hold as always, and one NVLink group is used if one suffices; nothing else is compared.
    """
    index = room.index
    for nvlink, level in ((True, request.level), (request.nvlink, request.level)):
        domains = index.domains(nvlink, level)
        if request.node_count:
            found = _on_nodes(request, room, ranks, nvlink, level)
        else:
            able = np.flatnonzero(domains.sums(room.available) >= request.gpus)
            cells = np.flatnonzero(np.isin(domains.of_cell, able) & (room.available > 0))
            if len(able):
                first = cells[np.argmin(ranks[cells])]
                inside = cells[domains.of_cell[cells] == domains.of_cell[first]]
                return _fill(room, inside, ranks, request.gpus)
            found = _alone(request, room, ranks) if nvlink and not request.nvlink else None
        if found is not None or request.nvlink:
            return found
    return None


def _alone(request: Request, room: Room, ranks: IntArray) -> CellCounts | None:
    """Place a job of one GPU, for which a GPU outside any NVLink group is as good as one inside."""
    cells = np.flatnonzero((room.available > 0) & (room.index.cell_group == NO_GROUP))
    if request.gpus != 1 or not len(cells):
        return None
    return ((int(cells[np.argmin(ranks[cells])]), 1),)


def _on_nodes(
    request: Request, room: Room, ranks: IntArray, nvlink: bool, level: str | None
) -> CellCounts | None:
    domains = room.index.domains(nvlink, level)
    able = domains.part_sums(room.available) >= request.per_node
    for domain in np.unique(domains.domain_of_part[able]).tolist():
        parts = np.flatnonzero(able & (domains.domain_of_part == domain))
        if len(parts) < request.node_count:
            continue
        cells = [np.flatnonzero((domains.part_of_cell == part) & (room.available > 0)) for part in parts]
        cells.sort(key=lambda held: int(ranks[held].min()))
        taken = [
            pair
            for held in cells[: request.node_count]
            for pair in _fill(room, held, ranks, request.per_node)
        ]
        return tuple(sorted(taken))
    return None


def _fill(room: Room, cells: IntArray, ranks: IntArray, need: int) -> CellCounts:
    taken: list[tuple[int, int]] = []
    for cell in cells[np.argsort(ranks[cells], kind="stable")].tolist():
        count = min(need, int(room.available[cell]))
        if count:
            taken.append((cell, count))
            need -= count
    return tuple(sorted(taken))
