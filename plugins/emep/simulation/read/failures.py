"""Reading ``--failures``: when nodes and GPUs go away, and when they come back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from emep.scheduling.model import Node
from emep.simulation.read.cells import Row, read_table
from emep.simulation.read.errors import nearest

COLUMNS = ("time", "target", "event")


@dataclass(frozen=True, slots=True)
class Failure:
    """At ``time`` a node (``gpu`` None) or one GPU goes down or comes back up."""

    time: float
    node: str
    gpu: int | None
    down: bool


def read_failures(path: str | Path, nodes: Sequence[Node]) -> list[Failure]:
    """All events by time, the file's order among equals; raises InputError naming file, line and column."""
    gpus = {node.name: frozenset(gpu.index for gpu in node.gpus) for node in nodes}
    found = []
    for row in read_table(path, COLUMNS, COLUMNS):
        name, gpu = _target(row, gpus)
        event = row.choice("event", ("down", "up"))
        if event is None:
            row.refuse("event", "is empty: expected down or up")
        found.append(Failure(row.time("time"), name, gpu, event == "down"))
    return sorted(found, key=lambda failure: failure.time)


def _target(row: Row, gpus: dict[str, frozenset[int]]) -> tuple[str, int | None]:
    target = row.required("target")
    if target in gpus:
        return target, None
    name, colon, index = target.rpartition(":")
    if not colon:
        row.refuse("target", f"no such node {target!r}: {nearest(target, gpus)}")
    if name not in gpus:
        row.refuse("target", f"no such node {name!r}: {nearest(name, gpus)}")
    if not (index.isascii() and index.isdigit()) or int(index) not in gpus[name]:
        row.refuse("target", f"{name} has GPUs 0 to {max(gpus[name], default=-1)}, not {index!r}")
    return name, int(index)
