"""The test cluster runs pods as any Kubernetes does; what EMEP's tests rely on is checked here."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import access
from tests.cluster.local import LocalCluster
from tests.cluster.pods import Mount, pod, python_pod
from tests.cluster.settings import GPU_RESOURCE
from tests.cluster.target import Target
from tests.cluster.waiting import until

pytestmark = pytest.mark.cluster

# A process that is a container's first ignores SIGTERM unless it says otherwise.
TRAPPING = 'trap "echo stopping; exit 7" TERM; echo started; while :; do sleep 0.1; done'
IGNORING = "echo started; while :; do sleep 0.1; done"


class Bench:
    """Pods of one test, by EMEP's account, and what became of them."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.api = target.emep
        self._made: list[str] = []

    def name(self) -> str:
        return f"pod-{uuid.uuid4().hex[:8]}"

    def create(self, document: dict[str, Any]) -> str:
        made = self.api.create_namespaced_pod(self.target.namespace, document)
        self._made.append(made.metadata.name)
        return str(made.metadata.name)

    def run(self, *command: str, **options: Any) -> str:
        return self.create(pod(self.name(), list(command), image=self.target.image, **options))

    def get(self, name: str) -> Any:
        return self.api.read_namespaced_pod(name, self.target.namespace)

    def phase(self, name: str, *wanted: str, timeout_s: float = 60) -> Any:
        def reached() -> Any:
            found = self.get(name)
            return found if found.status.phase in wanted else None

        return until(reached, timeout_s, f"pod {name} to be {' or '.join(wanted)}")

    def says(self, name: str, text: str) -> None:
        self.phase(name, "Running", "Succeeded", "Failed")
        until(lambda: text in self.logs(name), 60, f"{text!r} from pod {name}")

    def logs(self, name: str) -> str:
        return access.logs(self.api, name, self.target.namespace)

    def exit_code(self, found: Any) -> int:
        return int(found.status.container_statuses[0].state.terminated.exit_code)

    def delete(self, name: str, **options: Any) -> None:
        self.api.delete_namespaced_pod(name, self.target.namespace, **options)

    def gone(self, name: str, timeout_s: float = 60) -> None:
        until(lambda: name not in self.names(), timeout_s, f"pod {name} to be gone")

    def names(self) -> set[str]:
        return {p.metadata.name for p in self.api.list_namespaced_pod(self.target.namespace).items}

    def clear(self) -> None:
        for name in self.names() & set(self._made):
            self.delete(name, grace_period_seconds=0)
        until(lambda: not self.names() & set(self._made), 60, "this test's pods to be gone")


@pytest.fixture
def bench(cluster: Target) -> Iterator[Bench]:
    made = Bench(cluster)
    yield made
    made.clear()


@pytest.fixture
def node(cluster: Target) -> str:
    """A node that shows GPUs; alone in its use of them."""
    for found in cluster.core.list_node().items:
        if int((found.status.allocatable or {}).get(GPU_RESOURCE, 0)) >= 2:
            return str(found.metadata.name)
    pytest.skip(f"No node of this cluster shows {GPU_RESOURCE}.")


def test_a_pod_tells_its_output_and_its_exit_code(bench: Bench) -> None:
    name = bench.run("sh", "-c", "echo one; echo two; exit 3")
    ended = bench.phase(name, "Failed", "Succeeded")
    assert bench.exit_code(ended) == 3
    assert bench.logs(name) == "one\ntwo\n"


def test_a_pod_has_its_grace_to_end_by_itself(bench: Bench) -> None:
    name = bench.run("sh", "-c", TRAPPING, grace_s=30)
    bench.says(name, "started")
    seen = []
    watched = bench.target.core
    bench.delete(name)

    def ended() -> bool:
        for found in watched.list_namespaced_pod(bench.target.namespace).items:
            if found.metadata.name == name and found.status.container_statuses[0].state.terminated:
                seen.append(bench.exit_code(found))
        return name not in bench.names()

    until(ended, 25, f"pod {name} to be gone before its grace is over")
    assert set(seen) <= {7}


