"""Compares jobs with the Airflow tasks that asked for them, and calls off those that are no longer wanted.

Both are in one database, so this finds what no hook, trigger or worker was alive to report: a task that was
marked, cleared or deleted, a run that timed out, a worker that died. It takes one query for all live jobs.

Airflow counts a try when the task is scheduled: ``try_number`` stays the same while a task runs, is deferred,
comes back (``scheduled``, ``queued``, ``running`` again) or is cleared, and grows when its next try is
scheduled. Within the job's own try the state decides. A next try that has not asked yet takes the job over,
or calls it off, when it does: a job whose task will be tried again is not called off before.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from sqlalchemy import and_, column, inspect, select, table

from emep.ledger.context import LedgerContext
from emep.ledger.jobs.outcomes import JobOutcomes
from emep.ledger.states import LIVE_JOB_STATES, YieldCause
from emep.ledger.store.database import Transaction
from emep.ledger.store.repository import get_job
from emep.ledger.store.tables import Job
from emep.wire.errors import ConflictError, NotFoundError

log = logging.getLogger(__name__)
EVERY_SECONDS = 10.0
GRACE_SECONDS = 3.0
"""A job is called off only where it was found unwanted twice, this far apart."""
WANTS = frozenset(
    {"running", "deferred", "queued", "scheduled", "up_for_reschedule", "awaiting_input", "up_for_retry"}
)
"""States of a task instance that is still in the try it is in, or will be tried again."""
MAY_ASK = frozenset({"scheduled", "queued", "running", "up_for_retry"})
"""States of a later try that has not asked yet, as far as its state tells."""
_LIVE = [state.value for state in LIVE_JOB_STATES]
_TASKS = table(
    "task_instance",
    column("dag_id"),
    column("run_id"),
    column("task_id"),
    column("map_index"),
    column("try_number"),
    column("state"),
)
"""Airflow's own table, as far as it is read here."""


def why_unwanted(own_try: int, task_try: int | None, state: str | None) -> str | None:
    """Why a task instance no longer wants the job of its try ``own_try``; None if it does want it.

    ``task_try`` None: there is no such task instance; ``state`` None: cleared, or not scheduled yet.
    """
    if task_try is None:
        return "its Airflow task is gone: the run or the DAG was deleted"
    if task_try > own_try:
        if state in MAY_ASK:
            return None
        return f"its Airflow task has begun try {task_try}, this was for try {own_try}"
    if task_try < own_try:
        return "its Airflow task was made anew: the run was deleted and triggered again"
    if state is None or state == "restarting":
        return "its Airflow task was cleared"
    return None if state in WANTS else f"its Airflow task has ended: it is {state.replace('_', ' ')}"


class TaskReconciler:
    """Calls off jobs that Airflow's own tables say are no longer wanted."""

    def __init__(self, context: LedgerContext, outcomes: JobOutcomes) -> None:
        self._context = context
        self._outcomes = outcomes
        self._next_look = 0.0
        self._suspects: dict[str, float] = {}
        """Job -> when it was first found unwanted."""
        self._has_airflow = False
        self._look_mutex = threading.Lock()

    def reconcile_if_due(self, now: float) -> list[str]:
        """Reconcile every ten seconds, and soon again for a second look; return the jobs called off."""
        # A clock that was set back must not put the next look off for ever.
        if 0.0 < self._next_look - now <= EVERY_SECONDS:
            return []
        with self._look_mutex:
            ended = self.reconcile(grace=GRACE_SECONDS)
            self._next_look = now + (GRACE_SECONDS if self._suspects else EVERY_SECONDS)
        return ended

    def reconcile(self, *, run: tuple[str, str] | None = None, grace: float = 0.0) -> list[str]:
        """Call off the jobs that their tasks no longer want, and return their ids.

        ``run`` (dag id, run id): only jobs of this run. ``grace``: only jobs that were found unwanted that
        many seconds ago already. Does nothing if the database has no tables of Airflow's.
        """
        if not self._airflow_is_here():
            return []
        found = self._unwanted(run)
        if grace > 0:
            found = self._twice(found, grace)
        ended = []
        for job_id, own_try, reason in found:
            if self._call_off(job_id, own_try, reason, "reconciler"):
                ended.append(job_id)
                log.info("job %s is called off: %s", job_id, reason)
        return ended

    def is_unwanted(self, job_id: str) -> bool:
        """Whether Airflow's tables say now that a live job's task wants it no more."""
        return self._airflow_is_here() and bool(self._unwanted(job_id=job_id))

    def release(self, task: tuple[str, str, str, int], up_to_try: int, reason: str, actor: str) -> list[str]:
        """Call off a task instance's jobs (dag, run, task, map index) up to a try, and return their ids."""
        dag_id, run_id, task_id, map_index = task
        query = select(Job.id, Job.try_number).where(
            Job.state.in_(_LIVE),
            Job.dag_id == dag_id,
            Job.run_id == run_id,
            Job.task_id == task_id,
            Job.map_index == map_index,
            Job.try_number <= up_to_try,
        )
        with self._context.database.read() as session:
            found = session.execute(query).all()
        return [job_id for job_id, own in found if self._call_off(job_id, own, reason, actor)]

    # ---- how -----------------------------------------------------------------------------------------------

    def _airflow_is_here(self) -> bool:
        if not self._has_airflow:
            self._has_airflow = inspect(self._context.database.engine).has_table(_TASKS.name)
        return self._has_airflow

    def _unwanted(
        self, run: tuple[str, str] | None = None, *, job_id: str | None = None
    ) -> list[tuple[str, int, str]]:
        """Live jobs that are not being ended already, each with its try and why it is unwanted."""
        tasks = _TASKS.c
        query = (
            select(Job.id, Job.try_number, Job.reason_code, tasks.try_number, tasks.state)
            .select_from(Job)
            .outerjoin(
                _TASKS,
                and_(
                    tasks.dag_id == Job.dag_id,
                    tasks.run_id == Job.run_id,
                    tasks.task_id == Job.task_id,
                    tasks.map_index == Job.map_index,
                ),
            )
            .where(Job.state.in_(_LIVE), Job.dag_id.is_not(None))
        )
        if run is not None:
            query = query.where(Job.dag_id == run[0], Job.run_id == run[1])
        if job_id is not None:
            query = query.where(Job.id == job_id)
        with self._context.database.read() as session:
            rows = session.execute(query).all()
        found = []
        for name, own_try, code, task_try, state in rows:
            reason = why_unwanted(own_try, task_try, state)
            if reason is not None and code != YieldCause.CANCEL.value:
                found.append((name, own_try, reason))
        return found

    def _twice(self, found: Sequence[tuple[str, int, str]], grace: float) -> list[tuple[str, int, str]]:
        """Those that an earlier look found too. First findings are remembered, the others forgotten."""
        before, now = self._suspects, self._context.now
        self._suspects = {job_id: min(before.get(job_id, now), now) for job_id, _, _ in found}
        return [entry for entry in found if now - self._suspects[entry[0]] >= grace]

    def _call_off(self, job_id: str, own_try: int, reason: str, actor: str) -> bool:
        def work(tx: Transaction) -> bool:
            job = get_job(tx.session, job_id, lock=True)
            # Put back by a person meanwhile for another try: that is another matter.
            return job.try_number == own_try and self._outcomes.call_off(tx, job, reason, actor)

        try:
            return self._context.database.write(work)
        except (ConflictError, NotFoundError) as error:
            log.debug("job %s cannot be called off any more: %s", job_id, error)
            return False
