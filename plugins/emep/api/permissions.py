"""Who may change a job: whoever may change its task, and for a job without one its owner or an operator."""

from __future__ import annotations

from emep.api.auth import Caller, may_edit_tasks, may_operate
from emep.api.schemas import JobView
from emep.exceptions import ForbiddenError


def require_change(caller: Caller, job: JobView, verb: str) -> None:
    """Raise ForbiddenError where the caller may not; what counts is the job's stored DAG."""
    dag_id = job.airflow.dag_id if job.airflow else None
    is_own = dag_id is not None or job.user == caller.name
    if not may_edit_tasks(caller, dag_id) or not (is_own or may_operate(caller)):
        raise ForbiddenError(f"{caller.name} may not {verb} job {job.id}")
