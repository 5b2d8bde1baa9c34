"""What every kind of telemetry is to the agent, and what it raises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from emep.agent.telemetry.xids import XidRules
from emep.wire.nodes import GpuHealth, GpuReport

NO_DEVICES = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1"}
"""HIP takes an empty value for none given, so no device is -1 there."""


class TelemetryError(Exception):
    """The GPUs of this node cannot be read, in one sentence."""


class Telemetry(Protocol):
    """A node's GPUs. Calls may block for some milliseconds and are never made at the same time."""

    kind: str
    """nvidia, amd, simulated or none."""

    def describe(self) -> list[GpuReport]:
        """The GPUs as the node registers them, by index."""
        ...

    xid_rules: XidRules
    """What is done about an Xid; the agent sets it to what the control plane's policy says."""

    def sample(self, holders: Mapping[int, int]) -> list[GpuHealth]:
        """How each GPU is now. ``holders``: GPU index -> session of the work that was granted it."""
        ...

    def device_environment(self, indices: Sequence[int]) -> dict[str, str]:
        """Variables that let a process see these GPUs and no others."""
        ...

    def close(self) -> None:
        """Let go of the driver."""
        ...
