"""The first process of a node's namespaces; run as `unshare --mount --pid --fork ... python holder.py NODE`.

A node has a mount and a process namespace: what kubelet, containerd and containers mount is seen by them
alone, and when this process is killed the kernel ends everything of the node, however it was started, and
unmounts it. It does nothing after its mounts but to let the kernel reap orphans, so it imports nothing of
the project.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

# The kubelet insists on these values. A file bound over each shows them to it and leaves the host's alone.
_TUNABLES = {
    "vm/overcommit_memory": "1",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "net/ipv4/ip_forward": "1",
}
# Paths that are the same for every kubelet and containerd; each node gets folders of its own there.
_PRIVATE = (
    "/run/containerd",
    "/run/netns",
    "/var/lib/cni",
    "/var/lib/kubelet",
    "/var/log/containers",
    "/var/log/pods",
)


def _bind(source: Path, target: Path) -> None:
    subprocess.run(["mount", "--bind", str(source), str(target)], check=True)


def main() -> None:
    """Mounts, tells so by `NODE/held`, and waits to be killed."""
    node = Path(sys.argv[1])
    for name, value in _TUNABLES.items():
        shown = node / "tunables" / name
        shown.parent.mkdir(parents=True, exist_ok=True)
        shown.write_text(value + "\n")
        _bind(shown, Path("/proc/sys") / name)
    for path in _PRIVATE:
        own = node / "private" / path.lstrip("/")
        own.mkdir(parents=True, exist_ok=True)
        Path(path).mkdir(parents=True, exist_ok=True)
        _bind(own, Path(path))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the children that others leave behind
    (node / "held").touch()
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
