"""Free GPUs over time: as numbers, and one by one."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest

from emep.scheduling.reservations.grid import Grid
from emep.scheduling.reservations.profile import Profile


def ends(random: Random, size: int) -> np.ndarray:
    values = [random.choice([-math.inf, math.inf, 20.0, 30.0, 45.0, 60.0]) for _ in range(size)]
    return np.array(values)


def test_what_is_released_within_the_tolerance_of_a_step_is_of_that_step() -> None:
    profile = Profile(0.0, np.array([-math.inf, 10.0, 10.0 + 1e-9, 20.0]))
    assert profile.times.tolist() == [0.0, 10.0, 20.0]
    assert profile.free.tolist() == [1, 3, 4]


def test_a_run_may_end_just_when_others_begin() -> None:
    profile = Profile(0.0, np.array([-math.inf] * 2))
    profile.take(2, 8.0, 20.0)
    assert profile.earliest(1, 8.0) == 0.0
    assert profile.earliest(1, 9.0) == 20.0
    assert profile.slack(8.0) == 2
    assert profile.slack(9.0) == 0


def test_what_never_comes_free_never_fits() -> None:
    assert Profile(0.0, np.array([math.inf, -math.inf])).earliest(2, 1.0) is None


def is_free(gpu: int, busy: list[tuple[int, float, float]], start: float, end: float) -> bool:
    return all(not (one == gpu and begin < end and stop > start) for one, begin, stop in busy)


@pytest.mark.parametrize("seed", range(40))
def test_numbers_and_single_gpus_agree_with_looking_at_every_moment(seed: int) -> None:
    random = Random(seed)
    size = random.randint(1, 6)
    until = ends(random, size)
    profile, grid = Profile(10.0, until), Grid(10.0, np.arange(size), until)
    busy: list[tuple[int, float, float]] = [(gpu, 10.0, end) for gpu, end in enumerate(until) if end > 10]
    moments = sorted({10.0, *(end for _, _, end in busy if end < math.inf)})
    for _ in range(6):
        need, duration = random.randint(1, size), random.choice([5.0, 10.0, 25.0, math.inf])

        open_at = {
            time: [gpu for gpu in range(size) if is_free(gpu, busy, time, time + duration)]
            for time in sorted({*moments, *(stop for _, _, stop in busy if stop < math.inf)})
        }
        expected = [(time, gpus) for time, gpus in open_at.items() if len(gpus) >= need]
        steps = grid.open_steps(np.ones(size, dtype=bool), duration, need)
        # The grid has steps of its own (starts of what was taken); where it has the others', it agrees.
        assert [(time, gpus.tolist()) for time, gpus in steps if time in open_at] == expected
        if not expected:
            continue
        time, gpus = expected[0]
        # Numbers alone can only be more hopeful than one GPU at a time.
        by_number = profile.earliest(need, duration)
        assert by_number is not None
        assert by_number <= time
        chosen = gpus[:need]
        grid.take(np.array(chosen), time, time + duration)
        busy += [(gpu, time, time + duration) for gpu in chosen]
        profile.take(need, time, time + duration)
