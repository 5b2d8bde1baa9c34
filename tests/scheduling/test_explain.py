"""What a waiting job is told."""

from __future__ import annotations

import pytest
from tests.builders.scheduling import (
    GIB,
    JobBuilder,
    NodeBuilder,
    a_job,
    a_node,
    a_pool,
    a_snapshot,
    running,
    used,
)

from emep.policy import Policy, parse_policy
from emep.scheduling.model import Allocation, GpuState, UsageRecord, Waiting
from emep.scheduling.plan import plan

DEFAULT = parse_policy({})


def told(
    job: JobBuilder,
    nodes: list[NodeBuilder],
    busy: list[Allocation] = [],  # noqa: B006 - never changed
    policy: Policy = DEFAULT,
    others: list[JobBuilder] = [],  # noqa: B006
    usage: list[UsageRecord] = [],  # noqa: B006
    now: float = 0.0,
) -> Waiting:
    decided = plan(a_snapshot(nodes, [*others, job], busy, usage), policy, now)
    return next(item for item in decided.waiting if item.job_id == job.build().id)


def texts(item: Waiting) -> dict[str, str]:
    return {reason.code.value: reason.text for reason in item.reasons}


def test_too_few_gpus_are_free() -> None:
    busy = [running(a_job("r").gpus(3).limit(60), "n:0-2")]
    item = told(a_job("x").gpus(8).limit(9), [a_pool(8)], busy)
    assert texts(item) == {"insufficient_gpus": "needs 8 GPUs, 5 free in pool default"}
    assert (item.estimated_start, item.estimate_text) == (60.0, "reserved, in 1m")


def test_no_group_is_free_although_enough_gpus_are() -> None:
    nodes = [a_node(name).gpus(4).nvlink_groups_of(4) for name in "ab"]
    busy = [running(a_job("r1").limit(60), "a:0"), running(a_job("r2").limit(90), "b:0")]
    item = told(a_job("x").gpus(4).nvlink().limit(9), nodes, busy)
    assert texts(item) == {"no_free_nvlink_group": "needs 4 GPUs in one NVLink group, largest free 3 of 4"}
    assert item.estimated_start == 60.0


def test_everything_that_blocks_is_named_at_once() -> None:
    nodes = [a_node("a").gpus(4).nvlink_groups_of(4).with_state(GpuState.UNHEALTHY, 0).used_by_others(1)]
    rules = parse_policy({"projects": {"p": {"max_gpus": 4}}})
    busy = [running(a_job("r").of("p").limit(60), "a:2")]
    item = told(a_job("x").of("p").gpus(4).nvlink().limit(9).having(not_before=30.0), nodes, busy, rules)
    assert set(texts(item)) >= {"insufficient_gpus", "no_free_nvlink_group", "unhealthy_gpus", "backing_off"}
    assert "1 unhealthy" in texts(item)["unhealthy_gpus"]
    assert "1 used outside EMEP" in texts(item)["unhealthy_gpus"]
    assert item.estimated_start is None
    assert item.estimate_text.startswith("never: ")


@pytest.mark.parametrize(
    ("waits_for", "said"),
    [
        ("", "backs off after a failure of the infrastructure, for another 30s"),
        ("an earlier try to end", "waits for an earlier try to end, at most another 30s"),
    ],
)
def test_a_job_on_hold_says_what_for(waits_for: str, said: str) -> None:
    item = told(a_job("x").limit(9).having(not_before=30.0, waits_for=waits_for), [a_pool(8)])
    assert texts(item)["backing_off"] == said


def test_a_full_quota_says_who_holds_how_much_of_what() -> None:
    rules = parse_policy({"projects": {"p": {"max_gpus": 4}}})
    busy = [running(a_job("r").of("p").gpus(3).limit(60), "n:0-2")]
    item = told(a_job("x").of("p").gpus(2).limit(9), [a_pool(8)], busy, rules)
    assert texts(item)["quota_exceeded"] == "project p holds 3 of at most 4 GPUs, 2 more are too many"
    assert item.estimated_start == 60.0


def test_one_gpu_is_one_gpu() -> None:
    rules = parse_policy(
        {"projects": {"p": {"max_gpus": 1}}, "queues": {"merge": {"default_max_duration": "none"}}}
    )
    busy = [running(a_job("r").of("p"), "n:0")]
    item = told(a_job("x").of("p"), [a_pool(1)], busy, rules)
    assert texts(item)["quota_exceeded"] == "project p holds 1 of at most 1 GPU, 1 more is too many"
    assert texts(item)["insufficient_gpus"] == "needs 1 GPU, 0 free in pool default"
    never = "never: of the 1 GPU it could use, 1 is held by a job without max_duration"
    assert item.estimate_text.startswith(never)


