"""Documents about leases of work that no agent starts, and about what a cluster manager says of nodes."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from emep.wire.base import Request
from emep.wire.jobs import GpuRef


class LeaseRequest(Request):
    """``POST /allocations/{id}/lease``."""

    started: bool = False
    """The work has been created: from now on it is never created again in this epoch."""


class LeaseAnswer(BaseModel):
    """What the asker needs to start and to renew work that no agent starts. Times in seconds."""

    job_id: str
    epoch: int
    lease_token: str
    started: bool
    """True if an earlier call reported that the work was created."""
    environment: dict[str, str]
    """EMEP_* and TRACEPARENT; the asker adds EMEP_API_URL and EMEP_LEASE_TOKEN."""
    nodes: list[str]
    gpus: list[GpuRef]
    gpu_count: int
    spec: dict[str, Any] | None
    max_duration: float | None
    start_deadline: float
    grace: float
    """Seconds that work gets to checkpoint when it is told to."""
    grace_left: float | None
    """Seconds left of that if it has been told to; else None."""
    heartbeat: float
    max_silence: float
    deadline: datetime | None


class Loss(Request):
    """``POST /allocations/{id}/lost``: the work was lost, and EMEP had not asked for that."""

    epoch: int = Field(ge=0, lt=2**31)
    code: Literal["pod_lost", "pod_evicted", "pod_deleted", "node_lost", "start_deadline"] = "pod_lost"
    reason: str = Field(min_length=1, max_length=2000)
    gone: bool = False
    """Nothing of it runs any more."""


class NodeReadiness(Request):
    """``PUT /nodes/{name}/readiness``: what the cluster manager says of a node."""

    ready: bool
    reason: str = Field(default="", max_length=1000)
