"""Choosing the cells of one region (a set of cells that together hold enough GPUs) for one job.

The key of a choice is the order of the contract, most significant first: blocks, racks, NVLink groups (a GPU
without NVLink is a group of its own), nodes, least network bandwidth of its nodes (high is good), GPU memory
taken, what ``pack`` or ``spread`` say of the free GPUs left in its groups and then in its nodes, names. All of
it but memory and names follows from *which* cells are touched, so small regions are searched by subsets of
cells, exactly; large ones greedily in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from emep.scheduling._index import NO_GROUP, ClusterIndex, IntArray

Take = tuple[tuple[int, int], ...]
"""(cell, number of GPUs) pairs by cell number."""
Key = tuple[float, ...]

EXACT_CELLS: Final = 10
"""Regions of at most this many cells are searched exhaustively."""
EXACT_SETS: Final = 64
"""At most this many sets of racks or blocks are tried against each other."""


@dataclass(frozen=True, slots=True)
class Room:
    """What is free while one job is placed: per cell what it may take, per group and node all that is free."""

    index: ClusterIndex
    available: IntArray
    group_free: IntArray
    node_free: IntArray
    spread: bool

    def key_of(self, take: Take) -> tuple[Key, tuple[int, ...]]:
        """The order key of a choice, without and with names (as the cells of its GPUs in order)."""
        index = self.index
        cells = [cell for cell, _ in take]
        groups: dict[int, int] = {}
        nodes: dict[int, int] = {}
        islands = 0
        for cell, count in take:
            group, node = int(index.cell_group[cell]), int(index.cell_node[cell])
            nodes[node] = nodes.get(node, 0) + count
            if group == NO_GROUP:
                islands += count
            else:
                groups[group] = groups.get(group, 0) + count
        left_groups = sum(int(self.group_free[group]) - count for group, count in groups.items())
        left_nodes = sum(int(self.node_free[node]) - count for node, count in nodes.items())
        sign = -1 if self.spread else 1
        key = (
            len({int(index.cell_block[cell]) for cell in cells}),
            len({int(index.cell_rack[cell]) for cell in cells}),
            len(groups) + islands,
            len(nodes),
            -min(float(index.cell_bandwidth[cell]) for cell in cells),
            sum(int(index.cell_memory[cell]) * count for cell, count in take),
            sign * left_groups,
            sign * left_nodes,
        )
        return key, tuple(cell for cell, count in take for _ in range(count))

    def best(self, choices: Iterable[Take]) -> Take | None:
        """The first choice in order; None of none."""
        return min(choices, key=self.key_of, default=None)


def cover(room: Room, cells: Sequence[int], need: int) -> Take | None:
    """The best choice of ``need`` GPUs from these cells (in ascending order); None if they hold fewer."""
    cells = [cell for cell in cells if room.available[cell] > 0]
    if sum(int(room.available[cell]) for cell in cells) < need:
        return None
    return room.best(_choices(room, cells, need, ("block", "rack")))


def _choices(room: Room, cells: list[int], need: int, levels: tuple[str, ...]) -> Iterator[Take]:
    """Choices that include the best one: one domain of each level if one will do, else as few as do."""
    if len(cells) <= EXACT_CELLS:
        yield from _subsets(room, cells, need)
    elif not levels:
        yield greedy(room, cells, need)
    else:
        domain_of = room.index.cell_block if levels[0] == "block" else room.index.cell_rack
        domains: dict[int, list[int]] = {}
        for cell in cells:
            domains.setdefault(int(domain_of[cell]), []).append(cell)
        sizes = {name: sum(int(room.available[cell]) for cell in held) for name, held in domains.items()}
        for chosen in _fewest(sizes, need):
            yield from _choices(
                room, sorted(cell for name in chosen for cell in domains[name]), need, levels[1:]
            )


def _fewest(sizes: dict[int, int], need: int) -> Iterator[tuple[int, ...]]:
    """Sets of as few domains as hold ``need``: every such set while they are few, else largest first."""
    names = sorted(sizes, key=lambda name: (-sizes[name], name))
    total = count = 0
    while total < need:
        total += sizes[names[count]]
        count += 1
    if count == 1:
        yield from ((name,) for name in names if sizes[name] >= need)
        return
    tried = 0
    for chosen in combinations(names, count):
        if tried == EXACT_SETS:
            return
        tried += 1
        if sum(sizes[name] for name in chosen) >= need:
            yield chosen


def _subsets(room: Room, cells: list[int], need: int) -> Iterator[Take]:
    """Every set of cells that holds ``need``, each with the best split between its cells."""
    sizes = [int(room.available[cell]) for cell in cells]
    by_memory = sorted(
        range(len(cells)), key=lambda place: (int(room.index.cell_memory[cells[place]]), place)
    )
    for mask in range(1, 1 << len(cells)):
        chosen = [place for place in by_memory if mask >> place & 1]
        if len(chosen) > need or sum(sizes[place] for place in chosen) < need:
            continue
        spare = need - len(chosen)
        counts: list[tuple[int, int]] = []
        for place in chosen:
            more = min(spare, sizes[place] - 1)
            spare -= more
            counts.append((cells[place], 1 + more))
        yield tuple(sorted(counts))


def greedy(room: Room, cells: list[int], need: int) -> Take:
    """Few groups, then few nodes: the fullest first, the last one the tightest that holds the rest."""
    index, available = room.index, room.available
    units: dict[tuple[int, int], list[int]] = {}
    for cell in cells:
        group, node = int(index.cell_group[cell]), int(index.cell_node[cell])
        units.setdefault((group, 0) if group != NO_GROUP else (NO_GROUP, node), []).append(cell)
    size = {unit: sum(int(available[cell]) for cell in held) for unit, held in units.items()}
    taken: dict[int, int] = {}
    order = sorted(units, key=lambda unit: (unit[0] == NO_GROUP, -size[unit], units[unit][0]))
    while need:
        fitting = [unit for unit in order if size[unit] >= need and unit[0] != NO_GROUP] or [
            unit for unit in order if size[unit] >= need
        ]
        unit = min(fitting, key=lambda one: (size[one], units[one][0])) if fitting else order[0]
        order.remove(unit)
        for cell in sorted(units[unit], key=lambda one: (-int(available[one]), one)):
            count = min(need, int(available[cell]))
            if count:
                taken[cell] = count
                need -= count
    return tuple(sorted(taken.items()))
