"""Cancels jobs of earlier tries, which no try waits for: their worker was lost or the task was cleared."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from emep.client import EmepClient

CONFLICT = 409
UNFINISHED = ("pending", "starting", "running", "yielding")


def cancel_jobs(
    api: EmepClient,
    dag_id: str,
    run_id: str,
    task_id: str,
    map_index: int,
    *,
    up_to_try: int,
    reason: str,
    but: str | None = None,
) -> list[str]:
    """Cancel the task's unfinished jobs up to and including ``up_to_try``, except ``but``; return their ids.

    Raises EmepApiError and EmepConnectionError.
    """
    from emep.client import EmepApiError

    cancelled = []
    for job in api.jobs(states=UNFINISHED, dag_id=dag_id, run_id=run_id, limit=1000).items:
        task = job["airflow"] or {}
        same = (task.get("task_id"), task.get("map_index")) == (task_id, map_index)
        if same and job["id"] != but and task.get("try_number", 0) <= up_to_try:
            try:
                api.cancel(job["id"], reason)
            except EmepApiError as error:
                if error.status != CONFLICT:
                    raise
                continue  # it has ended since the list was made
            cancelled.append(str(job["id"]))
    return cancelled
