"""Writes the audit to the log after each commit, with the ids by which a job can be found in every log."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

log = logging.getLogger("emep.audit")
LABELS = ("trace_id", "experiment_id", "job_type")
"""What every event of a job carries in its data, and every log line about one."""
JOBS_AT_HAND = "emep jobs"
"""Key of a session's ``info``: the jobs that were read one by one."""
_FREQUENT = frozenset({"submitted", "waiting", "checkpointed", "started", "task_cleared", "held"})
"""Logged at debug level only: there are many, and the job itself shows what they say."""


def write_events(events: Iterable[Mapping[str, Any]]) -> None:
    """Log events that have been committed."""
    if not log.isEnabledFor(logging.INFO):
        return
    for event in events:
        level = logging.DEBUG if event["event"] in _FREQUENT else logging.INFO
        if log.isEnabledFor(level):
            log.log(level, "%s", line(event))


def line(event: Mapping[str, Any]) -> str:
    """``granted job=... epoch=1 trace_id=... : reason``; what is not there is left out."""
    data = event["data"]
    facts = [(name, event[name]) for name in ("allocation_id", "epoch", "node")]
    facts = [("job", event["job_id"]), *facts, *((name, data.get(name)) for name in LABELS)]
    facts += [("code", event["reason_code"]), ("actor", event["actor"])]
    words = [event["event"], *(f"{name}={value}" for name, value in facts if value not in (None, ""))]
    text = " ".join(words) + (f": {event['reason']}" if event["reason"] else "")
    # Reasons are people's and programs' words: they must not make lines of their own.
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def job_words(job: Any) -> str:
    """``job ID (trace_id=..., ...)``: how a log line names a job (or any object with its columns)."""
    known = [f"{name}={getattr(job, name, '')}" for name in LABELS if getattr(job, name, "")]
    return f"job {job.id}" + (f" ({', '.join(known)})" if known else "")
