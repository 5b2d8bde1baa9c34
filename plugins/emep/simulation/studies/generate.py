"""Workloads for benchmarks and studies, made from a seed: the same seed gives the same jobs everywhere."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from emep.scheduling.model import Job
from emep.simulation.read.jobs import JobSpec
from emep.simulation.report.outputs import write_files
from emep.simulation.run.recording import number
from emep.simulation.run.runs import instant

NATIVE_HEADER = (
    "job_id,submit_time,duration,project,user,gpu_count,nvlink_required,topology_required,job_type"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """A size of jobs, and the part of all GPU-seconds asked for that comes in it."""

    gpus: int
    demand: float


STANDARD_MIX = (Shape(1, 0.50), Shape(2, 0.15), Shape(4, 0.15), Shape(8, 0.20))
"""Half of the demand in single GPUs, a fifth in whole nodes of eight."""


@dataclass(frozen=True, slots=True)
class Churn:
    """Jobs that come and go around a steady load."""

    jobs: int
    gpus: int
    """GPUs of the cluster."""
    load: float = 0.9
    """GPU-seconds asked for per GPU-second there is."""
    mean_duration: float = 3600.0
    mix: Sequence[Shape] = STANDARD_MIX
    constrained: float = 0.0
    """Part of the jobs of 4 GPUs that need one NVLink group, and of those of 8 that need one node."""
    projects: int = 1
    users_per_project: int = 1


def churn(parameters: Churn, seed: int) -> list[JobSpec]:
    """Poisson arrivals, exponential durations, sizes by their part of the demand.

    With rate r of arrivals, mean size s and mean duration d, the load is r s d / GPUs; so r follows from it.
    """
    draw = random.Random(seed)
    weights = [shape.demand / shape.gpus for shape in parameters.mix]
    mean_size = sum(shape.demand for shape in parameters.mix) / sum(weights)
    rate = parameters.load * parameters.gpus / (mean_size * parameters.mean_duration)
    specs, now = [], 0.0
    for count in range(parameters.jobs):
        now += draw.expovariate(rate)
        shape = draw.choices(parameters.mix, weights)[0]
        duration = max(1.0, draw.expovariate(1.0 / parameters.mean_duration))
        constrained = draw.random() < parameters.constrained
        project = draw.randrange(parameters.projects)
        user = draw.randrange(parameters.users_per_project)
        job = Job(
            id=f"j{count}",
            submit_time=instant(round(now, 3)),
            priority="",
            project="default" if parameters.projects == 1 else f"project-{project:03d}",
            user="" if parameters.users_per_project == 1 else f"user-{user:03d}",
            gpu_count=shape.gpus,
            nvlink_required=constrained and shape.gpus == 4,
            topology_required="node" if constrained and shape.gpus == 8 else None,
            job_type=f"train-{shape.gpus}",
        )
        specs.append(JobSpec(job, instant(round(duration, 3))))
    return specs


def native_csv(specs: Sequence[JobSpec]) -> str:
    """Generated jobs as a ``JOBS.csv``."""
    lines = [NATIVE_HEADER]
    for spec in specs:
        job = spec.job
        lines.append(
            f"{job.id},{number(job.submit_time)},{number(spec.duration)},{job.project},{job.user},{job.gpu_count},"
            f"{'true' if job.nvlink_required else ''},{job.topology_required or ''},{job.job_type}"
        )
    return "\n".join(lines) + "\n"


def cluster_yaml(nodes: int, gpus: int, group: int, nodes_per_rack: int = 0) -> str:
    """A ``CLUSTER.yaml`` of equal nodes whose GPUs form NVLink groups of ``group``."""
    rack = f", rack_size: {nodes_per_rack}" if nodes_per_rack else ""
    kind = f"gpus: {gpus}, gpu_type: H100, gpu_memory: 80Gi, nvlink: {group}{rack}"
    return f"nodes:\n  - {{name: n, count: {nodes}, {kind}}}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write ``cluster.yaml`` and ``jobs.csv`` of a churning cluster into the folder given."""
    parser = argparse.ArgumentParser(prog="python -m emep.simulation.studies.generate", description=__doc__)
    parser.add_argument("out", help="folder to write to")
    parser.add_argument("--jobs", type=int, default=80_000)
    parser.add_argument("--nodes", type=int, default=300)
    parser.add_argument("--gpus", type=int, default=8, help="GPUs of each node (default 8)")
    parser.add_argument("--group", type=int, default=8, help="GPUs of an NVLink group (default 8)")
    parser.add_argument("--load", type=float, default=0.9)
    parser.add_argument("--mean-duration", type=float, default=3600.0, metavar="SECONDS")
    parser.add_argument("--constrained", type=float, default=0.0, metavar="PART")
    parser.add_argument("--projects", type=int, default=1)
    parser.add_argument("--users", type=int, default=1, help="users of each project (default 1)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(arguments)
    parameters = Churn(
        jobs=args.jobs,
        gpus=args.nodes * args.gpus,
        load=args.load,
        mean_duration=args.mean_duration,
        constrained=args.constrained,
        projects=args.projects,
        users_per_project=args.users,
    )
    files = {
        "cluster.yaml": cluster_yaml(args.nodes, args.gpus, args.group),
        "jobs.csv": native_csv(churn(parameters, args.seed)),
    }
    write_files(Path(args.out), files)
    return 0


if __name__ == "__main__":
    sys.exit(main())
