"""NVIDIA GPUs through NVML (pynvml): names, memory, NVLink groups, MIG slices, ECC, Xid events.

What is measured is judged in ``judgement``. About NVLink domains that span nodes: NVML's fabric info, whose
cluster UUID and clique number GPU Feature Discovery also publishes as ``nvidia.com/gpu.clique``.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

from emep.agent.telemetry.base import TelemetryError
from emep.agent.telemetry.judgement import Reading, fault
from emep.agent.telemetry.xids import CONTAINED, XidAction, XidRules
from emep.agent.topology import connected_groups
from emep.wire.nodes import GpuHealth, GpuReport

log = logging.getLogger(__name__)
_NO_INSTANCE = 0xFFFFFFFF
"""NVML's word for an event that no single MIG instance has caused."""
T = TypeVar("T")


@dataclass(frozen=True)
class _Device:
    report: GpuReport
    handle: Any
    parent: Any
    """The whole GPU of a MIG slice; the GPU itself otherwise."""
    pci: str
    instance: int | None = None
    """The GPU instance of a MIG slice."""


def open_nvidia(node: str) -> NvidiaTelemetry | None:
    """NVML's GPUs; None without library, driver or GPU. Raises TelemetryError if the driver fails."""
    with warnings.catch_warnings():
        # The package pynvml announces its own successor on import; which one is installed is no concern here.
        warnings.simplefilter("ignore", FutureWarning)
        try:
            import pynvml as nvml
        except ImportError:
            return None
    absent = (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        if error.value in absent:
            return None
        raise TelemetryError(f"NVML is installed but does not start: {error}; see nvidia-smi") from error
    try:
        if nvml.nvmlDeviceGetCount() == 0:
            nvml.nvmlShutdown()
            return None
        return NvidiaTelemetry(node, nvml)
    except nvml.NVMLError as error:
        raise TelemetryError(f"NVML does not describe this node's GPUs: {error}; see nvidia-smi") from error


class NvidiaTelemetry:
    """The GPUs of an initialised NVML."""

    kind = "nvidia"

    def __init__(self, node: str, nvml: ModuleType) -> None:
        self._node, self._nvml = node, nvml
        self._events: Any = None
        self.xid_rules = XidRules()
        self._xids: dict[str, list[int]] = {}
        """UUID -> its Xids, each once, the last one last; until the agent starts anew, as after a repair."""
        self._new_xids: dict[str, list[int]] = {}
        """Likewise, since the last sample."""
        self._devices = self._find_devices()
        self._ecc_before = {device.pci: self._ecc_errors(device) for device in self._devices}
        self._limits = {device.pci: self._temperature_limit(device) for device in self._devices}
        self._watch_events()

    def _find_devices(self) -> list[_Device]:
        nvml = self._nvml
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        groups = self._groups(handles)
        devices: list[_Device] = []
        for handle, group in zip(handles, groups, strict=True):
            pci = _text(nvml.nvmlDeviceGetPciInfo(handle).busId)
            slices = self._slices(handle)
            for device in slices or [handle]:
                report = GpuReport(
                    index=len(devices),
                    uuid=_text(nvml.nvmlDeviceGetUUID(device)),
                    gpu_type=_text(nvml.nvmlDeviceGetName(device)),
                    gpu_memory=int(nvml.nvmlDeviceGetMemoryInfo(device).total),
                    # A MIG slice has no NVLink of its own.
                    nvlink_group_id=None if slices else group,
                )
                instance = self._ask(nvml.nvmlDeviceGetGpuInstanceId, device) if slices else None
                devices.append(_Device(report, device, handle, pci, instance))
        return devices

    def _slices(self, handle: Any) -> list[Any]:
        """MIG slices of a GPU that is partitioned; [] for a whole one."""
        nvml = self._nvml
        mode = self._ask(nvml.nvmlDeviceGetMigMode, handle)
        if not mode or mode[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return []
        count = self._ask(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
        found = (self._ask(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index) for index in range(count))
        return [device for device in found if device is not None]

    def _groups(self, handles: list[Any]) -> list[str | None]:
        """NVLink group of each GPU: its fabric clique, or those it reaches over NVLink within the node."""
        nvml = self._nvml
        linked = nvml.NVML_P2P_CAPS_INDEX_NVLINK
        pairs = [
            (first, second)
            for first in range(len(handles))
            for second in range(first + 1, len(handles))
            if self._ask(nvml.nvmlDeviceGetP2PStatus, handles[first], handles[second], linked)
            == nvml.NVML_P2P_STATUS_OK
        ]
        local = connected_groups(len(handles), pairs)
        return [
            self._fabric_clique(handle) or (f"{self._node}/nvlink-{group}" if group is not None else None)
            for handle, group in zip(handles, local, strict=True)
        ]

    def _fabric_clique(self, handle: Any) -> str | None:
        """``CLUSTER.CLIQUE`` of a GPU in an NVLink domain that spans nodes; None elsewhere."""
        nvml = self._nvml
        try:
            info = nvml.c_nvmlGpuFabricInfoV_t()
            nvml.nvmlDeviceGetGpuFabricInfoV(handle, nvml.byref(info))
        except (nvml.NVMLError, AttributeError):
            return None
        cluster = bytes(info.clusterUuid)
        if info.state != nvml.NVML_GPU_FABRIC_STATE_COMPLETED or not any(cluster):
            return None
        return f"{cluster.hex()}.{info.cliqueId}"

    def _ask(self, function: Callable[..., T], *arguments: Any) -> T | None:
        """What NVML answers; None where this GPU or driver does not know it."""
        try:
            return function(*arguments)
        except self._nvml.NVMLError:
            return None

    def _watch_events(self) -> None:
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
            for handle in {device.pci: device.parent for device in self._devices}.values():
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
        except nvml.NVMLError as error:
            log.warning("Xid events cannot be watched on this node: %s", error)
        else:
            self._events = events

    def _read_events(self) -> None:
        nvml = self._nvml
        while self._events is not None:
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
            except nvml.NVMLError:  # a timeout: no more events
                return
            xid = int(event.eventData)
            pci = self._ask(lambda handle: _text(nvml.nvmlDeviceGetPciInfo(handle).busId), event.device)
            log.warning("Xid %d on the GPU at %s", xid, pci)
            instance = getattr(event, "gpuInstanceId", _NO_INSTANCE)
            for device in self._devices:
                if device.pci == pci and (
                    instance == _NO_INSTANCE
                    or device.instance in (None, instance)
                    or self.xid_rules.takes_out(xid)  # a slice's GPU is reset as a whole
                ):
                    kept = [known for known in self._xids.get(device.report.uuid, []) if known != xid]
                    self._xids[device.report.uuid] = [*kept, xid]
                    self._new_xids.setdefault(device.report.uuid, []).append(xid)

    def describe(self) -> list[GpuReport]:
        """The GPUs (or MIG slices) found at the start."""
        return [device.report for device in self._devices]

    def sample(self, holders: Mapping[int, int]) -> list[GpuHealth]:
        """One report for each GPU; one that NVML cannot read is reported unhealthy, with NVML's words."""
        self._read_events()
        for device in self._devices:
            contained = CONTAINED in self._new_xids.get(device.report.uuid, ())
            if contained and not self.xid_rules.takes_out(CONTAINED):
                # Its errors are dealt with: they are not to condemn the GPU by their number.
                self._ecc_before[device.pci] = self._ecc_errors(device)
        return [self._health(device) for device in self._devices]

    def _health(self, device: _Device) -> GpuHealth:
        nvml, handle, index = self._nvml, device.handle, device.report.index
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError as error:
            return GpuHealth(index=index, healthy=False, reason=f"NVML: {error}")
        # A MIG slice has no utilization of its own in NVML; temperature and ECC are the whole GPU's.
        rates = self._ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        temperature = self._ask(nvml.nvmlDeviceGetTemperature, device.parent, nvml.NVML_TEMPERATURE_GPU)
        ecc = self._ecc_errors(device)
        rules = self.xid_rules
        xid = next(filter(rules.takes_out, reversed(self._xids.get(device.report.uuid, []))), None)
        restarts = [
            new
            for new in self._new_xids.pop(device.report.uuid, [])
            if rules.action(new) is XidAction.RESTART_APP
        ]
        remapped = self._ask(nvml.nvmlDeviceGetRemappedRows, device.parent)
        reason = fault(
            Reading(
                xid=xid,
                ecc_errors=ecc,
                ecc_errors_before=self._ecc_before[device.pci],
                temperature_c=temperature,
                temperature_limit_c=self._limits[device.pci],
                remapping_failed=bool(remapped and remapped[3]),
                remapping_pending=bool(remapped and remapped[2]),
            ),
            rules,
        )
        return GpuHealth(
            index=index,
            healthy=not reason,
            reason=reason,
            utilization=float(rates.gpu) if rates is not None else None,
            temperature_c=float(temperature) if temperature is not None else None,
            memory_used=int(memory.used),
            memory_total=int(memory.total),
            ecc_errors=ecc,
            xid=xid,
            restart_xid=restarts[-1] if restarts else None,
        )

    def _ecc_errors(self, device: _Device) -> int | None:
        """Uncorrected errors since the driver was loaded; None without ECC."""
        nvml = self._nvml
        count = self._ask(
            nvml.nvmlDeviceGetTotalEccErrors,
            device.parent,
            nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            nvml.NVML_VOLATILE_ECC,
        )
        return None if count is None else int(count)

    def _temperature_limit(self, device: _Device) -> float | None:
        """Where the hardware slows itself down, in degrees Celsius."""
        nvml = self._nvml
        limit = self._ask(
            nvml.nvmlDeviceGetTemperatureThreshold, device.parent, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
        )
        # A driver that does not know it may say 0.
        return float(limit) if limit else None

    def device_environment(self, indices: Sequence[int]) -> dict[str, str]:
        """UUIDs, because CUDA numbers devices in another order than NVML."""
        by_index = {device.report.index: device.report.uuid for device in self._devices}
        return {
            "CUDA_VISIBLE_DEVICES": ",".join(by_index[index] for index in indices),
            "HIP_VISIBLE_DEVICES": "-1",
        }

    def close(self) -> None:
        """Shut NVML down."""
        if self._events is not None:
            self._ask(self._nvml.nvmlEventSetFree, self._events)
        self._ask(self._nvml.nvmlShutdown)


def _text(value: str | bytes) -> str:
    """NVML's strings are bytes in older bindings."""
    return value.decode() if isinstance(value, bytes) else value
