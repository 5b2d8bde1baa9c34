"""The Kubernetes programs, built once from `tests/cluster/kubernetes` and kept outside the tree.

A first build takes 7 to 10 minutes on two cores and leaves about 3 GB in Go's build cache; after a change
of the program alone, seconds.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.cluster.settings import CannotBeHad, CannotPrepare, cache_folder

SOURCES = Path(__file__).with_name("kubernetes")
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")


def kubernetes_version() -> str:
    """The version in go.mod, such as "v1.34.4"."""
    found = re.search(r"k8s\.io/kubernetes (v[\d.]+)", (SOURCES / "go.mod").read_text())
    if found is None:
        raise CannotPrepare(f"{SOURCES / 'go.mod'} names no version of k8s.io/kubernetes.")
    return found.group(1)


def binary_path() -> Path:
    """Where the binary of these sources is, or will be."""
    digest = hashlib.sha256()
    for name in ("go.mod", "go.sum", "main.go"):
        digest.update((SOURCES / name).read_bytes())
    return cache_folder() / "kubernetes" / digest.hexdigest()[:16] / "kubernetes"


def go_program() -> str | None:
    """The Go toolchain, also where it is installed but not in PATH."""
    return shutil.which("go") or shutil.which("go", path="/usr/local/go/bin:/usr/lib/go/bin")


def build() -> Path:
    """The binary; built now if it is not there. Of several builders one builds and the others wait.

    Raises CannotBeHad without Go, CannotPrepare with the compiler's last lines if the build fails.
    """
    target = binary_path()
    if target.exists():
        return target
    go = go_program()
    if go is None:
        raise CannotBeHad("No Kubernetes for the tests: it is built with Go, and no `go` was found.")
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            _compile(go, target)
    return target


def _compile(go: str, target: Path) -> None:
    version = kubernetes_version()
    major, minor = version.lstrip("v").split(".")[:2]
    package = "k8s.io/component-base/version"
    # Kubernetes compares versions of its parts at run time, so the build has to state its own.
    stamp = f"-X {package}.gitVersion={version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        fresh = Path(scratch) / target.name
        command = [go, "build", "-trimpath", "-buildvcs=false", "-ldflags", f"-s -w {stamp}"]
        done = subprocess.run(
            [*command, "-o", str(fresh), "."],
            cwd=SOURCES,
            env={**os.environ, "CGO_ENABLED": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise CannotPrepare("Kubernetes was not built: " + " / ".join(done.stderr.splitlines()[-5:]))
        fresh.rename(target)
