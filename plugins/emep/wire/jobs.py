"""Documents about jobs: requests, the jobs themselves, and why they wait."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field

from emep.wire.base import (
    Duration,
    JobState,
    Labels,
    Memory,
    Moment,
    Name,
    Printable,
    Request,
    Text,
)

MAX_SPEC_BYTES = 256 * 1024


def check_project(path: str) -> str:
    """A project's path such as ``org/team``; raises ValueError where a part of it is empty."""
    if not all(part.strip() for part in path.split("/")):
        raise ValueError(f"{path!r} has an empty part: write a project as org/team")
    return path


def check_spec(spec: dict[str, Any]) -> dict[str, Any]:
    """A SPEC of at most ``MAX_SPEC_BYTES`` as JSON; raises ValueError for a longer one."""
    size = len(json.dumps(spec, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace"))
    if size > MAX_SPEC_BYTES:
        raise ValueError(
            f"has {size:,} bytes as JSON, and a SPEC may have {MAX_SPEC_BYTES:,}: put the long part into a "
            "file below the artifacts and name it by its URI"
        )
    return spec


ProjectPath = Annotated[Name, AfterValidator(check_project)]


class Topology(Request):
    """Where the GPUs of one job may lie with respect to one another."""

    required: Literal["nvlink", "node", "rack", "block"] | None = None
    preferred: Literal["nvlink", "node", "rack", "block"] | None = "rack"
    affinity: Labels = Field(default_factory=dict)
    anti_affinity: Labels = Field(default_factory=dict)


class AirflowTask(Request):
    """The task instance that asks; write routes authorise on the stored dag_id."""

    dag_id: Name
    run_id: Name
    task_id: Name
    map_index: int = Field(default=-1, ge=-1, lt=2**31)
    try_number: int = Field(default=1, ge=0, lt=2**31)
    first_try: int | None = Field(default=None, ge=0, lt=2**31)
    """The first try since a person last cleared the task. A job with the same SPEC that was completed in a
    try from then on, and since ``run_started_at``, is the answer to ``POST /jobs``, and nothing runs again.
    None: each try has a job of its own."""
    run_started_at: Moment | None = None
    """Start of the run: one of its name before it, which was deleted, did other work."""
    last_try: bool = True
    execution_timeout: Duration | None = None
    """The task's, in seconds from its submission; EMEP enforces it, Airflow does not while deferred."""


class JobRequest(Request):
    """``POST /jobs``: the fields of a job (docs/submit.md)."""

    queue: Name = "merge"
    priority: Name = "normal"
    project: ProjectPath = "default"
    user: Name | None = None
    gpu_count: int | None = Field(default=None, ge=0, le=100_000)
    node_count: int | None = Field(default=None, ge=1, le=100_000)
    gpu_per_node: int | None = Field(default=None, ge=1, le=1024)
    cpu: float = Field(default=1.0, gt=0, le=1e6)
    memory: Memory = 2 * 1024**3
    gpu_memory_min: Memory = 0
    gpu_type: Text | None = None
    nvlink_required: bool = False
    topology: Topology = Field(default_factory=Topology)
    max_duration: Duration | None = None
    preemptible: bool | None = None
    checkpoint_interval: Duration | None = None
    placement: Literal["pack", "spread"] | None = None
    runtime: Literal["agent", "kubernetes", "external"] = "agent"
    spec: Annotated[dict[str, Any], AfterValidator(check_spec)] | None = None
    """The engine's SPEC (``emep-engine schema spec``), at most 256 KiB; required for runtime agent."""
    trace_id: Text | None = None
    experiment_id: Text | None = None
    job_type: Text | None = None
    idempotency_key: Annotated[str, Printable] | None = Field(default=None, min_length=1, max_length=500)
    checkpoint_key: Annotated[str, Printable] | None = Field(default=None, min_length=1, max_length=500)
    """Where checkpoints are kept: the task's key without the try, so that a retry resumes too."""
    airflow: AirflowTask | None = None


class GpuRef(BaseModel):
    """A GPU of an allocation."""

    node: str
    index: int
    uuid: str


class JobView(BaseModel):
    """A job as every answer shows it."""

    id: str
    state: JobState
    queue: str
    priority: str
    project: str
    user: str
    gpu_count: int
    nvlink_required: bool
    job_type: str
    trace_id: str
    experiment_id: str
    runtime: str
    epoch: int
    try_number: int
    preempted: bool
    requeues: int
    submitted_at: datetime
    queued_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    nodes: list[str]
    gpus: list[GpuRef]
    allocation_id: str | None
    """The current or last allocation."""
    reason: str
    """In one sentence: why it waits, why it ended."""
    reason_code: str = ""
    """The same as a stable code: ``time_limit``, ``execution_timeout``, ``bad_input``, ..."""
    promoted_from_gpus: int | None = None
    """GPUs it had when it ran out of their memory and became a CPU job; None: it never did."""
    exit_code: int | None
    result: dict[str, Any] | None
    airflow: AirflowTask | None
    last_checkpoint: dict[str, Any] | None


class Page(BaseModel):
    """A page of a list; ``next`` is the cursor of the following one."""

    items: list[Any]
    total: int
    next: str | None = None


class Changes(BaseModel):
    """Jobs that changed since a cursor (``GET /jobs:changes``), for clients that watch many of them."""

    jobs: list[JobView]
    cursor: int


class ReasonView(BaseModel):
    """One thing that blocks a job."""

    code: str
    text: str


class HolderView(BaseModel):
    """A job that holds GPUs which a waiting job could use."""

    job_id: str
    user: str
    project: str
    job_type: str
    gpu_count: int
    nodes: list[str]
    until: datetime | None
    """When its time limit ends it at the latest; None: it has no limit."""
    yielding: bool = False
    """It was told to save a checkpoint and exit."""


class Explanation(BaseModel):
    """``GET /jobs/{id}/explain``."""

    job_id: str
    state: JobState
    trace_id: str = ""
    experiment_id: str = ""
    job_type: str = ""
    position: int | None
    waiting: int = 0
    """Jobs in the queue, this one included."""
    reasons: list[ReasonView]
    class_value: float
    deficit: float | None
    """None: weight 0, served after all others."""
    score: float
    order_key: list[str]
    estimated_start: datetime | None
    estimate_text: str
    sentence: str
    """All of it in one line, for people."""
    holders: list[HolderView] = Field(default_factory=list)
    """Jobs that hold GPUs which this one could use, the first to end first; at most 20."""
    holder_count: int = 0
    """How many such jobs there are."""


class Explanations(BaseModel):
    """``GET /jobs:explain``: jobs that are not known are left out."""

    items: list[Explanation]


class EventView(BaseModel):
    """One thing that happened to a job."""

    time: datetime
    event: str
    """``submitted``, ``waiting``, ``granted``, ``started``, ``preempted``, ``completed``, ..."""
    actor: str
    epoch: int | None
    nodes: list[str]
    reason_code: str
    reason: str
