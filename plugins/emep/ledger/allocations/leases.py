"""Leases of work that no agent starts: pods, and work that the client runs itself.

The client that asked for the job fetches the lease's token as often as it likes (it is an HMAC). It reports
when the work was created, when it was lost, and when nothing of it runs any more.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from emep.ledger.allocations.allocations import effective_max_duration
from emep.ledger.allocations.environment import engine_environment
from emep.ledger.context import LedgerContext
from emep.ledger.jobs.outcomes import JobOutcomes
from emep.ledger.lifecycle.allocation import AllocationLifecycle
from emep.ledger.states import ASKER_STARTS, LIVE_ALLOCATION_STATES, AllocationState
from emep.ledger.store.database import Transaction
from emep.ledger.store.ids import lease_token
from emep.ledger.store.repository import get_allocation, get_job
from emep.ledger.store.tables import Allocation, AllocationNode
from emep.ledger.store.views import allocation_views, job_view, to_datetime
from emep.wire.allocations import AllocationView
from emep.wire.errors import ConflictError, ForbiddenError, StaleEpochError
from emep.wire.jobs import GpuRef, JobView
from emep.wire.leases import LeaseAnswer

_OVER = [AllocationState.LOST.value, AllocationState.RELEASED.value]


class Leases:
    """Hands out leases, and takes the word of those who start work themselves."""

    def __init__(self, context: LedgerContext, lifecycle: AllocationLifecycle, outcomes: JobOutcomes) -> None:
        self._context = context
        self._lifecycle = lifecycle
        self._outcomes = outcomes

    def asker(self, allocation_id: str) -> tuple[str, str | None]:
        """Who submitted the allocation's job, and the job's DAG. NotFoundError where there is none."""
        with self._context.database.read() as session:
            job = get_job(session, get_allocation(session, allocation_id).job_id)
            return job.submitted_by, job.dag_id

    def fetch(self, allocation_id: str, *, started: bool = False) -> LeaseAnswer:
        """What its holder needs to start and to renew the work; ``started`` records that it was created.

        The answer says whether that was recorded before: then work that is not there any more is lost, and
        must not be created again in this epoch. Raises ForbiddenError for work that an agent starts,
        StaleEpochError where the allocation is over.
        """
        with self._context.database.read() as session:
            allocation = get_allocation(session, allocation_id)
            answer, is_first = self._lease(session, allocation), allocation.lease_given_at is None
        if is_first:
            # Before it is handed out: from here on something may run, whatever becomes of the asker.
            self._context.database.write(lambda tx: self._note_given(tx, allocation_id))
        if started and not answer.started:
            self._context.database.write(lambda tx: self._note_started(tx, allocation_id))
        return answer

    def _lease(self, session: Session, allocation: Allocation) -> LeaseAnswer:
        _check_asker_starts(allocation)
        _check_live(allocation)
        job = get_job(session, allocation.job_id)
        node = allocation.nodes[0]
        place = session.get(AllocationNode, (allocation.id, node))
        policy = self._context.policy
        left = (
            None
            if allocation.yield_deadline is None
            else max(0.0, allocation.yield_deadline - self._context.now)
        )
        return LeaseAnswer(
            job_id=job.id,
            epoch=allocation.epoch,
            lease_token=lease_token(self._context.settings.secret_key, allocation.id, allocation.epoch),
            started=place is not None and place.started,
            environment=engine_environment(
                job, allocation, node, self._context.settings, policy.lease, policy.roots
            ),
            nodes=list(allocation.nodes),
            gpus=[GpuRef(node=name, index=index, uuid=uuid) for name, index, uuid in allocation.gpus],
            gpu_count=allocation.gpu_count,
            spec=job.spec,
            max_duration=effective_max_duration(job, policy),
            start_deadline=policy.lease.start_deadline,
            grace=policy.preemption.grace_period,
            grace_left=left,
            heartbeat=policy.lease.heartbeat,
            max_silence=policy.lease.max_silence,
            deadline=to_datetime(allocation.deadline),
        )

    @staticmethod
    def _note_given(tx: Transaction, allocation_id: str) -> None:
        allocation = get_allocation(tx.session, allocation_id, lock=True)
        _check_live(allocation)
        if allocation.lease_given_at is None:
            allocation.lease_given_at = tx.now
            tx.session.flush()

    @staticmethod
    def _note_started(tx: Transaction, allocation_id: str) -> None:
        # Looked at again, under its lock: what is over by now must not be created any more.
        _check_live(get_allocation(tx.session, allocation_id, lock=True))
        tx.session.execute(
            update(AllocationNode)
            .where(AllocationNode.allocation_id == allocation_id)
            .values(started=True)
            .execution_options(synchronize_session=False)
        )

    # ---- ends ----------------------------------------------------------------------------------------------

    def report_lost(self, allocation_id: str, epoch: int, code: str, reason: str, *, gone: bool) -> JobView:
        """Requeue a job in the same try because its work was lost and EMEP had not asked for that.

        ``gone``: nothing of it runs any more, so its GPUs are free at once. Repeating the call is harmless.
        Raises StaleEpochError for another epoch.
        """

        def work(tx: Transaction) -> JobView:
            allocation = get_allocation(tx.session, allocation_id)
            _check_asker_starts(allocation)
            if allocation.epoch != epoch:
                raise StaleEpochError(f"epoch {epoch} is not that of allocation {allocation_id}")
            job = get_job(tx.session, allocation.job_id, lock=True)
            allocation = get_allocation(tx.session, allocation_id, lock=True)
            if AllocationState(allocation.state) in LIVE_ALLOCATION_STATES:
                self._outcomes.lose(tx, job, allocation, code, reason)
            if gone:
                self._confirm(tx, allocation)
            return job_view(tx.session, job)

        return self._context.database.write(work)

    def report_gone(self, allocation_id: str) -> None:
        """Free the GPUs of an allocation that is over, because nothing of it runs on any node.

        Repeating the call does nothing. Raises ConflictError while the lease is alive: the caller must report
        the work as lost or complete first.
        """

        def work(tx: Transaction) -> None:
            allocation = get_allocation(tx.session, allocation_id, lock=True)
            _check_asker_starts(allocation)
            if AllocationState(allocation.state) in LIVE_ALLOCATION_STATES:
                raise ConflictError(
                    f"allocation {allocation_id} is {allocation.state}: say first how it ended "
                    "(complete or lost)"
                )
            self._confirm(tx, allocation)

        self._context.database.write(work)

    def _confirm(self, tx: Transaction, allocation: Allocation) -> None:
        held = select(AllocationNode.node).where(AllocationNode.allocation_id == allocation.id)
        for node in list(tx.session.scalars(held)):
            self._lifecycle.confirm_gone(tx, allocation, node)

    def leaving(self, runtime: str) -> Sequence[AllocationView]:
        """Allocations of a runtime that are over but hold their GPUs until they are reported gone."""
        query = (
            select(Allocation)
            .where(
                Allocation.state.in_(_OVER),
                Allocation.runtime == runtime,
                Allocation.id.in_(select(AllocationNode.allocation_id)),
            )
            .order_by(Allocation.id)
        )
        with self._context.database.read() as session:
            return allocation_views(session, session.scalars(query).all())


def _check_asker_starts(allocation: Allocation) -> None:
    if allocation.runtime not in ASKER_STARTS:
        raise ForbiddenError(
            f"allocation {allocation.id} is of runtime {allocation.runtime}: its node's agent holds the lease"
        )


def _check_live(allocation: Allocation) -> None:
    if AllocationState(allocation.state) not in LIVE_ALLOCATION_STATES:
        raise StaleEpochError(f"allocation {allocation.id} is {allocation.state}: its lease is over")
