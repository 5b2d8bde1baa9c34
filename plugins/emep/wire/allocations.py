"""Documents about running work: heartbeats, completions, allocations, logs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from emep.wire.base import Directive, Request
from emep.wire.jobs import GpuRef


class Heartbeat(Request):
    """``POST /allocations/{id}/heartbeat``, authorised by the lease token."""

    epoch: int = Field(ge=0, lt=2**31)
    checkpoint: dict[str, Any] | None = None
    """``{"step": 3, "uri": ".../step-00000003", "time": ISO}`` of the last complete checkpoint."""
    progress: dict[str, Any] | None = None
    watched: bool = False
    """Sent by a trigger that watches the work from outside (a pod): the lease lasts for ``max_silence``."""


class HeartbeatAnswer(BaseModel):
    """A directive, and how long the lease now lasts."""

    directive: Directive
    grace_seconds: float | None = None
    """For checkpoint_and_exit: seconds left before it is killed."""
    lease_seconds: float


class Completion(Request):
    """``POST /allocations/{id}/complete``; may be repeated, but a stale epoch is refused (409)."""

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
