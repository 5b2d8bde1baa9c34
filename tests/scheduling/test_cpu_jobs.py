"""Jobs without GPUs, and the cores and memory of those that have some."""

from __future__ import annotations

from tests.builders.scheduling import GIB, JobBuilder, a_job, a_node, a_snapshot, running

from emep.policy import parse_policy
from emep.scheduling.model import Allocation, Plan, RejectCode
from emep.scheduling.plan import plan

DEFAULT = parse_policy({})


def a_cpu_job(name: str, cores: float, memory: int = GIB) -> JobBuilder:
    return a_job(name).gpus(0).having(cpu=cores, memory=memory)


def on(name: str, job: JobBuilder, since: float = 0.0) -> Allocation:
    return Allocation(job.build(), (), since, nodes=(name,))


def codes(decided: Plan) -> dict[str, list[str]]:
    return {item.job_id: [reason.code.value for reason in item.reasons] for item in decided.waiting}


def test_nodes_without_free_gpus_come_first_then_the_fullest() -> None:
    nodes = [
        a_node("gpu").gpus(4).having(cpu=8.0),
        a_node("half").having(cpu=8.0),
        a_node("idle").having(cpu=8.0),
    ]
    busy = [on("half", a_cpu_job("b", 4))]
    decided = plan(a_snapshot(nodes, [a_cpu_job("x", 2)], busy), DEFAULT, 0.0)
    assert decided.starts[0].placement == type(decided.starts[0].placement)((), ("half",))
    decided = plan(a_snapshot(nodes, [a_cpu_job("x", 2).spread()], busy), DEFAULT, 0.0)
    assert decided.starts[0].placement.nodes == ("idle",)


def test_cores_and_memory_are_both_kept() -> None:
    nodes = [a_node("n").having(cpu=8.0, memory=4 * GIB)]
    jobs = [a_cpu_job("a", 4, 3 * GIB), a_cpu_job("wide", 6).at(1), a_cpu_job("deep", 1, 2 * GIB).at(2)]
    decided = plan(a_snapshot(nodes, jobs), DEFAULT, 5.0)
    assert [start.job_id for start in decided.starts] == ["a"]
    assert codes(decided) == {"wide": ["insufficient_cpu"], "deep": ["insufficient_memory"]}


def test_a_node_that_does_not_say_limits_nothing() -> None:
    jobs = [a_cpu_job(f"j{number}", 1000) for number in range(3)]
    assert len(plan(a_snapshot([a_node("n")], jobs), DEFAULT, 0.0).starts) == 3


def test_more_than_any_node_has_is_rejected() -> None:
    nodes = [a_node("n").having(cpu=8.0, memory=4 * GIB)]
    decided = plan(a_snapshot(nodes, [a_cpu_job("wide", 9), a_cpu_job("deep", 1, 5 * GIB)]), DEFAULT, 0.0)
    assert {item.job_id: item.code for item in decided.rejections} == {
        "wide": RejectCode.CPU,
        "deep": RejectCode.MEMORY,
    }
    assert "9 cores" in decided.rejections[0].message
    assert "8" in decided.rejections[0].message


def test_a_job_with_gpus_takes_cores_in_proportion_and_waits_for_them() -> None:
    nodes = [a_node("n").gpus(4).having(cpu=8.0)]
    busy = [on("n", a_cpu_job("b", 5).limit(60))]
    jobs = [
        a_job("two").gpus(2).having(cpu=4.0).limit(9),
        a_job("one").gpus(1).having(cpu=2.0).limit(9).at(1),
    ]
    decided = plan(a_snapshot(nodes, jobs, busy), DEFAULT, 0.0)
    assert [start.job_id for start in decided.starts] == ["one"]
    assert codes(decided)["two"][0] == "insufficient_cpu"


def test_gpus_are_split_over_nodes_by_the_cores_they_have() -> None:
    nodes = [a_node("a").gpus(4).having(cpu=4.0), a_node("b").gpus(4).having(cpu=8.0)]
    decided = plan(a_snapshot(nodes, [a_job("x").gpus(6).having(cpu=12.0)]), DEFAULT, 0.0)
    taken = [gpu.node for gpu in decided.starts[0].placement.gpus]
    assert (taken.count("a"), taken.count("b")) == (2, 4)


def test_cores_that_no_node_has_beside_its_gpus_are_rejected() -> None:
    decided = plan(
        a_snapshot([a_node("n").gpus(4).having(cpu=8.0)], [a_job("x").gpus(4).having(cpu=40.0)]), DEFAULT, 0.0
    )
    assert decided.rejections[0].code is RejectCode.CPU


