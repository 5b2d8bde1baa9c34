"""Every call of the REST API, once: what is sent, what comes back, and whether it may be repeated.

A function here returns a ``Call``; both clients send it. The documents' models are imported when the first
answer is read, because the command line prints JSON as it comes and should start fast.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar
from urllib.parse import quote

from emep.client.errors import EmepApiError

if TYPE_CHECKING:
    from emep.api.schemas import (
        Changes,
        Checkup,
        Completion,
        Explanation,
        HealthReport,
        Heartbeat,
        HeartbeatAnswer,
        JobRequest,
        JobView,
        LeaseAnswer,
        LogChunk,
        LogReceipt,
        Loss,
        NodeReadiness,
        NodeRequest,
        NodeView,
        Page,
        PollAnswer,
        PollRequest,
    )

T = TypeVar("T")

ANSWER_MARGIN = 20.0
"""Seconds that an answer may take, for a long poll beyond the time that it was told to wait."""


class Document(Protocol):
    """A pydantic model, as far as it is used here."""

    def model_dump(self, *, mode: str, exclude_unset: bool) -> dict[str, Any]: ...  # noqa: D102


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request. ``answer`` names the schema that the answer is read as; None leaves it as JSON."""

    method: str
    path: str
    answer: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    body: Document | Mapping[str, Any] | bytes | None = None
    repeatable: bool = True
    """Doing it twice is the same as doing it once."""
    wait: float = 0.0
    """Seconds that the server may hold the answer back (long poll)."""
    airflow: bool = False
    """The path stands below Airflow's own URL, not below EMEP's."""

    def request_arguments(self) -> dict[str, Any]:
        """Arguments of httpx's ``build_request`` beside method and URL."""
        arguments: dict[str, Any] = {"params": {k: v for k, v in self.params.items() if v is not None}}
        if isinstance(self.body, bytes):
            arguments["content"] = self.body
            arguments["headers"] = {"Content-Type": "application/octet-stream"}
        elif isinstance(self.body, Mapping):
            arguments["json"] = dict(self.body)
        elif self.body is not None:
            # What was left out stays out, so that the server's defaults hold.
            arguments["json"] = self.body.model_dump(mode="json", exclude_unset=True)
        return arguments

    def read(self, document: Any) -> T:
        """The answer as its model. Raises EmepApiError where the server speaks another language."""
        if self.answer is None:
            return document  # type: ignore[no-any-return]
        from emep.api import schemas

        try:
            return getattr(schemas, self.answer).model_validate(document)  # type: ignore[no-any-return]
        except ValueError as error:
            first = str(error).splitlines()[1:2]
            raise EmepApiError(
                200,
                "Unknown answer",
                f"{self.method} {self.path} answered something other than a {self.answer} "
                f"({', '.join(first)}): are client and server of one version?",
            ) from error


def _at(*parts: object) -> str:
    """A path whose parts are quoted: a job id with a slash stays one part."""
    return "".join("/" + quote(str(part), safe=":") for part in parts)


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


def cancel(job_id: str, reason: str = "") -> Call[JobView]:
    """Cancel a job; one that runs is told to stop."""
    return Call("DELETE", _at("jobs", job_id), "JobView", params={"reason": reason or None})


# --- nodes --------------------------------------------------------------------------------------------------


def nodes() -> Call[Page]:
    """All nodes with their GPUs."""
    return Call("GET", "/nodes", "Page")


def node(name: str) -> Call[NodeView]:
    """One node."""
    return Call("GET", _at("nodes", name), "NodeView")


def register_node(request: NodeRequest) -> Call[NodeView]:
    """Announce a node; the same name again replaces its description."""
    return Call("POST", "/nodes", "NodeView", body=request)


def report_health(name: str, report: HealthReport) -> Call[NodeView]:
    """The ten-second report."""
    return Call("POST", _at("nodes", name, "health"), "NodeView", body=report)


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
    """The end of an allocation's work; the same call again is answered the same, an old epoch with 409."""
    return Call("POST", _at("allocations", allocation_id, "complete"), "JobView", body=completion)


def lease(allocation_id: str, *, started: bool = False) -> Call[LeaseAnswer]:
    """Token and environment of work that the asker starts itself; ``started``: it has been created."""
    return Call("POST", _at("allocations", allocation_id, "lease"), "LeaseAnswer", body={"started": started})


def lost(allocation_id: str, loss: Loss) -> Call[JobView]:
    """The work was lost, by nobody's will of EMEP's: its job goes back in the same try."""
    return Call("POST", _at("allocations", allocation_id, "lost"), "JobView", body=loss)


def gone(allocation_id: str) -> Call[Any]:
    """Nothing of an allocation that is over runs any more."""
    return Call("POST", _at("allocations", allocation_id, "gone"))


def leaving() -> Call[Page]:
    """Allocations of pods that are over, and whose pods nobody has seen leave."""
    return Call("GET", "/allocations:leaving", "Page")


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
