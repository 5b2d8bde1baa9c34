"""The cluster as arrays: built once from the nodes, reused by every plan over the same nodes.

A *cell* is what placement counts in: the GPUs of one node that share NVLink group, type and memory. Within a
cell GPUs differ by name only. GPUs are numbered by node name, then cell, then index, so that the smallest
numbers are the first names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from typing import Any, Final

import numpy as np

from emep.scheduling.cluster.arrays import BoolArray, Filter, FloatArray, IntArray
from emep.scheduling.cluster.domains import Domains
from emep.scheduling.model import Gpu, GpuId, GpuState, Node, Placement

NO_GROUP: Final = -1
"""Group number of a GPU without NVLink: an island of its own."""


class ClusterIndex:
    """Arrays over nodes, cells and GPUs; immutable but for its own caches."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.source = tuple(nodes)
        self.nodes: tuple[Node, ...] = tuple(sorted(nodes, key=lambda node: node.name))
        self.node_number = {node.name: number for number, node in enumerate(self.nodes)}
        if len(self.node_number) != len(self.nodes):
            raise ValueError("two nodes have one name: names of nodes are unique in a cluster")
        self.preference: IntArray | None = None
        """Ranks of cells that replace the order of placement; None: the contract's order."""
        self._number_nodes()
        self._number_gpus()
        self._filters: dict[Filter, BoolArray] = {}
        self._cell_counts: dict[Filter, int] = {}
        self.derived: dict[str, Any] = {}
        """What other modules derive from this index and keep beside it, by a name of their own."""
        self._domains: dict[tuple[bool, str | None], Domains] = {}

    def pool_of(self, node: str) -> str:
        """The pool of a node; none for a node that the cluster does not know."""
        number = self.node_number.get(node)
        return "" if number is None else self.nodes[number].pool

    def numbers(self, gpus: Iterable[tuple[str, int]]) -> IntArray:
        """Numbers of GPUs by name; names that the cluster does not know are left out."""
        known = self.gpu_number
        return np.array([known[gpu] for gpu in gpus if gpu in known], dtype=np.int64)

    def preferring(self, ranks: IntArray) -> ClusterIndex:
        """The same cluster with cells taken by rank, the lowest first, and nothing compared besides.

        For studies of placement strategies: ``np.arange(cell_count)`` is first fit.
        """
        made = copy(self)
        made.preference = ranks
        made.derived = {}
        return made

    def matches(self, nodes: Sequence[Node]) -> bool:
        """Whether the index was built from just these nodes."""
        return nodes is self.source or tuple(nodes) == self.source

    # ---- building ------------------------------------------------------------------------------------------

    def _number_nodes(self) -> None:
        nodes = self.nodes
        self.pools = sorted({node.pool for node in nodes})
        self.blocks = sorted({node.block for node in nodes})
        self.racks = sorted({(node.block, node.rack) for node in nodes})
        pool_of = {name: number for number, name in enumerate(self.pools)}
        block_of = {name: number for number, name in enumerate(self.blocks)}
        rack_of = {name: number for number, name in enumerate(self.racks)}
        self.pool_number = pool_of
        self.node_pool = _ints(pool_of[node.pool] for node in nodes)
        self.node_block = _ints(block_of[node.block] for node in nodes)
        self.node_rack = _ints(rack_of[node.block, node.rack] for node in nodes)
        self.node_cpu = _floats(node.cpu or np.inf for node in nodes)
        self.node_memory = _floats(node.memory or np.inf for node in nodes)
        self.node_bandwidth = _floats(node.network_bandwidth_gbps for node in nodes)
        self.node_schedulable = np.array([node.schedulable for node in nodes], dtype=bool)

    def _number_gpus(self) -> None:
        groups = sorted({gpu.nvlink_group for node in self.nodes for gpu in node.gpus if gpu.nvlink_group})
        self.groups: list[str] = groups
        group_of: dict[str | None, int] = {name: number for number, name in enumerate(groups)}
        cells: list[tuple[int, int, str, int]] = []
        starts: list[int] = []
        self.gpu_ids: list[GpuId] = []
        usable: list[bool] = []
        for number, node in enumerate(self.nodes):
            ordered = sorted(
                (
                    (group_of.get(gpu.nvlink_group, NO_GROUP), gpu.gpu_type, gpu.memory, gpu.index, gpu)
                    for gpu in node.gpus
                ),
                key=lambda item: item[:4],
            )
            last: tuple[int, str, int] | None = None
            for group, gpu_type, memory, index, gpu in ordered:
                if (group, gpu_type, memory) != last:
                    last = (group, gpu_type, memory)
                    cells.append((number, *last))
                    starts.append(len(self.gpu_ids))
                self.gpu_ids.append(GpuId(node.name, index))
                usable.append(node.schedulable and is_usable(gpu))
        self.gpu_number: dict[tuple[str, int], int] = {gpu: number for number, gpu in enumerate(self.gpu_ids)}
        if len(self.gpu_number) != len(self.gpu_ids):
            raise ValueError("two GPUs of one node have one index: indices are unique on a node")
        self.gpu_usable = np.array(usable, dtype=bool)
        self._number_cells(cells, starts)

    def _number_cells(self, cells: list[tuple[int, int, str, int]], starts: list[int]) -> None:
        self.cell_count = len(cells)
        self.cell_start = np.array(starts, dtype=np.int64)
        ends = [*starts[1:], len(self.gpu_ids)] if starts else []
        self.cell_size = np.array(ends, dtype=np.int64) - self.cell_start
        self.cell_bounds = list(zip(starts, ends, strict=True))
        self.cell_node = _ints(cell[0] for cell in cells)
        self.cell_group = _ints(cell[1] for cell in cells)
        self.cell_type = [cell[2] for cell in cells]
        self.cell_memory = _ints(cell[3] for cell in cells)
        self.cell_rack = self.node_rack[self.cell_node] if cells else _ints(())
        self.cell_block = self.node_block[self.cell_node] if cells else _ints(())
        self.cell_pool = self.node_pool[self.cell_node] if cells else _ints(())
        self.cell_bandwidth = self.node_bandwidth[self.cell_node] if cells else _floats(())
        ranks = {
            pair: rank
            for rank, pair in enumerate(sorted(set(zip(-self.cell_bandwidth, self.cell_memory, strict=True))))
        }
        self.cell_rank = _ints(
            ranks[pair] for pair in zip(-self.cell_bandwidth, self.cell_memory, strict=True)
        )
        """Rank of (high bandwidth, little memory): 0 is taken first."""
        self.uniform = len(ranks) <= 1
        """Whether all GPUs are alike in memory and network."""
        parts = [(cell[0], cell[1]) for cell in cells if cell[1] != NO_GROUP]
        self.has_mixed_groups = len(set(parts)) != len(parts)
        """Whether some node has GPUs of two kinds in one group."""
        alone = (
            len({cell[0] for cell in cells})
            == len(cells)
            == len({(cell[1], cell[1] < 0 and cell[0]) for cell in cells})
        )
        self.simple = self.uniform and alone and len({cell[1] < 0 for cell in cells}) <= 1
        """Whether GPUs are alike and each node is one NVLink group of its own, or there is no NVLink."""
        self.has_many_cells = len(cells) != len({cell[0] for cell in cells})
        """Whether some node has more than one cell."""
        self.unlimited_nodes = bool(np.isinf(self.node_cpu).all() and np.isinf(self.node_memory).all())
        """Whether no node says how many cores or how much memory it has."""
        self.gpu_cell = np.repeat(np.arange(self.cell_count, dtype=np.int64), self.cell_size)
        self.gpu_cell_list: list[int] = self.gpu_cell.tolist()
        self.gpu_node = self.cell_node[self.gpu_cell] if cells else _ints(())
        self.gpu_node_list: list[int] = self.gpu_node.tolist()

    # ---- questions -----------------------------------------------------------------------------------------

    def count_by_cell(self, gpus: BoolArray) -> IntArray:
        """How many GPUs of each cell are marked."""
        if not self.cell_count:
            return np.zeros(0, dtype=np.int64)
        return np.add.reduceat(gpus, self.cell_start, dtype=np.int64)

    def eligible_cells(self, wanted: Filter) -> BoolArray:
        """Cells whose pool, type, memory and labels fit, whatever their health; cached."""
        found = self._filters.get(wanted)
        if found is None:
            pool, gpu_type, memory, affinity, anti = wanted
            found = self.eligible_nodes(pool, affinity, anti)[self.cell_node] & (self.cell_memory >= memory)
            if gpu_type:
                found &= np.array([name == gpu_type for name in self.cell_type], dtype=bool)
            self._filters[wanted] = found
        return found

    def cells_of(self, wanted: Filter) -> int:
        """How many cells are eligible; cached."""
        found = self._cell_counts.get(wanted)
        if found is None:
            found = self._cell_counts[wanted] = int(self.eligible_cells(wanted).sum())
        return found

    def eligible_nodes(
        self, pool: str, affinity: Iterable[tuple[str, str]], anti: Iterable[tuple[str, str]]
    ) -> BoolArray:
        """Nodes of the pool that carry all labels of ``affinity`` and none of ``anti``."""
        found: BoolArray = self.node_pool == self.pool_number.get(pool, -1)
        affinity, anti = tuple(affinity), tuple(anti)
        if affinity or anti:
            known: dict[int, bool] = {}
            """By the identity of the labels: many nodes may share one mapping."""
            for node in self.nodes:
                if id(node.labels) not in known:
                    known[id(node.labels)] = _labels_fit(node, affinity, anti)
            found &= np.array([known[id(node.labels)] for node in self.nodes], dtype=bool)
        return found

    def domains(self, nvlink: bool, level: str | None) -> Domains:
        """The domains that hold a job which asks for one NVLink group, one ``level``, or both; cached."""
        found = self._domains.get((nvlink, level))
        if found is None:
            found = self._domains[nvlink, level] = self._make_domains(nvlink, level)
        return found

    def _make_domains(self, nvlink: bool, level: str | None) -> Domains:
        by_level = {"node": self.cell_node, "rack": self.cell_rack, "block": self.cell_block}
        nothing = np.zeros(self.cell_count, dtype=np.int64)
        outer, inner = by_level.get(level or "", nothing), self.cell_group if nvlink else nothing
        return Domains(outer, inner, self.cell_node, self.gpu_cell)

    def count_states(self, gpus: Iterable[int]) -> dict[str, int]:
        """Why these GPUs take no work, in words, with how many each."""
        found: dict[str, int] = {}
        for number in gpus:
            name, position = self.gpu_ids[number]
            node = self.nodes[self.node_number[name]]
            gpu = next(one for one in node.gpus if one.index == position)
            if not node.schedulable:
                words = "on nodes that are lost, drained or out of service"
            else:
                words = "used outside EMEP" if gpu.foreign else gpu.state.value
            found[words] = found.get(words, 0) + 1
        return found

    def placement(self, gpus: Iterable[int]) -> Placement:
        """GPUs by number as a placement: names and nodes in rank order."""
        names = self.gpu_names(gpus)
        return Placement(names, tuple(dict.fromkeys(gpu.node for gpu in names)))

    def gpu_names(self, gpus: Iterable[int]) -> tuple[GpuId, ...]:
        """Names in rank order: neighbours (block, rack, node) get neighbouring ranks."""
        rack = self.node_rack
        node_of = self.gpu_node
        order = sorted(
            (int(rack[node_of[gpu]]), int(node_of[gpu]), self.gpu_ids[gpu].index, gpu) for gpu in gpus
        )
        return tuple(self.gpu_ids[item[3]] for item in order)


def is_usable(gpu: Gpu) -> bool:
    """Healthy and EMEP's to give; whether it is busy is another question."""
    return gpu.state is GpuState.HEALTHY and not gpu.foreign


def _labels_fit(node: Node, affinity: Iterable[tuple[str, str]], anti: Iterable[tuple[str, str]]) -> bool:
    labels = node.labels
    return all(labels.get(key) == value for key, value in affinity) and not any(
        labels.get(key) == value for key, value in anti
    )


def _ints(values: Iterable[int]) -> IntArray:
    return np.fromiter(values, dtype=np.int64)


def _floats(values: Iterable[float]) -> FloatArray:
    return np.fromiter(values, dtype=np.float64)
