"""Processes as Linux knows them: an identity that survives pid reuse, waiting for strangers, ending groups.

Everything here reads ``/proc``. An agent that was restarted after a kill is not the parent of the processes
that it adopts, so nothing relies on that.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_PROC = Path("/proc")
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Stat:
    """The fields of ``/proc/PID/stat`` that are used here."""

    pid: int
    state: str
    parent: int
    session: int
    start_ticks: int
    cpu_seconds: float
    resident_bytes: int


def read_stat(pid: int) -> Stat | None:
    """What ``/proc`` says about a process; None once it is gone (a zombie is still there)."""
    try:
        text = _read(f"/proc/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The name in parentheses may hold anything, so the fields are counted from its end.
    fields = text[text.rindex(b")") + 2 :].split()
    return Stat(
        pid=pid,
        state=fields[0].decode("ascii"),
        parent=int(fields[1]),
        session=int(fields[3]),
        start_ticks=int(fields[19]),
        cpu_seconds=(int(fields[11]) + int(fields[12])) / _CLOCK_TICKS,
        resident_bytes=int(fields[21]) * _PAGE,
    )


def _read(path: str) -> bytes:
    """A whole file of ``/proc``. Hundreds are read while a GPU waits for its next run."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(descriptor, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def boot_id() -> str:
    """The running kernel's id: start ticks count from its boot, so they mean nothing after the next."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


@dataclass(frozen=True)
class ProcessIdentity:
    """Identifies a process for good; a pid alone may belong to another process later."""

    pid: int
    start_ticks: int
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        """The identity of a process that runs. Raises ProcessLookupError."""
        stat = read_stat(pid)
        if stat is None:
            raise ProcessLookupError(f"no process {pid}")
        return cls(pid, stat.start_ticks, boot_id())

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> ProcessIdentity:
        """From what ``document`` wrote. Raises KeyError or ValueError for anything else."""
        return cls(int(document["pid"]), int(document["start_ticks"]), str(document["boot_id"]))

    def document(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    def alive(self) -> bool:
        """Whether this very process still runs; a zombie does not."""
        stat = read_stat(self.pid)
        if stat is None or stat.state in "ZX" or stat.start_ticks != self.start_ticks:
            return False
        return self.boot_id == boot_id()

    def send(self, number: signal.Signals) -> bool:
        """Send a signal to this very process and no later owner of its pid; False if it is gone."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except OSError:
            return False
        try:
            if not self.alive():
                return False
            signal.pidfd_send_signal(descriptor, number)
        except (ProcessLookupError, PermissionError):
            return False
        finally:
            os.close(descriptor)
        return True

    async def wait(self) -> None:
        """Return once the process has ended; works for processes that are not children."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        try:
            if not self.alive():
                return
            loop.add_reader(descriptor, ended.set)
            await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)


def all_processes() -> Iterator[Stat]:
    """Every process that runs now; zombies are left out."""
    for entry in os.scandir(_PROC):
        if entry.name.isdigit():
            stat = read_stat(int(entry.name))
            if stat is not None and stat.state not in "ZX":
                yield stat


def _environment_has(pid: int, marks: Mapping[str, str]) -> bool:
    try:
        text = _read(f"/proc/{pid}/environ")
    except OSError:
        return False
    wanted = [f"{name}={value}".encode() for name, value in marks.items()]
    if not all(one in text for one in wanted):
        return False
    variables = text.split(b"\0")
    return all(one in variables for one in wanted)


def members(session: int | None, marks: Mapping[str, str]) -> list[ProcessIdentity]:
    """Processes of one piece of work: those in its session, and those that were started with its ``marks``.

    An engine may open a session of its own, but its environment keeps saying whose work it does.
    """
    boot, own = boot_id(), os.getpid()
    return [
        ProcessIdentity(stat.pid, stat.start_ticks, boot)
        for stat in all_processes()
        if stat.pid != own
        and ((session is not None and stat.session == session) or _environment_has(stat.pid, marks))
    ]


async def kill_members(session: int | None, marks: Mapping[str, str], patience: float = 10.0) -> bool:
    """SIGKILL until no process of the work is left; False if one outlives ``patience`` seconds.

    Killing is repeated because a process may have forked in between. One that hangs in a driver call
    cannot be killed at once; its GPU must then not be offered to anyone.
    """
    deadline = time.monotonic() + patience
    pause = 0.01
    while left := await asyncio.to_thread(members, session, marks):
        for process in left:
            process.send(signal.SIGKILL)
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.5)
    return True


def usage_of_sessions(sessions: set[int]) -> dict[int, tuple[float, int]]:
    """(CPU seconds so far, resident bytes) of the processes in each session that run now."""
    found: dict[int, tuple[float, int]] = dict.fromkeys(sessions, (0.0, 0))
    for stat in all_processes():
        if stat.session in sessions:
            seconds, size = found[stat.session]
            found[stat.session] = (seconds + stat.cpu_seconds, size + stat.resident_bytes)
    return found
