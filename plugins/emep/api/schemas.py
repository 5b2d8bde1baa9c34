"""The wire: every document that crosses the REST API, as pydantic models.

Shared by the API, the client, the agent, operators, triggers and the CLI, so it imports neither Airflow nor
SQLAlchemy. Times are ISO 8601 UTC; durations are seconds (requests also take ``2h``); memory is bytes
(requests also take ``80Gi``).
"""

from __future__ import annotations

import math
import re
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from emep.units import parse_duration, parse_memory

# Bounds that every database can hold; nobody runs a job for a century or owns 4 EiB of memory.
Duration = Annotated[float, BeforeValidator(parse_duration), Field(gt=0, le=3.2e9)]
Memory = Annotated[int, BeforeValidator(parse_memory), Field(ge=0, le=2**62)]
Name = Annotated[str, Field(min_length=1, max_length=250)]
Text = Annotated[str, Field(max_length=250)]
Labels = Annotated[dict[Name, Text], Field(max_length=200)]
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
MAX_DEPTH = 100
"""Of nested lists and mappings in free-form fields."""


class JobState(str, Enum):
    """States of a job; the moves between them are in ``emep.ledger.states``."""

    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    YIELDING = "yielding"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    EXPIRED = "expired"
    DEAD = "dead"


ENDED_STATES = frozenset(
    {
        JobState.COMPLETED,
        JobState.FAILED,
        JobState.CANCELLED,
        JobState.REJECTED,
        JobState.EXPIRED,
        JobState.DEAD,
    }
)


class Directive(str, Enum):
    """What a heartbeat's answer tells the supervisor to do."""

    CONTINUE = "continue"
    CHECKPOINT_AND_EXIT = "checkpoint_and_exit"
    ABORT = "abort"


def check_storable(value: Any, path: str = "", depth: int = 0) -> None:
    """Refuse what JSON's grammar or Python's reader lets through but no database or answer can carry.

    Raises ValueError that names the path: NUL and lone surrogates in texts, NaN and infinities, integers
    beyond 64 bits, nesting deeper than ``MAX_DEPTH``.
    """
    where = path or "the document"
    if depth > MAX_DEPTH:
        raise ValueError(f"{where}: nested more than {MAX_DEPTH} deep")
    if isinstance(value, str) and _UNSTORABLE.search(value):
        raise ValueError(f"{where}: has a NUL or half a surrogate pair; use printable text")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where}: {value} is not a finite number")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"{where}: an integer of more than 64 bits")
    if isinstance(value, dict):
        for key, item in value.items():
            check_storable(key, f"a key of {where}", depth + 1)
            check_storable(item, f"{path}.{key}" if path else str(key), depth + 1)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            check_storable(item, f"{path}[{index}]", depth + 1)


class Request(BaseModel):
    """Base of what comes in: unknown fields are refused by name."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _storable(cls, value: Any) -> Any:
        if isinstance(value, dict):
            check_storable(value)
        return value


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
    last_try: bool = True
    execution_timeout: Duration | None = None
    """The task's, in seconds from its submission; EMEP enforces it, as Airflow does not while it is deferred."""


class JobRequest(Request):
    """``POST /jobs``: the fields of a job (docs/submit.md)."""

    queue: Name = "merge"
    priority: Name = "normal"
    project: Name = "default"
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
    spec: dict[str, Any] | None = None
    """The engine's SPEC (``emep-engine schema spec``); required for runtime agent."""
    trace_id: Text | None = None
    experiment_id: Text | None = None
    job_type: Text | None = None
    idempotency_key: str | None = Field(default=None, min_length=1, max_length=500)
    checkpoint_key: str | None = Field(default=None, min_length=1, max_length=500)
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
    """Jobs that changed since a cursor (``GET /jobs:changes``), for whoever watches many of them."""

    jobs: list[JobView]
    cursor: int


class GpuReport(Request):
    """A GPU as its node registers it."""

    index: int = Field(ge=0, le=1023)
    uuid: Name
    gpu_type: Text = ""
    gpu_memory: Memory = 0
    nvlink_group_id: Name | None = None


class NodeRequest(Request):
    """``POST /nodes``: a node with its GPUs; the same name again replaces the description."""

    name: Annotated[
        str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")
    ]
    pool: Name = "default"
    rack: Text = ""
    block: Text = ""
    labels: Labels = Field(default_factory=dict)
    cpu: float = Field(default=0, ge=0, le=1e6)
    memory: Memory = 0
    network_bandwidth_gbps: float = Field(default=0, ge=0, le=1e9)
    gpus: list[GpuReport] = Field(default_factory=list, max_length=1024)


class GpuHealth(Request):
    """One GPU in the ten-second report."""

    index: int = Field(ge=0, le=1023)
    healthy: bool = True
    reason: str = Field(default="", max_length=1000)
    utilization: float | None = Field(default=None, ge=0, le=100)
    temperature_c: float | None = Field(default=None, ge=-300, le=1e4)
    memory_used: int | None = Field(default=None, ge=0, le=2**62)
    memory_total: int | None = Field(default=None, ge=0, le=2**62)
    ecc_errors: int | None = Field(default=None, ge=0, lt=2**62)
    xid: int | None = Field(default=None, ge=0, lt=2**31)


