"""The ledger's rows as the immutable snapshot that the scheduling core plans on.

``read_contents`` reads everything; each part can also be read anew for single jobs, allocations or nodes.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, and_, select
from sqlalchemy.orm import Session

from emep.api.schemas import JobState
from emep.ledger.job_rows import JOB_WIDTH, as_text, job_columns, job_of_row
from emep.ledger.pool_counts import less_plain_tasks
from emep.ledger.repository import chunks, clock_row
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


class Live(NamedTuple):
    """An allocation that is not over, and what its usage follows from."""

    allocation: model.Allocation
    granted_at: float
    billing_rate: float


@dataclass
class Contents:
    """What the core is told of the ledger, by name, so that parts of it can be replaced."""

    nodes: dict[str, model.Node] = field(default_factory=dict)
    pending: dict[str, model.Job] = field(default_factory=dict)
    reason_codes: dict[str, str] = field(default_factory=dict)
    live: dict[str, Live] = field(default_factory=dict)
    """By the allocation's id, as ``leaving``."""
    leaving: dict[str, model.Allocation] = field(default_factory=dict)
    ended_usage: list[tuple[str, str, str, float, float]] = field(default_factory=list)
    """(queue, project, user, decayed GPU-seconds, as of when)"""
    history: DurationHistory = field(default_factory=DurationHistory)

    def allocations(self, now: float) -> tuple[model.Allocation, ...]:
        """Everything that holds GPUs: what is not over in the order of its grants, then what is leaving."""
        live = sorted(self.live.items(), key=lambda item: (item[1].granted_at, item[0]))
        gone = [
            replace(one, releases_at=now + CONFIRMATION_SECONDS)
            for _, one in sorted(self.leaving.items(), key=lambda item: item[1].gpus)
        ]
        return (*(one.allocation for _, one in live), *gone)

    def usage(self, policy: Policy, now: float) -> tuple[model.UsageRecord, ...]:
        """Consumption of what has ended and of what runs, decayed to ``now``."""
        half_life = policy.half_life
        used = {(q, p, u): decay(amount, now - at, half_life) for q, p, u, amount, at in self.ended_usage}
        for _, one in sorted(self.live.items(), key=lambda item: (item[1].granted_at, item[0])):
            job = one.allocation.job
            key = (job.queue, job.project, job.user)
            charge = decayed_charge(one.billing_rate, one.granted_at, now, now, half_life)
            used[key] = used.get(key, 0.0) + charge
        return tuple(model.UsageRecord(*key, seconds) for key, seconds in sorted(used.items()))

    def snapshot(self, policy: Policy, now: float, holds: tuple[model.Hold, ...]) -> model.Snapshot:
        """All of it as the core sees it."""
        return model.Snapshot(
            nodes=tuple(node for _, node in sorted(self.nodes.items())),
            pending=tuple(job for _, job in sorted(self.pending.items())),
            allocations=self.allocations(now),
            usage=self.usage(policy, now),
            holds=holds,
        )


def build_snapshot(session: Session, policy: Policy, now: float, alive_for: float) -> LedgerSnapshot:
    """Everything ``plan`` may know, of one moment. The session's statements must all see the same moment."""
    seq, dirty, _, _ = clock_row(session)
    contents = read_contents(session, policy, now, alive_for)
    return LedgerSnapshot(
        see(session, contents, policy, now),
        dirty=dirty,
        seq=seq,
        taken_at=now,
        reason_codes=contents.reason_codes,
    )


def see(session: Session, contents: Contents, policy: Policy, now: float) -> model.Snapshot:
    """Contents as the core sees them, with what is read each time: promises, and what plain tasks hold."""
    holds = read_holds(session, contents.pending)
    seen = contents.snapshot(policy, now, holds)
    nodes = less_plain_tasks(session, seen.nodes, seen.allocations, holds)
    return seen if nodes is seen.nodes else replace(seen, nodes=nodes)


def read_contents(session: Session, policy: Policy, now: float, alive_for: float) -> Contents:
    """All of the ledger that matters to the core."""
    contents = Contents(ended_usage=read_ended_usage(session))
    contents.nodes = {node.name: node for node in read_nodes(session, now - alive_for)}
    contents.live = read_live(session, policy)
    contents.leaving = read_leaving(session, policy)
    contents.history = read_history(session, now)
    for row in read_jobs(session, Job.state == JobState.PENDING.value):
        job = job_of_row(row, policy)
        contents.pending[job.id] = estimated(job, contents.history)
        contents.reason_codes[job.id] = row.reason_code
    return contents


# ---- nodes -------------------------------------------------------------------------------------------------


