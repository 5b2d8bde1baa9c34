"""Ports for test servers that run side by side.

A port that is free when a test asks may be taken before its server listens. So each port is also reserved by
a file lock, which other test processes on this machine respect, and which the kernel drops with the process.
"""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

SERVERS = (18300, 20299)
"""Below the kernel's own range, so no outgoing connection takes one of them."""
_reserved: dict[int, int] = {}
"""The descriptor that locks each port of this process."""


def reserve_port(first: int = SERVERS[0], last: int = SERVERS[1]) -> int:
    """A port of the range that is free, and this process's until it ends. Raises RuntimeError."""
    folder = Path(tempfile.gettempdir()) / f"emep-test-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    for port in range(first, last + 1):
        if port in _reserved:
            continue
        descriptor = os.open(folder / str(port), os.O_RDWR | os.O_CREAT, 0o600)
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _bind(port)
            _reserved[port] = descriptor
            return port
        os.close(descriptor)
    raise RuntimeError(f"no port of {first}..{last} is free")


def _bind(port: int) -> None:
    """Raises OSError if a process listens on the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
