"""What the cluster takes from the system: etcd, containerd, runc, network plugins, a static busybox."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.cluster.binary import binary_path, go_program
from tests.cluster.settings import CannotBeHad, CannotPrepare

NETWORK_PLUGINS = Path("/usr/lib/cni")
_SEARCH = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"
_PROGRAMS = {
    "etcd": "etcd-server",
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "busybox": "busybox-static",
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
}


def program(name: str) -> str:
    """The path of a system program. Raises CannotBeHad if it is not installed."""
    path = shutil.which(name, path=_SEARCH)
    if path is None:
        raise CannotBeHad(
            f"No Kubernetes for the tests: `{name}` (package {_PROGRAMS.get(name, name)}) is missing."
        )
    return path


def _missing() -> list[str]:
    packages = {package for name, package in _PROGRAMS.items() if not shutil.which(name, path=_SEARCH)}
    if not (NETWORK_PLUGINS / "bridge").exists():
        packages.add("containernetworking-plugins")
    return sorted(packages)


def why_not() -> str | None:
    """One sentence why this machine cannot run a cluster of its own, or None if it can."""
    if os.geteuid() != 0:
        return "No Kubernetes for the tests: kubelets need root; EMEP_TEST_KUBECONFIG names another cluster."
    if go_program() is None and not binary_path().exists():
        return "No Kubernetes for the tests: it is built with Go, and no `go` was found."
    missing = _missing()
    if missing and shutil.which("apt-get") is None:
        return f"No Kubernetes for the tests: {', '.join(missing)} missing, and there is no apt-get here."
    return None


def install() -> None:
    """Installs the packages that are missing. Raises CannotBeHad or, if apt fails, CannotPrepare."""
    reason = why_not()
    if reason:
        raise CannotBeHad(reason)
    missing = _missing()
    if not missing:
        return
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", *missing]):
        done = subprocess.run(
            ["apt-get", "-qq", *command], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            last = " / ".join(done.stderr.splitlines()[-3:])
            raise CannotPrepare(f"apt-get {command[0]} for {', '.join(missing)} failed: {last}")
