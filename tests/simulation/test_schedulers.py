"""The kept planner that replays use, against plain ``plan`` of a snapshot at every instant."""

from __future__ import annotations

import random

import pytest
from tests.builders.scheduling import a_node
from tests.builders.simulating import SnapshotScheduler, a_spec

from emep.policy import parse_policy_text
from emep.scheduling.model import Node
from emep.simulation.read.failures import Failure
from emep.simulation.read.jobs import JobSpec
from emep.simulation.report.outputs import events_jsonl, jobs_csv
from emep.simulation.run.engine import Simulation
from emep.simulation.run.schedulers import KeptScheduler

NODES = [a_node(name).gpus(8).nvlink_groups_of(4).rack(f"r{name > 'b'}").build() for name in "abcd"]


def workload(seed: int) -> list[JobSpec]:
    draw = random.Random(seed)
    return [
        a_spec(
            f"j{number:03d}",
            draw.randrange(0, 400),
            draw.choice([1, 1, 2, 4, 8, 12]),
            draw.randrange(1, 120),
            priority=draw.choice(["critical", "high", "normal", "low"]),
            project=draw.choice("xyz"),
            user=draw.choice(["ann", "bob"]),
            nvlink_required=draw.random() < 0.1,
            checkpoint_interval=draw.choice([None, 7.0]),
            max_duration=draw.choice([None, 100.0]),
        )
        for number in range(120)
    ]


def failures(nodes: list[Node], seed: int) -> list[Failure]:
    draw = random.Random(seed)
    found = []
    for _ in range(6):
        node, begin = draw.choice(nodes).name, draw.randrange(0, 400)
        gpu = draw.choice([None, 3])
        found += [Failure(float(begin), node, gpu, True), Failure(begin + 50.0, node, gpu, False)]
    return sorted(found, key=lambda failure: failure.time)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "rules",
    [
        "{}",
        "reservations: all\nsimulation: {checkpoint_time: 3s, restart_time: 2s}",
        "order: shortest\novertaking: bounded",
        "order: smallest_area\nstarvation_bound: 60s\nreservations: 0",
        "projects: {x: {guaranteed_gpus: {default: 8}}, y: {max_gpus: 6}}",
        "queues: {merge: {pending_ttl: 90s}}",
    ],
)
def test_a_replay_is_the_same_to_the_byte(seed: int, rules: str) -> None:
    policy = parse_policy_text(rules).for_simulation()
    texts = []
    for scheduler in (KeptScheduler(policy), SnapshotScheduler(policy)):
        simulation = Simulation(NODES, workload(seed), policy, scheduler, failures=failures(NODES, seed))
        recording = simulation.run()
        texts.append((jobs_csv(recording), events_jsonl(recording)))
    assert texts[0] == texts[1]
    assert "preempted" in texts[0][1]
