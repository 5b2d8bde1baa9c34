"""Tells a repeated request from a different one that reuses its idempotency key.

Each account has keys of its own. Fields that decide about the work must be equal. Fields that only describe
this sending may differ: its trace, and what Airflow says of the try at that time (how long it may still take,
whether it is the last one, when its run began).
"""

from __future__ import annotations

from typing import Any

from emep.ledger.store.tables import Job
from emep.wire.errors import ConflictError
from emep.wire.job_fields import DESCRIPTIVE, JOB_FIELDS, NOT_STORED

DECIDES = {
    **{name: name for name in JOB_FIELDS if name not in NOT_STORED | DESCRIPTIVE},
    "spec": "spec",
    "checkpoint_key": "checkpoint_key",
    "dag_id": "airflow.dag_id",
    "run_id": "airflow.run_id",
    "task_id": "airflow.task_id",
    "map_index": "airflow.map_index",
    "try_number": "airflow.try_number",
}
"""Columns of a job that must be the same, by the names that requests have for them."""
_LOST_BY_PROMOTION = frozenset({"node_count", "gpu_memory_min", "gpu_type", "nvlink_required", "topology"})
"""Fields that are not compared for a job that was moved to the CPU, as their first values are not kept."""
_LONGEST = 80


def check_repeat(job: Job, asked: dict[str, Any]) -> None:
    """Raise ConflictError (409), which names the field, where ``asked`` is not the request that made ``job``.

    ``asked``: the columns of a request that has been judged (``Prepared.values``).
    """
    promoted = job.promoted_from_gpus is not None
    for column, field in DECIDES.items():
        if promoted and column in _LOST_BY_PROMOTION:
            continue
        before, now = getattr(job, column), asked[column]
        if column == "checkpoint_key":
            # Without one a job's own id is it.
            before, now = ("" if before == job.id else before), now or ""
        if promoted and column == "gpu_count":
            before = job.promoted_from_gpus
        if promoted and column == "spec":
            before, now = _without_device(before), _without_device(now)
        where = difference(before, now, field)
        if where is not None:
            path, was, is_now = where
            made = f"job {job.id}" if job.id else "a job of this batch"
            raise ConflictError(
                f"{path}: idempotency key {job.idempotency_key!r:.100} has made {made} with {_short(was)}, "
                f"and this request has {_short(is_now)}. Send the same request again, or use another key",
                code="key_reused",
                field=path,
                job_id=job.id or None,
            )


def difference(before: Any, now: Any, path: str) -> tuple[str, Any, Any] | None:
    """Where two JSON values differ first: the path, and both values; None where they are the same.

    As in JSON ``true`` is not 1, and 1.0 is 1.
    """
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}):
            below = f"{path}.{key}"
            if key not in before or key not in now:
                return below, before.get(key), now.get(key)
            found = difference(before[key], now[key], below)
            if found is not None:
                return found
        return None
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for index, (one, other) in enumerate(zip(before, now, strict=True)):
            found = difference(one, other, f"{path}[{index}]")
            if found is not None:
                return found
        return None
    same = before == now and isinstance(before, bool) == isinstance(now, bool)
    return None if same else (path, before, now)


def _without_device(spec: dict[str, Any] | None) -> dict[str, Any] | None:
    if spec is None:
        return None
    return {name: value for name, value in spec.items() if name not in ("chunked", "device")}


def _short(value: Any) -> str:
    text = "nothing" if value is None or value == "" else repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
