"""One planning cycle: lock, snapshot, ``plan``, and its decisions carried out in one transaction.

Planning itself holds no transaction open. When it commits, every decision is checked again against the rows
as they are then: a job that was cancelled or a GPU that fell ill meanwhile is left out, and the next cycle
sees it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sqlalchemy import func, insert, select, update
from sqlalchemy.exc import IntegrityError

from emep.api.schemas import JobState
from emep.ledger.database import Transaction
from emep.ledger.ids import allocation_id, lease_token, token_digest
from emep.ledger.pools import Budget
from emep.ledger.repository import chunks, current_allocation, get_job
from emep.ledger.service import LedgerService
from emep.ledger.snapshot import LedgerSnapshot, build_snapshot
from emep.ledger.states import AllocationEvent, AllocationState, JobEvent, YieldCause
from emep.ledger.tables import Allocation, AllocationGpu, AllocationNode, Clock, Gpu, Job, Lock, Node
from emep.policy import Policy
from emep.scheduling import plan as default_plan
from emep.scheduling.model import GpuId, GpuState, Hold, Plan, Preempt, Snapshot, Start, Waiting

log = logging.getLogger(__name__)
PlanFunction = Callable[[Snapshot, Policy, float], Plan]
LOCK_NAME = "planner"
LOCK_SECONDS = 60.0
"""A planner that is silent for this long is taken for dead; what it still decides is refused by the fence."""


class FencedError(Exception):
    """Somebody else has taken the planner's lock over: nothing of this cycle may be carried out."""


@dataclass(frozen=True)
class Cycle:
    """A cycle that was carried out."""

    seen: LedgerSnapshot
    plan: Plan
    seconds: float
    """What reading, planning and committing took together."""


