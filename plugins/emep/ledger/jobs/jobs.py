"""Jobs: cancellation and reading; how they are taken in is ``emep.ledger.jobs.submission``."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import ColumnElement, select, true

from emep.ledger.context import LedgerContext
from emep.ledger.jobs.outcomes import JobOutcomes
from emep.ledger.store.database import Transaction
from emep.ledger.store.repository import changed_jobs, clock_row, count_and_page, get_job, jobs_by_id
from emep.ledger.store.tables import Event, Job
from emep.ledger.store.views import event_view, job_view, job_views
from emep.wire.base import ENDED_STATES, JobState
from emep.wire.errors import ConflictError
from emep.wire.jobs import Changes, EventView, JobView, Page

MAX_CHANGES = 500


class Jobs:
    """Cancels and reads jobs."""

    def __init__(self, context: LedgerContext, outcomes: JobOutcomes) -> None:
        self._context = context
        self._outcomes = outcomes

    # ---- cancellation --------------------------------------------------------------------------------------

    def cancel(self, job_id: str, *, actor: str, reason: str = "") -> JobView:
        """Cancel a job: at once while it waits, by telling it to checkpoint and exit while it runs.

        The same answer again for one that is cancelled already; ConflictError for one that has ended
        otherwise.
        """
        why = reason or f"cancelled by {actor}"

        def work(tx: Transaction) -> JobView:
            job = get_job(tx.session, job_id, lock=True)
            if JobState(job.state) is not JobState.CANCELLED and not self._outcomes.call_off(
                tx, job, why, actor
            ):
                raise ConflictError(f"job {job_id} has ended already: {job.state}", state=job.state)
            return job_view(tx.session, job)

        return self._context.database.write(work)

    # ---- reading -------------------------------------------------------------------------------------------

    def get(self, job_id: str) -> JobView:
        """One job; NotFoundError where there is none."""
        with self._context.database.read() as session:
            return job_view(session, get_job(session, job_id))

    def jobs_named(self, ids: Collection[str]) -> list[JobView]:
        """The jobs of these ids in their order; those that are not there are left out."""
        with self._context.database.read() as session:
            by_id = {job.id: job for job in jobs_by_id(session, ids)}
            return job_views(session, [by_id[name] for name in ids if name in by_id])

    def job_events(self, job_id: str, limit: int = 200) -> list[EventView]:
        """What happened to a job, newest first; NotFoundError where there is none."""
        with self._context.database.read() as session:
            get_job(session, job_id)
            of_job = select(Event).where(Event.job_id == job_id).order_by(Event.id.desc()).limit(limit)
            return [event_view(row) for row in session.scalars(of_job)]

    def page(
        self,
        *,
        states: Collection[JobState] = (),
        queue: str | None = None,
        project: str | None = None,
        user: str | None = None,
        dag_id: str | None = None,
        run_id: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Page:
        """A page of jobs, newest first; a project's include those of the projects below it.

        Where all ``states`` are ends, the job that ended last is the first.
        """
        by_end = bool(states) and ENDED_STATES.issuperset(states)
        where: list[ColumnElement[bool]] = [true()]
        if states:
            where.append(Job.state.in_([state.value for state in states]))
        for column, value in (
            (Job.queue, queue),
            (Job.user, user),
            (Job.dag_id, dag_id),
            (Job.run_id, run_id),
        ):
            if value is not None:
                where.append(column == value)
        if project is not None:
            where.append((Job.project == project) | Job.project.startswith(f"{project}/", autoescape=True))
        with self._context.database.read() as session:
            total, rows = count_and_page(session, where, after, limit + 1, by_end=by_end)
            page = rows[:limit]
            cursor = page[-1].id if len(rows) > limit else None
            return Page(items=job_views(session, page), total=total, next=cursor)

    def changes(self, since: int, ids: Collection[str] | None = None, limit: int = MAX_CHANGES) -> Changes:
        """Jobs with events after the cursor ``since``, each once, as they are now, and the next cursor."""
        with self._context.database.read_consistent() as session:
            until = clock_row(session)[0]
            if since >= until:
                return Changes(jobs=[], cursor=min(since, until))
            changed, cursor = changed_jobs(session, since, until, ids, limit)
            by_id = {job.id: job for job in jobs_by_id(session, changed)}
            views = job_views(session, [by_id[name] for name in changed if name in by_id])
            return Changes(jobs=views, cursor=cursor)
