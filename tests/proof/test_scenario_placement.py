"""Placement: racks, blocks, groups and best fit, with known right answers."""

from __future__ import annotations

from typing import Any

import pytest
from tests.builders.replay import Replay, work
from tests.builders.scheduling import (
    GIB,
    JobBuilder,
    NodeBuilder,
    a_job,
    a_node,
    a_pool,
    a_snapshot,
    running,
)

from emep.policy import parse_policy
from emep.scheduling.model import Allocation, GpuId, GpuState, Plan, RejectCode
from emep.scheduling.plan import plan

DEFAULT = parse_policy({})


def free(
    name: str, count: int, *, rack: str = "r", block: str = "b", size: int = 3
) -> tuple[NodeBuilder, list[Allocation]]:
    """A node with ``count`` free GPUs, the rest held by an earlier job that nobody may evict."""
    node = a_pool(size, name).rack(rack).block(block)
    if count == size:
        return node, []
    job = a_job(f"old-{name}").gpus(size - count).limit(1e9).queue("eval")
    return node, [running(job, f"{name}:{count}-{size - 1}")]


def cluster(*parts: tuple[NodeBuilder, list[Allocation]]) -> tuple[list[NodeBuilder], list[Allocation]]:
    return [node for node, _ in parts], [held for _, busy in parts for held in busy]


def place(
    parts: tuple[list[NodeBuilder], list[Allocation]], job: JobBuilder, now: float = 1.0
) -> dict[str, int]:
    """GPUs by node of the job's placement; empty where it does not start."""
    decided = plan(a_snapshot(parts[0], [job], parts[1]), DEFAULT, 1.0)
    counts: dict[str, int] = {}
    for start in decided.starts:
        for gpu in start.placement.gpus:
            counts[gpu.node] = counts.get(gpu.node, 0) + 1
    return counts


THREE_RACKS = cluster(
    free("x3", 2, rack="r1"),
    free("x5", 2, rack="r2"),
    *[free(name, 1, rack="r3") for name in ("x1", "x6", "x2", "x4")],
)


def test_fewer_racks_beat_fewer_nodes_where_no_group_holds_all() -> None:
    job = a_job("x").gpus(4).limit(10).within("block").preferring(None)
    assert place(THREE_RACKS, job) == {"x1": 1, "x2": 1, "x4": 1, "x6": 1}


def test_one_group_beats_everything_where_it_holds_all() -> None:
    job = a_job("x").gpus(2).limit(10).within("block").preferring(None)
    assert place(THREE_RACKS, job) in ({"x3": 2}, {"x5": 2})


def test_five_members_take_one_rack_more_and_as_few_nodes_as_that_allows() -> None:
    # Two racks are needed whatever is done: r3 with one more, or r1 and r2 hold four only.
    job = a_job("x").gpus(5).limit(10).within("block").preferring(None)
    found = place(THREE_RACKS, job)
    assert sum(found.values()) == 5
    assert found.get("x3", 0) == 2 or found.get("x5", 0) == 2
    assert len(found) == 4


@pytest.mark.parametrize("preferred", ["rack", None, "node", "block"])
def test_fewer_nodes_in_one_rack(preferred: str | None) -> None:
    parts = cluster(free("x3", 2), free("x5", 1), free("x1", 1))
    assert place(parts, a_job("x").gpus(2).limit(10).preferring(preferred)) == {"x3": 2}


@pytest.mark.parametrize("names", [("r1", "r2", "r1", "r2"), ("r1", "r2", "r3", "r4")])
def test_racks_are_known_by_their_block_too(names: tuple[str, str, str, str]) -> None:
    """Racks of equal name in different blocks are different racks."""
    nodes = [
        a_pool(1, "a").rack(names[0]).block("b1"),
        a_pool(3, "b").rack(names[1]).block("b1"),
        a_pool(1, "c").rack(names[2]).block("b2"),
        a_pool(2, "d").rack(names[3]).block("b2"),
    ]
    four = a_job("x").gpus(4).limit(10).within("rack")
    decided = plan(a_snapshot(nodes, [four]), DEFAULT, 1.0)
    (rejection,) = decided.rejections
    assert rejection.code is RejectCode.TOPOLOGY_TOO_SMALL
    assert "3 of 4" in rejection.message
    assert "rack" in rejection.message
    six = a_job("x").gpus(6).limit(10).preferring("rack")
    assert place((nodes, []), six) == {"a": 1, "b": 3, "d": 2}


