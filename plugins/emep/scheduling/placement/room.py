"""What is free while one job is placed, and the order in which choices of cells are compared."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from emep.scheduling.cluster.arrays import IntArray
from emep.scheduling.cluster.index import NO_GROUP, ClusterIndex

CellCounts = tuple[tuple[int, int], ...]
"""(cell, number of GPUs) pairs by cell number."""
Key = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Room:
    """What is free while one job is placed: by cell what it may take, by group and node all that is free."""

    index: ClusterIndex
    available: IntArray
    group_free: IntArray
    node_free: IntArray
    spread: bool

    def key_of(self, take: CellCounts) -> tuple[Key, tuple[int, ...]]:
        """The order key of a choice, and names (as the cells of its GPUs in order)."""
        index = self.index
        groups: dict[int, int] = {}
        nodes: dict[int, int] = {}
        islands = memory = 0
        for cell, count in take:
            group, node = int(index.cell_group[cell]), int(index.cell_node[cell])
            nodes[node] = nodes.get(node, 0) + count
            memory += int(index.cell_memory[cell]) * count
            if group == NO_GROUP:
                islands += count
            else:
                groups[group] = groups.get(group, 0) + count
        left_groups = sum(int(self.group_free[group]) - count for group, count in groups.items())
        left_nodes = sum(int(self.node_free[node]) - count for node, count in nodes.items())
        sign = -1 if self.spread else 1
        key = (
            len({int(index.node_block[node]) for node in nodes}),
            len({int(index.node_rack[node]) for node in nodes}),
            len(groups) + islands,
            len(nodes),
            -min(float(index.node_bandwidth[node]) for node in nodes),
            memory,
            sign * left_groups,
            sign * left_nodes,
        )
        return key, tuple(cell for cell, count in take for _ in range(count))

    def best(self, choices: Iterable[CellCounts]) -> CellCounts | None:
        """The first choice in order; None of none."""
        return min(choices, key=self.key_of, default=None)
