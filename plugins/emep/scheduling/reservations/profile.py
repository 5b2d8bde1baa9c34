"""Free GPUs over time, as numbers only: a step function from now on."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import numpy.typing as npt

from emep.scheduling.cluster.arrays import FloatArray, IntArray

TIME_TOLERANCE = 1e-6
"""Seconds; two sums of the same durations may differ by rounding."""


class Profile:
    """``free[i]`` GPUs are free from ``times[i]`` until ``times[i + 1]``; the last step never ends."""

    def __init__(self, now: float, until: FloatArray) -> None:
        """From when each GPU of the pool is busy until (-inf: free, inf: for ever)."""
        later = np.sort(until[(until > now) & (until < np.inf)])
        first = np.flatnonzero(np.diff(later, prepend=-np.inf) > TIME_TOLERANCE)
        steps = np.append(first, len(later))[1:]
        idle = int((until <= now).sum())
        self.times: FloatArray = np.concatenate([[now], later[first]])
        # What is released within the tolerance of a step is counted at its first moment.
        self._starts: list[float] = []
        self._least: list[int] | None = None
        """From now until the end of each step, the fewest GPUs that are free; None: not worked out."""
        self.free: IntArray = np.concatenate([[idle], idle + steps]).astype(np.int64)

    def slack(self, end: float) -> int:
        """GPUs that are free all the time from now until ``end``."""
        if self._least is None:
            self._starts = self.times.tolist()
            self._least = np.minimum.accumulate(self.free).tolist()
        return self._least[max(bisect_left(self._starts, end - TIME_TOLERANCE) - 1, 0)]

    def earliest(self, need: int, duration: float) -> float | None:
        """The first time at which ``need`` GPUs are free for ``duration``; None if there is none."""
        enough = self.free >= need
        # From each step on, when the next one comes that has too few.
        next_short = np.where(enough, np.inf, self.times)
        next_short = np.minimum.accumulate(next_short[::-1])[::-1]
        fits: npt.NDArray[np.bool_] = enough & (next_short >= self.times + duration - TIME_TOLERANCE)
        place = int(fits.argmax())
        return float(self.times[place]) if fits[place] else None

    def take(self, count: int, start: float, end: float) -> None:
        """``count`` GPUs are not free from ``start`` until ``end``."""
        first, last = self._step_at(start), len(self.times)
        if end < np.inf:
            last = self._step_at(end)
        self.free[first:last] -= count
        self._least = None

    def _step_at(self, time: float) -> int:
        """The step that begins at a time; made where there is none."""
        place = int(np.searchsorted(self.times, time - TIME_TOLERANCE, side="left"))
        if place < len(self.times) and abs(self.times[place] - time) <= TIME_TOLERANCE:
            return place
        self.times = np.insert(self.times, place, time)
        self.free = np.insert(self.free, place, self.free[max(place - 1, 0)])
        return place
