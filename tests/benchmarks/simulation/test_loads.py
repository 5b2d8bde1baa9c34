"""The benchmarks measure what they say: loads are right, small ones give right answers (no clock here)."""

from __future__ import annotations

import pytest
from tests.benchmarks.command import run_measures
from tests.benchmarks.simulation.cohorts import Cohorts, Wave
from tests.benchmarks.simulation.measure import MEASURES

from emep.simulation.run.recording import State
from emep.simulation.run.replay import replay
from emep.simulation.studies.fragmentation import STRATEGIES, equal_nodes, means, picture, study, wins


def test_the_cohorts_are_15_000_jobs_of_66_seconds_work_for_600_gpus() -> None:
    load = Cohorts()
    jobs = load.jobs()
    assert len(jobs) == 15_000
    gpus = sum(len(node.gpus) for node in load.nodes())
    assert gpus == 600
    assert sum(spec.duration * spec.job.gpu_count for spec in jobs) / gpus == pytest.approx(66.0)
    assert len([name for name in load.policy().queues if name.startswith("cohort-")]) == 30


def test_small_cohorts_finish_close_to_the_ideal_and_keep_to_their_pools() -> None:
    load = Cohorts(2, 2, 20, (Wave("small", "low", 70, 1, 0.2, 0.1), Wave("large", "high", 10, 20, 1.0, 1.2)))
    done = replay(load.nodes(), load.jobs(), load.policy())
    assert {outcome.state for outcome in done.outcomes} == {State.COMPLETED}
    assert done.end_time <= 1.25 * (70 * 0.2 + 10 * 20) / 20
    assert all(
        node.startswith(outcome.spec.job.queue.rpartition("-queue")[0])
        for outcome in done.outcomes
        for node in outcome.nodes
    )


def test_pack_keeps_groups_free_where_spread_does_not() -> None:
    found = list(study(equal_nodes(20), jobs=600, seeds=[42]))
    assert [one.strategy for one in found] == list(STRATEGIES)
    average = means(found)
    assert average["pack"] < average["spread"]
    assert average["pack"] < average["random"]
    assert wins(found) == 1
    assert picture(found, "title").count("<circle") == 4


def test_a_measure_that_is_not_there_is_named_with_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_measures(MEASURES, ["chorts"]) == 2
    said = capsys.readouterr().err
    assert all(name in said for name in ("chorts", *MEASURES))
