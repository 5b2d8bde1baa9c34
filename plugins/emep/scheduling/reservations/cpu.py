"""Jobs without GPUs: placed on nodes by cores and memory, away from free GPUs where there is a choice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from emep.scheduling.cluster.arrays import BoolArray, IntArray
from emep.scheduling.cluster.hosts import HostRoom
from emep.scheduling.cluster.index import ClusterIndex
from emep.scheduling.model import Job
from emep.scheduling.request import Request
from emep.scheduling.reservations.profile import TIME_TOLERANCE

if TYPE_CHECKING:
    from emep.scheduling.plan_state import PlanState


def place_cpu_job(
    state: PlanState, request: Request, pools: tuple[str, ...], kept: frozenset[str] = frozenset()
) -> tuple[str, ...] | None:
    """Names of the nodes for a CPU job; None where it does not fit now. ``kept``: reserved for others.

    Its cores and memory are split evenly over ``node_count`` nodes (one if it names none). Nodes without free
    GPUs come first, then under ``pack`` those with the fewest cores left (``spread``: the most), then names.
    """
    index = state.index
    count = request.node_count or 1
    for pool in pools:
        nodes = np.flatnonzero(_fitting(state, request, pool, state.hosts.now))
        nodes = _without(state, nodes, kept)
        if request.avoid_nodes:
            others = _without(state, nodes, frozenset(request.avoid_nodes))
            nodes = others if len(others) >= count else nodes
        if len(nodes) < count:
            continue
        left = state.hosts.now.cpu[nodes] if not request.spread else -state.hosts.now.cpu[nodes]
        order = np.lexsort((nodes, left, state.counts.by_node[nodes] > 0))
        return tuple(index.nodes[number].name for number in sorted(nodes[order[:count]].tolist()))
    return None


def nodes_for(index: ClusterIndex, request: Request) -> BoolArray:
    """Nodes of any of its pools that a CPU job could use and that take work, whatever is left on them."""
    found: BoolArray = np.zeros(len(index.nodes), dtype=bool)
    for pool in request.pools:
        found |= index.eligible_nodes(pool, request.affinity, request.anti_affinity)
    found &= index.node_schedulable
    return found


def nodes_with_room(state: PlanState, request: Request) -> int:
    """How many nodes hold a share of a CPU job now, in the best of its pools; reservations do not count."""
    now = state.hosts.now
    return max((int(_fitting(state, request, pool, now).sum()) for pool in request.pools), default=0)


def _fitting(state: PlanState, request: Request, pool: str, host: HostRoom) -> BoolArray:
    index, count = state.index, request.node_count or 1
    found: BoolArray = (
        index.eligible_nodes(pool, request.affinity, request.anti_affinity) & index.node_schedulable
    )
    found &= host.cpu + 1e-9 >= request.cpu / count
    found &= host.memory + 1e-9 >= request.memory / count
    return found


def _without(state: PlanState, nodes: IntArray, kept: frozenset[str]) -> IntArray:
    if not kept:
        return nodes
    return np.array([node for node in nodes.tolist() if state.index.nodes[node].name not in kept], dtype=int)


class CpuReservations:
    """Nodes reserved for CPU jobs that do not fit now; a later CPU job must end before such a reservation."""

    def __init__(self, state: PlanState) -> None:
        self._state = state
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
        state, count = self._state, request.node_count or 1
        kept = self.kept_from(np.inf)
        for time in sorted({state.now, *state.hosts.ends()}):
            fitting = np.flatnonzero(_fitting(state, request, pool, state.hosts.at(time)))
            nodes = _without(state, fitting, kept)
            if time >= state.now and len(nodes) >= count:
                return time, tuple(state.index.nodes[node].name for node in nodes[:count].tolist())
        return None
