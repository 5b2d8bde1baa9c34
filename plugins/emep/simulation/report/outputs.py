"""The output folder: written beside, renamed at the end, never half-filled and never over another's files."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from emep.simulation.read.errors import InputError
from emep.simulation.run.recording import Recording, number

JOB_COLUMNS = (
    "job_id", "state", "submit_time", "start_time", "end_time", "wait_time", "preemptions", "nodes", "gpus",
    "reason",
)  # fmt: skip
MANIFEST = "emep_simulate.json"
"""Says which files a simulation has written, by their digests; a folder that holds anything else is not
replaced."""


def check_folder(folder: str | Path, *, force: bool, inputs: Iterable[str | Path] = ()) -> None:
    """Raise InputError unless ``folder`` may be written: new, or a former simulation's and ``force``.

    One that is or holds an input, the working folder, or a file that is not as a simulation wrote it is never
    replaced.
    """
    path = Path(folder)
    if not os.path.lexists(path):
        return
    if not force:
        raise InputError(path, None, "--out", "exists already: name a new folder, or replace it with --force")
    if path.is_symlink() or not path.is_dir():
        raise InputError(path, None, "--out", "is not a folder: name a new one")
    mine = path.resolve()
    for place in (*inputs, Path.cwd()):
        if Path(place).resolve().is_relative_to(mine):
            raise InputError(path, None, "--out", f"is or holds {place}, which is in use: name a new folder")
    foreign = _foreign(path)
    if foreign is not None:
        raise InputError(
            path, None, "--out", f"holds {foreign!r}, which no simulation wrote: name a new folder"
        )


def _foreign(folder: Path) -> str | None:
    """The first of a folder's files that is not as its manifest says; None where all are."""
    try:
        written = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["outputs"]
    except (OSError, ValueError, KeyError, TypeError):
        written = {}
    for name, file in _files(folder):
        known = written.get(name) if isinstance(written, dict) else None
        if name != MANIFEST and (known is None or file.is_symlink() or _digest(file) != known):
            return name
    return None


def _files(folder: Path) -> list[tuple[str, Path]]:
    """What lies in a folder and is none itself, by its path below it."""
    found = ((str(file.relative_to(folder)), file) for file in folder.rglob("*"))
    return sorted((name, file) for name, file in found if file.is_symlink() or not file.is_dir())


def _digest(file: Path) -> str:
    if not file.is_file():
        return ""
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def write_folder(
    folder: str | Path, *, force: bool, fill: Callable[[Path], None], inputs: Iterable[str | Path] = ()
) -> None:
    """Let ``fill`` write into a folder beside ``folder``, then put it in its place, all or nothing."""
    target, read = Path(folder), tuple(inputs)
    check_folder(target, force=force, inputs=read)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Names of this command's own: what lies there under others belongs to a person.
    beside = target.parent / f".{target.name}.{uuid.uuid4().hex}.tmp"
    former = target.parent / f".{target.name}.{uuid.uuid4().hex}.old"
    beside.mkdir()
    try:
        fill(beside)
        outputs = {name: _digest(file) for name, file in _files(beside)}
        manifest = json.dumps({"schema_version": 1, "outputs": outputs}, indent=2, sort_keys=True)
        (beside / MANIFEST).write_text(manifest + "\n", encoding="utf-8")
        check_folder(target, force=force, inputs=read)
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
