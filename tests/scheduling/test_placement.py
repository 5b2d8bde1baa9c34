"""Where jobs go: groups, levels, nodes, labels, kinds of GPU, pack and spread."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from tests.builders.scheduling import (
    GIB,
    JobBuilder,
    NodeBuilder,
    a_job,
    a_node,
    a_pool,
    a_snapshot,
    gpu_ids,
    running,
)

from emep.policy import parse_policy
from emep.scheduling.cluster.index import ClusterIndex
from emep.scheduling.model import GpuState, Plan
from emep.scheduling.plan import plan

DEFAULT = parse_policy({})


def placed(job: JobBuilder, nodes: list[NodeBuilder], busy: str = "") -> list[str]:
    """GPUs that the job gets, as text; ``busy`` ones are taken."""
    held = [running(a_job(f"b{number}"), gpu) for number, gpu in enumerate(busy.split())]
    decided = plan(a_snapshot(nodes, [job], held), DEFAULT, 0.0)
    return [str(gpu) for start in decided.starts for gpu in start.placement.gpus]


def test_four_two_one_and_one_fill_one_node() -> None:
    nodes = [a_pool(8, name) for name in "xyz"]
    jobs = [a_job(f"j{place}").gpus(size) for place, size in enumerate((4, 2, 1, 1))]
    decided = plan(a_snapshot(nodes, jobs), DEFAULT, 0.0)
    assert {gpu.node for start in decided.starts for gpu in start.placement.gpus} == {"x"}


def test_spread_takes_the_emptiest_node() -> None:
    nodes = [a_pool(8, name) for name in "xyz"]
    jobs = [a_job(f"j{place}").gpus(size).spread() for place, size in enumerate((4, 2, 1))]
    decided = plan(a_snapshot(nodes, jobs), DEFAULT, 0.0)
    assert [start.placement.nodes for start in decided.starts] == [("x",), ("y",), ("z",)]


def test_best_fit_keeps_whole_groups_free() -> None:
    nodes = [a_node(name).gpus(8).nvlink_groups_of(4) for name in "xy"]
    assert placed(a_job("j").gpus(2), nodes, "y:4 y:5") == ["y:6", "y:7"]


def test_an_nvlink_job_takes_one_group_or_waits() -> None:
    nodes = [a_node(name).gpus(8).nvlink_groups_of(4) for name in "xy"]
    assert placed(a_job("j").gpus(4).nvlink(), nodes, "x:0 y:5") == ["x:4", "x:5", "x:6", "x:7"]
    assert placed(a_job("j").gpus(4).nvlink(), nodes, "x:0 x:4 y:1 y:5") == []


def test_a_group_may_span_nodes() -> None:
    nodes = [a_node(f"n{number}").gpus(4).in_nvlink_group("rack-scale") for number in range(3)]
    assert placed(a_job("j").gpus(10).nvlink(), nodes) == [
        f"n{number // 4}:{number % 4}" for number in range(10)
    ]


def test_a_group_that_spans_nodes_is_taken_on_as_few_as_will_do() -> None:
    nodes = [a_node(f"n{number}").gpus(4).in_nvlink_group("g") for number in range(3)]
    assert placed(a_job("j").gpus(4).nvlink(), nodes, "n0:0 n1:0") == ["n2:0", "n2:1", "n2:2", "n2:3"]


def test_a_required_level_holds_all_or_the_job_waits() -> None:
    nodes = [a_node(name).gpus(2).rack(rack) for name, rack in (("a", "r1"), ("b", "r1"), ("c", "r2"))]
    assert placed(a_job("j").gpus(3).within("rack"), nodes) == ["a:0", "a:1", "b:0"]
    assert placed(a_job("j").gpus(3).within("rack"), nodes, "a:0 b:0") == []
    assert placed(a_job("j").gpus(3), nodes, "a:0 b:0") == ["a:1", "c:0", "c:1"]


def test_racks_of_one_name_in_two_blocks_are_two() -> None:
    nodes = [a_node("a").gpus(2).rack("r").block("b1"), a_node("b").gpus(2).rack("r").block("b2")]
    decided = plan(a_snapshot(nodes, [a_job("j").gpus(4).within("rack")]), DEFAULT, 0.0)
    assert "the largest rack fits 2 of 4" in decided.rejections[0].message


def test_a_preferred_level_comes_before_one_group() -> None:
    """The rack is tried first; a group over two racks would be one group, but not one rack."""
    nodes = [
        a_node("a").gpus(2).in_nvlink_group("g").rack("r1"),
        a_node("b").gpus(2).in_nvlink_group("g").rack("r2"),
        a_node("c").gpus(3).rack("r3"),
    ]
    assert placed(a_job("j").gpus(3), nodes) == ["c:0", "c:1", "c:2"]
    assert placed(a_job("j").gpus(3).preferring(None), nodes) == ["a:0", "a:1", "b:0"]


def test_a_number_of_nodes_is_kept_and_split_evenly() -> None:
    nodes = [a_pool(8, name) for name in "xyz"]
    assert placed(a_job("j").gpus(4).on_nodes(2), nodes, "x:0") == ["x:1", "x:2", "y:0", "y:1"]
    busy = " ".join(f"{node}:{index}" for node in "yz" for index in range(7))
    assert placed(a_job("j").gpus(4).on_nodes(2), nodes, busy) == []


def test_a_number_of_nodes_in_one_group_that_spans_them() -> None:
    nodes = [a_node(f"n{number}").gpus(4).in_nvlink_group("g") for number in range(3)]
    assert placed(a_job("j").gpus(6).on_nodes(3).nvlink(), nodes) == [
        "n0:0",
        "n0:1",
        "n1:0",
        "n1:1",
        "n2:0",
        "n2:1",
    ]


def test_type_and_memory_are_kept_and_the_least_memory_that_fits_is_taken() -> None:
    nodes = [
        a_node("big").gpus(2, "H100", 80 * GIB),
        a_node("other").gpus(2, "A100", 40 * GIB),
        a_node("small").gpus(2, "H100", 40 * GIB),
    ]
    assert placed(a_job("j").having(gpu_type="H100"), nodes) == ["small:0"]
    assert placed(a_job("j").having(gpu_memory_min=60 * GIB), nodes) == ["big:0"]
    assert placed(a_job("j").having(gpu_type="A100"), nodes) == ["other:0"]


def test_kinds_on_one_node_are_told_apart() -> None:
    node = a_node("n").gpus(4, "H100", 80 * GIB).build()
    slices = [replace(gpu, gpu_type="MIG-1g", memory=10 * GIB) if gpu.index > 1 else gpu for gpu in node.gpus]
    decided = plan(
        a_snapshot([replace(node, gpus=tuple(slices))], [a_job("j").gpus(2).having(gpu_type="MIG-1g")]),
        DEFAULT,
        0.0,
    )
    assert decided.starts[0].placement.gpus == gpu_ids("n:2-3")


def test_bandwidth_comes_before_memory_and_fit() -> None:
    nodes = [
        a_node("a").gpus(2).having(network_bandwidth_gbps=100.0),
        a_node("b").gpus(8).having(network_bandwidth_gbps=400.0),
    ]
    assert placed(a_job("j"), nodes) == ["b:0"]


def test_labels_near_and_far() -> None:
    nodes = [
        a_node("a").gpus(1).label("zone", "1"),
        a_node("b").gpus(1).label("zone", "2"),
        a_node("c").gpus(1),
    ]
    assert placed(a_job("j").near("zone", "2"), nodes) == ["b:0"]
    assert placed(a_job("j").far_from("zone", "1").far_from("zone", "2"), nodes) == ["c:0"]


@pytest.mark.parametrize("state", [GpuState.UNHEALTHY, GpuState.DRAINING, GpuState.DRAINED])
def test_gpus_that_are_not_healthy_get_no_work(state: GpuState) -> None:
    assert placed(a_job("j"), [a_node("a").gpus(2).with_state(state, 0)]) == ["a:1"]


def test_gpus_that_others_use_and_lost_nodes_get_no_work() -> None:
    nodes = [a_node("a").gpus(2).used_by_others(0), a_node("gone").gpus(8).having(schedulable=False)]
    assert placed(a_job("j"), nodes) == ["a:1"]
    assert placed(a_job("j").gpus(2), nodes) == []


def test_one_pool_holds_all_of_a_job() -> None:
    rules = parse_policy({"queues": {"merge": {"pools": ["a", "b"]}}})
    nodes = [a_pool(4, "x").pool("a"), a_pool(4, "y").pool("b")]
    jobs = [a_job("big").gpus(6), a_job("first").gpus(3).at(1), a_job("then").gpus(3).at(2)]
    decided = plan(a_snapshot(nodes, jobs), rules, 5.0)
    assert [rejection.job_id for rejection in decided.rejections] == ["big"]
    assert [start.placement.nodes for start in decided.starts] == [("x",), ("y",)]


def test_a_queue_of_all_pools_uses_them_all() -> None:
    rules = parse_policy({"queues": {"merge": {"pools": "all"}}})
    assert plan(a_snapshot([a_pool(4, "x").pool("odd")], [a_job("j")]), rules, 0.0).starts


def test_neighbours_get_neighbouring_ranks() -> None:
    nodes = [a_node("a").gpus(1).rack("r2"), a_node("b").gpus(1).rack("r1"), a_node("c").gpus(1).rack("r2")]
    assert placed(a_job("j").gpus(3), nodes) == ["b:0", "a:0", "c:0"]


def test_the_order_of_nodes_and_jobs_in_the_snapshot_does_not_matter() -> None:
    random = Random(4)
    nodes = [a_node(f"n{number}").gpus(4).nvlink_groups_of(2).rack(f"r{number % 2}") for number in range(4)]
    jobs = [a_job(f"j{number}").gpus(random.choice([1, 2, 3])).limit(9).at(number % 3) for number in range(9)]

    def decisions(decided: Plan) -> object:
        return decided.starts, decided.reservations, [item.job_id for item in decided.waiting]

    expected = decisions(plan(a_snapshot(nodes, jobs), DEFAULT, 5.0))
    for _ in range(4):
        random.shuffle(nodes)
        random.shuffle(jobs)
        assert decisions(plan(a_snapshot(nodes, jobs), DEFAULT, 5.0)) == expected


def test_studies_may_rank_cells_instead() -> None:
    snapshot = a_snapshot([a_pool(4, name) for name in "xyz"], [a_job(f"j{number}") for number in range(3)])
    index = ClusterIndex(snapshot.nodes)
    last_first = index.preferring(np.arange(index.cell_count)[::-1])
    decided = plan(snapshot, DEFAULT, 0.0, last_first)
    assert [start.placement.nodes for start in decided.starts] == [("z",)] * 3
    assert plan(snapshot, DEFAULT, 0.0, index).starts[0].placement.nodes == ("x",)


def test_names_are_unique() -> None:
    node = a_node("n").gpus(2).build()
    with pytest.raises(ValueError, match="two nodes have one name"):
        plan(a_snapshot([node, node]), DEFAULT, 0.0)
    twice = replace(node, gpus=(node.gpus[0], node.gpus[0]))
    with pytest.raises(ValueError, match="two GPUs of one node have one index"):
        plan(a_snapshot([twice]), DEFAULT, 0.0)


def test_an_empty_cluster_rejects_nothing_and_says_what_is_missing() -> None:
    decided = plan(a_snapshot([], [a_job("j"), a_job("c").gpus(0)]), DEFAULT, 0.0)
    assert not decided.rejections
    assert {item.reasons[0].code.value for item in decided.waiting} == {"queue_closed"}


@pytest.mark.parametrize(
    ("job", "busy", "expected"),
    [
        (a_job("j").gpus(1), "", "y"),
        (a_job("j").gpus(4), "", "y"),
        (a_job("j").gpus(4).spread(), "", "y"),
        (a_job("j").gpus(4), "y:0", "x"),
        (a_job("j").gpus(6), "", "xy"),
    ],
    ids=[
        "one GPU elsewhere",
        "a whole node elsewhere",
        "spread elsewhere",
        "the same node where the other is not free",
        "both where one is not enough",
    ],
)
def test_nodes_that_a_job_failed_on_are_taken_only_where_it_fits_on_no_others(
    job: JobBuilder, busy: str, expected: str
) -> None:
    nodes = [a_pool(4, name) for name in "xy"]
    found = placed(job.having(avoid_nodes=("x", "gone")), nodes, busy)
    assert {gpu.split(":")[0] for gpu in found} == set(expected)
