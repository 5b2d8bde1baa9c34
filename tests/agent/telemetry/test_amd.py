"""What is made of AMD SMI's answers; they are a stand-in's with the documented shapes: no AMD GPU is here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from emep.agent.telemetry.amd import AmdTelemetry, open_amd


class AmdSmiException(Exception):
    """The library's base error."""


def amdsmi(
    hives: list[int],
    hip_ids: list[int] | None = None,
    lost: frozenset[int] = frozenset(),
    ecc: list[Any] | None = None,
    degrees: int = 61,
) -> Any:
    def memory_usage(handle: int, kind: str) -> int:
        if handle in lost:
            raise AmdSmiException("device lost")
        return 2 << 30

    def enumeration(handle: int) -> dict[str, Any]:
        if hip_ids is None:
            raise AmdSmiException("not supported")
        return {"hip_id": hip_ids[handle]}

    return SimpleNamespace(
        AmdSmiException=AmdSmiException,
        AmdSmiMemoryType=SimpleNamespace(VRAM="vram"),
        AmdSmiTemperatureType=SimpleNamespace(HOTSPOT="hotspot"),
        AmdSmiTemperatureMetric=SimpleNamespace(CURRENT="current", CRITICAL="critical"),
        amdsmi_get_processor_handles=lambda: list(range(len(hives))),
        amdsmi_get_gpu_asic_info=lambda handle: {"market_name": "AMD Instinct MI300X"},
        amdsmi_get_gpu_memory_total=lambda handle, kind: 192 << 30,
        amdsmi_get_gpu_memory_usage=memory_usage,
        amdsmi_get_xgmi_info=lambda handle: {"xgmi_hive_id": hives[handle]},
        amdsmi_get_gpu_enumeration_info=enumeration,
        amdsmi_get_gpu_device_uuid=lambda handle: f"uuid-{handle}",
        amdsmi_get_gpu_activity=lambda handle: {"gfx_activity": 12, "umc_activity": "N/A"},
        amdsmi_get_temp_metric=lambda handle, kind, metric: 100 if metric == "critical" else degrees,
        amdsmi_get_gpu_total_ecc_count=lambda handle: {
            "correctable_count": 4,
            "uncorrectable_count": ecc.pop(0) if ecc else "N/A",
        },
    )


def test_a_machine_without_rocm_has_no_amd_gpus() -> None:
    assert open_amd("n1") is None


def test_a_hive_is_a_group() -> None:
    gpus = AmdTelemetry("n1", amdsmi([0xAA, 0xAA, 0])).describe()
    assert [gpu.nvlink_group_id for gpu in gpus] == ["n1/xgmi-aa", "n1/xgmi-aa", None]
    assert (gpus[0].gpu_type, gpus[0].gpu_memory, gpus[0].uuid) == (
        "AMD Instinct MI300X",
        192 << 30,
        "uuid-0",
    )


def test_a_report_leaves_out_what_the_library_does_not_know() -> None:
    sample = AmdTelemetry("n1", amdsmi([0])).sample({})[0]
    assert (sample.healthy, sample.utilization, sample.temperature_c) == (True, 12.0, 61.0)
    assert (sample.memory_used, sample.ecc_errors) == (2 << 30, None)


def test_a_gpu_that_cannot_be_read_is_unhealthy() -> None:
    sample = AmdTelemetry("n1", amdsmi([0], lost=frozenset({0}))).sample({})[0]
    assert (sample.healthy, sample.reason) == (False, "AMD SMI: device lost")


def test_new_memory_errors_and_heat_condemn_a_gpu() -> None:
    worn = AmdTelemetry("n1", amdsmi([0], ecc=[2, 2, 5]))
    assert worn.sample({})[0].healthy
    assert "3 uncorrected memory errors" in worn.sample({})[0].reason
    hot = AmdTelemetry("n1", amdsmi([0], degrees=101)).sample({})[0]
    assert (hot.healthy, hot.reason, hot.temperature_c) == (False, "101 C, its limit is 100 C", 101.0)


def test_devices_are_made_visible_by_hips_numbers() -> None:
    assert AmdTelemetry("n1", amdsmi([0, 0], [1, 0])).device_environment([0]) == {"HIP_VISIBLE_DEVICES": "1"}
    assert AmdTelemetry("n1", amdsmi([0, 0])).device_environment([1]) == {"HIP_VISIBLE_DEVICES": "1"}
    assert AmdTelemetry("n1", amdsmi([0])).device_environment([]) == {"HIP_VISIBLE_DEVICES": "-1"}
