"""Reading the Standard Workload Format: 18 numbers a line, ``;`` begins a comment, -1 means unknown.

Format: D. Feitelson's Parallel Workloads Archive, version 2.2. One processor is one GPU, the requested time
is the job's ``max_duration``. Jobs without a run time or without processors never ran and are left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from emep.scheduling.model import Job
from emep.simulation.read.errors import InputError, read_text
from emep.simulation.read.jobs import JobSpec

FIELDS = (
    "job_number", "submit_time", "wait_time", "run_time", "allocated_processors", "average_cpu_time",
    "used_memory",
    "requested_processors", "requested_time", "requested_memory", "status", "user_id", "group_id",
    "executable_number", "queue_number", "partition_number", "preceding_job_number", "think_time",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SwfJobs:
    """The jobs of a log, and how many of its lines never ran."""

    jobs: list[JobSpec]
    left_out: int


def read_swf(path: str | Path, *, entities: bool = False) -> SwfJobs:
    """All jobs of a log that ran; raises InputError naming file, line and field.

    ``entities`` charges each job to its group (project) and user; without it all belong to one, so that the
    order among equals is that of submission, as schedulers for such logs are compared in the literature.
    """
    jobs: list[JobSpec] = []
    lines: dict[str, int] = {}
    left_out = 0
    for number, line in enumerate(read_text(path).splitlines(), 1):
        text = line.partition(";")[0].strip()
        if not text:
            continue
        values = _values(path, number, text)
        spec = _read_job(path, number, values, entities)
        if spec is None:
            left_out += 1
            continue
        if spec.job.id in lines:
            raise InputError(
                path, number, "job_number", f"{spec.job.id} is already the job of line {lines[spec.job.id]}"
            )
        lines[spec.job.id] = number
        jobs.append(spec)
    if not jobs:
        raise InputError(path, None, "", "holds no job that ran: expected lines of 18 numbers")
    return SwfJobs(jobs, left_out)


def _values(path: str | Path, number: int, text: str) -> dict[str, float]:
    cells = text.split()
    if len(cells) != len(FIELDS):
        raise InputError(path, number, "", f"expected {len(FIELDS)} numbers, not {len(cells)}")
    values: dict[str, float] = {}
    for name, cell in zip(FIELDS, cells, strict=True):
        try:
            value = float(cell)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise InputError(path, number, name, f"expected a number, -1 where unknown, not {cell!r}")
        values[name] = value
    return values


def _read_job(path: str | Path, number: int, values: dict[str, float], entities: bool) -> JobSpec | None:
    def whole(name: str) -> int:
        if values[name] != int(values[name]):
            raise InputError(path, number, name, f"expected a whole number, not {values[name]:g}")
        return int(values[name])

    processors = whole("requested_processors")
    if processors <= 0:
        processors = whole("allocated_processors")
    if values["submit_time"] < 0:
        raise InputError(
            path, number, "submit_time", f"expected seconds, 0 or more, not {values['submit_time']:g}"
        )
    if processors <= 0 or values["run_time"] < 0:
        return None
    requested, program = values["requested_time"], whole("executable_number")
    job = Job(
        id=str(whole("job_number")),
        submit_time=values["submit_time"],
        priority="",
        project=f"group{whole('group_id')}" if entities and values["group_id"] >= 0 else "default",
        user=f"user{whole('user_id')}" if entities and values["user_id"] >= 0 else "",
        gpu_count=processors,
        max_duration=requested if requested > 0 else None,
        job_type=f"program{program}" if program >= 0 else "",
    )
    return JobSpec(job, values["run_time"])
