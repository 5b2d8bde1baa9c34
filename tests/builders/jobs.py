"""Jobs as the API shows them, for tests of operators and triggers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from emep.wire.jobs import JobView


def job_view(state: str = "pending", **fields: Any) -> JobView:
    """A job in a state; everything else is ordinary."""
    now = datetime(2025, 1, 1, tzinfo=UTC)
    ordinary: dict[str, Any] = {
        "id": "job-1",
        "state": state,
        "queue": "merge",
        "priority": "normal",
        "project": "default",
        "user": "alice",
        "gpu_count": 1,
        "nvlink_required": False,
        "job_type": "merge",
        "trace_id": "t",
        "experiment_id": "e",
        "runtime": "agent",
        "epoch": 0 if state == "pending" else 1,
        "try_number": 1,
        "preempted": False,
        "requeues": 0,
        "submitted_at": now,
        "queued_at": now,
        "started_at": None,
        "ended_at": None,
        "nodes": [],
        "gpus": [],
        "allocation_id": None,
        "reason": "",
        "exit_code": None,
        "result": None,
        "airflow": None,
        "last_checkpoint": None,
    }
    return JobView.model_validate(ordinary | fields)
