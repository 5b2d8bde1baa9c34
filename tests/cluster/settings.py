"""What a test cluster is made of, and where its files live."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
PAUSE_IMAGE = "localhost/emep-pause:1"
BUSYBOX_IMAGE = "localhost/emep-busybox:1"
HOST_ROOT_IMAGE = "localhost/emep-host-root:1"
GPU_RESOURCE = "nvidia.com/gpu"


class CannotBeHad(RuntimeError):
    """This machine cannot have a cluster; the message is one sentence that says why (tests skip with it)."""


class ClusterError(RuntimeError):
    """A cluster that this machine could have did not come up, or did not do what it was asked."""


def cache_folder() -> Path:
    """What is built once and kept: the binary and the images."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "emep"


def clusters_folder() -> Path:
    """One folder a cluster. Outside the home folder, because socket paths may have 107 characters only."""
    return Path(os.environ.get("EMEP_TEST_CLUSTERS", "/var/tmp/emep-clusters"))


class CannotPrepare(ClusterError):
    """Packages or the binary could not be made ready, as without a network."""


@dataclass(frozen=True)
class Settings:
    """One cluster. Clusters run side by side: each has a loopback network of its own, 127.77.slot.0/24."""

    name: str = "default"
    nodes: int = 2
    gpus: int = 8
    """GPUs that each node's status shows; there are no devices behind them."""
    api_port: int = 16443
    etcd_port: int = 12379
    node_grace_s: int = 20
    """A node without a sign of life for so long is NotReady (Kubernetes' default: 40)."""
    toleration_s: int = 5
    """Pods leave a node that is NotReady or unreachable after so long (Kubernetes' default: 300)."""
    niceness: int = 10

    def __post_init__(self) -> None:
        if not self.name.replace("-", "").isalnum() or len(self.name) > 24:
            raise ValueError(
                f"cluster name {self.name!r}: use at most 24 letters, digits and '-'; it names a folder."
            )
        if not 1 <= self.nodes <= 9:
            raise ValueError(f"nodes={self.nodes}: between 1 and 9.")
        if self.node_grace_s < 15:
            raise ValueError(f"node_grace_s={self.node_grace_s}: at least 15, kubelets report every 10 s.")


def node_address(slot: int, number: int) -> str:
    """The address of node `number` (from 1) of a cluster, which is its name too; the API is on node 1's."""
    return f"127.77.{slot}.{number}"
