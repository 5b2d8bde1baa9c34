"""How many CPUs and how much memory a node offers.

An agent that runs engines runs them inside its own control group, so it offers what that group's limits
allow. An agent that only reports runs in a small pod beside the work, and describes the whole machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS, PROC = Path("/sys/fs/cgroup"), Path("/proc")


def machine_cpus() -> float:
    """CPUs of the machine that are switched on, whatever this process may use of them."""
    return float(os.cpu_count() or 1)


def machine_memory(proc: Path = PROC) -> int:
    """Bytes of memory that the machine has."""
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "MemTotal":
                return int(value.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def own_cpus(cgroups: Path = CGROUPS, proc: Path = PROC) -> float:
    """CPUs that this process may use: its affinity, and its control groups' quota where there is one."""
    count = float(len(os.sched_getaffinity(0)))
    for folder in _groups(cgroups, proc):
        try:
            quota, period = (folder / "cpu.max").read_text().split()
            count = count if quota == "max" else min(count, int(quota) / int(period))
        except (OSError, ValueError, ZeroDivisionError):
            continue
    return count


def own_memory(cgroups: Path = CGROUPS, proc: Path = PROC) -> int:
    """Bytes of memory that this process may use: the machine's, or its control groups' limit if lower."""
    size = machine_memory(proc)
    for folder in _groups(cgroups, proc):
        for name in ("memory.max", "memory.limit_in_bytes"):
            try:
                size = min(size, int((folder / name).read_text()))
            except (OSError, ValueError):
                continue
    return size


def _groups(cgroups: Path, proc: Path) -> Iterator[Path]:
    """This process's control groups, inner and outer: each may have a limit. Version 1's memory too."""
    yield cgroups
    yield cgroups / "memory"
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        parts = [part for part in path.split("/") if part]
        if ".." in parts or (controllers and "memory" not in controllers.split(",")):
            continue
        base = cgroups / "memory" if controllers else cgroups
        for length in range(1, len(parts) + 1):
            yield base.joinpath(*parts[:length])
