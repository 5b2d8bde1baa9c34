"""The life of an allocation after its grant: told to yield, ended and charged, its GPUs confirmed free."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import delete, select, update
from sqlalchemy.dialects import postgresql, sqlite

from emep.ledger.context import LedgerContext
from emep.ledger.lifecycle.tries import let_go
from emep.ledger.shares.usage import decay, decayed_charge
from emep.ledger.states import ASKER_STARTS, AllocationEvent, JobEvent, YieldCause
from emep.ledger.store.database import Transaction
from emep.ledger.store.repository import chunks
from emep.ledger.store.tables import Allocation, AllocationGpu, AllocationNode, Gpu, Job, Usage


class AllocationLifecycle:
    """Moves allocations and their GPUs; what becomes of the job is decided in ``JobOutcomes``."""

    def __init__(self, context: LedgerContext) -> None:
        self._context = context

    def end(
        self,
        tx: Transaction,
        allocation: Allocation,
        event: AllocationEvent,
        *,
        code: str,
        reason: str,
        actor: str = "scheduler",
        exit_code: int | None = None,
        confirmed: bool,
    ) -> None:
        """End an allocation and charge it.

        Its GPUs are free at once if its end is ``confirmed``, or if its client never fetched the lease.
        Otherwise they stay held until the nodes' agents no longer list it (``confirm_gone``), so that work of
        an earlier epoch never runs beside what is granted next.
        """
        confirmed = confirmed or _never_given(allocation)
        tx.move_allocation(allocation, event, ended_at=tx.now, exit_code=exit_code)
        self._charge(tx, allocation, allocation.gpu_count, allocation.granted_at)
        if confirmed:
            self.free(tx, allocation, None)
        tx.emit(
            f"allocation_{event.value}",
            allocation=allocation,
            code=code,
            reason=reason,
            actor=actor,
            gpus=allocation.gpus,
            held_seconds=tx.now - allocation.granted_at,
            confirmed=confirmed,
        )

    def free(self, tx: Transaction, allocation: Allocation, node: str | None) -> None:
        """Give the GPUs back, of one node or of all. What is promised to a preemptor is not touched."""
        on_gpus = [AllocationGpu.allocation_id == allocation.id]
        on_nodes = [AllocationNode.allocation_id == allocation.id]
        if node is not None:
            on_gpus.append(AllocationGpu.node == node)
            on_nodes.append(AllocationNode.node == node)
        freed = tx.session.execute(
            delete(AllocationGpu).where(*on_gpus).execution_options(synchronize_session=False)
        )
        if freed.rowcount:  # type: ignore[attr-defined]
            tx.changes_holds(freed=True)
        tx.session.execute(
            delete(AllocationNode).where(*on_nodes).execution_options(synchronize_session=False)
        )
        let_go(tx, allocation)

    def _charge(self, tx: Transaction, allocation: Allocation, gpus: int, since: float) -> None:
        """Charge ``gpus`` of the allocation's GPUs to its fair-share entity, from ``since`` until now."""
        job = tx.session.get(Job, allocation.job_id)
        if job is None or gpus == 0:
            return
        half_life = self._context.policy.half_life
        seconds = max(0.0, tx.now - since)
        rate = allocation.billing_rate * gpus / allocation.gpu_count
        key = (job.queue, job.project, job.user)
        row = tx.session.get(Usage, key, with_for_update=True)
        if row is None:
            # Two ends of one user's first jobs may come at once: the second adds to what the first has made.
            insert = sqlite.insert if self._context.database.is_sqlite else postgresql.insert
            nothing = {"gpu_seconds": 0.0, "billed_gpu_seconds": 0.0, "decayed": 0.0, "decayed_at": tx.now}
            made = insert(Usage).values(queue=job.queue, project=job.project, user=job.user, **nothing)
            tx.session.execute(made.on_conflict_do_nothing())
            row = tx.session.get_one(Usage, key, with_for_update=True, populate_existing=True)
        row.gpu_seconds += gpus * seconds
        row.billed_gpu_seconds += rate * seconds
        row.decayed = decay(row.decayed, tx.now - row.decayed_at, half_life) + decayed_charge(
            rate, since, tx.now, tx.now, half_life
        )
        row.decayed_at = tx.now
        tx.session.flush()

    def tell_to_yield(
        self,
        tx: Transaction,
        job: Job,
        allocation: Allocation,
        cause: YieldCause,
        reason: str,
        *,
        held_for: str | None = None,
        actor: str = "scheduler",
        grace: float | None = None,
    ) -> None:
        """Tell running work to checkpoint and exit within the grace period (policy, default 120 s)."""
        seconds = self._context.policy.preemption.grace_period if grace is None else grace
        tx.move_job(job, JobEvent.TOLD_TO_YIELD, reason_code=cause.value, reason=reason)
        tx.move_allocation(
            allocation,
            AllocationEvent.TOLD_TO_YIELD,
            yield_cause=cause.value,
            yield_at=tx.now,
            yield_deadline=tx.now + seconds,
            # A watched pod has a long lease. It ends soon after the grace even if the triggerer is gone.
            deadline=min(allocation.deadline, tx.now + seconds + self._context.policy.lease.expiry),
            held_for=held_for,
        )
        tx.emit(
            "told_to_yield",
            allocation=allocation,
            code=cause.value,
            reason=reason,
            actor=actor,
            grace_seconds=seconds,
            held_for=held_for,
        )

    def confirm_gone(self, tx: Transaction, allocation: Allocation, node: str) -> None:
        """Free an allocation's GPUs on ``node``, because it is over and nothing of it runs there any more.

        Work that no agent starts held them until now, and is charged for that.
        """
        held = tx.session.scalars(
            select(AllocationGpu.gpu_index).where(
                AllocationGpu.allocation_id == allocation.id, AllocationGpu.node == node
            )
        ).all()
        if allocation.runtime in ASKER_STARTS and allocation.ended_at is not None:
            self._charge(tx, allocation, len(held), allocation.ended_at)
        self.free(tx, allocation, node)
        tx.emit(
            "gpus_confirmed_free",
            allocation=allocation,
            node=node,
            reason=f"nothing of {allocation.id} runs on {node} any more",
            gpu_indices=list(held),
        )


def _never_given(allocation: Allocation) -> bool:
    """Whether the client has not fetched the lease, so that no work of the allocation can exist."""
    return (
        allocation.runtime in ASKER_STARTS
        and allocation.lease_given_at is None
        and allocation.first_heartbeat_at is None
    )


def release_holds(tx: Transaction, ids: Collection[str]) -> None:
    """Drop the reservations of jobs that have started or no longer need them."""
    for part in chunks(ids):
        gpus = tx.session.execute(
            update(Gpu)
            .where(Gpu.held_for.in_(part))
            .values(held_for=None)
            .execution_options(synchronize_session=False)
        )
        if gpus.rowcount:  # type: ignore[attr-defined]
            tx.changes_holds()
        tx.session.execute(
            update(Allocation)
            .where(Allocation.held_for.in_(part))
            .values(held_for=None)
            .execution_options(synchronize_session=False)
        )
