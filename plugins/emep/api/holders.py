"""Which jobs hold the GPUs that a waiting job could use, and until when."""

from __future__ import annotations

from emep.ledger.store.views import to_datetime
from emep.policy import Policy
from emep.scheduling.model import Allocation, GpuId, Snapshot
from emep.scheduling.request import Request, request_of, run_limit
from emep.wire.jobs import HolderView

MOST = 20
"""Holders that one answer lists."""


class Holders:
    """Holders as one snapshot shows them; jobs with equal requests share an answer."""

    def __init__(self, snapshot: Snapshot, policy: Policy) -> None:
        self._snapshot, self._policy = snapshot, policy
        self._pools = sorted({node.pool for node in snapshot.nodes})
        self._pending = {job.id: job for job in snapshot.pending}
        self._known: dict[Request, list[HolderView]] = {}

    def of(self, job_id: str) -> list[HolderView]:
        """Jobs that hold GPUs which the waiting job could use, the first to end first.

        None for a CPU job, or for one that the snapshot does not have.
        """
        job = self._pending.get(job_id)
        if job is None or not job.gpu_count or job.queue not in self._policy.queues:
            return []
        request = request_of(job, self._policy, self._pools)
        found = self._known.get(request)
        if found is None:
            found = self._known[request] = self._find(request)
        return found

    def _find(self, request: Request) -> list[HolderView]:
        usable = _usable(request, self._snapshot)
        held = [
            (_end(one, self._policy), one, count)
            for one in self._snapshot.allocations
            if (count := sum(gpu in usable for gpu in one.gpus))
        ]
        held.sort(key=lambda entry: (entry[0] is None, entry[0] or 0.0, entry[1].job.id))
        return [_view(*entry) for entry in held]


def _view(end: float | None, held: Allocation, count: int) -> HolderView:
    return HolderView(
        job_id=held.job.id,
        user=held.job.user,
        project=held.job.project,
        job_type=held.job.job_type,
        gpu_count=count,
        nodes=list(held.nodes) or list(dict.fromkeys(gpu.node for gpu in held.gpus)),
        until=to_datetime(end),
        yielding=held.yielding,
    )


def _usable(request: Request, snapshot: Snapshot) -> set[GpuId]:
    """GPUs that fit the request's pools, labels, type and memory, whether they are free or not."""
    return {
        GpuId(node.name, gpu.index)
        for node in snapshot.nodes
        if node.pool in request.pools
        and all(node.labels.get(key) == value for key, value in request.affinity)
        and not any(node.labels.get(key) == value for key, value in request.anti_affinity)
        for gpu in node.gpus
        if request.gpu_type in ("", gpu.gpu_type) and gpu.memory >= request.gpu_memory_min
    }


def _end(allocation: Allocation, policy: Policy) -> float | None:
    """When it is over at the latest; None without a limit."""
    limit = run_limit(allocation.job, policy)
    ends = [] if limit is None else [allocation.start_time + limit]
    if allocation.yielding and allocation.releases_at is not None:
        ends.append(allocation.releases_at)
    return min(ends, default=None)
