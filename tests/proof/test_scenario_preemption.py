"""Preemption: who is evicted, who is not, and what the evictor gets for it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.builders.replay import Replay, work
from tests.builders.scheduling import JobBuilder, NodeBuilder, a_job, a_node, a_pool, a_snapshot, running

from emep.policy import Policy, parse_policy
from emep.scheduling.model import Allocation, Plan, ReasonCode
from emep.scheduling.plan import plan

DEFAULT = parse_policy({})
ONLY_LOW = parse_policy({"queues": {"merge": {"preempts": {"critical": ["low"], "high": ["low"]}}}})


def on_one_node(sizes: dict[str, int], since: float = 0.0) -> tuple[NodeBuilder, list[Allocation]]:
    """A node filled by one job of each class, named after it."""
    first, jobs = 0, []
    for name, size in sizes.items():
        job = a_job(name).priority(name).gpus(size).limit(1e6)
        jobs.append(running(job, f"n:{first}-{first + size - 1}", since=since))
        first += size
    return a_pool(first), jobs


def decide(
    nodes: list[NodeBuilder],
    job: JobBuilder,
    busy: list[Allocation],
    policy: Policy = DEFAULT,
    now: float = 1000.0,
) -> Plan:
    decided = plan(a_snapshot(nodes, [job], busy), policy, now)
    assert all(order.for_job == job.fields["id"] for order in decided.preemptions)
    assert not decided.starts or not decided.preemptions
    return decided


def victims(decided: Plan) -> set[str]:
    return {order.job_id for order in decided.preemptions}


@pytest.mark.parametrize(
    ("sizes", "needs", "expected"),
    [
        ({"low": 2, "normal": 2, "high": 2}, 2, {"low"}),
        ({"low": 2, "normal": 2, "high": 2}, 3, {"low", "normal"}),
        ({"low": 2, "normal": 2, "high": 2}, 4, {"low", "normal"}),
        ({"low": 2, "normal": 2, "high": 2}, 5, set()),
        ({"low": 1, "normal": 2, "high": 3}, 2, {"normal"}),
        ({"low": 1, "normal": 2, "high": 3}, 1, {"low"}),
        ({"low": 1, "normal": 2, "high": 3}, 3, {"low", "normal"}),
        ({"low": 4, "normal": 1, "high": 1}, 1, {"low"}),
    ],
)
def test_a_queue_of_six_gives_up_what_is_needed_and_no_more(
    sizes: dict[str, int], needs: int, expected: set[str]
) -> None:
    node, busy = on_one_node(sizes)
    decided = decide([node], a_job("critical").priority("critical").gpus(needs).limit(10).at(999), busy)
    assert victims(decided) == expected
    (waits,) = decided.waiting
    codes = {reason.code for reason in waits.reasons}
    assert (ReasonCode.WAITING_FOR_PREEMPTION in codes) == bool(expected)


@pytest.mark.parametrize("priority", ["normal", "low"])
def test_a_class_that_may_preempt_nobody_waits(priority: str) -> None:
    node, busy = on_one_node({"low": 2, "normal": 2})
    assert not decide([node], a_job("x").priority(priority).gpus(1).limit(10).at(999), busy).preemptions


def test_free_gpus_are_used_before_anybody_is_evicted() -> None:
    busy = [running(a_job("low").priority("low").gpus(6).limit(1e6), "n:0-5")]
    fits = decide([a_pool(8)], a_job("x").priority("critical").gpus(2).limit(10), busy)
    assert [start.job_id for start in fits.starts] == ["x"]
    assert victims(decide([a_pool(8)], a_job("x").priority("critical").gpus(3).limit(10), busy)) == {"low"}


# ---- four nodes of eight ----


def six_high_and_two_low_on_each() -> tuple[list[NodeBuilder], list[Allocation]]:
    busy = []
    for node in range(4):
        for index in range(8):
            name = "high" if index < 6 else "low"
            job = a_job(f"{name}-{node}-{index}").priority(name).limit(1e6)
            busy.append(running(job, f"n{node}:{index}"))
    return [a_pool(8, f"n{node}") for node in range(4)], busy


@pytest.mark.parametrize("how", ["node_count", "topology", "nvlink"])
def test_a_whole_node_that_cannot_be_freed_evicts_nothing_and_says_what_the_best_node_offers(
    how: str,
) -> None:
    nodes, busy = six_high_and_two_low_on_each()
    job = a_job("whole").priority("high").gpus(8).limit(10).at(999)
    job = {"node_count": job.on_nodes(1), "topology": job.within("node"), "nvlink": job.nvlink()}[how]
    decided = decide(nodes, job, busy, ONLY_LOW)
    assert not decided.preemptions
    texts = [reason.text for item in decided.waiting for reason in item.reasons]
    assert any("8" in text and "best 2" in text and "preempt" in text for text in texts), texts


def test_one_gpu_of_such_nodes_costs_exactly_one_victim() -> None:
    nodes, busy = six_high_and_two_low_on_each()
    decided = decide(nodes, a_job("one").priority("high").limit(10).at(999), busy, ONLY_LOW)
    assert len(decided.preemptions) == 1
    assert decided.preemptions[0].job_id.startswith("low")


@pytest.mark.parametrize("needs", [2, 3, 8])
def test_scattered_victims_will_do_where_no_node_is_asked_for(needs: int) -> None:
    nodes, busy = six_high_and_two_low_on_each()
    decided = decide(nodes, a_job("x").priority("high").gpus(needs).limit(10).at(999), busy, ONLY_LOW)
    assert len(decided.preemptions) == needs
    assert all(order.job_id.startswith("low") for order in decided.preemptions)


def test_an_nvlink_job_gets_one_whole_group_freed() -> None:
    # Two groups of four: one holds four low one-GPU jobs, the other three low and a high one.
    busy = [running(a_job(f"low{index}").priority("low").limit(1e6), f"n:{index}") for index in range(7)]
    busy.append(running(a_job("high").priority("high").limit(1e6), "n:7"))
    node = a_node("n").gpus(8).nvlink_groups_of(4)
    decided = decide([node], a_job("x").priority("critical").gpus(4).nvlink().limit(10), busy)
    assert victims(decided) == {"low0", "low1", "low2", "low3"}


def test_a_group_half_free_is_completed_rather_than_another_emptied() -> None:
    busy = [running(a_job(f"low{index}").priority("low").limit(1e6), f"n:{index}") for index in range(6)]
    node = a_node("n").gpus(8).nvlink_groups_of(4)
    decided = decide([node], a_job("x").priority("critical").gpus(4).nvlink().limit(10), busy)
    assert victims(decided) == {"low4", "low5"}


# ---- gangs ----


@pytest.mark.parametrize("spread", [False, True])
def test_one_whole_gang_goes_and_not_one_member_of_each(spread: bool) -> None:
    nodes = [a_pool(10, f"n{node}") for node in range(10)]
    busy = []
    for gang in range(10):
        job = a_job(f"gang{gang}").priority("low").gpus(10).limit(1e6)
        places = " ".join(f"n{node}:{gang}" for node in range(10)) if spread else f"n{gang}:0-9"
        busy.append(running(job, places))
    decided = decide(nodes, a_job("x").priority("high").gpus(10).limit(10).at(999), busy)
    assert len(decided.preemptions) == 1


def test_the_gang_with_the_least_work_to_lose_goes() -> None:
    nodes = [a_pool(4, f"n{node}") for node in range(3)]
    busy = []
    for node, saved in enumerate((900.0, 990.0, 500.0)):
        job = a_job(f"gang{node}").priority("low").gpus(4).limit(1e6).having(checkpoint_interval=600.0)
        busy.append(running(job, f"n{node}:0-3", last_checkpoint=saved))
    decided = decide(nodes, a_job("x").priority("high").gpus(4).limit(10).at(999), busy)
    assert victims(decided) == {"gang1"}


def test_among_equals_the_latest_start_goes_and_then_the_smaller_id() -> None:
    nodes = [a_pool(1, f"n{node}") for node in range(3)]
    low = [a_job(f"low{node}").priority("low").limit(1e6) for node in range(3)]
    by_start = [running(job, f"n{node}:0", since=[5, 9, 7][node]) for node, job in enumerate(low)]
    same = [running(job, f"n{node}:0", since=5) for node, job in enumerate(low)]
    asked = a_job("x").priority("high").limit(10).at(999)
    assert victims(decide(nodes, asked, by_start)) == {"low1"}
    assert victims(decide(nodes, asked, same)) == {"low0"}


# ---- who is no victim ----


def test_who_is_not_preemptible_is_spared_and_who_says_so_himself_counts() -> None:
    node, _ = on_one_node({"low": 2})
    for own, expected in ((None, {"v"}), (True, {"v"}), (False, set())):
        busy = [running(a_job("v").priority("low").gpus(2).limit(1e6).having(preemptible=own), "n:0-1")]
        decided = decide([node], a_job("x").priority("critical").limit(10).at(999), busy)
        assert victims(decided) == expected


@pytest.mark.parametrize(("age", "expected"), [(59.0, set()), (60.0, {"low"}), (61.0, {"low"})])
def test_a_job_younger_than_the_minimum_is_spared(age: float, expected: set[str]) -> None:
    policy = parse_policy({"preemption": {"min_runtime": "60s"}})
    node, busy = on_one_node({"low": 2}, since=1000.0 - age)
    assert victims(decide([node], a_job("x").priority("high").limit(10).at(999), busy, policy)) == expected


@pytest.mark.parametrize(
    ("queue", "priority", "victim_queue", "victim_priority", "evicts"),
    [
        ("inference", "realtime", "inference", "normal", True),
        ("inference", "realtime", "merge", "high", True),
        ("inference", "realtime", "merge", "critical", False),
        ("merge", "critical", "inference", "normal", False),
        ("merge", "critical", "eval", "low", False),
        ("eval", "high", "merge", "low", False),
        ("inference", "normal", "merge", "low", True),
        ("inference", "normal", "merge", "normal", False),
    ],
)
def test_tiers_decide_between_queues_that_share_a_pool(
    queue: str, priority: str, victim_queue: str, victim_priority: str, evicts: bool
) -> None:
    victim = a_job("v").queue(victim_queue).priority(victim_priority).limit(1e6)
    asked = a_job("x").queue(queue).priority(priority).limit(10).at(999)
    assert bool(decide([a_pool(1)], asked, [running(victim, "n:0")]).preemptions) is evicts


def test_a_job_in_a_pool_of_its_own_is_no_victim_of_another_pool() -> None:
    policy = parse_policy({"queues": {"merge": {"pools": ["one", "two"]}, "inference": {"pools": ["two"]}}})
    nodes = [a_pool(1, "a").pool("one"), a_pool(1, "b").pool("two")]
    busy = [
        running(a_job("v").priority("low").limit(1e6), "a:0"),
        running(a_job("w").priority("critical").limit(1e6), "b:0"),
    ]
    asked = a_job("x").queue("inference").priority("realtime").limit(10).at(999)
    assert not decide(nodes, asked, busy, policy).preemptions


# ---- and then ----


def test_the_evictor_starts_on_what_was_freed_before_its_victim_is_looked_at_again() -> None:
    works = [
        work("victim", 0, 8, 100, priority="low"),
        work("bystander", 5, 8, 100, priority="normal"),
        work("urgent", 10, 8, 50, priority="critical"),
    ]
    history = Replay([a_pool(8)], DEFAULT, works).run()
    assert history.evictions == [(10.0, "victim", "urgent")]
    assert history.start_of("urgent") == 10
    assert history.start_of("bystander") == 60
    assert history.end_of("victim") == 250


def test_victims_that_leave_one_by_one_hold_their_gpus_for_the_evictor() -> None:
    # quick ends by itself in the grace, slow only when killed: nobody slips in between.
    works = [
        work("quick", 0, 4, 12, priority="low", max_duration=500.0),
        work("slow", 0, 4, 400, priority="low"),
        work("urgent", 10, 8, 50, priority="critical"),
        work("chance", 11, 2, 5, priority="normal"),
        work("late", 11, 4, 500, priority="high"),
    ]
    history = Replay([a_pool(8)], DEFAULT, works, grace=30.0).run()
    assert {victim for _, victim, _ in history.evictions} == {"quick", "slow"}
    assert history.start_of("urgent") == 40
    assert history.start_of("late") == 90
    quick = [run for run in history.runs if run.job_id == "quick"]
    assert [(run.end, run.completed) for run in quick] == [(12.0, True)]


def test_while_its_victims_leave_an_evictor_evicts_nobody_else() -> None:
    busy = [
        running(a_job("going").priority("low").gpus(4).limit(1e6), "n:0-3", yielding=True, held_for="x",
                releases_at=1100.0),
        running(a_job("other").priority("low").gpus(4).limit(1e6), "n:4-7"),
    ]  # fmt: skip
    decided = decide([a_pool(8)], a_job("x").priority("critical").gpus(4).limit(10).at(999), busy)
    assert not decided.preemptions
    (waits,) = decided.waiting
    assert ReasonCode.WAITING_FOR_PREEMPTION in {reason.code for reason in waits.reasons}


def test_a_second_evictor_does_not_count_on_gpus_held_for_the_first() -> None:
    going = a_job("going").priority("low").gpus(4).limit(1e6)
    busy = [
        running(going, "n:0-3", yielding=True, held_for="first", releases_at=1100.0),
        running(a_job("other").priority("low").gpus(4).limit(1e6), "n:4-7"),
    ]
    jobs = [
        a_job(name).priority("critical").gpus(4).limit(10).at(at)
        for name, at in (("first", 1), ("second", 2))
    ]
    decided = plan(a_snapshot([a_pool(8)], jobs, busy), DEFAULT, 1000.0)
    assert [(order.job_id, order.for_job) for order in decided.preemptions] == [("other", "second")]


def test_two_evictors_of_one_plan_get_victims_of_their_own() -> None:
    busy = [
        running(a_job(f"low{node}").priority("low").gpus(4).limit(1e6), f"n{node}:0-3", since=node)
        for node in range(3)
    ]
    jobs = [
        a_job(name).priority("critical").gpus(4).limit(10).at(at)
        for name, at in (("first", 1), ("second", 2))
    ]
    decided = plan(a_snapshot([a_pool(4, f"n{node}") for node in range(3)], jobs, busy), DEFAULT, 1000.0)
    assert {(order.job_id, order.for_job) for order in decided.preemptions} == {
        ("low2", "first"),
        ("low1", "second"),
    }


def test_sixty_four_gpus_for_a_p1_job_cost_the_p3_job_on_eight() -> None:
    nodes = [a_pool(8, f"n{node}") for node in range(8)]
    works = [
        work("p3", 0, 8, 3600, priority="low", project="a"),
        work("p1", 600, 64, 600, priority="high", project="b"),
    ]
    history = Replay(nodes, DEFAULT, works, grace=120.0).run()
    assert history.evictions == [(600.0, "p3", "p1")]
    (big,) = [run for run in history.runs if run.job_id == "p1"]
    assert (big.start, len(big.gpus)) == (720.0, 64)
    again = [run for run in history.runs if run.job_id == "p3"]
    assert [(run.start, run.end, run.completed) for run in again] == [(0, 720, False), (1320, 4200, True)]


def test_a_job_that_ends_by_itself_while_it_was_told_to_yield_is_just_gone() -> None:
    urgent = a_job("urgent").priority("critical").gpus(8).limit(50).at(10)
    decided = plan(a_snapshot([a_pool(8)], [urgent]), DEFAULT, 20.0)
    assert [start.job_id for start in decided.starts] == ["urgent"]
    assert not decided.preemptions


@pytest.mark.parametrize("grace", [0.0, 30.0])
def test_nobody_who_was_evicted_evicts_his_evictor(grace: float) -> None:
    # Three classes that come again and again, on a pool that never has room for two of them.
    fields: dict[str, Any] = {"max_duration": 1000.0}
    works = [
        work(f"{name}{turn}", turn * 37 + place * 11, 3 + place, 90, priority=name, project=name, **fields)
        for turn in range(12)
        for place, name in enumerate(("low", "normal", "high", "critical"))
    ]
    history = Replay([a_pool(8)], DEFAULT, works, grace=grace, max_cycles=1000).run()
    pairs = {(victim, cause) for _, victim, cause in history.evictions}
    assert pairs
    assert not any((cause, victim) in pairs for victim, cause in pairs)
    assert not history.unfinished


# ---- guarantees ----


def guarantees(**projects: dict[str, Any]) -> Policy:
    return parse_policy({"projects": projects})


def test_an_owner_takes_its_guarantee_back_from_who_borrowed_it() -> None:
    policy = guarantees(owner={"guaranteed_gpus": {"default": 4}})
    busy = [running(a_job("borrower").of("guest").gpus(8).limit(1e6), "n:0-7")]
    decided = decide([a_pool(8)], a_job("x").of("owner").gpus(4).limit(10).at(999), busy, policy)
    assert [(order.job_id, order.code) for order in decided.preemptions] == [("borrower", "reclaim")]


def test_beyond_its_guarantee_an_owner_waits_like_anybody() -> None:
    policy = guarantees(owner={"guaranteed_gpus": {"default": 4}})
    busy = [
        running(a_job("own").of("owner").gpus(4).limit(1e6), "n:0-3"),
        running(a_job("guest").of("guest").gpus(4).limit(1e6), "n:4-7"),
    ]
    assert not decide([a_pool(8)], a_job("x").of("owner").limit(10).at(999), busy, policy).preemptions


def test_nobody_within_his_own_guarantee_is_a_victim_of_reclaim() -> None:
    policy = guarantees(
        owner={"guaranteed_gpus": {"default": 4}},
        other={"guaranteed_gpus": {"default": 4}},
    )
    busy = [
        running(a_job("within").of("other").gpus(4).limit(1e6), "n:0-3", since=900),
        running(a_job("guest").of("guest").gpus(4).limit(1e6), "n:4-7", since=0),
    ]
    decided = decide([a_pool(8)], a_job("x").of("owner").gpus(4).limit(10).at(999), busy, policy)
    assert victims(decided) == {"guest"}
    busy = [
        running(a_job(f"within{part}").of("other").gpus(2).limit(1e6), f"n:{2 * part}-{2 * part + 1}")
        for part in (0, 1)
    ]
    assert not decide([a_pool(4)], a_job("x").of("owner").gpus(4).limit(10).at(999), busy, policy).preemptions


def test_borrowers_that_are_not_preemptible_keep_what_they_have() -> None:
    policy = guarantees(owner={"guaranteed_gpus": {"default": 4}})
    busy = [running(a_job("guest").of("guest").gpus(8).limit(1e6).having(preemptible=False), "n:0-7")]
    assert not decide([a_pool(8)], a_job("x").of("owner").gpus(4).limit(10).at(999), busy, policy).preemptions


def test_reclaim_takes_the_least_work_lost_first() -> None:
    policy = guarantees(owner={"guaranteed_gpus": {"default": 4}})
    busy = []
    for part, saved in enumerate((100.0, 950.0)):
        job = a_job(f"guest{part}").of(f"guest{part}").gpus(4).limit(1e6).having(checkpoint_interval=10.0)
        busy.append(running(job, f"n:{4 * part}-{4 * part + 3}", last_checkpoint=saved))
    decided = decide([a_pool(8)], a_job("x").of("owner").gpus(4).limit(10).at(999), busy, policy)
    assert victims(decided) == {"guest1"}


def test_idle_guaranteed_gpus_are_lent_and_come_back_in_time() -> None:
    policy = guarantees(owner={"guaranteed_gpus": {"default": 4}})
    works = [work("guest", 0, 8, 100, project="guest"), work("own", 10, 4, 20, project="owner")]
    history = Replay([a_pool(8)], policy, works).run()
    assert history.start_of("own") == 10
    assert history.evictions == [(10.0, "guest", "own")]
    assert history.end_of("guest") == 120
