"""Who may go ahead of submission order: nobody who makes somebody wait longer than submission order would."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emep.scheduling.overtaking import ProjectedQueue, Timeline, WaitingJob


def waiting(job_id: str, submit: float, gpus: int, duration: float) -> WaitingJob:
    return WaitingJob(job_id, submit, gpus, duration, size=duration)


def test_a_profile_counts_what_comes_free_and_takes_overdue_ends_for_now() -> None:
    profile = Timeline.of_ends(100.0, 2, [(150.0, 4), (90.0, 1), (math.inf, 8), (150.0, 1)])
    assert (profile.times, profile.free) == ([100.0, 150.0], [3, 8])


def test_the_earliest_time_is_one_at_which_gpus_stay_free_long_enough() -> None:
    profile = Timeline.of_ends(0.0, 4, [(50.0, 4)])
    assert profile.take_earliest(8, 10.0) == 50.0
    assert profile.take_earliest(4, 50.0) == 0.0
    assert profile.take_earliest(1, 5.0) == 60.0
    assert profile.take_earliest(9, 1.0) == math.inf


def test_a_short_job_may_go_ahead_where_nobody_waits_longer_than_somebody_must() -> None:
    jobs = [waiting("A", 1, 4, 50), waiting("B", 2, 4, 40), waiting("C", 3, 4, 10)]
    queue = ProjectedQueue(Timeline([100.0], [4]), jobs, 0.0)
    assert queue.starts == {"A": 100.0, "B": 150.0, "C": 190.0}
    assert queue.bound == 187.0
    assert queue.may_start(jobs[2])


def test_a_job_may_not_go_ahead_of_the_one_that_waits_longest() -> None:
    jobs = [waiting("A", 1, 4, 50), waiting("B", 90, 4, 40)]
    queue = ProjectedQueue(Timeline([100.0], [4]), jobs, 0.0)
    assert queue.bound == 99.0
    assert not queue.may_start(jobs[1])
    assert queue.starts["A"] == 100.0


def test_waits_up_to_a_floor_are_nobodys_concern() -> None:
    jobs = [waiting("A", 1, 4, 50), waiting("B", 90, 4, 40)]
    assert ProjectedQueue(Timeline([100.0], [4]), jobs, 139.0).may_start(jobs[1])
    assert not ProjectedQueue(Timeline([100.0], [4]), jobs, 138.0).may_start(jobs[1])


def test_whoever_is_not_projected_comes_after_those_who_are() -> None:
    first, late = waiting("A", 1, 4, 50), waiting("Z", 50, 1, 10)
    queue = ProjectedQueue(Timeline([100.0], [4]), [first], 0.0)
    assert queue.start_of(late) == math.inf
    assert not queue.may_start(late)
    queue = ProjectedQueue(Timeline([100.0], [5]), [first], 0.0)
    assert queue.may_start(late)


def test_those_behind_find_what_equals_leave_over() -> None:
    queue = ProjectedQueue(Timeline.of_ends(0.0, 2, [(50.0, 2)]), [waiting("A", 0, 4, 10)], 0.0)
    left = queue.occupy()
    assert left.take_earliest(2, 50.0) == 0.0
    assert left.take_earliest(1, 1.0) == 60.0


jobs_of_four = st.lists(
    st.tuples(st.integers(0, 100), st.integers(1, 4), st.integers(1, 60)), min_size=1, max_size=8
)


@settings(max_examples=200, deadline=None)
@given(jobs=jobs_of_four, ends=st.lists(st.tuples(st.integers(101, 200), st.integers(1, 2)), max_size=2))
def test_no_start_makes_the_longest_projected_wait_grow(
    jobs: list[tuple[int, int, int]], ends: list[tuple[int, int]]
) -> None:
    held = sum(gpus for _, gpus in ends)
    free = 4 - held
    order = [
        waiting(str(number), float(submit), gpus, float(duration))
        for number, (submit, gpus, duration) in enumerate(sorted(jobs))
    ]
    queue = ProjectedQueue(Timeline.of_ends(100.0, free, [(float(t), g) for t, g in ends]), order, 0.0)
    longest = max(queue.starts[one.id] - one.submit_time for one in order)
    left = list(order)
    for one in sorted(order, key=lambda one: one.size):
        if one.gpus <= free and queue.may_start(one):
            queue.started(one)
            free -= one.gpus
            left.remove(one)
            again = ProjectedQueue(queue.occupy(), [], 0.0)  # the profile never goes below nothing
            assert min(again.occupy().free) >= 0
            assert all(queue.starts[other.id] - other.submit_time <= longest + 1e-6 for other in left)


@pytest.mark.parametrize("seed", range(5))
def test_a_profile_never_gives_more_than_there_is(seed: int) -> None:
    draw = random.Random(seed)
    profile = Timeline.of_ends(0.0, 3, [(float(draw.randint(1, 50)), 1) for _ in range(5)])
    taken = []
    for _ in range(40):
        gpus, duration = draw.randint(1, 8), float(draw.randint(1, 30))
        taken.append((profile.take_earliest(gpus, duration), gpus, duration))
    for time, _, _ in taken:
        in_use = sum(gpus for begin, gpus, duration in taken if begin <= time < begin + duration)
        assert in_use <= 8
    assert min(profile.free) >= 0