def test_the_first_cpu_job_that_waits_is_not_overtaken_for_ever() -> None:
    nodes = [a_node("n").having(cpu=8.0)]
    busy = [on("n", a_cpu_job("b", 6).limit(60))]
    jobs = [
        a_cpu_job("big", 8).limit(9),
        a_cpu_job("long", 2).limit(100).at(1),
        a_cpu_job("short", 2).limit(50).at(2),
    ]
    decided = plan(a_snapshot(nodes, jobs, busy), DEFAULT, 5.0)
    assert [start.job_id for start in decided.starts] == ["short"]
    assert [(item.job_id, item.at, item.placement.nodes) for item in decided.reservations] == [
        ("big", 60.0, ("n",))
    ]


def test_a_cpu_job_that_waits_holds_up_no_gpu_job() -> None:
    rules = parse_policy({"reservations": 0})
    nodes = [a_node("n").gpus(2).having(cpu=8.0)]
    busy = [on("n", a_cpu_job("b", 7))]
    decided = plan(a_snapshot(nodes, [a_cpu_job("big", 8), a_job("x").at(1)], busy), rules, 5.0)
    assert [start.job_id for start in decided.starts] == ["x"]


def test_a_cpu_job_over_several_nodes_has_an_even_part_of_each() -> None:
    nodes = [a_node(name).having(cpu=4.0) for name in "abc"]
    decided = plan(a_snapshot(nodes, [a_cpu_job("x", 8).on_nodes(2)]), DEFAULT, 0.0)
    assert decided.starts[0].placement.nodes == ("a", "b")


def test_a_victim_gives_its_cores_back_too() -> None:
    nodes = [a_node("n").gpus(2).having(cpu=4.0)]
    busy = [running(a_job("low").priority("low").having(cpu=3.0), "n:0")]
    decided = plan(a_snapshot(nodes, [a_job("x").priority("high").having(cpu=4.0)], busy), DEFAULT, 9.0)
    assert [order.job_id for order in decided.preemptions] == ["low"]


def test_cores_do_not_hide_the_second_group_of_a_node() -> None:
    nodes = [a_node("n").gpus(8).nvlink_groups_of(4).having(cpu=96.0)]
    busy = [running(a_job("b"), "n:0")]
    decided = plan(a_snapshot(nodes, [a_job("x").gpus(4).nvlink()], busy), DEFAULT, 0.0)
    assert [gpu.index for gpu in decided.starts[0].placement.gpus] == [4, 5, 6, 7]


def test_few_cores_left_are_given_to_the_group_that_can_use_them() -> None:
    nodes = [a_node("n").gpus(8).nvlink_groups_of(4).having(cpu=8.0)]
    busy = [running(a_job("b").having(cpu=4.0), "n:0")]
    for job in (a_job("x").gpus(4).nvlink().having(cpu=4.0), a_job("x").gpus(4).having(cpu=4.0)):
        decided = plan(a_snapshot(nodes, [job], busy), DEFAULT, 0.0)
        assert [gpu.index for gpu in decided.starts[0].placement.gpus] == [4, 5, 6, 7]


def test_two_groups_of_a_node_do_not_use_its_cores_twice() -> None:
    nodes = [a_node(name).gpus(8).nvlink_groups_of(4).having(cpu=6.0) for name in "ab"]
    decided = plan(a_snapshot(nodes, [a_job("x").gpus(12).having(cpu=12.0)]), DEFAULT, 0.0)
    taken = [gpu.node for gpu in decided.starts[0].placement.gpus]
    assert (taken.count("a"), taken.count("b")) == (6, 6)


def test_a_cpu_job_goes_to_a_node_that_it_failed_on_only_where_no_other_has_room() -> None:
    nodes = [a_node(name).having(cpu=4.0) for name in "ab"]
    for cores, expected in ((4, ("b",)), (3, ("b",))):
        job = a_cpu_job("x", cores).having(avoid_nodes=("a",))
        assert plan(a_snapshot(nodes, [job]), DEFAULT, 0.0).starts[0].placement.nodes == expected
    job = a_cpu_job("x", 4).having(avoid_nodes=("b",))
    busy = [on("a", a_cpu_job("busy", 1))]
    assert plan(a_snapshot(nodes, [job], busy), DEFAULT, 0.0).starts[0].placement.nodes == ("b",)
