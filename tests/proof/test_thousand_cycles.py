"""A thousand cycles under pressure: all queues and classes, owners with guarantees, arrivals without end."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from tests.builders.replay import Replay, Work, work
from tests.builders.scheduling import a_node
from tests.proof.worlds import CLASSES

from emep.policy import parse_policy

POLICY = {
    "projects": {
        "a": {"weight": 2, "guaranteed_gpus": {"default": 4}},
        "b": {"guaranteed_gpus": {"default": 3}},
        "c": {"max_gpus": 8},
    },
    "preemption": {"min_runtime": 2},
}


def arrivals(random: Random, count: int) -> list[Work]:
    works, now = [], 0.0
    for number in range(count):
        now += random.choice([0, 1, 1, 2, 5])
        queue = random.choice(["merge", "merge", "merge", "eval", "inference"])
        run = random.randint(2, 25)
        fields: dict[str, Any] = {
            "queue": queue,
            "priority": random.choice(CLASSES[queue]),
            "project": random.choice("abcd"),
            "nvlink_required": random.random() < 0.2,
            "max_duration": float(run * random.choice([1, 2])),
        }
        works.append(work(f"j{number:03}", now, random.choice([1, 1, 2, 2, 3, 4]), run, **fields))
    return works


@pytest.mark.parametrize("grace", [0.0, 3.0])
def test_in_a_thousand_cycles_nobody_evicts_who_evicted_him(grace: float) -> None:
    nodes = [a_node(f"n{number}").gpus(4).nvlink_groups_of(4) for number in range(3)]
    works = arrivals(Random(7), 800)
    history = Replay(nodes, parse_policy(POLICY), works, grace=grace, max_cycles=1000).run()
    assert history.cycles == 1000
    assert len(history.evictions) > 50
    pairs = {(victim, cause) for _, victim, cause in history.evictions}
    assert not {pair for pair in pairs if pair[::-1] in pairs}
