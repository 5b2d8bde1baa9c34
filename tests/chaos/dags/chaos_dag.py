"""One task that asks for GPUs; what its engine does, and how much it asks for, is the run's conf."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from emep.dagkit.settings import dag_arguments
from emep.operators.fair_share import FairShareGpuOperator

arguments = dag_arguments()
arguments["default_args"] = {
    **arguments["default_args"],
    # A worker that is killed while it asks costs a try; a bad day has many of those.
    "retries": 20,
    "retry_delay": timedelta(seconds=1),
    "retry_exponential_backoff": False,
}
with DAG(
    dag_id="chaos_job",
    params={
        "input": Param({}, type="object"),
        "queue": Param("merge", type="string"),
        "priority": Param("normal", type="string"),
        "gpu_count": Param(1, type="integer"),
    },
    render_template_as_native_obj=True,
    **arguments,
):
    FairShareGpuOperator(
        task_id="job",
        engine="chaos_steps",
        input="{{ params.input }}",
        output_uri="chaos",
        job_queue="{{ params.queue }}",
        priority="{{ params.priority }}",
        gpu_count="{{ params.gpu_count }}",
        cpu=0.1,
        memory="64Mi",
        inline_wait=2.0,
    )
