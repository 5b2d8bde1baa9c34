"""The load of Kueue's scheduling throughput test, in this project's terms.

Published shape (kubernetes-sigs/kueue, test/performance): cohorts of 6 queues with a nominal quota of 20 each
that may borrow from one another. Every queue gets 350 small jobs (1 unit, 200 ms, one every 100 ms), 100
medium ones (5 units, 500 ms, every 500 ms) and 50 large ones (20 units, 1 s, every 1,200 ms). A cohort is a
pool, the nominal quota a guarantee in it, a unit a GPU here.

One queue's work is 350 x 1 x 0.2 + 100 x 5 x 0.5 + 50 x 20 x 1 = 1,320 GPU-seconds, 66 s of its 20 GPUs: no
schedule ends before that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from emep.policy import Policy, parse_policy
from emep.scheduling.model import Gpu, Job, Node
from emep.simulation.read.jobs import JobSpec
from emep.simulation.run.runs import instant


@dataclass(frozen=True, slots=True)
class Wave:
    """Equal jobs that every queue gets at a fixed pace; durations in seconds."""

    name: str
    priority: str
    count: int
    gpus: int
    duration: float
    every: float


@dataclass(frozen=True, slots=True)
class Cohorts:
    """How many of everything."""

    cohorts: int = 5
    queues_each: int = 6
    nominal: int = 20
    waves: Sequence[Wave] = (
        Wave("small", "low", 350, 1, 0.2, 0.1),
        Wave("medium", "normal", 100, 5, 0.5, 0.5),
        Wave("large", "high", 50, 20, 1.0, 1.2),
    )

    def queues(self) -> Iterator[tuple[str, str]]:
        """(pool, queue) of each."""
        for cohort in range(self.cohorts):
            for member in range(self.queues_each):
                yield f"cohort-{cohort}", f"cohort-{cohort}-queue-{member}"

    def jobs(self) -> list[JobSpec]:
        """All jobs by time of submission."""
        specs = [
            JobSpec(
                Job(
                    id=f"{queue}-{wave.name}-{number:03d}",
                    submit_time=instant(number * wave.every),
                    queue=queue,
                    priority=wave.priority,
                    gpu_count=wave.gpus,
                    topology_preferred=None,
                    job_type=wave.name,
                ),
                wave.duration,
            )
            for _, queue in self.queues()
            for wave in self.waves
            for number in range(wave.count)
        ]
        return sorted(specs, key=lambda spec: spec.job.submit_time)

    def nodes(self) -> tuple[Node, ...]:
        """A pool of nodes of 8 for each cohort, as many GPUs as its queues' nominal quotas together."""
        return tuple(
            Node(
                name=f"{pool}-{number:02d}",
                pool=pool,
                gpus=tuple(Gpu(index, nvlink_group=f"{pool}-{number:02d}") for index in range(8)),
            )
            for pool in dict.fromkeys(pool for pool, _ in self.queues())
            for number in range(self.queues_each * self.nominal // 8)
        )

    def policy(self) -> Policy:
        """A queue with its nominal quota guaranteed in its cohort's pool, for each."""
        rules = {
            queue: {
                "classes": ["high", "normal", "low"],
                "preempts": "none",
                "preemptible": False,
                "pools": [pool],
                "guaranteed_gpus": {pool: self.nominal},
            }
            for pool, queue in self.queues()
        }
        return parse_policy({"queues": rules}, "cohorts")
