"""Accounting adds up to the GPU-seconds allocated, as they run; and decay halves in a half-life."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.replay import work
from tests.builders.scheduling import a_pool
from tests.proof.effort import proof
from tests.proof.worlds import World, worlds

from emep.ledger.shares.usage import decay, decayed_charge
from emep.policy import Policy, parse_policy
from emep.scheduling.model import Allocation, Node, Plan, UsageRecord
from emep.simulation.read.jobs import JobSpec
from emep.simulation.run.engine import Simulation
from emep.simulation.run.recording import Recording, RunSpan, State
from emep.simulation.run.schedulers import KeptScheduler
from emep.simulation.run.usage import UsageAccounts

HOUR = 3600.0
LEAF = ("merge", "a", "ann")


class Watched(KeptScheduler):
    """The production scheduler, and per plan: the time, usage it was told, GPU-seconds allocated by then."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.told: list[tuple[float, float, float]] = []
        self.spans: list[RunSpan] = []
        self.running: dict[str, Allocation] = {}

    def start(self, allocation: Allocation) -> None:
        self.running[allocation.job.id] = allocation
        super().start(allocation)

    def end(self, job_id: str) -> None:
        del self.running[job_id]
        super().end(job_id)

    def plan(self, nodes: tuple[Node, ...], now: float, usage: Sequence[UsageRecord]) -> Plan:
        runs = [(span.start, span.end, len(span.gpus)) for span in self.spans]
        runs += [(one.start_time, now, len(one.gpus)) for one in self.running.values()]
        allocated = math.fsum((end - start) * gpus for start, end, gpus in runs)
        self.told.append((now, math.fsum(record.gpu_seconds for record in usage), allocated))
        return super().plan(nodes, now, usage)


def simulate(world: World) -> tuple[Recording, list[tuple[float, float, float]]]:
    """What the simulator recorded, and what it told the core."""
    policy = replace(world.policy, half_life=0.0).for_simulation()
    scheduler = Watched(policy)
    specs = [JobSpec(item.job, item.duration) for item in world.works]
    simulation = Simulation(list(world.nodes), specs, policy, scheduler)
    scheduler.spans = simulation.recording.runs
    return simulation.run(), scheduler.told


@proof
@given(worlds())
def test_usage_is_every_gpu_second_that_was_allocated_up_to_now(world: World) -> None:
    recording, told = simulate(world)
    for now, usage, allocated in told:
        assert usage == pytest.approx(allocated, abs=1e-6), f"at {now}"
    spans = math.fsum((span.end - span.start) * len(span.gpus) for span in recording.runs)
    assert math.fsum(one.gpu_seconds for one in recording.outcomes) == pytest.approx(spans, abs=1e-6)
    steps = list(zip(recording.series.times, recording.series.busy, strict=True))
    area = math.fsum((after[0] - before[0]) * before[1] for before, after in pairwise(steps))
    assert area == pytest.approx(spans, abs=1e-6)


@proof
@given(worlds())
def test_the_simulator_gives_no_gpu_twice_and_ends_everything(world: World) -> None:
    recording, _ = simulate(world)
    spans = sorted((str(gpu), span.start, span.end) for span in recording.runs for gpu in span.gpus)
    for one, other in pairwise(spans):
        assert one[0] != other[0] or one[2] <= other[1]
    assert {one.state for one in recording.outcomes} <= {State.COMPLETED, State.REJECTED}


def test_a_job_that_exits_by_itself_in_its_grace_is_judged_by_its_own_exit() -> None:
    policy = parse_policy({"simulation": {"checkpoint_time": "30s"}, "preemption": {"grace_period": "120s"}})
    works = (
        work("almost", 0, 4, 100, priority="low"),
        work("far", 0, 4, 1000, priority="low"),
        work("urgent", 80, 8, 50, priority="critical"),
    )
    recording, _ = simulate(World((a_pool(8).build(),), policy, works))
    found = {one.spec.job.id: one for one in recording.outcomes}
    assert (found["almost"].state, found["almost"].end, found["almost"].preemptions) == (
        State.COMPLETED,
        100,
        0,
    )
    assert found["far"].preemptions == 1
    assert found["urgent"].first_start == 110


# ---- decay ----


def by_simulator(rate: float, start: float, end: float, now: float, half_life: float) -> float:
    accounts = UsageAccounts(half_life)
    accounts.add_rate(LEAF, rate, start)
    accounts.add_rate(LEAF, -rate, end)
    return accounts.records(now)[0].gpu_seconds


def by_ledger(rate: float, start: float, end: float, now: float, half_life: float) -> float:
    return decayed_charge(rate, start, end, now, half_life)


WAYS = [by_simulator, by_ledger]


@pytest.mark.parametrize("way", WAYS)
def test_a_hundred_gpu_hours_one_half_life_ago_weigh_as_fifty(way: type) -> None:
    week = 7 * 24 * HOUR
    for now, left in ((0.0, 100), (week, 50), (2 * week, 25), (10 * week, 100 / 1024)):
        # A hundred thousand GPUs for 3.6 s: short enough to be an instant against a week.
        used = way(1e5, -3.6, 0.0, now, week)
        assert used / HOUR == pytest.approx(left, rel=1e-4)


@pytest.mark.parametrize("way", WAYS)
def test_without_a_half_life_nothing_fades(way: type) -> None:
    assert way(4.0, 0.0, 100.0, 1e9, 0.0) == 400.0


@proof
@given(
    rate=st.floats(0.1, 1e4),
    length=st.floats(1e-6, 20),
    age=st.floats(0, 20),
    half_life=st.sampled_from([60.0, 3600.0, 604800.0, 1e9]),
)
def test_both_ways_of_keeping_usage_are_the_integral(
    rate: float, length: float, age: float, half_life: float
) -> None:
    """``length`` of the run and ``age`` since its end are in half-lives."""
    steps = 2000
    # Simpson's rule over the run, each moment decayed to now.
    width = length / steps
    weights = [1, *([4, 2] * (steps // 2))[: steps - 1], 1]
    moments = (weight * 2 ** -(age + step * width) for step, weight in enumerate(weights))
    expected = rate * width * half_life / 3 * math.fsum(moments)
    end = length * half_life
    for way in WAYS:
        assert way(rate, 0.0, end, end + age * half_life, half_life) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("parts", [1, 2, 7])
def test_decay_in_steps_is_decay_at_once(parts: int) -> None:
    left = 100.0
    for _ in range(parts):
        left = decay(left, 700.0 / parts, 700.0)
    assert left == pytest.approx(50)