class HealthReport(Request):
    """``POST /nodes/{name}/health``."""

    gpus: list[GpuHealth] = Field(max_length=1024)


class GpuView(BaseModel):
    """A GPU as ``GET /nodes`` shows it."""

    index: int
    uuid: str
    gpu_type: str
    gpu_memory: int
    nvlink_group_id: str | None
    state: str
    state_reason: str
    utilization: float | None
    temperature_c: float | None
    memory_used: int | None
    job_id: str | None


class NodeView(BaseModel):
    """A node as ``GET /nodes`` shows it."""

    name: str
    pool: str
    rack: str
    block: str
    labels: dict[str, str]
    cpu: float
    memory: int
    network_bandwidth_gbps: float
    alive: bool
    last_report_at: datetime | None
    gpus: list[GpuView]


class RunningAllocation(Request):
    """What an agent says still runs on its node, whatever its epoch."""

    allocation_id: Name
    epoch: int = Field(ge=0, lt=2**31)


class PollRequest(Request):
    """``POST /nodes/{name}/poll``.

    Waits up to ``timeout`` seconds for orders that the agent does not already carry out.
    """

    running: list[RunningAllocation] = Field(default_factory=list, max_length=4096)
    timeout: float = Field(default=20, ge=0, le=30)
    leaving: bool = False
    """The agent is about to end: nothing more is to be given to this node until it registers again."""


class StartOrder(BaseModel):
    """Start this work; repeated on every poll until the agent lists it as running or it has ended."""

    kind: Literal["start"] = "start"
    allocation_id: str
    job_id: str
    epoch: int
    lease_token: str
    gpus: list[GpuRef]
    """GPUs of this node only; a gang over nodes has one order on each."""
    spec: dict[str, Any]
    environment: dict[str, str]
    """EMEP_* and TRACEPARENT; the agent adds EMEP_API_URL, the device variables and EMEP_LEASE_TOKEN."""
    cpu: float
    memory: int


class StopOrder(BaseModel):
    """Stop this work: SIGTERM and the deadline for ``checkpoint_and_exit``, SIGKILL for ``abort``."""

    kind: Literal["stop"] = "stop"
    allocation_id: str
    epoch: int
    directive: Directive
    grace_seconds: float


class PollAnswer(BaseModel):
    """Orders, oldest first."""

    orders: list[StartOrder | StopOrder]


class Heartbeat(Request):
    """``POST /allocations/{id}/heartbeat``, authorised by the lease token."""

    epoch: int = Field(ge=0, lt=2**31)
    checkpoint: dict[str, Any] | None = None
    """``{"step": 3, "uri": ".../step-00000003", "time": ISO}`` of the last complete checkpoint."""
    progress: dict[str, Any] | None = None


class HeartbeatAnswer(BaseModel):
    """What to do, and how long the lease now lasts."""

    directive: Directive
    grace_seconds: float | None = None
    """For checkpoint_and_exit: seconds left before it is killed."""
    lease_seconds: float


class Completion(Request):
    """``POST /allocations/{id}/complete``; the same again is answered the same, a stale epoch with 409."""

    epoch: int = Field(ge=0, lt=2**31)
    exit_code: int = Field(ge=-255, le=255)
    result: dict[str, Any] | None = None
    message: str | None = Field(default=None, max_length=4096)


class AllocationView(BaseModel):
    """An allocation as ``GET /allocations`` shows it."""

    id: str
    job_id: str
    epoch: int
    state: str
    runtime: str
    nodes: list[str]
    gpus: list[GpuRef]
    granted_at: datetime
    first_heartbeat_at: datetime | None
    heartbeat_at: datetime | None
    deadline: datetime
    """Lost past this: the start deadline while granted, the lease's end afterwards."""
    ends_by: datetime | None
    """When ``max_duration`` of this run is over."""
    yield_cause: str | None
    yield_deadline: datetime | None
    ended_at: datetime | None
    exit_code: int | None
    progress: dict[str, Any] | None
    log_size: int
    reason: str


class LogReceipt(BaseModel):
    """``POST /allocations/{id}/logs``: where the next bytes begin."""

    next_offset: int


class LogChunk(BaseModel):
    """``GET /allocations/{id}/logs?offset=``: text from a byte offset on."""

    text: str
    next_offset: int
    complete: bool
    """True once the allocation has ended and nothing more will come."""


class ReasonView(BaseModel):
    """One thing that blocks a job."""

    code: str
    text: str


class Explanation(BaseModel):
    """``GET /jobs/{id}/explain``."""

    job_id: str
    state: JobState
    position: int | None
    reasons: list[ReasonView]
    class_value: float
    deficit: float
    score: float
    order_key: list[str]
    estimated_start: datetime | None
    estimate_text: str
    sentence: str
    """All of it in one line, for people."""
