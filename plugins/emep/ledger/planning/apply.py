"""Carries out a plan in one transaction and in bulk: preemptions, starts, reservations, reasons.

Every decision is checked again against the rows as they are now: a job that was cancelled or a GPU that
became unhealthy while the plan was made is left out, and the next plan sees it.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import insert, select, update

from emep.ledger.lifecycle.allocation import release_holds
from emep.ledger.states import AllocationEvent, AllocationState, CheckState, JobEvent, YieldCause
from emep.ledger.store.audit_log import LABELS, job_words
from emep.ledger.store.database import Transaction
from emep.ledger.store.ids import allocation_id, lease_token, token_digest
from emep.ledger.store.node_rows import takes_work
from emep.ledger.store.repository import chunks, current_allocation, get_job
from emep.ledger.store.tables import Allocation, AllocationGpu, AllocationNode, Gpu, Job, Node
from emep.scheduling.model import GpuId, GpuState, Hold, Plan, Preempt, Reason, ReasonCode, Reject, Start
from emep.wire.base import JobState

if TYPE_CHECKING:
    from emep.ledger.service import LedgerService

log = logging.getLogger(__name__)
MAX_CODES = 250
"""Characters kept of the codes of what blocks a job."""


class HeldGpu(NamedTuple):
    """A GPU as it is under its row's lock."""

    node: str
    gpu_index: int
    uuid: str
    gpu_type: str
    state: str
    drain: bool


