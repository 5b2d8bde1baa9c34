"""Places a job: chooses the cells that it takes GPUs from, in the order of the contract's section 5.

One pool holds all of a job. Within it the preferred level is tried before none; then one NVLink group if one
can hold the job (a single GPU is a group by itself, but ``nvlink_required`` asks for a real one), else fewest
blocks, racks, groups and nodes (``_cover``). CPU cores and host memory of a job with GPUs are taken from its
nodes in proportion to its GPUs there and limit how many of a node's GPUs it can use.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from math import comb

import numpy as np

from emep.scheduling.cluster.arrays import IntArray
from emep.scheduling.cluster.domains import Domains
from emep.scheduling.cluster.index import NO_GROUP
from emep.scheduling.placement.feasibility import fits
from emep.scheduling.placement.preference import place_by_preference
from emep.scheduling.placement.room import CellCounts, Room
from emep.scheduling.placement.small_region import best_of_domains, cover
from emep.scheduling.request import Request

_EXACT_NODE_SETS = 2000
"""At most this many sets of nodes are tried against each other for a job with a fixed number of nodes."""


def place(request: Request, room: Room) -> CellCounts | None:
    """Where the request goes in the cells that are available; None where it does not fit."""
    if request.avoid_nodes:
        found = _place(request, _without(request.avoid_nodes, room))
        if found is not None:
            return found
    return _place(request, room)


def _without(names: tuple[str, ...], room: Room) -> Room:
    """The room without these nodes."""
    index = room.index
    avoided = [index.node_number[name] for name in names if name in index.node_number]
    return replace(room, available=np.where(np.isin(index.cell_node, avoided), 0, room.available))


def _place(request: Request, room: Room) -> CellCounts | None:
    if room.index.preference is not None:
        return place_by_preference(request, room, room.index.preference)
    quick = _in_one_cell(request, room)
    if quick is not None:
        return quick
    if not fits(request, room.index, room.available):
        return None
    for nvlink, level in request.attempts:
        found = _place_within(request, room, nvlink, level)
        if found is not None:
            return found
    return None


def _in_one_cell(request: Request, room: Room) -> CellCounts | None:
    """The best single cell that holds the job within one group: then nothing else can come before it.

    Exact where no node has two kinds of GPU in one group; None also says "look closer".
    """
    need, index = request.gpus, room.index
    if request.node_count > 1 or (need > 1 and index.has_mixed_groups):
        return None
    fits = room.available >= need
    if need > 1 or request.attempts[0][0]:
        fits = fits & (index.cell_group != NO_GROUP)
    candidates = np.flatnonzero(fits)
    if not len(candidates):
        return None
    groups, nodes = index.cell_group[candidates], index.cell_node[candidates]
    left_group = np.where(groups == NO_GROUP, 0, room.group_free[groups] - need)
    left_node = room.node_free[nodes] - need
    if room.spread:
        left_group, left_node = _LARGE - left_group, _LARGE - left_node
    key = (index.cell_rank[candidates] * _SHIFT + left_group) * _SHIFT + left_node
    return ((int(candidates[int(key.argmin())]), need),)


_SHIFT = 1 << 20
_LARGE = _SHIFT - 1


def _place_within(request: Request, room: Room, nvlink: bool, level: str | None) -> CellCounts | None:
    """One NVLink group if one holds it, else (where that is allowed) the best of all else in the level."""
    in_group = room.best(_choices(request, room, room.index.domains(True, level)))
    if in_group is not None or nvlink:
        return in_group
    if request.gpus == 1 or request.node_count or level is not None:
        return room.best(_choices(request, room, room.index.domains(False, level)))
    return cover(room, np.flatnonzero(room.available > 0), request.gpus)


def _choices(request: Request, room: Room, domains: Domains) -> Iterator[CellCounts]:
    """The best choice of each domain that could hold the best of all."""
    cells = np.flatnonzero((room.available > 0) & (domains.of_cell >= 0))
    domain_of = domains.of_cell[cells]
    if not len(cells):
        return
    if request.node_count:
        whole = domains.domain_of_part[domains.part_sums(room.available) >= request.per_node]
        counts = np.bincount(whole) if len(whole) else np.zeros(0)
        for domain in np.flatnonzero(counts >= request.node_count).tolist():
            found = _on_exact_nodes(request, room, cells[domain_of == domain])
            if found is not None:
                yield found
        return
    yield from best_of_domains(room, cells, domain_of, request.gpus)


def _on_exact_nodes(request: Request, room: Room, cells: IntArray) -> CellCounts | None:
    """The same number of GPUs on each of exactly ``node_count`` nodes."""
    need = request.per_node
    nodes = room.index.cell_node[cells]
    held = np.bincount(nodes, weights=room.available[cells])
    shares: dict[int, CellCounts] = {}
    for node in np.flatnonzero(held >= need).tolist():
        share = cover(room, cells[nodes == node], need)
        if share is not None:
            shares[node] = share
    if len(shares) < request.node_count:
        return None
    return room.best(_node_sets(request.node_count, room, shares))


def _node_sets(count: int, room: Room, shares: dict[int, CellCounts]) -> Iterator[CellCounts]:
    nodes = sorted(shares)
    if comb(len(nodes), count) <= _EXACT_NODE_SETS:
        for chosen in combinations(nodes, count):
            yield tuple(pair for node in chosen for pair in shares[node])
        return
    index = room.index
    in_rack = np.bincount(index.node_rack[nodes])
    in_block = np.bincount(index.node_block[nodes])

    def order(node: int) -> tuple[object, ...]:
        rack, block = int(index.node_rack[node]), int(index.node_block[node])
        return (-int(in_block[block]), block, -int(in_rack[rack]), rack, room.key_of(shares[node]))

    # Largest domains first takes fewest of them; and where one rack or block will do, each such one is tried.
    ordered = sorted(nodes, key=order)
    yield tuple(sorted(pair for node in ordered[:count] for pair in shares[node]))
    for size, domain_of in ((in_rack, index.node_rack), (in_block, index.node_block)):
        for domain in np.flatnonzero(size >= count).tolist():
            held = [node for node in ordered if domain_of[node] == domain]
            yield tuple(sorted(pair for node in held[:count] for pair in shares[node]))
