"""What waiting jobs are told, and orders other than submission: right in numbers, and nobody starves."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from tests.builders.replay import Replay, Work, work
from tests.builders.scheduling import a_job, a_node, a_pool, a_snapshot, running
from tests.proof.effort import proof
from tests.proof.worlds import counted, pool_of

from emep.policy import default_policy, parse_policy
from emep.scheduling.model import GpuState, Plan, ReasonCode, Snapshot, Waiting
from emep.scheduling.plan import plan

DEFAULT = parse_policy({})
Counted = tuple[int, tuple[Work, ...]]


def told(decided: Plan, job_id: str) -> Waiting:
    return next(item for item in decided.waiting if item.job_id == job_id)


def texts(item: Waiting, code: ReasonCode) -> list[str]:
    return [reason.text for reason in item.reasons if reason.code is code]


# ---- estimates ----


@proof
@given(counted())
def test_under_conservative_backfill_nobody_starts_later_than_he_was_first_told(world: Counted) -> None:
    size, works = world
    at_once = [Work(replace(item.job, submit_time=0.0), item.duration) for item in works]
    policy = replace(default_policy(), reservations=None)
    first: dict[str, float] = {}

    def note(snapshot: Snapshot, decided: Plan, now: float) -> None:
        for item in decided.waiting:
            assert item.estimated_start is not None
            assert item.estimated_start >= now
            first.setdefault(item.job_id, item.estimated_start)

    history = Replay(pool_of(size), policy, at_once, planner=plan, watch=note).run()
    for job_id, estimate in first.items():
        assert history.start_of(job_id) <= estimate + 1e-6


def test_a_job_is_told_when_it_will_start_and_when_never() -> None:
    held = running(a_job("held").gpus(6).limit(100), "n:0-5")
    decided = plan(a_snapshot([a_pool(8)], [a_job("wide").gpus(8).limit(10).at(1)], [held]), DEFAULT, 40.0)
    assert told(decided, "wide").estimated_start == 100
    service = running(a_job("service").queue("inference").gpus(6), "n:0-5")
    decided = plan(a_snapshot([a_pool(8)], [a_job("wide").gpus(8).limit(10).at(1)], [service]), DEFAULT, 40.0)
    assert told(decided, "wide").estimated_start is None
    assert told(decided, "wide").estimate_text.startswith("never")


# ---- all reasons, with numbers ----


def test_a_job_that_several_things_block_is_told_all_of_them() -> None:
    policy = parse_policy({"projects": {"p": {"max_gpus": 4}}})
    nodes = [a_node("n").gpus(8).nvlink_groups_of(4).with_state(GpuState.UNHEALTHY, 0)]
    held = running(a_job("held").of("p").gpus(3).limit(100).having(preemptible=False), "n:4-6")
    decided = plan(a_snapshot(nodes, [a_job("x").of("p").gpus(4).nvlink().limit(9)], [held]), policy, 1.0)
    waits = told(decided, "x")
    assert {reason.code for reason in waits.reasons} >= {
        ReasonCode.QUOTA_EXCEEDED,
        ReasonCode.NO_FREE_NVLINK_GROUP,
        ReasonCode.UNHEALTHY_GPUS,
    }
    (quota,) = texts(waits, ReasonCode.QUOTA_EXCEEDED)
    assert "3" in quota
    assert "4" in quota
    (group,) = texts(waits, ReasonCode.NO_FREE_NVLINK_GROUP)
    assert "3 of 4" in group


def test_too_few_free_gpus_are_said_in_numbers() -> None:
    held = running(a_job("held").gpus(3).limit(100), "n:0-2")
    decided = plan(a_snapshot([a_pool(8)], [a_job("x").gpus(8).limit(9)], [held]), DEFAULT, 1.0)
    (text,) = texts(told(decided, "x"), ReasonCode.INSUFFICIENT_GPUS)
    assert "8" in text
    assert "5 free" in text


def test_a_backoff_is_said_with_what_is_left_of_it() -> None:
    decided = plan(a_snapshot([a_pool(8)], [a_job("x").having(not_before=91.0)]), DEFAULT, 1.0)
    assert not decided.starts
    (text,) = texts(told(decided, "x"), ReasonCode.BACKING_OFF)
    assert "1m30s" in text
    assert [one.job_id for one in plan(a_snapshot([a_pool(8)], [a_job("x")]), DEFAULT, 91.0).starts] == ["x"]


def test_a_job_that_backs_off_holds_nobody_back() -> None:
    jobs = [a_job("x").gpus(8).having(not_before=91.0), a_job("y").gpus(2).limit(1e6).at(1)]
    for reservations in (0, 1, None):
        policy = replace(DEFAULT, reservations=reservations)
        decided = plan(a_snapshot([a_pool(8)], jobs), policy, 2.0)
        assert [start.job_id for start in decided.starts] == ["y"]


# ---- other orders ----


def stream(count: int) -> list[Work]:
    """One GPU, always somebody short waiting, and one long job that came first."""
    works = [work("running", 0, 1, 5), work("long", 0.5, 1, 100)]
    return works + [work(f"short{number:03}", 1 + number * 2, 1, 3) for number in range(count)]


@pytest.mark.parametrize(("order", "first"), [("submit_time", 5), ("shortest", 305), ("smallest_area", 305)])
def test_short_jobs_go_first_where_the_policy_says_so(order: str, first: float) -> None:
    history = Replay([a_pool(1)], parse_policy({"order": order}), stream(100)).run()
    assert history.start_of("long") == first


@pytest.mark.parametrize("bound", [20.0, 60.0, 150.0])
def test_a_job_that_has_waited_its_bound_is_back_in_submission_order(bound: float) -> None:
    policy = parse_policy({"order": "shortest", "starvation_bound": bound})
    history = Replay([a_pool(1)], policy, stream(100)).run()
    # It is looked at whenever a short one ends, each 3 s: the first time past its bound it is its turn.
    assert 0 <= history.start_of("long") - (0.5 + bound) < 3
    assert not history.unfinished


def test_a_starving_job_gets_the_reservation() -> None:
    policy = parse_policy({"order": "shortest", "starvation_bound": 60})
    works = [work("wide", 0.5, 2, 50), work("first", 0, 1, 4), work("second", 0, 1, 5)]
    works += [work(f"short{number:03}", 1 + number, 1, 3) for number in range(150)]
    history = Replay([a_pool(2)], policy, works).run()
    # Two short ones run at any time: only a reservation lets both GPUs come free for it.
    assert 60.5 <= history.start_of("wide") <= 60.5 + 2 * 3


def test_smallest_area_weighs_gpus_and_time() -> None:
    works = [work("running", 0, 4, 5), work("thin", 1, 1, 30), work("broad", 2, 4, 7), work("tiny", 3, 3, 1)]
    starts = (
        Replay([a_pool(4)], parse_policy({"order": "smallest_area", "reservations": 0}), works).run().starts()
    )
    # Areas: tiny 3, broad 28, thin 30. Tiny first, then nothing passes broad, which needs all four.
    assert starts["tiny"] == 5
    assert starts["broad"] == 6
    assert starts["thin"] == 13


def test_class_and_fair_share_come_before_size() -> None:
    works = [work("running", 0, 1, 5), work("short", 1, 1, 1), work("long", 2, 1, 50, priority="high")]
    history = Replay([a_pool(1)], parse_policy({"order": "shortest"}), [
        replace(item, job=replace(item.job, preemptible=False)) for item in works
    ]).run()  # fmt: skip
    assert (history.start_of("long"), history.start_of("short")) == (5, 55)


def test_an_estimate_orders_but_does_not_kill_or_promise() -> None:
    # Both say at most 100; history says 5 for one of them.
    jobs = [
        a_job("a").gpus(4).limit(100).at(0),
        a_job("b").gpus(4).limit(100).at(1).having(estimated_duration=5.0),
    ]
    decided = plan(a_snapshot([a_pool(4)], jobs), parse_policy({"order": "shortest"}), 2.0)
    assert [start.job_id for start in decided.starts] == ["b"]
    assert all(math.isclose(item.at, 102.0) for item in decided.reservations)