def test_one_unhealthy_gpu_takes_no_work() -> None:
    item = told(a_job("x"), [a_node("n").gpus(1).with_state(GpuState.UNHEALTHY, 0)])
    assert texts(item)["unhealthy_gpus"] == "1 of the 1 GPU it could use takes no work: 1 unhealthy"


def test_one_core_is_one_core() -> None:
    nodes = [a_node("n").gpus(2).having(cpu=2)]
    busy = [Allocation(a_job("b").gpus(0).having(cpu=1.5).limit(60).build(), (), 0.0, nodes=("n",))]
    beside = told(a_job("x").having(cpu=1.0).limit(9), nodes, busy)
    alone = told(a_job("x").gpus(0).having(cpu=1.0).limit(9), nodes, busy)
    assert texts(beside)["insufficient_cpu"].startswith("needs 1 core beside each GPU, ")
    assert texts(alone)["insufficient_cpu"] == "needs 1 core on a node, at most 0.5 are left on one"


def test_a_cpu_job_that_only_backs_off_lacks_no_cores() -> None:
    waits = a_job("x").gpus(0).having(cpu=1.0, not_before=30.0).limit(9)
    assert list(texts(told(waits, [a_node("n").having(cpu=2)]))) == ["backing_off"]


def test_a_cpu_job_that_needs_both_on_one_node_is_told_so() -> None:
    nodes = [a_node("a").having(cpu=8, memory=8 * GIB), a_node("b").having(cpu=8, memory=8 * GIB)]
    busy = [
        Allocation(a_job("r").gpus(0).having(cpu=7.0).build(), (), 0.0, nodes=("a",)),
        Allocation(a_job("s").gpus(0).having(memory=7 * GIB).build(), (), 0.0, nodes=("b",)),
    ]
    one = a_job("x").gpus(0).having(cpu=4.0, memory=4 * GIB).limit(9)
    alone = texts(told(one, nodes, busy))["insufficient_cpu"]
    assert alone == "needs 1 node with 4 cores and 4Gi left, 0 fit"
    two = a_job("x").gpus(0).having(cpu=8.0, node_count=2).limit(9)
    both = texts(told(two, nodes, busy[:1]))["insufficient_cpu"]
    assert both == "needs 2 nodes with 4 cores and 1Gi left each, 1 fits"


def test_a_cpu_job_passed_over_for_one_before_it_is_told_so() -> None:
    nodes = [a_node("n").having(cpu=4)]
    busy = [Allocation(a_job("r").gpus(0).having(cpu=2.0).limit(60).build(), (), 0.0, nodes=("n",))]
    wide = a_job("wide").gpus(0).having(cpu=4.0).limit(9)
    late = a_job("x").gpus(0).having(cpu=1.0).limit(90).at(1)
    item = told(late, nodes, busy, others=[wide])
    assert texts(item) == {
        "behind_reservation": "the nodes that have enough left are kept for CPU jobs before it"
    }


def test_a_cpu_job_without_a_node_is_told_no_time() -> None:
    item = told(a_job("x").gpus(0).having(cpu=1.0).limit(9), [a_node("n").having(cpu=2, schedulable=False)])
    assert texts(item) == {"queue_closed": "no node of default takes work"}
    assert item.estimated_start is None
    assert item.estimate_text == "never: no node that it could use takes work (lost, drained or out)"


def test_behind_a_reservation_names_the_job_and_the_time() -> None:
    busy = [running(a_job("r").gpus(4).limit(60), "n:0-3")]
    item = told(
        a_job("x").gpus(4).limit(100).at(1), [a_pool(8)], busy, others=[a_job("big").gpus(8).limit(9)]
    )
    text = texts(item)["behind_reservation"]
    assert "job big" in text
    assert "4 of the 4 free" in text
    assert "1m" in text


def test_a_preemptor_is_told_whom_it_waits_for() -> None:
    busy = [running(a_job("low").priority("low").gpus(4), "n:0-3")]
    item = told(a_job("x").priority("high").gpus(4), [a_pool(4)], busy, now=9.0)
    assert "job low" in texts(item)["waiting_for_preemption"]
    assert item.estimated_start == 129.0


