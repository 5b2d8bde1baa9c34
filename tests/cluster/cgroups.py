"""A control group of its own for each kubelet: two kubelets under one root would sweep each other's pods.

Works with cgroup v1 (one hierarchy a controller, each with a folder) and v2 (one hierarchy, whose controllers
must be handed down first).
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tests.cluster.settings import CannotBeHad

ROOT = Path("/sys/fs/cgroup")
_NEEDED = ("cpu", "cpuset", "memory", "pids")


def is_v2(root: Path = ROOT) -> bool:
    """Whether the machine has the one hierarchy of cgroup v2."""
    return (root / "cgroup.controllers").exists()


def hierarchies(root: Path = ROOT) -> list[Path]:
    """The folders in which a group has to be made."""
    if is_v2(root):
        return [root]
    return sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.is_symlink())


def create(name: str, root: Path = ROOT) -> None:
    """Makes the group everywhere. Raises CannotBeHad if v2 does not hand its controllers down."""
    if is_v2(root):
        _hand_down(root)
        (root / name).mkdir(exist_ok=True)
        _hand_down(root / name)
        return
    for hierarchy in hierarchies(root):
        group = hierarchy / name
        group.mkdir(exist_ok=True)
        # A cpuset is born empty, and a process cannot enter one that has no CPU or memory.
        for setting in ("cpuset.cpus", "cpuset.mems"):
            if (group / setting).exists():
                (group / setting).write_text((hierarchy / setting).read_text())


def _hand_down(group: Path) -> None:
    available = (group / "cgroup.controllers").read_text().split()
    missing = [controller for controller in _NEEDED if controller not in available]
    if missing:
        raise CannotBeHad(
            f"No Kubernetes for the tests: {group} has no {', '.join(missing)} controller to hand down."
        )
    try:
        (group / "cgroup.subtree_control").write_text(" ".join(f"+{controller}" for controller in available))
    except OSError as error:
        raise CannotBeHad(
            f"No Kubernetes for the tests: {group} does not hand its controllers down ({error.strerror}); "
            "in a container, move its processes to a child group first."
        ) from error


def _groups(name: str, root: Path) -> list[Path]:
    """The group and all below it, in every hierarchy, deepest first."""
    found = []
    for hierarchy in hierarchies(root):
        for folder, _, _ in os.walk(hierarchy / name, topdown=False):
            found.append(Path(folder))
    return found


def remove(name: str, root: Path = ROOT, timeout_s: float = 10) -> list[Path]:
    """Kills what still runs in the group, removes it, and returns what could not be removed in time."""
    if not name:
        raise ValueError("a group's name is needed: without one, this would be the whole machine")
    deadline = time.monotonic() + timeout_s
    while groups := _groups(name, root):
        for group in groups:
            _kill(group)
            try:
                group.rmdir()
            except OSError:
                continue  # not empty yet: its processes are on their way out
        if time.monotonic() > deadline:
            return _groups(name, root)
        time.sleep(0.05)
    return []


def _kill(group: Path) -> None:
    try:
        members = (group / "cgroup.procs").read_text().split()
    except OSError:
        return
    for pid in members:
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            continue