class Planner:
    """Plans for one API server; of several, one at a time."""

    def __init__(self, ledger: LedgerService, holder: str, plan: PlanFunction = default_plan) -> None:
        self.ledger = ledger
        self.holder = holder
        self._plan = plan
        self.last: Cycle | None = None

    # ---- the lock ------------------------------------------------------------------------------------------

    def _acquire(self) -> int | None:
        """The fence of the lock, or None while another planner has it."""

        def work(tx: Transaction) -> int | None:
            taken = tx.session.execute(
                update(Lock)
                .where(Lock.name == LOCK_NAME, (Lock.expires_at < tx.now) | (Lock.holder == self.holder))
                .values(holder=self.holder, fence=Lock.fence + 1, expires_at=tx.now + LOCK_SECONDS)
                .execution_options(synchronize_session=False)
            )
            if taken.rowcount == 0:  # type: ignore[attr-defined]
                if tx.session.scalar(select(func.count()).where(Lock.name == LOCK_NAME)):
                    return None
                tx.session.add(
                    Lock(name=LOCK_NAME, holder=self.holder, fence=1, expires_at=tx.now + LOCK_SECONDS)
                )
                tx.session.flush()
            return tx.session.scalar(select(Lock.fence).where(Lock.name == LOCK_NAME))

        try:
            return self.ledger.database.write(work)
        except IntegrityError:
            return None  # another API server created the row in this moment

    def _release(self, fence: int) -> None:
        self.ledger.database.write(lambda tx: self._check_and_release(tx, fence, must_hold=False))

    def _check_and_release(self, tx: Transaction, fence: int, *, must_hold: bool = True) -> None:
        released = tx.session.execute(
            update(Lock)
            .where(Lock.name == LOCK_NAME, Lock.holder == self.holder, Lock.fence == fence)
            .values(expires_at=0.0)
            .execution_options(synchronize_session=False)
        )
        if must_hold and released.rowcount != 1:  # type: ignore[attr-defined]
            raise FencedError("another planner has taken over")

    # ---- a cycle -------------------------------------------------------------------------------------------

    def read(self) -> LedgerSnapshot:
        """The ledger as the core sees it now."""
        with self.ledger.database.read_consistent() as session:
            return build_snapshot(session, self.ledger.policy, self.ledger.now, self.ledger.alive_for())

    def think(self) -> tuple[LedgerSnapshot, Plan]:
        """What would be decided now; nothing is carried out.

        The last cycle's where nothing has changed since.
        """
        last = self.last
        if last is not None and self.ledger.now - last.seen.taken_at < 5.0:
            with self.ledger.database.read() as session:
                dirty = session.scalar(select(Clock.dirty).where(Clock.id == 1))
            if dirty == last.seen.dirty:
                return last.seen, last.plan
        seen = self.read()
        return seen, self._plan(seen.snapshot, self.ledger.policy, seen.taken_at)

    def cycle(self) -> Cycle | None:
        """Plan once and carry it out; None where another planner is at it or took over."""
        fence = self._acquire()
        if fence is None:
            return None
        started = time.perf_counter()
        try:
            seen = self.read()
            decisions = self._plan(seen.snapshot, self.ledger.policy, seen.taken_at)
            changes = bool(
                decisions.starts or decisions.preemptions or decisions.holds or seen.snapshot.holds
            )
            self.ledger.database.write(lambda tx: self._carry_out(tx, fence, seen, decisions), holds=changes)
        except FencedError as error:
            log.warning("a plan was thrown away: %s", error)
            return None
        except BaseException:
            self._release(fence)
            raise
        self.last = Cycle(seen, decisions, time.perf_counter() - started)
        return self.last

    def _carry_out(self, tx: Transaction, fence: int, seen: LedgerSnapshot, decisions: Plan) -> None:
        self._check_and_release(tx, fence)
        for preemption in decisions.preemptions:
            self._preempt(tx, preemption)
        if decisions.starts:
            gpus = self._lock_gpus(tx, decisions.starts)
            alive = self._alive_nodes(tx)
            budget = self.ledger.pools.budget(tx, {gpu.node for gpu in gpus})
            for start in decisions.starts:
                self._start(tx, start, gpus, alive, budget)
            self.ledger.pools.after_grants(tx, budget)
        self._note_holds(tx, seen.snapshot.holds, decisions.holds)
        self._note_waiting(tx, seen.reason_codes, decisions.waiting)
        tx.session.flush()
        tx.session.execute(
            update(Clock).where(Clock.id == 1).values(planned_at=seen.taken_at, planned_dirty=seen.dirty)
        )

    # ---- starts --------------------------------------------------------------------------------------------

    @staticmethod
    def _lock_gpus(tx: Transaction, starts: tuple[Start, ...]) -> dict[GpuId, Gpu]:
        """The rows of all GPUs to be granted, so that none falls ill between the look and the commit."""
        wanted = {gpu for start in starts for gpu in start.placement.gpus}
        found: dict[GpuId, Gpu] = {}
        for part in chunks(sorted({gpu.node for gpu in wanted})):
            query = select(Gpu).where(Gpu.node.in_(part)).order_by(Gpu.node, Gpu.gpu_index).with_for_update()
            for row in tx.session.scalars(query.execution_options(populate_existing=True)):
                if GpuId(row.node, row.gpu_index) in wanted:
                    found[GpuId(row.node, row.gpu_index)] = row
        return found

    def _alive_nodes(self, tx: Transaction) -> set[str]:
        since = tx.now - self.ledger.alive_for()
        alive = (Node.last_report_at >= since, ~Node.drain, ~Node.has_left, Node.is_ready)
        return set(tx.session.scalars(select(Node.name).where(*alive)))

    def _start(
        self,
        tx: Transaction,
        start: Start,
        gpus: Mapping[GpuId, Gpu],
        alive: set[str],
        budget: Budget | None,
    ) -> None:
        job = tx.session.get(Job, start.job_id, with_for_update=True, populate_existing=True)
        granted = [gpus.get(gpu) for gpu in start.placement.gpus]
        rows = [gpu for gpu in granted if gpu and gpu.state == GpuState.HEALTHY.value and not gpu.drain]
        fits = len(rows) == len(granted) and alive.issuperset(start.placement.nodes)
        if job is None or JobState(job.state) is not JobState.PENDING or not fits:
            tx.dirty = True
            log.info("job %s is not started: it or its GPUs changed while the plan was made", start.job_id)
            return
        if rows and budget is not None and not budget.take(rows):
            tx.dirty = tx.dirty or not budget.claimed
            log.info("job %s is not started: tasks in Airflow's pools hold its GPUs", start.job_id)
            return
        epoch = job.epoch + 1
        allocation = Allocation(
            id=allocation_id(job.id, epoch),
            job_id=job.id,
            epoch=epoch,
            state=AllocationState.GRANTED.value,
            token_sha256="",
            runtime=job.runtime,
            gpus=[[gpu.node, gpu.gpu_index, gpu.uuid] for gpu in rows],
            nodes=list(start.placement.nodes),
            gpu_count=len(rows),
            billing_rate=sum(self.ledger.policy.billing(gpu.gpu_type) for gpu in rows),
            reason=start.reason,
            granted_at=tx.now,
            deadline=tx.now + self.ledger.policy.lease.start_deadline,
            log_size=0,
            log_closed=False,
        )
        token = lease_token(self.ledger.settings.secret_key, allocation.id, epoch)
        allocation.token_sha256 = token_digest(token)
        tx.session.add(allocation)
        tx.session.flush()
        if rows:
            holds = [
                {"node": gpu.node, "gpu_index": gpu.gpu_index, "allocation_id": allocation.id} for gpu in rows
            ]
            tx.session.execute(insert(AllocationGpu), holds)
            tx.changes_holds()
        places = [
            {"allocation_id": allocation.id, "node": node, "node_rank": rank, "started": False}
            for rank, node in enumerate(allocation.nodes)
        ]
        tx.session.execute(insert(AllocationNode), places)
        tx.move_job(
            job,
            JobEvent.GRANTED,
            epoch=epoch,
            allocation_id=allocation.id,
            reason_code="",
            reason=f"granted {_words(allocation)}: {start.reason}",
        )
        self.ledger.release_holds(tx, job.id)
        tx.emit(
            "granted",
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
            self.ledger.tell_to_yield(
                tx,
                job,
                allocation,
                YieldCause.PREEMPTION,
                preemption.reason,
                held_for=preemption.for_job,
                actor=f"planner ({preemption.code})",
            )
        elif state is JobState.STARTING:
            # Nothing of it has reported yet: it is taken back at once, and its agent told to abort.
            allocation.held_for = preemption.for_job
            tx.session.flush()
            self.ledger.end_allocation(
                tx,
                allocation,
                AllocationEvent.LOST,
                code="preemption",
                reason=preemption.reason,
                confirmed=False,
            )
            self.ledger.yielded(tx, job, YieldCause.PREEMPTION, preemption.reason)
        elif state is JobState.YIELDING and allocation.held_for is None:
            allocation.held_for = preemption.for_job
            tx.emit("held", allocation=allocation, reason=preemption.reason, plan=False)

    @staticmethod
    def _note_holds(tx: Transaction, before: tuple[Hold, ...], after: tuple[Hold, ...]) -> None:
        """Keep what the plan promises to preemptors, for the next plan to keep it from everybody else."""
        old = {gpu: hold.job_id for hold in before for gpu in hold.gpus}
        new = {gpu: hold.job_id for hold in after for gpu in hold.gpus}
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
    def _note_waiting(tx: Transaction, known: Mapping[str, str], waiting: tuple[Waiting, ...]) -> None:
        """Write down what blocks a job where that has changed in kind; the numbers are for ``explain``."""
        for entry in waiting:
            codes = ",".join(sorted({reason.code.value for reason in entry.reasons}))
            if known.get(entry.job_id, "") == codes:
                continue
            text = (
                "; ".join(reason.text for reason in entry.reasons)
                or entry.estimate_text
                or "waits for its turn"
            )
            noted = tx.session.execute(
                update(Job)
                .where(Job.id == entry.job_id, Job.state == JobState.PENDING.value)
                .values(reason_code=codes[:250], reason=text)
                .execution_options(synchronize_session=False)
            )
            job = tx.session.get(Job, entry.job_id)
            if noted.rowcount == 1 and job is not None:  # type: ignore[attr-defined]
                tx.emit(
                    "waiting", job=job, code=codes[:250], reason=text, plan=False, position=entry.position
                )


def _words(allocation: Allocation) -> str:
    if not allocation.gpus:
        return f"a place on {', '.join(allocation.nodes)}"
    count = len(allocation.gpus)
    return f"{count} GPU{'s' if count > 1 else ''} on {', '.join(allocation.nodes)}"
