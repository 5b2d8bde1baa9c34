"""AMD GPUs through AMD SMI (the Python package ``amdsmi`` that comes with ROCm).

What is measured is judged in ``judgement``. XGMI hives are what NVLink groups are elsewhere: GPUs with one
hive id reach each other directly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from emep.agent.telemetry.base import TelemetryError
from emep.agent.telemetry.judgement import Reading, fault
from emep.agent.telemetry.xids import XidRules
from emep.wire.nodes import GpuHealth, GpuReport


@dataclass(frozen=True)
class _Device:
    report: GpuReport
    handle: Any
    hip_id: int
    """The number by which HIP knows the device."""


def open_amd(node: str) -> AmdTelemetry | None:
    """AMD SMI's GPUs; None without the package or a GPU. Raises TelemetryError if the driver fails."""
    try:
        import amdsmi
    except (ImportError, OSError, KeyError):  # the package loads ROCm's library when imported
        return None
    try:
        amdsmi.amdsmi_init()
        found = AmdTelemetry(node, amdsmi)
    except amdsmi.AmdSmiException as error:
        raise TelemetryError(
            f"AMD SMI is installed but does not answer: {error}; see amd-smi list"
        ) from error
    if not found.describe():
        found.close()
        return None
    return found


class AmdTelemetry:
    """The GPUs of an initialised AMD SMI."""

    kind = "amd"

    def __init__(self, node: str, smi: ModuleType) -> None:
        self._node, self._smi = node, smi
        self.xid_rules = XidRules()
        handles = smi.amdsmi_get_processor_handles()
        self._devices = [self._describe(number, handle) for number, handle in enumerate(handles)]
        self._ecc_before = {device.report.index: self._ecc_errors(device) for device in self._devices}

    def _ask(self, name: str, *arguments: Any) -> Any:
        """What AMD SMI answers; None where this GPU or release does not know it."""
        function: Callable[..., Any] | None = getattr(self._smi, name, None)
        try:
            return function(*arguments) if function else None
        except self._smi.AmdSmiException:
            return None

    def _describe(self, number: int, handle: Any) -> _Device:
        asic = self._ask("amdsmi_get_gpu_asic_info", handle) or {}
        memory = self._ask("amdsmi_get_gpu_memory_total", handle, self._smi.AmdSmiMemoryType.VRAM)
        hive = _number((self._ask("amdsmi_get_xgmi_info", handle) or {}).get("xgmi_hive_id"))
        enumeration = self._ask("amdsmi_get_gpu_enumeration_info", handle) or {}
        hip_id = _number(enumeration.get("hip_id"))
        report = GpuReport(
            index=number,
            uuid=str(self._smi.amdsmi_get_gpu_device_uuid(handle)),
            gpu_type=str(asic.get("market_name") or "AMD GPU"),
            gpu_memory=int(memory or 0),
            nvlink_group_id=f"{self._node}/xgmi-{int(hive):x}" if hive else None,
        )
        return _Device(report, handle, number if hip_id is None else int(hip_id))

    def describe(self) -> list[GpuReport]:
        """The GPUs found at the start."""
        return [device.report for device in self._devices]

    def sample(self, holders: Mapping[int, int]) -> list[GpuHealth]:
        """One report for each GPU; one that cannot be read is reported unhealthy."""
        return [self._health(device) for device in self._devices]

    def _health(self, device: _Device) -> GpuHealth:
        smi, handle = self._smi, device.handle
        try:
            used = smi.amdsmi_get_gpu_memory_usage(handle, smi.AmdSmiMemoryType.VRAM)
        except smi.AmdSmiException as error:
            return GpuHealth(index=device.report.index, healthy=False, reason=f"AMD SMI: {error}")
        activity = self._ask("amdsmi_get_gpu_activity", handle) or {}
        ecc = self._ecc_errors(device)
        temperature = self._temperature(device, "CURRENT")
        reason = fault(
            Reading(
                ecc_errors=ecc,
                ecc_errors_before=self._ecc_before[device.report.index],
                temperature_c=temperature,
                temperature_limit_c=self._temperature(device, "CRITICAL"),
            )
        )
        return GpuHealth(
            index=device.report.index,
            healthy=not reason,
            reason=reason,
            utilization=_number(activity.get("gfx_activity")),
            temperature_c=temperature,
            memory_used=int(used),
            memory_total=device.report.gpu_memory,
            ecc_errors=ecc,
        )

    def _ecc_errors(self, device: _Device) -> int | None:
        """Uncorrected memory errors; None where they are not counted."""
        counts = self._ask("amdsmi_get_gpu_total_ecc_count", device.handle) or {}
        uncorrected = _number(counts.get("uncorrectable_count"))
        return None if uncorrected is None else int(uncorrected)

    def _temperature(self, device: _Device, metric: str) -> float | None:
        """The hottest spot's temperature in degrees Celsius: now (CURRENT) or its limit (CRITICAL)."""
        kind = getattr(self._smi.AmdSmiTemperatureMetric, metric, None)
        if kind is None:
            return None
        hotspot = self._smi.AmdSmiTemperatureType.HOTSPOT
        # Where it is not known it may be 0.
        return _number(self._ask("amdsmi_get_temp_metric", device.handle, hotspot, kind)) or None

    def device_environment(self, indices: Sequence[int]) -> dict[str, str]:
        """HIP's numbers. CUDA's variable stays unset: HIP would obey it, too."""
        by_index = {device.report.index: device.hip_id for device in self._devices}
        return {"HIP_VISIBLE_DEVICES": ",".join(str(by_index[index]) for index in indices) or "-1"}

    def close(self) -> None:
        """Shut AMD SMI down."""
        self._ask("amdsmi_shut_down")


def _number(value: object) -> float | None:
    """A number that AMD SMI knows; it writes N/A for what it does not."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(int(value, 0)) if isinstance(value, str) else float(value)
    except ValueError:
        return None
