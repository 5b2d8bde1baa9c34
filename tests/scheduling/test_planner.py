"""The kept planner decides what ``plan`` decides, whatever comes and goes in between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from tests.builders.replay import Replay, Work, work
from tests.builders.scheduling import a_job, a_node, a_pool, running

from emep.policy import Policy, parse_policy
from emep.scheduling.cluster.index import ClusterIndex
from emep.scheduling.model import Node, Plan, Snapshot
from emep.scheduling.plan import plan
from emep.scheduling.planner import IncrementalPlanner


def follow(planner: IncrementalPlanner) -> Callable[[Snapshot, Policy, float], Plan]:
    """A planning function that keeps the planner told of what differs from one snapshot to the next."""
    pending: dict[str, object] = {}
    allocations: dict[str, object] = {}

    def both(snapshot: Snapshot, policy: Policy, now: float) -> Plan:
        for job_id in set(allocations) - {one.job.id for one in snapshot.allocations}:
            planner.end(job_id)
            del allocations[job_id]
        for job_id in set(pending) - {job.id for job in snapshot.pending}:
            planner.leave(job_id)
            del pending[job_id]
        for job in snapshot.pending:
            if job.id not in pending:
                planner.submit(job)
                pending[job.id] = job
        for one in snapshot.allocations:
            if one.job.id not in allocations:
                planner.start(one)
            elif allocations[one.job.id] is not one:
                planner.change(one)
            allocations[one.job.id] = one
        decided = planner.plan(now, snapshot.usage, snapshot.holds)
        assert decided == plan(snapshot, policy, now, explain=False)
        again, said = planner.plan_and_say(now, snapshot.usage, snapshot.holds, list(pending))
        assert again == decided
        explained = plan(snapshot, policy, now)
        assert said == {one.job_id: one.reasons for one in explained.waiting}
        return decided

    return both


def some_nodes(random: Random) -> tuple[Node, ...]:
    return tuple(
        a_node(f"n{number}")
        .gpus(random.choice([2, 4, 8]), random.choice(["A", "B"]), random.choice([40, 80]))
        .nvlink_groups_of(random.choice([2, 4]))
        .rack(f"r{number % 2}")
        .having(cpu=random.choice([0, 8, 16]))
        .build()
        for number in range(5)
    )


def some_work(random: Random, number: int) -> Work:
    run = random.randint(1, 60)
    queue = random.choice(["merge", "merge", "eval", "inference"])
    classes = {"merge": ["critical", "high", "normal", "low"], "eval": ["normal"], "inference": ["realtime"]}
    return work(
        f"j{number:03}",
        random.randint(0, 100),
        random.choice([0, 1, 1, 2, 3, 4, 8]),
        run,
        queue=queue,
        priority=random.choice(classes[queue]),
        project=random.choice(["a", "b", "b/c"]),
        user=random.choice(["u", "v"]),
        nvlink_required=random.random() < 0.2,
        max_duration=float(run + random.choice([0, 0, 10])),
        cpu=float(random.choice([1, 4])),
    )


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "rules",
    [
        {"reservations": 1},
        {"reservations": "all", "entry_charge": 0},
        {"reservations": 0, "order": "shortest", "starvation_bound": 30},
        {"projects": {"a": {"guaranteed_gpus": {"default": 6}}, "b": {"max_gpus": 6, "weight": 2}}},
    ],
)
def test_a_replay_with_the_kept_planner_is_the_replay_with_plan(seed: int, rules: dict[str, object]) -> None:
    random = Random(seed)
    nodes, policy = some_nodes(random), parse_policy(rules)
    works = [some_work(random, number) for number in range(40)]
    planner = IncrementalPlanner(nodes, policy)
    history = Replay(nodes, policy, works, grace=5.0, planner=follow(planner)).run()
    assert history.runs
    assert history.cycles > 40


def test_a_change_of_health_moves_what_can_be_placed() -> None:
    policy = parse_policy({})
    node = a_pool(4).build()
    planner = IncrementalPlanner([node], policy)
    planner.submit(a_job("x").gpus(4).limit(10).build())
    assert [start.job_id for start in planner.plan(0.0).starts] == ["x"]
    planner.reset([replace(node, gpus=(replace(node.gpus[0], foreign=True), *node.gpus[1:]))])
    assert not planner.plan(0.0).starts


def test_a_plan_changes_nothing_that_is_kept() -> None:
    policy = parse_policy({})
    planner = IncrementalPlanner(ClusterIndex([a_pool(4).build()]), policy)
    planner.start(running(a_job("low").gpus(2).priority("low"), "n:0-1"))
    planner.submit(a_job("high").gpus(4).priority("high").limit(10).build())
    first = planner.plan(1.0)
    assert [order.job_id for order in first.preemptions] == ["low"]
    assert planner.plan(1.0) == first


def test_a_job_is_not_pending_twice() -> None:
    planner = IncrementalPlanner([a_pool(4).build()], parse_policy({}))
    planner.submit(a_job("x").build())
    with pytest.raises(ValueError, match="x is pending already"):
        planner.submit(a_job("x").build())
