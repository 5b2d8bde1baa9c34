"""The agent's settings, read and checked before anything runs."""

from __future__ import annotations

import shlex
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from emep.agent import capacity
from emep.client.config import normal_urls

if TYPE_CHECKING:
    from emep.agent.run_as import RunAs


class AgentStartError(Exception):
    """The agent cannot start, in one sentence. ``usage``: the command line is wrong (exit 2, else 1)."""

    def __init__(self, message: str, *, usage: bool = False) -> None:
        super().__init__(message)
        self.usage = usage


@dataclass(frozen=True)
class AgentSettings:
    """One agent of one node. Times are seconds, memory is bytes."""

    api_url: str
    secret: str
    name: str
    state_dir: Path
    simulate: int | None = None
    """Number of simulated GPUs; None: what the drivers find."""
    group_size: int = 4
    """Simulated GPUs in one NVLink group; 0: none is linked."""
    gpu_type: str = "simulated"
    gpu_memory: int = 16 * 1024**3
    pool: str = "default"
    rack: str = ""
    block: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    bandwidth_gbps: float = 0.0
    cpu: float = 0.0
    memory: int = 0
    engine_command: tuple[str, ...] = ()
    """What ``run SPEC.json`` is appended to."""
    pass_environment: tuple[str, ...] = ()
    report_every: float = 10.0
    """Seconds between two health reports: the policy's ``health.report_every``."""
    poll_timeout: float = 20.0
    stop_grace: float = 130.0
    """Seconds that work gets to checkpoint when the agent is told to stop: a little more than the two minutes
    after which a supervisor gives up by itself."""
    connect_patience: float = 15.0
    """How long the agent waits, at its start, for an API that does not answer."""
    run_as: RunAs | None = None
    """The user that runs engines; None: the agent's own."""
    require_landlock: bool = False
    """Start nothing where the kernel does not keep a job to its own files."""
    report_only: bool = False
    """Describe the node and report its health, start nothing: Kubernetes starts the work here."""


def default_state_dir(name: str, environ: Mapping[str, str]) -> Path:
    """``~/.local/state/emep/agent/NAME`` (``XDG_STATE_HOME``)."""
    base = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME") or Path.home()) / ".local" / "state")
    return Path(base) / "emep" / "agent" / name


def default_name() -> str:
    """The host's name without its domain."""
    return socket.gethostname().split(".")[0]


def default_engine_command() -> tuple[str, ...]:
    """``emep-engine`` of the environment that the agent runs in."""
    script = Path(sys.executable).with_name("emep-engine")
    return (str(script),) if script.exists() else (sys.executable, "-m", "engines.cli")


def engine_command(text: str | None) -> tuple[str, ...]:
    """The words of ``--engine-command``. Raises AgentStartError for text without any."""
    if text is None:
        return default_engine_command()
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise AgentStartError(f"--engine-command: {error}", usage=True) from error
    if not words:
        raise AgentStartError("--engine-command: a program is missing", usage=True)
    return words


def agent_secret(environ: Mapping[str, str]) -> str:
    """The enrolment secret. Raises AgentStartError where none is set."""
    secret = environ.get("EMEP_AGENT_TOKEN") or environ.get("AIRFLOW__EMEP__AGENT_TOKEN") or ""
    if not secret:
        raise AgentStartError(
            "EMEP_AGENT_TOKEN is not set: it must hold the secret that the API server has as "
            "[emep] agent_token (AIRFLOW__EMEP__AGENT_TOKEN)",
            usage=True,
        )
    return secret


def api_base(url: str) -> str:
    """The API's URL from what was given. Raises EmepConfigurationError."""
    return normal_urls(url)[0]


def node_cpus(*, report_only: bool = False) -> float:
    """CPUs to offer: the machine's where the agent only reports, else what it may use itself."""
    return capacity.machine_cpus() if report_only else capacity.own_cpus()


def node_memory(*, report_only: bool = False) -> int:
    """Bytes of memory to offer: the machine's where the agent only reports, else its own limit."""
    return capacity.machine_memory() if report_only else capacity.own_memory()
