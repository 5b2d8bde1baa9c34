"""Which quick failures are a node's fault, and which jobs are one and the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from emep.ledger.store.tables import Job


def to_blame(
    failures: Sequence[Mapping[str, Any]], enough: int, elsewhere: Collection[str] = ()
) -> list[Mapping[str, Any]]:
    """The quick failures that are a node's fault, if they are those of ``enough`` different jobs; else none.

    ``enough`` of 0 blames no node.

    ``elsewhere``: the reasons of what has failed quickly on other nodes lately.
    """
    certain = [entry for entry in failures if entry["completed"]]
    open_ones = [
        entry
        for entry in failures
        if not entry["completed"] and not entry["elsewhere"] and entry["reason"] not in elsewhere
    ]
    never_began = [entry for entry in open_ones if not entry["began"]]
    began = [entry for entry in open_ones if entry["began"]]
    if len({entry["user"] for entry in began}) < 2 or len({entry["recipe"] for entry in began}) < 2:
        began = []
    counted = [entry for entry in failures if entry in certain or entry in never_began or entry in began]
    is_enough = 0 < enough <= len({entry["job"] for entry in counted})
    return counted if is_enough else []


def task_key(job: Job) -> str:
    """The same for all tries of one task, and for all runs of a job that no task asked for."""
    if job.dag_id is None:
        return job.id
    return json.dumps([job.submitted_by, job.dag_id, job.run_id, job.task_id, job.map_index])


def recipe_of(job: Job) -> str:
    """The same for jobs that do the same to the same input."""
    asked = {name: (job.spec or {}).get(name) for name in ("engine", "input")}
    text = json.dumps([job.job_type, asked], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
