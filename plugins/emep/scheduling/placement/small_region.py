"""Choosing the cells of one region (a set of cells that together hold enough GPUs) for one job.

The key of a choice is the order of the contract, most significant first: blocks, racks, NVLink groups (a
GPU without NVLink is a group of its own), nodes, least network bandwidth of its nodes (high is good), GPU
memory taken, what ``pack`` or ``spread`` say of the free GPUs left in its groups and then its nodes, names.
All of it but memory, islands and names follows from *which* cells are touched, so small regions are searched
by subsets of cells, exactly; large ones domain by domain, with bounds that spare most a closer look.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations
from math import comb
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from emep.scheduling.cluster.arrays import IntArray
from emep.scheduling.cluster.index import NO_GROUP
from emep.scheduling.placement.large_region import tight, tightest
from emep.scheduling.placement.room import CellCounts, Key, Room

EXACT_CELLS: Final = 10
"""Regions of at most this many cells are searched exhaustively."""
_SETS: Final = 24
"""At most this many sets of racks or blocks are tried against each other."""
_KINDS: Final = 4
"""At most so many bandwidths, and so many sizes of GPU memory, are told apart in a large region."""
_LOOKS: Final = 8
"""At most this many domains are looked at closely, those with the best bounds first."""
_PERFECT: Final = (0, 0)
"""Nothing left free in groups and nodes that are touched."""


def cover(room: Room, cells: IntArray, need: int) -> CellCounts | None:
    """The best choice of ``need`` GPUs from these cells (in ascending order); None if they hold fewer."""
    cells = cells[room.available[cells] > 0]
    if int(room.available[cells].sum()) < need:
        return None
    return room.best(_choices(room, cells, need))


def _choices(room: Room, cells: IntArray, need: int) -> Iterator[CellCounts]:
    """Choices that include the best: in one rack if one will do, else one block, else as few as do."""
    if len(cells) <= EXACT_CELLS:
        one_rack = _all_one(room.index.cell_rack[cells])
        yield _in_racks(room, cells, need) if one_rack else subset(room, cells, need)
        return
    for domain_of in (room.index.cell_rack[cells], room.index.cell_block[cells]):
        if np.bincount(domain_of, weights=room.available[cells]).max() >= need and not _all_one(domain_of):
            yield from best_of_domains(room, cells, domain_of, need)
            return
    yield from _of_sets(room, cells, need)


def _of_sets(room: Room, cells: IntArray, need: int) -> Iterator[CellCounts]:
    """One rack that is all there is, or sets of blocks and in them sets of racks, as few as hold the job."""
    blocks, racks = room.index.cell_block[cells], room.index.cell_rack[cells]
    if _all_one(racks):
        yield _in_racks(room, cells, need)
        return
    for chosen in _fewest(np.bincount(blocks, weights=room.available[cells]), need):
        inside = cells if _all_one(blocks) else cells[np.isin(blocks, chosen)]
        racks = room.index.cell_rack[inside]
        for some in _fewest(np.bincount(racks, weights=room.available[inside]), need):
            yield _in_racks(room, inside[np.isin(racks, some)], need)


def _all_one(domain_of: IntArray) -> bool:
    return bool((domain_of == domain_of[0]).all())


def best_of_domains(room: Room, cells: IntArray, domain_of: IntArray, need: int) -> Iterator[CellCounts]:
    """The best choices of those domains that could hold the best of all; each domain may span racks."""
    if _all_one(domain_of):
        found = cover(room, cells, need)
        if found is not None:
            yield found
        return
    best: tuple[Key, tuple[int, ...]] | None = None
    for looks, (bound, domain) in enumerate(least_units(room, cells, domain_of, need)):
        if best is not None and (bound > best[0][:4] or looks >= _LOOKS):
            return
        take = cover(room, cells[domain_of == domain], need)
        if take is None:
            continue
        key = room.key_of(take)
        if best is None or key < best:
            best = key
            yield take
        if not room.spread and room.index.uniform and key[0][:4] == bound and key[0][6:] == _PERFECT:
            return


def least_units(
    room: Room, cells: IntArray, domain_of: IntArray, need: int
) -> list[tuple[tuple[int, int, int, int], int]]:
    """Per domain that holds ``need``: lower bounds of (blocks, racks, groups, nodes), in ascending order."""
    index, sizes = room.index, room.available[cells]
    domains = np.flatnonzero(np.bincount(domain_of, weights=sizes) >= need)
    if not len(domains):
        return []
    groups = index.cell_group[cells]
    # Every GPU without NVLink is a group of its own; as a bound, one such cell counts as one.
    of_group = np.where(groups == NO_GROUP, len(index.groups) + cells, groups)
    least = [
        _least(domain_of, unit_of, sizes, need, domains)
        for unit_of in (index.cell_block[cells], index.cell_rack[cells], of_group, index.cell_node[cells])
    ]
    return sorted(zip(zip(*least, strict=True), domains.tolist(), strict=True))


def _least(
    domain_of: IntArray, unit_of: IntArray, sizes: IntArray, need: int, domains: IntArray
) -> list[int]:
    """How many units (groups, nodes) at least hold ``need`` in each of the domains: the largest first."""
    pairs, place = np.unique(domain_of * (int(unit_of.max()) + 1) + unit_of, return_inverse=True)
    size = np.bincount(place, weights=sizes)
    domain = pairs // (int(unit_of.max()) + 1)
    order = np.lexsort((-size, domain))
    size, domain = size[order], domain[order]
    running = np.cumsum(size)
    first = np.searchsorted(domain, domains)
    before = running[first] - size[first]
    return (np.searchsorted(running, before + need) - first + 1).tolist()  # type: ignore[no-any-return]


def _fewest(sizes: npt.NDArray[Any], need: int) -> Iterator[tuple[int, ...]]:
    """Sets of as few domains as hold ``need``: all while they are few, else the largest, and the tightest."""
    names = [int(name) for name in np.argsort(-sizes, kind="stable") if sizes[name] > 0]
    total, count = 0.0, 0
    while total < need:
        total += float(sizes[names[count]])
        count += 1
    if comb(len(names), count) <= _SETS:
        yield from (one for one in combinations(names, count) if sum(sizes[name] for name in one) >= need)
        return
    yield tuple(names[:count])
    best = tuple(
        sorted(names)[place] for place in tightest([int(sizes[name]) for name in sorted(names)], need)
    )
    if set(best) != set(names[:count]):
        yield best


def _in_racks(room: Room, cells: IntArray, need: int) -> CellCounts:
    """The choice in one rack, or in several racks that are all needed."""
    index = room.index
    plain = index.simple and not room.spread
    if plain and (room.node_free[index.cell_node[cells]] == room.available[cells]).all():
        return tight(index, room.available, cells, need)
    if len(cells) <= EXACT_CELLS:
        return subset(room, cells, need)
    found = room.best(
        tight(index, room.available, part, need, spread=room.spread) for part in _kinds(room, cells, need)
    )
    assert found is not None  # noqa: S101 - the first part is all of the region
    return found


def _kinds(room: Room, cells: IntArray, need: int) -> Iterator[IntArray]:
    """The region, and its parts of more bandwidth and less GPU memory that hold the job too."""
    yield cells
    index = room.index
    if index.uniform:
        return
    bandwidth, memory = index.cell_bandwidth[cells], index.cell_memory[cells]
    for least in np.unique(bandwidth)[::-1].tolist()[:_KINDS]:
        for most in np.unique(memory).tolist()[:_KINDS]:
            part = cells[(bandwidth >= least) & (memory <= most)]
            if len(part) < len(cells) and int(room.available[part].sum()) >= need:
                yield part


# ---- small regions -----------------------------------------------------------------------------------------


@cache
def _masks(count: int) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    bits = np.arange(1, 1 << count)[:, None] >> np.arange(count) & 1
    return bits.astype(bool)


def subset(room: Room, cells: IntArray, need: int) -> CellCounts:
    """The best set of cells that holds ``need``, with the best split between them: all sets are compared."""
    sizes = room.available[cells]
    masks = _masks(len(cells))
    sums = masks @ sizes
    masks = masks[(sums >= need) & (masks.sum(axis=1) <= need)]
    keys = _set_keys(room, cells, masks)
    ahead = np.ones(len(masks), dtype=bool)
    for key in keys:
        least = key[ahead].min()
        ahead &= key == least
    choices = [_split(room, cells, mask, need) for mask in masks[ahead]]
    found = room.best(choices)
    assert found is not None  # noqa: S101 - some set holds enough, the caller has counted
    return found


def _set_keys(room: Room, cells: IntArray, masks: np.ndarray) -> Iterator[np.ndarray]:
    """The part of the order that is known from the cells touched alone, up to the first key that is not."""
    index = room.index
    groups, nodes = index.cell_group[cells], index.cell_node[cells]
    linked, islands = groups != NO_GROUP, groups == NO_GROUP
    yield _touched(masks, index.cell_block[cells])[0]
    yield _touched(masks, index.cell_rack[cells])[0]
    if linked.any() and islands.any():
        return
    in_group = (np.zeros(len(masks)), np.zeros(len(masks)))
    if linked.all():
        in_group = _touched(masks, groups, room.group_free)
        yield in_group[0]
    in_node = _touched(masks, nodes, room.node_free)
    yield in_node[0]
    bandwidth = np.where(masks, index.cell_bandwidth[cells], np.inf).min(axis=1)
    yield -bandwidth
    if len(set(index.cell_memory[cells].tolist())) > 1:
        return
    sign = -1 if room.spread else 1
    yield sign * in_group[1]
    yield sign * in_node[1]


def _touched(
    masks: np.ndarray,
    unit_of: IntArray,
    free: IntArray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Per set, how many units (nodes, racks, ...) its cells lie in, and how much is free in these."""
    units, place = np.unique(unit_of, return_inverse=True)
    incidence = np.zeros((len(unit_of), len(units)), dtype=np.int64)
    incidence[np.arange(len(unit_of)), place] = 1
    touched = (masks.astype(np.int64) @ incidence) > 0
    return touched.sum(axis=1), touched @ (free[units] if free is not None else np.zeros(len(units)))


def _split(room: Room, cells: IntArray, mask: np.ndarray, need: int) -> CellCounts:
    """One GPU from each cell of the set, the rest from NVLink groups first, then where memory is least."""
    index = room.index
    chosen = cells[mask].tolist()
    order = sorted(
        chosen, key=lambda cell: (index.cell_group[cell] == NO_GROUP, index.cell_memory[cell], cell)
    )
    spare = need - len(chosen)
    counts: dict[int, int] = {}
    for cell in order:
        more = min(spare, int(room.available[cell]) - 1)
        spare -= more
        counts[cell] = 1 + more
    return tuple(sorted(counts.items()))
