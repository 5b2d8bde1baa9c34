"""Pods for tests: what a pod needs to run the host's Python and this project without an image of them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.settings import BUSYBOX_IMAGE, GPU_RESOURCE, HOST_ROOT_IMAGE, PROJECT


@dataclass(frozen=True)
class Mount:
    """A folder of the host at the same path in the pod."""

    name: str
    path: str
    writable: bool = False


def host_root_mounts() -> list[Mount]:
    """The host's /usr and /etc, the interpreter, its environment and the project, all read-only."""
    found = [Mount("usr", "/usr"), Mount("etc", "/etc")]
    for name, path in {"python": sys.base_prefix, "environment": sys.prefix, "project": str(PROJECT)}.items():
        # Nothing twice: an environment in the project's folder comes with it.
        if not any(Path(path).is_relative_to(mount.path) for mount in found):
            found.append(Mount(name, path))
    outer = [m for m in found if not any(o != m and Path(m.path).is_relative_to(o.path) for o in found)]
    return outer


def volumes(mounts: list[Mount]) -> list[dict[str, Any]]:
    """The pod's `volumes`, as the API's JSON."""
    return [{"name": mount.name, "hostPath": {"path": mount.path, "type": "Directory"}} for mount in mounts]


def volume_mounts(mounts: list[Mount]) -> list[dict[str, Any]]:
    """The container's `volumeMounts`, as the API's JSON."""
    return [{"name": m.name, "mountPath": m.path, "readOnly": not m.writable} for m in mounts]


def python_environment() -> dict[str, str]:
    """Environment variables under which the host's Python finds the project in a pod."""
    return {
        "PYTHONPATH": f"{PROJECT / 'plugins'}:{PROJECT / 'include'}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": "/tmp",
    }


def pod(
    name: str,
    command: list[str],
    *,
    image: str = BUSYBOX_IMAGE,
    gpus: int = 0,
    node: str | None = None,
    grace_s: int = 5,
    mounts: list[Mount] | None = None,
    environment: dict[str, str] | None = None,
    host_network: bool = False,
) -> dict[str, Any]:
    """A pod of one container named `base`, as the API's JSON."""
    container: dict[str, Any] = {
        "name": "base",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        "env": [{"name": key, "value": value} for key, value in (environment or {}).items()],
        "volumeMounts": volume_mounts(mounts or []),
    }
    if gpus:
        container["resources"] = {"limits": {GPU_RESOURCE: str(gpus)}}
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": grace_s,
        "hostNetwork": host_network,
        "automountServiceAccountToken": False,
        "volumes": volumes(mounts or []),
        "containers": [container],
    }
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def python_pod(name: str, code: str, **options: Any) -> dict[str, Any]:
    """A pod that runs Python code on the host's interpreter, with the project importable."""
    command = [sys.executable, "-uc", code]
    mounts = host_root_mounts() + options.pop("mounts", [])
    environment = python_environment() | options.pop("environment", {})
    return pod(name, command, image=HOST_ROOT_IMAGE, mounts=mounts, environment=environment, **options)
