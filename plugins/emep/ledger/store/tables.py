"""EMEP's tables in Airflow's database, for SQLite (the default) and PostgreSQL.

Times are seconds since 1970 UTC (double), memory is bytes, GPU time is GPU-seconds. There are no foreign keys
to Airflow's tables: clearing or cleaning those must not touch the ledger, so a task is named by plain
columns.
"""

from __future__ import annotations

from typing import Any

from airflow.models.base import naming_convention
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

NAME = 250
ID = 80


class Base(DeclarativeBase):
    """Base of the ledger's tables; their metadata is EMEP's own, not Airflow's."""

    metadata = MetaData(naming_convention=naming_convention)
    type_annotation_map = {dict[str, Any]: JSON, list[Any]: JSON}  # noqa: RUF012


class Clock(Base):
    """One row that every change of state updates last, just before its commit.

    ``seq`` numbers the events: because the row is locked until the commit, numbers become visible in order,
    so a reader that has seen N never misses an event below N. ``dirty`` counts what the planner must look at.
    """

    __tablename__ = "emep_clock"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    seq: Mapped[int] = mapped_column(BigInteger, default=0)
    dirty: Mapped[int] = mapped_column(BigInteger, default=0)
    ticked_at: Mapped[float] = mapped_column(Double, default=0.0)
    planned_at: Mapped[float] = mapped_column(Double, default=0.0)
    planned_dirty: Mapped[int] = mapped_column(BigInteger, default=-1)


class Lock(Base):
    """A lease on being the only one: of several API servers one plans at a time."""

    __tablename__ = "emep_lock"

    name: Mapped[str] = mapped_column(String(ID), primary_key=True)
    holder: Mapped[str] = mapped_column(String(NAME), default="")
    fence: Mapped[int] = mapped_column(BigInteger, default=0)
    expires_at: Mapped[float] = mapped_column(Double, default=0.0)


class Job(Base):
    """One request for GPUs, from its submission to its end; never deleted while anything refers to it."""

    __tablename__ = "emep_job"
    __table_args__ = (
        UniqueConstraint("submitted_by", "idempotency_key"),
        Index(None, "state", "queued_at"),
        Index(None, "dag_id", "run_id"),
    )

    id: Mapped[str] = mapped_column(String(ID), primary_key=True)
    state: Mapped[str] = mapped_column(String(20))
    epoch: Mapped[int] = mapped_column(Integer, default=0)
    submitted_by: Mapped[str] = mapped_column(String(NAME))
    idempotency_key: Mapped[str | None] = mapped_column(String(500))

    queue: Mapped[str] = mapped_column(String(NAME))
    priority: Mapped[str] = mapped_column(String(NAME))
    project: Mapped[str] = mapped_column(String(NAME))
    user: Mapped[str] = mapped_column("user_name", String(NAME))
    gpu_count: Mapped[int] = mapped_column(Integer)
    node_count: Mapped[int | None] = mapped_column(Integer)
    cpu: Mapped[float] = mapped_column(Double)
    memory: Mapped[int] = mapped_column(BigInteger)
    gpu_memory_min: Mapped[int] = mapped_column(BigInteger)
    gpu_type: Mapped[str] = mapped_column(String(NAME))
    nvlink_required: Mapped[bool] = mapped_column(Boolean)
    topology: Mapped[dict[str, Any]]
    max_duration: Mapped[float | None] = mapped_column(Double)
    preemptible: Mapped[bool | None] = mapped_column(Boolean)
    checkpoint_interval: Mapped[float | None] = mapped_column(Double)
    placement: Mapped[str | None] = mapped_column(String(20))
    runtime: Mapped[str] = mapped_column(String(20))
    spec: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    trace_id: Mapped[str] = mapped_column(String(NAME))
    experiment_id: Mapped[str] = mapped_column(String(NAME))
    job_type: Mapped[str] = mapped_column(String(NAME))
    checkpoint_key: Mapped[str] = mapped_column(String(500))

    dag_id: Mapped[str | None] = mapped_column(String(NAME))
    run_id: Mapped[str | None] = mapped_column(String(NAME))
    task_id: Mapped[str | None] = mapped_column(String(NAME))
    map_index: Mapped[int] = mapped_column(Integer, default=-1)
    try_number: Mapped[int] = mapped_column(Integer, default=1)
    last_try: Mapped[bool] = mapped_column(Boolean, default=True)
    task_deadline: Mapped[float | None] = mapped_column(Double)
    """When the task's ``execution_timeout`` is over, waiting included: Airflow enforces none meanwhile."""

    submitted_at: Mapped[float] = mapped_column(Double)
    queued_at: Mapped[float] = mapped_column(Double)
    not_before: Mapped[float] = mapped_column(Double, default=0.0)
    started_at: Mapped[float | None] = mapped_column(Double)
    ended_at: Mapped[float | None] = mapped_column(Double)
    preempted: Mapped[bool] = mapped_column(Boolean, default=False)
    preemptions: Mapped[int] = mapped_column(Integer, default=0)
    requeues: Mapped[int] = mapped_column(Integer, default=0)

    allocation_id: Mapped[str | None] = mapped_column(String(ID))
    reason_code: Mapped[str] = mapped_column(String(NAME), default="")
    reason: Mapped[str] = mapped_column(Text, default="")
    exit_code: Mapped[int | None] = mapped_column(Integer)
    promoted_from_gpus: Mapped[int | None] = mapped_column(Integer)
    """GPUs it asked for before it ran out of their memory and was promoted to a CPU job; None: never."""
    result: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    last_checkpoint: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    avoid_nodes: Mapped[list[Any] | None] = mapped_column(JSON(none_as_null=True))
    """Names of nodes that it, or an earlier try of its task, failed on: others are preferred."""


