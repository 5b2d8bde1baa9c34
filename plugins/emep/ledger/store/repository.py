"""Reading the ledger's rows; their form on the wire is ``emep.ledger.store.views``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.orm import Session

from emep.ledger.store.audit_log import JOBS_AT_HAND
from emep.ledger.store.tables import Allocation, AllocationNode, Clock, Event, Job, Node
from emep.wire.errors import NotFoundError

CHUNK = 400
"""Values of one IN list: below SQLite's limit of variables in every build."""


def chunks(values: Collection[Any]) -> Iterable[list[Any]]:
    """``values`` in lists short enough for IN."""
    listed = list(values)
    for start in range(0, len(listed), CHUNK):
        yield listed[start : start + CHUNK]


def only(query: Any, column: Any, names: Collection[str] | None) -> Iterable[Any]:
    """The query, or as many as it takes to ask for just the rows whose ``column`` is one of ``names``."""
    if names is None:
        return [query]
    return (query.where(column.in_(part)) for part in chunks(sorted(names)))


def get_job(session: Session, job_id: str, *, lock: bool = False) -> Job:
    """The job; raises NotFoundError. ``lock`` keeps others from changing it until the commit."""
    job = session.get(Job, job_id, with_for_update=lock or None, populate_existing=lock)
    if job is None:
        raise NotFoundError(f"there is no job {job_id!r}", field="job_id")
    # Kept for the events of this transaction, which carry the job's labels; a session alone forgets it.
    session.info.setdefault(JOBS_AT_HAND, {})[job_id] = job
    return job


def get_allocation(session: Session, allocation_id: str, *, lock: bool = False) -> Allocation:
    """The allocation; raises NotFoundError."""
    found = session.get(Allocation, allocation_id, with_for_update=lock or None, populate_existing=lock)
    if found is None:
        raise NotFoundError(f"there is no allocation {allocation_id!r}", field="allocation_id")
    return found


def get_node(session: Session, name: str, *, lock: bool = False) -> Node:
    """The node; raises NotFoundError with the fix."""
    node = session.get(Node, name, with_for_update=lock or None, populate_existing=lock)
    if node is None:
        raise NotFoundError(f"there is no node {name!r}: register it with POST /nodes first", field="name")
    return node


def current_allocation(session: Session, job: Job, *, lock: bool = False) -> Allocation | None:
    """The allocation of the job's present epoch, over or not."""
    if job.allocation_id is None:
        return None
    return session.get(Allocation, job.allocation_id, with_for_update=lock or None, populate_existing=lock)


def clock_row(session: Session) -> tuple[int, int, float, int]:
    """The clock as (seq, dirty, planned_at, planned_dirty)."""
    row = session.execute(select(Clock.seq, Clock.dirty, Clock.planned_at, Clock.planned_dirty)).one_or_none()
    return (0, 0, 0.0, -1) if row is None else (row[0], row[1], row[2], row[3])


def jobs_by_id(session: Session, ids: Collection[str]) -> list[Job]:
    """Those that exist of ``ids``."""
    found: list[Job] = []
    for part in chunks(ids):
        found.extend(session.scalars(select(Job).where(Job.id.in_(part))))
    return found


def count_and_page(
    session: Session,
    where: Sequence[ColumnElement[bool]],
    after: str | None,
    limit: int,
    *,
    by_end: bool = False,
) -> tuple[int, list[Job]]:
    """How many jobs match, and a page of them, newest first, older than the cursor ``after`` (a job's id).

    ``by_end``: the one that ended last is the first; only for jobs that have ended.
    """
    total = session.scalar(select(func.count()).select_from(Job).where(*where)) or 0
    order = (Job.ended_at.desc(), Job.id.desc()) if by_end else (Job.id.desc(),)
    query = select(Job).where(*where).order_by(*order).limit(limit)
    if after and by_end:
        end = select(Job.ended_at).where(Job.id == after).scalar_subquery()
        query = query.where(or_(Job.ended_at < end, and_(Job.ended_at == end, Job.id < after)))
    elif after:
        query = query.where(Job.id < after)
    return total, list(session.scalars(query))


def node_allocations(session: Session, node: str) -> list[tuple[AllocationNode, Allocation]]:
    """Allocations on a node, live or over, until its agent reports them gone; oldest first."""
    query = (
        select(AllocationNode, Allocation)
        .join(Allocation, Allocation.id == AllocationNode.allocation_id)
        .where(AllocationNode.node == node)
        .order_by(Allocation.granted_at, Allocation.id)
    )
    return [(row[0], row[1]) for row in session.execute(query)]


def changed_jobs(
    session: Session, since: int, until: int, ids: Collection[str] | None, limit: int
) -> tuple[list[str], int]:
    """Ids of the jobs with events in (since, until], oldest change first, and the cursor that covers them.

    At most ``limit`` jobs; the cursor then stops at the last event that was looked at.
    """
    seen: dict[str, None] = {}
    if ids is not None:
        found: list[tuple[int, str]] = []
        for part in chunks(ids):
            query = (
                select(func.max(Event.id), Event.job_id)
                .where(Event.job_id.in_(part), Event.id > since, Event.id <= until)
                .group_by(Event.job_id)
            )
            found.extend((row[0], str(row[1])) for row in session.execute(query))
        return [job_id for _, job_id in sorted(found)], until
    cursor = since
    rows = session.execute(
        select(Event.id, Event.job_id)
        .where(Event.id > since, Event.id <= until)
        .order_by(Event.id)
        .limit(20 * limit)
    ).all()
    for event_id, job_id in rows:
        if job_id is not None and job_id not in seen:
            if len(seen) == limit:
                return list(seen), cursor
            seen[job_id] = None
        cursor = event_id
    return list(seen), until if len(rows) < 20 * limit else cursor
