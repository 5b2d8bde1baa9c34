"""Where a node's GPUs come from: NVML, AMD SMI, or simulated ones, all behind one Protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from emep.agent.telemetry.xids import XidRules
from emep.wire.nodes import GpuHealth, GpuReport


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


class NoGpus:
    """A node that offers only CPU and memory."""

    kind = "none"

    def __init__(self) -> None:
        self.xid_rules = XidRules()

    def describe(self) -> list[GpuReport]:
        """No GPUs."""
        return []

    def sample(self, holders: Mapping[int, int]) -> list[GpuHealth]:
        """Nothing to say."""
        return []

    def device_environment(self, indices: Sequence[int]) -> dict[str, str]:
        """No device is visible."""
        return dict(NO_DEVICES)

    def close(self) -> None:
        """Nothing is open."""


NO_DEVICES = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1"}
"""HIP takes an empty value for none given, so no device is -1 there."""


def open_telemetry(
    node: str, *, simulate: int | None, group_size: int, gpu_type: str, gpu_memory: int, faults: Path
) -> Telemetry:
    """Simulated GPUs where asked for (0: none at all); else what NVML or AMD SMI finds; else no GPUs.

    Raises TelemetryError where a driver is there but does not answer, because a node that silently offers
    nothing is harder to notice than one that does not start.
    """
    if simulate is not None:
        if simulate == 0:
            return NoGpus()
        from emep.agent.telemetry.simulated import SimulatedTelemetry

        return SimulatedTelemetry(
            node, simulate, group_size=group_size, gpu_type=gpu_type, gpu_memory=gpu_memory, faults=faults
        )
    from emep.agent.telemetry.nvidia import open_nvidia

    found: Telemetry | None = open_nvidia(node)
    if found is None:
        from emep.agent.telemetry.amd import open_amd

        found = open_amd(node)
    return found or NoGpus()
