"""The pod operator in a worker's place: what it renders, what it asks for, what it refuses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException, TaskDeferred
from kubernetes.client import models as k8s
from tests.builders.jobs import job_view
from tests.builders.real_api import real_api

from emep.operators.fair_share import FairShareGpuOperator
from emep.operators.pod import NVLinkKubernetesPodOperator
from emep.triggers.pod import PodTrigger
from emep.wire.base import JobState
from emep.wire.nodes import GpuReport, NodeRequest

KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "c",
    "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
}


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A connection to a cluster that is away: rendering and asking need none."""
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(KUBECONFIG))
    extra = f'{{"conn_type": "kubernetes", "extra": {{"kube_config_path": "{file}"}}}}'
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", extra)
    return file


@pytest.fixture
def api(tmp_path, monkeypatch, cluster):
    with real_api(tmp_path) as served:
        monkeypatch.setenv("AIRFLOW_CONN_EMEP_DEFAULT", served.connection())
        gpus = [
            GpuReport(index=i, uuid=f"n-{i}", gpu_type="H100", gpu_memory="80Gi", nvlink_group_id="g")
            for i in range(4)
        ]
        labels = {"emep/runtime": "kubernetes"}
        served.agent.register_node(NodeRequest(name="n0", cpu=16, memory="64Gi", gpus=gpus, labels=labels))
        yield served


def context() -> dict[str, Any]:
    ti = SimpleNamespace(
        dag_id="d", run_id="r", task_id="t", map_index=-1, try_number=1, max_tries=3,
        xcom_push=lambda **_: None, start_date=None,
    )  # fmt: skip
    run = SimpleNamespace(run_id="r", triggering_user_name="alice")
    return {"ti": ti, "dag_run": run, "run_id": "r", "dag": SimpleNamespace(parent_dag=None)}


def operator(**fields: Any) -> NVLinkKubernetesPodOperator:
    fields = {"task_id": "t", "image": "train:1", "namespace": "emep", **fields}
    with DAG("d", schedule=None):
        return NVLinkKubernetesPodOperator(**fields)


def deferred(task: Any) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as caught:
        task.execute(context())
    return caught.value


def test_it_asks_in_its_first_seconds_and_defers_at_once(api):
    task = operator(gpu_count=2, nvlink_required=True, cmds=["train"], max_duration="1h")
    left = deferred(task)
    assert isinstance(left.trigger, PodTrigger)
    job = api.user.job(left.trigger.job_id)
    assert (job.runtime, job.gpu_count, job.nvlink_required, job.user) == ("kubernetes", 2, True, "alice")
    path, arguments = left.trigger.serialize()
    again = PodTrigger(**arguments)
    assert path == "emep.triggers.pod.PodTrigger"
    assert again.serialize() == (path, arguments)
    assert arguments["plan"]["api_url"] == f"{api.url}/emep/api/v1"
    assert arguments["plan"]["pod"]["spec"]["containers"][0]["command"] == ["train"]
    assert "lease" not in str(arguments["plan"]["pod"]).lower()


def test_the_gpu_limit_of_the_container_is_what_is_asked_for(api):
    limits = k8s.V1ResourceRequirements(limits={"nvidia.com/gpu": "3", "memory": "1Gi"})
    left = deferred(operator(container_resources=limits))
    assert api.user.job(left.trigger.job_id).gpu_count == 3


def test_arguments_of_the_providers_operator_are_in_the_pod(cluster):
    task = operator(
        cmds=["a"],
        arguments=["b"],
        env_vars={"X": "1"},
        labels={"team": "a"},
        service_account_name="trainer",
        tolerations=[k8s.V1Toleration(key="gpu", operator="Exists")],
        volumes=[k8s.V1Volume(name="v", empty_dir=k8s.V1EmptyDirVolumeSource())],
        do_xcom_push=True,
        name="mine",
    )
    pod = task.build_pod_request_obj(dry_run=True)
    assert [container.name for container in pod.spec.containers] == ["base"]
    assert pod.metadata.name == "mine"
    assert pod.metadata.labels["team"] == "a"
    assert pod.spec.service_account_name == "trainer"
    assert task.plan({}, None).result_as_message


