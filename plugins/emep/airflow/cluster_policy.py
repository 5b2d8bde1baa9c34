"""Airflow's cluster policy for EMEP's tasks: sets their weight, pool and queue from the run's conf.

``plugins/airflow_local_settings.py`` hands these functions to Airflow. A deployment with such a file of its
own imports them there. Tasks that are not EMEP's are left alone. Nothing here opens a session: the hook runs
inside a transaction of Airflow's.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

log = logging.getLogger(__name__)
DEFAULT_POOL = "default_pool"


def task_policy(task: Any) -> None:
    """Put a task that asks EMEP for GPUs into the pool ``emep``, where Airflow never holds it back.

    Raises AirflowClusterPolicyViolation if the task names another pool: Airflow would then wait for a slot of
    that pool and so decide before EMEP's scheduler does.
    """
    from emep.airflow.task_request import POOL, asks_for_gpus

    if not asks_for_gpus(task) or task.pool == POOL:
        return
    if task.pool == DEFAULT_POOL:
        _set_pool(task, POOL)
        return
    from airflow.exceptions import AirflowClusterPolicyViolation

    raise AirflowClusterPolicyViolation(
        f"Task {task.task_id!r} of DAG {task.dag_id!r} asks EMEP for GPUs but is in Airflow's pool "
        f"{task.pool!r}: while that pool is full, it could not ask. Leave pool out, or write pool={POOL!r}."
    )


def task_instance_mutation_hook(task_instance: Any, dag_run: Any) -> None:
    """Set weight, pool and queue of one of EMEP's task instances from its run's conf; never raises.

    ``priority`` and ``project`` make the weight, ``runtime`` the queue where ``[emep] airflow_queues`` names
    one for it.
    """
    try:
        _apply(task_instance, dag_run)
    except Exception:
        log.exception("EMEP's cluster policy leaves a task instance as it is")


def _apply(task_instance: Any, dag_run: Any) -> None:
    from emep.airflow.task_request import POOL, asks_for_gpus, is_of_emep, wish_of

    task = getattr(task_instance, "task", None)
    if task is None or not is_of_emep(task):
        return
    from emep.airflow.priority_weight import weights

    wish = wish_of(task, getattr(dag_run, "conf", None))
    task_instance.priority_weight = weights().weight(wish.priority, wish.queue, wish.project)
    if asks_for_gpus(task):
        if task_instance.pool == DEFAULT_POOL:
            task_instance.pool = POOL
        queue = airflow_queues().get(wish.runtime)
        if queue:
            task_instance.queue = queue


def _set_pool(task: Any, pool: str) -> None:
    if getattr(task, "is_mapped", False):
        task.partial_kwargs["pool"] = pool
    else:
        task.pool = pool


@cache
def airflow_queues() -> dict[str, str]:
    """``[emep] airflow_queues``, such as ``pod=kubernetes, agent=default``: Airflow's queue by runtime."""
    from airflow.configuration import conf

    text = str(conf.get("emep", "airflow_queues", fallback="") or "")
    pairs = (part.partition("=") for part in text.split(",") if part.strip())
    return {runtime.strip(): queue.strip() for runtime, _, queue in pairs}
