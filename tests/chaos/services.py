"""What a service manager does: starts the run's long-lived processes, and starts them again when they die."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Service:
    """One long-lived process, and how long it takes to be ready."""

    name: str
    kind: str
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    log: Path
    ready: Callable[[Service], bool] = lambda service: True
    group: bool = False
    """Whatever is left of its process group goes with it, as a service manager sees to."""
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    """Of the present process, seconds of the monotonic clock."""
    started_wall: float = 0.0
    """The same, seconds since 1970."""
    log_start: int = 0
    """Where the present process's words begin in the log, in bytes."""
    starting: bool = False
    start_up: float = 0.0
    """Seconds from start to ready, at its last start."""
    starts: int = 0

    def start(self) -> None:
        """Start it; ``ready`` is asked later."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.clear_group()
        self.log_start = self.log.stat().st_size if self.log.exists() else 0
        self.started_wall = time.time()
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                list(self.argv),
                cwd=self.cwd,
                env=dict(self.env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.started_at, self.starting, self.starts = time.monotonic(), True, self.starts + 1

    def said(self) -> str:
        """What the present process has said."""
        with self.log.open("rb") as file:
            file.seek(self.log_start)
            return file.read().decode(errors="replace")

    def look(self) -> None:
        """Note that it has become ready, and how long that took."""
        if self.starting and self.is_alive() and self.ready(self):
            self.starting = False
            self.start_up = time.monotonic() - self.started_at

    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self.process is not None and self.process.poll() is None

    def may_be_killed(self, gap: float) -> bool:
        """Whether it has run for ``gap`` times its start-up since that was over."""
        if self.starting or not self.is_alive():
            return False
        return time.monotonic() - self.started_at > (1 + gap) * self.start_up

    def clear_group(self) -> None:
        """SIGKILL for what the last process has left in its group."""
        if self.group and self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        if self.is_alive() and self.process is not None:
            self.process.send_signal(number)

    def end(self, patience: float) -> int | None:
        """Wait for its end, then SIGKILL; its exit status."""
        if self.process is None:
            return None
        try:
            return self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            self.clear_group()


@dataclass
class Services:
    """All services of a run."""

    folder: Path
    all: dict[str, Service] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)
    """Those that stay down for now."""
    sessions: set[int] = field(default_factory=set)
    """Every session that a service of this run has led."""

    def add(self, service: Service) -> Service:
        """Start a service and keep it running from now on."""
        self.all[service.name] = service
        self._start(service)
        return service

    def _start(self, service: Service) -> None:
        service.start()
        if service.process is not None:
            self.sessions.add(service.process.pid)

    def tend(self) -> None:
        """Start what has died, note what has become ready."""
        for service in self.all.values():
            if service.name not in self.down and not service.is_alive():
                self._start(service)
            service.look()

    def wait_ready(self, names: Sequence[str] = (), patience: float = 240.0) -> None:
        """Wait until these (or all) are ready. Raises RuntimeError with the log of one that is not."""
        wanted = [self.all[name] for name in (names or list(self.all))]
        until = time.monotonic() + patience
        while any(service.starting for service in wanted):
            for service in wanted:
                service.look()
                if service.starting and (time.monotonic() > until or not service.is_alive()):
                    raise RuntimeError(
                        f"{service.name} did not start:\n{service.log.read_text(errors='replace')[-3000:]}"
                    )
            time.sleep(0.1)

    def own(self) -> set[int]:
        """Process ids of the services."""
        return {service.process.pid for service in self.all.values() if service.process is not None}

    def of_kind(self, kind: str) -> list[Service]:
        """Services of a kind."""
        return [service for service in self.all.values() if service.kind == kind]


def clean_environment() -> dict[str, str]:
    """This process's environment without anything of Airflow's or EMEP's, and with bytecode."""
    own = {key: value for key, value in os.environ.items() if not key.startswith(("AIRFLOW", "EMEP_"))}
    own.pop("PYTHONDONTWRITEBYTECODE", None)
    return own