def test_a_pod_that_ignores_sigterm_is_killed_after_its_grace(bench: Bench) -> None:
    name = bench.run("sh", "-c", IGNORING, grace_s=10)
    bench.says(name, "started")
    bench.delete(name)
    assert name in bench.names()
    bench.gone(name)


def test_of_two_pods_for_all_gpus_of_a_node_one_waits_for_the_other(bench: Bench, node: str) -> None:
    count = int(bench.target.core.read_node(node).status.allocatable[GPU_RESOURCE])
    first = bench.run("sh", "-c", TRAPPING, gpus=count, node=node)
    bench.says(first, "started")
    second = bench.run("sh", "-c", "echo ran", gpus=1, node=node)

    def refused() -> str:
        conditions = bench.get(second).status.conditions or []
        return next((c.message for c in conditions if c.type == "PodScheduled" and c.status == "False"), "")

    assert f"Insufficient {GPU_RESOURCE}" in until(refused, 30, "the second pod to be refused")
    assert bench.get(second).status.phase == "Pending"
    bench.delete(first)
    assert bench.exit_code(bench.phase(second, "Succeeded")) == 0


def test_a_file_of_a_running_pod_is_read_by_exec(cluster: Target, bench: Bench) -> None:
    from kubernetes.stream import stream

    name = bench.run("sh", "-c", f"echo '[1, 2]' > /tmp/result; {TRAPPING}")
    bench.says(name, "started")
    call = cluster.core.connect_get_namespaced_pod_exec
    read = stream(call, name, cluster.namespace, command=["cat", "/tmp/result"], stdout=True, stderr=True)
    assert "1, 2" in read


def test_an_image_that_nobody_has_is_told(bench: Bench) -> None:
    name = bench.create(pod(bench.name(), ["true"], image="localhost/nobody-has-this:1"))

    def reason() -> str:
        statuses = bench.get(name).status.container_statuses or []
        return statuses[0].state.waiting.reason if statuses and statuses[0].state.waiting else ""

    until(lambda: reason() in ("ErrImagePull", "ImagePullBackOff"), 60, "the image's absence to be told")


def test_the_hosts_python_runs_the_project_in_a_pod(bench: Bench, tmp_path: Path) -> None:
    if not bench.target.host_root:
        pytest.skip("The nodes of this cluster do not see this machine's files.")
    code = f"import engines.cli, emep, pathlib; pathlib.Path({str(tmp_path / 'out')!r}).write_text('here')"
    mounts = [Mount("out", str(tmp_path), writable=True)]
    name = bench.create(python_pod(bench.name(), code, mounts=mounts))
    ended = bench.phase(name, "Failed", "Succeeded", timeout_s=120)
    assert bench.exit_code(ended) == 0, bench.logs(name)
    assert (tmp_path / "out").read_text() == "here"


ALLOWED = [
    ("create", "pods", None, True),
    ("watch", "pods", None, True),
    ("delete", "pods", None, True),
    ("get", "pods", "log", True),
    ("create", "secrets", None, True),
    ("delete", "secrets", None, True),
    ("list", "events", None, True),
    ("watch", "nodes", None, True),
    ("list", "secrets", None, False),
    ("patch", "nodes", None, False),
    ("create", "serviceaccounts", "token", False),
    ("get", "configmaps", None, False),
]


