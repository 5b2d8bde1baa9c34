"""Properties of fair share, and of backfill under the conditions under which they hold."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.replay import History, Replay, Work
from tests.builders.scheduling import a_job, a_pool, a_snapshot
from tests.proof.effort import proof
from tests.proof.worlds import World, counted, pool_of, worlds

from emep.policy import Policy, default_policy, parse_policy
from emep.scheduling.model import Allocation, Plan, Snapshot
from emep.scheduling.plan import plan

Counted = tuple[int, tuple[Work, ...]]


def history_of(world: Counted, reservations: int | None) -> History:
    size, works = world
    history = Replay(pool_of(size), replace(default_policy(), reservations=reservations), works).run()
    assert not history.unfinished
    return history


@proof
@given(counted())
def test_conservative_backfill_never_starts_a_job_later_than_fcfs(world: Counted) -> None:
    fcfs, conservative = history_of(world, 0).starts(), history_of(world, None).starts()
    assert all(conservative[job] <= fcfs[job] for job in fcfs)


@proof
@given(counted(), st.sampled_from([1, 2, None]))
def test_the_first_reservation_never_slips(world: Counted, reservations: int | None) -> None:
    history = history_of(world, reservations)
    promised: dict[str, float] = {}
    for _, job, at in history.reservations:
        assert at <= promised.get(job, math.inf)
        promised[job] = at
    assert all(history.start_of(job) <= at for job, at in promised.items())


@proof
@given(counted())
def test_under_fcfs_jobs_start_in_the_order_they_came(world: Counted) -> None:
    history = history_of(world, 0)
    order = sorted((item.job.submit_time, item.job.id) for item in world[1])
    starts = [history.start_of(job) for _, job in order]
    assert all(one <= other for one, other in pairwise(starts))


@proof
@given(counted(), st.sampled_from([0, 1, 2, None]))
def test_what_was_planned_is_at_rest(world: Counted, reservations: int | None) -> None:
    """A second plan in the same instant, made anew, starts nothing more and reserves the same."""
    size, works = world
    policy = replace(default_policy(), reservations=reservations)
    assert not Replay(pool_of(size), policy, works, planner=plan_twice).run().unfinished


def plan_twice(snapshot: Snapshot, policy: Policy, now: float) -> Plan:
    """A plan, after which a second one must find nothing to start."""
    decided = plan(snapshot, policy, now)
    jobs = {job.id: job for job in snapshot.pending}
    started = {start.job_id: start for start in decided.starts}
    next_snapshot = replace(
        snapshot,
        pending=tuple(job for job in snapshot.pending if job.id not in started),
        allocations=snapshot.allocations
        + tuple(
            Allocation(jobs[name], start.placement.gpus, now, start.placement.nodes)
            for name, start in started.items()
        ),
    )
    rest = plan(next_snapshot, policy, now)
    assert not rest.starts
    assert [item.at for item in rest.reservations] == [item.at for item in decided.reservations]
    return decided


# ---- entry charge and accounting ----


@proof
@given(st.integers(1, 60), st.integers(2, 8), st.booleans(), st.integers(0, 5))
def test_a_lone_job_is_never_last_behind_a_burst(count: int, gpus: int, before: bool, size: int) -> None:
    names = ("a", "b") if before else ("b", "a")
    jobs = [a_job(f"{names[0]}{number:02}").of("many") for number in range(count)]
    jobs.append(a_job(names[1]).of("one"))
    decided = plan(a_snapshot([a_pool(gpus)], jobs), default_policy(), float(size))
    assert names[1] in [start.job_id for start in decided.starts][:2]


@proof
@given(st.lists(st.sampled_from([1, 2, 3, 5]), min_size=2, max_size=4), st.integers(8, 40))
def test_a_burst_is_shared_by_weight_to_within_one_job(weights: list[int], gpus: int) -> None:
    projects = {f"p{place}": {"weight": weight} for place, weight in enumerate(weights)}
    jobs = [a_job(f"{name}-{number:02}").of(name) for name in projects for number in range(gpus)]
    decided = plan(a_snapshot([a_pool(gpus)], jobs), parse_policy({"projects": projects}), 0.0)
    for place, weight in enumerate(weights):
        started = sum(1 for start in decided.starts if start.job_id.startswith(f"p{place}-"))
        assert abs(started - gpus * weight / sum(weights)) <= len(weights)


@proof
@given(worlds(owners=False))
def test_usage_adds_up_to_the_gpu_seconds_that_were_allocated(world: World) -> None:
    history = Replay(world.nodes, world.policy, world.works, grace=world.grace).run()
    allocated = math.fsum(len(run.gpus) * (run.end - run.start) for run in history.runs)
    assert math.fsum(history.usage.values()) == pytest.approx(allocated)
    worked = math.fsum(
        item.job.gpu_count * item.duration for item in world.works if item.job.id not in history.rejected
    )
    assert allocated == pytest.approx(worked)
