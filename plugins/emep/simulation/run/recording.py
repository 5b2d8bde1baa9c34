"""The record of a simulation: an outcome for each job, the event log, runs and time series for the report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from emep.scheduling.model import GpuId
from emep.simulation.read.jobs import JobSpec

_MOST_SHARE_POINTS = 1000


class State(StrEnum):
    """States of a job at the end of a simulation (and, the first two, on the way)."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    REJECTED = "rejected"
    EXPIRED = "expired"
    FAILED = "failed"
    DEAD = "dead"


@dataclass(slots=True)
class Outcome:
    """What became of one job."""

    spec: JobSpec
    state: State = State.PENDING
    first_start: float | None = None
    end: float | None = None
    wait: float = 0.0
    preemptions: int = 0
    nodes: tuple[str, ...] = ()
    gpus: tuple[GpuId, ...] = ()
    reason: str = ""
    gpu_seconds: float = 0.0
    """Allocated, in all its runs."""
    work_lost: float = 0.0
    """GPU-seconds of work done and not saved."""


@dataclass(frozen=True, slots=True)
class RunSpan:
    """One run of a job on its GPUs, for the Gantt chart."""

    job: int
    """Number of the job in the workload."""
    start: float
    end: float
    gpus: tuple[GpuId, ...]


@dataclass(slots=True)
class Series:
    """Step curves: the value from ``times[i]`` on."""

    times: list[float] = field(default_factory=list)
    busy: list[int] = field(default_factory=list)
    queued: list[int] = field(default_factory=list)


@dataclass(slots=True)
class SharePoint:
    """GPU-seconds consumed by each project up to a time, without decay."""

    time: float
    consumed: dict[str, float]


@dataclass(slots=True)
class Recording:
    """Everything that outputs are made from; filled by the engine, in the order of virtual time."""

    outcomes: list[Outcome]
    total_gpus: int
    events: list[str] = field(default_factory=list)
    """Lines of events.jsonl."""
    runs: list[RunSpan] = field(default_factory=list)
    series: Series = field(default_factory=Series)
    shares: list[SharePoint] = field(default_factory=list)
    decisions: int = 0
    """Starts, preemptions and rejections that the scheduler decided."""
    end_time: float = 0.0
    """Instant of the last event."""
    _names: dict[str, str] = field(default_factory=dict)
    _instants: int = 0
    _stride: int = 1

    def event(
        self, time: float, event: str, job_id: str, gpus: Sequence[GpuId] = (), extra: str = ""
    ) -> None:
        """Append one line to the event log; ``extra`` is further JSON members, each with a leading comma."""
        name = self._names.get(job_id)
        if name is None:
            name = self._names[job_id] = json.dumps(job_id, ensure_ascii=False)
        held = ",".join([f'"{node}:{index}"' for node, index in gpus])
        self.events.append(
            f'{{"time":{number(time)},"event":"{event}","job_id":{name},"gpus":[{held}]{extra}}}'
        )

    def reserved(self, time: float, job_id: str, gpus: Sequence[GpuId], at: float) -> None:
        """A waiting job got GPUs reserved, or its reservation moved: ``at`` is when it will fit."""
        self.event(time, "reserved", job_id, gpus, f',"at":{number(at)}')

    def preempted(self, time: float, job_id: str, gpus: Sequence[GpuId], for_job: str) -> None:
        """A running job was told to make room for another."""
        self.event(time, "preempted", job_id, gpus, f',"for_job":{json.dumps(for_job, ensure_ascii=False)}')

    def wants_shares(self) -> bool:
        """Whether the curves of fair share want a point at this instant: every so many, ever fewer."""
        self._instants += 1
        return self._instants % self._stride == 0

    def add_shares(self, time: float, consumed: dict[str, float]) -> None:
        """Add a point; past a thousand every other one goes and the distance doubles."""
        self.shares.append(SharePoint(time, consumed))
        if len(self.shares) >= _MOST_SHARE_POINTS:
            del self.shares[::2]
            self._stride *= 2

    def sample(self, time: float, busy: int, queued: int) -> None:
        """Note GPUs held and jobs pending from this instant on."""
        series = self.series
        if series.times and series.times[-1] == time:
            series.busy[-1], series.queued[-1] = busy, queued
        elif not series.times or (series.busy[-1], series.queued[-1]) != (busy, queued):
            series.times.append(time)
            series.busy.append(busy)
            series.queued.append(queued)


def number(value: float) -> str:
    """A number as files carry it: at most microseconds, no needless zeros, never an exponent."""
    text = f"{value:.6f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text
