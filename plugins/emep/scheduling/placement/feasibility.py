"""Whether a request fits in the GPUs that are available, without choosing them."""

from __future__ import annotations

import numpy as np

from emep.scheduling.cluster.arrays import IntArray
from emep.scheduling.cluster.index import ClusterIndex
from emep.scheduling.request import Request


def fits(request: Request, index: ClusterIndex, available: IntArray) -> bool:
    """Whether a placement exists, without making it; ``place`` agrees."""
    if int(available.sum()) < request.gpus:
        return False
    if not (request.nvlink or request.level or request.node_count):
        return True
    domains = index.domains(request.nvlink, request.level)
    if not request.node_count:
        return bool((domains.sums(available) >= request.gpus).any())
    whole = domains.domain_of_part[domains.part_sums(available) >= request.per_node]
    return bool(len(whole)) and int(np.bincount(whole).max()) >= request.node_count


def domains_at(index: ClusterIndex, level: str | None) -> IntArray:
    """The domain of each cell at a level; all one domain for none."""
    if level == "node":
        return index.cell_node
    if level == "rack":
        return index.cell_rack
    if level == "block":
        return index.cell_block
    return np.zeros(index.cell_count, dtype=np.int64)