def takes_work(alive_since: float) -> ColumnElement[bool]:
    """Whether a node's row is one that new work may be placed on."""
    return and_(Node.is_ready, ~Node.drain, ~Node.has_left, Node.last_report_at >= alive_since)


def read_nodes(
    session: Session, alive_since: float, names: Collection[str] | None = None
) -> tuple[model.Node, ...]:
    """All nodes (or those named) with their GPUs, by name.

    Those not heard of since ``alive_since`` are not schedulable.
    """
    gpus: dict[str, list[model.Gpu]] = defaultdict(list)
    columns = (Gpu.node, Gpu.gpu_index, Gpu.gpu_type, Gpu.memory, Gpu.nvlink_group, Gpu.state, Gpu.drain)
    for part in _only(select(*columns).order_by(Gpu.node, Gpu.gpu_index), Gpu.node, names):
        # Not through the ORM's session: of tens of thousands of rows its share is a quarter.
        for node, index, gpu_type, memory, group, state, drain in session.connection().execute(part):
            is_drained = drain and state == model.GpuState.HEALTHY.value
            shown = model.GpuState.DRAINING if is_drained else _GPU_STATES[state]
            gpus[node].append(model.Gpu(index, gpu_type, memory, group, shown))
    of_nodes = select(*_NODE_COLUMNS, takes_work(alive_since)).order_by(Node.name)
    labels_of: dict[str, dict[str, str]] = {}
    """By their text: most nodes of a rack carry the same."""
    found: list[model.Node] = []
    for part in _only(of_nodes, Node.name, names):
        for name, pool, rack, block, text, cpu, memory, bandwidth, fit in session.execute(part):
            labels = labels_of.get(text)
            if labels is None:
                labels = labels_of[text] = dict(json.loads(text) or {})
            mine = tuple(gpus[name])
            found.append(model.Node(name, mine, pool, rack, block, labels, cpu, memory, bandwidth, bool(fit)))
    return tuple(found)


def read_unschedulable(session: Session, alive_since: float) -> set[str]:
    """Names of the nodes that take no new work: of these time alone may make more."""
    return set(session.scalars(select(Node.name).where(~takes_work(alive_since))))


def _only(query: Any, column: Any, names: Collection[str] | None) -> Iterable[Any]:
    """The query, or as many as it takes to ask for just these names."""
    if names is None:
        return [query]
    return (query.where(column.in_(part)) for part in chunks(sorted(names)))


# ---- jobs --------------------------------------------------------------------------------------------------


def read_jobs(session: Session, *where: ColumnElement[bool], ids: Collection[str] | None = None) -> list[Any]:
    """Rows of jobs with what ``model_job`` reads, their state, their reason's codes and what they took."""
    more = (Job.state, Job.reason_code, Job.started_at, Job.ended_at)
    query = select(*job_columns(), *more).where(*where).order_by(Job.id)
    return [row for part in _only(query, Job.id, ids) for row in session.execute(part)]


def read_history(session: Session, now: float) -> DurationHistory:
    """How long completed jobs took; runs that were interrupted say too little and are left out."""
    query = (
        select(Job.user, Job.job_type, Job.gpu_count, Job.epoch, Job.started_at, Job.ended_at)
        .where(
            Job.state == JobState.COMPLETED.value,
            Job.queued_at >= now - REMEMBERED_SECONDS,
            Job.epoch == 1,
        )
        .order_by(Job.queued_at.desc())
        .limit(REMEMBERED_JOBS)
    )
    history = DurationHistory()
    remember(history, session.execute(query))
    return history


def remember(history: DurationHistory, completed: Iterable[Any]) -> None:
    """Add what completed jobs took, in the order of their ends."""
    took = [
        (row.ended_at, (row.user, row.job_type, row.gpu_count), max(0.0, row.ended_at - row.started_at))
        for row in completed
        if row.epoch == 1 and row.started_at is not None and row.ended_at is not None
    ]
    for _, kind, seconds in sorted(took):
        history.add(kind, seconds)


def estimated(job: model.Job, history: DurationHistory) -> model.Job:
    """The job with what the same user's jobs of its type and size took before."""
    estimate = history.estimate(job)
    return job if estimate == job.estimated_duration else replace(job, estimated_duration=estimate)


# ---- what holds GPUs ---------------------------------------------------------------------------------------