class Node(Base):
    """A machine that an agent has registered."""

    __tablename__ = "emep_node"

    name: Mapped[str] = mapped_column(String(NAME), primary_key=True)
    pool: Mapped[str] = mapped_column(String(NAME))
    rack: Mapped[str] = mapped_column(String(NAME))
    block: Mapped[str] = mapped_column(String(NAME))
    labels: Mapped[dict[str, Any]]
    cpu: Mapped[float] = mapped_column(Double)
    memory: Mapped[int] = mapped_column(BigInteger)
    network_bandwidth_gbps: Mapped[float] = mapped_column(Double)
    registrations: Mapped[int] = mapped_column(Integer, default=1)
    registered_at: Mapped[float] = mapped_column(Double)
    last_report_at: Mapped[float] = mapped_column(Double)
    """Last sign of life of its agent: registration, report or poll."""
    last_check_at: Mapped[float] = mapped_column(Double)
    """Up to when its health checks are counted, good or failed."""
    drain: Mapped[bool] = mapped_column(Boolean, default=False)
    drain_reason: Mapped[str] = mapped_column(Text, default="")
    is_ready: Mapped[bool] = mapped_column(Boolean, default=True)
    """What the cluster manager says of it (Kubernetes' Ready); without one always true."""
    ready_reason: Mapped[str] = mapped_column(Text, default="")
    has_left: Mapped[bool] = mapped_column(Boolean, default=False)
    """Its agent has said goodbye: nothing new until it registers again."""
    patched: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    """Field -> ``{"set": what an operator has set over it, "agent": what its agent says}``."""
    check_state: Mapped[str] = mapped_column(String(20), default="")
    """Empty, or one of ``states.CheckState``."""
    check_reason: Mapped[str] = mapped_column(Text, default="")
    """Why it was taken out of service last."""
    check_until: Mapped[float] = mapped_column(Double, default=0.0)
    """Out: when its cool-down is over; on probation: since when."""
    failures: Mapped[list[Any]] = mapped_column(JSON, default=list)
    """Quick failures since the last job that completed on it, oldest first."""


