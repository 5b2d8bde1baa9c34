"""Lets the next try of a task take over the job of the try before.

A job may go on unharmed while its worker, Airflow's scheduler or the API is lost. Airflow then begins another
try: the job continues as that try's, and a completed job is that try's result.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import select

from emep.ledger.jobs.outcomes import LIMITS
from emep.ledger.jobs.repeats import check_repeat
from emep.ledger.lifecycle.tries import same_task
from emep.ledger.states import LIVE_JOB_STATES, YieldCause
from emep.ledger.store.database import Transaction
from emep.ledger.store.repository import get_job
from emep.ledger.store.tables import Allocation, Job
from emep.wire.base import JobState
from emep.wire.errors import ConflictError
from emep.wire.jobs import AirflowTask

_TAKEN = frozenset({JobState.COMPLETED, *LIVE_JOB_STATES})


def of_earlier_try(tx: Transaction, row: dict[str, Any], task: AirflowTask | None) -> Job | None:
    """The job of an earlier try that did, or is doing, the work that ``row`` asks for; else None.

    Airflow tries again because a worker, its scheduler or the API was lost, and the work is not repeated for
    that. The work is repeated if a person asked for it (the task was cleared, the run deleted and triggered
    again, the job called off), if the job was told to end for good, and if it has no SPEC, so that EMEP
    cannot tell whether it is the same work. Only jobs of the same account count: see ``same_task``.
    """
    if task is None or task.first_try is None or task.run_started_at is None or row["spec"] is None:
        return None
    if task.try_number <= task.first_try:
        return None
    earlier = tx.session.scalars(
        select(Job.id)
        .where(*same_task(row))
        .where(Job.try_number >= task.first_try, Job.try_number < row["try_number"])
        .where(Job.state.in_([state.value for state in _TAKEN]), Job.runtime == row["runtime"])
        .where(Job.submitted_at >= task.run_started_at.timestamp())
        .order_by(Job.try_number.desc(), Job.id.desc())
    ).all()
    for name in earlier:
        # Looked at under its lock: it may end, or be called off, in this moment.
        job = get_job(tx.session, name, lock=True)
        if _is_same(tx, job, row):
            return job
    return None


def _is_same(tx: Transaction, job: Job, row: dict[str, Any]) -> bool:
    """Whether a job is what ``row`` asks for, and was not told to end for good."""
    state = JobState(job.state)
    allocation = tx.session.get(Allocation, job.allocation_id) if job.allocation_id else None
    cause = allocation.yield_cause if allocation is not None else None
    if state not in _TAKEN or _asked_spec(job, row["spec"]) != row["spec"]:
        return False
    if state is JobState.COMPLETED:
        return cause != YieldCause.CANCEL.value
    if state is JobState.YIELDING and cause in {YieldCause.CANCEL.value, *(limit.value for limit in LIMITS)}:
        return False
    try:
        check_repeat(job, {**row, "try_number": job.try_number})
    except ConflictError:
        return False
    return True


def take_over(tx: Transaction, job: Job, row: dict[str, Any], timeout: float | None) -> None:
    """Assign an unfinished job to the new try; its work and its place in the queue stay the same."""
    before, job.try_number, job.last_try = job.try_number, row["try_number"], row["last_try"]
    job.task_deadline = None if timeout is None else tx.now + timeout
    if row["idempotency_key"] is not None:
        # The same request, sent again, finds it.
        job.idempotency_key = row["idempotency_key"]
    tx.session.flush()
    reason = f"try {job.try_number} of its task goes on with it, after try {before}"
    tx.emit("taken_over", job=job, actor=row["submitted_by"], reason=reason, plan=False)


def _asked_spec(job: Job, wanted: dict[str, Any]) -> dict[str, Any] | None:
    """The SPEC as it was submitted: moving a job to the CPU changes two of its fields."""
    if job.promoted_from_gpus is None or job.spec is None:
        return job.spec
    promoted = {name: wanted[name] for name in ("chunked", "device") if name in wanted}
    kept = {name: value for name, value in job.spec.items() if name not in ("chunked", "device")}
    return kept | promoted
