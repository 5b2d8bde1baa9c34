"""Figures of the scheduling core: ``python -m tests.benchmarks.scheduling.measure [NAME ..]``.

Everything is measured in CPU seconds of one process (set OMP_NUM_THREADS=1), each figure beside the limit it
is meant to keep. Nothing is asserted here: a busy machine would only make a liar of the clock.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from random import Random

from tests.benchmarks.command import run_measures
from tests.benchmarks.scheduling.load import cluster, snapshot
from tests.benchmarks.scheduling.replays import churn, cohorts

from emep.policy import default_policy
from emep.scheduling.cluster.index import ClusterIndex
from emep.scheduling.intake import validate_job
from emep.scheduling.model import Allocation, GpuId, Job
from emep.scheduling.plan import plan
from emep.scheduling.planner import IncrementalPlanner

POLICY = default_policy().for_simulation()


def seconds(work: Callable[[], object], repeat: int = 3) -> float:
    """The least CPU time of a few tries: what is over and above it is the machine's doing."""
    found = []
    for _ in range(repeat):
        begin = time.process_time()
        work()
        found.append(time.process_time() - begin)
    return min(found)


def say(name: str, value: float, limit: float | None = None, note: str = "") -> None:
    """One line: the figure, and what part of its limit it is."""
    share = "" if limit is None else f"  {value / limit:6.1%} of {limit:g} s"
    print(f"{name:58} {value:8.3f} s{share}  {note}".rstrip())


def cycles() -> None:
    """One plan: 10,000 pending jobs on 32,768 GPUs, and how the time grows with jobs and with nodes."""
    for nodes, jobs in (
        (4096, 10_000),
        (4096, 5_000),
        (4096, 2_500),
        (2048, 10_000),
        (1024, 10_000),
        (4096, 20_000),
    ):
        load = snapshot(nodes, jobs)
        limit = 1.0 if (nodes, jobs) == (4096, 10_000) else None
        took = seconds(lambda load=load: plan(load, POLICY, 0.0))  # type: ignore[misc]
        decided = plan(load, POLICY, 0.0)
        note = f"{len(decided.starts)} start, {len(decided.waiting)} wait and are told why"
        say(f"plan: {jobs:,} pending, {nodes:,} nodes, 90 % busy", took, limit, note)
        index = ClusterIndex(load.nodes)
        took = seconds(lambda load=load, index=index: plan(load, POLICY, 0.0, index, explain=False))  # type: ignore[misc]
        say("  with an index that is kept, without explanations", took)


def impossible() -> None:
    """The verdict on a job that can never run, from nothing but the nodes."""
    nodes = cluster(4096)
    job = Job("never", 0.0, gpu_count=9, nvlink_required=True)
    say("impossible job, 4,096 nodes, index included", seconds(lambda: validate_job(job, nodes, POLICY)), 0.1)
    index = ClusterIndex(nodes)
    say("impossible job, index kept", seconds(lambda: validate_job(job, index, POLICY)), 0.1)


def preemption() -> None:
    """One decision among 4,000 running one-GPU jobs on 500 nodes."""
    random, nodes = Random(3), cluster(500)
    busy = [
        Allocation(
            Job(
                f"r{number:05d}",
                0.0,
                priority=random.choice(["normal", "low"]),
                max_duration=86400.0,
                checkpoint_interval=600.0,
            ),
            (GpuId(node.name, gpu.index),),
            -random.uniform(0, 5000),
            (node.name,),
            last_checkpoint=-random.uniform(0, 600),
        )
        for number, (node, gpu) in enumerate((node, gpu) for node in nodes for gpu in node.gpus)
    ]
    asked: tuple[dict[str, object], ...] = (
        {"gpu_count": 1},
        {"gpu_count": 8, "nvlink_required": True},
        {"gpu_count": 64, "topology_required": "rack"},
        {"gpu_count": 64, "node_count": 8},
        {"gpu_count": 500},
    )
    for fields in asked:
        planner = IncrementalPlanner(ClusterIndex(nodes), POLICY)
        for one in busy:
            planner.start(one)
        planner.submit(Job("x", 0.0, priority="critical", max_duration=100.0, **fields))  # type: ignore[arg-type]
        took = seconds(lambda planner=planner: planner.plan(0.0))  # type: ignore[misc]
        words = ", ".join(f"{key}={value}" for key, value in fields.items())
        evicted = len(planner.plan(0.0).preemptions)
        say(f"preemption among 4,000: {words}", took, 0.1, f"{evicted} evicted")


def replays() -> None:
    """Whole replays through the kept planner: churn on 2,400 GPUs, and cohorts of borrowing queues."""
    begin = time.process_time()
    done = churn(jobs=80_000, nodes=300, load=0.9, seed=1)
    say("replay: 80,000 jobs on 2,400 GPUs, load 0.9", time.process_time() - begin, 60.0, done.words())
    begin = time.process_time()
    done = cohorts()
    took = time.process_time() - begin
    say(
        "cohorts: 15,000 jobs of 30 queues",
        took,
        7.5,
        f"{done.starts / took:,.0f} decisions/s, {done.words()}",
    )


MEASURES = {work.__name__: work for work in (cycles, impossible, preemption, replays)}


if __name__ == "__main__":
    raise SystemExit(run_measures(MEASURES, sys.argv[1:]))
