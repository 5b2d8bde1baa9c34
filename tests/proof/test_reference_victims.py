"""Victims against brute force over every set of candidates."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.proof import reference
from tests.proof.draws import all_gpus, draw_job, draw_nodes
from tests.proof.effort import cases

from emep.policy import default_policy, parse_policy
from emep.scheduling.model import Allocation, Job, Node, Snapshot
from emep.scheduling.plan import plan

NOW = 1000.0
POLICIES = [
    default_policy(),
    parse_policy({"preemption": {"min_runtime": "100s"}}),
    parse_policy(
        {"queues": {"merge": {"preempts": {"critical": ["high", "normal", "low"], "high": ["low"]}}}}
    ),
]


def draw_victims(random: Random, nodes: list[Node]) -> list[Allocation]:
    """Jobs of several classes on most GPUs, saved at different times, some of them not to be touched."""
    gpus = all_gpus(nodes)
    if random.random() < 0.6:
        random.shuffle(gpus)
    gpus = gpus[: random.randint(len(gpus) // 2, len(gpus))]
    running: list[Allocation] = []
    while gpus and len(running) < 9:
        size = min(len(gpus), random.choice([1, 1, 1, 2, 2, 3]))
        held, gpus = tuple(sorted(gpus[:size])), gpus[size:]
        start = NOW - random.randint(1, 900)
        job = Job(
            id=f"run{len(running)}",
            submit_time=start,
            gpu_count=size,
            priority=random.choice(["critical", "high", "normal", "low", "low"]),
            max_duration=1e6,
            checkpoint_interval=random.choice([None, 60.0]),
            preemptible=random.choice([None, None, None, True, False]),
        )
        saved = None if random.random() < 0.3 else random.uniform(start, NOW)
        nodes_held = tuple(dict.fromkeys(gpu.node for gpu in held))
        running.append(Allocation(job, held, float(start), nodes_held, last_checkpoint=saved))
    return running


def test_the_victims_are_the_first_minimal_set_in_order() -> None:
    evicted = spared = 0
    for number, random in cases():
        policy = random.choice(POLICIES)
        nodes = draw_nodes(random, random.randint(2, 10), kinds=False)
        busy = draw_victims(random, nodes)
        job = replace(
            draw_job(random, "x", 5, kinds=False), priority=random.choice(["critical", "high", "normal"])
        )
        decided = plan(Snapshot(tuple(nodes), (job,), tuple(busy)), policy, NOW)
        offered = reference.places(nodes)
        held = {gpu for allocation in busy for gpu in allocation.gpus}
        free = [place for gpu, place in offered.items() if gpu not in held]
        chosen = {order.job_id for order in decided.preemptions}
        if reference.can_place(job, free, policy):
            assert not chosen, f"case {number}: {job} fits without evicting {chosen}"
            continue
        candidates = [one for one in busy if reference.may_be_victim(job, one, policy, NOW)]
        sets = list(reference.minimal_sets(job, free, candidates, offered, policy))
        if not sets:
            spared += 1
            assert not chosen, f"case {number}: {chosen} for nothing"
            continue
        evicted += 1
        best = min(sets, key=lambda one: reference.victim_key(one, policy, NOW))
        names = {victim.job.id for victim in best}
        found = [one for one in busy if one.job.id in chosen]
        keys = [reference.victim_key(one, policy, NOW) for one in (found, best) if one]
        assert chosen == names, f"case {number}: {chosen or 'nobody'} instead of {names}: {keys}"
        assert not decided.starts, f"case {number}"
    assert evicted > 100
    assert spared > 20