class Gpu(Base):
    """A GPU of a node, and what its agent last said of it."""

    __tablename__ = "emep_gpu"
    __table_args__ = (Index(None, "held_for"),)

    node: Mapped[str] = mapped_column(ForeignKey("emep_node.name", ondelete="CASCADE"), primary_key=True)
    gpu_index: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    uuid: Mapped[str] = mapped_column(String(NAME), unique=True)
    gpu_type: Mapped[str] = mapped_column(String(NAME))
    memory: Mapped[int] = mapped_column(BigInteger)
    nvlink_group: Mapped[str | None] = mapped_column(String(NAME))
    state: Mapped[str] = mapped_column(String(20))
    state_reason: Mapped[str] = mapped_column(Text, default="")
    bad_checks: Mapped[int] = mapped_column(Integer, default=0)
    good_checks: Mapped[int] = mapped_column(Integer, default=0)
    drain: Mapped[bool] = mapped_column(Boolean, default=False)
    drain_reason: Mapped[str] = mapped_column(Text, default="")
    held_for: Mapped[str | None] = mapped_column(String(ID))
    """A preemptor that this GPU was freed for and that has not started yet."""
    utilization: Mapped[float | None] = mapped_column(Double)
    temperature_c: Mapped[float | None] = mapped_column(Double)
    memory_used: Mapped[int | None] = mapped_column(BigInteger)
    reported_at: Mapped[float | None] = mapped_column(Double)


class Allocation(Base):
    """GPUs held by one job under a lease, in one epoch; kept when it is over."""

    __tablename__ = "emep_allocation"
    __table_args__ = (
        UniqueConstraint("job_id", "epoch"),
        Index(None, "state", "deadline"),
        Index(None, "held_for"),
    )

    id: Mapped[str] = mapped_column(String(ID), primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("emep_job.id"))
    epoch: Mapped[int] = mapped_column(Integer)
    state: Mapped[str] = mapped_column(String(20))
    token_sha256: Mapped[str] = mapped_column(String(64))
    runtime: Mapped[str] = mapped_column(String(20))
    gpus: Mapped[list[Any]]
    """``[node, index, uuid]`` in rank order."""
    nodes: Mapped[list[Any]]
    gpu_count: Mapped[int] = mapped_column(Integer)
    billing_rate: Mapped[float] = mapped_column(Double)
    """Billed GPU-seconds of one second."""
    reason: Mapped[str] = mapped_column(Text, default="")
    granted_at: Mapped[float] = mapped_column(Double)
    lease_given_at: Mapped[float | None] = mapped_column(Double)
    """When its asker first fetched the lease; before that nothing of it can run. None for an agent's."""
    first_heartbeat_at: Mapped[float | None] = mapped_column(Double)
    heartbeat_at: Mapped[float | None] = mapped_column(Double)
    deadline: Mapped[float] = mapped_column(Double)
    """Lost past this: the start deadline while granted, the lease's end afterwards."""
    ends_by: Mapped[float | None] = mapped_column(Double)
    """When ``max_duration`` of this run is over."""
    yield_cause: Mapped[str | None] = mapped_column(String(20))
    yield_at: Mapped[float | None] = mapped_column(Double)
    yield_deadline: Mapped[float | None] = mapped_column(Double)
    """Killed past this."""
    held_for: Mapped[str | None] = mapped_column(String(ID))
    ended_at: Mapped[float | None] = mapped_column(Double)
    exit_code: Mapped[int | None] = mapped_column(Integer)
    last_checkpoint_at: Mapped[float | None] = mapped_column(Double)
    progress: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    log_size: Mapped[int] = mapped_column(BigInteger, default=0)
    log_closed: Mapped[bool] = mapped_column(Boolean, default=False)
    """The shipper of its log has closed it: no more bytes come."""


class AllocationGpu(Base):
    """Who holds a GPU now.

    Its key is the GPU, so that holding one twice is impossible in the database itself.
    """

    __tablename__ = "emep_allocation_gpu"
    __table_args__ = (Index(None, "allocation_id"),)

    node: Mapped[str] = mapped_column(String(NAME), primary_key=True)
    gpu_index: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    allocation_id: Mapped[str] = mapped_column(ForeignKey("emep_allocation.id"))


