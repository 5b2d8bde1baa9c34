"""What always holds, whatever arrives: in every plan, and over the whole of a replay."""

from __future__ import annotations

import pickle
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from tests.builders.replay import History, PlanFunction, Replay, Work
from tests.proof import reference
from tests.proof.effort import proof
from tests.proof.worlds import World, worlds

from emep.policy import Policy
from emep.scheduling.model import GpuId, Plan, Snapshot
from emep.scheduling.plan import plan

Moment = tuple[Snapshot, Plan, float]


def replay(
    world: World, max_cycles: int = 1000, planner: PlanFunction | None = None
) -> tuple[History, list[Moment]]:
    """The world's history and every plan that was made on the way."""
    moments: list[Moment] = []
    history = Replay(
        world.nodes,
        world.policy,
        world.works,
        grace=world.grace,
        max_cycles=max_cycles,
        planner=planner,
        watch=lambda *moment: moments.append(moment),
    ).run()
    return history, moments


@proof
@given(worlds())
def test_no_gpu_is_ever_held_by_two_jobs(world: World) -> None:
    history, _ = replay(world)
    by_gpu: dict[GpuId, list[tuple[float, float]]] = defaultdict(list)
    for run in history.runs:
        for gpu in run.gpus:
            by_gpu[gpu].append((run.start, run.end))
    for spans in by_gpu.values():
        spans.sort()
        assert all(one[1] <= other[0] for one, other in pairwise(spans))
    existing = {GpuId(node.name, gpu.index) for node in world.nodes for gpu in node.gpus}
    assert set(by_gpu) <= existing


@proof
@given(worlds())
def test_a_job_gets_all_its_gpus_at_once_and_where_it_asked_for_them(world: World) -> None:
    history, _ = replay(world)
    offered = reference.places(world.nodes)
    jobs = {item.job.id: item.job for item in world.works}
    for run in history.runs:
        assert len(set(run.gpus)) == jobs[run.job_id].gpu_count
        assert reference.is_valid([offered[gpu] for gpu in run.gpus], jobs[run.job_id])


@proof
@given(worlds())
def test_everything_that_is_not_rejected_comes_to_an_end(world: World) -> None:
    history, _ = replay(world)
    done = {run.job_id for run in history.runs if run.completed}
    assert done | set(history.rejected) == {item.job.id for item in world.works}
    assert not history.unfinished


@proof
@given(worlds())
def test_every_pending_job_has_one_verdict_and_a_reason_if_it_waits(world: World) -> None:
    _, moments = replay(world, planner=plan)
    for snapshot, decided, _ in moments:
        verdicts = [item.job_id for item in (*decided.starts, *decided.rejections, *decided.waiting)]
        assert sorted(verdicts) == sorted(job.id for job in snapshot.pending)
        assert all(item.reasons for item in decided.waiting)
        assert all(reason.text for item in decided.waiting for reason in item.reasons)
        positions = [item.position for item in decided.waiting]
        assert sorted(positions) == list(range(1, len(positions) + 1))
        running = {allocation.job.id for allocation in snapshot.allocations}
        assert {order.job_id for order in decided.preemptions} <= running
        assert {order.for_job for order in decided.preemptions} <= {item.job_id for item in decided.waiting}
        assert {item.job_id for item in decided.reservations} <= {item.job_id for item in decided.waiting}


# ---- preemption ----


def after(snapshot: Snapshot, decided: Plan) -> set[GpuId]:
    """GPUs that nobody holds, is started on, is promised, or has reserved after a plan."""
    taken = {gpu for allocation in snapshot.allocations for gpu in allocation.gpus}
    taken |= {gpu for start in decided.starts for gpu in start.placement.gpus}
    taken |= {gpu for hold in decided.holds for gpu in hold.gpus}
    taken |= {gpu for reservation in decided.reservations for gpu in reservation.placement.gpus}
    return set(reference.places(snapshot.nodes)) - taken


@proof
@given(worlds())
def test_every_eviction_makes_room_for_its_cause_and_no_victim_is_one_too_many(world: World) -> None:
    _, moments = replay(world)
    for snapshot, decided, _ in moments:
        offered = reference.places(snapshot.nodes)
        free = after(snapshot, decided)
        held = {allocation.job.id: set(allocation.gpus) for allocation in snapshot.allocations}
        jobs = {job.id: job for job in snapshot.pending}
        promised = {hold.job_id: set(hold.gpus) for hold in decided.holds}
        for cause in {order.for_job for order in decided.preemptions}:
            victims = [order.job_id for order in decided.preemptions if order.for_job == cause]
            job, mine = jobs[cause], promised[cause]
            freed = set().union(*(held[victim] for victim in victims))
            assert reference.is_valid([offered[gpu] for gpu in mine], job)
            assert len(mine) == job.gpu_count
            idle = mine - set().union(*held.values())
            leaving = {
                gpu for allocation in snapshot.allocations if allocation.yielding for gpu in allocation.gpus
            }
            assert mine <= freed | idle | leaving
            for victim in victims:
                rest = (free | idle | (mine & leaving) | freed) - held[victim]
                room = [offered[gpu] for gpu in rest]
                assert not reference.can_place(job, room, world.policy), f"{cause} does not need {victim}"


