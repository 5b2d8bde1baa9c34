"""A node: containerd and kubelet in namespaces of their own, on a loopback address that names the node."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from tests.cluster import cgroups
from tests.cluster.certificates import by_certificate, write_kubeconfig
from tests.cluster.packages import NETWORK_PLUGINS, program
from tests.cluster.processes import Process, Register, child_of
from tests.cluster.settings import PAUSE_IMAGE, ClusterError
from tests.cluster.waiting import until


class Node:
    """A real node of a local cluster. `name` is what Kubernetes calls it."""

    def __init__(self, folder: Path, slot: int, number: int, address: str, register: Register) -> None:
        self.name = address
        self.folder = folder / f"node{number}"
        self.cgroup = f"emep-{slot}-{number}"
        self.bridge = f"emep{slot}-{number}"
        self._keys = folder / "keys"
        self._subnet = f"10.{244 + number % 10}.{slot}.0/24"
        self._number = number
        self._register = register

    # What tests do to a node.

    def freeze_kubelet(self) -> None:
        """SIGSTOP: to the cluster the node is dead, while its containers run on."""
        self._kubelet().send(signal.SIGSTOP)

    def thaw_kubelet(self) -> None:
        """SIGCONT."""
        self._kubelet().send(signal.SIGCONT)

    def kill_kubelet(self) -> None:
        """SIGKILL; the containers run on until a kubelet is started again."""
        self._kubelet().stop()

    def start_kubelet(self, binary: Path) -> None:
        """Starts the kubelet; a new one finds the pods that run and goes on with them."""
        if self._register.latest(f"kubelet{self._number}"):
            raise ClusterError(f"The kubelet of {self.name} runs already.")
        self._enter(
            f"kubelet{self._number}",
            [
                str(binary),
                "kubelet",
                f"--config={self.folder / 'kubelet.yaml'}",
                f"--kubeconfig={self.folder / 'kubeconfig'}",
                f"--hostname-override={self.name}",
                f"--root-dir={self.folder / 'kubelet'}",
                f"--cert-dir={self.folder / 'kubelet-keys'}",
                f"--node-labels=emep.test/node=node{self._number}",
            ],
        )

    def cut_power(self) -> None:
        """Kubelet, containerd and every container are gone at once; `LocalCluster.boot` starts it again."""
        for name in ("kubelet", "holder"):
            process = self._register.latest(f"{name}{self._number}")
            if process:
                process.stop()

    def processes_of(self, container: str) -> list[int]:
        """The machine's process ids of a container, by its id (with or without `containerd://`)."""
        wanted = container.removeprefix("containerd://")
        found: set[int] = set()
        for hierarchy in cgroups.hierarchies():
            for path in (hierarchy / self.cgroup).glob(f"**/{wanted}/**/cgroup.procs"):
                found.update(int(pid) for pid in path.read_text().split())
        return sorted(found)

    # Starting.

    def prepare(self, server: str) -> None:
        """Writes the node's files and makes its control group."""
        self.folder.mkdir(parents=True, exist_ok=True)
        cgroups.create(self.cgroup)
        write_kubeconfig(
            self.folder / "kubeconfig",
            server,
            self._keys,
            by_certificate(self._keys, f"kubelet{self._number}"),
            "default",
        )
        (self.folder / "network").mkdir(exist_ok=True)
        (self.folder / "network" / "10-bridge.conflist").write_text(json.dumps(self._network()))
        (self.folder / "kubelet.yaml").write_text(yaml.safe_dump(self._kubelet_configuration()))
        (self.folder / "containerd.toml").write_text(_toml(self._containerd_configuration()))
        # A kubelet that starts sets the resources that were patched onto its node back to 0, unless it finds
        # anything in this folder, where it would keep which devices it gave away.
        (self.folder / "kubelet" / "device-plugins" / "kept").mkdir(parents=True, exist_ok=True)

    def start_runtime(self, images: list[Path]) -> None:
        """Namespaces, containerd, and the images."""
        unshare = [program("unshare"), "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        holder = Path(__file__).with_name("holder.py")
        self._register.start(
            f"holder{self._number}",
            [*unshare, "--propagation", "private", sys.executable, str(holder), str(self.folder)],
        )
        with self._explained(f"holder{self._number}"):
            until((self.folder / "held").exists, 20, f"the namespaces of {self.name}")
        name = f"containerd{self._number}"
        self._enter(name, [program("containerd"), "--config", str(self.folder / "containerd.toml")])
        with self._explained(name):
            until(lambda: self._ctr("version").returncode == 0, 20, f"containerd of {self.name}")
        for image in images:
            done = self._ctr("--namespace", "k8s.io", "images", "import", str(image))
            if done.returncode:
                raise ClusterError(f"{image.name} was not imported on {self.name}: {done.stderr.strip()}")

    def wait_kubelet(self) -> None:
        """Until the kubelet answers."""

        def healthy() -> bool:
            connection = http.client.HTTPConnection(self.name, 10248, timeout=5)
            try:
                connection.request("GET", "/healthz")
                return connection.getresponse().status == 200
            except (OSError, http.client.HTTPException):
                return False
            finally:
                connection.close()

        with self._explained(f"kubelet{self._number}"):
            until(healthy, 60, f"the kubelet of {self.name}", every_s=0.1)

    def forget(self) -> None:
        """Removes what a machine loses with its power: /run, network, and the groups of its processes."""
        (self.folder / "held").unlink(missing_ok=True)
        for folder in (self.folder / "containerd" / "state", self.folder / "private" / "run"):
            shutil.rmtree(folder, ignore_errors=True)
        self.clean()
        cgroups.create(self.cgroup)

    def clean(self) -> list[str]:
        """Removes what outlives the processes; returns what is left, in words."""
        left = [f"control group {group}" for group in cgroups.remove(self.cgroup)]
        if Path("/sys/class/net", self.bridge).exists():
            subprocess.run([program("ip"), "link", "delete", self.bridge], check=True)
        return left

    # The parts.

    def _kubelet(self) -> Process:
        process = self._register.latest(f"kubelet{self._number}")
        if process is None:
            raise ClusterError(f"No kubelet runs on {self.name}.")
        return process

    def _enter(self, name: str, command: list[str]) -> None:
        """Starts a process in the node's namespaces."""
        holder = self._register.latest(f"holder{self._number}")
        if holder is None:
            raise ClusterError(f"{self.name} is not up.")
        inside = [program("nsenter"), "--target", str(child_of(holder.pid)), "--mount", "--pid", "--"]
        path = f"{NETWORK_PLUGINS}:{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
        self._register.start(name, [*inside, *command], {"PATH": path})

    def _ctr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        address = str(self.folder / "containerd.sock")
        return subprocess.run(
            [program("ctr"), "--address", address, *arguments], capture_output=True, text=True, check=False
        )

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        try:
            yield
        except ClusterError as error:
            raise ClusterError(f"{error} {self._register.last_words(name)}") from error

    def _network(self) -> dict[str, Any]:
        ipam = {
            "type": "host-local",
            "dataDir": str(self.folder / "addresses"),
            "ranges": [[{"subnet": self._subnet}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        bridge = {"type": "bridge", "bridge": self.bridge, "isGateway": True, "ipMasq": False, "ipam": ipam}
        return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}

    def _kubelet_configuration(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.name,
            "healthzBindAddress": self.name,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": str(self._keys / "ca.crt")},
            },
            # Only the API server holds a certificate for it.
            "authorization": {"mode": "AlwaysAllow"},
            "tlsCertFile": str(self._keys / "kubelet-server.crt"),
            "tlsPrivateKeyFile": str(self._keys / "kubelet-server.key"),
            "containerRuntimeEndpoint": f"unix://{self.folder / 'containerd.sock'}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.cgroup}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "oomScoreAdj": 0,
            "resolvConf": "",
            "volumePluginDir": str(self.folder / "volume-plugins"),
            # A developer's disk may be fuller than a server's ought to be.
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "1%",
                "imagefs.available": "1%",
            },
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "maxOpenFiles": 20000,
        }

    def _containerd_configuration(self) -> dict[str, Any]:
        run = {
            "runtime_type": "io.containerd.runc.v2",
            "options": {"BinaryName": program("runc"), "SystemdCgroup": False},
        }
        interface = {
            "sandbox_image": PAUSE_IMAGE,
            "disable_apparmor": True,
            "disable_hugetlb_controller": True,
            "tolerate_missing_hugetlb_controller": True,
            # Without CAP_SYS_RESOURCE no process may be shielded from the OOM killer.
            "restrict_oom_score_adj": True,
            "cni": {"bin_dir": str(NETWORK_PLUGINS), "conf_dir": str(self.folder / "network")},
            "containerd": {"snapshotter": self._snapshotter(), "runtimes": {"runc": run}},
        }
        return {
            "version": 2,
            "root": str(self.folder / "containerd" / "root"),
            "state": str(self.folder / "containerd" / "state"),
            "oom_score": 0,
            "grpc": {"address": str(self.folder / "containerd.sock")},
            "ttrpc": {"address": str(self.folder / "containerd.sock.ttrpc")},
            "plugins": {
                "io.containerd.grpc.v1.cri": interface,
                "io.containerd.internal.v1.opt": {"path": str(self.folder / "containerd" / "opt")},
            },
        }

    def _snapshotter(self) -> str:
        """Overlay where the file system can (not on an overlay, as in a container), else plain copies."""
        probe = self.folder / "probe"
        for part in ("lower", "upper", "work", "merged"):
            (probe / part).mkdir(parents=True, exist_ok=True)
        options = f"lowerdir={probe}/lower,upperdir={probe}/upper,workdir={probe}/work"
        mount = f"mount -t overlay overlay -o {options} {probe}/merged"
        done = subprocess.run(
            [program("unshare"), "--mount", "sh", "-c", mount], capture_output=True, check=False
        )
        return "native" if done.returncode else "overlayfs"


def _toml(document: dict[str, Any], path: str = "") -> str:
    """A nested dictionary of strings, numbers and truth values as TOML."""
    own, below = [], []
    for key, value in document.items():
        if isinstance(value, dict):
            name = key if re.fullmatch(r"[\w-]+", key) else json.dumps(key)
            inner = f"{path}.{name}".lstrip(".")
            below.append(f"[{inner}]\n{_toml(value, inner)}")
        else:
            own.append(f"{key} = {json.dumps(value)}\n")
    return "".join(own + below)
