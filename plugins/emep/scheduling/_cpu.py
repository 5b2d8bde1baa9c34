"""Jobs without GPUs: placed on nodes by cores and memory, away from free GPUs where there is a choice."""

from __future__ import annotations

import numpy as np

from emep.scheduling._board import Board
from emep.scheduling._host import HostRoom
from emep.scheduling._index import BoolArray, ClusterIndex, IntArray
from emep.scheduling._profile import TIME_TOLERANCE
from emep.scheduling.eligibility import Request
from emep.scheduling.model import Job


def place_cpu_job(
    board: Board, request: Request, pools: tuple[str, ...], kept: frozenset[str] = frozenset()
) -> tuple[str, ...] | None:
    """Names of the nodes for a CPU job; None where it does not fit now. ``kept``: reserved for others.

    Its cores and memory are split evenly over ``node_count`` nodes (one if it names none). Nodes without free
    GPUs come first, then under ``pack`` those with the fewest cores left (``spread``: the most), then names.
    """
    index = board.index
    count = request.node_count or 1
    for pool in pools:
        nodes = np.flatnonzero(_fitting(board, request, pool, board.hosts.now))
        nodes = _without(board, nodes, kept)
        if len(nodes) < count:
            continue
        left = board.hosts.now.cpu[nodes] if not request.spread else -board.hosts.now.cpu[nodes]
        order = np.lexsort((nodes, left, board.counts.by_node[nodes] > 0))
        return tuple(index.nodes[number].name for number in sorted(nodes[order[:count]].tolist()))
    return None


def nodes_for(index: ClusterIndex, request: Request) -> BoolArray:
    """Nodes of any of its pools that a CPU job could use and that take work, whatever is left on them."""
    found: BoolArray = np.zeros(len(index.nodes), dtype=bool)
    for pool in request.pools:
        found |= index.eligible_nodes(pool, request.affinity, request.anti_affinity)
    found &= index.node_schedulable
    return found


def nodes_with_room(board: Board, request: Request) -> int:
    """How many nodes hold a share of a CPU job now, in the best of its pools; reservations do not count."""
    now = board.hosts.now
    return max((int(_fitting(board, request, pool, now).sum()) for pool in request.pools), default=0)


def _fitting(board: Board, request: Request, pool: str, host: HostRoom) -> BoolArray:
    index, count = board.index, request.node_count or 1
    found: BoolArray = (
        index.eligible_nodes(pool, request.affinity, request.anti_affinity) & index.node_schedulable
    )
    found &= host.cpu + 1e-9 >= request.cpu / count
    found &= host.memory + 1e-9 >= request.memory / count
    return found


def _without(board: Board, nodes: IntArray, kept: frozenset[str]) -> IntArray:
    if not kept:
        return nodes
    return np.array([node for node in nodes.tolist() if board.index.nodes[node].name not in kept], dtype=int)


class CpuReservations:
    """Nodes that CPU jobs which do not fit wait for; later CPU jobs that run into one keep off its nodes."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._windows: list[tuple[float, str, tuple[str, ...]]] = []
        self.made: dict[str, tuple[str, ...]] = {}
        """Job id -> its nodes."""

    def kept_from(self, end: float) -> frozenset[str]:
        """Nodes that a CPU job which ends at ``end`` keeps off."""
        late = (nodes for at, _, nodes in self._windows if at < end - TIME_TOLERANCE)
        return frozenset(name for nodes in late for name in nodes)

    def reserve(
        self, job: Job, request: Request, pools: tuple[str, ...], allowed: int | None
    ) -> float | None:
        """The earliest time at which the job fits in a pool with reservations left; None if none is known."""
        best: tuple[float, str, tuple[str, ...]] | None = None
        for pool in pools:
            if allowed is not None and sum(1 for one in self._windows if one[1] == pool) >= allowed:
                continue
            found = self._earliest(request, pool)
            if found is not None and (best is None or found[0] < best[0]):
                best = (found[0], pool, found[1])
        if best is None:
            return None
        self._windows.append(best)
        self.made[job.id] = best[2]
        return best[0]

    def _earliest(self, request: Request, pool: str) -> tuple[float, tuple[str, ...]] | None:
        board, count = self._board, request.node_count or 1
        kept = self.kept_from(np.inf)
        for time in sorted({board.now, *board.hosts.ends()}):
            fitting = np.flatnonzero(_fitting(board, request, pool, board.hosts.at(time)))
            nodes = _without(board, fitting, kept)
            if time >= board.now and len(nodes) >= count:
                return time, tuple(board.index.nodes[node].name for node in nodes[:count].tolist())
        return None
