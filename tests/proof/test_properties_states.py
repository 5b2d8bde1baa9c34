"""Whatever state the ledger hands over: no exception, nothing given that is not there, minimal victims."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from tests.proof import reference
from tests.proof.draws import all_gpus, draw_job, draw_nodes
from tests.proof.effort import cases

from emep.policy import Policy, default_policy, parse_policy
from emep.scheduling.model import Allocation, GpuId, Hold, Job, Node, Snapshot, UsageRecord
from emep.scheduling.plan import plan

NOW = 1000.0
POLICIES: list[dict[str, Any]] = [
    {},
    {"reservations": 0},
    {"reservations": "all", "order": "shortest", "starvation_bound": "1m"},
    {"projects": {"p0": {"max_gpus": 3}, "p1": {"guaranteed_gpus": {"default": 3}, "max_gpus": 6}}},
    {"queues": {"merge": {"pools": ["default", "other"]}, "eval": {"pools": "all", "placement": "spread"}}},
    {"preemption": {"across_queues": False, "min_runtime": "50s"}, "entry_charge": 0, "half_life": 0},
]
CLASSES = ["critical", "high", "normal", "medium", "low", "realtime", "nonsense"]


def draw_any_job(random: Random, job_id: str) -> Job:
    """A job of any kind, one in a while impossible or unknown to the policy."""
    job = draw_job(random, job_id, 6)
    job = replace(
        job,
        queue=random.choice(["merge", "merge", "merge", "eval", "inference", "artifact", "gone"]),
        priority=random.choice(CLASSES),
        project=random.choice(["p0", "p1", "p1/team", "p2", ""]),
        user=random.choice(["", "u"]),
        submit_time=NOW - random.choice([0.0, 1.0, 100.0, -5.0]),
        max_duration=random.choice([None, 1.0, 50.0, 1e9]),
        preemptible=random.choice([None, None, True, False]),
        checkpoint_interval=random.choice([None, 60.0]),
        preempted=random.random() < 0.1,
        queued_at=random.choice([None, NOW - 5]),
        not_before=random.choice([0.0, 0.0, 0.0, NOW + 10]),
        estimated_duration=random.choice([None, None, 5.0]),
        cpu=random.choice([0.0, 1.0, 8.0]),
    )
    if random.random() < 0.15:
        job = replace(job, gpu_count=0, nvlink_required=False, topology_required=None, node_count=None)
    if random.random() < 0.05:
        job = replace(job, node_count=random.randint(1, 4))
    return job


def draw_allocation(random: Random, job_id: str, held: tuple[GpuId, ...], nodes: list[Node]) -> Allocation:
    """A run in any phase, one in a while on a node that is gone."""
    job = replace(draw_any_job(random, job_id), gpu_count=len(held))
    if not held:
        names: tuple[str, ...] = (random.choice(nodes).name,)
    else:
        names = tuple(dict.fromkeys(gpu.node for gpu in held))
    start = NOW - random.choice([0.0, 10.0, 500.0])
    yielding = random.random() < 0.3
    return Allocation(
        job,
        held,
        start,
        names,
        last_checkpoint=random.choice([None, start]),
        yielding=yielding,
        held_for=random.choice([None, "j0", "j1", "nobody"]) if yielding else None,
        releases_at=random.choice([None, NOW + 30, NOW - 1]) if yielding else None,
    )


def draw_state(random: Random) -> Snapshot:
    """Anything that the ledger might ever hold."""
    nodes = draw_nodes(random, random.randint(1, 14))
    nodes = [replace(node, pool=random.choice(["default"] * 3 + ["other"])) for node in nodes]
    if random.random() < 0.3:
        nodes = [replace(node, cpu=random.choice([0.0, 4.0, 16.0]), memory=64 * 2**30) for node in nodes]
    gpus = all_gpus(nodes)
    random.shuffle(gpus)
    allocations = []
    for number in range(random.randint(0, 5)):
        size = min(random.randint(0, 4), len(gpus))
        held, gpus = tuple(sorted(gpus[:size])), gpus[size:]
        allocations.append(draw_allocation(random, f"run{number}", held, nodes))
    if random.random() < 0.1:
        lost = draw_allocation(random, "lost", (GpuId("gone", 0), GpuId("gone", 1)), nodes)
        allocations.append(lost)
    pending = tuple(draw_any_job(random, f"j{number}") for number in range(random.randint(0, 6)))
    holds = []
    if gpus and random.random() < 0.3:
        held_gpus = tuple(sorted(random.sample(gpus, random.randint(1, len(gpus)))))
        holds.append(Hold(random.choice(["j0", "j2", "nobody"]), held_gpus))
    usage = [
        UsageRecord(queue, project, user, random.choice([0.0, 1.0, 1e6]))
        for queue, project, user in {
            (random.choice(["merge", "eval", "gone"]), random.choice(["p0", "p1/team", ""]), "u")
            for _ in range(3)
        }
    ]
    return Snapshot(tuple(nodes), pending, tuple(allocations), tuple(usage), tuple(holds))


def check_gives_only_what_is_free(snapshot: Snapshot, policy: Policy, where: str) -> None:
    decided = plan(snapshot, policy, NOW)
    offered = reference.places(snapshot.nodes)
    taken = {gpu for allocation in snapshot.allocations for gpu in allocation.gpus}
    jobs = {job.id: job for job in snapshot.pending}
    # A promise that can make no placement any more is withdrawn; one that stands holds what it held.
    still = {hold.job_id for hold in decided.holds}
    own = {hold.job_id: set(hold.gpus) for hold in snapshot.holds if hold.job_id in still}
    for start in decided.starts:
        job, gpus = jobs[start.job_id], start.placement.gpus
        others = set().union(*(held for job_id, held in own.items() if job_id != start.job_id))
        assert taken.isdisjoint(gpus), f"{where}: {start}"
        assert others.isdisjoint(gpus), f"{where}: {start} is held for another"
        assert set(gpus) <= set(offered), f"{where}: {start} is not healthy"
        assert len(set(gpus)) == job.gpu_count, where
        chosen = [offered[gpu] for gpu in gpus]
        assert all(reference.fits_job(place, job, policy) for place in chosen), where
        assert not chosen or reference.is_valid(chosen, job), where
        assert job.not_before <= NOW, where
        taken |= set(gpus)
    verdicts = [one.job_id for one in (*decided.starts, *decided.rejections, *decided.waiting)]
    assert sorted(verdicts) == sorted(jobs), where
    assert all(one.reasons for one in decided.waiting), where
    running = {one.job.id: one for one in snapshot.allocations}
    assert not any(running[order.job_id].yielding for order in decided.preemptions), where
    victims = [order.job_id for order in decided.preemptions]
    assert len(set(victims)) == len(victims), where


def test_any_state_gets_a_plan_that_gives_only_what_there_is() -> None:
    for number, random in cases():
        snapshot = draw_state(random)
        check_gives_only_what_is_free(snapshot, parse_policy(random.choice(POLICIES)), f"case {number}")


def test_an_empty_cluster_and_an_empty_queue_get_a_plan() -> None:
    policy = default_policy()
    assert plan(Snapshot(()), policy, NOW).starts == ()
    waits = plan(Snapshot((), (Job("x", 0.0), Job("cpu", 0.0, gpu_count=0))), policy, NOW)
    assert not waits.starts
    assert len(waits.waiting) + len(waits.rejections) == 2


# ---- more victims than can be tried out ----


def draw_many(random: Random, nodes: list[Node]) -> list[Allocation]:
    """More than a dozen jobs of one to three GPUs, of several classes."""
    gpus = all_gpus(nodes)
    if random.random() < 0.5:
        random.shuffle(gpus)
    running: list[Allocation] = []
    while gpus:
        size = min(len(gpus), random.choice([1, 1, 2, 3]))
        held, gpus = tuple(sorted(gpus[:size])), gpus[size:]
        job = Job(
            f"run{len(running):02}",
            0.0,
            gpu_count=size,
            priority=random.choice(["high", "normal", "low", "low"]),
            max_duration=1e6,
            checkpoint_interval=random.choice([None, 60.0]),
        )
        start = NOW - random.randint(1, 900)
        held_nodes = tuple(dict.fromkeys(gpu.node for gpu in held))
        saved = random.uniform(start, NOW)
        running.append(Allocation(job, held, start, held_nodes, last_checkpoint=saved))
    return running


def room(
    free: set[GpuId], victims: list[Allocation], offered: dict[GpuId, reference.Place]
) -> list[reference.Place]:
    gpus = free.union(*(victim.gpus for victim in victims))
    return [offered[gpu] for gpu in gpus if gpu in offered]


def test_of_many_candidates_a_minimal_set_of_the_lowest_classes_goes() -> None:
    evicted = 0
    policy = default_policy()
    for number, random in cases(5):
        nodes = draw_nodes(random, random.randint(20, 32), kinds=False)
        busy = draw_many(random, nodes)
        busy = busy[: random.randint(len(busy) * 2 // 3, len(busy))]
        job = replace(draw_job(random, "x", 5, kinds=False), priority=random.choice(["critical", "high"]))
        decided = plan(Snapshot(tuple(nodes), (job,), tuple(busy)), policy, NOW)
        offered = reference.places(nodes)
        free = set(offered) - {gpu for one in busy for gpu in one.gpus}
        names = {order.job_id for order in decided.preemptions}
        chosen = [one for one in busy if one.job.id in names]
        candidates = [one for one in busy if reference.may_be_victim(job, one, policy, NOW)]
        assert len(chosen) <= len(candidates)
        if decided.starts:
            assert not names, f"case {number}"
            continue
        possible = feasible(job, room(free, candidates, offered), policy)
        assert bool(names) == possible, f"case {number}: {names}, possible {possible}"
        if not names:
            continue
        evicted += 1
        assert feasible(job, room(free, chosen, offered), policy), f"case {number}"
        for victim in chosen:
            rest = [one for one in chosen if one is not victim]
            assert not feasible(job, room(free, rest, offered), policy), f"case {number}: {victim.job.id}"
        highest = max(policy.class_value(one.job.priority) for one in chosen)
        lower = [one for one in candidates if policy.class_value(one.job.priority) < highest]
        assert not feasible(job, room(free, lower, offered), policy), f"case {number}: lower classes would do"
    assert evicted > 30


def feasible(job: Job, offered: list[reference.Place], policy: Policy) -> bool:
    """Whether the job has a placement: by counting in every domain, there are too many sets to try."""
    fitting = [place for place in offered if reference.fits_job(place, job, policy)]
    domains: dict[object, list[reference.Place]] = {}
    for place in fitting:
        linked = place.group if job.nvlink_required or job.topology_required == "nvlink" else ""
        if linked and not place.linked:
            continue
        level = {"node": place.id.node, "rack": place.rack, "block": place.block}.get(
            job.topology_required or "", ""
        )
        domains.setdefault((linked, level), []).append(place)
    return any(_holds(job, inside) for inside in domains.values())


def _holds(job: Job, inside: list[reference.Place]) -> bool:
    if job.node_count is None:
        return len(inside) >= job.gpu_count
    by_node: dict[str, int] = {}
    for place in inside:
        by_node[place.id.node] = by_node.get(place.id.node, 0) + 1
    share = job.gpu_count // job.node_count
    return sum(1 for count in by_node.values() if count >= share) >= job.node_count
