"""
### Watch over GPUs, nodes and leases

One run at a time watches the hardware and ends with the next *batch of findings* (a GPU that failed three
checks, the job that leaves it, a node that fell silent, a lease that ran out, what went back to the queue,
drains and resumes), or after an hour without any; then the next run begins where it left off. Each finding is
a line of the task's log, and the task returns all of them. The watch waits in the triggerer, not in a worker.

It acts through EMEP's REST as an operator would: each look makes the control plane check now. Paused, nothing
is lost: the scheduler's own tick takes the same decisions, up to `[emep] tick_seconds` later, and nobody
reads them here.
"""

from datetime import timedelta

from airflow.sdk import Param, dag

from emep.dagkit import formats
from emep.dagkit.settings import dag_arguments
from emep.sensors.gpu_health import GpuHealthSensor

formats.register()


@dag(
    description="Watch over GPUs, nodes and leases; each run ends with a batch of findings.",
    doc_md=__doc__,
    tags=["emep", "health"],
    params={
        "watch": Param(
            "1h",
            "How long a run watches when nothing is found, for example 1h.",
            type="string",
            title="Longest watch",
            format=formats.DURATION,
            pattern=formats.DURATION_PATTERN,
            maxLength=formats.LONGEST_TEXT,
            examples=["10m", "1h"],
        ),
        "settle": Param(
            "10s",
            "How long a run gathers further findings after the first, so that one incident is one run.",
            type="string",
            title="Gathering time",
            format=formats.WAIT,
            pattern=formats.DURATION_PATTERN,
            maxLength=formats.LONGEST_TEXT,
            examples=["10s", "1m"],
        ),
        "drain_unhealthy": Param(
            False,
            "Drain every GPU that its agent reports bad: it stays out of use until a person resumes it "
            "(emep resume NODE:GPU). Otherwise three good checks bring it back.",
            type="boolean",
            title="Keep bad GPUs out",
        ),
    },
    **{
        **dag_arguments(),
        "schedule": "@continuous",
        "max_active_runs": 1,
        "dagrun_timeout": timedelta(days=2),
        # Its first run would begin before the API server answers, and a demo needs no watch.
        "is_paused_upon_creation": True,
    },
)
def emep_gpu_health():
    """One sensor."""
    GpuHealthSensor(
        task_id="watch",
        watch="{{ params.watch }}",
        settle="{{ params.settle }}",
        drain_unhealthy="{{ params.drain_unhealthy }}",
    )


emep_gpu_health()