def test_a_required_rack_that_is_only_busy_waits_instead_of_being_rejected() -> None:
    parts = cluster(free("a", 2, rack="r1", size=4), free("b", 3, rack="r2", size=4))
    decided = plan(a_snapshot(parts[0], [a_job("x").gpus(4).limit(5).within("rack")], parts[1]), DEFAULT, 1.0)
    assert not decided.rejections
    assert not decided.starts
    assert [item.job_id for item in decided.waiting] == ["x"]


def test_a_preferred_rack_comes_before_a_tighter_fit_elsewhere() -> None:
    # Four fit in rack r1 on two nodes; two nodes of different racks would be the tighter fit.
    parts = cluster(
        free("a", 3, rack="r1", size=8), free("b", 3, rack="r1", size=8), free("c", 2, rack="r2", size=8),
        free("d", 2, rack="r3", size=8),
    )  # fmt: skip
    found = place(parts, a_job("x").gpus(4).limit(10))
    assert set(found) == {"a", "b"}


# ---- pack and spread ----


def test_four_two_one_and_one_fill_one_node_of_eight_under_pack() -> None:
    nodes = [a_pool(8, f"n{node}") for node in range(3)]
    works = [work(f"j{place}", place, size, 100) for place, size in enumerate((4, 2, 1, 1))]
    history = Replay(nodes, DEFAULT, works).run()
    assert {gpu.node for run in history.runs for gpu in run.gpus} == {"n0"}
    jobs = [a_job(f"j{place}").gpus(size).limit(9).at(place) for place, size in enumerate((4, 2, 1, 1))]
    at_once = plan(a_snapshot(nodes, jobs), DEFAULT, 5.0)
    assert {gpu.node for start in at_once.starts for gpu in start.placement.gpus} == {"n0"}


def test_four_two_and_one_leave_seventeen_of_twenty_four_idle_under_spread() -> None:
    nodes = [a_pool(8, f"n{node}") for node in range(3)]
    jobs = [a_job(f"j{place}").gpus(size).limit(9).at(place).spread() for place, size in enumerate((4, 2, 1))]
    decided = plan(a_snapshot(nodes, jobs), DEFAULT, 5.0)
    used = {start.job_id: {gpu.node for gpu in start.placement.gpus} for start in decided.starts}
    assert used == {"j0": {"n0"}, "j1": {"n1"}, "j2": {"n2"}}
    assert sum(len(start.placement.gpus) for start in decided.starts) == 24 - 17


def test_spread_as_a_queues_default_does_the_same() -> None:
    policy = parse_policy({"queues": {"merge": {"placement": "spread"}}})
    nodes = [a_pool(8, f"n{node}") for node in range(2)]
    jobs = [
        a_job("a").limit(9).at(0),
        a_job("b").limit(9).at(1),
        a_job("c").limit(9).at(2).having(placement="pack"),
    ]
    decided = plan(a_snapshot(nodes, jobs), policy, 5.0)
    assert [start.placement.nodes for start in decided.starts] == [("n0",), ("n1",), ("n0",)]


def test_best_fit_goes_to_the_node_that_is_used_already() -> None:
    parts = cluster(free("first", 10, rack="r1", size=10), free("second", 9, rack="r2", size=10))
    assert place(parts, a_job("x").limit(10)) == {"second": 1}


def test_best_fit_looks_at_the_group_before_the_node() -> None:
    # n0: groups of 4 with 2 and 4 free (6 in all); n1: with 1 and 3 free (4 in all).
    nodes = [a_node("n0").gpus(8).nvlink_groups_of(4), a_node("n1").gpus(8).nvlink_groups_of(4)]
    busy = [
        running(a_job("o0").gpus(2).limit(1e9).queue("eval"), "n0:0-1"),
        running(a_job("o1").gpus(5).limit(1e9).queue("eval"), "n1:0-2 n1:4-5"),
    ]
    decided = plan(a_snapshot(nodes, [a_job("x").limit(9)], busy), DEFAULT, 1.0)
    assert decided.starts[0].placement.gpus == (GpuId("n1", 3),)
    two = plan(a_snapshot(nodes, [a_job("x").gpus(2).limit(9)], busy), DEFAULT, 1.0)
    # Two groups would be left with none free: n1's second (its node left with 1) and n0's first (with 4).
    assert set(two.starts[0].placement.gpus) == {GpuId("n1", 6), GpuId("n1", 7)}


