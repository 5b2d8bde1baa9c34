"""The order in which sets of victims are compared, for the exact and for the greedy search alike.

Sets are compared by: the highest class in them; the work lost (GPUs x seconds since the last checkpoint) from
that class down; the number of victims; the GPUs freed; the latest start first; job ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from emep.scheduling.model import Allocation, Job

SetKey = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class VictimCandidate:
    """A running job that may be a victim."""

    job: Job
    gpus: tuple[int, ...]
    class_value: float
    seconds_lost: float
    """Since its last checkpoint; 0 for one that checkpoints when told to."""
    start_time: float

    @staticmethod
    def of(allocation: Allocation, gpus: Iterable[int], class_value: float, now: float) -> VictimCandidate:
        """The candidate that an allocation is at ``now``."""
        lost = 0.0
        if allocation.job.checkpoint_interval is not None:
            since = allocation.last_checkpoint
            lost = max(0.0, now - (allocation.start_time if since is None else since))
        return VictimCandidate(allocation.job, tuple(gpus), class_value, lost, allocation.start_time)

    def greedy_key(self, freed: int, *, by_class: bool = True) -> SetKey:
        """The order of sets for one at a time that would free so many GPUs of use: work by GPU freed."""
        value = self.class_value if by_class else 0.0
        return (value, self.work_lost / freed, len(self.gpus) - freed, -self.start_time, self.job.id)

    @property
    def work_lost(self) -> float:
        """GPU-seconds."""
        return len(self.gpus) * self.seconds_lost


def set_key(victims: Sequence[VictimCandidate], *, by_class: bool = True) -> SetKey:
    """The order of sets of victims; without classes (a guarantee is taken back) by the work lost first."""
    work: dict[float, float] = {}
    for one in victims:
        value = one.class_value if by_class else 0.0
        work[value] = work.get(value, 0.0) + one.work_lost
    return (
        max(work, default=0.0),
        _ByClass(work),
        len(victims),
        sum(len(one.gpus) for one in victims),
        tuple(sorted(-one.start_time for one in victims)),
        tuple(sorted(one.job.id for one in victims)),
    )


class _ByClass:
    """Work lost by class value, compared from the highest class down; a class that is missing lost none."""

    __slots__ = ("_work",)

    def __init__(self, work: dict[float, float]) -> None:
        self._work = work

    def __lt__(self, other: _ByClass) -> bool:
        for value in sorted(self._work.keys() | other._work.keys(), reverse=True):
            mine, theirs = self._work.get(value, 0.0), other._work.get(value, 0.0)
            if mine != theirs:
                return mine < theirs
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByClass) and not self < other and not other < self

    __hash__ = None  # type: ignore[assignment]
