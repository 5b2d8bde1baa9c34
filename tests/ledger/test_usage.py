"""Charges: exact while work runs and after, decayed with the half-life."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy import select
from tests.builders.ledger import Bench

from emep.ledger.shares.usage import decay, decayed_charge
from emep.ledger.store.tables import Usage

DAY = 86400.0
WEEK = 7 * DAY


def consumed(bench: Bench) -> dict[tuple[str, str, str], float]:
    return {
        (record.queue, record.project, record.user): record.gpu_seconds
        for record in bench.planner.read().snapshot.usage
    }


def test_what_runs_is_charged_as_it_runs_and_when_it_ends_nothing_changes(bench: Bench) -> None:
    bench.policy = replace(bench.policy, half_life=0.0)
    bench.node(gpus=4)
    job = bench.running(gpu_count=4, project="org/a")
    key = ("merge", "org/a", "alice")
    bench.clock.advance(50)
    assert consumed(bench)[key] == 200.0
    bench.complete(job)
    assert consumed(bench)[key] == 200.0
    bench.clock.advance(1000)
    assert consumed(bench)[key] == 200.0


def test_types_are_billed_by_their_weight_and_counted_without_it(bench: Bench) -> None:
    bench.policy = replace(bench.policy, gpu_billing={"H100": 2.0}, half_life=0.0)
    bench.node(gpus=2)
    job = bench.running(gpu_count=2)
    bench.clock.advance(10)
    bench.complete(job)
    with bench.database.read() as session:
        row = session.scalars(select(Usage)).one()
    assert (row.gpu_seconds, row.billed_gpu_seconds) == (20.0, 40.0)
    assert consumed(bench)[("merge", "default", "alice")] == 40.0


def test_charges_equal_held_time_over_many_runs(bench: Bench) -> None:
    bench.policy = replace(bench.policy, half_life=0.0)
    bench.node(gpus=4)
    held = 0.0
    for seconds in (3.0, 7.5, 11.25):
        first, second = bench.running(gpu_count=1), bench.running(gpu_count=3)
        bench.clock.advance(seconds)
        bench.complete(first)
        bench.complete(second, 1)
        held += 4 * seconds
    assert math.isclose(sum(consumed(bench).values()), held)


def test_after_one_half_life_half_is_left(bench: Bench) -> None:
    bench.node(gpus=1)
    job = bench.running()
    bench.clock.advance(100)
    bench.complete(job)
    now = consumed(bench)[("merge", "default", "alice")]
    bench.clock.advance(bench.policy.half_life)
    assert math.isclose(consumed(bench)[("merge", "default", "alice")], now / 2)


def test_cpu_jobs_cost_no_gpu_time(bench: Bench) -> None:
    bench.node(gpus=1)
    job = bench.running(gpu_count=0)
    bench.clock.advance(100)
    bench.complete(job)
    assert consumed(bench) == {}


@example(start=131072.0, length=1e-08, wait=0.0, rate=86.0)
@given(start=st.floats(0, WEEK), length=st.floats(0, WEEK), wait=st.floats(0, WEEK), rate=st.floats(0, 1000))
def test_a_charge_is_the_integral_of_what_is_left_of_each_moment(
    start: float, length: float, wait: float, rate: float
) -> None:
    end, now = start + length, start + length + wait
    length = end - start  # of a short one beside a late start, not all digits are left
    steps = 2000
    summed = sum(
        decay(rate * length / steps, now - (start + length * (step + 0.5) / steps), DAY)
        for step in range(steps)
    )
    assert decayed_charge(rate, start, end, now, DAY) == pytest.approx(summed, rel=1e-4, abs=1e-9)


@given(cut=st.floats(0, 1), length=st.floats(1e-3, WEEK), wait=st.floats(0, WEEK))
def test_charging_in_two_parts_comes_to_the_same(cut: float, length: float, wait: float) -> None:
    middle, now = length * cut, length + wait
    parts = decayed_charge(8, 0, middle, now, WEEK) + decayed_charge(8, middle, length, now, WEEK)
    assert parts == pytest.approx(decayed_charge(8, 0, length, now, WEEK), rel=1e-9)


@given(amount=st.floats(0, 1e12), first=st.floats(0, WEEK), second=st.floats(0, WEEK))
def test_decaying_twice_is_decaying_once_for_longer(amount: float, first: float, second: float) -> None:
    twice = decay(decay(amount, first, DAY), second, DAY)
    assert twice == pytest.approx(decay(amount, first + second, DAY), rel=1e-9)
    assert decay(amount, first, 0) == amount
