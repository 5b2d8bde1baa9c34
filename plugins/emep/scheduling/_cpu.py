"""Jobs without GPUs: placed on nodes by cores and memory, away from free GPUs where there is a choice."""

from __future__ import annotations

import numpy as np

from emep.scheduling._board import Board
from emep.scheduling.eligibility import Request


def place_cpu_job(
    board: Board, request: Request, pools: tuple[str, ...], end: float
) -> tuple[str, ...] | None:
    """Names of the nodes for a CPU job; None where it does not fit now.

    Its cores and memory are split evenly over ``node_count`` nodes (one if it names none). Nodes without free
    GPUs come first, then under ``pack`` the node with the fewest cores left (``spread``: the most), then names.
    """
    index = board.index
    count = request.node_count or 1
    for pool in pools:
        fits = index.eligible_nodes(pool, request.affinity, request.anti_affinity) & index.node_schedulable
        fits &= board.cpu_free + 1e-9 >= request.cpu / count
        fits &= board.memory_free + 1e-9 >= request.memory / count
        nodes = np.flatnonzero(fits)
        if len(nodes) < count:
            continue
        left = board.cpu_free[nodes] if not request.spread else -board.cpu_free[nodes]
        order = np.lexsort((nodes, left, board.node_free[nodes] > 0))
        return tuple(index.nodes[number].name for number in sorted(nodes[order[:count]].tolist()))
    return None
