"""Every call of the REST API, once: what is sent, what comes back, and whether it may be repeated.

A function here returns a ``Call``; both clients send it. The documents' models are imported when the first
answer is read, because the command line prints JSON as it comes and should start fast.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from emep.client.call import ANSWER_MARGIN, Call
from emep.client.call import at as _at

if TYPE_CHECKING:
    from emep.wire.allocations import Completion, Heartbeat, HeartbeatAnswer, LogChunk, LogReceipt
    from emep.wire.health import Checkup
    from emep.wire.jobs import Changes, Explanation, Explanations, JobRequest, JobView, Page
    from emep.wire.leases import LeaseAnswer, Loss, NodeReadiness
    from emep.wire.nodes import HealthReport, NodeRequest, NodeView, PollAnswer, PollRequest, ReportAnswer
    from emep.wire.operations import BatchAnswer

__all__ = [
    "ANSWER_MARGIN",
    "Call",
    "allocation",
    "append_logs",
    "cancel",
    "changes",
    "check_nodes",
    "complete",
    "dag",
    "dag_run",
    "explain",
    "explain_jobs",
    "gone",
    "heartbeat",
    "job",
    "job_events",
    "jobs",
    "lease",
    "leaving",
    "logs",
    "lost",
    "node",
    "nodes",
    "poll",
    "readiness",
    "register_node",
    "report_health",
    "submit_job",
    "submit_jobs",
    "task_instances",
    "trigger_dag",
]


# --- jobs ---------------------------------------------------------------------------------------------------


def submit_job(request: JobRequest) -> Call[JobView]:
    """Ask for an allocation; with an idempotency key the same request twice is one job."""
    return Call("POST", "/jobs", "JobView", body=request, repeatable=bool(request.idempotency_key))


def job(job_id: str) -> Call[JobView]:
    """One job."""
    return Call("GET", _at("jobs", job_id), "JobView")


def jobs(
    states: Collection[str] = (),
    *,
    queue: str | None = None,
    project: str | None = None,
    user: str | None = None,
    dag_id: str | None = None,
    run_id: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[Page]:
    """A page of jobs, newest first; no ``states``: all of them. ``cursor`` is the last page's ``next``."""
    params = {
        "state": list(states) or None,
        "queue": queue,
        "project": project,
        "user": user,
        "dag_id": dag_id,
        "run_id": run_id,
        "limit": limit,
        "next": cursor,
    }
    return Call("GET", "/jobs", "Page", params=params)


def changes(since: int, timeout: float = 20.0, ids: Collection[str] | None = None) -> Call[Changes]:
    """Jobs that changed since a cursor (0: all), of ``ids`` only where given; waits for the first one.

    ``timeout`` is at most 30 seconds.
    """
    params = {"since": since, "timeout": timeout, "ids": None if ids is None else ",".join(ids)}
    return Call("GET", "/jobs:changes", "Changes", params=params, wait=timeout)


def explain(job_id: str) -> Call[Explanation]:
    """Why a job waits, every term of its score, its estimated start."""
    return Call("GET", _at("jobs", job_id, "explain"), "Explanation")


def explain_jobs(ids: Collection[str]) -> Call[Explanations]:
    """The same for several jobs at once, out of one plan."""
    return Call("GET", "/jobs:explain", "Explanations", params={"ids": ",".join(ids)})


def job_events(job_id: str, limit: int = 200) -> Call[Page]:
    """What happened to a job, newest first."""
    return Call("GET", _at("jobs", job_id, "events"), "Page", params={"limit": limit})


def cancel(job_id: str, reason: str = "", if_unwanted: bool = False) -> Call[JobView]:
    """Cancel a job; a running one is told to stop. ``if_unwanted``: only if its Airflow task gave it up."""
    params = {"reason": reason or None, "if_unwanted": "true" if if_unwanted else None}
    return Call("DELETE", _at("jobs", job_id), "JobView", params=params)


def submit_jobs(requests: Collection[JobRequest | Mapping[str, Any]]) -> Call[BatchAnswer]:
    """Ask for up to 1000 allocations at once; each has its own outcome, in their order."""
    documents = [
        dict(one) if isinstance(one, Mapping) else one.model_dump(mode="json", exclude_unset=True)
        for one in requests
    ]
    has_keys = all(document.get("idempotency_key") for document in documents)
    body = {"jobs": documents}
    return Call("POST", "/jobs:batch", "BatchAnswer", body=body, repeatable=has_keys)


# --- nodes --------------------------------------------------------------------------------------------------


def nodes(*, limit: int | None = None, cursor: str | None = None) -> Call[Page]:
    """A page of nodes with their GPUs, by name; a thousand of them where no limit is given."""
    return Call("GET", "/nodes", "Page", params={"limit": limit, "next": cursor})


def node(name: str) -> Call[NodeView]:
    """One node."""
    return Call("GET", _at("nodes", name), "NodeView")


def register_node(request: NodeRequest) -> Call[NodeView]:
    """Announce a node; the same name again replaces its description."""
    return Call("POST", "/nodes", "NodeView", body=request)


