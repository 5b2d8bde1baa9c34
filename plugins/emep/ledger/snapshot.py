"""The ledger's rows as the immutable snapshot that the scheduling core plans on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from emep.api.schemas import JobState
from emep.ledger.repository import clock_row
from emep.ledger.states import LIVE_ALLOCATION_STATES, AllocationState
from emep.ledger.tables import Allocation, AllocationGpu, Gpu, Job, Node, Usage
from emep.ledger.usage import decay, decayed_charge
from emep.policy import Policy
from emep.scheduling import model
from emep.scheduling.history import DurationHistory

CONFIRMATION_SECONDS = 30.0
"""How soon GPUs of a lost lease are expected back: an agent polls this often at least."""
REMEMBERED_SECONDS = 30 * 86400.0
REMEMBERED_JOBS = 2000
"""How far back, and at how many completed jobs at most, estimates of durations look."""


@dataclass(frozen=True)
class LedgerSnapshot:
    """A snapshot, and which state of the ledger it shows."""

    snapshot: model.Snapshot
    dirty: int
    seq: int
    taken_at: float
    reason_codes: Mapping[str, str]
    """Pending job -> the codes that are stored as what it waits for."""


def model_job(row: Any, policy: Policy) -> model.Job:
    """A job's row (or any object with its columns) as the core sees it."""
    topology: Mapping[str, Any] = row.topology or {}
    return model.Job(
        id=row.id,
        submit_time=row.submitted_at,
        queue=row.queue,
        priority=policy.canonical_class(row.priority),
        project=row.project,
        user=row.user,
        gpu_count=row.gpu_count,
        node_count=row.node_count,
        cpu=row.cpu,
        memory=row.memory,
        gpu_memory_min=row.gpu_memory_min,
        gpu_type=row.gpu_type,
        nvlink_required=row.nvlink_required,
        topology_required=topology.get("required"),
        topology_preferred=topology.get("preferred"),
        affinity=_terms(topology.get("affinity"), row.runtime == "kubernetes"),
        anti_affinity=_terms(topology.get("anti_affinity"), row.runtime == "agent"),
        max_duration=row.max_duration,
        preemptible=row.preemptible,
        checkpoint_interval=row.checkpoint_interval,
        placement=row.placement,
        job_type=row.job_type,
        preempted=row.preempted,
        queued_at=row.queued_at,
        not_before=row.not_before,
    )


RUNTIME_LABEL, KUBERNETES = "emep/runtime", "kubernetes"
"""Of nodes whose work is started by Kubernetes: pods go there only, and what agents start never."""


def _terms(labels: Mapping[str, str] | None, on_kubernetes: bool) -> tuple[model.LabelTerm, ...]:
    """The job's own terms, and the one that its runtime adds."""
    wanted = dict(labels or {}) | ({RUNTIME_LABEL: KUBERNETES} if on_kubernetes else {})
    return tuple(model.LabelTerm(key, value) for key, value in sorted(wanted.items()))


def read_nodes(session: Session, alive_since: float) -> tuple[model.Node, ...]:
    """All nodes with their GPUs, by name; heard of since ``alive_since`` or not schedulable."""
    gpus: dict[str, list[model.Gpu]] = defaultdict(list)
    query = select(Gpu.node, Gpu.gpu_index, Gpu.gpu_type, Gpu.memory, Gpu.nvlink_group, Gpu.state)
    for node, index, gpu_type, memory, group, state in session.execute(
        query.order_by(Gpu.node, Gpu.gpu_index)
    ):
        gpus[node].append(model.Gpu(index, gpu_type, memory, group, model.GpuState(state)))
    return tuple(
        model.Node(
            name=node.name,
            gpus=tuple(gpus[node.name]),
            pool=node.pool,
            rack=node.rack,
            block=node.block,
            labels=dict(node.labels),
            cpu=node.cpu,
            memory=node.memory,
            network_bandwidth_gbps=node.network_bandwidth_gbps,
            schedulable=node.is_ready
            and not (node.drain or node.has_left)
            and node.last_report_at >= alive_since,
        )
        for node in session.execute(select(*Node.__table__.c).order_by(Node.name))
    )


def build_snapshot(session: Session, policy: Policy, now: float, alive_for: float) -> LedgerSnapshot:
    """Everything ``plan`` may know, of one moment. The session's statements must all see the same moment."""
    seq, dirty, _, _ = clock_row(session)
    columns = [getattr(Job, name) for name in _JOB_COLUMNS]
    rows = session.execute(
        select(*columns, Job.reason_code).where(Job.state == JobState.PENDING.value).order_by(Job.id)
    ).all()
    history = _history(session, now) if rows else DurationHistory()
    pending = tuple(_estimated(model_job(row, policy), history) for row in rows)
    live: list[model.Allocation] = []
    usage = _ended_usage(session, policy, now)
    running = (
        select(Allocation, *columns)
        .join(Job, Job.id == Allocation.job_id)
        .where(Allocation.state.in_([state.value for state in LIVE_ALLOCATION_STATES]))
        .order_by(Allocation.granted_at, Allocation.id)
    )
    for row in session.execute(running):
        allocation, job = row[0], model_job(row, policy)
        live.append(_live_allocation(allocation, job))
        key = (job.queue, job.project, job.user)
        usage[key] = usage.get(key, 0.0) + decayed_charge(
            allocation.billing_rate, allocation.granted_at, now, now, policy.half_life
        )
    live.extend(_leaving(session, policy, now, columns))
    return LedgerSnapshot(
        model.Snapshot(
            nodes=read_nodes(session, now - alive_for),
            pending=pending,
            allocations=tuple(live),
            usage=tuple(model.UsageRecord(*key, seconds) for key, seconds in sorted(usage.items())),
            holds=_holds(session, {job.id for job in pending}),
        ),
        dirty=dirty,
        seq=seq,
        taken_at=now,
        reason_codes={row.id: row.reason_code for row in rows},
    )


