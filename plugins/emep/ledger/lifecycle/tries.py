"""Holds the next try of a task back until nothing of the try before runs any more.

Both write to the same checkpoints and outputs. A try that was called off still saves its checkpoint, and the
next one resumes from that. ``take_over`` handles a try that continues an earlier job instead.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import select, update

from emep.ledger.states import AllocationState, YieldCause
from emep.ledger.store.database import Transaction
from emep.ledger.store.tables import Allocation, AllocationNode, DeadLetter, Job
from emep.wire.base import JobState


def hold_back(tx: Transaction, row: dict[str, Any], patience: float) -> None:
    """Make a new job wait while an earlier try of its task still runs on some node.

    It waits until ``let_go``, at most ``patience`` seconds. A first try needs no query.
    """
    if row["dag_id"] is None or row["try_number"] <= 1 or row["state"] != JobState.PENDING.value:
        return
    before = tx.session.execute(
        select(Job.id, Job.try_number)
        .join(Allocation, Allocation.job_id == Job.id)
        .join(AllocationNode, AllocationNode.allocation_id == Allocation.id)
        .where(*same_task(row))
        .where(Job.try_number < row["try_number"])
        .limit(1)
    ).first()
    if before is not None:
        row["not_before"] = tx.now + patience
        row["reason"] = f"waits until job {before[0]} of try {before[1]}, from which it resumes, has ended"


def avoid_nodes(tx: Transaction, row: dict[str, Any]) -> None:
    """Make a new try prefer nodes that the try before did not fail on."""
    if row["dag_id"] is None or row["try_number"] <= 1:
        return
    before = (
        select(Job.avoid_nodes)
        .where(*same_task(row), Job.try_number < row["try_number"])
        .order_by(Job.try_number.desc(), Job.submitted_at.desc())
        .limit(1)
    )
    row["avoid_nodes"] = tx.session.scalar(before)


def answer_letters(tx: Transaction, row: dict[str, Any]) -> None:
    """Close the dead letters of earlier tries: the task was cleared in Airflow, and asks again."""
    if row["dag_id"] is None or row["try_number"] <= 1:
        return
    earlier = select(Job.id).where(
        *same_task(row),
        Job.try_number < row["try_number"],
    )
    tx.session.execute(
        update(DeadLetter)
        .where(DeadLetter.state == "open", DeadLetter.job_id.in_(earlier))
        .values(
            state="requeued",
            resolved_at=tx.now,
            resolved_by=row["submitted_by"],
            resolution=f"its task was cleared: try {row['try_number']} asks with job {row['id']}",
        )
        .execution_options(synchronize_session=False)
    )


def let_go(tx: Transaction, allocation: Allocation) -> None:
    """Release the try that waits for ``allocation``, once nothing of it runs on a node any more."""
    called_off = allocation.yield_cause == YieldCause.CANCEL.value
    if not called_off and allocation.state != AllocationState.LOST.value:
        return
    job = tx.session.get(Job, allocation.job_id)
    if job is None or job.dag_id is None:
        return
    left = select(AllocationNode.node).where(AllocationNode.allocation_id == allocation.id).limit(1)
    if tx.session.scalar(left) is not None:
        return
    later = tx.session.scalars(
        select(Job)
        .where(*same_task(_task_of(job)))
        # A job that never had an allocation has a time to wait for from hold_back alone.
        .where(Job.state == JobState.PENDING.value, Job.epoch == 0, Job.not_before > tx.now)
    ).all()
    for waiting in later:
        tx.session.execute(
            update(Job)
            .where(Job.id == waiting.id, Job.epoch == 0, Job.state == JobState.PENDING.value)
            .values(not_before=0.0)
            .execution_options(synchronize_session=False)
        )
        tx.emit("earlier_try_ended", job=waiting, reason=f"nothing of job {job.id} runs any more")


_TASK = ("submitted_by", "dag_id", "run_id", "task_id", "map_index")


def _task_of(job: Job) -> dict[str, Any]:
    return {name: getattr(job, name) for name in _TASK}


def same_task(row: dict[str, Any]) -> list[Any]:
    """What jobs of one task instance have in common.

    The account is part of it: the API lets the service account alone name a task, so a job that another one
    put in, under whatever name, is no try of it.
    """
    return [getattr(Job, name) == row[name] for name in _TASK]