def report_health(name: str, report: HealthReport) -> Call[ReportAnswer]:
    """The ten-second report."""
    return Call("POST", _at("nodes", name, "health"), "ReportAnswer", body=report)


def poll(name: str, request: PollRequest) -> Call[PollAnswer]:
    """Wait for orders to start and to stop; they are repeated until they show in ``running``."""
    return Call("POST", _at("nodes", name, "poll"), "PollAnswer", body=request, wait=request.timeout)


def check_nodes(since: int | None = None, timeout: float = 0.0) -> Call[Checkup]:
    """Check every node, GPU and lease now; waits for the first finding after ``since``.

    ``timeout`` is at most 30 seconds; no ``since``: from now on.
    """
    params = {"since": since, "timeout": timeout}
    return Call("POST", "/nodes:check", "Checkup", params=params, wait=timeout)


def readiness(name: str, said: NodeReadiness) -> Call[NodeView]:
    """What the cluster manager says of a node."""
    return Call("PUT", _at("nodes", name, "readiness"), "NodeView", body=said)


# --- allocations --------------------------------------------------------------------------------------------


def heartbeat(allocation_id: str, beat: Heartbeat) -> Call[HeartbeatAnswer]:
    """Renew a lease; the answer says what to do."""
    return Call("POST", _at("allocations", allocation_id, "heartbeat"), "HeartbeatAnswer", body=beat)


def append_logs(allocation_id: str, offset: int, content: bytes, final: bool = False) -> Call[LogReceipt]:
    """Bytes of the log from ``offset`` on, as they are; ``final``: nothing more comes.

    What the server has already is skipped, so repeating is harmless; a gap is refused (409 with
    ``expected_offset``).
    """
    params = {"offset": offset, "final": "true" if final else None}
    path = _at("allocations", allocation_id, "logs")
    return Call("POST", path, "LogReceipt", params=params, body=content)


def logs(allocation_id: str, offset: int = 0) -> Call[LogChunk]:
    """Text of the log from a byte offset on, until ``complete``."""
    return Call("GET", _at("allocations", allocation_id, "logs"), "LogChunk", params={"offset": offset})


def complete(allocation_id: str, completion: Completion) -> Call[JobView]:
    """Report the end of an allocation's work; may be repeated, but an old epoch is refused (409)."""
    return Call("POST", _at("allocations", allocation_id, "complete"), "JobView", body=completion)


def lease(allocation_id: str, *, started: bool = False) -> Call[LeaseAnswer]:
    """Token and environment of work that the asker starts itself; ``started``: it has been created."""
    return Call("POST", _at("allocations", allocation_id, "lease"), "LeaseAnswer", body={"started": started})


def lost(allocation_id: str, loss: Loss) -> Call[JobView]:
    """Report work as lost, without EMEP having asked for that: its job is requeued in the same try."""
    return Call("POST", _at("allocations", allocation_id, "lost"), "JobView", body=loss)


def gone(allocation_id: str) -> Call[Any]:
    """Report that nothing of an ended allocation runs any more."""
    return Call("POST", _at("allocations", allocation_id, "gone"))


def leaving(runtime: str = "kubernetes") -> Call[Page]:
    """Allocations of a runtime (kubernetes, external) that are over, and not confirmed gone."""
    return Call(
        "GET",
        "/allocations:leaving",
        "Page",
        params={"runtime": None if runtime == "kubernetes" else runtime},
    )


def allocation(allocation_id: str) -> Call[Any]:
    """One allocation, as JSON."""
    return Call("GET", _at("allocations", allocation_id))


# --- Airflow's own public API -------------------------------------------------------------------------------


def trigger_dag(dag_id: str, conf: Mapping[str, Any], run_id: str | None = None) -> Call[Any]:
    """Start a DAG run with ``conf``; with a run id of the caller's own, a repeated call is refused (409)."""
    body = {"logical_date": None, "conf": dict(conf), **({"dag_run_id": run_id} if run_id else {})}
    return Call("POST", f"/api/v2{_at('dags', dag_id, 'dagRuns')}", body=body, repeatable=False, airflow=True)


def dag(dag_id: str) -> Call[Any]:
    """A DAG: ``is_paused``, ``has_import_errors`` and so on."""
    return Call("GET", f"/api/v2{_at('dags', dag_id)}", airflow=True)


def dag_run(dag_id: str, run_id: str) -> Call[Any]:
    """A DAG run: ``state`` and its times."""
    return Call("GET", f"/api/v2{_at('dags', dag_id, 'dagRuns', run_id)}", airflow=True)


def task_instances(dag_id: str, run_id: str, offset: int = 0, limit: int = 100) -> Call[Any]:
    """A page of a run's task instances: ``task_instances`` and ``total_entries``."""
    path = f"/api/v2{_at('dags', dag_id, 'dagRuns', run_id, 'taskInstances')}"
    return Call("GET", path, params={"offset": offset, "limit": limit}, airflow=True)