@proof
@given(worlds())
def test_an_evictor_starts_when_its_victims_have_left_or_sooner_on_what_else_came_free(world: World) -> None:
    history, _ = replay(world)
    together: dict[tuple[float, str], set[str]] = defaultdict(set)
    for time, victim, cause in history.evictions:
        together[time, cause].add(victim)
    for (time, cause), victims in together.items():
        left = [
            min(run.end for run in history.runs if run.job_id == victim and run.end >= time)
            for victim in victims
        ]
        starts = [run.start for run in history.runs if run.job_id == cause]
        assert any(time <= start <= max(left) for start in starts), f"{cause} evicted {victims}: {starts}"


@proof
@given(worlds())
def test_nobody_evicts_who_evicted_him(world: World) -> None:
    history, _ = replay(world, max_cycles=1000)
    assert history.cycles < 1000
    pairs = {(victim, cause) for _, victim, cause in history.evictions}
    both = {pair for pair in pairs if pair[::-1] in pairs}
    assert not both


@proof
@given(worlds())
def test_victims_are_those_that_class_consent_age_and_guarantee_allow(world: World) -> None:
    _, moments = replay(world)
    for snapshot, decided, now in moments:
        running = {allocation.job.id: allocation for allocation in snapshot.allocations}
        jobs = {job.id: job for job in snapshot.pending}
        for order in decided.preemptions:
            victim = running[order.job_id]
            if order.code == "reclaim":
                own = victim.job.preemptible
                rules = world.policy.queues[victim.job.queue]
                assert rules.preemptible if own is None else own
                assert now - victim.start_time >= world.policy.preemption.min_runtime
                assert victim.job.project != jobs[order.for_job].project
                assert borrowed(snapshot, world.policy, victim.job.project)
            else:
                assert reference.may_be_victim(jobs[order.for_job], victim, world.policy, now)


def borrowed(snapshot: Snapshot, policy: Policy, project: str) -> bool:
    """Whether a project holds more than its guarantee."""
    rules = policy.project(project)
    guarantee = sum(rules.guaranteed_gpus.values()) if rules is not None else 0
    held = sum(len(one.gpus) for one in snapshot.allocations if one.job.project == project)
    return held > guarantee


@proof
@given(worlds())
def test_a_hard_quota_is_never_exceeded(world: World) -> None:
    history, _ = replay(world)
    projects = {item.job.id: item.job.project for item in world.works}
    moments = sorted({run.start for run in history.runs})
    for name in "ab":
        rules = world.policy.project(name)
        limit = rules.max_gpus if rules is not None else None
        for moment in moments if limit is not None else ():
            held = sum(
                len(run.gpus)
                for run in history.runs
                if projects[run.job_id] == name and run.start <= moment < run.end
            )
            assert held <= limit


# ---- sameness ----


@proof
@given(worlds(), st.integers(0, 2**32))
def test_the_same_input_gives_the_same_output_in_whatever_order_it_is_listed(world: World, seed: int) -> None:
    _, moments = replay(world, planner=plan)
    random = Random(seed)
    for snapshot, decided, now in moments[::3]:
        assert plan(snapshot, world.policy, now) == decided
        lists = {
            name: tuple(random.sample(getattr(snapshot, name), len(getattr(snapshot, name))))
            for name in ("nodes", "pending", "allocations", "usage", "holds")
        }
        shuffled = plan(replace(snapshot, **lists), world.policy, now)
        assert shuffled.starts == decided.starts
        assert shuffled.preemptions == decided.preemptions
        assert shuffled.reservations == decided.reservations
        assert set(shuffled.rejections) == set(decided.rejections)
        assert set(shuffled.waiting) == set(decided.waiting)
        copied = plan(pickle.loads(pickle.dumps(snapshot)), world.policy, now)  # noqa: S301 - its own bytes
        assert copied == decided


@proof
@given(worlds(), st.sampled_from([1.0, 1e6, 1.7e9]))
def test_only_differences_of_time_count(world: World, epoch: float) -> None:
    """The same world in another epoch, as on a real clock, has the same history."""
    later = tuple(
        Work(replace(item.job, submit_time=item.job.submit_time + epoch), item.duration)
        for item in world.works
    )
    policy = replace(world.policy, half_life=0.0)
    first, _ = replay(replace(world, policy=policy))
    second, _ = replay(replace(world, policy=policy, works=later))
    assert [(run.job_id, run.gpus) for run in first.runs] == [(run.job_id, run.gpus) for run in second.runs]
