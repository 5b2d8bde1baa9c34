"""Validates requests before they are written: the columns they become, and whether they can ever run."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from sqlalchemy import inspect

from emep.ledger.context import LedgerContext
from emep.ledger.jobs.confinement import check_spec
from emep.ledger.store.job_rows import model_job
from emep.ledger.store.tables import Job
from emep.policy.model import Policy
from emep.scheduling.intake import validate_job
from emep.scheduling.model import Reject, RejectCode
from emep.wire.engines import check_engine, check_startable
from emep.wire.errors import InvalidError
from emep.wire.job_fields import JOB_FIELDS, NOT_STORED
from emep.wire.jobs import JobRequest

_CAPACITY = frozenset(RejectCode) - {
    RejectCode.UNKNOWN_CLASS,
    RejectCode.UNKNOWN_QUEUE,
    RejectCode.NOT_DIVISIBLE,
    RejectCode.OVER_QUOTA,
}
"""What depends on the nodes that there are: decided once there are any."""
_AS_ASKED = tuple(name for name in JOB_FIELDS if name not in NOT_STORED)
"""Fields of a request with a column of their name; those that are worked out replace it in ``prepare``."""
_NO_VALUES: dict[str, Any] = {column.key: None for column in inspect(Job).column_attrs}
Key = tuple[str, str]
"""An account and its idempotency key."""


@dataclass(frozen=True)
class Submitter:
    """Who submits, and in whose name."""

    name: str
    """The authenticated account; idempotency keys are its own."""
    user: str
    """Whose fair share is charged."""
    roles: tuple[str, ...] = ()
    """Roles of ``user``, as far as they are known; they decide about restricted classes."""
    trusted_dag: str | None = None
    """The DAG that asks, where the account may be believed about it."""


@dataclass(frozen=True)
class Prepared:
    """A validated request: its columns, and the reason if it can never run."""

    values: dict[str, Any]
    timeout: float | None
    reject: Reject | None

    @property
    def key(self) -> Key | None:
        """The key that identifies a repetition of this request; None without one."""
        key = self.values["idempotency_key"]
        return None if key is None else (self.values["submitted_by"], key)


class JobValidator:
    """Decides about requests before they are written."""

    def __init__(self, context: LedgerContext) -> None:
        self._context = context

    def prepare(self, request: JobRequest, submitter: Submitter) -> Prepared:
        """Validate a request as far as that is possible before it is written.

        Raises InvalidError for a request that is not worth keeping.
        """
        if request.runtime == "agent":
            check_engine(request.spec, self._context.settings.extra_engines)
        policy = self._context.policy
        gpus, nodes = gang_size(request)
        check_startable(
            runtime=request.runtime,
            queue=request.queue,
            engine=_engine(request),
            gpus=gpus,
            nodes=nodes,
        )
        task = request.airflow
        values = {
            "epoch": 0,
            "submitted_by": submitter.name,
            "idempotency_key": request.idempotency_key,
            **{name: getattr(request, name) for name in _AS_ASKED},
            "priority": policy.canonical_class(request.priority),
            "user": submitter.user,
            "gpu_count": gpus,
            "node_count": nodes,
            "gpu_type": request.gpu_type or "",
            "topology": request.topology.model_dump(),
            "spec": request.spec,
            "trace_id": request.trace_id or "",
            "experiment_id": request.experiment_id or "",
            "job_type": request.job_type or str((request.spec or {}).get("engine", ""))[:250],
            "checkpoint_key": request.checkpoint_key or "",
            "dag_id": task.dag_id if task else None,
            "run_id": task.run_id if task else None,
            "task_id": task.task_id if task else None,
            "map_index": task.map_index if task else -1,
            "try_number": task.try_number if task else 1,
            "last_try": task.last_try if task else True,
            "not_before": 0.0,
            "preempted": False,
            "preemptions": 0,
            "requeues": 0,
            "avoid_nodes": None,
        }
        check_spec(values, self._context.settings.artifact_uri, policy.roots)
        reject = self._reject(values, submitter, policy)
        return Prepared(values, task.execution_timeout if task else None, reject)

    def _reject(self, values: dict[str, Any], submitter: Submitter, policy: Policy) -> Reject | None:
        job = like_a_row({**values, "id": "new", "submitted_at": 0.0, "queued_at": 0.0})
        reject = self._never_fits(job, policy)
        if reject is not None:
            return reject
        if not policy.may_use_class(job.priority, submitter.trusted_dag, submitter.roles):
            rule = policy.restricted_classes[job.priority]
            allowed = [*(f"DAG {dag}" for dag in rule.dags), *(f"role {role}" for role in rule.roles)]
            return Reject(
                job.id,
                RejectCode.CLASS_NOT_ALLOWED,
                f"priority: class {job.priority} is kept for {', '.join(allowed) or 'no one'}; "
                f"{submitter.user} may use the others of queue {job.queue}",
                "priority",
            )
        if not policy.may_charge(job.project, submitter.user):
            return Reject(
                job.id,
                RejectCode.NOT_A_MEMBER,
                f"project: {submitter.user} is not a member of {job.project}, whose members the policy lists",
                "project",
            )
        return None

    def _never_fits(self, job: Job, policy: Policy) -> Reject | None:
        """Why the job fits no state of the cluster. A refusal is final, so it uses up-to-date nodes."""
        asked = model_job(job, policy)
        for check in (False, True):
            index = self._context.known_nodes.index(check=check)
            reject = validate_job(asked, index, policy)
            if reject is None or (reject.code in _CAPACITY and not index.nodes):
                return None
        return reject


def like_a_row(values: dict[str, Any]) -> Job:
    """Something to read a job's columns from, at a tenth of what an object that tracks changes costs."""
    return cast(Job, SimpleNamespace(**{**_NO_VALUES, **values}))


def _engine(request: JobRequest) -> str | None:
    """The engine that a SPEC names; None for work without one."""
    name = (request.spec or {}).get("engine")
    return name if isinstance(name, str) else None


def gang_size(request: JobRequest) -> tuple[int, int | None]:
    """GPUs and nodes that a request comes to; InvalidError where its numbers contradict each other."""
    gpus, nodes, per_node = request.gpu_count, request.node_count, request.gpu_per_node
    if per_node is None:
        return (1 if gpus is None else gpus), nodes
    if gpus is None:
        nodes = nodes or 1
        return nodes * per_node, nodes
    if nodes is None:
        if gpus % per_node:
            raise InvalidError(
                f"gpu_count: {gpus} cannot be split into {per_node} a node (gpu_per_node)", field="gpu_count"
            )
        return gpus, max(1, gpus // per_node)
    if nodes * per_node != gpus:
        raise InvalidError(
            f"gpu_count: {gpus} is not node_count {nodes} x gpu_per_node {per_node} = {nodes * per_node}; "
            "leave one of the three out",
            field="gpu_count",
        )
    return gpus, nodes
