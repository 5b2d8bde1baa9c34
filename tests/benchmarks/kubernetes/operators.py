"""A pod by the provider's own operator and by EMEP's, each from ``execute`` on, as a worker calls it.

Airflow's own parts (queue, worker, hand-over to the triggerer) are in neither figure.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.sdk import DAG
from airflow.sdk.exceptions import TaskDeferred
from kubernetes.client import models as k8s
from tests.builders.pods import TASK, PodBench, event_of

from emep.operators.pod import NVLinkKubernetesPodOperator

GPU = k8s.V1ResourceRequirements(limits={"nvidia.com/gpu": "1"})


def context(number: int) -> dict[str, Any]:
    """What both operators read of a task's context."""
    ti = SimpleNamespace(
        dag_id="measure", run_id=f"run-{number}", task_id="t", map_index=-1, try_number=1, max_tries=0,
        xcom_push=lambda **_: None, start_date=None,
    )  # fmt: skip
    run = SimpleNamespace(run_id=f"run-{number}", triggering_user_name="alice")
    return {"ti": ti, "dag_run": run, "run_id": f"run-{number}", "dag": SimpleNamespace(parent_dag=None)}


def _fields(bench: PodBench, script: str) -> dict[str, Any]:
    return {
        "task_id": "t",
        "name": "measured",
        "namespace": bench.kubectl.namespace,
        "image": bench.kubectl.target.image,
        "cmds": ["sh", "-c", script],
        "hostnetwork": True,
        "container_resources": GPU,
        "kubernetes_conn_id": "kubernetes_default",
        "do_xcom_push": False,
    }


async def by_provider(bench: PodBench, script: str, number: int) -> str:
    """A ``KubernetesPodOperator`` to its end, not deferred; its pod's log. Deferred, it creates its pod the
    same way before it defers."""
    from tests.cluster.access import logs

    core, namespace = bench.kubectl.core, bench.kubectl.namespace
    with DAG("measure", schedule=None):
        task = KubernetesPodOperator(**_fields(bench, script), on_finish_action="keep_pod", deferrable=False)
    await asyncio.to_thread(task.execute, context(number))
    name = task.pod.metadata.name
    text = await asyncio.to_thread(logs, core, name, namespace)
    await asyncio.to_thread(bench.kubectl.delete, name, 0)
    return text


async def by_emep(bench: PodBench, script: str, number: int) -> str:
    """EMEP's operator, then the trigger that it has deferred to; the log as the ledger has it."""
    with DAG("measure", schedule=None):
        task = NVLinkKubernetesPodOperator(**_fields(bench, script))
    try:
        await asyncio.to_thread(task.execute, context(number))
    except TaskDeferred as left:
        trigger: Any = left.trigger
    trigger.task_instance = TASK
    bench.submitted.append(trigger.job_id)
    await event_of(trigger)
    return bench.log(bench.job(trigger.job_id))
