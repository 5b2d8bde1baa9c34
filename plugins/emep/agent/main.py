"""The agent's process: one per state folder, from its settings to its exit status."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TextIO

from emep.agent.folders import RunFolders
from emep.agent.service import Agent
from emep.agent.settings import AgentSettings, AgentStartError
from emep.agent.telemetry import TelemetryError, open_telemetry

FAULTS_FILE = "simulated-faults.json"


def run_agent(settings: AgentSettings) -> int:
    """Run the agent until SIGTERM or SIGINT (a second one: kill what runs at once). Returns 0.

    Raises AgentStartError with one sentence where it cannot start.
    """
    _check_platform()
    lock = _lock_state_dir(settings.state_dir)
    if settings.run_as is not None:
        settings.run_as.check_reach(settings.state_dir)
    try:
        telemetry = open_telemetry(
            settings.name,
            simulate=settings.simulate,
            group_size=settings.group_size,
            gpu_type=settings.gpu_type,
            gpu_memory=settings.gpu_memory,
            faults=settings.state_dir / FAULTS_FILE,
        )
    except TelemetryError as error:
        raise AgentStartError(str(error)) from error
    try:
        asyncio.run(
            _serve(settings, Agent(settings, telemetry, RunFolders(settings.state_dir, settings.run_as)))
        )
    finally:
        telemetry.close()
        lock.close()
    return 0


async def _serve(settings: AgentSettings, agent: Agent) -> None:
    loop = asyncio.get_running_loop()
    signals = 0

    def told_to_stop() -> None:
        nonlocal signals
        signals += 1
        agent.stop(at_once=signals > 1)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told_to_stop)
    await agent.run()


def configure_logging(level: str = "INFO") -> None:
    """Lines on standard error, with the time."""
    logging.basicConfig(
        level=level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S"
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)


def _check_platform() -> None:
    if not Path("/proc/self/stat").exists() or not hasattr(os, "pidfd_open"):
        raise AgentStartError(
            "emep agent needs Linux (5.3 or newer): it watches processes through /proc and pidfd"
        )


def _lock_state_dir(state_dir: Path) -> TextIO:
    """Hold the state folder for this process, so that no two agents look after the same runs."""
    path = state_dir / "agent.lock"
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        state_dir.chmod(0o700)
        lock = path.open("a", encoding="utf-8")
    except OSError as error:
        raise AgentStartError(
            f"--state-dir: {state_dir} cannot be written ({error.strerror}): choose another folder"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise AgentStartError(
            f"--state-dir: another agent uses {state_dir}: stop it or choose another folder"
        ) from error
    return lock
