"""Agents as real processes against a real HTTP API."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.builders.small_api import SECRET, SmallApi

EMEP = str(Path(sys.executable).with_name("emep"))
STEPS_ENGINE = Path(__file__).parents[1] / "builders" / "steps_engine.py"


class AgentProcess:
    """One ``emep agent`` that a test can end in every way, and start again."""

    def __init__(self, api: SmallApi, folder: Path, options: tuple[str, ...]) -> None:
        self.folder, self.state_dir = folder, folder / "state"
        self.log = folder / "agent.log"
        self._command = [
            EMEP, "agent", "--name", "n1", "--state-dir", str(self.state_dir), "--api-url", api.url,
            "--engine-command", f"{sys.executable} {STEPS_ENGINE}", "--stop-grace", "60s", *options,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> AgentProcess:
        environment = {**os.environ, "EMEP_AGENT_TOKEN": SECRET, "SECRET_OF_THE_AGENT": "x"}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        return self

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def kill(self) -> None:
        """SIGKILL: the agent gets no chance to do anything."""
        self.process.kill()
        self.process.wait()

    def terminate(self, timeout: float = 300.0) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)

    def run_folder(self, allocation_id: str, epoch: int = 1) -> Path:
        return self.state_dir / "runs" / f"{allocation_id}.{epoch}"


@pytest.fixture
def api() -> Iterator[SmallApi]:
    server = SmallApi().start()
    yield server
    server.stop()


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="d-agent-", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def start_agent(api: SmallApi, folder: Path) -> Iterator[Callable[..., AgentProcess]]:
    """Start an agent and wait until it has registered; it and all it started are ended with the test."""
    agents: list[AgentProcess] = []

    def start(*options: str) -> AgentProcess:
        agent = AgentProcess(api, folder, options or ("--simulate", "4")).start()
        agents.append(agent)
        api.until(lambda: api.polls or agent.process.poll() is not None)
        assert agent.process.poll() is None, agent.log.read_text()
        return agent

    yield start
    for agent in agents:
        if agent.process.poll() is None:
            agent.process.send_signal(signal.SIGTERM)
            agent.process.send_signal(signal.SIGINT)
            agent.process.wait(300)
        end_everything_of(agent.state_dir)


def end_everything_of(state_dir: Path) -> None:
    """Kill what an agent left behind (only where a test killed the agent itself)."""
    mark = str(state_dir).encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                mine = mark in (entry / "environ").read_bytes()
            except OSError:
                continue
            if mine:
                os.kill(int(entry.name), signal.SIGKILL)


EXITING = 0x4
"""The kernel's flag of a process that runs none of its own code any more."""


def gone(pid: int, timeout: float = 60.0) -> bool:
    """Wait until no process of that pid runs; a zombie does not, nor one that is just being taken apart."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return True
        if fields[0] in "ZX" or int(fields[6]) & EXITING:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)


def when_written(path: Path, timeout: float = 300.0) -> str:
    """Content of a file that a process is about to write (it renames it into place)."""
    deadline = time.monotonic() + timeout
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} was not written"
        time.sleep(0.02)
    return path.read_text()
