"""The ledger's rows as answers show them: jobs, allocations, nodes and their GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from emep.ledger.states import CheckState
from emep.ledger.store.repository import chunks
from emep.ledger.store.tables import Allocation, AllocationGpu, AllocationNode, Event, Gpu, Job, Node
from emep.scheduling.model import GpuState
from emep.wire.allocations import AllocationView
from emep.wire.base import JobState
from emep.wire.jobs import AirflowTask, EventView, GpuRef, JobView
from emep.wire.nodes import GpuView, NodeView

_DOUBTED = (CheckState.OUT.value, CheckState.PROBATION.value)


def to_datetime(seconds: float | None) -> datetime | None:
    """Seconds since 1970 as an aware datetime."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def job_views(session: Session, jobs: Sequence[Job]) -> list[JobView]:
    """Jobs as every answer shows them, with their allocations read in one go."""
    wanted = [job.allocation_id for job in jobs if job.allocation_id]
    allocations: dict[str, Allocation] = {}
    for part in chunks(wanted):
        allocations.update(
            (a.id, a) for a in session.scalars(select(Allocation).where(Allocation.id.in_(part)))
        )
    return [_job_view(job, allocations.get(job.allocation_id or "")) for job in jobs]


def job_view(session: Session, job: Job) -> JobView:
    """One job as every answer shows it."""
    return job_views(session, [job])[0]


def _job_view(job: Job, allocation: Allocation | None) -> JobView:
    task = None
    if job.dag_id is not None:
        task = AirflowTask(
            dag_id=job.dag_id,
            run_id=job.run_id or "",
            task_id=job.task_id or "",
            map_index=job.map_index,
            try_number=job.try_number,
            last_try=job.last_try,
        )
    gpus = allocation.gpus if allocation else []
    return JobView(
        id=job.id,
        state=JobState(job.state),
        queue=job.queue,
        priority=job.priority,
        project=job.project,
        user=job.user,
        gpu_count=job.gpu_count,
        nvlink_required=job.nvlink_required,
        job_type=job.job_type,
        trace_id=job.trace_id,
        experiment_id=job.experiment_id,
        runtime=job.runtime,
        epoch=job.epoch,
        try_number=job.try_number,
        preempted=job.preempted,
        requeues=job.requeues,
        submitted_at=_moment(job.submitted_at),
        queued_at=_moment(job.queued_at),
        started_at=to_datetime(job.started_at),
        ended_at=to_datetime(job.ended_at),
        nodes=list(allocation.nodes) if allocation else [],
        gpus=[GpuRef(node=node, index=index, uuid=uuid) for node, index, uuid in gpus],
        allocation_id=job.allocation_id,
        reason=job.reason,
        reason_code=job.reason_code,
        promoted_from_gpus=job.promoted_from_gpus,
        exit_code=job.exit_code,
        result=job.result,
        airflow=task,
        last_checkpoint=job.last_checkpoint,
    )


def event_view(row: Event) -> EventView:
    """One event of a job's history."""
    nodes = (row.data or {}).get("nodes") or ([row.node] if row.node else [])
    return EventView(
        time=_moment(row.time),
        event=row.event,
        actor=row.actor,
        epoch=row.epoch,
        nodes=[str(node) for node in nodes],
        reason_code=row.reason_code,
        reason=row.reason,
    )


def allocation_views(session: Session, allocations: Sequence[Allocation]) -> list[AllocationView]:
    """Allocations as ``GET /allocations`` shows them, with their jobs' labels read in one go."""
    labels: dict[str, tuple[str, ...]] = {}
    for part in chunks({allocation.job_id for allocation in allocations}):
        query = select(Job.id, Job.trace_id, Job.experiment_id, Job.job_type).where(Job.id.in_(part))
        labels.update((row[0], tuple(row[1:])) for row in session.execute(query))
    nothing = ("", "", "")
    return [_allocation_view(one, *labels.get(one.job_id, nothing)) for one in allocations]


def allocation_view(session: Session, allocation: Allocation) -> AllocationView:
    """One allocation as ``GET /allocations`` shows it; of its token nothing."""
    return allocation_views(session, [allocation])[0]


