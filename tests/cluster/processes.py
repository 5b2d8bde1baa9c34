"""Processes that outlive whoever started them, and can be found and stopped by anybody later.

Each has a process group of its own and a line in the cluster's `processes.jsonl`: its name, its pid, and
when the kernel says that it started, so that a pid that has been given to another process since is never
signalled.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """The leader of a process group."""

    name: str
    pid: int
    started: int
    """Ticks since the machine's start, field 22 of /proc/PID/stat."""

    def alive(self) -> bool:
        """False too if the pid belongs to another process by now, or is a zombie."""
        return _start_time(self.pid) == self.started

    def send(self, number: signal.Signals) -> None:
        """Signals the whole group, if it still is this one."""
        if self.alive():
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def wait(self, timeout_s: float) -> bool:
        """Whether it was gone in time."""
        deadline = time.monotonic() + timeout_s
        while self.alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def stop(self, grace_s: float = 0.0) -> None:
        """SIGTERM and, after the grace, SIGKILL; a group that SIGSTOP stopped is killed too."""
        if grace_s:
            self.send(signal.SIGTERM)
            self.send(signal.SIGCONT)
            if self.wait(grace_s):
                return
        self.send(signal.SIGKILL)
        self.wait(10)


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the name: state, parent, ...; None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text[text.rindex(")") + 2 :].split()


def _start_time(pid: int) -> int | None:
    fields = _stat(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def this_process(name: str) -> Process:
    """The caller as a record that others can look up."""
    return Process(name, os.getpid(), _start_time(os.getpid()) or 0)


def child_of(pid: int, timeout_s: float = 10) -> int:
    """The pid of a process's one child, once it has one. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        for entry in os.listdir("/proc"):
            if entry.isdigit() and (fields := _stat(int(entry))) and int(fields[1]) == pid:
                return int(entry)
        time.sleep(0.02)
    raise TimeoutError(f"process {pid} has no child after {timeout_s} s")


class Register:
    """The processes of one cluster: starts them and remembers them on disk."""

    def __init__(self, folder: Path, niceness: int) -> None:
        self._file = folder / "processes.jsonl"
        self._logs = folder / "logs"
        self._niceness = niceness

    def log(self, name: str) -> Path:
        """Where a process's output goes."""
        return self._logs / f"{name}.log"

    def start(self, name: str, command: Sequence[str], environment: dict[str, str] | None = None) -> Process:
        """Starts a process in a session of its own; its output is added to its log."""
        self._logs.mkdir(parents=True, exist_ok=True)
        with self.log(name).open("ab") as log, open(os.devnull) as nothing:
            files = [(nothing, 0), (log, 1), (log, 2)]
            pid = os.posix_spawnp(
                "nice",
                ["nice", "-n", str(self._niceness), *command],
                {**os.environ, **(environment or {})},
                file_actions=[(os.POSIX_SPAWN_DUP2, file.fileno(), number) for file, number in files],
                setsid=True,
            )
        process = Process(name, pid, _start_time(pid) or 0)
        with self._file.open("a") as register:
            register.write(json.dumps(asdict(process)) + "\n")
        return process

    def all(self) -> list[Process]:
        """Every process ever started for the cluster, the latest last."""
        if not self._file.exists():
            return []
        return [Process(**json.loads(line)) for line in self._file.read_text().splitlines()]

    def running(self) -> list[Process]:
        """Those that are alive."""
        return [process for process in self.all() if process.alive()]

    def latest(self, name: str) -> Process | None:
        """The living process of that name."""
        return next((process for process in reversed(self.running()) if process.name == name), None)

    def last_words(self, name: str, lines: int = 4) -> str:
        """The end of a process's log, for an error message."""
        log = self.log(name)
        return " / ".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else ""


def kill_all(processes: Iterable[Process]) -> None:
    """SIGKILL to all at once, then wait until they are gone."""
    found = list(processes)
    for process in found:
        process.send(signal.SIGKILL)
    for process in found:
        process.wait(10)
