"""What a chaos run leaves behind, as plain values: the ledger's audit, the engines' notes, what was probed.

All times are seconds since 1970 of one machine's clock. ``Evidence`` is what the invariants look at; it can
be written to a file and read again, so that a broken run can be looked into without its database.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

Gpu = tuple[str, int]
"""Node and index."""


@dataclass(frozen=True)
class AuditEvent:
    """A row of the ledger's audit; ``id`` rises in the order of commits."""

    id: int
    time: float
    event: str
    job: str | None = None
    allocation: str | None = None
    epoch: int | None = None
    node: str | None = None
    code: str = ""
    reason: str = ""
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class JobRow:
    """A job as it was at the end."""

    id: str
    state: str
    epoch: int = 0
    queue: str = "merge"
    project: str = "default"
    user: str = "alice"
    gpu_count: int = 1
    requeues: int = 0
    preemptions: int = 0
    exit_code: int | None = None
    reason: str = ""
    result: dict[str, Any] | None = None
    step_log: str = ""
    """Name of its step log."""
    task: str = ""
    """``dag/run/task`` of the Airflow task that asked; empty: none did."""


@dataclass(frozen=True)
class TaskRow:
    """An Airflow task as it was at the end."""

    name: str
    """``dag/run/task``."""
    state: str
    try_number: int


@dataclass(frozen=True)
class UsageRow:
    """What an entity was charged."""

    queue: str
    project: str
    user: str
    gpu_seconds: float


@dataclass(frozen=True)
class WitnessLine:
    """A line that an engine wrote about a GPU which it was granted.

    ``kind``: ``start`` (it has the GPU's lock), ``alive``, ``end``, or ``collision`` (somebody else had the
    lock; ``other`` says who).
    """

    kind: str
    node: str
    gpu: int
    pid: int
    job: str
    allocation: str
    epoch: int
    time: float
    other: str = ""


@dataclass(frozen=True)
class StepLine:
    """A line of a job's step log, in the order of the file.

    ``kind``: ``resume`` (``step``: the checkpoint it goes on from), ``step`` (done), ``checkpoint`` (complete
    up to ``step``), ``finish``.
    """

    log: str
    kind: str
    step: int
    job: str
    epoch: int
    time: float
    seconds: float = 0.0
    """What the step took."""


@dataclass(frozen=True)
class Probe:
    """A completion sent with the token of an epoch that was over, and the status it was answered with."""

    job: str
    allocation: str
    epoch: int
    time: float
    status: int


@dataclass(frozen=True)
class Outage:
    """The control plane was away from ``start`` to ``end``, and nothing was killed meanwhile."""

    start: float
    end: float


@dataclass(frozen=True)
class Evidence:
    """Everything that the invariants look at."""

    events: tuple[AuditEvent, ...] = ()
    jobs: tuple[JobRow, ...] = ()
    usage: tuple[UsageRow, ...] = ()
    witness: tuple[WitnessLine, ...] = ()
    steps: tuple[StepLine, ...] = ()
    probes: tuple[Probe, ...] = ()
    outages: tuple[Outage, ...] = ()
    left_over: tuple[str, ...] = ()
    """Processes that outlived the run, in words."""
    tasks: tuple[TaskRow, ...] = ()

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Evidence:
        """Read what ``save`` wrote."""
        document = json.loads(path.read_text())
        kinds: dict[str, Any] = {
            "events": AuditEvent,
            "jobs": JobRow,
            "usage": UsageRow,
            "witness": WitnessLine,
            "steps": StepLine,
            "probes": Probe,
            "outages": Outage,
            "tasks": TaskRow,
        }
        values = {
            entry.name: tuple(
                kinds[entry.name](**row) if entry.name in kinds else row for row in document[entry.name]
            )
            for entry in fields(cls)
        }
        return cls(**values)
