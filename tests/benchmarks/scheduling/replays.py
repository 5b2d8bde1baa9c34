"""Replays for the benchmarks: the smallest loop that keeps a planner busy; runs last as their limits say."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from tests.benchmarks.scheduling.load import cluster

from emep.policy import Policy, default_policy, parse_policy
from emep.scheduling.model import Allocation, Gpu, Job, Node, UsageRecord
from emep.scheduling.planner import IncrementalPlanner


@dataclass
class Done:
    """What a replay came to."""

    plans: int = 0
    starts: int = 0
    waited: float = 0.0
    makespan: float = 0.0
    runs: dict[str, tuple[float, tuple[str, ...]]] = field(default_factory=dict)
    """Start and nodes by job."""

    def words(self) -> str:
        mean = self.waited / max(self.starts, 1)
        return f"{self.plans:,} plans, mean wait {mean:,.1f} s, makespan {self.makespan:,.1f} s"


def replay(nodes: tuple[Node, ...], policy: Policy, jobs: list[Job], *, usage: bool) -> Done:
    """Run jobs (by submission, each with a limit that is its duration) until all are done."""
    planner, done = IncrementalPlanner(nodes, policy), Done()
    ends: list[tuple[float, str]] = []
    running: dict[str, Allocation] = {}
    used: dict[tuple[str, str, str], float] = {}
    arrivals: Iterator[Job] = iter(jobs)
    coming = next(arrivals, None)
    waiting: dict[str, Job] = {}
    while coming is not None or ends:
        now = min(
            one for one in (coming and coming.submit_time, ends and ends[0][0]) if one not in (None, [])
        )
        while ends and ends[0][0] <= now:
            one = running.pop(heapq.heappop(ends)[1])
            planner.end(one.job.id)
            entity = (one.job.queue, one.job.project, one.job.user)
            used[entity] = used.get(entity, 0.0) + (one.job.max_duration or 0.0) * len(one.gpus)
        while coming is not None and coming.submit_time <= now:
            planner.submit(coming)
            waiting[coming.id] = coming
            coming = next(arrivals, None)
        decided = planner.plan(
            now, [UsageRecord(*key, value) for key, value in used.items()] if usage else ()
        )
        done.plans += 1
        for start in decided.starts:
            job = waiting.pop(start.job_id)
            planner.leave(job.id)
            one = Allocation(job, start.placement.gpus, now, start.placement.nodes)
            planner.start(one)
            running[job.id] = one
            heapq.heappush(ends, (round(now + (job.max_duration or 0.0), 6), job.id))
            done.starts += 1
            done.waited += now - job.submit_time
            done.runs[job.id] = (now, start.placement.nodes)
        done.makespan = now
    return done


def churn(jobs: int, nodes: int, load: float, seed: int) -> Done:
    """Jobs of 1, 2, 4 and 8 GPUs, a third of the larger ones in one NVLink group, times exponential."""
    draw, sizes, mean = Random(seed), [1] * 50 + [2] * 15 + [4] * 15 + [8] * 20, 3600.0
    gap = mean * sum(sizes) / len(sizes) / (load * nodes * 8)
    time, made = 0.0, []
    for number in range(jobs):
        time += draw.expovariate(1 / gap)
        size = draw.choice(sizes)
        made.append(
            Job(
                id=f"j{number:06d}",
                submit_time=time,
                gpu_count=size,
                max_duration=draw.expovariate(1 / mean),
                nvlink_required=size >= 4 and draw.random() < 1 / 3,
            )
        )
    return replay(cluster(nodes), default_policy().for_simulation(), made, usage=False)


def cohorts(number: int = 5, queues_each: int = 6, nominal: int = 20, share: float = 1.0) -> Done:
    """The load of Kueue's throughput test (kubernetes-sigs/kueue, test/performance) in pools and guarantees.

    A cohort is a pool, a queue's nominal quota a guarantee in it. Every queue gets 350 jobs of 1 GPU for
    0.2 s every 0.1 s, 100 of 5 GPUs for 0.5 s every 0.5 s and 50 of 20 GPUs for 1 s every 1.2 s: 66 s of its
    quota. ``share``: how much of that.
    """
    waves = (("low", 350, 1, 0.2, 0.1), ("normal", 100, 5, 0.5, 0.5), ("high", 50, 20, 1.0, 1.2))
    queues = {
        f"q{cohort}-{member}": f"c{cohort}" for cohort in range(number) for member in range(queues_each)
    }
    rules = {
        queue: {
            "classes": ["high", "normal", "low"],
            "preempts": "none",
            "preemptible": False,
            "pools": [pool],
            "guaranteed_gpus": {pool: nominal},
        }
        for queue, pool in queues.items()
    }
    nodes = tuple(
        Node(
            f"{pool}-{place:02d}",
            tuple(Gpu(index, nvlink_group=f"{pool}-{place:02d}") for index in range(8)),
            pool,
        )
        for pool in sorted(set(queues.values()))
        for place in range(queues_each * nominal // 8)
    )
    made = [
        Job(
            id=f"{queue}-{name}-{place:03d}",
            submit_time=round(place * every, 6),
            queue=queue,
            priority=name,
            gpu_count=gpus,
            max_duration=duration,
            topology_preferred=None,
        )
        for queue in queues
        for name, count, gpus, duration, every in waves
        for place in range(int(count * share))
    ]
    made.sort(key=lambda job: (job.submit_time, job.id))
    return replay(nodes, parse_policy({"queues": rules}), made, usage=True)