def test_a_level_says_how_much_its_best_domain_has() -> None:
    nodes = [a_node(name).gpus(2).rack(f"r{name}") for name in "ab"]
    busy = [running(a_job("r1").limit(60), "a:0"), running(a_job("r2").limit(60), "b:0")]
    item = told(a_job("x").gpus(2).within("rack").limit(9), nodes, busy)
    assert texts(item) == {"no_topology_domain": "needs 2 GPUs in one rack, the rack with most free has 1"}


def test_never_is_said_where_it_is_the_truth() -> None:
    rules = parse_policy({"queues": {"merge": {"default_max_duration": "none"}}})
    busy = [running(a_job("serve").gpus(3), "n:0-2")]
    item = told(a_job("x").gpus(4), [a_pool(4)], busy, rules)
    assert item.estimated_start is None
    assert item.estimate_text.startswith(
        "never: of the 4 GPUs it could use, 3 are held by jobs without max_duration"
    )


def test_further_back_in_line_is_later() -> None:
    busy = [running(a_job("r").gpus(4).limit(100), "n:0-3")]
    line = [a_job(f"j{number}").gpus(4).limit(50).at(number) for number in range(4)]
    decided = plan(a_snapshot([a_pool(4)], line, busy), DEFAULT, 0.0)
    assert [item.estimated_start for item in decided.waiting] == [100.0, 150.0, 200.0, 250.0]
    assert [item.position for item in decided.waiting] == [1, 2, 3, 4]
    assert decided.waiting[0].estimate_text.startswith("reserved")


def test_history_is_used_for_how_long_others_will_take() -> None:
    busy = [running(a_job("r").gpus(4).limit(100), "n:0-3")]
    line = [
        a_job("a").gpus(4).limit(5000).having(estimated_duration=30.0),
        a_job("b").gpus(4).limit(50).at(1),
    ]
    decided = plan(a_snapshot([a_pool(4)], line, busy), DEFAULT, 0.0)
    assert decided.waiting[1].estimated_start == 130.0


def test_a_job_behind_endless_ones_is_told_that_nobody_knows() -> None:
    busy = [running(a_job("r").gpus(4).limit(100), "n:0-3")]
    line = [a_job("serve").queue("inference").gpus(4), a_job("x").gpus(4).limit(50).at(1)]
    decided = plan(a_snapshot([a_pool(4)], line, busy), DEFAULT, 0.0)
    last = decided.waiting[-1]
    assert (last.estimated_start, last.estimate_text) == (
        None,
        "unknown: jobs before it, or that hold its quota, have no max_duration",
    )


def test_without_backfill_everybody_is_told_whom_they_may_not_pass() -> None:
    rules = parse_policy({"reservations": 0})
    busy = [running(a_job("r").gpus(4).limit(60), "n:0-3")]
    item = told(a_job("x").limit(9).at(1), [a_pool(8)], busy, rules, others=[a_job("big").gpus(8).limit(9)])
    assert "job big" in texts(item)["behind_reservation"]


@pytest.mark.parametrize(
    ("usage", "deficit", "score"),
    [(0.0, 1.0, 20.0), (100.0, 0.0, 10.0), (300.0, -0.5, 5.0), (10_000.0, -0.980198, 2.5)],
)
def test_the_score_is_the_class_times_one_and_the_deficit_within_bounds(
    usage: float, deficit: float, score: float
) -> None:
    records = [used("merge", "mine", "", usage), used("merge", "theirs", "", 100.0)]
    item = told(a_job("x").of("mine").gpus(4), [a_pool(4).used_by_others(0)], usage=records)
    assert item.score.class_value == 10.0
    assert item.score.deficit == pytest.approx(deficit, abs=1e-5)
    assert item.score.score == pytest.approx(score, abs=1e-3)


def test_the_order_key_is_told_in_full() -> None:
    item = told(
        a_job("x").of("org/team", "ann").priority("medium").gpus(4).at(7), [a_pool(4).used_by_others(0)]
    )
    assert [part.split(" deficit")[0] for part in item.score.order_key] == [
        "class normal = 10",
        "queue merge",
        "project org",
        "project org/team",
        "user ann",
        "submitted 7",
        "job id x",
    ]


def test_memory_beside_gpus_is_told_in_words() -> None:
    nodes = [a_node("n").gpus(2).having(memory=8 * GIB)]
    busy = [Allocation(a_job("b").gpus(0).having(memory=6 * GIB).limit(60).build(), (), 0.0, nodes=("n",))]
    item = told(a_job("x").having(memory=4 * GIB).limit(9), nodes, busy)
    assert texts(item) == {
        "insufficient_memory": "needs 4Gi beside each GPU, a node with free GPUs has at most 2Gi left"
    }
