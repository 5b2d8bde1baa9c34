"""When enough GPUs will be free, from when each of them comes free: exact where nothing else is reserved."""

from __future__ import annotations

import math

import numpy as np

from emep.scheduling.cluster.arrays import BoolArray, FloatArray, IntArray
from emep.scheduling.cluster.index import ClusterIndex
from emep.scheduling.request import Request


def earliest_release(index: ClusterIndex, request: Request, eligible: BoolArray, until: FloatArray) -> float:
    """When the first domain has enough GPUs; -inf: some has now; inf: none will.

    ``eligible``: GPUs that the request could use; ``until``: when each comes free (-inf: it is).
    """
    if request.plain:
        return _kth(until[eligible], request.gpus)
    times = np.append(np.where(eligible, until, np.inf), np.inf)
    domains = index.domains(request.nvlink, request.level)
    if not request.node_count:
        ready = _kth_of_each(times, domains.members, domains.of_cell[index.gpu_cell], request.gpus)
        return float(ready.min(initial=math.inf))
    part_of = domains.part_of_cell[index.gpu_cell]
    ready = _kth_of_each(times, domains.part_members, part_of, request.per_node)
    order = np.lexsort((ready, domains.domain_of_part))
    runs = _kth_of_runs(ready[order], domains.domain_of_part[order], request.node_count)
    return float(runs.min(initial=math.inf))


def _kth(times: FloatArray, count: int) -> float:
    if len(times) < count:
        return math.inf
    return float(np.partition(times, count - 1)[count - 1])


def _kth_of_each(times: FloatArray, rows: IntArray | None, of_gpu: IntArray, count: int) -> FloatArray:
    """The ``count``-th time of each unit; ``times`` ends with an inf that fills up rows."""
    if rows is None:
        known = np.flatnonzero(of_gpu >= 0)
        order = known[np.lexsort((times[known], of_gpu[known]))]
        return _kth_of_runs(times[order], of_gpu[order], count)
    if rows.shape[1] < count:
        return np.full(len(rows), np.inf)
    found: FloatArray = np.partition(times[rows], count - 1, axis=1)[:, count - 1]
    return found


def _kth_of_runs(times: FloatArray, of: IntArray, count: int) -> FloatArray:
    """The ``count``-th time of each unit, inf where it has fewer; both are sorted by unit, then time.

    Units are numbered without gaps.
    """
    if not len(of):
        return np.zeros(0)
    first = np.flatnonzero(np.diff(of, prepend=of[0] - 1))
    sizes = np.diff(np.append(first, len(of)))
    found = np.full(len(first), np.inf)
    large = sizes >= count
    found[large] = times[first[large] + count - 1]
    return found
