"""``runtime: kubernetes`` for operators that run an engine: runs the same task's work in a pod.

Image, volumes, service account and all else that a pod needs in this cluster come from a pod template
(``[emep] pod_template_file``), because the author of a DAG does not know them.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowFailException

from emep.kubernetes.manifest import PodPlan
from emep.operators.job_arguments import OPERATOR_FIELDS

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

    from emep.client import EmepClient
    from emep.operators.fair_share import FairShareGpuOperator
    from emep.operators.pod import NVLinkKubernetesPodOperator
    from emep.triggers.pod import PodTrigger


def _option(name: str) -> str:
    return str(conf.get("emep", name, fallback="") or "").strip()


def pod_operator(task: FairShareGpuOperator) -> NVLinkKubernetesPodOperator:
    """The pod operator that does a task's work. Raises AirflowFailException where there is no template."""
    template = _option("pod_template_file")
    if not template:
        raise AirflowFailException(
            "runtime: kubernetes needs [emep] pod_template_file, a pod with the engines' image"
        )
    if not Path(template).is_file():
        raise AirflowFailException(f"[emep] pod_template_file: {template} is not there")
    from emep.operators.pod import NVLinkKubernetesPodOperator

    fields = {name: getattr(task, name) for name in OPERATOR_FIELDS}
    return NVLinkKubernetesPodOperator(
        task_id=task.task_id,
        engine=task.engine,
        pod_template_file=template,
        namespace=_option("pod_namespace") or None,
        kubernetes_conn_id=_option("kubernetes_conn_id") or "kubernetes_default",
        do_xcom_push=task.do_xcom_push,
        conn_id=task.conn_id,
        job_queue=task.job_queue,
        **fields,
    )


def planned(task: FairShareGpuOperator, context: Context, api: EmepClient) -> tuple[PodPlan, dict[str, Any]]:
    """The pod of a task, and the cluster that it goes to. Raises AirflowFailException in one sentence."""
    operator = pod_operator(task)
    return operator.planned(context, api), operator.cluster()


def trigger(
    task: FairShareGpuOperator, job_id: str, plan: PodPlan, cluster: dict[str, Any], *, mapped: bool
) -> PodTrigger:
    """The trigger that starts the pod on the grant and sees the job to its end."""
    from emep.triggers.pod import PodTrigger

    return PodTrigger(
        job_id=job_id,
        conn_id=task.conn_id,
        deferred_at=time.time(),
        return_field=task.return_field,
        if_empty=task.if_empty,
        push_result=task.do_xcom_push,
        mapped=mapped,
        worker_end=task.worker_end,
        run_note=task.run_note,
        plan=plan.to_dict(),
        cluster=cluster,
    )