def test_an_engine_gets_its_spec_as_a_file_and_renews_its_own_lease(api):
    left = deferred(operator(engine="merge", input={"recipe": "r"}, output_uri="o"))
    plan = left.trigger.plan
    base = plan["pod"]["spec"]["containers"][0]
    assert (base["command"], base["args"]) == (["emep-engine"], ["run", "/emep/spec/spec.json"])
    assert (plan["supervised"], plan["has_spec"], plan["result_as_message"]) == (True, True, False)
    assert left.trigger.push_result


def test_a_dry_run_prints_the_pod_without_a_cluster(capsys):
    operator(gpu_count=2, max_duration="1h", cmds=["train"]).dry_run()
    printed = capsys.readouterr().out
    pod = yaml.safe_load(printed[printed.index("apiVersion:") :])
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert pod["spec"]["activeDeadlineSeconds"] == 3600 + 600 + 120
    assert pod["metadata"]["labels"]["emep/job"] == "job"
    names = [entry["name"] for entry in pod["spec"]["containers"][0]["env"]]
    assert "EMEP_LEASE_TOKEN" in names


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"node_count": 2}, "node_count"),
        ({"runtime": "agent"}, "runtime"),
        ({"base_container_name": "base", "full_pod_spec": None, "priority": 7}, "priority"),
        ({"gpu_count": 99}, "gpu_count"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(api, fields, words):
    with pytest.raises(AirflowFailException, match=words):
        operator(**fields).execute(context())
    assert not [job for job in api.user.jobs().items if job["state"] in ("pending", "starting")]


def test_a_connection_that_cannot_be_used_is_named(api, cluster):
    cluster.unlink()
    with pytest.raises(AirflowFailException, match="'kubernetes_default' cannot be used for pods"):
        operator().execute(context())


def test_ends_become_what_airflow_knows():
    task = operator(skip_on_exit_code=99, do_xcom_push=True)

    def end(**fields: Any) -> Any:
        view = job_view(**{"runtime": "kubernetes", **fields})
        return task.execute_complete({}, {"job": view.model_dump(mode="json")})

    done = {"state": JobState.COMPLETED, "exit_code": 0, "result": {"return_value": [1]}}
    assert end(**done) == [1]
    with pytest.raises(AirflowSkipException):
        end(state=JobState.FAILED, exit_code=99, reason="x")
    with pytest.raises(AirflowFailException):
        end(state=JobState.FAILED, exit_code=65, reason="bad")
    with pytest.raises(AirflowException, match="pod p exited with 3"):
        end(state=JobState.FAILED, exit_code=3, reason="pod p exited with 3")


def engine_task(**fields: Any) -> FairShareGpuOperator:
    fields = {"task_id": "t", "engine": "merge", "input": {"r": 1}, "runtime": "kubernetes", **fields}
    with DAG("d", schedule=None):
        return FairShareGpuOperator(**fields)


def test_an_engine_s_task_runs_in_a_pod_of_the_template(api, tmp_path, monkeypatch):
    template = tmp_path / "pod.yaml"
    container = {"name": "base", "image": "engines:7", "env": [{"name": "HF_HOME", "value": "/m"}]}
    template.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"namespace": "emep"},
                "spec": {"containers": [container]},
            }
        )
    )
    monkeypatch.setenv("AIRFLOW__EMEP__POD_TEMPLATE_FILE", str(template))
    left = deferred(engine_task(return_field="metrics"))
    assert isinstance(left.trigger, PodTrigger)
    plan = left.trigger.plan
    base = plan["pod"]["spec"]["containers"][0]
    assert (base["image"], base["command"]) == ("engines:7", ["emep-engine"])
    assert (left.trigger.return_field, plan["supervised"]) == ("metrics", True)
    assert api.user.job(left.trigger.job_id).runtime == "kubernetes"


def test_without_a_template_an_engine_s_pod_is_refused_by_the_option(api, monkeypatch):
    with pytest.raises(AirflowFailException, match="pod_template_file"):
        engine_task().execute(context())
    monkeypatch.setenv("AIRFLOW__EMEP__POD_TEMPLATE_FILE", "/no/such.yaml")
    with pytest.raises(AirflowFailException, match=r"/no/such\.yaml is not there"):
        engine_task().execute(context())
