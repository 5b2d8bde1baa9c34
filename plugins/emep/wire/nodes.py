"""Documents about nodes: registration, reports, polls and the orders that answer them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from emep.wire.base import Directive, Labels, Memory, Name, Request, Text
from emep.wire.jobs import GpuRef


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
    restart_xid: int | None = Field(default=None, ge=0, lt=2**31)
    """An Xid since the report before that asks for the application to be restarted; the GPU is well."""


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
    drain: bool = False
    """An operator has drained this GPU itself, whatever is true of its node."""


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
    ready: bool = True
    """What the cluster manager says of it; without one always true."""
    ready_reason: str = ""
    last_report_at: datetime | None
    gpus: list[GpuView]
    state: str = ""
    """up, down, draining (work is left on it), drained, out (it failed its jobs) or probation (one job)."""
    drain: bool = False
    drain_reason: str = ""
    check_reason: str = ""
    """Why it is out of service or on probation."""
    set_by_operator: list[str] = Field(default_factory=list)
    """Fields that count over what its agent says."""


class ReportAnswer(NodeView):
    """The answer to a node's report: the node, and the rules by which its agent judges later readings."""

    xids: dict[int, str] = Field(default_factory=dict)
    """Xid -> action, where the policy says something else than NVIDIA's table."""


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
    gave_up: bool = False
    """The poll before was given up: orders that it may have been answered with were not carried out."""


class StartOrder(BaseModel):
    """Start this work; repeated on every poll until the agent lists it as running or it has ended."""

    kind: Literal["start"] = "start"
    allocation_id: str
    job_id: str
    trace_id: str = ""
    experiment_id: str = ""
    job_type: str = ""
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
