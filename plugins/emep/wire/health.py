"""Documents of the watch over the hardware: what it finds, and how the hardware is."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel


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
