"""A Kubernetes on this machine: etcd, API server, controller manager, scheduler, real nodes; all on loopback.

Clusters run side by side, each in a folder of `clusters_folder()`. What a cluster started is recorded
there, so that `down` needs the folder only, and the next start clears away what a killed test run has left
behind.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster import access, binary, images, packages
from tests.cluster.control_plane import ControlPlane
from tests.cluster.node import Node
from tests.cluster.processes import Process, Register, kill_all, this_process
from tests.cluster.settings import ClusterError, Settings, cache_folder, clusters_folder, node_address
from tests.cluster.waiting import until

if TYPE_CHECKING:
    from kubernetes.client import CoreV1Api


def prepare() -> tuple[Path, list[Path]]:
    """Packages, binary (minutes the first time) and images; one process at a time, the others wait for it.

    Raises CannotBeHad, CannotPrepare.
    """
    cache_folder().mkdir(parents=True, exist_ok=True)
    with open(cache_folder() / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        packages.install()
        return binary.build(), images.write_images()


@contextmanager
def all_clusters() -> Iterator[Path]:
    """The folder of clusters, for one at a time to give out places in."""
    folder = clusters_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


class LocalCluster:
    """One cluster. `up` and `down` may be called by different processes."""

    def __init__(self, settings: Settings, slot: int, owner: Process | None) -> None:
        self.settings = settings
        self.slot = slot
        self.owner = owner
        """The test run that the cluster belongs to; None: it stays until somebody takes it down."""
        self.folder = clusters_folder() / settings.name
        self.kubeconfig = self.folder / "admin.kubeconfig"
        self.register = Register(self.folder, settings.niceness)
        self.control_plane = ControlPlane(self.folder, slot, settings, self.register, binary.binary_path())
        self.nodes = [
            Node(self.folder, slot, number, node_address(slot, number), self.register)
            for number in range(1, settings.nodes + 1)
        ]

    # Life.

    @classmethod
    def new(cls, settings: Settings, owned: bool) -> LocalCluster:
        """A place for a cluster: its folder and its network. Raises ClusterError if the name is in use."""
        with all_clusters() as folder:
            for cluster in cls.existing():
                if cluster.owner and not cluster.owner.alive():
                    cluster._clear()
            taken = {cluster.slot for cluster in cls.existing()}
            if (folder / settings.name / "cluster.json").exists():
                raise ClusterError(
                    f"A cluster {settings.name!r} exists; take it down first, or name another."
                )
            slot = next(number for number in range(1, 255) if number not in taken)
            cluster = cls(settings, slot, this_process("owner") if owned else None)
            cluster.folder.mkdir(exist_ok=True)
            cluster.folder.chmod(0o700)
            cluster._remember()
        return cluster

    @classmethod
    def existing(cls) -> list[LocalCluster]:
        """Every cluster that has a folder, up or not."""
        found = []
        for file in sorted(clusters_folder().glob("*/cluster.json")):
            try:
                known = json.loads(file.read_text())
            except FileNotFoundError:  # another test run has just taken it down
                continue
            owner = Process(**known["owner"]) if known["owner"] else None
            found.append(cls(Settings(**known["settings"]), known["slot"], owner))
        return found

    @classmethod
    def find(cls, name: str) -> LocalCluster:
        """The cluster of that name. Raises ClusterError."""
        for cluster in cls.existing():
            if cluster.settings.name == name:
                return cluster
        raise ClusterError(f"There is no cluster {name!r}; `python -m tests.cluster up` starts one.")

    def up(self) -> None:
        """Starts everything and waits until each node is ready; whatever fails, nothing is left behind."""
        try:
            self._up()
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """Ends and removes everything. Raises ClusterError naming what could not be removed."""
        with all_clusters():
            self._clear()

    def _up(self) -> None:
        program, archives = prepare()
        self.control_plane.prepare()
        self.control_plane.start_api()
        for node in self.nodes:
            node.prepare(self.control_plane.server)
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(lambda node: node.start_runtime(archives), self.nodes))
        self.control_plane.wait_ready()
        self.control_plane.start_controllers()
        for node in self.nodes:
            node.start_kubelet(program)
        for node in self.nodes:
            self.wait_node(node.name, ready=True)
            self.set_gpus(node.name, self.settings.gpus)
        access.grant(self.kubeconfig, self.emep_kubeconfig, self.namespace)

    def _remember(self) -> None:
        known = {
            "slot": self.slot,
            "owner": asdict(self.owner) if self.owner else None,
            "settings": asdict(self.settings),
        }
        fresh = self.folder / "cluster.fresh"
        fresh.write_text(json.dumps(known))
        fresh.replace(self.folder / "cluster.json")

    def _clear(self) -> None:
        # Kubelets first, or they would start again what is killed; a holder takes its whole node with it.
        for kind in ("kubelet", "holder", ""):
            kill_all(process for process in self.register.running() if process.name.startswith(kind))
        left = [found for node in self.nodes for found in node.clean()]
        left += [f"process {process.name} ({process.pid})" for process in self.register.running()]
        for mount in self._mounts():
            subprocess.run(["umount", "--lazy", mount], check=False)
        left += [f"mount {mount}" for mount in self._mounts()]
        if left:
            raise ClusterError(f"Cluster {self.settings.name!r} is not quite gone: {', '.join(left)}.")
        shutil.rmtree(self.folder, ignore_errors=False)

    def _mounts(self) -> list[str]:
        lines = Path("/proc/self/mounts").read_text().splitlines()
        points = [line.split(" ")[1] for line in lines]
        return sorted((p for p in points if p.startswith(f"{self.folder}/")), reverse=True)

    # What tests ask of it.

    @cached_property
    def core(self) -> CoreV1Api:
        """The API with every right."""
        return access.core(self.kubeconfig)

    @property
    def emep_kubeconfig(self) -> Path:
        """The API with the rights of docker/kubernetes/rbac.yaml, as EMEP's service account."""
        return self.folder / "emep.kubeconfig"

    @property
    def namespace(self) -> str:
        """Where EMEP's account may run pods."""
        return access.NAMESPACE

    def node(self, name: str) -> Node:
        """The node of that name."""
        return next(node for node in self.nodes if node.name == name)

    def set_gpus(self, node: str, count: int) -> None:
        """How many GPUs a node shows."""
        access.set_gpus(self.core, node, count)

    def wait_node(self, name: str, ready: bool, timeout_s: float = 90) -> None:
        """Until a node's Ready condition is so ("unknown" is not ready)."""
        from kubernetes.client.exceptions import ApiException

        def as_wanted() -> bool:
            try:
                conditions = self.core.read_node(name).status.conditions or []
            except ApiException as error:
                if error.status != 404:
                    raise
                return False
            return ready == any(c.type == "Ready" and c.status == "True" for c in conditions)

        until(as_wanted, timeout_s, f"node {name} to be {'ready' if ready else 'not ready'}", every_s=0.1)

    def restart_api_server(self, grace_s: float = 0.0) -> None:
        """Ends the API server (at once without a grace), starts it again, waits until it answers."""
        self.control_plane.stop_api_server(grace_s)
        self.control_plane.start_api_server()
        self.control_plane.wait_ready()

    def start_kubelet(self, node: Node) -> None:
        """Starts a kubelet that was killed, and waits until it answers."""
        node.start_kubelet(binary.binary_path())
        node.wait_kubelet()

    def boot(self, node: Node) -> None:
        """Starts a node whose power was cut, and waits until its kubelet answers."""
        node.forget()
        node.start_runtime(images.write_images())
        self.start_kubelet(node)

    def kubectl(self, *arguments: str) -> int:
        """Runs kubectl with every right; returns its exit code."""
        command = [str(binary.binary_path()), "kubectl", *arguments]
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
        return subprocess.run(command, env=environment, check=False).returncode
