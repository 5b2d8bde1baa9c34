"""The benchmarks measure what they say: their loads, small, give right answers (no clock here)."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.benchmarks.command import run_measures
from tests.benchmarks.scheduling.load import cluster, snapshot
from tests.benchmarks.scheduling.measure import MEASURES, POLICY
from tests.benchmarks.scheduling.replays import churn, cohorts

from emep.scheduling.model import Snapshot
from emep.scheduling.plan import plan


def held(load: Snapshot) -> int:
    return sum(len(one.gpus) for one in load.allocations)


def test_the_load_is_as_busy_and_as_mixed_as_it_says() -> None:
    load = snapshot(64, 2000)
    assert held(load) == pytest.approx(0.9 * 512, abs=8)
    assert len({gpu for one in load.allocations for gpu in one.gpus}) == held(load)
    assert sum(job.nvlink_required for job in load.pending) == pytest.approx(400, rel=0.15)
    assert len({job.project for job in load.pending}) == 200
    assert load == snapshot(64, 2000)


def test_a_plan_of_the_load_gives_nothing_twice_and_explains_everybody() -> None:
    load = snapshot(64, 500)
    decided = plan(load, POLICY, 0.0)
    taken = [gpu for start in decided.starts for gpu in start.placement.gpus]
    assert decided.starts
    assert len(taken) == len(set(taken))
    assert set(taken).isdisjoint(gpu for one in load.allocations for gpu in one.gpus)
    answered = Counter(
        [*(start.job_id for start in decided.starts), *(one.job_id for one in decided.waiting)]
    )
    assert answered == Counter(job.id for job in load.pending)
    assert all(one.reasons and one.estimate_text for one in decided.waiting)


def test_churn_runs_every_job_on_as_many_gpus_as_there_are() -> None:
    done = churn(jobs=300, nodes=4, load=1.2, seed=1)
    assert done.starts == 300
    assert done.waited > 0
    assert {node for _, nodes in done.runs.values() for node in nodes} == {node.name for node in cluster(4)}


def test_cohorts_keep_to_their_pools_and_finish_close_to_the_ideal() -> None:
    done = cohorts(number=2, queues_each=3, nominal=24, share=0.1)
    assert done.starts == 2 * 3 * (35 + 10 + 5)
    assert all(node.startswith(f"c{job_id[1]}") for job_id, (_, nodes) in done.runs.items() for node in nodes)
    # Arrivals alone take 4.8 s (five large jobs, one every 1.2 s) and the last one runs a second.
    assert 5.8 <= done.makespan < 9


def test_a_measure_that_is_not_there_is_named_with_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_measures(MEASURES, ["cycels"]) == 2
    said = capsys.readouterr().err
    assert all(name in said for name in ("cycels", *MEASURES))
