"""Converting the node list of Alibaba's heterogeneous cluster of 2023 (openb) to ``CLUSTER.yaml``.

Columns used: ``sn`` (name), ``cpu_milli``, ``memory_mib``, ``gpu`` (count) and ``model``. Nodes without
GPUs stay: they run CPU jobs. The list says nothing of NVLink; ``group`` GPUs of a node are taken as one.
"""

from __future__ import annotations

from pathlib import Path

from emep.simulation.read.cells import read_table
from emep.simulation.read.errors import InputError

COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")


def convert_openb(path: str | Path, group: int = 4) -> str:
    """The ``CLUSTER.yaml`` of a node list; nodes whose GPUs ``group`` does not divide are one group each."""
    lines = ["nodes:"]
    for row in read_table(path, COLUMNS, COLUMNS):
        cpu, memory, gpus = (row.integer(name, 0) or 0 for name in ("cpu_milli", "memory_mib", "gpu"))
        nvlink = str(group) if gpus > group and gpus % group == 0 else "node"
        model = row.text("model")
        kind = f', gpu_type: "{model}"' if gpus and model else ""
        lines.append(
            f'  - {{name: "{row.required("sn")}", gpus: {gpus}{kind}, nvlink: {nvlink},'
            f" cpu: {cpu / 1000:g}, memory: {memory}Mi}}"
        )
    if len(lines) == 1:
        raise InputError(path, None, "", "holds no nodes: expected at least one line below the header")
    return "\n".join(lines) + "\n"
