"""Sets of cells that can hold a whole job, and sums over them."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from emep.scheduling.cluster.arrays import IntArray

_LOPSIDED = 1_000_000
"""Rows are made while they have at most this many places more than four times the GPUs."""


class Domains:
    """The NVLink groups of a cluster, the domains of a level, or both at once; immutable."""

    def __init__(self, outer: IntArray, inner: IntArray, node: IntArray, cell_of_gpu: IntArray) -> None:
        """By cell: numbers of its level's domain, its group (below 0: in no domain at all) and its node."""
        inside = inner >= 0
        self.of_cell: IntArray = np.full(len(inner), -1, dtype=np.int64)
        """Number of each cell's domain; -1 for a cell in none."""
        self.part_of_cell: IntArray = self.of_cell.copy()
        """Number of each cell's part: its node's share of its domain; -1 for a cell in no domain."""
        names, self.of_cell[inside] = np.unique(
            outer[inside] * (int(inner.max(initial=0)) + 1) + inner[inside], return_inverse=True
        )
        nodes = int(node.max(initial=0)) + 1
        parts, self.part_of_cell[inside] = np.unique(
            self.of_cell[inside] * nodes + node[inside], return_inverse=True
        )
        self.count = len(names)
        self.domain_of_part: IntArray = parts // nodes
        self.cell_of_gpu = cell_of_gpu

    def sums(self, cells: IntArray) -> IntArray:
        """Per domain, the sum of a number per cell."""
        return _sums(self.of_cell, cells, self.count)

    def part_sums(self, cells: IntArray) -> IntArray:
        """Per part, the sum of a number per cell."""
        return _sums(self.part_of_cell, cells, len(self.domain_of_part))

    @cached_property
    def members(self) -> IntArray | None:
        """GPUs of each domain, a row each, filled up with the number after the last GPU.

        None where one domain is so much larger than most that rows would be mostly empty.
        """
        return _rows(self.of_cell[self.cell_of_gpu], self.count)

    @cached_property
    def part_members(self) -> IntArray | None:
        """GPUs of each part, likewise."""
        return _rows(self.part_of_cell[self.cell_of_gpu], len(self.domain_of_part))


def _sums(key: IntArray, values: IntArray, size: int) -> IntArray:
    """Sums of ``values`` by ``key``; a key below 0 counts nowhere."""
    if len(key) and key[key.argmin()] < 0:
        known = key >= 0
        key, values = key[known], values[known]
    return np.bincount(key, weights=values, minlength=size).astype(np.int64)


def _rows(row_of: IntArray, count: int) -> IntArray | None:
    """Positions by row number, each row filled up with the length; a row number below 0 is in none."""
    known = np.flatnonzero(row_of >= 0)
    known = known[np.argsort(row_of[known], kind="stable")]
    sizes = np.bincount(row_of[known], minlength=count)
    width = int(sizes.max(initial=0))
    if count * width > 4 * len(row_of) + _LOPSIDED:
        return None
    rows = np.full((count, width), len(row_of), dtype=np.int64)
    places = np.arange(len(known)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    rows[row_of[known], places] = known
    return rows
