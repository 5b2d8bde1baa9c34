"""Large regions: finds the fewest groups and nodes that hold the job, with few GPUs left over."""

from __future__ import annotations

from typing import Final

import numpy as np

from emep.scheduling.cluster.arrays import IntArray
from emep.scheduling.cluster.index import NO_GROUP, ClusterIndex
from emep.scheduling.placement.groups_on_nodes import fewest_nodes

_DP_LIMIT: Final = 8_000
"""At most this many (unit, count) states are worked through for the tightest set."""


def tight(
    index: ClusterIndex, available: IntArray, cells: IntArray, need: int, *, spread: bool = False
) -> tuple[tuple[int, int], ...]:
    """(cell, count) pairs that add up to ``need``; the cells together hold as much.

    Units are NVLink groups, or nodes where there is no NVLink. As few units as will do, then (where nodes
    have several) as few nodes; of such sets the one with the fewest GPUs in all (best fit; the most, to
    spread), of those the first by name.
    """
    groups = index.cell_group[cells]
    if (groups != NO_GROUP).any() and (groups == NO_GROUP).any():
        linked = cells[groups != NO_GROUP]
        held = int(available[linked].sum())
        if held >= need:
            return tight(index, available, linked, need, spread=spread)
        rest = tight(index, available, cells[groups == NO_GROUP], need - held, spread=spread)
        return tuple(sorted([*((int(cell), int(available[cell])) for cell in linked), *rest]))
    node_of = index.cell_node[cells]
    unit_of = node_of if (groups == NO_GROUP).all() else groups
    _, first, place = np.unique(unit_of, return_index=True, return_inverse=True)
    sizes = np.bincount(place, weights=available[cells]).astype(np.int64).tolist()
    within_nodes = bool((node_of[first][place] == node_of).all())
    if within_nodes and len(np.unique(node_of)) < len(first):
        chosen = fewest_nodes(sizes, node_of[first].tolist(), need, spread=spread)
    elif spread:
        chosen = sorted(range(len(sizes)), key=lambda one: (-sizes[one], one))[: _fewest(sizes, need)]
    else:
        chosen = tightest(sizes, need)
    taken: list[tuple[int, int]] = []
    for unit in sorted(chosen):
        members = cells[place == unit]
        for cell in members[np.argsort(-available[members], kind="stable")].tolist():
            count = min(need, int(available[cell]))
            need -= count
            if count:
                taken.append((cell, count))
    return tuple(sorted(taken))


def tightest(sizes: list[int], need: int) -> list[int]:
    """Places of as few sizes as add up to ``need``, with the least sum, in ascending order.

    Dynamic programming over "which sums can be made of so many of the sizes from here on", as bit sets; too
    large for that: the largest first, and last the smallest that holds the rest.
    """
    count = _fewest(sizes, need)
    if len(sizes) * count > _DP_LIMIT:
        return _largest_first(sizes, need)
    reach = [[0] * (count + 1) for _ in range(len(sizes) + 1)]
    reach[-1][0] = 1
    for place in range(len(sizes) - 1, -1, -1):
        later, here = reach[place + 1], reach[place]
        size = sizes[place]
        here[0] = 1
        for used in range(1, count + 1):
            here[used] = later[used] | later[used - 1] << size
    enough = reach[0][count] >> need
    target = need + (enough & -enough).bit_length() - 1
    chosen: list[int] = []
    for place, size in enumerate(sizes):
        left = count - len(chosen)
        if left and target >= size and reach[place + 1][left - 1] >> (target - size) & 1:
            chosen.append(place)
            target -= size
    return chosen


def _fewest(sizes: list[int], need: int) -> int:
    total = 0
    for count, size in enumerate(sorted(sizes, reverse=True), start=1):
        total += size
        if total >= need:
            return count
    raise ValueError(f"{sum(sizes)} GPUs are fewer than {need}")


def _largest_first(sizes: list[int], need: int) -> list[int]:
    order = sorted(range(len(sizes)), key=lambda place: (-sizes[place], place))
    chosen: list[int] = []
    while need > sizes[order[len(chosen)]]:
        need -= sizes[order[len(chosen)]]
        chosen.append(order[len(chosen)])
    rest = [place for place in order[len(chosen) :] if sizes[place] >= need]
    return sorted([*chosen, min(rest, key=lambda place: (sizes[place], place))])