def _history(session: Session, now: float) -> DurationHistory:
    """How long completed jobs took; runs that were interrupted say too little and are left out."""
    query = (
        select(Job.user, Job.job_type, Job.gpu_count, Job.started_at, Job.ended_at)
        .where(
            Job.state == JobState.COMPLETED.value,
            Job.queued_at >= now - REMEMBERED_SECONDS,
            Job.epoch == 1,
        )
        .order_by(Job.queued_at.desc())
        .limit(REMEMBERED_JOBS)
    )
    took = [
        (ended, (user, job_type, gpu_count), max(0.0, ended - started))
        for user, job_type, gpu_count, started, ended in session.execute(query)
        if started is not None and ended is not None
    ]
    history = DurationHistory()
    for _, kind, seconds in sorted(took):
        history.add(kind, seconds)
    return history


def _estimated(job: model.Job, history: DurationHistory) -> model.Job:
    """The job with what the same user's jobs of its type and size took before."""
    estimate = history.estimate(job)
    return job if estimate is None else replace(job, estimated_duration=estimate)


def _live_allocation(allocation: Allocation, job: model.Job) -> model.Allocation:
    yielding = allocation.state == AllocationState.YIELDING.value
    return model.Allocation(
        job=job,
        gpus=tuple(model.GpuId(node, index) for node, index, _ in allocation.gpus),
        # Before the first heartbeat no work is done, and max_duration does not run yet.
        start_time=allocation.first_heartbeat_at or allocation.granted_at,
        nodes=tuple(allocation.nodes),
        last_checkpoint=allocation.last_checkpoint_at,
        yielding=yielding,
        held_for=allocation.held_for if yielding else None,
        releases_at=allocation.yield_deadline if yielding else None,
    )


def _leaving(session: Session, policy: Policy, now: float, columns: list[Any]) -> list[model.Allocation]:
    """GPUs of leases that are over, of which no agent has said yet that nothing runs there any more.

    They appear as allocations of their own that are about to end, so that the core counts them as coming
    free.
    """
    rows = session.execute(
        select(AllocationGpu.node, AllocationGpu.gpu_index, Allocation, *columns)
        .join(Allocation, Allocation.id == AllocationGpu.allocation_id)
        .join(Job, Job.id == Allocation.job_id)
        .where(Allocation.state.in_([AllocationState.LOST.value, AllocationState.RELEASED.value]))
        .order_by(AllocationGpu.node, AllocationGpu.gpu_index)
    ).all()
    gpus: dict[str, list[model.GpuId]] = defaultdict(list)
    whose: dict[str, tuple[Allocation, model.Job]] = {}
    for row in rows:
        allocation: Allocation = row[2]
        gpus[allocation.id].append(model.GpuId(row[0], row[1]))
        whose[allocation.id] = (allocation, model_job(row, policy))
    return [
        model.Allocation(
            job=replace(job, id=f"leaving:{name}", gpu_count=len(gpus[name]), preemptible=False),
            gpus=tuple(gpus[name]),
            start_time=allocation.granted_at,
            nodes=tuple(dict.fromkeys(gpu.node for gpu in gpus[name])),
            yielding=True,
            held_for=allocation.held_for,
            releases_at=now + CONFIRMATION_SECONDS,
        )
        for name, (allocation, job) in whose.items()
    ]


def _holds(session: Session, pending: set[str]) -> tuple[model.Hold, ...]:
    """What earlier plans have promised to jobs that still wait."""
    held: dict[str, list[model.GpuId]] = defaultdict(list)
    query = select(Gpu.node, Gpu.gpu_index, Gpu.held_for).where(Gpu.held_for.is_not(None))
    for node, index, job_id in session.execute(query.order_by(Gpu.node, Gpu.gpu_index)):
        if job_id in pending:
            held[job_id].append(model.GpuId(node, index))
    return tuple(model.Hold(job_id, tuple(gpus)) for job_id, gpus in sorted(held.items()))


def _ended_usage(session: Session, policy: Policy, now: float) -> dict[tuple[str, str, str], float]:
    rows = session.execute(select(Usage.queue, Usage.project, Usage.user, Usage.decayed, Usage.decayed_at))
    return {(q, p, u): decay(amount, now - at, policy.half_life) for q, p, u, amount, at in rows}


_JOB_COLUMNS = [
    "id",
    "submitted_at",
    "queue",
    "priority",
    "project",
    "user",
    "gpu_count",
    "node_count",
    "cpu",
    "memory",
    "gpu_memory_min",
    "gpu_type",
    "nvlink_required",
    "topology",
    "max_duration",
    "preemptible",
    "checkpoint_interval",
    "placement",
    "runtime",
    "job_type",
    "preempted",
    "queued_at",
    "not_before",
]
