"""Pods in a real Airflow: the pod operator, and the whole pipeline with ``runtime: kubernetes``."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.builders.pods import Kubectl
from tests.builders.real_airflow import RealAirflow, Setup, real_airflow
from tests.cluster import pods
from tests.cluster.settings import HOST_ROOT_IMAGE, PROJECT
from tests.cluster.target import Target

pytestmark = [pytest.mark.airflow, pytest.mark.cluster]

DAG_FILE = """\
from airflow.sdk import DAG
from emep.operators.pod import NVLinkKubernetesPodOperator

LINES = "i=1; while [ $i -le {seconds} ]; do echo line $i; i=$((i+1)); sleep 1; done; "
with DAG("pods", schedule=None, default_args={{"pool": "emep", "retries": 2}}):
    NVLinkKubernetesPodOperator(
        task_id="pod", image="{image}", namespace="{namespace}", hostnetwork=True, gpu_count=2,
        nvlink_required=True, do_xcom_push=True, cmds=["sh", "-c"],
        arguments=[LINES + "echo '{{\\"lines\\": {seconds}}}' > /airflow/xcom/return.json"],
    )
"""
SECONDS = 45


@pytest.fixture(scope="module")
def airflow(cluster: Target) -> Iterator[RealAirflow]:
    if not cluster.host_root:
        pytest.skip("The nodes of this cluster do not see this machine's Python.")
    folder = Path(tempfile.mkdtemp(prefix="emep-pods-"))
    dags = folder / "dags"
    shutil.copytree(PROJECT / "dags", dags)
    values = {"image": cluster.image, "namespace": cluster.namespace, "seconds": SECONDS}
    (dags / "pods.py").write_text(DAG_FILE.format(**values))
    setup = Setup(
        environment={
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
            "AIRFLOW__EMEP__POD_TEMPLATE_FILE": str(template(cluster, folder)),
            "AIRFLOW_CONN_KUBERNETES_DEFAULT": json.dumps(
                {"conn_type": "kubernetes", "extra": {"kube_config_path": str(cluster.emep_kubeconfig)}}
            ),
        },
        agents=tuple(Kubectl(cluster).nodes()[:2]),
        agent_flags=(
            "--report-only",
            "--simulate",
            "2",
            "--group-size",
            "2",
            "--cpu",
            "8",
            "--memory",
            "32Gi",
        ),
    )
    with real_airflow(folder, setup) as running:
        yield running
    shutil.rmtree(folder, ignore_errors=True)


def template(cluster: Target, folder: Path) -> Path:
    """The pod of engines in this cluster: this machine's Python and project, and the stack's own folder."""
    mounts = [*pods.host_root_mounts(), pods.Mount("data", str(folder), writable=True)]
    environment = pods.python_environment() | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    program = str(Path(sys.executable).with_name("emep-engine"))
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": cluster.namespace},
        "spec": {
            "hostNetwork": True,
            "volumes": pods.volumes(mounts),
            "containers": [
                {
                    "name": "base",
                    "image": HOST_ROOT_IMAGE,
                    "command": [program],
                    "volumeMounts": pods.volume_mounts(mounts),
                    "env": [{"name": name, "value": value} for name, value in environment.items()],
                }
            ],
        },
    }
    file = folder / "engine-pod.yaml"
    file.write_text(yaml.safe_dump(pod))
    return file


def test_the_whole_pipeline_runs_in_pods(airflow, cluster):
    run = airflow.trigger(
        "emep_pipeline",
        runtime="kubernetes",
        recipe="recipes/evolve.yaml",
        tasks=["tasks/upright_search.jsonl", "tasks/turned_search.jsonl"],
        report_tasks=["tasks/upright_report.jsonl"],
        generations=1,
        population=4,
        batch=4,
        limit=20,
        output_name="winner",
    )
    assert run.ended(1500) == "success", run.states()
    jobs = run.jobs()
    assert {job["runtime"] for job in jobs} == {"kubernetes"}
    assert {job["state"] for job in jobs} == {"completed"}
    assert {node for job in jobs for node in job["nodes"]} <= set(airflow.setup.agents)
    airflow.wait(lambda: not Kubectl(cluster).pods(), 60)
    assert airflow.held_gpus() == []


def test_a_pod_outlives_a_killed_triggerer_with_its_log_whole_and_its_result(airflow, cluster):
    run = airflow.trigger("pods")
    airflow.wait(lambda: run.job_is("running"))
    airflow.kill("triggerer")
    airflow.start("triggerer")
    assert run.ended(400) == "success"
    job = run.job()
    assert (job["epoch"], job["requeues"], job["try_number"]) == (1, 0, 1)
    assert run.tasks()["pod"]["try_number"] == 1
    assert run.result("pod") == {"lines": SECONDS}
    # What was shown before the kill may be shown once more; nothing is missing, nothing out of order.
    shown = [line for line in run.log("pod").splitlines() if line.startswith("line ")]
    assert list(dict.fromkeys(shown)) == [f"line {number}" for number in range(1, SECONDS + 1)]


def test_a_task_that_is_marked_failed_takes_its_pod_along(airflow, cluster):
    run = airflow.trigger("pods")
    airflow.wait(lambda: run.job_is("running"))
    run.set_task("pod", "failed")
    airflow.wait(lambda: not Kubectl(cluster).pods(run.job()["id"]), 60)
    airflow.wait(lambda: run.job_is("cancelled"), 60)
    assert airflow.held_gpus() == []
