"""Loads for the scheduling benchmarks: seeded, so that a figure can be measured again."""

from __future__ import annotations

import random

from emep.scheduling.model import Allocation, Gpu, GpuId, Job, Node, Snapshot, UsageRecord

SIZES = (1, 1, 1, 2, 2, 4, 4, 8, 8, 16, 32, 64)
"""GPUs of a pending job, one drawn from these."""


def cluster(nodes: int, gpus: int = 8, rack: int = 16, block: int = 256) -> tuple[Node, ...]:
    """Nodes with one NVLink group each, ``rack`` of them in a rack and ``block`` in a block."""
    return tuple(
        Node(
            name=f"n{number:05d}",
            gpus=tuple(Gpu(index, "H100", 80 * 1024**3, f"n{number:05d}/g") for index in range(gpus)),
            rack=f"r{number // rack:04d}",
            block=f"b{number // block:03d}",
            cpu=96,
            memory=1024**4,
            network_bandwidth_gbps=400,
        )
        for number in range(nodes)
    )


def running_jobs(nodes: tuple[Node, ...], busy: float, seed: int, projects: int) -> tuple[Allocation, ...]:
    """Jobs of 1 to 8 GPUs, each on one node, until ``busy`` of all are taken, scattered as by churn."""
    draw = random.Random(seed)
    free = {node.name: [gpu.index for gpu in node.gpus] for node in nodes}
    names = [node.name for node in nodes]
    total = sum(len(held) for held in free.values())
    taken, found = 0, []
    while taken < busy * total:
        name = draw.choice(names)
        count = min(draw.choice((1, 1, 2, 4, 8)), len(free[name]), int(busy * total) - taken or 1)
        if not count:
            continue
        held, free[name] = free[name][:count], free[name][count:]
        taken += count
        job = Job(
            id=f"run{len(found):06d}",
            submit_time=0.0,
            priority=draw.choice(("normal", "normal", "low", "high")),
            project=f"p{draw.randrange(projects):03d}",
            user=f"u{draw.randrange(5)}",
            gpu_count=count,
            max_duration=draw.uniform(600, 86400),
        )
        gpus = tuple(GpuId(name, index) for index in held)
        found.append(Allocation(job, gpus, start_time=-draw.uniform(0, 600), nodes=(name,)))
    return tuple(found)


def pending_jobs(count: int, seed: int, projects: int, nvlink: float = 0.2) -> tuple[Job, ...]:
    """Jobs of mixed sizes; ``nvlink`` of them, of at most 8 GPUs, ask for one NVLink group."""
    draw = random.Random(seed)
    found = []
    for number in range(count):
        wants_group = draw.random() < nvlink
        size = draw.choice([one for one in SIZES if one <= 8]) if wants_group else draw.choice(SIZES)
        found.append(
            Job(
                id=f"job{number:06d}",
                submit_time=-draw.uniform(0, 3600),
                priority=draw.choice(("normal", "normal", "low")),
                project=f"p{draw.randrange(projects):03d}",
                user=f"u{draw.randrange(5)}",
                gpu_count=size,
                nvlink_required=wants_group,
                max_duration=draw.uniform(600, 86400),
            )
        )
    return tuple(found)


def usage(projects: int, seed: int) -> tuple[UsageRecord, ...]:
    """Consumption of every user of every project."""
    draw = random.Random(seed)
    return tuple(
        UsageRecord("merge", f"p{project:03d}", f"u{user}", draw.uniform(0, 1e7))
        for project in range(projects)
        for user in range(5)
    )


def snapshot(
    nodes: int, pending: int, *, busy: float = 0.9, projects: int = 200, nvlink: float = 0.2, seed: int = 1
) -> Snapshot:
    """A whole cycle's input."""
    made = cluster(nodes)
    return Snapshot(
        nodes=made,
        pending=pending_jobs(pending, seed + 1, projects, nvlink),
        allocations=running_jobs(made, busy, seed, projects),
        usage=usage(projects, seed + 2),
    )
