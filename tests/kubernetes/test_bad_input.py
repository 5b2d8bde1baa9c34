"""What makes no sense ends with one sentence that names it; GPUs are free, nothing is left in the cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from airflow.triggers.base import TaskSuccessEvent, TriggerEvent
from tests.builders.pods import event_of

from .conftest import connect


async def refused(bench, plan, *words: str, **fields) -> None:
    job_id = bench.submit()
    event = await event_of(bench.trigger(job_id, plan, **fields))
    assert isinstance(event, TriggerEvent)
    assert not isinstance(event, TaskSuccessEvent)
    job = bench.job(job_id)
    assert job.state.value in ("failed", "cancelled")
    for word in words:
        assert word in job.reason
    assert "\n" not in job.reason.strip()
    assert (job.requeues, job.epoch <= 1) == (0, True)
    assert bench.held() == []
    await bench.until(lambda: not bench.kubectl.pods(job_id) and not bench.kubectl.secrets(job_id))


def with_image(bench, image: str, policy: str):
    plan = bench.plan()
    plan.pod["spec"]["containers"][0].update(image=image, imagePullPolicy=policy)
    return plan


async def test_an_image_that_no_node_has(bench, inbox):
    await refused(bench, with_image(bench, "localhost/nothing:1", "Never"), "'localhost/nothing:1'")


async def test_an_image_that_cannot_be_pulled(bench, inbox):
    await refused(bench, with_image(bench, "localhost/nothing:1", "IfNotPresent"), "localhost/nothing:1")


async def test_a_name_that_is_no_image(bench, inbox):
    await refused(bench, with_image(bench, "No Such Image!", "Never"), "No Such Image!")


async def test_a_service_account_that_is_missing(bench, inbox):
    plan = bench.plan(spec={"serviceAccountName": "nobody"})
    await refused(bench, plan, "nobody", "not found")


async def test_a_namespace_that_is_not_ours(bench, inbox):
    plan = bench.plan()
    plan.pod["metadata"]["namespace"] = "no-such-namespace"
    await refused(bench, plan, "no-such-namespace")


async def test_a_config_map_that_is_missing(bench, inbox):
    plan = bench.plan()
    missing = [{"configMapRef": {"name": "no-such-map"}}]
    plan.pod["spec"]["containers"][0]["envFrom"] = missing
    await refused(bench, plan, "no-such-map")


async def test_a_command_that_the_image_does_not_have(bench, inbox):
    plan = bench.plan()
    plan.pod["spec"]["containers"][0]["command"] = ["/no/such/program"]
    await refused(bench, plan, "/no/such/program")


async def test_credentials_that_have_expired(bench, inbox, cluster, monkeypatch):
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": "expired"}
    connect(monkeypatch, "old", kube_config=json.dumps(config))
    await refused(bench, bench.plan(), "'old'", "expired", cluster={"conn_id": "old"})


async def test_a_connection_that_says_two_places(bench, inbox, cluster, monkeypatch):
    extra = {"kube_config_path": str(cluster.kubeconfig), "kube_config": "{}"}
    connect(monkeypatch, "twice", **extra)
    words = ("'twice'", "kube_config and kube_config_path")
    await refused(bench, bench.plan(), *words, cluster={"conn_id": "twice"})


async def test_a_connection_whose_file_is_missing(bench, inbox, monkeypatch):
    connect(monkeypatch, "nofile", kube_config_path="/no/such/kubeconfig")
    await refused(bench, bench.plan(), "'nofile'", "/no/such/kubeconfig", cluster={"conn_id": "nofile"})


async def test_a_connection_that_nobody_has_made(bench, inbox):
    await refused(bench, bench.plan(), "no_such_connection", cluster={"conn_id": "no_such_connection"})


async def test_connections_of_every_kind_work(bench, inbox, cluster, monkeypatch):
    config = yaml.safe_load(cluster.emep_kubeconfig.read_text())
    connect(monkeypatch, "as_json", kube_config=json.dumps(config))
    connect(monkeypatch, "nothing")
    kinds = [
        {"conn_id": "as_json"},
        {"conn_id": "kubernetes_default"},
        {"conn_id": "kubernetes_default", "config_file": str(cluster.emep_kubeconfig)},
        {"conn_id": None, "config_file": str(cluster.emep_kubeconfig)},
        in_cluster(config, bench.server.folder, monkeypatch),
    ]
    for kind in kinds:
        job_id = bench.submit()
        event = await event_of(bench.trigger(job_id, bench.plan(), cluster=kind))
        assert isinstance(event, TaskSuccessEvent), (kind, bench.job(job_id).reason)


def in_cluster(config: dict, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict:
    """What a triggerer in a pod finds: the service account's token and the API's address."""
    import base64
    from urllib.parse import urlsplit

    from kubernetes_asyncio.config import incluster_config

    server = config["clusters"][0]["cluster"]
    certificate = folder / "ca.crt"
    if "certificate-authority-data" in server:
        certificate.write_bytes(base64.b64decode(server["certificate-authority-data"]))
    else:
        certificate.write_bytes(Path(server["certificate-authority"]).read_bytes())
    token = folder / "token"
    token.write_text(config["users"][0]["user"]["token"])
    address = urlsplit(server["server"])
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", str(address.hostname))
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(address.port))
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(certificate))
    return {"conn_id": "kubernetes_default", "in_cluster": True}
