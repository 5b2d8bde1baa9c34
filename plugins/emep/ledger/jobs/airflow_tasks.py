"""Clears Airflow's task instances for a new try; their tables are in the same database as the ledger's.

Only the API server and the scheduler may do this; Airflow's models are imported when it is done.
"""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from emep.ledger.store.tables import Job
from emep.wire.errors import ConflictError

_CLEARABLE = frozenset({"failed", "upstream_failed", "skipped"})
_COMING = frozenset({"scheduled", "queued", "running", "restarting", "None"})


def clear_task(session: Session, job: Job) -> int:
    """Clear the task that asked for the job and the tasks after it; return how many were cleared.

    Airflow then runs a new try, which asks again. Done in the caller's transaction, with the functions behind
    Airflow's own "clear". Raises ConflictError, with what to do, where that would run nothing or repeat what
    has been repeated already.
    """
    from airflow.exceptions import AirflowClearRunningTaskException
    from airflow.models.dagbag import DBDagBag
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance, clear_task_instances, find_relevant_relatives
    from airflow.utils.state import DagRunState

    index = f"[{job.map_index}]" if job.map_index >= 0 else ""
    where = f"task {job.task_id}{index} of {job.dag_id} {job.run_id}"
    run = session.scalar(
        select(DagRun)
        .where(DagRun.dag_id == job.dag_id, DagRun.run_id == job.run_id)
        .with_for_update(of=DagRun)
    )
    if run is None:
        raise ConflictError(f"the run of {where} is gone: trigger {job.dag_id} again")
    instance = session.scalar(
        select(TaskInstance).where(
            TaskInstance.dag_id == job.dag_id,
            TaskInstance.run_id == job.run_id,
            TaskInstance.task_id == job.task_id,
            TaskInstance.map_index == job.map_index,
        )
    )
    if instance is None:
        raise ConflictError(f"{where} is gone: trigger {job.dag_id} again")
    _check_state(job, where, str(instance.state), instance.try_number)
    dag = DBDagBag(load_op_links=False).get_dag_for_run(run, session)
    if dag is None or job.task_id is None or not dag.has_task(job.task_id):
        raise ConflictError(f"{where} is no longer in its DAG: trigger {job.dag_id} again")
    mapped = [(job.task_id, job.map_index)] if job.map_index >= 0 else []
    plain = [] if mapped else [job.task_id]
    after = find_relevant_relatives(
        plain, mapped, dag=dag, run_id=run.run_id, direction="downstream", session=session
    )
    found = list(
        dag.clear(dry_run=True, task_ids=[*plain, *mapped, *after], run_id=run.run_id, session=session)
    )
    try:
        clear_task_instances(found, session, DagRunState.QUEUED, prevent_running_task=True)
    except AirflowClearRunningTaskException:
        raise ConflictError(f"a task that follows {where} is running: wait for its end, or end it") from None
    session.flush()
    return len(found)


def _check_state(job: Job, where: str, state: str, try_number: int) -> None:
    if try_number > job.try_number or state in _COMING:
        # A task that was deferred for the job is queued and running in the same try when it hears of the end.
        again = "is tried again already"
        if try_number == job.try_number:
            again = f"has not heard of its job's end yet, or {again}"
        raise ConflictError(f"{where} {again} (try {try_number}, {state})", state=state)
    if state == "up_for_retry":
        raise ConflictError(f"Airflow will try {where} again by itself", state=state)
    if state == "deferred":
        raise ConflictError(f"{where} has not heard of its job's end yet: try again in a minute", state=state)
    if state not in _CLEARABLE:
        raise ConflictError(f"{where} is {state}: clear it in Airflow if it is to run again", state=state)
