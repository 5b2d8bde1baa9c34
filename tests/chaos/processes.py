"""The processes of a chaos run: found by a mark in their environment, told apart, killed, frozen, reaped."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from emep.agent.process import ProcessIdentity, boot_id, read_stat

MARK = "CHAOS_FOLDER"
"""Variable that every process of a run has; its value is the run's folder."""
NODE = "CHAOS_NODE"
_KINDS = (
    ("wrapper.py", "wrapper"),
    ("engines.supervisor.child", "engine"),
    ("emep-engine", "supervisor"),
    ("--state-dir", "agent"),
    ("tests.builders.emep_server", "api-server"),
)
"""A word of the command line, and what the process is; the first that fits."""


@dataclass(frozen=True)
class Found:
    """A process of the run."""

    identity: ProcessIdentity
    kind: str
    node: str
    words: str
    only_if: Callable[[], bool] | None = None
    """Asked while it stands still, right before it is killed: whether it still is what it was chosen for."""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.identity.pid

    def send(self, number: signal.Signals) -> bool:
        """Send a signal to this very process; False if it is gone."""
        return self.identity.send(number)

    def kill(self) -> bool:
        """SIGKILL; False if it is gone, or no longer what it was chosen for (then it goes on)."""
        if self.only_if is None:
            return self.send(signal.SIGKILL)
        self.send(signal.SIGSTOP)
        while self.identity.alive() and (stat := read_stat(self.pid)) is not None and stat.state != "T":
            time.sleep(0.001)
        if self.only_if():
            return self.send(signal.SIGKILL)
        self.send(signal.SIGCONT)
        return False


def find(folder: Path, sessions: Collection[int] = ()) -> Iterator[Found]:
    """Every process that runs for the run in ``folder``, except this one.

    ``sessions``: of the run's services; a program that writes its title over its environment is known by its
    session alone.
    """
    mark, boot = f"{MARK}={folder}".encode(), boot_id()
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            variables = Path(entry.path, "environ").read_bytes().split(b"\0")
            stat = read_stat(int(entry.name))
            if stat is None or stat.state in "ZX" or (mark not in variables and stat.session not in sessions):
                continue
            command = Path(entry.path, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        node = next((v.decode()[len(NODE) + 1 :] for v in variables if v.startswith(f"{NODE}=".encode())), "")
        identity = ProcessIdentity(stat.pid, stat.start_ticks, boot)
        yield Found(identity, kind_of(command), node, command.strip()[:200])


def children(pid: int) -> list[int]:
    """Its children that live; none where it is gone."""
    found: list[int] = []
    with suppress(OSError):
        for task in os.scandir(f"/proc/{pid}/task"):
            found += map(int, Path(task.path, "children").read_text().split())
    return [child for child in found if (stat := read_stat(child)) is not None and stat.state not in "ZX"]


def kind_of(command: str) -> str:
    """What a process is, by its command line."""
    return next((kind for word, kind in _KINDS if word in command), "other")


def kill_all(folder: Path, sessions: Collection[int] = ()) -> list[str]:
    """SIGKILL whatever is left of a run; what that was, in words."""
    seen: list[str] = []
    for _ in range(50):
        left = list(find(folder, sessions))
        if not left:
            break
        for process in left:
            if process.send(signal.SIGKILL):
                seen.append(f"{process.kind} (pid {process.pid}): {process.words}")
    return seen


def become_subreaper() -> None:
    """Have orphans of the run become this process's children, so that none stays a zombie for ever."""
    import ctypes

    pr_set_child_subreaper = 36
    ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)


def reap(own: set[int]) -> None:
    """Collect orphans that have ended, but not the ``own`` children whose ends somebody waits for."""
    with suppress(OSError):
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        for child in {int(pid) for pid in children} - own:
            with suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)
