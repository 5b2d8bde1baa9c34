"""A job's demands on a cluster, with its queue's defaults filled in; equal demands are equal values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from emep.policy.model import Policy
from emep.scheduling.cluster.arrays import Filter
from emep.scheduling.model import Job

LEVELS: Final = ("block", "rack", "node")
"""Topology levels that contain each other, coarse to fine; NVLink groups cut across them."""


@dataclass(frozen=True)
class Request:
    """The part of a job that decides where it can go; jobs with equal requests share every verdict."""

    gpus: int
    node_count: int
    """Exactly this many nodes, evenly; 0: however placement likes."""
    cpu: float
    """Cores of the whole job; a job with GPUs takes them from its nodes in proportion to its GPUs there."""
    memory: int
    """Host memory of the whole job in bytes, shared out like ``cpu``."""
    pools: tuple[str, ...]
    """Pools it may use; one of them holds all of it."""
    gpu_type: str
    gpu_memory_min: int
    nvlink: bool
    """All GPUs in one NVLink group."""
    level: str | None
    """block, rack or node that must hold all of it."""
    preferred: str | None
    """nvlink, block, rack or node that is tried first; None where ``nvlink`` or ``level`` say as much."""
    affinity: tuple[tuple[str, str], ...]
    anti_affinity: tuple[tuple[str, str], ...]
    spread: bool
    avoid_nodes: tuple[str, ...] = ()
    """Nodes that it takes only where it fits on no others now."""

    @cached_property
    def per_node(self) -> int:
        """GPUs on each of ``node_count`` nodes; 0 where the split is free."""
        return self.gpus // self.node_count if self.node_count else 0

    @cached_property
    def plain(self) -> bool:
        """Whether any GPUs of its kind will do, as many as asked."""
        return not (self.nvlink or self.level or self.node_count)

    @cached_property
    def attempts(self) -> tuple[tuple[bool, str | None], ...]:
        """(one NVLink group?, level) in the order in which they are tried: the preferred level first."""
        must = (self.nvlink, self.level)
        if self.preferred is None:
            return (must,)
        if self.preferred == "nvlink":
            return ((True, self.level), must)
        return ((self.nvlink, self.preferred), must)

    def filter_for(self, pool: str) -> Filter:
        """The key of ``ClusterIndex.eligible_cells`` for one of its pools."""
        return (pool, self.gpu_type, self.gpu_memory_min, self.affinity, self.anti_affinity)


def request_of(job: Job, policy: Policy, pools: Iterable[str]) -> Request:
    """The request of a job whose queue the policy knows; ``pools``: all pools of the cluster."""
    rules = policy.queues[job.queue]
    level = job.topology_required if job.topology_required in LEVELS else None
    nvlink = job.nvlink_required or job.topology_required == "nvlink"
    return Request(
        gpus=job.gpu_count,
        node_count=job.node_count or 0,
        cpu=job.cpu,
        memory=job.memory,
        pools=tuple(pools) if rules.pools is None else rules.pools,
        gpu_type=job.gpu_type,
        gpu_memory_min=job.gpu_memory_min,
        nvlink=nvlink,
        level=level,
        preferred=_finer(job.topology_preferred, level, nvlink),
        affinity=tuple(sorted((term.key, term.value) for term in job.affinity)),
        anti_affinity=tuple(sorted((term.key, term.value) for term in job.anti_affinity)),
        spread=(job.placement or rules.placement) == "spread",
        avoid_nodes=job.avoid_nodes,
    )


def _finer(preferred: str | None, level: str | None, nvlink: bool) -> str | None:
    """The preference where it asks for more than what is required."""
    if preferred == "nvlink":
        return None if nvlink else "nvlink"
    if preferred not in LEVELS:
        return None
    return preferred if level is None or LEVELS.index(preferred) > LEVELS.index(level) else None


def run_limit(job: Job, policy: Policy) -> float | None:
    """Seconds one run of the job may take at most: its own limit, else its queue's; None: endless."""
    if job.max_duration is not None:
        return job.max_duration
    rules = policy.queues.get(job.queue)
    return None if rules is None else rules.default_max_duration


def is_preemptible(job: Job, policy: Policy) -> bool:
    """Whether the job may be a victim at all: by its own field, else its queue's."""
    if job.preemptible is not None:
        return job.preemptible
    rules = policy.queues.get(job.queue)
    return rules is not None and rules.preemptible
