"""Timeouts: expired leases and deadlines, missing reports, jobs that wait too long.

Each finding is a transaction of its own, guarded by the state that was read. So several API servers may look
at the same time, and a crash between two transactions leaves nothing half done.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import and_, or_, select

from emep.ledger.context import LedgerContext
from emep.ledger.failing_nodes.failure_checks import end_cool_down
from emep.ledger.housekeeping.absences import Absences
from emep.ledger.housekeeping.reconcile import TaskReconciler
from emep.ledger.jobs.burial import bury
from emep.ledger.jobs.outcomes import JobOutcomes
from emep.ledger.lifecycle.allocation import AllocationLifecycle, release_holds
from emep.ledger.nodes.nodes import NO_REPORT, REPORTED, Nodes
from emep.ledger.states import (
    LIVE_ALLOCATION_STATES,
    AllocationState,
    CheckState,
    JobEvent,
    YieldCause,
)
from emep.ledger.store.database import Transaction
from emep.ledger.store.findings import run_safely
from emep.ledger.store.repository import get_allocation, get_job
from emep.ledger.store.tables import Allocation, AllocationGpu, AllocationNode, Gpu, Job, Node
from emep.scheduling.model import GpuState
from emep.wire.base import JobState
from emep.wire.units import format_duration

_LIVE = [state.value for state in LIVE_ALLOCATION_STATES]
_TIMED = [JobState.PENDING.value, JobState.STARTING.value, JobState.RUNNING.value]
_OVER = [AllocationState.LOST.value, AllocationState.RELEASED.value]


class Housekeeping:
    """Carries out what depends on time alone; the periodic tick runs it."""

    def __init__(
        self,
        context: LedgerContext,
        lifecycle: AllocationLifecycle,
        outcomes: JobOutcomes,
        nodes: Nodes,
        tasks: TaskReconciler,
    ) -> None:
        self._context = context
        self._lifecycle = lifecycle
        self._outcomes = outcomes
        self._nodes = nodes
        self._tasks = tasks
        self._absences = Absences(context)

    def tick(self, *, just_started: bool = False) -> None:
        """Carry out everything that depends on time alone.

        If the last tick is more than a few heartbeats ago, or this server has just started, the control plane
        was away: every lease and report then gets one full period from now before it counts as overdue.
        """
        now = self._context.now
        away_since = self._absences.note_tick(now, just_started)
        if away_since is not None:
            self._absences.grant_full_period(now, away_since)
            return
        for allocation_id in self._overdue_allocations(now):
            run_safely(self._lose, allocation_id)
        for allocation_id in self._over_time(now):
            run_safely(self._limit, allocation_id)
        for job_id in self._past_task_deadline(now):
            run_safely(self._time_out, job_id)
        for allocation_id in self._on_bad_gpus():
            run_safely(self._leave_bad_gpu, allocation_id)
        for node in self._silent_nodes(now):
            run_safely(self._count_missing_reports, node)
        for job_id in self._expired(now):
            run_safely(self._expire, job_id)
        for allocation_id, node in self._leaving_without_agent(now):
            run_safely(self._let_go, allocation_id, node)
        for node in self._cooled_down(now):
            run_safely(self._try_again, node)
        self._context.pools.reconcile()
        self._tasks.reconcile_if_due(now)

    # ---- leases --------------------------------------------------------------------------------------------

    def _overdue_allocations(self, now: float) -> Sequence[str]:
        """Allocations past their deadline, and those granted on a node whose agent is silent."""
        silent = now - self._context.policy.lease.expiry
        on_silent_node = (
            select(AllocationNode.allocation_id)
            .join(Node, Node.name == AllocationNode.node)
            .where(or_(Node.last_report_at < silent, Node.has_left))
        )
        query = select(Allocation.id).where(
            Allocation.state.in_(_LIVE),
            or_(
                Allocation.deadline < now,
                and_(Allocation.state == AllocationState.GRANTED.value, Allocation.id.in_(on_silent_node)),
            ),
        )
        with self._context.database.read() as session:
            return list(session.scalars(query.order_by(Allocation.deadline)))

    def _lose(self, allocation_id: str) -> None:
        """Take an allocation back whose holder is silent, and requeue its job."""

        def work(tx: Transaction) -> None:
            allocation = get_allocation(tx.session, allocation_id)
            job = get_job(tx.session, allocation.job_id, lock=True)
            allocation = get_allocation(tx.session, allocation_id, lock=True)
            if AllocationState(allocation.state) not in LIVE_ALLOCATION_STATES:
                return
            code, reason = self._why_lost(tx, allocation)
            if not code:
                return
            self._outcomes.lose(tx, job, allocation, code, reason)

        self._context.database.write(work)

    def _why_lost(self, tx: Transaction, allocation: Allocation) -> tuple[str, str]:
        lease = self._context.policy.lease
        if allocation.state == AllocationState.GRANTED.value:
            gone = tx.session.execute(
                select(Node.name, Node.has_left).where(
                    Node.name.in_(allocation.nodes),
                    or_(Node.last_report_at < tx.now - lease.expiry, Node.has_left),
                )
            ).first()
            if gone is not None:
                silence = f"has been silent for {format_duration(lease.expiry)}"
                return "node_lost", f"node {gone[0]} {'has been shut down' if gone[1] else silence}"
            if allocation.deadline < tx.now:
                after = format_duration(tx.now - allocation.granted_at)
                return (
                    "start_deadline",
                    f"no heartbeat within {after} of the grant on {', '.join(allocation.nodes)}",
                )
            return "", ""
        if allocation.deadline >= tx.now:
            return "", ""
        last = tx.now - (allocation.heartbeat_at or allocation.granted_at)
        return "lease_expired", f"no heartbeat for {format_duration(last)} from {', '.join(allocation.nodes)}"

    def _over_time(self, now: float) -> Sequence[str]:
        query = select(Allocation.id).where(
            Allocation.state == AllocationState.ACTIVE.value, Allocation.ends_by < now
        )
        with self._context.database.read() as session:
            return list(session.scalars(query))

    def _limit(self, allocation_id: str) -> None:
        """Tell a run past its ``max_duration`` to checkpoint; then it is killed and its job fails."""

        def work(tx: Transaction) -> None:
            allocation = get_allocation(tx.session, allocation_id)
            job = get_job(tx.session, allocation.job_id, lock=True)
            if JobState(job.state) is not JobState.RUNNING or allocation.ends_by is None:
                return
            limit = format_duration(
                allocation.ends_by - (allocation.first_heartbeat_at or allocation.granted_at)
            )
            self._lifecycle.tell_to_yield(
                tx, job, allocation, YieldCause.TIME_LIMIT, f"max_duration: this run has taken its {limit}"
            )

        self._context.database.write(work)

    def _past_task_deadline(self, now: float) -> Sequence[str]:
        """Jobs whose task's ``execution_timeout`` is over; Airflow enforces none while a task is deferred."""
        query = select(Job.id).where(
            Job.state.in_(_TIMED), Job.task_deadline.is_not(None), Job.task_deadline < now
        )
        with self._context.database.read() as session:
            return list(session.scalars(query))

    def _time_out(self, job_id: str) -> None:
        def work(tx: Transaction) -> None:
            job = get_job(tx.session, job_id, lock=True)
            if job.task_deadline is None or job.task_deadline >= tx.now or job.state not in _TIMED:
                return
            limit = format_duration(job.task_deadline - job.submitted_at)
            waited = "" if job.started_at is not None else f", and it never ran: {job.reason}"
            self._outcomes.time_out(
                tx, job, f"execution_timeout: over {limit} after the task asked, waiting included{waited}"
            )

        self._context.database.write(work)

    # ---- reports -------------------------------------------------------------------------------------------

    def _on_bad_gpus(self) -> Sequence[str]:
        """Jobs on a GPU that was reported bad before they had started."""
        query = (
            select(AllocationGpu.allocation_id)
            .join(Gpu, and_(Gpu.node == AllocationGpu.node, Gpu.gpu_index == AllocationGpu.gpu_index))
            .join(Allocation, Allocation.id == AllocationGpu.allocation_id)
            .where(
                Allocation.state == AllocationState.ACTIVE.value,
                Gpu.state == GpuState.UNHEALTHY.value,
                Gpu.state_reason.startswith(REPORTED),
            )
            .distinct()
        )
        with self._context.database.read() as session:
            return list(session.scalars(query))

    def _leave_bad_gpu(self, allocation_id: str) -> None:
        def work(tx: Transaction) -> None:
            allocation = get_allocation(tx.session, allocation_id)
            job = get_job(tx.session, allocation.job_id, lock=True)
            if JobState(job.state) is JobState.RUNNING and allocation.state == AllocationState.ACTIVE.value:
                reason = f"a GPU of {', '.join(allocation.nodes)} is reported bad"
                self._lifecycle.tell_to_yield(tx, job, allocation, YieldCause.UNHEALTHY, reason)

        self._context.database.write(work)

    def _silent_nodes(self, now: float) -> Sequence[str]:
        """Nodes whose next report is overdue. Half a period of grace: reports jitter."""
        overdue = now - 1.5 * self._context.policy.health.report_every
        with self._context.database.read() as session:
            return list(session.scalars(select(Node.name).where(Node.last_check_at < overdue)))

    def _count_missing_reports(self, name: str) -> None:
        """Every period without a report is a failed check of each GPU."""

        def work(tx: Transaction) -> None:
            every = self._context.policy.health.report_every
            node = tx.session.get(Node, name, with_for_update=True)
            if node is None or tx.now - node.last_check_at < 1.5 * every:
                return
            missed = max(1, int((tx.now - node.last_check_at) / every))
            node.last_check_at = max(node.last_check_at + missed * every, tx.now - every)
            silence = format_duration(tx.now - node.last_report_at)
            for gpu in tx.session.scalars(select(Gpu).where(Gpu.node == name)):
                for _ in range(min(missed, self._context.policy.health.failed_checks)):
                    self._nodes.failed_check(tx, gpu, NO_REPORT, f"no report from {name} for {silence}")

        self._context.database.write(work)

    def _cooled_down(self, now: float) -> Sequence[str]:
        """Nodes that failed their jobs, and whose time out of service is over."""
        is_out = Node.check_state == CheckState.OUT.value
        with self._context.database.read() as session:
            return list(session.scalars(select(Node.name).where(is_out, Node.check_until <= now)))

    def _try_again(self, name: str) -> None:
        self._context.database.write(lambda tx: end_cool_down(tx, name), holds=True)

    # ---- the queue -----------------------------------------------------------------------------------------

    def _expired(self, now: float) -> Sequence[str]:
        found: list[str] = []
        with self._context.database.read() as session:
            for name, queue in self._context.policy.queues.items():
                if queue.pending_ttl is not None:
                    query = select(Job.id).where(
                        Job.state == JobState.PENDING.value,
                        Job.queue == name,
                        Job.queued_at < now - queue.pending_ttl,
                    )
                    found.extend(session.scalars(query))
        return found

    def _expire(self, job_id: str) -> None:
        def work(tx: Transaction) -> None:
            job = get_job(tx.session, job_id, lock=True)
            if JobState(job.state) is not JobState.PENDING:
                return
            waited = format_duration(tx.now - job.queued_at)
            reason = (
                f"pending for {waited}, longer than queue {job.queue} allows; it waited because: {job.reason}"
            )
            tx.move_job(job, JobEvent.EXPIRED, ended_at=tx.now, reason_code="pending_ttl", reason=reason)
            release_holds(tx, [job.id])
            tx.emit("expired", job=job, code="pending_ttl", reason=reason)
            bury(tx, job, "pending_ttl", reason)

        self._context.database.write(work)

    # ---- work that no agent speaks for ---------------------------------------------------------------------

    def _leaving_without_agent(self, now: float) -> Sequence[tuple[str, str]]:
        """Lost allocations whose GPUs no agent will confirm free, past the longest silence that is allowed.

        External work that never began is due after its start deadline and a grace: if its client starts it
        later, its first heartbeat is refused.
        """
        lease, grace = self._context.policy.lease, self._context.policy.preemption.grace_period
        patience = lease.max_silence + grace
        never_begun = and_(
            Allocation.runtime == "external",
            Allocation.first_heartbeat_at.is_(None),
            Allocation.granted_at < now - lease.start_deadline,
            Allocation.ended_at < now - grace,
        )
        query = (
            select(AllocationNode.allocation_id, AllocationNode.node)
            .join(Allocation, Allocation.id == AllocationNode.allocation_id)
            .where(
                Allocation.state.in_(_OVER),
                Allocation.runtime != "agent",
                or_(Allocation.ended_at < now - patience, never_begun),
            )
        )
        with self._context.database.read() as session:
            return [(row[0], row[1]) for row in session.execute(query)]

    def _let_go(self, allocation_id: str, node: str) -> None:
        self._context.database.write(
            lambda tx: self._lifecycle.confirm_gone(
                tx, get_allocation(tx.session, allocation_id, lock=True), node
            )
        )
