"""A cluster leaves nothing behind: taken down, killed with its test run, or failed half-way."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster import cgroups
from tests.cluster.fixtures import without_a_cluster
from tests.cluster.local import LocalCluster, all_clusters
from tests.cluster.pods import pod
from tests.cluster.settings import PROJECT, ClusterError, Settings
from tests.cluster.waiting import until

pytestmark = pytest.mark.cluster

STARTS_ONE_AND_WAITS = """
import sys
from tests.cluster.local import LocalCluster
from tests.cluster.settings import Settings
cluster = LocalCluster.new(Settings(name=sys.argv[1], nodes=1), owned=True)
cluster.up()
print("up", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def name() -> Iterator[str]:
    without_a_cluster()
    made = f"life-{os.getpid()}-{time.monotonic_ns() % 10**6}"
    yield made
    for cluster in LocalCluster.existing():
        if cluster.settings.name == made:
            cluster.down()


def remains(cluster: LocalCluster) -> list[str]:
    """What of a cluster there still is on this machine, found by other ways than its own records."""
    folder = str(cluster.folder)
    found = [folder] if cluster.folder.exists() else []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
                mounts = (entry / "mounts").read_text()
            except OSError:
                continue
            if f"{folder}/" in command:
                found.append(command.replace("\0", " "))
            if f"{folder}/" in mounts:
                found.append(f"mounts of {entry.name}")
    for node in cluster.nodes:
        found += [str(h / node.cgroup) for h in cgroups.hierarchies() if (h / node.cgroup).exists()]
        found += [node.bridge] if Path("/sys/class/net", node.bridge).exists() else []
    return found


def run_a_pod(cluster: LocalCluster) -> None:
    from kubernetes.client import CoreV1Api

    api: CoreV1Api = cluster.core
    api.create_namespaced_pod(cluster.namespace, pod("runs", ["sh", "-c", "while :; do sleep 1; done"]))
    until(lambda: api.read_namespaced_pod("runs", cluster.namespace).status.phase == "Running", 60, "the pod")


def test_taken_down_with_a_pod_running_and_its_kubelet_frozen(name: str) -> None:
    cluster = LocalCluster.new(Settings(name=name, nodes=1), owned=True)
    cluster.up()
    run_a_pod(cluster)
    cluster.nodes[0].freeze_kubelet()
    assert remains(cluster)
    cluster.down()
    assert remains(cluster) == []


def test_the_next_start_clears_what_a_killed_run_left(name: str) -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", STARTS_ONE_AND_WAITS, name],
        cwd=PROJECT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert run.stdout is not None
    assert run.stdout.readline() == b"up\n"
    cluster = LocalCluster.find(name)
    run_a_pod(cluster)
    with all_clusters():  # or another run that starts a cluster just now would clear this one
        run.kill()
        run.communicate()
        assert remains(cluster)
    LocalCluster.new(Settings(name=f"{name}-b"), owned=True).down()
    assert remains(cluster) == []


def test_a_start_that_fails_says_why_and_leaves_nothing(name: str) -> None:
    cluster = LocalCluster.new(Settings(name=name, nodes=1), owned=True)
    taken = socket.create_server((cluster.nodes[0].name, cluster.settings.api_port))
    with taken, pytest.raises(ClusterError, match=r"kube-apiserver ended: .*address already in use"):
        cluster.up()
    assert remains(cluster) == []


def test_two_clusters_of_one_name_are_refused(name: str) -> None:
    cluster = LocalCluster.new(Settings(name=name), owned=True)
    with pytest.raises(ClusterError, match=f"'{name}' exists"):
        LocalCluster.new(Settings(name=name), owned=True)
    cluster.down()
