from __future__ import annotations

import pytest
from tests.builders.scheduling import a_pool
from tests.builders.simulating import a_spec, simulate

from emep.policy import parse_policy_text
from emep.simulation.report.summary import compare, jain, percentile, summarize

TWO = [
    a_spec("a", 0, 4, 100, project="x"),
    a_spec("b", 20, 4, 50, project="y"),
    a_spec("big", 20, 5, 50, project="y"),
]


def test_figures_by_hand() -> None:
    """a runs 0 to 100, b waits 80 and runs 100 to 150, big is rejected: 4 GPUs, all busy for 150 s."""
    figures = summarize(simulate([a_pool(4)], TWO), parse_policy_text("{}"))
    assert (figures["jobs"], figures["makespan"], figures["gpu_utilization"]) == (3, 150, 1)
    assert (figures["mean_wait"], figures["p50_wait"], figures["max_wait"]) == (40, 40, 80)
    assert (figures["mean_jct"], figures["p95_jct"]) == (115, 128.5)
    assert figures["mean_bounded_slowdown"] == pytest.approx((1 + 130 / 50) / 2)
    assert figures["states"] == {"completed": 2, "rejected": 1}
    assert figures["projects"]["y"]["jobs"] == 2
    assert figures["queues"]["merge"]["gpu_hours"] == pytest.approx(600 / 3600, abs=1e-6)


def test_jobs_of_less_than_ten_seconds_count_as_ten_for_slowdown() -> None:
    specs = [a_spec("a", 0, 1, 10), a_spec("b", 0, 1, 1)]
    figures = summarize(simulate([a_pool(1)], specs), parse_policy_text("{}"))
    assert figures["mean_bounded_slowdown"] == pytest.approx((1 + 1.1) / 2)


def test_fairness_compares_gpu_hours_over_weight() -> None:
    specs = [a_spec("a", 0, 2, 100, project="x"), a_spec("b", 0, 1, 100, project="y")]
    recording = simulate([a_pool(4)], specs)
    weighted = parse_policy_text("projects: {x: {weight: 2}, y: {weight: 1}}")
    assert summarize(recording, weighted)["fairness_jain"] == pytest.approx(1.0)
    assert summarize(recording, parse_policy_text("{}"))["fairness_jain"] == pytest.approx(9 / 10)


def test_what_has_no_value_is_none() -> None:
    figures = summarize(simulate([a_pool(4)], TWO[2:]), parse_policy_text("{}"))
    assert figures["mean_wait"] is None
    assert figures["mean_jct"] is None
    assert figures["gpu_utilization"] is None
    assert figures["fairness_jain"] is None


def test_percentiles_lie_between_neighbours() -> None:
    assert percentile([0.0, 10.0, 20.0], 0.5) == 10.0
    assert percentile([0.0, 10.0], 0.95) == pytest.approx(9.5)
    assert percentile([], 0.5) is None


def test_jains_index_is_one_over_n_where_one_has_everything() -> None:
    assert jain([0.0, 0.0, 3.0, 0.0]) == pytest.approx(0.25)
    assert jain([2.0, 2.0]) == pytest.approx(1.0)
    assert jain([]) is None


def test_a_comparison_says_difference_and_ratio() -> None:
    one = summarize(simulate([a_pool(4)], TWO), parse_policy_text("{}"))
    other = {**one, "mean_wait": 60, "mean_jct": None}
    differences = compare(one, other)
    assert differences["mean_wait"] == {"difference": 20, "ratio": 1.5}
    assert "mean_jct" not in differences
