"""The cluster that tests run against, whoever started it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from tests.cluster import access, images
from tests.cluster.local import LocalCluster
from tests.cluster.settings import BUSYBOX_IMAGE, ClusterError

if TYPE_CHECKING:
    from kubernetes.client import CoreV1Api


@dataclass(frozen=True)
class Target:
    """A cluster with EMEP's account in it."""

    kubeconfig: Path
    """Every right that the tests need."""
    emep_kubeconfig: Path
    """EMEP's service account, with the rights of docker/kubernetes/rbac.yaml."""
    namespace: str
    """Where that account may run pods; the tests wipe it."""
    image: str
    """An image with a POSIX shell and the usual tools, which every node has or can pull."""
    host_root: bool
    """Whether the nodes see this machine's files, so that pods can run its Python and this project."""
    local: LocalCluster | None = None

    @cached_property
    def core(self) -> CoreV1Api:
        """The API with every right."""
        return access.core(self.kubeconfig)

    @cached_property
    def emep(self) -> CoreV1Api:
        """The API as EMEP's account."""
        return access.core(self.emep_kubeconfig)


def of_local(local: LocalCluster) -> Target:
    """A cluster of this machine."""
    return Target(local.kubeconfig, local.emep_kubeconfig, local.namespace, BUSYBOX_IMAGE, True, local)


def given(kubeconfig: Path) -> Target:
    """The cluster of a kubeconfig; in a foreign one the tests keep to the namespace `emep-test`."""
    if not kubeconfig.exists():
        raise ClusterError(f"EMEP_TEST_KUBECONFIG names {kubeconfig}, which does not exist.")
    for local in LocalCluster.existing():
        if local.kubeconfig == kubeconfig:
            return of_local(local)
    own = Path(tempfile.mkdtemp(prefix="emep-cluster-")) / "emep.kubeconfig"
    access.grant(kubeconfig, own, "emep-test")
    return Target(kubeconfig, own, "emep-test", os.environ.get("EMEP_TEST_IMAGE", "busybox:1.36"), False)


def kind_is_here() -> bool:
    """Whether `kind` is installed and a Docker daemon answers."""
    if shutil.which("kind") is None or shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0


@contextmanager
def kind(name: str, gpus: int = 8) -> Iterator[Target]:
    """A cluster of containers with two workers, removed afterwards. Raises ClusterError."""
    layout = {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "nodes": [{"role": "control-plane"}, *({"role": "worker"} for _ in range(2))],
    }
    folder = Path(tempfile.mkdtemp(prefix="emep-kind-"))
    (folder / "layout.yaml").write_text(yaml.safe_dump(layout))
    kubeconfig = folder / "admin.kubeconfig"
    try:
        _kind("create", "cluster", "--name", name, "--wait", "180s", f"--config={folder / 'layout.yaml'}",
              f"--kubeconfig={kubeconfig}")  # fmt: skip
        for archive in images.write_images():
            _kind("load", "image-archive", str(archive), "--name", name)
        api = access.core(kubeconfig)
        for node in api.list_node(label_selector="!node-role.kubernetes.io/control-plane").items:
            access.set_gpus(api, node.metadata.name, gpus)
        access.grant(kubeconfig, folder / "emep.kubeconfig", access.NAMESPACE)
        # A worker is a container with files of its own: pods find neither this Python nor the project there.
        yield Target(kubeconfig, folder / "emep.kubeconfig", access.NAMESPACE, BUSYBOX_IMAGE, False)
    finally:
        subprocess.run(["kind", "delete", "cluster", "--name", name], capture_output=True, check=False)
        shutil.rmtree(folder, ignore_errors=True)


def _kind(*arguments: str) -> None:
    done = subprocess.run(["kind", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"kind {arguments[0]} failed: {' / '.join(done.stderr.splitlines()[-3:])}")
