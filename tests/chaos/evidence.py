"""Gathering the evidence: the ledger's rows, the engines' witness files and step logs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session
from tests.chaos.model import (
    AuditEvent,
    Evidence,
    JobRow,
    Outage,
    Probe,
    StepLine,
    TaskRow,
    UsageRow,
    WitnessLine,
)

from emep.layout import checkpoint_folder
from emep.ledger.store.tables import Event, Job, Usage


def gather(
    engine: Engine,
    folder: Path,
    *,
    probes: list[Probe],
    outages: list[Outage],
    left_over: list[str],
    tasks: list[TaskRow],
) -> Evidence:
    """Everything that the invariants look at. Read it once nothing runs any more."""
    with Session(engine) as session:
        events = tuple(
            AuditEvent(
                row.id,
                row.time,
                row.event,
                row.job_id,
                row.allocation_id,
                row.epoch,
                row.node,
                row.reason_code,
                row.reason,
                row.data or {},
            )
            for row in session.scalars(select(Event).order_by(Event.id))
        )
        jobs = tuple(
            JobRow(
                row.id,
                row.state,
                row.epoch,
                row.queue,
                row.project,
                row.user,
                row.gpu_count,
                row.requeues,
                row.preemptions,
                row.exit_code,
                row.reason,
                row.result,
                checkpoint_folder(row.user, row.checkpoint_key).rpartition("/")[2],
                f"{row.dag_id}/{row.run_id}/{row.task_id}" if row.dag_id else "",
            )
            for row in session.scalars(select(Job).order_by(Job.id))
        )
        usage = tuple(
            UsageRow(row.queue, row.project, row.user, row.gpu_seconds)
            for row in session.scalars(select(Usage))
        )
    return Evidence(
        events,
        jobs,
        usage,
        tuple(WitnessLine(**line) for path in _files(folder / "witness") for line in lines(path)),
        tuple(StepLine(log=path.stem, **line) for path in _files(folder / "steps") for line in lines(path)),
        tuple(probes),
        tuple(outages),
        tuple(left_over),
        tuple(tasks),
    )


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jsonl"))


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON lines of a file. Raises ValueError for one that is not whole: each was one write."""
    for line in path.read_text().splitlines():
        yield json.loads(line)
