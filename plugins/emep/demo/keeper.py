"""Starts the demo's processes, and ends all of them when its own parent is gone.

Run as ``python -m emep.demo.keeper``: a line of JSON on stdin starts a process, a line on stdout reports a
start or an end, and the end of stdin (the parent closed it, or was killed) stops everything. The keeper is
the subreaper of all that it starts, so that it also finds engines that left their agent's process group. It
uses only the standard library, so that it starts at once.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PATIENCE = 8.0
"""Seconds between SIGTERM and SIGKILL."""
LAST_PATIENCE = 30.0
"""Seconds for killed processes to be gone; a busy machine may take long."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def _prctl(option: int, value: int) -> bool:
    """Linux's prctl; False elsewhere."""
    if not sys.platform.startswith("linux"):
        return False
    return bool(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0)


def descendants(root: int) -> list[int]:
    """Process ids below ``root``, children first; empty where there is no /proc."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    found, queue = [], [root]
    while queue:
        children = parents.get(queue.pop(0), [])
        found += children
        queue += children
    return found


class Keeper:
    """Starts and ends processes; every one is the leader of a session of its own."""

    def __init__(self) -> None:
        self.children: dict[int, tuple[str, subprocess.Popen[bytes]]] = {}
        self.alone = not _prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def start(self, order: dict[str, Any]) -> None:
        """``{"name", "argv", "env", "cwd", "log", "nice"}``; the output is appended to the log."""
        niceness, own = int(order.get("nice", 0)), os.getpid()

        def before() -> None:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != own:  # The keeper died between fork and here.
                os._exit(1)
            os.nice(niceness)

        with open(order["log"], "ab") as log:
            try:
                process = subprocess.Popen(
                    order["argv"],
                    env=order["env"],
                    cwd=order["cwd"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=before,  # noqa: PLW1509 - a single thread
                )
            except OSError as error:
                self.say(event="exited", name=order["name"], code=127, error=str(error))
                return
        self.children[process.pid] = (order["name"], process)
        self.say(event="started", name=order["name"], pid=process.pid)

    def reap(self) -> None:
        """Report processes that have ended; adopted orphans are reaped silently."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if (child := self.children.pop(pid, None)) is not None:
                name, process = child
                process.returncode = os.waitstatus_to_exitcode(status)
                self.say(event="exited", name=name, pid=pid, code=process.returncode)

    def stop_all(self) -> None:
        """Ask every process group to end, wait, then kill whatever is left of it, as long as something is."""
        self._signal_groups(signal.SIGTERM)
        until = time.monotonic() + PATIENCE
        while self.children and time.monotonic() < until:
            time.sleep(0.05)
            self.reap()
        self._signal_groups(signal.SIGKILL)
        until = time.monotonic() + LAST_PATIENCE
        while time.monotonic() < until:
            rest = descendants(os.getpid())
            for pid in rest:
                _send(pid, signal.SIGKILL)
            time.sleep(0.02)
            self.reap()
            if not rest and not self.children:
                return

    def _signal_groups(self, number: int) -> None:
        for pid in list(self.children):
            try:
                os.killpg(pid, number)
            except (ProcessLookupError, PermissionError):
                continue

    @staticmethod
    def say(**event: Any) -> None:
        """One line of JSON for the parent, if it still listens."""
        try:
            print(json.dumps(event), flush=True)  # noqa: T201
        except (BrokenPipeError, ValueError):
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def main() -> int:
    """Serve orders until stdin ends or a signal comes, then stop everything."""
    keeper = Keeper()
    stopping = [False]

    def stop(number: int, frame: object) -> None:
        stopping[0] = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    selector = selectors.DefaultSelector()
    selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
    rest = b""
    while not stopping[0]:
        if selector.select(timeout=0.25):
            data = os.read(sys.stdin.fileno(), 1 << 16)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                keeper.start(json.loads(line))
        keeper.reap()
    keeper.stop_all()
    return 0


if __name__ == "__main__":
    sys.exit(main())
