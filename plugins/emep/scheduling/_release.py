"""When enough GPUs will be free, from when each of them comes free: exact where nothing else is reserved."""

from __future__ import annotations

import math

import numpy as np

from emep.scheduling._index import BoolArray, ClusterIndex, FloatArray, IntArray
from emep.scheduling.eligibility import Request


def earliest_release(index: ClusterIndex, request: Request, eligible: BoolArray, until: FloatArray) -> float:
    """When the first domain has enough GPUs; -inf: some has now; inf: none will.

    ``eligible``: GPUs that the request could use; ``until``: when each comes free (-inf: it is).
    """
    if request.plain:
        return _kth(until[eligible], request.gpus)
    times = np.append(np.where(eligible, until, np.inf), np.inf)
    domains = index.domains(request.nvlink, request.level)
    if not request.node_count:
        return float(_kth_of_rows(times[domains.members], request.gpus).min(initial=math.inf))
    ready = _kth_of_rows(times[domains.part_members], request.per_node)
    order = np.lexsort((ready, domains.domain_of_part))
    return _kth_of_runs(ready[order], domains.domain_of_part[order], request.node_count)


def _kth(times: FloatArray, count: int) -> float:
    if len(times) < count:
        return math.inf
    return float(np.partition(times, count - 1)[count - 1])


def _kth_of_rows(times: FloatArray, count: int) -> FloatArray:
    """The ``count``-th time of each row; rows are filled up with inf."""
    if times.shape[1] < count:
        return np.full(len(times), np.inf)
    found: FloatArray = np.partition(times, count - 1, axis=1)[:, count - 1]
    return found


def _kth_of_runs(times: FloatArray, of: IntArray, count: int) -> float:
    """The least ``count``-th time of all domains; both arrays are sorted by domain, then time."""
    if not len(of):
        return math.inf
    first = np.flatnonzero(np.diff(of, prepend=of[0] - 1))
    sizes = np.diff(np.append(first, len(of)))
    return float(times[first[sizes >= count] + count - 1].min(initial=math.inf))
