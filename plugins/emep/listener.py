"""Prompt release when a task ends without its worker or trigger: marked by hand, or lost with its worker.

An optimisation only: a lease that nobody needs any more also ends by its time limits, and a retry ends the
jobs of the tries before it. So everything here is best effort, beside the caller's thread, and never raises.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from airflow.listeners import hookimpl

log = logging.getLogger(__name__)

OPERATORS = frozenset(
    {"FairShareGpuOperator", "CompatibilityCheckOperator", "AskOperator", "CandidatesOperator"}
)
"""Classes whose tasks have jobs; a subclass elsewhere is released by the slower ways."""


@hookimpl
def on_task_instance_failed(previous_state: Any, task_instance: Any, error: Any) -> None:
    """A task was failed by hand, or the scheduler has found its worker gone."""
    _release(task_instance)


@hookimpl
def on_task_instance_success(previous_state: Any, task_instance: Any) -> None:
    """A task was marked as success by hand."""
    _release(task_instance)


def _release(task_instance: Any) -> None:
    """Cancel the task's unfinished jobs in a thread of its own, where this is not the task's own process."""
    if hasattr(task_instance, "task") and hasattr(task_instance, "get_template_context"):
        in_worker = type(task_instance).__name__ == "RuntimeTaskInstance"
    else:
        in_worker = False
    if in_worker or getattr(task_instance, "operator", None) not in OPERATORS:
        return
    key = (task_instance.dag_id, task_instance.run_id, task_instance.task_id, task_instance.map_index)
    # What is read of an ORM object must be read here: in the thread its session is somebody else's.
    tries = int(task_instance.try_number or 0)
    threading.Thread(target=release, args=(key, tries), name="emep release", daemon=True).start()


def release(key: tuple[str, str, str, int], last_try: int) -> None:
    """Cancel the jobs of a task, up to a try, that have not ended. Never raises."""
    from emep.hooks.emep import client
    from emep.operators.earlier_tries import cancel_jobs

    try:
        with client() as api:
            cancel_jobs(
                api,
                *key,
                up_to_try=last_try,
                reason="its Airflow task was ended by hand, or has lost its worker",
            )
    except Exception as error:
        log.warning("The jobs of %s cannot be released now: %s", "/".join(map(str, key)), error)
