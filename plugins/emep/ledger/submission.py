"""Taking jobs in: one or a thousand, idempotent, refused for good where they can never run.

What can be decided without the database is decided before the write, so that a write is short: one statement
for all jobs, one for all events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from sqlalchemy import Table, insert, inspect, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from emep.api.engine_names import check_engine
from emep.api.schemas import JobRequest, JobState, JobView
from emep.exceptions import EmepError, InvalidError, RejectedJobError, UnavailableError
from emep.ledger.base import LedgerBase
from emep.ledger.database import Transaction
from emep.ledger.ids import job_ids
from emep.ledger.job_rows import model_job
from emep.ledger.repository import chunks, job_view, job_views
from emep.ledger.tables import Job
from emep.ledger.tries import answer_letters, hold_back
from emep.policy import Policy
from emep.scheduling import validate_job
from emep.scheduling.model import Reject, RejectCode

BATCH_ATTEMPTS = 5
_CAPACITY = frozenset(RejectCode) - {
    RejectCode.UNKNOWN_CLASS,
    RejectCode.UNKNOWN_QUEUE,
    RejectCode.NOT_DIVISIBLE,
    RejectCode.OVER_QUOTA,
}
"""What depends on the nodes that there are: decided once there are any."""
_NO_VALUES: dict[str, Any] = {column.key: None for column in inspect(Job).column_attrs}
_INSERT = insert(cast(Table, Job.__table__))
_COLUMN_NAMES = {attribute.key: attribute.columns[0].name for attribute in inspect(Job).column_attrs}
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
    """A request that has been judged: its columns, and why it can never run, if so."""

    values: dict[str, Any]
    timeout: float | None
    reject: Reject | None

    @property
    def key(self) -> Key | None:
        """What makes it one with an earlier request."""
        key = self.values["idempotency_key"]
        return None if key is None else (self.values["submitted_by"], key)


Outcome = tuple[JobView, bool] | EmepError
"""A job and whether it is new, or why there is none."""


class Submissions(LedgerBase):
    """The part of the ledger service that takes jobs in."""

    def submit(self, request: JobRequest, submitter: Submitter) -> tuple[JobView, bool]:
        """Take a job in; the first one again where its idempotency key was used before. True: it is new.

        Raises InvalidError for fields that contradict each other (nothing is kept), RejectedJobError for a
        job that can never run (kept as ``rejected``).
        """
        prepared = self._prepare(request, submitter)
        try:
            view = self.database.write(lambda tx: self._insert(tx, [prepared])[0])
        except IntegrityError:
            # The key has been used: looking for it first would cost every other request a query.
            with self.database.read() as session:
                found = list(_by_key(session, [prepared]).values())
                if not found:
                    raise
                return _answer(job_view(session, found[0])), False
        return _answer(view), True

    def submit_batch(self, asked: Sequence[tuple[JobRequest, Submitter]]) -> list[Outcome]:
        """Take many jobs in, in one transaction, and say of each what has become of it.

        One that is refused keeps none of the others from being taken in. Raises UnavailableError where others
        use the same idempotency keys all the time.
        """
        judged: list[Prepared | EmepError] = []
        for request, submitter in asked:
            try:
                judged.append(self._prepare(request, submitter))
            except EmepError as error:
                judged.append(error)
        for _ in range(BATCH_ATTEMPTS):
            try:
                return self.database.write(lambda tx: self._insert_batch(tx, judged))
            except IntegrityError:
                continue  # somebody else has used one of the keys in this moment: it is found now
        raise UnavailableError("others submit with the same idempotency keys at the same time: try again")

    def _insert_batch(self, tx: Transaction, judged: Sequence[Prepared | EmepError]) -> list[Outcome]:
        ready = [entry for entry in judged if isinstance(entry, Prepared)]
        known = _by_key(tx.session, ready)
        views: dict[Key | None, JobView] = dict(
            zip(known, job_views(tx.session, list(known.values())), strict=True)
        )
        seen: set[Key | None] = set(views)
        new: list[Prepared] = []
        for entry in ready:
            if entry.key is None or entry.key not in seen:
                new.append(entry)
                seen.add(entry.key)
        made = {id(entry): view for entry, view in zip(new, self._insert(tx, new), strict=True)}
        outcomes: list[Outcome] = []
        for one in judged:
            if isinstance(one, EmepError):
                outcomes.append(one)
                continue
            view = made.get(id(one))
            is_new = view is not None
            if view is None:
                view = views[one.key]
            elif one.key is not None:
                views[one.key] = view  # a second request with this key gets the same job
            try:
                outcomes.append((_answer(view), is_new))
            except RejectedJobError as error:
                outcomes.append(error)
        return outcomes

    def _insert(self, tx: Transaction, prepared: Sequence[Prepared]) -> list[JobView]:
        """Write new jobs and their events. Raises IntegrityError where a key is used already."""
        rows = [self._row(entry, tx.now) for entry in prepared]
        for row in rows:
            hold_back(tx, row, self.policy.preemption.grace_period + self.policy.lease.expiry)
            answer_letters(tx, row)
        if rows:
            # Without the ORM, which takes twice as long for one row.
            tx.session.connection().execute(_INSERT, [_columns(row) for row in rows])
        views = []
        for row, entry in zip(rows, prepared, strict=True):
            job = _like_a_row(row)
            tx.emit(
                job.state if entry.reject else "submitted",
                job=job,
                actor=job.submitted_by,
                code=job.reason_code,
                reason=job.reason if entry.reject else "",
                plan=entry.reject is None,
                user=job.user,
            )
            views.append(job_view(tx.session, job))
        return views

    @staticmethod
    def _row(entry: Prepared, now: float) -> dict[str, Any]:
        job_id = job_ids.new(now)
        reject = entry.reject
        return {
            **entry.values,
            "id": job_id,
            "checkpoint_key": entry.values["checkpoint_key"] or job_id,
            "state": (JobState.PENDING if reject is None else JobState.REJECTED).value,
            "submitted_at": now,
            "queued_at": now,
            "task_deadline": None if entry.timeout is None else now + entry.timeout,
            "ended_at": None if reject is None else now,
            "reason_code": "" if reject is None else reject.code.value,
            "reason": "waits for the next plan" if reject is None else reject.message,
        }

    # ---- judging -------------------------------------------------------------------------------------------

    def _prepare(self, request: JobRequest, submitter: Submitter) -> Prepared:
        """Everything that can be said of a request before it is written.

        Raises InvalidError for what no ledger should keep.
        """
        if request.runtime == "agent":
            check_engine(request.spec, self.settings.extra_engines)
        policy = self.policy
        gpus, nodes = gang_size(request)
        task = request.airflow
        values = {
            "epoch": 0,
            "submitted_by": submitter.name,
            "idempotency_key": request.idempotency_key,
            "queue": request.queue,
            "priority": policy.canonical_class(request.priority),
            "project": request.project,
            "user": submitter.user,
            "gpu_count": gpus,
            "node_count": nodes,
            "cpu": request.cpu,
            "memory": request.memory,
            "gpu_memory_min": request.gpu_memory_min,
            "gpu_type": request.gpu_type or "",
            "nvlink_required": request.nvlink_required,
            "topology": request.topology.model_dump(),
            "max_duration": request.max_duration,
            "preemptible": request.preemptible,
            "checkpoint_interval": request.checkpoint_interval,
            "placement": request.placement,
            "runtime": request.runtime,
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
        }
        reject = self._reject(values, submitter, policy)
        return Prepared(values, task.execution_timeout if task else None, reject)

    def _reject(self, values: dict[str, Any], submitter: Submitter, policy: Policy) -> Reject | None:
        job = _like_a_row({**values, "id": "new", "submitted_at": 0.0, "queued_at": 0.0})
        reject = self._never_fits(job, policy)
        if reject is not None:
            return reject
        if not policy.may_use_class(job.priority, submitter.trusted_dag, submitter.roles):
            rule = policy.restricted_classes[job.priority]
            allowed = [*(f"DAG {dag}" for dag in rule.dags), *(f"role {role}" for role in rule.roles)]
            return Reject(
                job.id,
                RejectCode.CLASS_NOT_ALLOWED,
                f"priority: class {job.priority} is kept for {', '.join(allowed) or 'nobody'}; "
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
        """Why no state of the cluster holds the job; a refusal is for good, so it is never out of date."""
        asked = model_job(job, policy)
        for check in (False, True):
            index = self.known_nodes.index(check=check)
            reject = validate_job(asked, index, policy)
            if reject is None or (reject.code in _CAPACITY and not index.nodes):
                return None
        return reject


def _columns(values: dict[str, Any]) -> dict[str, Any]:
    """Attributes of a job by the names of their columns."""
    return {_COLUMN_NAMES[name]: value for name, value in values.items()}


def _like_a_row(values: dict[str, Any]) -> Job:
    """Something to read a job's columns from, at a tenth of what an object that tracks changes costs."""
    return cast(Job, SimpleNamespace(**{**_NO_VALUES, **values}))


def _by_key(session: Session, prepared: Sequence[Prepared]) -> dict[Key, Job]:
    """Jobs that earlier requests with the same keys have made; one query for 400 of them."""
    wanted: dict[str, list[str]] = {}
    for entry in prepared:
        if entry.key is not None:
            wanted.setdefault(entry.key[0], []).append(entry.key[1])
    found: dict[Key, Job] = {}
    for name, keys in wanted.items():
        for part in chunks(list(dict.fromkeys(keys))):
            query = select(Job).where(Job.submitted_by == name, Job.idempotency_key.in_(part))
            found.update(((name, str(job.idempotency_key)), job) for job in session.scalars(query))
    return found


def _answer(view: JobView) -> JobView:
    if view.state is JobState.REJECTED:
        raise RejectedJobError(view.reason, job=view.model_dump(mode="json"))
    return view


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
