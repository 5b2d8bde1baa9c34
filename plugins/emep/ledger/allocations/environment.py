"""The engine's environment variables that the control plane decides; the agent adds the rest."""

from __future__ import annotations

import hashlib
import json
import re

from emep.layout import checkpoint_folder
from emep.ledger.jobs import confinement as confines
from emep.ledger.store.tables import Allocation, Job
from emep.policy.sections import LeasePolicy, RootsPolicy
from emep.settings import Settings

_TRACE = re.compile(r"[0-9a-f]{32}")


def traceparent(job: Job, epoch: int) -> str:
    """W3C trace context of a run.

    The trace is the job's ``trace_id`` if that is a valid one, else it is derived from the job's id.
    """
    trace = job.trace_id.lower()
    if not _TRACE.fullmatch(trace) or set(trace) == {"0"}:
        trace = hashlib.sha256(f"trace {job.trace_id or job.id}".encode()).hexdigest()[:32]
    span = hashlib.sha256(f"span {job.id} {epoch}".encode()).hexdigest()[:16]
    return f"00-{trace}-{span}-01"


def engine_environment(
    job: Job,
    allocation: Allocation,
    node: str,
    settings: Settings,
    lease: LeasePolicy | None = None,
    roots: RootsPolicy | None = None,
) -> dict[str, str]:
    """EMEP_* and TRACEPARENT of one node's part of an allocation.

    ``lease``: how often the supervisor renews it and how long it bears silence; None: its own defaults.
    ``roots``: what the policy opens to every job beyond its own run.
    """
    environment = {
        "EMEP_JOB_ID": job.id,
        "EMEP_ALLOCATION_ID": allocation.id,
        "EMEP_LEASE_EPOCH": str(allocation.epoch),
        "EMEP_CHECKPOINT_URI": (
            f"{settings.checkpoint_uri.rstrip('/')}/{checkpoint_folder(job.user, job.checkpoint_key)}"
        ),
        confines.VARIABLE: confines.confines(job, roots or RootsPolicy()),
        "EMEP_ARTIFACT_URI": settings.artifact_uri,
        "EMEP_TRACKER_URI": settings.tracker_uri,
        "EMEP_TRACE_ID": job.trace_id,
        "EMEP_EXPERIMENT_ID": job.experiment_id,
        "EMEP_JOB_TYPE": job.job_type,
        "TRACEPARENT": traceparent(job, allocation.epoch),
    }
    if lease is not None:
        environment["EMEP_HEARTBEAT_SECONDS"] = f"{lease.heartbeat:g}"
        environment["EMEP_MAX_SILENCE_SECONDS"] = f"{lease.max_silence:g}"
    if job.checkpoint_interval is not None:
        environment["EMEP_CHECKPOINT_SECONDS"] = f"{job.checkpoint_interval:g}"
    if len(allocation.nodes) > 1:
        environment["NNODES"] = str(len(allocation.nodes))
        environment["NODE_RANK"] = str(allocation.nodes.index(node))
        environment["EMEP_NODES"] = json.dumps(allocation.nodes)
    return environment