def _may(target: Target, namespace: str, verb: str, resource: str, part: str | None) -> bool:
    from kubernetes.client import AuthorizationV1Api

    question = {"namespace": namespace, "verb": verb, "resource": resource, "subresource": part or ""}
    answer = AuthorizationV1Api(access.client(target.emep_kubeconfig)).create_self_subject_access_review(
        {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
        | {"spec": {"resourceAttributes": question}}
    )
    return bool(answer.status.allowed)


@pytest.mark.parametrize(("verb", "resource", "part", "allowed"), ALLOWED)
def test_emeps_account_may_do_what_it_needs_and_no_more(
    cluster: Target, verb: str, resource: str, part: str | None, allowed: bool
) -> None:
    assert _may(cluster, cluster.namespace, verb, resource, part) is allowed


def test_emeps_account_runs_no_pod_in_another_namespace(cluster: Target) -> None:
    assert not _may(cluster, "default", "create", "pods", None)


def test_wiping_a_namespace_leaves_no_pod_and_no_secret(cluster: Target, bench: Bench) -> None:
    bench.run("sh", "-c", IGNORING, grace_s=60)
    secret = {"metadata": {"name": bench.name()}, "stringData": {"token": "x"}}
    bench.api.create_namespaced_secret(cluster.namespace, secret)
    access.wipe(cluster.core, cluster.namespace)
    assert bench.names() == set()
    assert cluster.core.list_namespaced_secret(cluster.namespace).items == []


def _container(bench: Bench, name: str) -> str:
    return str(bench.get(name).status.container_statuses[0].container_id)


def _on_first_node(bench: Bench, local: LocalCluster, script: str) -> str:
    name = bench.run("sh", "-c", script, node=local.nodes[0].name, gpus=2)
    bench.says(name, "started")
    return name


Disturb = Callable[[LocalCluster], None]


def _restart_kubelet(local: LocalCluster) -> None:
    local.nodes[0].kill_kubelet()
    local.start_kubelet(local.nodes[0])


@pytest.mark.parametrize("disturb", [_restart_kubelet, LocalCluster.restart_api_server])
def test_a_pod_runs_on_while_its_kubelet_or_the_api_server_is_killed(
    local_cluster: LocalCluster, bench: Bench, disturb: Disturb
) -> None:
    script = "echo started; while [ ! -e /tmp/end ]; do sleep 0.1; done; echo ended"
    name = _on_first_node(bench, local_cluster, script)
    container = _container(bench, name)
    disturb(local_cluster)
    # A file from outside the cluster's own ways: it reaches the container that has run all along.
    (process, *_) = local_cluster.nodes[0].processes_of(container)
    Path(f"/proc/{process}/root/tmp/end").touch()
    ended = bench.phase(name, "Succeeded")
    assert ended.status.container_statuses[0].container_id == container
    assert ended.status.container_statuses[0].restart_count == 0
    gpus = local_cluster.core.read_node(local_cluster.nodes[0].name).status.allocatable[GPU_RESOURCE]
    assert gpus == str(local_cluster.settings.gpus)


def test_a_frozen_kubelet_is_a_dead_node_whose_pods_are_evicted(
    local_cluster: LocalCluster, bench: Bench
) -> None:
    name = _on_first_node(bench, local_cluster, TRAPPING)
    node = local_cluster.nodes[0]
    (first, *_) = node.processes_of(_container(bench, name))
    node.freeze_kubelet()
    try:
        local_cluster.wait_node(node.name, ready=False)
        until(lambda: bench.get(name).metadata.deletion_timestamp, 60, "the pod to be evicted")
        # Nobody can have ended it: that is what a lease is for.
        assert first in node.processes_of(_container(bench, name))
    finally:
        node.thaw_kubelet()
    bench.gone(name)
    local_cluster.wait_node(node.name, ready=True)


def test_a_node_without_power_is_dead_and_comes_back_empty(local_cluster: LocalCluster, bench: Bench) -> None:
    name = _on_first_node(bench, local_cluster, TRAPPING)
    node = local_cluster.nodes[0]
    container = _container(bench, name)
    node.cut_power()
    try:
        # The kernel kills at once, and takes the dead out of their control groups a moment later.
        until(lambda: node.processes_of(container) == [], 60, "every process of the container to be gone")
        local_cluster.wait_node(node.name, ready=False)
        until(lambda: bench.get(name).metadata.deletion_timestamp, 60, "the pod to be evicted")
        assert name in bench.names()  # nobody is there to say that it has ended
    finally:
        local_cluster.boot(node)
        local_cluster.wait_node(node.name, ready=True)
    bench.gone(name)
    again = bench.run("sh", "-c", "echo back", node=node.name, gpus=local_cluster.settings.gpus)
    bench.phase(again, "Succeeded")


def test_a_container_can_be_killed_from_outside(local_cluster: LocalCluster, bench: Bench) -> None:
    name = _on_first_node(bench, local_cluster, IGNORING)
    for process in local_cluster.nodes[0].processes_of(_container(bench, name)):
        with suppress(ProcessLookupError):  # its short-lived children come and go
            os.kill(process, signal.SIGKILL)
    assert bench.exit_code(bench.phase(name, "Failed")) == 137
