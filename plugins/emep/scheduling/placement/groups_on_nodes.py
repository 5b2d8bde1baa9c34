"""Nodes of several NVLink groups: fewest groups that hold a job, on fewest nodes, then the best fit."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Final

import numpy as np

from emep.scheduling.cluster.arrays import IntArray

_EXACT_STATES: Final = 400_000
"""Tables of at most so many entries are worked through for the best fit; beyond, any fewest nodes will do."""
_EXACT_GROUPS: Final = 4
"""Nodes of at most so many groups have all their subsets tried."""
_NONE: Final = np.iinfo(np.int64).max // 4
"""Marks a combination that is infeasible."""

Option = tuple[int, int, tuple[int, ...]]
"""A choice within one node: how many groups, how many GPUs, which groups (by position)."""


def fewest_nodes(sizes: list[int], node_of: list[int], need: int, *, spread: bool) -> list[int]:
    """Places of as few groups as hold ``need``, on as few nodes, with the fewest GPUs in all (or the most).

    ``sizes``: GPUs by group; ``node_of``: the node of each. After that the least free on the nodes (most, to
    spread), then the first nodes. ValueError where all together are too few.
    """
    count, most = _fewest_groups(sizes, need)
    nodes = _alike(sizes, node_of, count)
    top = [_largest(sizes, groups) for groups in nodes]
    least = _least_nodes(top, count, need)
    if max(len(groups) for groups in nodes) <= _EXACT_GROUPS:
        table_size = (count + 1) * (least + 1) * (most + 1)
        if table_size * len(nodes) <= _EXACT_STATES:
            options = [list(_subsets(sizes, groups)) for groups in nodes]
            totals = [sum(sizes[group] for group in groups) for groups in nodes]
            return _best_fit(options, totals, (count, least, most), need, spread=spread)
    return _largest_sum(top, count, least)


def _fewest_groups(sizes: list[int], need: int) -> tuple[int, int]:
    """How many of the largest hold ``need``, and how many GPUs these are."""
    total = 0
    for count, size in enumerate(sorted(sizes, reverse=True), start=1):
        total += size
        if total >= need:
            return count, total
    raise ValueError(f"{total} GPUs are fewer than {need}")


def _alike(sizes: list[int], node_of: list[int], count: int) -> list[list[int]]:
    """Groups by node, in order of nodes; of nodes that offer the same, no more than could be used."""
    groups: dict[int, list[int]] = {}
    for place, node in enumerate(node_of):
        groups.setdefault(node, []).append(place)
    seen: dict[tuple[int, ...], int] = {}
    kept: list[list[int]] = []
    for node in sorted(groups):
        offer = tuple(sorted(sizes[place] for place in groups[node]))
        seen[offer] = seen.get(offer, 0) + 1
        if seen[offer] <= count:
            kept.append(groups[node])
    return kept


def _largest(sizes: list[int], groups: list[int]) -> list[Option]:
    """The largest groups of a node: one, two, and so on."""
    order = sorted(groups, key=lambda place: (-sizes[place], place))
    return [
        (number, sum(sizes[place] for place in order[:number]), tuple(order[:number]))
        for number in range(1, len(order) + 1)
    ]


def _subsets(sizes: list[int], groups: list[int]) -> Iterator[Option]:
    """Every set of a node's groups; of sets that offer the same, the first."""
    seen: set[tuple[int, int]] = set()
    for number in range(1, len(groups) + 1):
        for chosen in combinations(groups, number):
            offer = (number, sum(sizes[place] for place in chosen))
            if offer not in seen:
                seen.add(offer)
                yield (*offer, chosen)


def _sums(top: list[list[Option]], count: int, nodes: int) -> list[IntArray]:
    """Per node, from it on: the most GPUs that so many groups (rows) on so many nodes (columns) offer."""
    table = np.full((count + 1, nodes + 1), -_NONE, dtype=np.int64)
    table[0, 0] = 0
    tables = [table]
    for options in reversed(top):
        later, table = table, table.copy()
        for number, size, _ in options:
            if number <= count:
                part = table[number:, 1:]
                np.maximum(part, later[: count + 1 - number, :-1] + size, out=part)
        tables.append(table)
    return tables[::-1]


def _least_nodes(top: list[list[Option]], count: int, need: int) -> int:
    found = _sums(top, count, min(count, len(top)))[0][count]
    return int(np.flatnonzero(found >= need)[0])


def _largest_sum(top: list[list[Option]], count: int, nodes: int) -> list[int]:
    """So many groups on so many nodes with the most GPUs in all."""
    tables = _sums(top, count, nodes)
    chosen: list[int] = []
    for place, options in enumerate(top):
        here = tables[place][count, nodes]
        for number, size, groups in options if nodes else ():
            if number <= count and tables[place + 1][count - number, nodes - 1] + size == here:
                chosen += groups
                count, nodes = count - number, nodes - 1
                break
    return sorted(chosen)


def _best_fit(
    options: list[list[Option]], totals: list[int], shape: tuple[int, int, int], need: int, *, spread: bool
) -> list[int]:
    """Exactly so many groups on so many nodes: dynamic programming over every number of GPUs in all.

    ``shape``: groups, nodes, most GPUs; a table says per (groups, nodes, GPUs) the least free on the nodes.
    """
    count, nodes, most = shape
    sign = -1 if spread else 1
    table = np.full((count + 1, nodes + 1, most + 1), _NONE, dtype=np.int64)
    table[0, 0, 0] = 0
    tables = [table]
    for offers, total in zip(reversed(options), reversed(totals), strict=True):
        later, table = table, table.copy()
        for number, size, _ in offers:
            if number <= count and size <= most:
                part = table[number:, 1:, size:]
                earlier = later[: count + 1 - number, :-1, : most + 1 - size]
                np.minimum(part, np.where(earlier < _NONE // 2, earlier + sign * total, _NONE), out=part)
        tables.append(table)
    tables.reverse()
    possible = np.flatnonzero(tables[0][count, nodes, need:] < _NONE // 2) + need
    gpus = int(possible[-1] if spread else possible[0])
    chosen: list[int] = []
    for place, offers in enumerate(options):
        here = tables[place][count, nodes, gpus]
        for number, size, groups in offers if nodes else ():
            if number > count or size > gpus:
                continue
            rest = tables[place + 1][count - number, nodes - 1, gpus - size]
            if rest < _NONE // 2 and rest + sign * totals[place] == here:
                chosen += groups
                count, nodes, gpus = count - number, nodes - 1, gpus - size
                break
    return sorted(chosen)
