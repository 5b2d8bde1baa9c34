"""Free GPUs over time, one by one, for reservations where numbers of GPUs are not enough."""

from __future__ import annotations

from typing import Final

import numpy as np

from emep.scheduling.cluster.arrays import BoolArray, FloatArray, IntArray
from emep.scheduling.reservations.profile import TIME_TOLERANCE

CELLS: Final = 4_000_000
"""Steps x GPUs; where there would be more, times are looked at one by one instead."""


class Grid:
    """``next_busy[i, g]``: the first time at or after ``times[i]`` at which ``gpus[g]`` is busy."""

    def __init__(self, now: float, gpus: IntArray, until: FloatArray) -> None:
        self.gpus = gpus
        self._column = {gpu: place for place, gpu in enumerate(gpus.tolist())}
        busy_until = until[gpus]
        self.times: FloatArray = np.unique(np.append(busy_until[np.isfinite(busy_until)], now))
        self.times = self.times[self.times >= now]
        self._next_busy = np.where(self.times[:, None] < busy_until[None, :], self.times[:, None], np.inf)

    @staticmethod
    def affordable(now: float, gpus: IntArray, until: FloatArray) -> bool:
        """Whether a grid of these GPUs is of a size that pays."""
        return len(gpus) * (len(np.unique(until[gpus])) + 1) <= CELLS

    def take(self, gpus: IntArray, start: float, end: float) -> None:
        """These GPUs are busy from ``start`` until ``end``."""
        columns = np.array(
            [self._column[gpu] for gpu in gpus.tolist() if gpu in self._column], dtype=np.int64
        )
        first = self._step_at(start)
        last = self._step_at(end) if end < np.inf else len(self.times)
        self._next_busy[first:last, columns] = self.times[first:last, None]
        self._next_busy[:first, columns] = np.minimum(self._next_busy[:first, columns], start)

    def _step_at(self, time: float) -> int:
        """The step that begins at a time; made where there is none."""
        place = int(np.searchsorted(self.times, time - TIME_TOLERANCE))
        if place < len(self.times) and self.times[place] <= time + TIME_TOLERANCE:
            return place
        row = self._next_busy[place - 1].copy()
        row[row == self.times[place - 1]] = time
        self.times = np.insert(self.times, place, time)
        self._next_busy = np.insert(self._next_busy, place, row, axis=0)
        return place

    def open_steps(self, eligible: BoolArray, duration: float, need: int) -> list[tuple[float, IntArray]]:
        """(time, GPUs) of every step from which ``need`` or more eligible GPUs are free for ``duration``."""
        columns = np.flatnonzero(eligible[self.gpus])
        free = self._next_busy[:, columns] >= (self.times + (duration - TIME_TOLERANCE))[:, None]
        enough = np.flatnonzero(free.sum(axis=1) >= need)
        return [(float(self.times[step]), self.gpus[columns[free[step]]]) for step in enough.tolist()]
