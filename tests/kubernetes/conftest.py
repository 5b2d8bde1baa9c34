"""A real cluster for every test here; without one they skip."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.builders.inbox import Inbox
from tests.builders.pods import Kubectl, PodBench, pod_bench
from tests.cluster.target import Target


@pytest.fixture(scope="module")
def module_bench(cluster: Target) -> Iterator[PodBench]:
    folder = Path(tempfile.mkdtemp(prefix="emep-pods-"))
    with pod_bench(folder, cluster) as bench:
        yield bench
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def bench(module_bench: PodBench, cluster: Target, monkeypatch: pytest.MonkeyPatch) -> Iterator[PodBench]:
    """The module's bench; the trigger has the rights of EMEP's own account in the cluster."""
    monkeypatch.setenv("AIRFLOW_CONN_EMEP_DEFAULT", module_bench.emep_connection)
    connect(monkeypatch, "kubernetes_default", kube_config_path=str(cluster.emep_kubeconfig))
    yield module_bench
    for pod in module_bench.kubectl.pods():
        if pod.metadata.labels["emep/job"] in module_bench.submitted:
            module_bench.kubectl.delete(pod.metadata.name, 0)


def connect(monkeypatch: pytest.MonkeyPatch, conn_id: str, **extra: object) -> None:
    """A Kubernetes connection of Airflow's."""
    document = json.dumps({"conn_type": "kubernetes", "extra": extra})
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", document)


@pytest.fixture
def kubectl(module_bench: PodBench) -> Kubectl:
    return module_bench.kubectl


@pytest.fixture
def inbox(monkeypatch: pytest.MonkeyPatch) -> Inbox:
    from airflow.sdk.execution_time import task_runner

    inbox = Inbox()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", inbox, raising=False)
    return inbox
