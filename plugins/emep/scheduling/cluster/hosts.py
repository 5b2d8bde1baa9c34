"""Cores and memory of nodes, beside their GPUs: what is free now, and what will be.

A node that says 0 limits nothing. A job with GPUs takes cores and memory from its nodes in
proportion to its GPUs there; a job without GPUs evenly from its nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from emep.scheduling.cluster.arrays import FloatArray, IntArray
from emep.scheduling.cluster.index import ClusterIndex
from emep.scheduling.model import Job
from emep.scheduling.request import Request

_PLENTY: Final = 1e9
"""GPUs; more than any node has."""

Entry = tuple[float, int, float, float]
"""Until when, node, cores, bytes."""


@dataclass(frozen=True, slots=True)
class HostRoom:
    """Free cores and bytes by node."""

    cpu: FloatArray
    memory: FloatArray

    def caps(self, request: Request) -> IntArray:
        """By node, how many GPUs of such a job there are cores and memory for."""
        caps = np.full(len(self.cpu), _PLENTY)
        if request.cpu > 0:
            caps = np.minimum(caps, np.floor(self.cpu * (request.gpus / request.cpu) + 1e-9))
        if request.memory > 0:
            caps = np.minimum(caps, np.floor(self.memory * (request.gpus / request.memory) + 1e-9))
        whole: IntArray = np.maximum(caps, 0).astype(np.int64)
        return whole


def capped(index: ClusterIndex, request: Request, available: IntArray, room: HostRoom) -> IntArray:
    """``available`` by cell, cut down to what cores and memory can feed.

    A job in one NVLink group takes one cell of a node, so that each cell may have all that the node can feed;
    for others the largest cells of a node come first, so that groups stay whole.
    """
    caps = room.caps(request)
    result = np.minimum(available, caps[index.cell_node])
    if request.nvlink or not index.has_many_cells:
        return result
    sums = np.bincount(index.cell_node, weights=result, minlength=len(caps))
    for node in np.flatnonzero(sums > caps).tolist():
        left = int(caps[node])
        cells = np.flatnonzero(index.cell_node == node)
        for cell in cells[np.argsort(-result[cells], kind="stable")].tolist():
            result[cell] = min(int(result[cell]), left)
            left -= int(result[cell])
    return result


class Hosts:
    """Mutable: how much of each node's cores and memory each job takes, and until when."""

    def __init__(self, index: ClusterIndex) -> None:
        self._index = index
        self.now = HostRoom(index.node_cpu.copy(), index.node_memory.copy())
        self._entries: dict[str, list[Entry]] = {}

    def copy(self) -> Hosts:
        """One that can be changed by itself."""
        if self._index.unlimited_nodes:
            return self
        made = Hosts.__new__(Hosts)
        made._index = self._index
        made.now = HostRoom(self.now.cpu.copy(), self.now.memory.copy())
        made._entries = self._entries.copy()
        return made

    def take(self, job: Job, gpus: Sequence[int], nodes: Sequence[str], end: float) -> None:
        """A job has its share of its nodes until ``end``."""
        self.take_all([(job, gpus, nodes, end)])

    def take_all(self, taken: Iterable[tuple[Job, Sequence[int], Sequence[str], float]]) -> None:
        """Jobs have their shares."""
        if self._index.unlimited_nodes:
            return
        made: list[Entry] = []
        for job, gpus, nodes, end in taken:
            mine = [(end, node, job.cpu * part, job.memory * part) for node, part in self._parts(gpus, nodes)]
            self._entries[job.id] = mine
            made += mine
        on = [entry[1] for entry in made]
        np.subtract.at(self.now.cpu, on, [entry[2] for entry in made])
        np.subtract.at(self.now.memory, on, [entry[3] for entry in made])

    def give_back(self, job_id: str) -> None:
        """A job is gone."""
        for _, node, cores, size in self._entries.pop(job_id, ()):
            self.now.cpu[node] += cores
            self.now.memory[node] += size

    def change_end(self, job_id: str, end: float) -> None:
        """A job will be gone at another time."""
        held = self._entries.get(job_id, ())
        self._entries[job_id] = [(end, node, cores, size) for _, node, cores, size in held]

    def _parts(self, gpus: Sequence[int], nodes: Sequence[str]) -> list[tuple[int, float]]:
        if gpus:
            node_of = self._index.gpu_node_list
            counts: dict[int, int] = {}
            for gpu in gpus:
                counts[node_of[gpu]] = counts.get(node_of[gpu], 0) + 1
            return [(node, count / len(gpus)) for node, count in counts.items()]
        known = [self._index.node_number[name] for name in nodes if name in self._index.node_number]
        return [(node, 1 / len(known)) for node in known]

    def _all(self) -> Iterator[Entry]:
        return (entry for entries in self._entries.values() for entry in entries)

    def at(self, time: float) -> HostRoom:
        """What is free at a time, if nothing more starts."""
        return self._with(entry for entry in self._all() if entry[0] <= time)

    def without(self, job_ids: Iterable[str]) -> HostRoom:
        """What is free once these jobs are gone."""
        return self._with(entry for job_id in job_ids for entry in self._entries.get(job_id, ()))

    def _with(self, freed: Iterable[Entry]) -> HostRoom:
        cpu, memory = self.now.cpu.copy(), self.now.memory.copy()
        for _, node, cores, size in freed:
            cpu[node] += cores
            memory[node] += size
        return HostRoom(cpu, memory)

    def ends(self) -> set[float]:
        """Times at which something comes free; none where no node limits cores and memory."""
        return {entry[0] for entry in self._all() if entry[0] < np.inf}
