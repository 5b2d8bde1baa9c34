"""A real cluster for every test here; without one they skip."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.builders.inbox import Inbox
from tests.builders.pods import Kubectl, PodBench, pod_bench


@pytest.fixture(scope="session")
def kubeconfig() -> Path:
    """Of any cluster whose nodes have nvidia.com/gpu."""
    named = os.environ.get("EMEP_TEST_KUBECONFIG")
    if not named:
        pytest.skip("EMEP_TEST_KUBECONFIG names no cluster")
    return Path(named)


@pytest.fixture(scope="module")
def module_bench(kubeconfig: Path) -> Iterator[PodBench]:
    folder = Path(tempfile.mkdtemp(prefix="emep-pods-"))
    with pod_bench(folder, kubeconfig) as bench:
        yield bench
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def bench(module_bench: PodBench, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PodBench]:
    """The module's bench; when a test ends, nothing of it is left in the cluster."""
    monkeypatch.setenv("AIRFLOW_CONN_EMEP_DEFAULT", module_bench.emep_connection)
    extra = f'{{"kube_config_path": "{kubeconfig}"}}'
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", f'{{"conn_type": "kubernetes", "extra": {extra}}}')
    yield module_bench
    for pod in module_bench.kubectl.pods():
        module_bench.kubectl.delete(pod.metadata.name, 0)


@pytest.fixture
def kubectl(module_bench: PodBench) -> Kubectl:
    return module_bench.kubectl


@pytest.fixture
def inbox(monkeypatch: pytest.MonkeyPatch) -> Inbox:
    from airflow.sdk.execution_time import task_runner

    inbox = Inbox()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", inbox, raising=False)
    return inbox
