"""Who makes room, and for whom it is kept."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from tests.builders.replay import Replay, work
from tests.builders.scheduling import a_job, a_node, a_pool, a_snapshot, gpu_ids, running

from emep.policy import Policy, parse_policy
from emep.scheduling.model import Allocation, GpuId, Hold, Plan
from emep.scheduling.plan import plan

DEFAULT = parse_policy({})


def victims(decided: Plan) -> list[str]:
    return sorted(order.job_id for order in decided.preemptions)


@pytest.mark.parametrize(
    ("low", "normal", "high", "need", "expected"),
    [(2, 2, 2, 2, ["low"]), (2, 2, 2, 3, ["low", "normal"]), (1, 2, 3, 2, ["normal"])],
)
def test_a_queue_of_six(low: int, normal: int, high: int, need: int, expected: list[str]) -> None:
    busy, place = [], 0
    for name, count in (("low", low), ("normal", normal), ("high", high)):
        busy.append(running(a_job(name).priority(name).gpus(count), f"n:{place}-{place + count - 1}"))
        place += count
    job = a_job("x").priority("critical").gpus(need)
    assert victims(plan(a_snapshot([a_pool(6)], [job], busy), DEFAULT, 9.0)) == expected


def test_the_gpus_are_held_from_the_decision_on() -> None:
    busy = [running(a_job("low").priority("low").gpus(2).limit(500), "n:0-1")]
    jobs = [a_job("x").priority("critical").gpus(4).limit(100), a_job("small").at(1).limit(1)]
    nodes = [a_pool(4)]
    first = plan(a_snapshot(nodes, jobs, busy), DEFAULT, 9.0)
    assert not first.starts
    assert first.holds == (Hold("x", gpu_ids("n:0-3")),)
    told = replace(busy[0], yielding=True, held_for="x", releases_at=129.0)
    then = plan(replace(a_snapshot(nodes, jobs, [told]), holds=first.holds), DEFAULT, 10.0)
    assert (then.starts, then.preemptions, then.holds) == ((), (), first.holds)
    gone = plan(replace(a_snapshot(nodes, jobs), holds=first.holds), DEFAULT, 60.0)
    assert [start.job_id for start in gone.starts] == ["x"]
    assert not gone.holds


def test_a_hold_of_a_job_that_is_gone_holds_nothing() -> None:
    snapshot = replace(a_snapshot([a_pool(4)], [a_job("y").gpus(4)]), holds=(Hold("x", gpu_ids("n:0-3")),))
    assert [start.job_id for start in plan(snapshot, DEFAULT, 0.0).starts] == ["y"]


def test_without_holds_handed_back_a_yielding_victim_says_whom_its_gpus_are_for() -> None:
    told = running(
        a_job("low").priority("low").gpus(4), "n:0-3", yielding=True, held_for="x", releases_at=20.0
    )
    jobs = [a_job("x").priority("critical").gpus(4), a_job("y").priority("critical").gpus(4).at(-9)]
    decided = plan(a_snapshot([a_pool(4)], jobs, [told]), DEFAULT, 9.0)
    assert [hold.job_id for hold in decided.holds] == ["x"]
    assert not decided.preemptions


def test_a_promise_that_makes_no_placement_any_more_is_withdrawn() -> None:
    nodes = [a_pool(4, "sick").used_by_others(0), a_pool(4, "well")]
    jobs = [a_job("x").priority("critical").gpus(4).nvlink()]
    snapshot = replace(a_snapshot(nodes, jobs), holds=(Hold("x", gpu_ids("sick:0-3")),))
    decided = plan(snapshot, DEFAULT, 0.0)
    assert decided.starts[0].placement.gpus == gpu_ids("well:0-3")


def test_gpus_that_come_free_anyway_are_waited_for_rather_than_a_second_victim() -> None:
    leaving = running(a_job("limit").gpus(2), "n:0-1", yielding=True, releases_at=20.0)
    low = running(a_job("low").priority("low").gpus(2), "n:2-3")
    job = a_job("x").priority("critical").gpus(2)
    decided = plan(a_snapshot([a_pool(4)], [job], [leaving, low]), DEFAULT, 9.0)
    assert not decided.preemptions
    assert decided.holds == (Hold("x", gpu_ids("n:0-1")),)
    assert decided.waiting[0].estimated_start == 20.0


def test_who_said_no_or_has_just_begun_is_no_victim() -> None:
    rules = parse_policy({"preemption": {"min_runtime": 60}})
    busy = [
        running(a_job("no").priority("low").gpus(1).having(preemptible=False), "n:0"),
        running(a_job("young").priority("low").gpus(1), "n:1", since=50.0),
        running(a_job("fair").priority("low").gpus(1), "n:2", since=30.0),
    ]
    assert victims(plan(a_snapshot([a_pool(3)], [a_job("x").priority("high")], busy), rules, 100.0)) == [
        "fair"
    ]


def test_a_queue_whose_preemption_is_none_neither_evicts_nor_is_evicted() -> None:
    busy = [running(a_job("e").queue("eval").priority("low").gpus(4), "n:0-3")]
    job = a_job("x").priority("critical").gpus(4)
    assert not plan(a_snapshot([a_pool(4)], [job], busy), DEFAULT, 9.0).preemptions
    busy = [running(a_job("m").priority("low").gpus(4), "n:0-3")]
    job = a_job("x").queue("eval").priority("high").gpus(4)
    assert not plan(a_snapshot([a_pool(4)], [job], busy), DEFAULT, 9.0).preemptions


def test_serving_is_not_preempted_for_training_but_training_is_for_serving() -> None:
    busy = [running(a_job("serve").queue("inference").limit(None).gpus(4), "n:0-3")]
    job = a_job("x").priority("critical").gpus(4)
    assert not plan(a_snapshot([a_pool(4)], [job], busy), DEFAULT, 9.0).preemptions
    busy = [running(a_job("train").priority("high").gpus(4), "n:0-3")]
    job = a_job("x").queue("inference").priority("realtime").gpus(4)
    assert victims(plan(a_snapshot([a_pool(4)], [job], busy), DEFAULT, 9.0)) == ["train"]


def test_a_victim_comes_back_with_its_submission_time_and_after_its_evictor() -> None:
    runs = [
        work("low", 0, 4, 100, priority="low", max_duration=1000.0),
        work("high", 10, 4, 50, priority="high"),
    ]
    history = Replay([a_pool(4)], DEFAULT, runs, grace=5.0).run()
    assert [(run.job_id, run.start) for run in history.runs] == [("low", 0), ("high", 15), ("low", 65)]


def test_one_gang_goes_rather_than_one_member_of_each() -> None:
    nodes = [a_pool(10, f"n{number}") for number in range(10)]
    busy = [
        Allocation(
            a_job(f"g{gang}").priority("low").gpus(10).build(),
            tuple(GpuId(f"n{number}", gang) for number in range(10)),
            0.0,
        )
        for gang in range(10)
    ]
    decided = plan(a_snapshot(nodes, [a_job("x").priority("high").gpus(10)], busy), DEFAULT, 9.0)
    assert len(decided.preemptions) == 1


OWNER = {
    "projects": {"owner": {"guaranteed_gpus": {"default": 4}}, "other": {"guaranteed_gpus": {"default": 2}}}
}


def test_an_owner_takes_its_guarantee_back_least_work_lost_first() -> None:
    saves = {"checkpoint_interval": 1000.0}
    busy = [
        running(a_job("much").of("x").gpus(2).having(**saves), "n:0-1", since=-500.0),
        running(a_job("little").of("x").gpus(2).having(**saves), "n:2-3", since=5.0),
        running(a_job("within").of("other").gpus(2).priority("low"), "n:4-5"),
    ]
    rules = parse_policy(OWNER)
    job = a_job("mine").of("owner").gpus(2)
    decided = plan(a_snapshot([a_pool(6)], [job], busy), rules, 9.0)
    assert [(order.job_id, order.code) for order in decided.preemptions] == [("little", "reclaim")]


def test_beyond_its_guarantee_an_owner_waits_like_others() -> None:
    busy = [
        running(a_job("own").of("owner").gpus(4), "n:0-3"),
        running(a_job("x").of("x").gpus(2), "n:4-5"),
    ]
    decided = plan(
        a_snapshot([a_pool(6)], [a_job("mine").of("owner").gpus(2)], busy), parse_policy(OWNER), 9.0
    )
    assert not decided.preemptions


def test_reclaimed_gpus_go_to_the_owner_although_the_borrower_is_first_in_order() -> None:
    rules = parse_policy(OWNER)
    runs = [
        work("borrower", 0, 4, 100, project="x", priority="normal", max_duration=1000.0),
        work("mine", 10, 4, 50, project="owner", priority="low"),
    ]
    history = Replay([a_pool(4)], rules, runs, grace=5.0, max_cycles=50).run()
    assert [(run.job_id, run.start) for run in history.runs] == [
        ("borrower", 0),
        ("mine", 15),
        ("borrower", 65),
    ]


def big_load(seed: int) -> tuple[list[object], list[Allocation]]:
    random = Random(seed)
    nodes = [a_pool(8, f"n{number}").rack(f"r{number % 3}") for number in range(9)]
    busy: list[Allocation] = []
    for number in range(9):
        place = 0
        while place < 8:
            count = min(random.choice([1, 1, 2, 4]), 8 - place)
            job = a_job(f"b{len(busy):02}").gpus(count).priority(random.choice(["low", "normal", "high"]))
            job = job.having(checkpoint_interval=random.choice([None, 100.0]))
            gpus = tuple(GpuId(f"n{number}", place + offset) for offset in range(count))
            busy.append(
                Allocation(
                    job.build(), gpus, random.uniform(-900, 0), last_checkpoint=random.choice([None, 0.0])
                )
            )
            place += count
    return list(nodes), busy


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "how",
    [
        {"gpu_count": 1},
        {"gpu_count": 8, "nvlink_required": True},
        {"gpu_count": 20},
        {"gpu_count": 16, "topology_required": "rack"},
        {"gpu_count": 16, "node_count": 4},
    ],
)
def test_among_many_the_set_is_still_minimal_and_frees_a_placement(seed: int, how: dict[str, object]) -> None:
    nodes, busy = big_load(seed)
    job = a_job("x").priority("critical").having(**how)
    decided = plan(a_snapshot(nodes, [job], busy), DEFAULT, 9.0)  # type: ignore[arg-type]
    chosen = set(victims(decided))
    running_by_id = {one.job.id: one for one in busy}
    if not chosen:
        assert how.get("nvlink_required") or how.get("topology_required") or how.get("node_count")
        return
    assert all(running_by_id[name].job.priority in ("low", "normal") for name in chosen)

    def fits_without(gone: set[str]) -> bool:
        rest = [one for one in busy if one.job.id not in gone]
        quiet: Policy = parse_policy({"queues": {"merge": {"preempts": "none"}}})
        return bool(plan(a_snapshot(nodes, [job], rest), quiet, 9.0).starts)  # type: ignore[arg-type]

    assert fits_without(chosen)
    for one in chosen:
        assert not fits_without(chosen - {one}), f"{one} need not go"


def test_the_cheapest_domain_is_found_among_many() -> None:
    nodes = [a_pool(8, f"n{number}") for number in range(20)]
    busy = [
        running(
            a_job(f"b{number:02}-{gpu}").priority("low").having(checkpoint_interval=50.0),
            f"n{number}:{gpu}",
            last_checkpoint=float(-number if number != 13 else 8),
        )
        for number in range(20)
        for gpu in range(8)
    ]
    decided = plan(a_snapshot(nodes, [a_job("x").priority("high").gpus(8).nvlink()], busy), DEFAULT, 9.0)
    assert {order.job_id.split("-")[0] for order in decided.preemptions} == {"b13"}


def test_a_node_without_cores_left_is_no_room_whatever_its_gpus() -> None:
    nodes = [a_node(f"n{number}").gpus(1).nvlink_groups_of(1).having(cpu=4.0) for number in range(15)]
    busy = [
        running(a_job(f"b{number:02}").priority("low").having(cpu=1.0), f"n{number}:0")
        for number in range(15)
    ]
    hog = Allocation(a_job("hog").gpus(0).having(cpu=3.0).build(), (), 0.0, nodes=("n0",))
    job = a_job("x").priority("high").having(cpu=4.0)
    decided = plan(a_snapshot(nodes, [job], [*busy, hog]), DEFAULT, 9.0)
    assert len(decided.preemptions) == 1
    assert decided.preemptions[0].job_id != "b00"
