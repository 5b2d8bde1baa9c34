"""Reads a node's GPUs through NVML or AMD SMI, or simulates them, all behind one Protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from emep.agent.telemetry.base import NO_DEVICES, Telemetry, TelemetryError
from emep.agent.telemetry.xids import XidRules
from emep.wire.nodes import GpuHealth, GpuReport

__all__ = ["NO_DEVICES", "NoGpus", "Telemetry", "TelemetryError", "open_telemetry"]


class NoGpus:
    """A node that offers only CPU and memory."""

    kind = "none"

    def __init__(self) -> None:
        self.xid_rules = XidRules()

    def describe(self) -> list[GpuReport]:
        """No GPUs."""
        return []

    def sample(self, holders: Mapping[int, int]) -> list[GpuHealth]:
        """No reports."""
        return []

    def device_environment(self, indices: Sequence[int]) -> dict[str, str]:
        """No device is visible."""
        return dict(NO_DEVICES)

    def close(self) -> None:
        """Nothing is open."""


def open_telemetry(
    node: str, *, simulate: int | None, group_size: int, gpu_type: str, gpu_memory: int, faults: Path
) -> Telemetry:
    """Open simulated GPUs if asked for (0: none at all), else those that NVML or AMD SMI finds, else none.

    Raises TelemetryError if a driver is installed but does not answer, because a node that silently offers
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
