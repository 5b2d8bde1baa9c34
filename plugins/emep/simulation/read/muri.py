"""Converting the traces of Muri (derived from Microsoft's Philly cluster) to the native form.

Columns used: ``job_id``, ``num_gpu``, ``submit_time`` and ``duration`` (both milliseconds), ``model_name``,
which becomes the job type. Everything else describes training iterations and has no meaning for a scheduler.
"""

from __future__ import annotations

from pathlib import Path

from emep.simulation.read.cells import Row, read_table
from emep.simulation.read.errors import InputError
from emep.simulation.run.recording import number

COLUMNS = (
    "job_id", "num_gpu", "submit_time", "iterations", "model_name", "batch_size", "duration", "interval",
    "iteration_time", "resource_time_0", "resource_time_1", "resource_time_2", "priority",
)  # fmt: skip
_USED = ("job_id", "num_gpu", "submit_time", "duration", "model_name")
NATIVE_HEADER = "job_id,submit_time,duration,gpu_count,job_type"


def convert_muri(path: str | Path) -> str:
    """The native ``JOBS.csv`` of a trace; raises InputError naming file, line and column."""
    lines = [NATIVE_HEADER]
    for row in read_table(path, COLUMNS, _USED):
        gpus = row.integer("num_gpu", 1)
        if gpus is None:
            row.refuse("num_gpu", "is empty: expected a number of GPUs")
        name = row.text("model_name")
        if "," in name or '"' in name:
            row.refuse("model_name", f"expected a name without commas and quotes, not {name!r}")
        submit, duration = _seconds(row, "submit_time"), _seconds(row, "duration")
        lines.append(f"{row.required('job_id')},{submit},{duration},{gpus},{name}")
    if len(lines) == 1:
        raise InputError(path, None, "", "holds no jobs: expected at least one line below the header")
    return "\n".join(lines) + "\n"


def muri_cluster(nodes: int, gpus: int) -> str:
    """A ``CLUSTER.yaml`` of equal nodes without racks, for replays where topology is not asked for."""
    return f"nodes:\n  - name: node\n    count: {nodes}\n    gpus: {gpus}\n    nvlink: node\n"


def _seconds(row: Row, column: str) -> str:
    return number(row.time(column) / 1000.0)
