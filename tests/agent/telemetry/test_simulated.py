"""Simulated GPUs report what their work really uses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from emep.agent.process import read_stat
from emep.agent.telemetry import open_telemetry
from emep.agent.telemetry.simulated import SimulatedTelemetry

BUSY = "import time\nprint('on', flush=True)\nwhile True: sum(range(10000))"


def simulated(faults: Path, count: int = 8, group_size: int = 4) -> SimulatedTelemetry:
    return SimulatedTelemetry(
        "n1", count, group_size=group_size, gpu_type="T4", gpu_memory=16 << 30, faults=faults
    )


@pytest.fixture
def busy_session() -> Iterator[int]:
    """A session whose process computes without end."""
    with subprocess.Popen(
        [sys.executable, "-c", BUSY], stdout=subprocess.PIPE, start_new_session=True
    ) as busy:
        assert busy.stdout is not None
        busy.stdout.readline()
        yield os.getsid(busy.pid)
        busy.kill()


def test_groups_have_the_size_asked_for_and_the_last_may_be_smaller(tmp_path: Path) -> None:
    groups = [gpu.nvlink_group_id for gpu in simulated(tmp_path / "f", 6, 4).describe()]
    assert groups == ["n1/nvlink-0"] * 4 + ["n1/nvlink-1"] * 2


def test_without_a_group_size_nothing_is_linked(tmp_path: Path) -> None:
    assert {gpu.nvlink_group_id for gpu in simulated(tmp_path / "f", 2, 0).describe()} == {None}


def test_a_free_gpu_is_idle(tmp_path: Path) -> None:
    report = simulated(tmp_path / "f").sample({})
    assert {(gpu.utilization, gpu.memory_used, gpu.temperature_c) for gpu in report} == {(0.0, 0, None)}


def test_a_granted_gpu_is_as_busy_as_its_work(tmp_path: Path, busy_session: int) -> None:
    telemetry = simulated(tmp_path / "f")
    holders = {0: busy_session, 1: busy_session}
    telemetry.sample(holders)
    before = read_stat(busy_session)
    assert before is not None
    # Until the kernel has counted more CPU time (a hundredth of a second at least).
    while (now := read_stat(busy_session)) and now.cpu_seconds <= before.cpu_seconds:
        pass
    report = telemetry.sample(holders)
    assert report[0].utilization == report[1].utilization
    assert 0 < (report[0].utilization or 0) <= 100
    assert (report[0].memory_used or 0) > 1 << 20
    assert report[2].utilization == 0.0


def test_a_fault_can_be_put_on_a_gpu_and_taken_off(tmp_path: Path) -> None:
    faults = tmp_path / "faults.json"
    telemetry = simulated(faults)
    faults.write_text(json.dumps({"2": "xid 79"}))
    bad = telemetry.sample({})[2]
    assert (bad.healthy, bad.reason) == (False, "xid 79")
    faults.write_text("{}")
    assert telemetry.sample({})[2].healthy


@pytest.mark.parametrize(
    ("measured", "reason"),
    [
        ({"xid": 79}, "Xid 79: reboot the node"),
        ({"xid": 63}, ""),
        ({"xid": 31}, ""),
        ({"ecc_errors": 2}, "2 uncorrected memory errors (ECC) since the agent started"),
        ({"temperature_c": 96}, "96 C, its limit is 95 C"),
        ({"temperature_c": 70}, ""),
        ({"temperature_c": "hot"}, "simulated-faults.json: could not convert string to float: 'hot'"),
    ],
)
def test_what_is_measured_on_a_simulated_gpu_is_judged_as_on_a_real_one(
    tmp_path: Path, measured: dict[str, object], reason: str
) -> None:
    faults = tmp_path / "faults.json"
    faults.write_text(json.dumps({"1": measured}))
    sample = simulated(faults).sample({})[1]
    assert (sample.healthy, sample.reason) == (not reason, reason)
    shown = sample.model_dump(exclude_none=True)
    for name, value in measured.items():
        assert shown.get(name) == value or value == "hot"


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("pending", "memory rows wait to be remapped: reset the GPU"),
        ("failed", "memory row remapping failed: the GPU needs to be replaced"),
    ],
)
def test_the_remapper_of_a_simulated_gpu_has_a_state_of_its_own(
    tmp_path: Path, state: str, reason: str
) -> None:
    faults = tmp_path / "faults.json"
    faults.write_text(json.dumps({"1": {"xid": 63, "remapping": state}}))
    assert simulated(faults).sample({})[1].reason == reason


def test_an_xid_of_the_file_asks_once_for_a_restart(tmp_path: Path) -> None:
    faults = tmp_path / "faults.json"
    telemetry = simulated(faults)
    faults.write_text(json.dumps({"1": {"xid": 94}}))
    assert [telemetry.sample({})[1].restart_xid for _ in range(2)] == [94, None]
    faults.write_text("{}")
    telemetry.sample({})
    faults.write_text(json.dumps({"1": {"xid": 94}}))
    assert telemetry.sample({})[1].restart_xid == 94


def test_no_gpu_is_visible_to_work_on_a_simulated_one(tmp_path: Path) -> None:
    assert simulated(tmp_path / "f").device_environment([0]) == {
        "CUDA_VISIBLE_DEVICES": "",
        "HIP_VISIBLE_DEVICES": "-1",
    }


def test_zero_simulated_gpus_are_none_and_the_drivers_are_not_asked(tmp_path: Path) -> None:
    telemetry = open_telemetry(
        "n1", simulate=0, group_size=4, gpu_type="", gpu_memory=0, faults=tmp_path / "f"
    )
    assert (telemetry.kind, telemetry.describe()) == ("none", [])
