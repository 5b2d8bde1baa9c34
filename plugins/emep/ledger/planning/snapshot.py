"""The ledger's rows as the immutable snapshot that the scheduling core plans on.

``read_contents`` reads everything; each part can also be read anew for single jobs, allocations or nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from emep.ledger.airflow_pools.counts import less_plain_tasks
from emep.ledger.planning.hold_rows import Live, read_holds, read_leaving, read_live
from emep.ledger.shares.usage import decay, decayed_charge
from emep.ledger.store.job_rows import job_columns, job_of_row
from emep.ledger.store.node_rows import read_nodes
from emep.ledger.store.repository import clock_row, only
from emep.ledger.store.tables import Job, Usage
from emep.policy.model import Policy
from emep.scheduling import model
from emep.scheduling.history import DurationHistory
from emep.wire.base import JobState

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


@dataclass
class Contents:
    """The ledger's rows in the core's types, by name, so that parts of them can be replaced."""

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
    """Reads the input of ``plan``. All statements of the session must see the same moment."""
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
    """Builds the core's snapshot from contents; reservations and plain tasks' GPUs are read each time."""
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


def read_jobs(session: Session, *where: ColumnElement[bool], ids: Collection[str] | None = None) -> list[Any]:
    """Rows of jobs with what ``model_job`` reads, their state, their reason's codes and what they took."""
    more = (Job.state, Job.reason_code, Job.started_at, Job.ended_at)
    query = select(*job_columns(), *more).where(*where).order_by(Job.id)
    return [row for part in only(query, Job.id, ids) for row in session.execute(part)]


def read_history(session: Session, now: float) -> DurationHistory:
    """How long completed jobs took, without runs that were interrupted."""
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


def read_ended_usage(session: Session) -> list[tuple[str, str, str, float, float]]:
    """What was charged for ended allocations: (queue, project, user, decayed GPU-seconds, as of when)."""
    query = select(Usage.queue, Usage.project, Usage.user, Usage.decayed, Usage.decayed_at)
    return [(row[0], row[1], row[2], row[3], row[4]) for row in session.execute(query)]
