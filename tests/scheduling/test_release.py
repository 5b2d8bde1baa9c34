"""When enough GPUs will be free, against looking at every time."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
from tests.builders.scheduling import a_job, a_node

from emep.policy import parse_policy
from emep.scheduling.cluster import domains as _domains
from emep.scheduling.cluster.index import ClusterIndex
from emep.scheduling.placement.feasibility import fits
from emep.scheduling.request import Request, request_of
from emep.scheduling.reservations.release import earliest_release


def some_request(random: Random, index: ClusterIndex) -> Request:
    job = a_job("x").gpus(random.randint(1, 8))
    if random.random() < 0.4:
        nodes = random.choice([1, 2, 3])
        job = a_job("x").gpus(nodes * random.randint(1, 3)).on_nodes(nodes)
    if random.random() < 0.4:
        job = job.nvlink()
    if random.random() < 0.4:
        job = job.within(random.choice(["node", "rack", "block"]))
    return request_of(job.build(), parse_policy({}), index.pools)


@pytest.mark.parametrize("lopsided", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_the_first_time_at_which_it_fits(seed: int, lopsided: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if lopsided:
        monkeypatch.setattr(_domains, "_LOPSIDED", -(10**9))
    random = Random(seed)
    index = ClusterIndex(
        [
            a_node(f"n{number}")
            .gpus(random.choice([2, 4, 8]))
            .nvlink_groups_of(random.choice([2, 4]))
            .rack(f"r{number % 2}")
            .build()
            if random.random() < 0.8
            else a_node(f"n{number}").gpus(4).build()
            for number in range(5)
        ]
    )
    until = np.array([random.choice([-math.inf, 10.0, 20.0, 30.0, math.inf]) for _ in index.gpu_ids])
    eligible = np.array([random.random() < 0.9 for _ in index.gpu_ids])
    for _ in range(10):
        request = some_request(random, index)
        expected = next(
            (
                time
                for time in (-math.inf, 10.0, 20.0, 30.0)
                if fits(request, index, index.count_by_cell(eligible & (until <= time)))
            ),
            math.inf,
        )
        assert earliest_release(index, request, eligible, until) == expected
