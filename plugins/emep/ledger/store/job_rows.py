"""Rows of jobs as the scheduling core sees them: which columns are read, and what they mean."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Text, cast

from emep.ledger.store.tables import Job
from emep.policy.model import Policy
from emep.scheduling import model

EARLIER_TRY = "an earlier try of its task, from which it resumes, to end"
JOB_COLUMNS = [
    "id",
    "submitted_at",
    "queue",
    "priority",
    "project",
    "user",
    "gpu_count",
    "node_count",
    "cpu",
    "memory",
    "gpu_memory_min",
    "gpu_type",
    "nvlink_required",
    "topology",
    "max_duration",
    "preemptible",
    "checkpoint_interval",
    "placement",
    "runtime",
    "job_type",
    "preempted",
    "queued_at",
    "not_before",
    "epoch",
    "avoid_nodes",
]
JOB_WIDTH = len(JOB_COLUMNS)


def job_columns() -> list[Any]:
    """``JOB_COLUMNS``; topology as its text, which is decoded once for all jobs that say the same."""
    return [as_text(Job.topology) if name == "topology" else getattr(Job, name) for name in JOB_COLUMNS]


def as_text(column: Any) -> Any:
    """A JSON column as its text under its own name, to be decoded once for all rows that say the same."""
    return cast(column, Text).label(column.key)


def model_job(row: Any, policy: Policy) -> model.Job:
    """A job's row (or any object with its columns) as the core sees it."""
    return _job([getattr(row, name) for name in JOB_COLUMNS], policy)


def job_of_row(row: Any, policy: Policy) -> model.Job:
    """As ``model_job``, of a row that begins with ``job_columns()``: by position, for many rows."""
    return _job(row[:JOB_WIDTH], policy)


def _job(columns: Sequence[Any], policy: Policy) -> model.Job:
    """``columns``: those of ``JOB_COLUMNS``, in that order."""
    (
        job_id,
        submitted_at,
        queue,
        priority,
        project,
        user,
        gpu_count,
        node_count,
        cpu,
        memory,
        gpu_memory_min,
        gpu_type,
        nvlink_required,
        topology,
        max_duration,
        preemptible,
        checkpoint_interval,
        placement,
        runtime,
        job_type,
        preempted,
        queued_at,
        not_before,
        epoch,
        avoid_nodes,
    ) = columns
    where = _where_of_text if isinstance(topology, str) else _where
    required, preferred, affinity, anti_affinity = where(topology, runtime)
    if runtime != "external" and gpu_count > 1:
        # An agent starts an engine on each node of a grant, and a pod stands on one; an NVLink group may be
        # on several.
        nvlink_required = nvlink_required or required == "nvlink"
        required = "node"
    return model.Job(
        id=job_id,
        submit_time=submitted_at,
        queue=queue,
        priority=policy.canonical_class(priority),
        project=project,
        user=user,
        gpu_count=gpu_count,
        node_count=node_count,
        cpu=cpu,
        memory=memory,
        gpu_memory_min=gpu_memory_min,
        gpu_type=gpu_type,
        nvlink_required=nvlink_required,
        topology_required=required,
        topology_preferred=preferred,
        affinity=affinity,
        anti_affinity=anti_affinity,
        max_duration=max_duration,
        preemptible=preemptible,
        checkpoint_interval=checkpoint_interval,
        placement=placement,
        job_type=job_type,
        preempted=preempted,
        queued_at=queued_at,
        not_before=not_before,
        # Before its first allocation nothing can have failed under it: see ``tries.hold_back``.
        waits_for=EARLIER_TRY if not_before and not epoch else "",
        avoid_nodes=tuple(avoid_nodes) if avoid_nodes else (),
    )


Where = tuple[str | None, str | None, tuple[model.LabelTerm, ...], tuple[model.LabelTerm, ...]]
"""What a job asks of the place: required and preferred level, affinity, anti-affinity."""


def _where(topology: Mapping[str, Any] | None, runtime: str) -> Where:
    given = topology or {}
    return (
        given.get("required"),
        given.get("preferred"),
        _terms(given.get("affinity"), runtime == "kubernetes"),
        _terms(given.get("anti_affinity"), runtime == "agent"),
    )


@lru_cache(maxsize=4096)
def _where_of_text(topology: str, runtime: str) -> Where:
    """As ``_where``, of the column's text: thousands of jobs say the same."""
    return _where(json.loads(topology), runtime)


def _terms(labels: Mapping[str, str] | None, on_kubernetes: bool) -> tuple[model.LabelTerm, ...]:
    """The job's own terms, and the one that its runtime adds."""
    if not labels and not on_kubernetes:
        return ()
    wanted = dict(labels or {}) | ({model.RUNTIME_LABEL: model.KUBERNETES} if on_kubernetes else {})
    return tuple(model.LabelTerm(key, value) for key, value in sorted(wanted.items()))
