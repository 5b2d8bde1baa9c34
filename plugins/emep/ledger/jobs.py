"""Jobs: submission (idempotent, refused for good where it can never run), cancellation, reading."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, select, true
from sqlalchemy.exc import IntegrityError

from emep.api.schemas import Changes, JobRequest, JobState, JobView, Page
from emep.exceptions import ConflictError, InvalidError, RejectedJobError
from emep.ledger.database import Transaction
from emep.ledger.ends import Ends
from emep.ledger.ids import job_ids
from emep.ledger.repository import (
    changed_jobs,
    clock_row,
    count_and_page,
    get_job,
    job_view,
    job_views,
    jobs_by_id,
)
from emep.ledger.snapshot import model_job, read_nodes
from emep.ledger.tables import Job, Node
from emep.policy import Policy
from emep.scheduling import validate_job
from emep.scheduling.model import Node as ModelNode
from emep.scheduling.model import Reject, RejectCode

MAX_CHANGES = 500
_CAPACITY = frozenset(RejectCode) - {
    RejectCode.UNKNOWN_CLASS,
    RejectCode.UNKNOWN_QUEUE,
    RejectCode.NOT_DIVISIBLE,
    RejectCode.OVER_QUOTA,
}
"""What depends on the nodes that there are: decided once there are any."""


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


class Jobs(Ends):
    """The part of the ledger service that deals with jobs."""

    _nodes_cache: tuple[object, tuple[ModelNode, ...]] | None = None

    def submit(self, request: JobRequest, submitter: Submitter) -> tuple[JobView, bool]:
        """Take a job in; the first one again where its idempotency key was used before. True: it is new.

        Raises InvalidError for fields that contradict each other (nothing is kept), RejectedJobError for a
        job that can never run (kept as ``rejected``).
        """
        self._check(request)
        existing = self._existing(request, submitter)
        if existing is not None:
            return self._answer(existing), False
        try:
            view = self.database.write(lambda tx: self._insert(tx, request, submitter))
        except IntegrityError:
            # Somebody with the same key was faster between the look and the insert.
            existing = self._existing(request, submitter)
            if existing is None:
                raise
            return self._answer(existing), False
        return self._answer(view), True

    @staticmethod
    def _answer(view: JobView) -> JobView:
        if view.state is JobState.REJECTED:
            raise RejectedJobError(view.reason, job=view.model_dump(mode="json"))
        return view

    @staticmethod
    def _check(request: JobRequest) -> None:
        if request.runtime == "agent":
            engine = (request.spec or {}).get("engine")
            if not isinstance(engine, str) or not engine:
                raise InvalidError(
                    "spec: a job with runtime agent needs the SPEC of an engine, named in spec.engine",
                    field="spec" if request.spec is None else "spec.engine",
                )

    def _existing(self, request: JobRequest, submitter: Submitter) -> JobView | None:
        if request.idempotency_key is None:
            return None
        with self.database.read() as session:
            job = session.scalar(
                select(Job).where(
                    Job.submitted_by == submitter.name, Job.idempotency_key == request.idempotency_key
                )
            )
            return None if job is None else job_view(session, job)

    def _insert(self, tx: Transaction, request: JobRequest, submitter: Submitter) -> JobView:
        policy = self.policy
        gpus, nodes = gang_size(request)
        task = request.airflow
        job_id = job_ids.new(tx.now)
        job = Job(
            id=job_id,
            state=JobState.PENDING.value,
            epoch=0,
            submitted_by=submitter.name,
            idempotency_key=request.idempotency_key,
            queue=request.queue,
            priority=policy.canonical_class(request.priority),
            project=request.project,
            user=submitter.user,
            gpu_count=gpus,
            node_count=nodes,
            cpu=request.cpu,
            memory=request.memory,
            gpu_memory_min=request.gpu_memory_min,
            gpu_type=request.gpu_type or "",
            nvlink_required=request.nvlink_required,
            topology=request.topology.model_dump(),
            max_duration=request.max_duration,
            preemptible=request.preemptible,
            checkpoint_interval=request.checkpoint_interval,
            placement=request.placement,
            runtime=request.runtime,
            spec=request.spec,
            trace_id=request.trace_id or "",
            experiment_id=request.experiment_id or "",
            job_type=request.job_type or str((request.spec or {}).get("engine", ""))[:250],
            checkpoint_key=request.checkpoint_key or job_id,
            dag_id=task.dag_id if task else None,
            run_id=task.run_id if task else None,
            task_id=task.task_id if task else None,
            map_index=task.map_index if task else -1,
            try_number=task.try_number if task else 1,
            last_try=task.last_try if task else True,
            task_deadline=tx.now + task.execution_timeout if task and task.execution_timeout else None,
            submitted_at=tx.now,
            queued_at=tx.now,
            not_before=0.0,
            preempted=False,
            preemptions=0,
            requeues=0,
            reason_code="",
            reason="waits for the next plan",
        )
        reject = self._reject(tx, job, submitter, policy)
        if reject is not None:
            job.state, job.ended_at = JobState.REJECTED.value, tx.now
            job.reason_code, job.reason = reject.code.value, reject.message
        tx.session.add(job)
        tx.session.flush()
        tx.emit(
            job.state if reject else "submitted",
            job=job,
            actor=submitter.name,
            code=job.reason_code,
            reason=job.reason if reject else "",
            plan=reject is None,
            user=submitter.user,
            trace_id=job.trace_id,
            experiment_id=job.experiment_id,
            job_type=job.job_type,
        )
        return job_view(tx.session, job)

    def _reject(self, tx: Transaction, job: Job, submitter: Submitter, policy: Policy) -> Reject | None:
        nodes = self._known_nodes(tx)
        asked = model_job(job, policy)
        reject = validate_job(asked, nodes, policy)
        if reject is not None and (nodes or reject.code not in _CAPACITY):
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

    def _known_nodes(self, tx: Transaction) -> tuple[ModelNode, ...]:
        """The nodes, read again only when one has registered since.

        What can never run depends on nothing else.
        """
        version = tx.session.execute(select(func.count(), func.sum(Node.registrations))).one()
        key = (version[0], version[1])
        if self._nodes_cache is None or self._nodes_cache[0] != key:
            self._nodes_cache = (key, read_nodes(tx.session, alive_since=0.0))
        return self._nodes_cache[1]

    # ---- cancellation --------------------------------------------------------------------------------------

    def cancel(self, job_id: str, *, actor: str, reason: str = "") -> JobView:
        """Cancel a job: at once while it waits, by telling it to checkpoint and exit while it runs.

        The same answer again for one that is cancelled already; ConflictError for one that has ended
        otherwise.
        """
        why = reason or f"cancelled by {actor}"

        def work(tx: Transaction) -> JobView:
            job = get_job(tx.session, job_id, lock=True)
            if JobState(job.state) is not JobState.CANCELLED and not self.call_off(tx, job, why, actor):
                raise ConflictError(f"job {job_id} has ended already: {job.state}", state=job.state)
            return job_view(tx.session, job)

        return self.database.write(work)

    # ---- reading -------------------------------------------------------------------------------------------

    def job(self, job_id: str) -> JobView:
        """One job; NotFoundError where there is none."""
        with self.database.read() as session:
            return job_view(session, get_job(session, job_id))

    def job_dag(self, job_id: str) -> str | None:
        """The DAG whose task asked for the job, as stored: what write routes authorise on."""
        with self.database.read() as session:
            return get_job(session, job_id).dag_id

    def jobs(
        self,
        *,
        states: Collection[JobState] = (),
        queue: str | None = None,
        project: str | None = None,
        user: str | None = None,
        dag_id: str | None = None,
        run_id: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Page:
        """A page of jobs, newest first; a project's include those of the projects below it."""
        where: list[ColumnElement[bool]] = [true()]
        if states:
            where.append(Job.state.in_([state.value for state in states]))
        for column, value in (
            (Job.queue, queue),
            (Job.user, user),
            (Job.dag_id, dag_id),
            (Job.run_id, run_id),
        ):
            if value is not None:
                where.append(column == value)
        if project is not None:
            where.append((Job.project == project) | Job.project.startswith(f"{project}/", autoescape=True))
        with self.database.read() as session:
            total, rows = count_and_page(session, where, after, limit + 1)
            page = rows[:limit]
            cursor = page[-1].id if len(rows) > limit else None
            return Page(items=job_views(session, page), total=total, next=cursor)

    def changes(self, since: int, ids: Collection[str] | None = None, limit: int = MAX_CHANGES) -> Changes:
        """Jobs with events after the cursor ``since``, each once, as they are now, and the next cursor."""
        with self.database.read_consistent() as session:
            until = clock_row(session)[0]
            if since >= until:
                return Changes(jobs=[], cursor=min(since, until))
            changed, cursor = changed_jobs(session, since, until, ids, limit)
            by_id = {job.id: job for job in jobs_by_id(session, changed)}
            views = job_views(session, [by_id[name] for name in changed if name in by_id])
            return Changes(jobs=views, cursor=cursor)


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
