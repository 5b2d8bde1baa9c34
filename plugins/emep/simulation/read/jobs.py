"""Reading ``JOBS.csv``, the native form of a workload."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from emep.policy.model import Policy
from emep.scheduling.model import Job
from emep.simulation.read.cells import Row, read_table
from emep.simulation.read.errors import InputError

COLUMNS = (
    "job_id", "submit_time", "duration", "queue", "priority", "project", "user", "gpu_count", "node_count",
    "gpu_memory_min", "gpu_type", "nvlink_required", "max_duration", "preemptible", "checkpoint_interval",
    "job_type", "cpu", "memory", "topology_required", "topology_preferred", "placement", "affinity",
    "anti_affinity",
)  # fmt: skip
"""Columns of the native form; only the first three are required."""

LEVELS = ("nvlink", "node", "rack", "block")
_DEFAULTS = Job(id="", submit_time=0.0)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One job of a workload: the request, and what only the simulator knows, how much work it is."""

    job: Job
    """``priority`` is empty, ``max_duration`` None where the file leaves them to the queue."""
    duration: float
    """Seconds of work on the GPUs asked for, without any cost of checkpoints or restarts."""

    def under(self, policy: Policy) -> Job:
        """The job as the scheduler sees it under ``policy`` (already read ``for_simulation``).

        An empty ``max_duration`` is the queue's default where the policy file named one, else the duration
        itself; an empty priority is the queue's default class.
        """
        rules = policy.queues.get(self.job.queue)
        priority = self.job.priority or ("normal" if rules is None else rules.default_class)
        limit = self.job.max_duration
        if limit is None:
            named = None if rules is None else rules.default_max_duration
            limit = self.duration if named is None else named
        return replace(self.job, priority=priority, max_duration=limit)


def read_jobs(path: str | Path) -> list[JobSpec]:
    """All jobs of a native file, in the file's order; raises InputError naming file, line and column."""
    found: list[JobSpec] = []
    lines: dict[str, int] = {}
    for row in read_table(path, COLUMNS, COLUMNS[:3]):
        spec = _read_job(row)
        if spec.job.id in lines:
            row.refuse("job_id", f"{spec.job.id!r} is already the job of line {lines[spec.job.id]}")
        lines[spec.job.id] = row.line
        found.append(spec)
    if not found:
        raise InputError(path, None, "", "holds no jobs: expected at least one line below the header")
    return found


def _read_job(row: Row) -> JobSpec:
    duration = row.duration("duration")
    if duration is None:
        row.refuse("duration", "is empty: expected seconds or text such as 2h")
    gpus = row.integer("gpu_count", 0)
    preferred = row.choice("topology_preferred", (*LEVELS, "none")) or "rack"
    job = Job(
        id=row.required("job_id"),
        submit_time=row.time("submit_time"),
        queue=row.text("queue", _DEFAULTS.queue),
        priority=row.text("priority"),
        project=row.text("project", _DEFAULTS.project),
        user=row.text("user"),
        gpu_count=_DEFAULTS.gpu_count if gpus is None else gpus,
        node_count=row.integer("node_count", 1),
        cpu=row.number("cpu", _DEFAULTS.cpu),
        memory=row.memory("memory", _DEFAULTS.memory),
        gpu_memory_min=row.memory("gpu_memory_min", 0),
        gpu_type=row.text("gpu_type"),
        nvlink_required=row.boolean("nvlink_required") or False,
        topology_required=row.choice("topology_required", LEVELS),
        topology_preferred=None if preferred == "none" else preferred,
        affinity=row.labels("affinity"),
        anti_affinity=row.labels("anti_affinity"),
        max_duration=row.duration("max_duration", above_zero=True),
        preemptible=row.boolean("preemptible"),
        checkpoint_interval=row.duration("checkpoint_interval", above_zero=True),
        placement=row.choice("placement", ("pack", "spread")),
        job_type=row.text("job_type"),
    )
    return JobSpec(job, duration)
