"""The wire: every document that crosses the REST API, as pydantic models.

Shared by the API, the client, the agent, operators, triggers and the CLI, so it imports neither Airflow nor
SQLAlchemy. Times are ISO 8601 UTC; durations are seconds (requests also take ``2h``); memory is bytes
(requests also take ``80Gi``). This module has all of them by name; those about jobs, nodes and what operators
do stand in modules of their own.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from emep.api.schemas_base import (
    ENDED_STATES,
    MAX_DEPTH,
    Directive,
    Duration,
    JobState,
    Labels,
    Memory,
    Name,
    Request,
    Text,
    check_storable,
)
from emep.api.schemas_jobs import (
    AirflowTask,
    Changes,
    Explanation,
    GpuRef,
    JobRequest,
    JobView,
    Page,
    ReasonView,
    Topology,
)
from emep.api.schemas_leases import LeaseAnswer, LeaseRequest, Loss, NodeReadiness
from emep.api.schemas_nodes import (
    GpuHealth,
    GpuReport,
    GpuView,
    HealthReport,
    NodeRequest,
    NodeView,
    PollAnswer,
    PollRequest,
    RunningAllocation,
    StartOrder,
    StopOrder,
)
from emep.api.schemas_operate import (
    MAX_BATCH,
    BatchAnswer,
    BatchOutcome,
    BatchRequest,
    DeadLetterState,
    DeadLetterView,
    DrainRequest,
    FairShareView,
    NodePatch,
    OverrideRequest,
    OverrideView,
    ReasonRequest,
    ResumeRequest,
    ShareView,
)

__all__ = [
    "ENDED_STATES",
    "MAX_BATCH",
    "MAX_DEPTH",
    "AirflowTask",
    "AllocationView",
    "BatchAnswer",
    "BatchOutcome",
    "BatchRequest",
    "Changes",
    "Checkup",
    "Completion",
    "DeadLetterState",
    "DeadLetterView",
    "Directive",
    "DrainRequest",
    "Duration",
    "Explanation",
    "FairShareView",
    "GpuHealth",
    "GpuRef",
    "GpuReport",
    "GpuView",
    "HealthFinding",
    "HealthReport",
    "Heartbeat",
    "HeartbeatAnswer",
    "JobRequest",
    "JobState",
    "JobView",
    "Labels",
    "LeaseAnswer",
    "LeaseRequest",
    "LogChunk",
    "LogReceipt",
    "Loss",
    "Memory",
    "Name",
    "NodePatch",
    "NodeReadiness",
    "NodeRequest",
    "NodeView",
    "OverrideRequest",
    "OverrideView",
    "Page",
    "PollAnswer",
    "PollRequest",
    "ReasonRequest",
    "ReasonView",
    "Request",
    "ResumeRequest",
    "RunningAllocation",
    "ShareView",
    "StartOrder",
    "StopOrder",
    "Text",
    "Topology",
    "check_storable",
]


class Heartbeat(Request):
    """``POST /allocations/{id}/heartbeat``, authorised by the lease token."""

    epoch: int = Field(ge=0, lt=2**31)
    checkpoint: dict[str, Any] | None = None
    """``{"step": 3, "uri": ".../step-00000003", "time": ISO}`` of the last complete checkpoint."""
    progress: dict[str, Any] | None = None
    watched: bool = False
    """Sent by somebody who sees the work run from outside (a pod's trigger): it lasts for ``max_silence``."""


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
    trace_id: str = ""
    experiment_id: str = ""
    job_type: str = ""
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


class HealthFinding(BaseModel):
    """One thing that the watch over the hardware has found or done (an event of the audit)."""

    id: int
    time: datetime
    event: str
    """gpu_unhealthy, gpu_healthy, node_left, node_back, allocation_lost, requeued, told_to_yield, ..."""
    nodes: list[str]
    gpu_index: int | None
    job_id: str | None
    allocation_id: str | None
    code: str
    reason: str
    actor: str


class Checkup(BaseModel):
    """``POST /nodes:check``: findings, oldest first, and the hardware as it is now."""

    findings: list[HealthFinding]
    cursor: int
    """Where the next call goes on."""
    due_seconds: float | None
    """Until the next lease or report runs out, if nothing is heard before."""
    nodes: int
    silent_nodes: list[str]
    gpus: dict[str, dict[str, int]]
    """GPUs of each pool by state."""
