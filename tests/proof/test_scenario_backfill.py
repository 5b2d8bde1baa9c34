"""Backfill: traces with known starts, the worked example, and what may never pass a reservation."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise, permutations

import pytest
from tests.builders.replay import History, Replay, Work, work
from tests.builders.scheduling import NodeBuilder, a_job, a_node, a_pool, a_snapshot, running

from emep.policy import Policy, parse_policy
from emep.scheduling.model import ReasonCode
from emep.scheduling.plan import plan

HOUR = 3600.0
FCFS, EASY, CONSERVATIVE = 0, 1, None


def rules(reservations: int | None, **more: object) -> Policy:
    return replace(parse_policy(more), reservations=reservations)


def starts(size: int | list[NodeBuilder], works: list[Work], reservations: int | None) -> dict[str, float]:
    nodes = [a_pool(size)] if isinstance(size, int) else size
    history: History = Replay(nodes, rules(reservations), works).run()
    assert not history.unfinished
    assert not history.rejected
    return history.starts()


FIVE = [work("J1", 0, 4, 100), work("J2", 1, 8, 50), work("J3", 2, 4, 90), work("J4", 3, 4, 100)]
FIVE += [work("J5", 4, 2, 10)]
FOUR = [work("R", 0, 4, 10), work("B", 1, 4, 10), work("C", 2, 6, 10), work("D", 3, 2, 100)]


@pytest.mark.parametrize(
    ("reservations", "expected"),
    [(FCFS, [0, 100, 150, 150, 240]), (EASY, [0, 100, 2, 150, 150]), (CONSERVATIVE, [0, 100, 2, 150, 150])],
)
def test_five_jobs_on_eight_gpus_start_when_they_should(
    reservations: int | None, expected: list[float]
) -> None:
    found = starts(8, FIVE, reservations)
    assert [found[f"J{number}"] for number in range(1, 6)] == expected


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("scale", [1, 3])
def test_the_five_jobs_start_the_same_on_several_nodes_and_in_other_units(seed: int, scale: int) -> None:
    sizes = [[8], [4, 4], [2, 2, 2, 2], [1] * 8][seed]
    nodes = [a_pool(size * scale, f"n{number}") for number, size in enumerate(sizes)]
    works = [
        work(item.job.id, item.job.submit_time * 60, item.job.gpu_count * scale, item.duration * 60)
        for item in FIVE
    ]
    found = starts(nodes, works, EASY)
    assert [found[f"J{number}"] / 60 for number in range(1, 6)] == [0, 100, 2, 150, 150]


@pytest.mark.parametrize(
    ("reservations", "expected"),
    [(EASY, {"B": 10, "D": 3, "C": 103}), (CONSERVATIVE, {"B": 10, "C": 20, "D": 30})],
)
def test_easy_protects_the_first_only_and_conservative_everybody(
    reservations: int | None, expected: dict[str, float]
) -> None:
    found = starts(6, FOUR, reservations)
    assert {job: found[job] for job in expected} == expected


def test_two_reservations_protect_the_second_too() -> None:
    assert starts(6, FOUR, 2) == starts(6, FOUR, CONSERVATIVE)


@pytest.mark.parametrize("reservations", [EASY, CONSERVATIVE])
@pytest.mark.parametrize(("run", "start"), [(8, 2), (7.999, 2), (8.001, 20), (9, 20)])
def test_a_backfilled_job_may_end_exactly_at_the_reservation_and_no_later(
    reservations: int | None, run: float, start: float
) -> None:
    works = [work("R", 0, 2, 10), work("B", 1, 4, 10), work("C", 2, 2, run)]
    assert starts(4, works, reservations)["C"] == start


def test_a_stream_of_small_jobs_never_delays_the_wide_one() -> None:
    works = [work("wide", 1, 8, 50)]
    works += [work(f"small{number:03}", number * 0.5, 1, 30) for number in range(200)]
    history = Replay([a_pool(8)], rules(EASY), works).run()
    # The three before it (one by its name) hold GPUs until 30, 30.5 and 31: nothing may hold it past that.
    assert history.start_of("wide") == 31.0
    promises = [at for _, job, at in history.reservations if job == "wide"]
    assert all(later <= earlier for earlier, later in pairwise(promises))


def test_the_order_in_which_jobs_are_listed_changes_nothing() -> None:
    found = {tuple(sorted(starts(8, list(order), EASY).items())) for order in permutations(FIVE)}
    assert len(found) == 1


def test_a_job_that_ends_early_moves_the_reservation_earlier() -> None:
    works = [work("R", 0, 4, 10, max_duration=100), work("W", 1, 8, 50), work("C", 2, 4, 90)]
    found = starts(8, works, EASY)
    # At 2, C fits before W's reservation at 100; R ends at 10, but C holds its GPUs to the end.
    assert found == {"R": 0, "W": 92, "C": 2}
    works[2] = work("C", 11, 4, 90)
    assert starts(8, works, EASY)["W"] == 10


def test_a_running_job_past_its_limit_is_expected_to_end_now() -> None:
    overdue = running(a_job("old").gpus(4).limit(10), "n:0-3", since=0)
    wide = a_job("wide").gpus(8).limit(5).at(1)
    small = a_job("small").gpus(4).limit(1).at(2)
    decided = plan(a_snapshot([a_pool(8)], [wide, small], [overdue]), rules(EASY), 20.0)
    assert [item.at for item in decided.reservations] == pytest.approx([20.0])
    assert not decided.starts


# ---- the worked example: 128 GPUs ----


def example(nodes: list[NodeBuilder], extra: list[Work], now_jobs: list[Work]) -> History:
    works = [work("A", 0, 64, 12 * HOUR), work("G", 0, 24, 24 * HOUR), work("C", 60, 96, 6 * HOUR)]
    return Replay(nodes, rules(EASY), works + now_jobs + extra).run()


@pytest.mark.parametrize("nodes", [[a_pool(128)], [a_pool(8, f"n{number:02}") for number in range(16)]])
def test_the_worked_example_of_128_gpus(nodes: list[NodeBuilder]) -> None:
    small = [work("D", 120, 8, 2 * HOUR), work("E", 120, 32, HOUR)]
    long = [work("F1", 180, 8, 20 * HOUR), work("F2", 180, 8, 20 * HOUR), work("F3", 181, 8, 20 * HOUR)]
    history = example(nodes, long, small)
    assert history.start_of("D") == history.start_of("E") == 120
    assert history.start_of("C") == 12 * HOUR
    # E's GPUs come free at 1 h; eight GPUs are left over by the reservation, for one such job and no more.
    assert history.start_of("F1") == 120 + HOUR
    assert history.start_of("F2") >= 12 * HOUR
    assert history.start_of("F3") >= 12 * HOUR


def test_a_reservation_takes_as_few_of_the_free_gpus_as_it_can() -> None:
    busy = [
        running(a_job("A").gpus(64).limit(12 * HOUR), "n:0-63"),
        running(a_job("G").gpus(24).limit(24 * HOUR), "n:64-87"),
    ]
    wide = a_job("C").gpus(96).limit(6 * HOUR).at(1)
    long = [a_job(f"F{number}").gpus(8).limit(20 * HOUR).at(2) for number in (1, 2)]
    decided = plan(a_snapshot([a_pool(128)], [wide, *long], busy), rules(EASY), 2.0)
    (reserved,) = decided.reservations
    assert (reserved.job_id, reserved.at) == ("C", 12 * HOUR)
    free_now = {gpu for gpu in reserved.placement.gpus if gpu.index >= 88}
    assert len(free_now) == 32
    assert [(start.job_id, start.backfilled) for start in decided.starts] == [("F1", True)]
    assert free_now.isdisjoint(decided.starts[0].placement.gpus)


# ---- who reserves and who does not ----


def test_each_pool_has_reservations_of_its_own() -> None:
    policy = rules(EASY, queues={"merge": {"pools": ["one"]}, "eval": {"pools": ["two"]}})
    nodes = [a_pool(4, "a").pool("one"), a_pool(4, "b").pool("two")]
    works = [
        work("R1", 0, 2, 10),
        work("R2", 0, 2, 10, queue="eval"),
        work("B1", 1, 4, 10),
        work("B2", 1, 4, 10, queue="eval"),
        work("C1", 2, 2, 50),
        work("C2", 2, 2, 50, queue="eval"),
    ]
    history = Replay(nodes, policy, works).run()
    assert history.start_of("B1") == history.start_of("B2") == 10
    assert history.start_of("C1") == history.start_of("C2") == 20


def test_a_full_pool_does_not_hold_back_another() -> None:
    policy = rules(FCFS, queues={"merge": {"pools": ["one"]}, "eval": {"pools": ["two"]}})
    nodes = [a_pool(2, "a").pool("one"), a_pool(2, "b").pool("two")]
    works = [work("R", 0, 2, 100), work("B", 1, 2, 10), work("other", 2, 2, 10, queue="eval")]
    assert Replay(nodes, policy, works).run().start_of("other") == 2


def test_a_job_that_waits_for_its_quota_reserves_nothing_and_blocks_nobody() -> None:
    policy = rules(EASY, projects={"small": {"max_gpus": 2}})
    held = running(a_job("held").gpus(2).of("small").limit(100), "n:0-1")
    blocked = a_job("blocked").gpus(2).of("small").limit(100).at(1)
    behind = a_job("behind").gpus(6).of("other").limit(1000).at(2)
    for reservations in (FCFS, EASY, CONSERVATIVE):
        decided = plan(
            a_snapshot([a_pool(8)], [blocked, behind], [held]),
            replace(policy, reservations=reservations),
            2.0,
        )
        assert [start.job_id for start in decided.starts] == ["behind"]
        assert not decided.reservations
        (waits,) = decided.waiting
        assert ReasonCode.QUOTA_EXCEEDED in {reason.code for reason in waits.reasons}


def test_without_backfill_nothing_passes_the_first_that_does_not_fit() -> None:
    held = running(a_job("held").gpus(5).limit(100), "n:0-4")
    jobs = [a_job("wide").gpus(4).limit(1).at(1), a_job("small").gpus(1).limit(1).at(2)]
    decided = plan(a_snapshot([a_pool(8)], jobs, [held]), rules(FCFS), 3.0)
    assert not decided.starts
    assert [item.job_id for item in decided.waiting] == ["wide", "small"]


def test_a_job_behind_a_reservation_says_so_and_until_when() -> None:
    held = running(a_job("held").gpus(4).limit(100), "n:0-3")
    jobs = [a_job("wide").gpus(8).limit(1).at(1), a_job("long").gpus(4).limit(500).at(2)]
    decided = plan(a_snapshot([a_pool(8)], jobs, [held]), rules(EASY), 3.0)
    waits = {item.job_id: item for item in decided.waiting}
    assert ReasonCode.BEHIND_RESERVATION in {reason.code for reason in waits["long"].reasons}
    assert any("wide" in reason.text for reason in waits["long"].reasons)
    assert ReasonCode.INSUFFICIENT_GPUS in {reason.code for reason in waits["wide"].reasons}
    assert waits["wide"].estimated_start == pytest.approx(100)


def test_an_endless_job_is_never_counted_on_to_end() -> None:
    service = running(a_job("service").gpus(4).queue("inference").limit(None), "n:0-3")
    jobs = [a_job("wide").gpus(8).limit(10).at(1), a_job("small").gpus(4).limit(1e6).at(2)]
    decided = plan(a_snapshot([a_pool(8)], jobs, [service]), rules(EASY), 3.0)
    # The wide job fits on the empty cluster, so it waits; when, nobody knows: it can hold nothing back.
    assert all(math.isinf(item.at) for item in decided.reservations if item.job_id == "wide")
    assert [start.job_id for start in decided.starts] == ["small"]
    (waits,) = decided.waiting
    assert waits.estimated_start is None


def test_an_endless_job_is_not_backfilled_onto_reserved_gpus() -> None:
    held = running(a_job("held").gpus(4).limit(100).having(preemptible=False), "n:0-3")
    jobs = [
        a_job("wide").gpus(6).limit(10).at(1).priority("high"),
        a_job("service").gpus(4).queue("inference").limit(None).at(2).of("s"),
        a_job("little").gpus(2).queue("inference").limit(None).at(3).of("s"),
    ]
    decided = plan(a_snapshot([a_pool(8)], jobs, [held]), rules(EASY), 3.0)
    # Reserved at 100: the four that come free and two of those free now; two are left over.
    assert [start.job_id for start in decided.starts] == ["little"]


def test_reserved_gpus_lie_where_the_job_can_use_them() -> None:
    # Two groups of four; the left is free at 50, the right at 10 but one GPU of it is held until 1000.
    nodes = [a_node("n").gpus(8).nvlink_groups_of(4)]
    busy = [
        running(a_job("left").gpus(4).limit(50), "n:0-3"),
        running(a_job("right").gpus(3).limit(10), "n:4-6"),
        running(a_job("stays").gpus(1).limit(1000), "n:7"),
    ]
    decided = plan(a_snapshot(nodes, [a_job("x").gpus(4).nvlink().limit(5).at(1)], busy), rules(EASY), 2.0)
    (reserved,) = decided.reservations
    assert reserved.at == 50
    assert {gpu.index for gpu in reserved.placement.gpus} == {0, 1, 2, 3}
