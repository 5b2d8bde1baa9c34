"""The output folder: written beside, renamed at the end, never half-filled and never over another's files."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from emep.simulation.errors import InputError
from emep.simulation.recording import Recording, number

JOB_COLUMNS = (
    "job_id", "state", "submit_time", "start_time", "end_time", "wait_time", "preemptions", "nodes", "gpus",
    "reason",
)  # fmt: skip
OWN_FILES = frozenset({"jobs.csv", "events.jsonl", "summary.json", "report.html", "compare"})
"""What a simulation writes; a folder that holds anything else is not replaced."""


def check_folder(folder: str | Path, *, force: bool) -> None:
    """Raise InputError unless ``folder`` may be written: new, or a former simulation's and ``force``."""
    path = Path(folder)
    if not os.path.lexists(path):
        return
    if not force:
        raise InputError(path, None, "--out", "exists already: name a new folder, or replace it with --force")
    if path.is_symlink() or not path.is_dir():
        raise InputError(path, None, "--out", "is not a folder: name a new one")
    foreign = sorted(item.name for item in path.iterdir() if item.name not in OWN_FILES)
    if foreign:
        raise InputError(
            path, None, "--out", f"holds {foreign[0]!r}, which no simulation wrote: name a new folder"
        )


def write_folder(folder: str | Path, *, force: bool, fill: Callable[[Path], None]) -> None:
    """Let ``fill`` write into a folder beside ``folder``, then put it in its place, all or nothing."""
    target = Path(folder)
    check_folder(target, force=force)
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.parent / f".{target.name}.{os.getpid()}.tmp"
    former = target.parent / f".{target.name}.{os.getpid()}.old"
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir()
    try:
        fill(beside)
        check_folder(target, force=force)
        if target.exists():
            target.rename(former)
        beside.rename(target)
    except BaseException:
        if former.exists() and not target.exists():
            former.rename(target)
        shutil.rmtree(beside, ignore_errors=True)
        raise
    shutil.rmtree(former, ignore_errors=True)


def jobs_csv(recording: Recording) -> str:
    """One line a job, in the order of the workload."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(JOB_COLUMNS)
    for outcome in recording.outcomes:
        job = outcome.spec.job
        writer.writerow(
            (
                job.id,
                outcome.state.value,
                number(job.submit_time),
                "" if outcome.first_start is None else number(outcome.first_start),
                "" if outcome.end is None else number(outcome.end),
                number(outcome.wait),
                outcome.preemptions,
                ";".join(outcome.nodes),
                ";".join([f"{node}:{index}" for node, index in outcome.gpus]),
                outcome.reason,
            )
        )
    return text.getvalue()


def events_jsonl(recording: Recording) -> str:
    """One JSON document a line, in the order of virtual time."""
    return "".join(f"{line}\n" for line in recording.events)


def summary_json(summary: Mapping[str, Any]) -> str:
    """The figures as an indented JSON document."""
    return json.dumps(summary, indent=2, ensure_ascii=False) + "\n"


def write_files(folder: Path, files: dict[str, str]) -> None:
    """Write texts into a folder, each one beside and renamed; says on standard output what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        beside = folder / f".{name}.tmp"
        beside.write_text(text, encoding="utf-8")
        beside.replace(folder / name)
        sys.stdout.write(f"{folder / name}\n")