def _allocation_view(
    allocation: Allocation, trace_id: str, experiment_id: str, job_type: str
) -> AllocationView:
    return AllocationView(
        id=allocation.id,
        job_id=allocation.job_id,
        trace_id=trace_id,
        experiment_id=experiment_id,
        job_type=job_type,
        epoch=allocation.epoch,
        state=allocation.state,
        runtime=allocation.runtime,
        nodes=list(allocation.nodes),
        gpus=[GpuRef(node=node, index=index, uuid=uuid) for node, index, uuid in allocation.gpus],
        granted_at=_moment(allocation.granted_at),
        first_heartbeat_at=to_datetime(allocation.first_heartbeat_at),
        heartbeat_at=to_datetime(allocation.heartbeat_at),
        deadline=_moment(allocation.deadline),
        ends_by=to_datetime(allocation.ends_by),
        yield_cause=allocation.yield_cause,
        yield_deadline=to_datetime(allocation.yield_deadline),
        ended_at=to_datetime(allocation.ended_at),
        exit_code=allocation.exit_code,
        progress=allocation.progress,
        log_size=allocation.log_size,
        reason=allocation.reason,
    )


def node_views(
    session: Session,
    now: float,
    alive_for: float,
    name: str | None = None,
    span: tuple[str, str] | None = None,
) -> list[NodeView]:
    """Nodes with their GPUs and who holds them; alive: a sign of life within ``alive_for`` seconds.

    All of them, the one named, or those of a span of names, both ends included.
    """
    nodes = select(Node).order_by(Node.name)
    gpus = select(Gpu).order_by(Gpu.node, Gpu.gpu_index)
    holds = select(AllocationGpu.node, AllocationGpu.gpu_index, Allocation.job_id).join(
        Allocation, Allocation.id == AllocationGpu.allocation_id
    )
    busy = select(AllocationNode.node).distinct()
    if name is not None:
        span = (name, name)
    if span is not None:
        nodes, gpus = nodes.where(Node.name.between(*span)), gpus.where(Gpu.node.between(*span))
        holds = holds.where(AllocationGpu.node.between(*span))
        busy = busy.where(AllocationNode.node.between(*span))
    holder = {(node, index): job_id for node, index, job_id in session.execute(holds)}
    with_work = set(session.scalars(busy))
    rows = list(session.scalars(nodes))
    drained = {node.name: node.drain_reason for node in rows if node.drain}
    by_node: dict[str, list[GpuView]] = {}
    for gpu in session.scalars(gpus):
        view = _gpu_view(gpu, holder.get((gpu.node, gpu.gpu_index)), drained.get(gpu.node))
        by_node.setdefault(gpu.node, []).append(view)
    return [
        NodeView(
            name=node.name,
            pool=node.pool,
            rack=node.rack,
            block=node.block,
            labels=node.labels,
            cpu=node.cpu,
            memory=node.memory,
            network_bandwidth_gbps=node.network_bandwidth_gbps,
            alive=not node.has_left and now - node.last_report_at <= alive_for,
            ready=node.is_ready,
            ready_reason=node.ready_reason,
            last_report_at=to_datetime(node.last_report_at),
            gpus=by_node.get(node.name, []),
            state=_node_state(node, node.name in with_work, now - alive_for),
            drain=node.drain,
            drain_reason=node.drain_reason,
            check_reason=node.check_reason,
            set_by_operator=sorted(node.patched or {}),
        )
        for node in rows
    ]


def _node_state(node: Node, has_work: bool, alive_since: float) -> str:
    if node.has_left or node.last_report_at < alive_since:
        return "down"
    if node.drain:
        return "draining" if has_work else "drained"
    return node.check_state if node.check_state in _DOUBTED else "up"


def gpu_state(gpu: Gpu, node_drain: bool, is_held: bool) -> GpuState:
    """The state to show for a GPU: unhealthy before drained, and draining while work is left on it."""
    if gpu.state != GpuState.HEALTHY.value or not (gpu.drain or node_drain):
        return GpuState(gpu.state)
    return GpuState.DRAINING if is_held else GpuState.DRAINED


def _gpu_view(gpu: Gpu, job_id: str | None, node_drained: str | None) -> GpuView:
    """``node_drained``: why its node is drained; None: it is not."""
    state = gpu_state(gpu, node_drained is not None, job_id is not None)
    why = gpu.state_reason
    if state in (GpuState.DRAINING, GpuState.DRAINED):
        why = gpu.drain_reason if gpu.drain else f"its node is drained{node_drained and f': {node_drained}'}"
    return GpuView(
        index=gpu.gpu_index,
        uuid=gpu.uuid,
        gpu_type=gpu.gpu_type,
        gpu_memory=gpu.memory,
        nvlink_group_id=gpu.nvlink_group,
        state=state.value,
        state_reason=why,
        utilization=gpu.utilization,
        temperature_c=gpu.temperature_c,
        memory_used=gpu.memory_used,
        job_id=job_id,
        drain=gpu.drain,
    )