def test_single_gpus_never_break_a_whole_group_while_a_broken_one_has_room() -> None:
    nodes = [a_node("n0").gpus(8).nvlink_groups_of(4), a_node("n1").gpus(8).nvlink_groups_of(4)]
    jobs = [a_job(f"j{number}").limit(9).at(number) for number in range(9)]
    decided = plan(a_snapshot(nodes, jobs), DEFAULT, 50.0)
    groups = [(start.placement.gpus[0].node, start.placement.gpus[0].index // 4) for start in decided.starts]
    assert groups == [("n0", 0)] * 4 + [("n0", 1)] * 4 + [("n1", 0)]


# ---- what a GPU must be ----


def test_the_least_memory_that_fits_is_taken_and_the_scarce_gpu_left() -> None:
    nodes = [
        a_node("big").gpus(4, "H200", 141 * GIB).nvlink_groups_of(4),
        a_node("mid").gpus(4, "H100", 80 * GIB).nvlink_groups_of(4),
        a_node("old").gpus(4, "V100", 16 * GIB).nvlink_groups_of(4),
    ]
    wanted = {0: "old", 16 * GIB: "old", 17 * GIB: "mid", 80 * GIB: "mid", 81 * GIB: "big"}
    for memory, node in wanted.items():
        job = a_job("x").gpus(2).limit(10).having(gpu_memory_min=memory)
        assert place((nodes, []), job) == {node: 2}


def test_more_bandwidth_comes_before_less_memory() -> None:
    nodes = [
        a_node("fast").gpus(2, "A", 80 * GIB).nvlink_groups_of(2).having(network_bandwidth_gbps=400),
        a_node("slow").gpus(2, "B", 40 * GIB).nvlink_groups_of(2).having(network_bandwidth_gbps=100),
    ]
    assert place((nodes, []), a_job("x").gpus(2).limit(10)) == {"fast": 2}


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"gpu_count": 9}, RejectCode.TOO_MANY_GPUS, ("9", "8")),
        ({"gpu_count": 5, "nvlink_required": True}, RejectCode.NVLINK_GROUP_TOO_SMALL, ("5", "4")),
        ({"gpu_count": 5, "topology_required": "node"}, RejectCode.TOPOLOGY_TOO_SMALL, ("4 of 5", "node")),
        ({"gpu_memory_min": 81 * GIB}, RejectCode.GPU_MEMORY, ("81Gi", "80Gi")),
        ({"gpu_type": "B200"}, RejectCode.GPU_TYPE, ("B200", "H100")),
        ({"gpu_count": 3, "node_count": 2}, RejectCode.NOT_DIVISIBLE, ("3", "2")),
        ({"priority": "urgent"}, RejectCode.UNKNOWN_CLASS, ("urgent",)),
        ({"priority": "realtime"}, RejectCode.UNKNOWN_CLASS, ("realtime",)),
        ({"queue": "mrge"}, RejectCode.UNKNOWN_QUEUE, ("mrge", "merge")),
        ({"gpu_count": 8, "node_count": 1}, None, ("8", "4")),
    ],
)
def test_what_can_never_run_is_rejected_with_the_limit_it_hit(
    fields: dict[str, Any], code: RejectCode | None, words: tuple[str, ...]
) -> None:
    nodes = [a_node(name).gpus(4, "H100", 80 * GIB).nvlink_groups_of(4) for name in ("a", "b")]
    decided = plan(a_snapshot(nodes, [a_job("x").limit(9).having(**fields)]), DEFAULT, 1.0)
    (rejection,) = decided.rejections
    assert not decided.waiting
    assert code is None or rejection.code is code
    assert all(word in rejection.message for word in words), rejection.message


def test_an_unhealthy_drained_or_foreign_gpu_makes_a_job_wait_and_not_be_rejected() -> None:
    whole = a_job("x").gpus(4).limit(9)
    for node in (
        a_pool(4).with_state(GpuState.UNHEALTHY, 1),
        a_pool(4).with_state(GpuState.DRAINING, 2),
        a_pool(4).with_state(GpuState.DRAINED, 3),
        a_pool(4).used_by_others(0),
        a_pool(4).having(schedulable=False),
    ):
        decided: Plan = plan(a_snapshot([node], [whole]), DEFAULT, 1.0)
        assert not decided.starts
        assert not decided.rejections
        assert decided.waiting[0].reasons


