"""Reservations and what may pass them."""

from __future__ import annotations

import pytest
from tests.builders.replay import Replay, work
from tests.builders.scheduling import a_job, a_node, a_pool, a_snapshot, gpu_ids, running

from emep.policy import Policy, parse_policy
from emep.scheduling.plan import plan

HOUR = 3600.0


def policy(reservations: int | str = 1) -> Policy:
    return parse_policy({"reservations": reservations})


def worked_example(later: list[tuple[str, int, float]]) -> tuple[list[str], list[str]]:
    """128 GPUs: A holds 64 until 12 h, G 24 until 24 h; C needs 96. Who of the later ones starts, waits."""
    nodes = [a_pool(64, "a"), a_pool(24, "g"), a_pool(40, "f")]
    busy = [
        running(a_job("A").gpus(64).limit(12 * HOUR), "a:0-63"),
        running(a_job("G").gpus(24).limit(24 * HOUR), "g:0-23"),
    ]
    jobs = [a_job("C").gpus(96).limit(HOUR)]
    jobs += [
        a_job(name).at(place).gpus(gpus).limit(hours * HOUR)
        for place, (name, gpus, hours) in enumerate(later, 1)
    ]
    decided = plan(a_snapshot(nodes, jobs, busy), policy(), 0.0)
    assert [(item.job_id, item.at) for item in decided.reservations] == [("C", 12 * HOUR)]
    return [start.job_id for start in decided.starts], [item.job_id for item in decided.waiting]


def test_the_worked_example() -> None:
    assert worked_example([("D", 8, 2), ("E", 32, 1)]) == (["D", "E"], ["C"])


def test_eight_gpus_are_left_over_for_one_long_job_and_no_second() -> None:
    assert worked_example([("F", 8, 20), ("F2", 8, 20)]) == (["F"], ["C", "F2"])


def test_short_jobs_leave_the_left_over_gpus_to_long_ones() -> None:
    started, _ = worked_example([("D", 8, 2), ("E", 24, 1), ("F", 8, 20), ("F2", 8, 20)])
    assert started == ["D", "E", "F"]


def test_a_reservation_takes_as_few_free_gpus_as_it_can() -> None:
    nodes = [a_pool(4, "busy"), a_pool(4, "idle")]
    busy = [running(a_job("r").gpus(4).limit(50), "busy:0-3")]
    decided = plan(a_snapshot(nodes, [a_job("x").gpus(6).limit(9)], busy), policy(), 0.0)
    (reserved,) = decided.reservations
    assert reserved.at == 50
    assert set(gpu_ids("busy:0-3")) <= set(reserved.placement.gpus)


def test_a_group_is_reserved_where_it_comes_free_first() -> None:
    nodes = [a_pool(4, "late"), a_pool(4, "soon")]
    busy = [
        running(a_job("l").gpus(2).limit(90), "late:0-1"),
        running(a_job("s").gpus(3).limit(60), "soon:1-3"),
    ]
    decided = plan(a_snapshot(nodes, [a_job("x").gpus(4).nvlink().limit(9)], busy), policy(), 0.0)
    (reserved,) = decided.reservations
    assert (reserved.at, reserved.placement.gpus) == (60.0, gpu_ids("soon:0-3"))


def test_a_job_that_ends_exactly_when_the_reservation_begins_may_start() -> None:
    runs = [work("R", 0, 2, 10), work("B", 1, 4, 10), work("C", 2, 2, 8)]
    assert Replay([a_pool(4)], policy(), runs).run().starts() == {"R": 0, "C": 2, "B": 10}
    runs[2] = work("C", 2, 2, 9)
    assert Replay([a_pool(4)], policy(), runs).run().start_of("C") == 20


@pytest.mark.parametrize(
    ("reservations", "expected"),
    [(0, [0, 100, 150, 150, 240]), (1, [0, 100, 2, 150, 150]), ("all", [0, 100, 2, 150, 150])],
)
def test_fcfs_easy_and_conservative(reservations: int | str, expected: list[float]) -> None:
    runs = [
        work("1", 0, 4, 100),
        work("2", 1, 8, 50),
        work("3", 2, 4, 90),
        work("4", 3, 4, 100),
        work("5", 4, 2, 10),
    ]
    history = Replay([a_pool(8)], policy(reservations), runs).run()
    assert [history.start_of(name) for name in "12345"] == expected


