"""Dead letters and requeues: what a person decides about jobs that have ended or must move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import func, select

from emep.ledger.caches.pending_bound import too_many
from emep.ledger.context import LedgerContext
from emep.ledger.jobs.airflow_tasks import clear_task
from emep.ledger.jobs.evictions import Evictions
from emep.ledger.states import LIVE_JOB_STATES, JobEvent, YieldCause
from emep.ledger.store.database import LostRaceError, Transaction
from emep.ledger.store.repository import current_allocation, get_job
from emep.ledger.store.tables import DeadLetter, Job
from emep.ledger.store.views import job_view, job_views, to_datetime
from emep.wire.base import JobState
from emep.wire.errors import ConflictError, NotFoundError
from emep.wire.jobs import JobView, Page
from emep.wire.operations import DeadLetterState, DeadLetterView

_GOES_BACK = frozenset({YieldCause.PREEMPTION, YieldCause.DRAIN, YieldCause.UNHEALTHY, YieldCause.REQUEUE})
"""Causes after which a yielding job returns to the queue anyway."""
OPEN, REQUEUED, DISCARDED = (state.value for state in DeadLetterState)


class DeadLetters:
    """Puts jobs back, and looks after dead letters."""

    def __init__(self, context: LedgerContext, evictions: Evictions) -> None:
        self._context = context
        self._evictions = evictions

    # ---- jobs ----------------------------------------------------------------------------------------------

    def requeue_job(self, job_id: str, *, actor: str, reason: str = "") -> JobView:
        """Put a job back into the queue, whatever it does now.

        Running work is told to checkpoint and returns to its place; what has ended waits again, or, where an
        Airflow task asked for it, that task is cleared and asks again. Raises ConflictError for a job that
        waits, has completed, can never run, or is being ended by another caller; TooManyError where its own
        user puts it back and has as many jobs that wait as the policy allows.
        """
        why = reason or f"requeued by {actor}"

        def work(tx: Transaction) -> JobView:
            state = JobState(get_job(tx.session, job_id).state)
            if state in LIVE_JOB_STATES:
                self._requeue_live(tx, job_id, why, actor)
            else:
                self._run_again(tx, job_id, why, actor)
            return job_view(tx.session, get_job(tx.session, job_id))

        with self._place_for(job_id, actor):
            return self._context.database.write(work)

    @contextmanager
    def _place_for(self, job_id: str, actor: str) -> Iterator[None]:
        """Take one of the places for jobs that wait, where a job's own user puts it back once it has ended.

        An operator who puts jobs back after an outage is not held up by their users' bounds.
        """
        with self._context.database.read() as session:
            job = get_job(session, job_id)
            user, is_live = job.user, JobState(job.state) in LIVE_JOB_STATES
        if is_live or user != actor:
            yield
            return
        limit = self._context.policy.limits.pending_jobs
        with self._context.pending_bound.places(Counter([user]), limit) as (places, is_taken):
            if places[user] < 1:
                raise too_many(user, limit)
            yield
            is_taken(user)

    def _requeue_live(self, tx: Transaction, job_id: str, why: str, actor: str) -> None:
        job = get_job(tx.session, job_id, lock=True)
        if JobState(job.state) is JobState.PENDING:
            raise ConflictError(f"job {job_id} is pending already: {job.reason}", state=job.state)
        allocation = current_allocation(tx.session, job, lock=True)
        if allocation is None or JobState(job.state) not in LIVE_JOB_STATES:
            raise LostRaceError(f"job {job_id} has changed meanwhile")
        if self._evictions.take_back(tx, job, allocation, YieldCause.REQUEUE, why, actor):
            return
        if allocation.yield_cause is None or YieldCause(allocation.yield_cause) not in _GOES_BACK:
            raise ConflictError(
                f"job {job_id} is told to end ({allocation.yield_cause}): requeue it once it has",
                state=job.state,
            )

    def _run_again(self, tx: Transaction, job_id: str, why: str, actor: str) -> None:
        """Let a job that has ended run again, through Airflow where a task asked for it."""
        job = get_job(tx.session, job_id)
        if JobState(job.state) is JobState.COMPLETED:
            raise ConflictError(
                f"job {job_id} has completed: to have it once more, submit it with another idempotency key",
                state=job.state,
            )
        if JobState(job.state) is JobState.REJECTED:
            raise ConflictError(
                f"job {job_id} was rejected ({job.reason}): change that and submit it again", state=job.state
            )
        # Airflow's rows are locked before EMEP's own, as everywhere.
        cleared = clear_task(tx.session, job) if job.dag_id is not None else 0
        before = job.state
        job = get_job(tx.session, job_id, lock=True)
        if job.state != before:
            raise LostRaceError(f"job {job_id} has changed meanwhile")
        if cleared:
            tx.emit(
                "task_cleared", job=job, actor=actor, code="operator", reason=why, plan=False, cleared=cleared
            )
        else:
            tx.move_job(
                job,
                JobEvent.PUT_BACK,
                queued_at=tx.now,
                not_before=0.0,
                ended_at=None,
                exit_code=None,
                result=None,
                requeues=0,
                reason_code="",
                reason=f"put back: {why}",
            )
            tx.emit("put_back", job=job, actor=actor, code="operator", reason=why)
        letter = tx.session.get(DeadLetter, job_id, with_for_update=True, populate_existing=True)
        if letter is not None and letter.state == OPEN:
            self._resolve(tx, letter, job, REQUEUED, why, actor)

    # ---- letters -------------------------------------------------------------------------------------------

    def page(self, state: str | None = OPEN, after: str | None = None, limit: int = 100) -> Page:
        """A page of dead letters, newest job first; ``state`` None: resolved ones too."""
        where = [] if state is None else [DeadLetter.state == state]
        query = (
            select(DeadLetter, Job)
            .join(Job, Job.id == DeadLetter.job_id)
            .where(*where)
            .order_by(DeadLetter.job_id.desc())
            .limit(limit + 1)
        )
        if after is not None:
            query = query.where(DeadLetter.job_id < after)
        with self._context.database.read() as session:
            total = session.scalar(select(func.count()).select_from(DeadLetter).where(*where)) or 0
            rows = session.execute(query).all()
            jobs = {view.id: view for view in job_views(session, [job for _, job in rows[:limit]])}
        items = [_view(letter, jobs[letter.job_id]) for letter, _ in rows[:limit]]
        return Page(items=items, total=total, next=items[-1].id if len(rows) > limit else None)

    def get(self, letter_id: str) -> DeadLetterView:
        """One dead letter, named by its job's id; NotFoundError where there is none."""
        with self._context.database.read() as session:
            letter = session.get(DeadLetter, letter_id)
            if letter is None:
                raise _no_letter(letter_id)
            return _view(letter, job_view(session, get_job(session, letter_id)))

    def requeue(self, letter_id: str, *, actor: str, reason: str = "") -> DeadLetterView:
        """Run the job of an open dead letter again, as ``requeue_job`` does.

        Raises ConflictError for one that is resolved, or whose task cannot be cleared, and TooManyError.
        """
        why = reason or f"requeued by {actor}"
        self.get(letter_id)  # raises NotFoundError in the letter's own words
        with self._place_for(letter_id, actor):
            return self._on_open_letter(letter_id, lambda tx: self._run_again(tx, letter_id, why, actor))

    def discard(self, letter_id: str, *, actor: str, reason: str = "") -> DeadLetterView:
        """Resolve an open dead letter without running anything; the job stays as it ended."""

        def discard(tx: Transaction) -> None:
            job = get_job(tx.session, letter_id, lock=True)
            letter = tx.session.get(DeadLetter, letter_id, with_for_update=True, populate_existing=True)
            if letter is None or letter.state != OPEN:
                raise LostRaceError(f"dead letter {letter_id} has changed meanwhile")
            self._resolve(tx, letter, job, DISCARDED, reason or f"discarded by {actor}", actor)

        return self._on_open_letter(letter_id, discard)

    def _on_open_letter(self, letter_id: str, do: Callable[[Transaction], Any]) -> DeadLetterView:
        def work(tx: Transaction) -> None:
            letter = tx.session.get(DeadLetter, letter_id)
            if letter is None:
                raise _no_letter(letter_id)
            if letter.state != OPEN:
                raise ConflictError(
                    f"dead letter {letter_id} is {letter.state} by {letter.resolved_by}: {letter.resolution}",
                    state=letter.state,
                )
            do(tx)

        self._context.database.write(work)
        return self.get(letter_id)

    @staticmethod
    def _resolve(tx: Transaction, letter: DeadLetter, job: Job, state: str, why: str, actor: str) -> None:
        letter.state, letter.resolved_at = state, tx.now
        letter.resolved_by, letter.resolution = actor[:250], why
        tx.session.flush()
        tx.emit(f"dead_letter_{state}", job=job, actor=actor, reason=why, plan=False)


def _no_letter(letter_id: str) -> NotFoundError:
    return NotFoundError(
        f"there is no dead letter {letter_id!r}: a dead letter is named by its job", field="letter_id"
    )


def _view(letter: DeadLetter, job: JobView) -> DeadLetterView:
    created = to_datetime(letter.created_at)
    assert created is not None  # noqa: S101
    return DeadLetterView(
        id=letter.job_id,
        state=DeadLetterState(letter.state),
        reason_code=letter.reason_code,
        reason=letter.reason,
        created_at=created,
        resolved_at=to_datetime(letter.resolved_at),
        resolved_by=letter.resolved_by,
        resolution=letter.resolution,
        trace_id=job.trace_id,
        experiment_id=job.experiment_id,
        job_type=job.job_type,
        job=job,
    )
