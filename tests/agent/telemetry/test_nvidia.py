"""What is made of NVML's answers. They are a stand-in's, as no GPU is here; constants, structures and errors
are the real binding's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from emep.agent.telemetry.nvidia import NvidiaTelemetry, open_nvidia
from emep.agent.telemetry.xids import XidRules

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)
    import pynvml

NOT_SUPPORTED = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


class Nvml:
    """NVML of a board of GPUs. Handles are numbers; a MIG slice is ``(gpu, slice)``."""

    def __init__(
        self,
        gpus: int,
        links: set[tuple[int, int]],
        slices: dict[int, int] | None = None,
        clique: int | None = None,
    ) -> None:
        self.gpus, self.links, self.slices, self.clique = gpus, links, slices or {}, clique
        self.lost: set[int] = set()
        self.events: list[tuple[int, ...]] = []
        self.remap_failed: set[int] = set()
        self.remap_pending: set[int] = set()
        self.ecc_errors, self.temperature = 3, 55

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvml"):

            def unsupported(*_: object) -> None:
                raise NOT_SUPPORTED

            return unsupported
        return getattr(pynvml, name)

    def nvmlDeviceGetCount(self) -> int:
        return self.gpus

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetPciInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(busId=f"0000:0{handle}:00.0".encode())

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        return f"MIG-{handle[0]}-{handle[1]}" if isinstance(handle, tuple) else f"GPU-{handle}"

    def nvmlDeviceGetName(self, handle: Any) -> str:
        return "NVIDIA H100 MIG 3g.40gb" if isinstance(handle, tuple) else "NVIDIA H100 80GB HBM3"

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> SimpleNamespace:
        if handle in self.lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return SimpleNamespace(total=80 << 30, used=5 << 30)

    def nvmlDeviceGetP2PStatus(self, first: int, second: int, index: int) -> int:
        assert index == pynvml.NVML_P2P_CAPS_INDEX_NVLINK
        return pynvml.NVML_P2P_STATUS_OK if (first, second) in self.links else 5

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        return [int(handle in self.slices), 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: int) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: int, index: int) -> tuple[int, int]:
        if index >= self.slices[handle]:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return handle, index

    def nvmlDeviceGetGpuFabricInfoV(self, handle: int, reference: Any) -> None:
        if self.clique is None:
            raise NOT_SUPPORTED
        info = reference._obj
        info.state, info.cliqueId = pynvml.NVML_GPU_FABRIC_STATE_COMPLETED, self.clique
        info.clusterUuid[0] = 0xAB

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> SimpleNamespace:
        if isinstance(handle, tuple):
            raise NOT_SUPPORTED
        return SimpleNamespace(gpu=42, memory=7)

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        return self.temperature

    def nvmlDeviceGetTemperatureThreshold(self, handle: int, kind: int) -> int:
        assert kind == pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
        return 90

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, counter: int) -> int:
        return self.ecc_errors

    def nvmlDeviceGetRemappedRows(self, handle: int) -> tuple[int, int, int, int]:
        return 0, 0, int(handle in self.remap_pending), int(handle in self.remap_failed)

    def nvmlEventSetCreate(self) -> object:
        return object()

    def nvmlDeviceRegisterEvents(self, *_: object) -> None:
        """Every GPU can be watched."""

    def nvmlEventSetWait_v2(self, events: object, timeout: int) -> SimpleNamespace:
        if not self.events:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        gpu, xid, *instance = self.events.pop(0)
        return SimpleNamespace(device=gpu, eventData=xid, gpuInstanceId=(instance or [0xFFFFFFFF])[0])

    def nvmlDeviceGetGpuInstanceId(self, handle: tuple[int, int]) -> int:
        return handle[1]


@pytest.fixture
def telemetry() -> Callable[..., NvidiaTelemetry]:
    return lambda *args, **fields: NvidiaTelemetry("n1", Nvml(*args, **fields))  # type: ignore[arg-type]


Open = Callable[..., NvidiaTelemetry]
ALL_TO_ALL = {(0, 1), (0, 2), (1, 2)}


def test_a_machine_without_a_driver_has_no_nvidia_gpus() -> None:
    assert open_nvidia("n1") is None


def test_gpus_that_reach_each_other_over_nvlink_are_one_group(telemetry: Open) -> None:
    gpus = telemetry(4, ALL_TO_ALL).describe()
    assert [gpu.nvlink_group_id for gpu in gpus] == ["n1/nvlink-0"] * 3 + [None]
    assert (gpus[1].uuid, gpus[1].gpu_type, gpus[1].gpu_memory) == (
        "GPU-1",
        "NVIDIA H100 80GB HBM3",
        80 << 30,
    )


def test_a_domain_that_spans_nodes_names_the_group(telemetry: Open) -> None:
    gpus = telemetry(2, {(0, 1)}, clique=7).describe()
    assert {gpu.nvlink_group_id for gpu in gpus} == {"ab" + "00" * 15 + ".7"}


def test_mig_slices_are_gpus_of_their_own_type_without_nvlink(telemetry: Open) -> None:
    found = telemetry(3, ALL_TO_ALL, slices={1: 2})
    gpus = found.describe()
    assert [(gpu.index, gpu.uuid) for gpu in gpus] == [
        (0, "GPU-0"),
        (1, "MIG-1-0"),
        (2, "MIG-1-1"),
        (3, "GPU-2"),
    ]
    assert gpus[1].gpu_type == "NVIDIA H100 MIG 3g.40gb"
    assert gpus[1].nvlink_group_id is None
    sample = found.sample({})[1]
    assert (sample.utilization, sample.temperature_c, sample.ecc_errors) == (None, 55.0, 3)


def test_a_report_says_what_nvml_says(telemetry: Open) -> None:
    sample = telemetry(1, set()).sample({})[0]
    assert (sample.healthy, sample.utilization, sample.temperature_c) == (True, 42.0, 55.0)
    assert (sample.memory_used, sample.memory_total, sample.ecc_errors, sample.xid) == (
        5 << 30,
        80 << 30,
        3,
        None,
    )


def test_a_lost_gpu_is_unhealthy_and_the_others_are_reported(telemetry: Open) -> None:
    found = telemetry(2, set())
    found._nvml.lost.add(0)
    lost, well = found.sample({})
    assert not lost.healthy
    assert "lost" in lost.reason.lower()
    assert well.healthy


@pytest.mark.parametrize(
    ("xid", "reason", "restarts"),
    [
        (13, "", True),
        (31, "", True),
        (94, "", True),
        (43, "", False),
        (45, "", False),
        (48, "Xid 48: reset the GPU", False),
        (79, "Xid 79: reboot the node", False),
        (95, "Xid 95: reset the GPU", False),
        (109, "Xid 109: reset the GPU", False),
        (119, "Xid 119: reset the GPU", False),
        (140, "Xid 140: reset the GPU", False),
        (63, "", False),
        (64, "", False),
        (4711, "Xid 4711: reset the GPU", False),
    ],
)
def test_an_xid_has_the_consequence_that_nvidia_publishes(
    telemetry: Open, xid: int, reason: str, restarts: bool
) -> None:
    found = telemetry(2, set())
    found._nvml.events.append((0, xid))
    first, second = found.sample({})
    assert (first.healthy, first.reason, first.restart_xid) == (not reason, reason, xid if restarts else None)
    assert first.xid == (xid if reason else None)
    assert (second.healthy, second.restart_xid) == (True, None)
    again = found.sample({})[0]
    assert again.healthy == (not reason), "out until the agent starts anew, as after a repair"
    assert again.restart_xid is None, "an Xid happens once"


def test_a_contained_memory_error_is_not_held_against_the_gpu_by_its_count(telemetry: Open) -> None:
    found = telemetry(1, set())
    found._nvml.events.append((0, 94))
    found._nvml.ecc_errors += 1
    assert found.sample({})[0].healthy
    found._nvml.ecc_errors += 1
    assert not found.sample({})[0].healthy, "one that no Xid explains"


def test_the_policy_says_what_is_done_about_an_xid(telemetry: Open) -> None:
    found = telemetry(1, set())
    found._nvml.events.append((0, 94))
    assert found.sample({})[0].healthy
    found.xid_rules = XidRules({94: "reset"})
    assert found.sample({})[0].reason == "Xid 94: reset the GPU", "what was seen before counts, too"
    found._nvml.events.append((0, 79))
    found.xid_rules = XidRules({94: "ignore", 79: "ignore"})
    assert found.sample({})[0].healthy


def test_rows_that_wait_to_be_remapped_take_the_gpu_out_until_it_was_reset(telemetry: Open) -> None:
    found = telemetry(2, set())
    found._nvml.remap_pending.add(0)
    assert [gpu.reason for gpu in found.sample({})] == ["memory rows wait to be remapped: reset the GPU", ""]
    found.xid_rules = XidRules({63: "ignore"})
    assert found.sample({})[0].healthy
    found.xid_rules = XidRules()
    found._nvml.remap_pending.clear()
    assert found.sample({})[0].healthy


def test_an_xid_of_one_mig_slice_restarts_the_work_on_that_slice_alone(telemetry: Open) -> None:
    found = telemetry(1, set(), slices={0: 2})
    found._nvml.events += [(0, 94, 1)]
    assert [gpu.restart_xid for gpu in found.sample({})] == [None, 94]
    found._nvml.events += [(0, 95, 1)]
    assert [gpu.healthy for gpu in found.sample({})] == [False, False], "a reset is one of the whole GPU"


def test_failed_row_remapping_condemns_the_gpu(telemetry: Open) -> None:
    found = telemetry(1, set())
    found._nvml.remap_failed.add(0)
    assert "remapping failed" in found.sample({})[0].reason


def test_a_new_memory_error_condemns_the_gpu_and_those_before_the_agents_start_do_not(
    telemetry: Open,
) -> None:
    found = telemetry(1, set())
    assert found.sample({})[0].healthy
    found._nvml.ecc_errors = 4
    sample = found.sample({})[0]
    assert (sample.healthy, sample.ecc_errors) == (False, 4)
    assert "1 uncorrected memory errors" in sample.reason


def test_a_gpu_at_the_limit_that_its_driver_tells_is_too_hot(telemetry: Open) -> None:
    found = telemetry(1, set())
    found._nvml.temperature = 89
    assert found.sample({})[0].healthy
    found._nvml.temperature = 90
    assert found.sample({})[0].reason == "90 C, its limit is 90 C"
    found._nvml.temperature = 60
    assert found.sample({})[0].healthy


def test_devices_are_made_visible_by_uuid(telemetry: Open) -> None:
    found = telemetry(3, set(), slices={1: 1})
    assert found.device_environment([0, 1])["CUDA_VISIBLE_DEVICES"] == "GPU-0,MIG-1-0"
    assert found.device_environment([])["CUDA_VISIBLE_DEVICES"] == ""
