"""What a node offers: its own limit where the agent runs the work, the machine where it only reports."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from emep.agent.capacity import machine_cpus, machine_memory, own_cpus, own_memory

GI = 1024**3


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A machine of 1 TiB, seen from inside a container."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text(f"MemTotal:       {1024 * GI // 1024} kB\nMemFree: 1 kB\n")
    (tmp_path / "proc" / "self" / "cgroup").write_text("0::/\n")
    return tmp_path / "proc"


@pytest.fixture
def cgroups(tmp_path: Path) -> Path:
    """The control group of a container with 256 MiB and half a CPU."""
    (tmp_path / "cgroup").mkdir()
    (tmp_path / "cgroup" / "memory.max").write_text(f"{256 * 1024**2}\n")
    (tmp_path / "cgroup" / "cpu.max").write_text("50000 100000\n")
    return tmp_path / "cgroup"


def test_a_limit_of_the_reporting_pod_says_nothing_of_the_machine(proc: Path, cgroups: Path) -> None:
    assert machine_memory(proc) == 1024 * GI
    assert machine_cpus() == os.cpu_count()


def test_a_limit_of_the_container_that_runs_engines_is_what_it_offers(proc: Path, cgroups: Path) -> None:
    assert own_memory(cgroups, proc) == 256 * 1024**2
    assert own_cpus(cgroups, proc) == 0.5


def test_without_a_limit_the_machine_is_offered(proc: Path, cgroups: Path) -> None:
    (cgroups / "memory.max").write_text("max\n")
    (cgroups / "cpu.max").write_text("max 100000\n")
    assert own_memory(cgroups, proc) == 1024 * GI
    assert own_cpus(cgroups, proc) == len(os.sched_getaffinity(0))


def test_the_lowest_limit_on_the_way_up_counts(proc: Path, cgroups: Path) -> None:
    (cgroups / "memory.max").write_text("max\n")
    inner = cgroups / "system.slice" / "emep-agent.service"
    inner.mkdir(parents=True)
    (inner / "memory.max").write_text(f"{8 * GI}\n")
    (inner.parent / "memory.max").write_text(f"{4 * GI}\n")
    (proc / "self" / "cgroup").write_text("0::/system.slice/emep-agent.service\n")
    assert own_memory(cgroups, proc) == 4 * GI


def test_the_first_version_of_control_groups_has_limits_too(proc: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cgroup" / "memory" / "docker" / "x"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(f"{2 * GI}\n")
    (proc / "self" / "cgroup").write_text("5:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n")
    assert own_memory(tmp_path / "cgroup", proc) == 2 * GI


@pytest.mark.parametrize("text", ["", "MemTotal:\n", "MemTotal: many kB\n"])
def test_a_meminfo_that_says_nothing_leaves_the_systems_own_count(proc: Path, text: str) -> None:
    (proc / "meminfo").write_text(text)
    assert machine_memory(proc) == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
