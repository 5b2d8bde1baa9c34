"""Finds jobs that cannot run even on a healthy, empty cluster, and says which limit stops them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from emep.policy.model import Policy
from emep.scheduling.cluster.arrays import BoolArray, Filter, IntArray
from emep.scheduling.cluster.hosts import HostRoom, capped
from emep.scheduling.cluster.index import NO_GROUP, ClusterIndex
from emep.scheduling.model import KUBERNETES, RUNTIME_LABEL, Job, RejectCode, Verdict
from emep.scheduling.placement.feasibility import domains_at, fits
from emep.scheduling.quota import Limit, limits_of
from emep.scheduling.request import Request
from emep.wire.suggest import suggest
from emep.wire.units import count_of, format_memory


def against_policy(job: Job, policy: Policy, limits: Iterable[Limit] | None = None) -> Verdict | None:
    """Why the policy, or plain arithmetic, rules the job out; None if they do not.

    ``limits``: those of ``limits_of`` the job, for callers that know them already.
    """
    rules = policy.queues.get(job.queue)
    if rules is None:
        near = suggest(job.queue, policy.queues)
        return RejectCode.UNKNOWN_QUEUE, f"queue: {job.queue!r} is not a queue of the policy, {near}", "queue"
    if policy.resolve_class(job.queue, job.priority) is None:
        near = suggest(job.priority, rules.classes)
        text = f"priority: {job.priority!r} is not a class of queue {job.queue}, {near}"
        return RejectCode.UNKNOWN_CLASS, text, "priority"
    if job.node_count is not None and job.gpu_count and job.gpu_count % job.node_count:
        text = (
            f"node_count: {count_of(job.gpu_count, 'GPU')} cannot be spread evenly over "
            f"{job.node_count} nodes, make gpu_count a multiple of node_count"
        )
        return RejectCode.NOT_DIVISIBLE, text, "node_count"
    for limit in limits_of(policy, job.queue, job.project) if limits is None else limits:
        if limit.max_gpus is not None and job.gpu_count > limit.max_gpus:
            text = (
                f"gpu_count: needs {count_of(job.gpu_count, 'GPU')}, "
                f"but {limit.label} may hold at most {limit.max_gpus} (max_gpus)"
            )
            return RejectCode.OVER_QUOTA, text, "gpu_count"
    return None


def against_cluster(request: Request, index: ClusterIndex) -> Verdict | None:
    """Why no healthy, empty state of the cluster holds the request; None if one does or no node is known."""
    if not request.pools and request.gpus:
        return (
            RejectCode.TOO_MANY_GPUS,
            f"gpu_count: needs {count_of(request.gpus, 'GPU')}, but its queue has no pools",
            "queue",
        )
    pools = [pool for pool in request.pools if pool in index.pool_number]
    if not pools:
        return None
    verdict = _of_labels(request, index, pools)
    if verdict is not None:
        return verdict
    if not request.gpus:
        return _of_cpu_job(request, index, pools)
    return _of_gpu_kind(request, index, pools) or _of_size(request, index, pools)


def _of_labels(request: Request, index: ClusterIndex, pools: list[str]) -> Verdict | None:
    wanted = (request.affinity, request.anti_affinity)
    if any(bool(index.eligible_nodes(pool, *wanted).any()) for pool in pools):
        return None
    internal = (RUNTIME_LABEL, KUBERNETES)
    terms = [f"{key}={value}" for key, value in request.affinity if (key, value) != internal]
    terms += [f"not {key}={value}" for key, value in request.anti_affinity if (key, value) != internal]
    starts = ""
    if internal in request.affinity:
        starts = "runs pods (runtime: kubernetes)"
    elif internal in request.anti_affinity:
        starts = "has an agent that starts jobs (runtime: agent)"
    if starts:
        labels = f" and has labels {', '.join(terms)}" if terms else ""
        return RejectCode.LABELS, f"runtime: no node of {_pools(pools)} {starts}{labels}", "runtime"
    return (
        RejectCode.LABELS,
        f"affinity: no node of {_pools(pools)} has labels {', '.join(terms)}",
        "topology",
    )


def _of_cpu_job(request: Request, index: ClusterIndex, pools: list[str]) -> Verdict | None:
    nodes = np.zeros(len(index.nodes), dtype=bool)
    for pool in pools:
        nodes |= index.eligible_nodes(pool, request.affinity, request.anti_affinity)
    count = request.node_count or 1
    if int(nodes.sum()) < count:
        text = f"node_count: needs {count_of(count, 'node')}, {_pools(pools)} has {int(nodes.sum())} that fit"
        return RejectCode.TOPOLOGY_TOO_SMALL, text, "node_count"
    cpu, memory = request.cpu / count, request.memory / count
    most_cpu, most_memory = float(index.node_cpu[nodes].max()), float(index.node_memory[nodes].max())
    if int((index.node_cpu[nodes] >= cpu).sum()) < count:
        needed = f"cpu: needs {count_of(cpu, 'core')} on a node"
        text = f"{needed}, the largest of {_pools(pools)} has {most_cpu:g}"
        return RejectCode.CPU, text, "cpu"
    if int((index.node_memory[nodes] >= memory).sum()) < count:
        text = (
            f"memory: needs {format_memory(int(memory))} on a node, "
            f"the largest of {_pools(pools)} has {format_memory(int(most_memory))}"
        )
        return RejectCode.MEMORY, text, "memory"
    return None


def _of_gpu_kind(request: Request, index: ClusterIndex, pools: list[str]) -> Verdict | None:
    labelled = _cells(index, [(pool, "", 0, request.affinity, request.anti_affinity) for pool in pools])
    if request.gpu_type:
        kinds = sorted({index.cell_type[cell] for cell in np.flatnonzero(labelled)} - {""})
        if request.gpu_type not in kinds:
            near = suggest(request.gpu_type, kinds)
            text = f"gpu_type: no GPU of {_pools(pools)} is a {request.gpu_type!r}, {near}"
            return RejectCode.GPU_TYPE, text, "gpu_type"
    typed = _cells(
        index, [(pool, request.gpu_type, 0, request.affinity, request.anti_affinity) for pool in pools]
    )
    if typed.any() and not (typed & (index.cell_memory >= request.gpu_memory_min)).any():
        most = int(index.cell_memory[typed].max())
        text = (
            f"gpu_memory_min: needs {format_memory(request.gpu_memory_min)} per GPU, "
            f"the largest {request.gpu_type or 'GPU'} of {_pools(pools)} has {format_memory(most)}"
        )
        return RejectCode.GPU_MEMORY, text, "gpu_memory_min"
    return None


def _cells(index: ClusterIndex, filters: list[Filter]) -> BoolArray:
    found = np.zeros(index.cell_count, dtype=bool)
    for wanted in filters:
        found |= index.eligible_cells(wanted)
    return found


def _of_size(request: Request, index: ClusterIndex, pools: list[str]) -> Verdict | None:
    """Whether some pool, empty, places it; if none does, the first limit on the way in the best of them."""
    verdicts: list[tuple[int, Verdict]] = []
    for pool in pools:
        size = np.where(index.eligible_cells(request.filter_for(pool)), index.cell_size, 0)
        verdict = _size_in_pool(request, index, size, pool)
        if verdict is None:
            return None
        verdicts.append((int(size.sum()), verdict))
    return max(verdicts, key=lambda item: item[0])[1]


def _size_in_pool(request: Request, index: ClusterIndex, size: IntArray, pool: str) -> Verdict | None:
    total = int(size.sum())
    if total < request.gpus:
        text = f"gpu_count: needs {count_of(request.gpus, 'GPU')}, pool {pool} holds {total} that fit"
        return RejectCode.TOO_MANY_GPUS, text, "gpu_count"
    if request.nvlink:
        most = largest(index.cell_group, size)
        if most < request.gpus:
            text = (
                f"gpu_count: needs {count_of(request.gpus, 'GPU')} in one NVLink group, "
                f"the largest of pool {pool} holds {most}"
            )
            return RejectCode.NVLINK_GROUP_TOO_SMALL, text, "gpu_count"
    if request.level:
        most = largest(domains_at(index, request.level), size)
        if most < request.gpus:
            text = (
                f"topology: needs {count_of(request.gpus, 'GPU')} in one {request.level}, "
                f"the largest {request.level} fits {most} of {request.gpus}"
            )
            return RejectCode.TOPOLOGY_TOO_SMALL, text, "topology"
    return _with_nodes(request, index, size, pool)


def largest(domain_of: IntArray, size: IntArray) -> int:
    """GPUs in the largest domain; cells in no group count nowhere."""
    known = domain_of != NO_GROUP
    if not known.any():
        return 0
    return int(np.bincount(domain_of[known], weights=size[known]).max())


def _with_nodes(request: Request, index: ClusterIndex, size: IntArray, pool: str) -> Verdict | None:
    if fits(request, index, size):
        return _of_host(request, index, size, pool)
    if not request.node_count:
        most = int(index.domains(request.nvlink, request.level).sums(size).max(initial=0))
        text = (
            f"topology: needs {count_of(request.gpus, 'GPU')}{_together(request)}, "
            f"pool {pool} has at most {most} so close together"
        )
        return RejectCode.TOPOLOGY_TOO_SMALL, text, "topology"
    by_node = np.bincount(index.cell_node, weights=size)
    fitting = int((by_node >= max(request.per_node, 1)).sum())
    each = count_of(request.per_node, "GPU")
    text = (
        f"node_count: needs {count_of(request.node_count, 'node')} with {each} each"
        f"{_together(request)}, pool {pool} has {count_of(fitting, 'such node')}, "
        f"the largest holds {int(by_node.max(initial=0))}"
    )
    return RejectCode.TOPOLOGY_TOO_SMALL, text, "node_count"


def _together(request: Request) -> str:
    words = [f"one {request.level}"] if request.level else []
    words += ["one NVLink group"] if request.nvlink else []
    return f" in {' and '.join(words)}" if words else ""


def _of_host(request: Request, index: ClusterIndex, size: IntArray, pool: str) -> Verdict | None:
    """Whether the nodes' cores and memory can feed the GPUs of an empty cluster."""
    if index.unlimited_nodes:
        return None
    endless = np.full(len(index.nodes), np.inf)
    for code, field, room, asked in (
        (RejectCode.CPU, "cpu", HostRoom(index.node_cpu, endless), count_of(request.cpu, "core")),
        (RejectCode.MEMORY, "memory", HostRoom(endless, index.node_memory), format_memory(request.memory)),
        (RejectCode.CPU, "cpu", HostRoom(index.node_cpu, index.node_memory), "cores and memory"),
    ):
        if not fits(request, index, capped(index, request, size, room)):
            text = (
                f"{field}: asks for {asked} with {count_of(request.gpus, 'GPU')}, more than the nodes of "
                f"pool {pool} have beside as many GPUs"
            )
            return code, text, field
    return None


def _pools(pools: list[str]) -> str:
    return f"pool {pools[0]}" if len(pools) == 1 else f"pools {', '.join(pools)}"