class Effects:
    """Carries out the plans of one ledger."""

    def __init__(self, ledger: LedgerService) -> None:
        self.ledger = ledger

    def carry_out(self, tx: Transaction, plan: Plan, holds_before: tuple[Hold, ...]) -> None:
        """Carry out the plan's preemptions, starts and reservations."""
        for preemption in plan.preemptions:
            self._preempt(tx, preemption)
        if plan.starts:
            self._start_all(tx, plan.starts)
        self._note_holds(tx, holds_before, plan.holds)

    # ---- starts --------------------------------------------------------------------------------------------

    def _start_all(self, tx: Transaction, starts: tuple[Start, ...]) -> None:
        gpus = self._lock_gpus(tx, starts)
        alive = self._alive_nodes(tx)
        budget = self.ledger.context.pools.budget(tx, {gpu.node for gpu in gpus})
        jobs = self._lock_jobs(tx, [start.job_id for start in starts])
        trials = set(
            tx.session.scalars(select(Node.name).where(Node.check_state == CheckState.PROBATION.value))
        )
        granted: list[tuple[Start, Job, Allocation]] = []
        for start in starts:
            job = jobs.get(start.job_id)
            found = [gpus.get(gpu) for gpu in start.placement.gpus]
            rows = [gpu for gpu in found if gpu and gpu.state == GpuState.HEALTHY.value and not gpu.drain]
            fits = len(rows) == len(found) and alive.issuperset(start.placement.nodes)
            if job is None or JobState(job.state) is not JobState.PENDING or not fits:
                tx.dirty = True
                who = f"job {start.job_id}" if job is None else job_words(job)
                log.info("%s is not started: it or its GPUs changed meanwhile", who)
            elif rows and budget is not None and not budget.take(rows):
                tx.dirty = tx.dirty or not budget.claimed
                log.info("%s is not started: tasks in Airflow's pools hold its GPUs", job_words(job))
            else:
                # A node on probation gets one job: the next of this plan finds it gone.
                alive -= trials.intersection(start.placement.nodes)
                granted.append((start, job, self._allocation(tx, start, job, rows)))
        self._insert(tx, [allocation for _, _, allocation in granted])
        self._grant(tx, granted)
        release_holds(tx, [job.id for _, job, _ in granted])
        self.ledger.context.pools.after_grants(tx, budget)

    @staticmethod
    def _lock_gpus(tx: Transaction, starts: tuple[Start, ...]) -> dict[GpuId, HeldGpu]:
        """Lock the rows of all GPUs to be granted, so that their health cannot change before the commit."""
        wanted = {gpu for start in starts for gpu in start.placement.gpus}
        found: dict[GpuId, HeldGpu] = {}
        columns = (Gpu.node, Gpu.gpu_index, Gpu.uuid, Gpu.gpu_type, Gpu.state, Gpu.drain)
        for part in chunks(sorted({gpu.node for gpu in wanted})):
            query = select(*columns).where(Gpu.node.in_(part)).order_by(Gpu.node, Gpu.gpu_index)
            for row in tx.session.execute(query.with_for_update()):
                gpu = GpuId(row[0], row[1])
                if gpu in wanted:
                    found[gpu] = HeldGpu(*row)
        return found

    def _alive_nodes(self, tx: Transaction) -> set[str]:
        since = tx.now - self.ledger.context.alive_for()
        return set(tx.session.scalars(select(Node.name).where(takes_work(since))))

    @staticmethod
    def _lock_jobs(tx: Transaction, ids: Collection[str]) -> dict[str, Job]:
        found: dict[str, Job] = {}
        for part in chunks(sorted(ids)):
            query = select(Job).where(Job.id.in_(part)).order_by(Job.id).with_for_update()
            for row in tx.session.scalars(query.execution_options(populate_existing=True)):
                found[row.id] = row
        return found

    def _allocation(self, tx: Transaction, start: Start, job: Job, gpus: list[HeldGpu]) -> Allocation:
        policy, epoch = self.ledger.context.policy, job.epoch + 1
        name = allocation_id(job.id, epoch)
        return Allocation(
            id=name,
            job_id=job.id,
            epoch=epoch,
            state=AllocationState.GRANTED.value,
            token_sha256=token_digest(lease_token(self.ledger.context.settings.secret_key, name, epoch)),
            runtime=job.runtime,
            gpus=[[gpu.node, gpu.gpu_index, gpu.uuid] for gpu in gpus],
            nodes=list(start.placement.nodes),
            gpu_count=len(gpus),
            billing_rate=sum(policy.billing(gpu.gpu_type) for gpu in gpus),
            reason=start.reason,
            granted_at=tx.now,
            deadline=tx.now + policy.lease.start_deadline,
            log_size=0,
            log_closed=False,
        )

    @staticmethod
    def _insert(tx: Transaction, allocations: list[Allocation]) -> None:
        """The allocations, the GPUs they hold (each GPU at most once, by its key) and their nodes."""
        tx.session.add_all(allocations)
        tx.session.flush()
        held = [
            {"node": node, "gpu_index": index, "allocation_id": one.id}
            for one in allocations
            for node, index, _ in one.gpus
        ]
        places = [
            {"allocation_id": one.id, "node": node, "node_rank": rank, "started": False}
            for one in allocations
            for rank, node in enumerate(one.nodes)
        ]
        if held:
            tx.changes_holds()
            tx.session.execute(insert(AllocationGpu), held)
        if places:
            tx.session.execute(insert(AllocationNode), places)

    @staticmethod
    def _grant(tx: Transaction, granted: Sequence[tuple[Start, Job, Allocation]]) -> None:
        moves = [
            (
                job,
                {
                    "epoch": allocation.epoch,
                    "allocation_id": allocation.id,
                    "reason_code": "",
                    "reason": f"granted {_words(allocation)}: {start.reason}",
                },
            )
            for start, job, allocation in granted
        ]
        tx.move_jobs(JobEvent.GRANTED, moves)
        for start, job, allocation in granted:
            tx.emit(
                "granted",
                job=job,
                allocation=allocation,
                code="backfilled" if start.backfilled else "",
                reason=start.reason,
                plan=False,
                gpus=allocation.gpus,
            )

    # ---- preemptions ---------------------------------------------------------------------------------------

    def _preempt(self, tx: Transaction, preemption: Preempt) -> None:
        job = get_job(tx.session, preemption.job_id, lock=True)
        allocation = current_allocation(tx.session, job, lock=True)
        preemptor = tx.session.get(Job, preemption.for_job)
        if allocation is None or preemptor is None or JobState(preemptor.state) is not JobState.PENDING:
            return
        state = JobState(job.state)
        if state is JobState.RUNNING:
            self.ledger.lifecycle.tell_to_yield(
                tx,
                job,
                allocation,
                YieldCause.PREEMPTION,
                preemption.reason,
                held_for=preemption.for_job,
                actor=f"planner ({preemption.code})",
            )
        elif state is JobState.STARTING:
            # It has not reported yet: it is taken back at once, and its agent is told to abort.
            allocation.held_for = preemption.for_job
            tx.session.flush()
            self.ledger.lifecycle.end(
                tx,
                allocation,
                AllocationEvent.LOST,
                code="preemption",
                reason=preemption.reason,
                confirmed=False,
            )
            self.ledger.outcomes.yielded(tx, job, YieldCause.PREEMPTION, preemption.reason)
        elif state is JobState.YIELDING and allocation.held_for is None:
            allocation.held_for = preemption.for_job
            tx.emit("held", allocation=allocation, reason=preemption.reason, plan=False)

    @staticmethod
    def _note_holds(tx: Transaction, before: tuple[Hold, ...], after: tuple[Hold, ...]) -> None:
        """Store the GPUs that the plan reserves for preemptors, so that no other job gets them.

        A preemptor that was cancelled meanwhile gets no reservation, because nothing would drop it again.
        """
        wait: set[str] = set()
        for part in chunks(sorted({hold.job_id for hold in after})):
            query = select(Job.id).where(Job.id.in_(part), Job.state == JobState.PENDING.value)
            wait.update(tx.session.scalars(query.order_by(Job.id).with_for_update()))
        old = {gpu: hold.job_id for hold in before for gpu in hold.gpus}
        new = {gpu: hold.job_id for hold in after for gpu in hold.gpus if hold.job_id in wait}
        for gpu in sorted(old.keys() | new.keys()):
            if old.get(gpu) != new.get(gpu):
                tx.changes_holds()
                tx.session.execute(
                    update(Gpu)
                    .where(Gpu.node == gpu.node, Gpu.gpu_index == gpu.index)
                    .values(held_for=new.get(gpu))
                    .execution_options(synchronize_session=False)
                )

    # ---- the others ----------------------------------------------------------------------------------------

    @staticmethod
    def note_reasons(
        tx: Transaction,
        known: Mapping[str, str],
        said: Mapping[str, tuple[Reason, ...]],
        rejected: Collection[Reject] = (),
    ) -> None:
        """Store what blocks a job if its kind has changed; the numbers are for ``explain``.

        ``rejected``: waiting jobs that can no longer run because the policy or the nodes have changed; they
        wait for another change. A job on hold keeps the reason of the code that held it, which says more.
        """
        texts: dict[str, tuple[str, str]] = {}
        on_hold: set[str] = set()
        for one in rejected:
            if known.get(one.job_id, "") != one.code.value:
                texts[one.job_id] = (one.code.value, f"cannot run any more: {one.message}")
        for job_id, reasons in said.items():
            codes = ",".join(sorted({reason.code.value for reason in reasons}))[:MAX_CODES]
            if known.get(job_id, "") != codes:
                texts[job_id] = (codes, "; ".join(reason.text for reason in reasons))
                before = known.get(job_id, "")
                told = not before or ReasonCode.BACKING_OFF.value in before.split(",")
                if told and any(reason.code is ReasonCode.BACKING_OFF for reason in reasons):
                    on_hold.add(job_id)
        alike: dict[tuple[str, str | None], list[str]] = defaultdict(list)
        for part in chunks(sorted(texts)):
            columns = (Job.id, Job.epoch, *(getattr(Job, label) for label in LABELS))
            query = select(*columns).where(Job.id.in_(part), Job.state == JobState.PENDING.value)
            for row in tx.session.execute(query.order_by(Job.id).with_for_update()):
                codes, text = texts[row.id]
                alike[codes, None if row.id in on_hold else text].append(row.id)
                job: Any = row  # has what an event tells of its job
                tx.emit("waiting", job=job, code=codes, reason=text, plan=False)
        for (codes, new), ids in alike.items():
            for part in chunks(ids):
                tx.session.execute(
                    update(Job)
                    .where(Job.id.in_(part))
                    .values({"reason_code": codes} if new is None else {"reason_code": codes, "reason": new})
                    .execution_options(synchronize_session=False)
                )


def _words(allocation: Allocation) -> str:
    if not allocation.gpus:
        return f"a place on {', '.join(allocation.nodes)}"
    count = len(allocation.gpus)
    return f"{count} GPU{'s' if count > 1 else ''} on {', '.join(allocation.nodes)}"