class AllocationNode(Base):
    """The nodes of an allocation until nothing of it runs there any more; CPU jobs have one, and no GPU."""

    __tablename__ = "emep_allocation_node"
    __table_args__ = (Index(None, "node"),)

    allocation_id: Mapped[str] = mapped_column(ForeignKey("emep_allocation.id"), primary_key=True)
    node: Mapped[str] = mapped_column(String(NAME), primary_key=True)
    node_rank: Mapped[int] = mapped_column(Integer)
    started: Mapped[bool] = mapped_column(Boolean, default=False)
    """Its agent has listed it: the start order is not repeated."""


class Usage(Base):
    """What has ended, per queue, project and user; what still runs is added when read, to the second."""

    __tablename__ = "emep_usage"

    queue: Mapped[str] = mapped_column(String(NAME), primary_key=True)
    project: Mapped[str] = mapped_column(String(NAME), primary_key=True)
    user: Mapped[str] = mapped_column("user_name", String(NAME), primary_key=True)
    gpu_seconds: Mapped[float] = mapped_column(Double, default=0.0)
    """All of it, not billed by type, never decayed."""
    billed_gpu_seconds: Mapped[float] = mapped_column(Double, default=0.0)
    decayed: Mapped[float] = mapped_column(Double, default=0.0)
    """Billed and decayed to ``decayed_at``."""
    decayed_at: Mapped[float] = mapped_column(Double, default=0.0)


class Event(Base):
    """The audit: every decision with its reason, append-only. ``id`` is the cursor of changes."""

    __tablename__ = "emep_event"
    __table_args__ = (Index(None, "job_id", "id"),)

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    time: Mapped[float] = mapped_column(Double)
    event: Mapped[str] = mapped_column(String(40))
    actor: Mapped[str] = mapped_column(String(NAME))
    job_id: Mapped[str | None] = mapped_column(String(ID))
    allocation_id: Mapped[str | None] = mapped_column(String(ID))
    epoch: Mapped[int | None] = mapped_column(Integer)
    node: Mapped[str | None] = mapped_column(String(NAME))
    reason_code: Mapped[str] = mapped_column(String(NAME), default="")
    reason: Mapped[str] = mapped_column(Text, default="")
    data: Mapped[dict[str, Any]]


class DeadLetter(Base):
    """A job that nothing will run again by itself, kept for a person to look at, requeue or discard."""

    __tablename__ = "emep_dead_letter"
    __table_args__ = (Index(None, "state", "created_at"),)

    job_id: Mapped[str] = mapped_column(ForeignKey("emep_job.id"), primary_key=True)
    state: Mapped[str] = mapped_column(String(20), default="open")
    """open, requeued or discarded."""
    reason_code: Mapped[str] = mapped_column(String(NAME), default="")
    reason: Mapped[str] = mapped_column(Text, default="")
    created_at: Mapped[float] = mapped_column(Double)
    resolved_at: Mapped[float | None] = mapped_column(Double)
    resolved_by: Mapped[str] = mapped_column(String(NAME), default="")
    resolution: Mapped[str] = mapped_column(Text, default="")
    """The person's reason."""


class FairShareOverride(Base):
    """An operator's weight over the policy file's, until it is unset."""

    __tablename__ = "emep_fair_share_override"

    entity: Mapped[str] = mapped_column(String(NAME), primary_key=True)
    """``queue:merge``, a project (``org/team``), or a user in one (``org/team@alice``)."""
    weight: Mapped[float] = mapped_column(Double)
    set_by: Mapped[str] = mapped_column(String(NAME))
    reason: Mapped[str] = mapped_column(Text, default="")
    set_at: Mapped[float] = mapped_column(Double)


class PolicyVersion(Base):
    """Every policy that was ever in force, overrides included, so that an old decision can be understood."""

    __tablename__ = "emep_policy_version"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    """SHA-256 of the document's canonical JSON."""
    document: Mapped[dict[str, Any]]
    since: Mapped[float] = mapped_column(Double)
    """When it first came into force."""


class LogChunk(Base):
    """A piece of an allocation's log, by its byte offset; any API server can take it and show it."""

    __tablename__ = "emep_log_chunk"

    allocation_id: Mapped[str] = mapped_column(ForeignKey("emep_allocation.id"), primary_key=True)
    chunk_offset: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    size: Mapped[int] = mapped_column(Integer)
    data: Mapped[bytes] = mapped_column(LargeBinary)