def test_no_gpu_that_is_not_healthy_is_ever_given() -> None:
    node = a_pool(6).with_state(GpuState.UNHEALTHY, 0).with_state(GpuState.DRAINING, 1).used_by_others(2)
    decided = plan(a_snapshot([node], [a_job("x").gpus(3).limit(9)]), DEFAULT, 1.0)
    assert {gpu.index for gpu in decided.starts[0].placement.gpus} == {3, 4, 5}


# ---- nodes asked for ----


@pytest.mark.parametrize(
    ("gpus", "nodes", "expected"), [(4, 2, [2, 2]), (4, 4, [1, 1, 1, 1]), (6, 3, [2, 2, 2])]
)
def test_a_node_count_is_met_exactly_and_evenly(gpus: int, nodes: int, expected: list[int]) -> None:
    cluster_nodes = [a_pool(8, f"n{node}") for node in range(5)]
    found = place((cluster_nodes, []), a_job("x").gpus(gpus).on_nodes(nodes).limit(9))
    assert sorted(found.values()) == expected


def test_labels_are_met_and_avoided() -> None:
    nodes = [a_pool(2, name).label("zone", zone) for name, zone in (("a", "x"), ("b", "y"), ("c", "y"))]
    nodes[2] = nodes[2].label("noisy", "yes")
    near = a_job("x").gpus(2).limit(9).near("zone", "y")
    assert place((nodes, []), near.far_from("noisy", "yes")) == {"b": 2}
    assert place((nodes, []), a_job("x").gpus(2).limit(9).far_from("zone", "x").far_from("noisy", "yes")) == {
        "b": 2
    }
    decided = plan(a_snapshot(nodes, [near.near("zone", "z")]), DEFAULT, 1.0)
    assert decided.rejections[0].code is RejectCode.LABELS


def test_a_group_may_span_nodes_and_then_holds_a_job_of_several() -> None:
    rack = [a_node(f"t{tray}").gpus(4).in_nvlink_group("rack72").rack("r1") for tray in range(3)]
    lone = [a_pool(8, "big").rack("r2")]
    found = place((rack + lone, []), a_job("x").gpus(12).nvlink().limit(9))
    assert found == {"t0": 4, "t1": 4, "t2": 4}
    assert place((rack + lone, []), a_job("x").gpus(8).nvlink().limit(9)) == {"big": 8}


def test_a_cpu_job_goes_where_cpus_and_memory_are_and_takes_no_gpu() -> None:
    nodes = [a_pool(4, "gpu").having(cpu=4, memory=8 * GIB), a_node("cpu").having(cpu=64, memory=256 * GIB)]
    small = a_job("x").gpus(0).limit(9).having(cpu=16, memory=32 * GIB)
    decided = plan(a_snapshot(nodes, [small]), DEFAULT, 1.0)
    assert (decided.starts[0].placement.gpus, decided.starts[0].placement.nodes) == ((), ("cpu",))
    huge = plan(a_snapshot(nodes, [a_job("x").gpus(0).limit(9).having(cpu=65)]), DEFAULT, 1.0)
    assert huge.rejections[0].code is RejectCode.CPU
    fat = plan(a_snapshot(nodes, [a_job("x").gpus(0).limit(9).having(memory=257 * GIB)]), DEFAULT, 1.0)
    assert fat.rejections[0].code is RejectCode.MEMORY


def test_mixed_sizes_at_full_demand_all_fit_under_best_fit_and_few_big_ones_under_worst() -> None:
    """One-, two-, four- and eight-GPU jobs at 50, 15, 15 and 20 % of the demand, small ones first."""
    nodes = [a_node(f"n{node:02}").gpus(8).nvlink_groups_of(8) for node in range(40)]
    placed = {}
    for how in ("pack", "spread"):
        jobs, number = [], 0
        for size, share in ((1, 0.5), (2, 0.15), (4, 0.15), (8, 0.2)):
            for _ in range(int(320 * share / size)):
                job = a_job(f"j{number:04}").gpus(size).limit(9).at(number).within("node")
                jobs.append(job.having(placement=how))
                number += 1
        decided = plan(a_snapshot(nodes, jobs), DEFAULT, 1e6)
        placed[how] = sum(1 for start in decided.starts if len(start.placement.gpus) == 8)
    assert placed["pack"] == 8
    assert placed["spread"] < 8 / 3