def read_live(session: Session, policy: Policy, ids: Collection[str] | None = None) -> dict[str, Live]:
    """Allocations that are not over (of those named), by id."""
    query = (
        select(*job_columns(), *_ALLOCATION_COLUMNS)
        .join(Job, Job.id == Allocation.job_id)
        .where(Allocation.state.in_([state.value for state in LIVE_ALLOCATION_STATES]))
    )
    return dict(
        _live(row, policy)
        for part in _only(query, Allocation.id, ids)
        for row in session.connection().execute(part)
    )


def _live(row: Any, policy: Policy) -> tuple[str, Live]:
    (
        allocation_id,
        state,
        gpus,
        nodes,
        granted_at,
        billing_rate,
        first_heartbeat_at,
        last_checkpoint_at,
        yield_deadline,
        held_for,
    ) = row[JOB_WIDTH:]
    yielding = state == AllocationState.YIELDING.value
    allocation = model.Allocation(
        job=job_of_row(row, policy),
        gpus=tuple(model.GpuId(node, index) for node, index, _ in json.loads(gpus)),
        # Before the first heartbeat no work is done, and max_duration does not run yet.
        start_time=first_heartbeat_at or granted_at,
        nodes=tuple(json.loads(nodes)),
        last_checkpoint=last_checkpoint_at,
        yielding=yielding,
        held_for=held_for if yielding else None,
        releases_at=yield_deadline if yielding else None,
    )
    return allocation_id, Live(allocation, granted_at, billing_rate)


def read_leaving(
    session: Session, policy: Policy, ids: Collection[str] | None = None
) -> dict[str, model.Allocation]:
    """GPUs of leases that are over, of which no agent has said yet that nothing runs there any more.

    They appear as allocations of their own that are about to end, so that the core counts them as coming
    free.
    """
    query = (
        select(*job_columns(), *_ALLOCATION_COLUMNS, AllocationGpu.node, AllocationGpu.gpu_index)
        .join(Allocation, Allocation.id == AllocationGpu.allocation_id)
        .join(Job, Job.id == Allocation.job_id)
        .where(Allocation.state.in_([AllocationState.LOST.value, AllocationState.RELEASED.value]))
        .order_by(AllocationGpu.node, AllocationGpu.gpu_index)
    )
    gpus: dict[str, list[model.GpuId]] = defaultdict(list)
    rows: dict[str, Any] = {}
    for part in _only(query, Allocation.id, ids):
        for row in session.execute(part):
            gpus[row.allocation_id].append(model.GpuId(row.node, row.gpu_index))
            rows[row.allocation_id] = row
    return {
        name: model.Allocation(
            job=replace(
                job_of_row(row, policy), id=f"leaving:{name}", gpu_count=len(gpus[name]), preemptible=False
            ),
            gpus=tuple(gpus[name]),
            start_time=row.granted_at,
            nodes=tuple(dict.fromkeys(gpu.node for gpu in gpus[name])),
            yielding=True,
            held_for=row.held_for,
        )
        for name, row in rows.items()
    }


def read_holds(session: Session, pending: Collection[str]) -> tuple[model.Hold, ...]:
    """What earlier plans have promised to jobs that still wait."""
    held: dict[str | None, list[model.GpuId]] = defaultdict(list)
    query = select(Gpu.node, Gpu.gpu_index, Gpu.held_for).where(Gpu.held_for.is_not(None))
    for node, index, job_id in session.execute(query.order_by(Gpu.node, Gpu.gpu_index)):
        if job_id in pending:
            held[job_id].append(model.GpuId(node, index))
    return tuple(model.Hold(job_id, tuple(held[job_id])) for job_id in sorted(filter(None, held)))


def read_ended_usage(session: Session) -> list[tuple[str, str, str, float, float]]:
    """What was charged for ended allocations: (queue, project, user, decayed GPU-seconds, as of when)."""
    query = select(Usage.queue, Usage.project, Usage.user, Usage.decayed, Usage.decayed_at)
    return [(row[0], row[1], row[2], row[3], row[4]) for row in session.execute(query)]


# ---- columns -----------------------------------------------------------------------------------------------

_ALLOCATION_COLUMNS = (
    Allocation.id.label("allocation_id"),
    Allocation.state.label("allocation_state"),
    as_text(Allocation.gpus),
    as_text(Allocation.nodes),
    Allocation.granted_at,
    Allocation.billing_rate,
    Allocation.first_heartbeat_at,
    Allocation.last_checkpoint_at,
    Allocation.yield_deadline,
    Allocation.held_for,
)
_GPU_STATES = {state.value: state for state in model.GpuState}
_NODE_COLUMNS = (
    Node.name,
    Node.pool,
    Node.rack,
    Node.block,
    as_text(Node.labels),
    Node.cpu,
    Node.memory,
    Node.network_bandwidth_gbps,
)
