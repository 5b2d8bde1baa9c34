"""Builders for the scheduling core's values: ``a_job("J1").gpus(4).at(0)``, ``a_node("n0").gpus(8)``.

A builder is finished by ``.build()``; the helpers here (``a_snapshot``, ``running``) finish them themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from emep.scheduling.model import (
    Allocation,
    Gpu,
    GpuId,
    GpuState,
    Job,
    LabelTerm,
    Node,
    Snapshot,
    UsageRecord,
)

GIB = 1024**3


@dataclass(frozen=True)
class JobBuilder:
    """A job in the making; every method gives a new builder."""

    fields: dict[str, Any] = field(default_factory=dict)

    def having(self, **fields: Any) -> Self:
        """Any fields of ``Job`` by name."""
        return replace(self, fields={**self.fields, **fields})

    def at(self, submit_time: float) -> Self:
        return self.having(submit_time=float(submit_time))

    def gpus(self, count: int) -> Self:
        return self.having(gpu_count=count)

    def on_nodes(self, count: int) -> Self:
        return self.having(node_count=count)

    def limit(self, max_duration: float | None) -> Self:
        return self.having(max_duration=max_duration)

    def of(self, project: str, user: str = "") -> Self:
        return self.having(project=project, user=user)

    def queue(self, queue: str) -> Self:
        return self.having(queue=queue)

    def priority(self, priority: str) -> Self:
        return self.having(priority=priority)

    def nvlink(self) -> Self:
        return self.having(nvlink_required=True)

    def within(self, level: str) -> Self:
        return self.having(topology_required=level)

    def preferring(self, level: str | None) -> Self:
        return self.having(topology_preferred=level)

    def spread(self) -> Self:
        return self.having(placement="spread")

    def near(self, key: str, value: str) -> Self:
        return self.having(affinity=(*self.fields.get("affinity", ()), LabelTerm(key, value)))

    def far_from(self, key: str, value: str) -> Self:
        return self.having(anti_affinity=(*self.fields.get("anti_affinity", ()), LabelTerm(key, value)))

    def build(self) -> Job:
        return Job(**self.fields)


def a_job(job_id: str) -> JobBuilder:
    """A normal merge job of one GPU, submitted at 0."""
    return JobBuilder({"id": job_id, "submit_time": 0.0})


@dataclass(frozen=True)
class NodeBuilder:
    """A node in the making."""

    fields: dict[str, Any] = field(default_factory=dict)
    gpu_fields: dict[str, Any] = field(default_factory=dict)
    count: int = 0
    group_size: int | None = None
    group_name: str | None = None
    states: dict[int, GpuState] = field(default_factory=dict)
    foreign: frozenset[int] = frozenset()

    def having(self, **fields: Any) -> Self:
        """Any fields of ``Node`` by name."""
        return replace(self, fields={**self.fields, **fields})

    def gpus(self, count: int, gpu_type: str = "", memory: int = 0) -> Self:
        return replace(self, count=count, gpu_fields={"gpu_type": gpu_type, "memory": memory})

    def nvlink_groups_of(self, size: int) -> Self:
        """NVLink groups of ``size`` GPUs each within the node (the whole node: its number of GPUs)."""
        return replace(self, group_size=size)

    def in_nvlink_group(self, name: str) -> Self:
        """All GPUs in one group, which may span nodes."""
        return replace(self, group_name=name)

    def rack(self, name: str) -> Self:
        return self.having(rack=name)

    def block(self, name: str) -> Self:
        return self.having(block=name)

    def pool(self, name: str) -> Self:
        return self.having(pool=name)

    def label(self, key: str, value: str) -> Self:
        return self.having(labels={**self.fields.get("labels", {}), key: value})

    def with_state(self, state: GpuState, *indices: int) -> Self:
        return replace(self, states={**self.states, **dict.fromkeys(indices, state)})

    def used_by_others(self, *indices: int) -> Self:
        return replace(self, foreign=self.foreign | set(indices))

    def build(self) -> Node:
        name = self.fields["name"]
        gpus = []
        for index in range(self.count):
            group = self.group_name
            if self.group_size is not None:
                group = f"{name}/g{index // self.group_size}"
            gpus.append(
                Gpu(
                    index=index,
                    nvlink_group=group,
                    state=self.states.get(index, GpuState.HEALTHY),
                    foreign=index in self.foreign,
                    **self.gpu_fields,
                )
            )
        return Node(gpus=tuple(gpus), **self.fields)


def a_node(name: str) -> NodeBuilder:
    """A node without GPUs, in pool default, rack and block unnamed."""
    return NodeBuilder({"name": name})


def a_pool(size: int, name: str = "n") -> NodeBuilder:
    """One node of ``size`` GPUs in one NVLink group: a pool where only numbers count."""
    return a_node(name).gpus(size).nvlink_groups_of(size)


def running(
    job: JobBuilder | Job, on: str | Sequence[str | GpuId], since: float = 0.0, **fields: Any
) -> Allocation:
    """The allocation of a running job on GPUs written ``node:0-3`` (several joined by spaces)."""
    built = job.build() if isinstance(job, JobBuilder) else job
    gpus = gpu_ids(on) if isinstance(on, str) else tuple(_one(item) for item in on)
    nodes = tuple(dict.fromkeys(gpu.node for gpu in gpus))
    return Allocation(job=built, gpus=gpus, start_time=float(since), nodes=nodes, **fields)


def gpu_ids(text: str) -> tuple[GpuId, ...]:
    """``"a:0-3 b:5"`` as GPU ids."""
    found: list[GpuId] = []
    for word in text.split():
        node, _, span = word.rpartition(":")
        first, _, last = span.partition("-")
        found += [GpuId(node, index) for index in range(int(first), int(last or first) + 1)]
    return tuple(found)


def _one(item: str | GpuId) -> GpuId:
    return item if isinstance(item, GpuId) else gpu_ids(item)[0]


def a_snapshot(
    nodes: Iterable[NodeBuilder | Node],
    pending: Iterable[JobBuilder | Job] = (),
    allocations: Iterable[Allocation] = (),
    usage: Iterable[UsageRecord] = (),
) -> Snapshot:
    """A snapshot of finished or unfinished parts."""
    return Snapshot(
        nodes=tuple(node.build() if isinstance(node, NodeBuilder) else node for node in nodes),
        pending=tuple(job.build() if isinstance(job, JobBuilder) else job for job in pending),
        allocations=tuple(allocations),
        usage=tuple(usage),
    )


def used(queue: str, project: str, user: str, gpu_seconds: float) -> UsageRecord:
    """Consumption of one leaf entity."""
    return UsageRecord(queue=queue, project=project, user=user, gpu_seconds=gpu_seconds)