@pytest.mark.parametrize(("reservations", "expected"), [(1, [10, 103, 3]), ("all", [10, 20, 30])])
def test_easy_protects_the_first_that_waits_and_conservative_all(
    reservations: int | str, expected: list[float]
) -> None:
    runs = [work("R", 0, 4, 10), work("B", 1, 4, 10), work("C", 2, 6, 10), work("D", 3, 2, 100)]
    history = Replay([a_pool(6)], policy(reservations), runs).run()
    assert [history.start_of(name) for name in "BCD"] == expected


def test_a_job_that_waits_for_its_quota_reserves_nothing_and_blocks_nobody() -> None:
    rules = parse_policy({"reservations": 0, "projects": {"small": {"max_gpus": 2}}})
    busy = [running(a_job("r").of("small").gpus(2).limit(50), "n:0-1")]
    jobs = [a_job("over").of("small").gpus(2).at(0), a_job("free").of("other").gpus(4).at(1)]
    decided = plan(a_snapshot([a_pool(8)], jobs, busy), rules, 5.0)
    assert [start.job_id for start in decided.starts] == ["free"]
    assert not decided.reservations


def test_a_job_in_backoff_reserves_nothing_and_blocks_nobody() -> None:
    jobs = [a_job("back").gpus(8).having(not_before=50.0), a_job("next").gpus(8).at(1)]
    decided = plan(a_snapshot([a_pool(8)], jobs), policy(0), 5.0)
    assert [start.job_id for start in decided.starts] == ["next"]


def test_reservations_are_counted_by_pool() -> None:
    rules = parse_policy({"queues": {"eval": {"pools": ["b"]}}})
    nodes = [a_pool(4, "x"), a_pool(4, "y").pool("b")]
    busy = [
        running(a_job("1").gpus(2).limit(9), "x:0-1"),
        running(a_job("2").queue("eval").gpus(2).limit(8), "y:0-1"),
    ]
    jobs = [
        a_job("m").gpus(4).limit(5),
        a_job("e").queue("eval").gpus(4).limit(5),
        a_job("m2").gpus(4).limit(5).at(3),
    ]
    decided = plan(a_snapshot(nodes, jobs, busy), rules, 4.0)
    assert {item.job_id: item.at for item in decided.reservations} == {"m": 9.0, "e": 8.0}


def test_without_backfill_another_pool_goes_on() -> None:
    rules = parse_policy({"reservations": 0, "queues": {"eval": {"pools": ["b"]}}})
    nodes = [a_pool(4, "x"), a_pool(4, "y").pool("b")]
    busy = [running(a_job("1").gpus(2).limit(9), "x:0-1")]
    jobs = [a_job("m").gpus(4), a_job("small").at(1), a_job("e").queue("eval").at(2)]
    decided = plan(a_snapshot(nodes, jobs, busy), rules, 4.0)
    assert [start.job_id for start in decided.starts] == ["e"]
    assert {item.job_id: item.reasons[-1].code.value for item in decided.waiting}[
        "small"
    ] == "behind_reservation"


def test_endless_work_gives_no_time_to_reserve() -> None:
    rules = parse_policy({"queues": {"merge": {"default_max_duration": "none"}}})
    busy = [running(a_job("serve").gpus(2).limit(None), "n:0-1")]
    decided = plan(a_snapshot([a_pool(4)], [a_job("x").gpus(4), a_job("y").at(1)], busy), rules, 0.0)
    assert not decided.reservations
    assert [start.job_id for start in decided.starts] == ["y"]


def test_cores_count_at_the_time_of_the_reservation() -> None:
    node = a_node("n").gpus(4).nvlink_groups_of(4).having(cpu=8.0)
    busy = [running(a_job("r").gpus(1).limit(50).having(cpu=8.0), "n:0")]
    decided = plan(a_snapshot([node], [a_job("x").gpus(2).limit(9).having(cpu=4.0)], busy), policy(), 0.0)
    assert not decided.starts
    assert [item.at for item in decided.reservations] == [50.0]


def test_what_yields_is_free_by_its_deadline() -> None:
    busy = [running(a_job("r").gpus(4).limit(500), "n:0-3", yielding=True, releases_at=30.0)]
    decided = plan(a_snapshot([a_pool(4)], [a_job("x").gpus(4).limit(9)], busy), policy(), 0.0)
    assert [item.at for item in decided.reservations] == [30.0]
