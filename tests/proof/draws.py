"""Random small clusters, jobs and loads, for comparisons with the reference."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.builders.scheduling import GIB

from emep.scheduling.model import Allocation, Gpu, GpuId, GpuState, Job, LabelTerm, Node


def draw_nodes(random: Random, gpus: int, *, kinds: bool = True) -> list[Node]:
    """Nodes of ``gpus`` GPUs in all: racks, blocks and NVLink groups of every shape, some out of order."""
    nodes: list[Node] = []
    left, shape = gpus, random.choice(["node", "parts", "none", "across", "mixed"])
    blocks, racks = random.randint(1, 2), random.randint(1, 3)
    while left:
        size = min(left, random.randint(1, 4))
        left -= size
        number = len(nodes)
        memory = random.choice([40, 80]) * GIB if kinds else 80 * GIB
        node_type = random.choice(["A", "B"]) if kinds else "A"
        nodes.append(
            Node(
                name=random.choice(["n", "m"]) + str(number),
                gpus=tuple(
                    Gpu(
                        index=index,
                        gpu_type=node_type,
                        memory=memory,
                        nvlink_group=_group(random, shape, number, index),
                        state=GpuState.HEALTHY if random.random() < 0.93 else random.choice(list(GpuState)),
                        foreign=random.random() < 0.04,
                    )
                    for index in range(size)
                ),
                rack=f"r{random.randrange(racks)}",
                block=f"b{random.randrange(blocks)}",
                labels={"zone": random.choice("xy")} if kinds else {},
                network_bandwidth_gbps=random.choice([100.0, 400.0]) if kinds else 0.0,
                schedulable=random.random() < 0.95,
            )
        )
    return nodes


def _group(random: Random, shape: str, node: int, index: int) -> str | None:
    if shape == "none" or (shape == "mixed" and random.random() < 0.3):
        return None
    if shape == "node":
        return f"g{node}"
    if shape == "across":
        return f"g{node // 2}"
    return f"g{node}-{index // 2}"


def draw_job(random: Random, job_id: str, most: int, *, kinds: bool = True) -> Job:
    """A job of up to ``most`` GPUs with constraints of every kind, most of them few."""
    gpus = random.randint(1, most)
    job = Job(id=job_id, submit_time=0.0, gpu_count=gpus, max_duration=100.0)
    if random.random() < 0.25:
        job = replace(job, nvlink_required=True)
    if random.random() < 0.25:
        job = replace(job, topology_required=random.choice(["node", "rack", "block", "nvlink"]))
    if random.random() < 0.5:
        job = replace(job, topology_preferred=random.choice([None, "node", "rack", "block", "nvlink"]))
    if random.random() < 0.2:
        divisors = [count for count in range(1, gpus + 1) if gpus % count == 0]
        job = replace(job, node_count=random.choice(divisors))
    if random.random() < 0.3:
        job = replace(job, placement="spread")
    if kinds and random.random() < 0.15:
        job = replace(job, gpu_type=random.choice("AB"))
    if kinds and random.random() < 0.15:
        job = replace(job, gpu_memory_min=random.choice([40, 60]) * GIB)
    if kinds and random.random() < 0.15:
        job = replace(job, affinity=(LabelTerm("zone", random.choice("xy")),))
    if kinds and random.random() < 0.1:
        job = replace(job, anti_affinity=(LabelTerm("zone", random.choice("xy")),))
    return job


def all_gpus(nodes: list[Node]) -> list[GpuId]:
    return [GpuId(node.name, gpu.index) for node in nodes for gpu in node.gpus]


def draw_load(random: Random, nodes: list[Node], share: float, now: float) -> list[Allocation]:
    """Running jobs of one to four GPUs each on about ``share`` of the cluster, with limits of all lengths."""
    gpus = all_gpus(nodes)
    random.shuffle(gpus)
    gpus = gpus[: int(len(gpus) * share)]
    running: list[Allocation] = []
    while gpus:
        size = min(len(gpus), random.randint(1, 4))
        held, gpus = tuple(sorted(gpus[:size])), gpus[size:]
        name = f"run{len(running)}"
        limit = random.choice([None, 5.0, 10.0, 20.0, 40.0, 80.0])
        # Only a service is endless; evaluations are nobody's victims.
        queue = "inference" if limit is None else "eval"
        job = Job(id=name, submit_time=0.0, gpu_count=size, max_duration=limit, queue=queue)
        start = now - random.choice([0.0, 1.0, 4.0])
        running.append(Allocation(job, held, start, tuple(dict.fromkeys(gpu.node for gpu in held))))
    return running
