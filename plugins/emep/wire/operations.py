"""Documents of what operators do: batches, requeues, drains, dead letters, fair shares."""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from emep.wire.base import Labels, Name, Request, Text
from emep.wire.jobs import JobView

MAX_BATCH = 1000
"""Jobs of one batch."""
ReasonText = Annotated[str, Field(max_length=1000)]


class BatchRequest(BaseModel):
    """``POST /jobs:batch``: requests as for ``POST /jobs``, each judged by itself."""

    model_config = ConfigDict(extra="forbid")

    jobs: list[Any] = Field(min_length=1, max_length=MAX_BATCH)


class BatchOutcome(BaseModel):
    """What became of one request of a batch: a job, or the problem that ``POST /jobs`` would answer."""

    status: int
    """201: a new job; 200: the one that its idempotency key has made before; 4xx: refused, see problem."""
    job: JobView | None = None
    problem: dict[str, Any] | None = None


class BatchAnswer(BaseModel):
    """Outcomes in the order of the requests."""

    items: list[BatchOutcome]
    created: int
    refused: int


class ReasonRequest(Request):
    """Why an operator does something; kept in the audit."""

    reason: ReasonText = ""


class DrainRequest(ReasonRequest):
    """``POST /nodes/{name}/drain``."""

    gpu: int | None = Field(default=None, ge=0, le=1023)
    """Only this GPU of the node."""
    now: bool = Field(default=False)
    """What runs there is told to checkpoint and goes back to its place in the queue."""


class ResumeRequest(ReasonRequest):
    """``POST /nodes/{name}/resume``."""

    gpu: int | None = Field(default=None, ge=0, le=1023)


class NodePatch(ReasonRequest):
    """``PATCH /nodes/{name}``: counts over what the agent says; null: the agent's word again."""

    pool: Name | None = None
    rack: Text | None = None
    block: Text | None = None
    labels: Labels | None = None
    """Replaces all labels."""
    network_bandwidth_gbps: float | None = Field(default=None, ge=0, le=1e9)


class DeadLetterState(str, Enum):
    """What has become of a dead letter."""

    OPEN = "open"
    REQUEUED = "requeued"
    DISCARDED = "discarded"


class DeadLetterView(BaseModel):
    """A job that nothing runs again by itself; ``id`` is the job's."""

    id: str
    state: DeadLetterState
    reason_code: str
    reason: str
    created_at: datetime
    resolved_at: datetime | None
    resolved_by: str
    resolution: str
    trace_id: str
    experiment_id: str
    job_type: str
    job: JobView


class OverrideRequest(ReasonRequest):
    """``PUT /fair-share/{entity}``."""

    weight: float = Field(ge=0, le=1e9, allow_inf_nan=False)


class OverrideView(BaseModel):
    """A weight that an operator has set over the policy file's."""

    entity: str
    weight: float
    set_by: str
    reason: str
    set_at: datetime
    effective: bool
    """False where the policy in force knows no such entity (any more)."""


class ShareView(BaseModel):
    """An entity of the fair-share tree; GPU-hours are those of one GPU held for one hour."""

    level: Literal["queue", "project", "user"]
    entity: str
    """What an override names: ``queue:merge``, ``org/team``, ``org/team@alice``."""
    queue: str
    """Every queue has shares of its own for the projects below it."""
    depth: int
    """0: queues; an entity follows its parent."""
    policy_weight: float
    override: float | None
    weight: float
    """The one that counts."""
    share: float
    """Weight among its siblings, 0 to 1."""
    gpu_hours: float
    """All it has ever held, not decayed, not billed by type; what runs now included."""
    used_gpu_hours: float
    """Billed by type and decayed by the half-life: what the order compares."""
    target_gpu_hours: float
    """Its share of what it and its siblings have used."""
    deficit: float | None
    """(target - used) / target; null: weight 0, served last."""
    rank: int
    """Among its siblings, 1 is served first; those that tie share a rank."""
    overall_rank: int | None
    """Of users only: among all of them."""
    score_class: str | None
    score: float | None
    """Of projects and users: the score of a waiting job of that class, as an example."""


class FairShareView(BaseModel):
    """``GET /fair-share``: the whole tree, parents before children, siblings by rank."""

    entities: list[ShareView]
    overrides: list[OverrideView]
    half_life_seconds: float
    policy_digest: str
    """Names the policy in force among those that are kept."""
