"""DAGs of one task each, for the tests of the loop: what the engine does is the run's ``input``."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, task

from emep.dagkit.settings import dag_arguments
from emep.operators.fair_share import FairShareGpuOperator

QUICK_RETRIES = {
    "retry_delay": timedelta(seconds=1),
    "retry_exponential_backoff": False,
    "retries": 2,
    "execution_timeout": None,
}
PARAMS = {
    "input": Param({}, type="object"),
    "inputs": Param([], type="array"),
    "priority": Param("normal", type="string"),
    "gpu_count": Param(1, type="integer"),
}


def loop_dag(name: str, *, run_timeout: timedelta | None = None, **defaults: Any) -> DAG:
    """A DAG like EMEP's own, with retries that come at once."""
    arguments = dag_arguments()
    arguments["default_args"] = {**arguments["default_args"], **QUICK_RETRIES, **defaults}
    return DAG(
        dag_id=name,
        params=PARAMS,
        render_template_as_native_obj=True,
        **{**arguments, "dagrun_timeout": run_timeout},
    )


def job(**fields: Any) -> FairShareGpuOperator:
    """The task that asks for GPUs."""
    fields = {"input": "{{ params.input }}", "inline_wait": 0.5, "task_id": "job", **fields}
    return FairShareGpuOperator(
        engine="loop_steps",
        output_uri="loop",
        priority="{{ params.priority }}",
        gpu_count="{{ params.gpu_count }}",
        **fields,
    )


with loop_dag("loop_job"):
    job()

with loop_dag("loop_to_delete"):
    job()

with loop_dag("loop_in_worker"):
    # The worker stays with the job until its end.
    job(inline_wait=3600.0)

LIMIT = timedelta(seconds=30)
"""Long enough for a job to be there before it is over, on a machine that is busy."""

with loop_dag("loop_task_limit"):
    job(execution_timeout=LIMIT, retries=0)

with loop_dag("loop_run_limit", run_timeout=LIMIT):
    job()

with loop_dag("loop_many"):

    @task
    def inputs(params: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """One input for each job."""
        assert params is not None
        return list(params["inputs"])

    FairShareGpuOperator.partial(
        task_id="job",
        engine="loop_steps",
        output_uri="loop",
        priority="{{ params.priority }}",
        gpu_count=1,
        inline_wait=2.0,
    ).expand(extra_input=inputs())
