"""Allocations: heartbeats with directives, completion, and the lease's token."""

from __future__ import annotations

from datetime import datetime
from typing import Any, cast

from sqlalchemy import Table, bindparam, func, select, update

from emep.ledger.context import LedgerContext
from emep.ledger.jobs.outcomes import EXIT_DONE, EXIT_PREEMPTED, JobOutcomes, as_ended, sentence_of
from emep.ledger.lifecycle.allocation import AllocationLifecycle
from emep.ledger.states import (
    LIVE_ALLOCATION_STATES,
    AllocationEvent,
    AllocationState,
    JobEvent,
    YieldCause,
    move_allocation,
)
from emep.ledger.store.database import Transaction
from emep.ledger.store.ids import same_secret, token_digest
from emep.ledger.store.repository import get_allocation, get_job
from emep.ledger.store.tables import Allocation, Job
from emep.ledger.store.views import allocation_view, allocation_views, job_view
from emep.policy.model import Policy
from emep.wire.allocations import AllocationView, Completion, Heartbeat, HeartbeatAnswer
from emep.wire.base import Directive, JobState
from emep.wire.errors import ConflictError, NotAuthenticatedError, StaleEpochError
from emep.wire.jobs import JobView, Page

_TABLE = cast(Table, Allocation.__table__)
_ACTIVE = AllocationState.ACTIVE
assert move_allocation(_ACTIVE, AllocationEvent.HEARTBEAT) is _ACTIVE  # noqa: S101 - what _renew relies on
_RENEW = (
    update(_TABLE)
    .where(
        _TABLE.c.id == bindparam("of_id"),
        _TABLE.c.epoch == bindparam("of_epoch"),
        _TABLE.c.state == _ACTIVE.value,
    )
    .values(heartbeat_at=bindparam("heartbeat_at"), deadline=bindparam("deadline"))
)
_RENEW_WITH_PROGRESS = _RENEW.values(progress=bindparam("progress", type_=_TABLE.c.progress.type))


def effective_max_duration(job: Job, policy: Policy) -> float | None:
    """Seconds that one run of the job may take: its own limit, else its queue's; None: endless."""
    if job.max_duration is not None:
        return job.max_duration
    queue = policy.queues.get(job.queue)
    return None if queue is None else queue.default_max_duration


class Allocations:
    """Answers the holders of allocations: leases checked and renewed, work completed."""

    def __init__(self, context: LedgerContext, lifecycle: AllocationLifecycle, outcomes: JobOutcomes) -> None:
        self._context = context
        self._lifecycle = lifecycle
        self._outcomes = outcomes

    def check_lease(self, allocation_id: str, token: str) -> None:
        """Check a lease's token.

        Raises NotAuthenticatedError for a wrong token and for an unknown allocation alike, so that a caller
        cannot find out which allocations exist.
        """
        if self.knows_lease(allocation_id, token):
            return
        with self._context.database.read() as session:
            stored = session.scalar(select(Allocation.token_sha256).where(Allocation.id == allocation_id))
        if not same_secret(token_digest(token), stored or ""):
            raise NotAuthenticatedError("this lease token is not valid for this allocation")
        self._context.known_leases.keep_digest(allocation_id, token_digest(token))

    def knows_lease(self, allocation_id: str, token: str) -> bool:
        """Whether the token is known, without asking the database, to be this allocation's."""
        return same_secret(token_digest(token), self._context.known_leases.digest(allocation_id) or "")

    def page(self, *, live_only: bool = True, after: str | None = None, limit: int = 100) -> Page:
        """A page of allocations, newest first."""
        where = [Allocation.state.in_([state.value for state in LIVE_ALLOCATION_STATES])] if live_only else []
        query = select(Allocation).where(*where).order_by(Allocation.id.desc()).limit(limit + 1)
        if after is not None:
            query = query.where(Allocation.id < after)
        with self._context.database.read() as session:
            total = session.scalar(select(func.count()).select_from(Allocation).where(*where)) or 0
            rows = list(session.scalars(query))
            views = allocation_views(session, rows[:limit])
        cursor = rows[limit - 1].id if len(rows) > limit else None
        return Page(items=views, total=total, next=cursor)

    def get(self, allocation_id: str) -> AllocationView:
        """One allocation; NotFoundError where there is none."""
        with self._context.database.read() as session:
            return allocation_view(session, get_allocation(session, allocation_id))

    # ---- heartbeat -----------------------------------------------------------------------------------------

    def heartbeat(self, allocation_id: str, beat: Heartbeat) -> HeartbeatAnswer:
        """Renew a lease and say what to do.

        The first one makes the job ``running``. Raises StaleEpochError, which tells the caller to abort,
        where the allocation is over or the epoch is another.
        """
        if self._context.known_leases.is_written(allocation_id, beat.checkpoint):
            lease = self._lease_seconds(beat)
            if self._context.database.write(lambda tx: self._renew(tx, allocation_id, beat, lease)):
                return HeartbeatAnswer(directive=Directive.CONTINUE, lease_seconds=lease)
        answer = self._context.database.write(lambda tx: self._heartbeat(tx, allocation_id, beat))
        if beat.checkpoint is not None:
            self._context.known_leases.keep_checkpoint(allocation_id, beat.checkpoint)
        return answer

    def _lease_seconds(self, beat: Heartbeat) -> float:
        """How long a heartbeat renews the lease for, in seconds.

        A heartbeat from a trigger that watches a pod lasts longer, because the triggerer may be restarted
        while the pod goes on unharmed.
        """
        lease = self._context.policy.lease
        return lease.max_silence if beat.watched else lease.expiry

    @staticmethod
    def _renew(tx: Transaction, allocation_id: str, beat: Heartbeat, lease: float) -> bool:
        """Renew the lease of an ordinary run in one guarded statement; False if that does not suffice."""
        values = {
            "of_id": allocation_id,
            "of_epoch": beat.epoch,
            "heartbeat_at": tx.now,
            "deadline": tx.now + lease,
        }
        statement = _RENEW
        if beat.progress is not None:
            statement, values["progress"] = _RENEW_WITH_PROGRESS, beat.progress
        return tx.session.connection().execute(statement, values).rowcount == 1

    def _heartbeat(self, tx: Transaction, allocation_id: str, beat: Heartbeat) -> HeartbeatAnswer:
        found = select(Allocation.job_id).where(Allocation.id == allocation_id)
        if beat.checkpoint is None:
            found = found.where(Allocation.state == AllocationState.GRANTED.value)
        written = tx.session.scalar(found)
        if written is not None:
            # Jobs are locked before their allocations everywhere, so that no two calls wait for each other:
            # the first heartbeat moves the job, and a checkpoint is noted in it.
            get_job(tx.session, written, lock=True)
        allocation = self._held(tx, allocation_id, beat.epoch)
        told = allocation.yield_deadline is not None
        lease = self._context.policy.lease.expiry if told else self._lease_seconds(beat)
        values: dict[str, Any] = {"heartbeat_at": tx.now}
        is_first = allocation.state == AllocationState.GRANTED.value
        overdue = allocation.yield_deadline is not None and tx.now > allocation.yield_deadline
        if not overdue:
            # Past its grace it is told to abort and its lease runs out: a deaf supervisor holds nothing for
            # ever.
            values["deadline"] = tx.now + lease
        if beat.progress is not None:
            values["progress"] = beat.progress
        is_new = self._note_checkpoint(tx, allocation, beat.checkpoint, values)
        if is_first:
            self._first_heartbeat(tx, allocation, values)
        tx.move_allocation(allocation, AllocationEvent.HEARTBEAT, **values)
        if is_first:
            tx.emit("started", allocation=allocation, actor="supervisor", plan=False)
        elif is_new:
            tx.emit(
                "checkpointed",
                allocation=allocation,
                actor="supervisor",
                plan=False,
                checkpoint=beat.checkpoint,
            )
        return self._directive(allocation, tx.now, lease)

    def _first_heartbeat(self, tx: Transaction, allocation: Allocation, values: dict[str, Any]) -> None:
        job = get_job(tx.session, allocation.job_id, lock=True)
        limit = effective_max_duration(job, self._context.policy)
        values["first_heartbeat_at"] = tx.now
        values["ends_by"] = None if limit is None else tx.now + limit
        tx.move_job(
            job,
            JobEvent.STARTED,
            started_at=job.started_at or tx.now,
            reason_code="",
            reason=f"runs on {', '.join(allocation.nodes)}",
        )

    def _note_checkpoint(
        self,
        tx: Transaction,
        allocation: Allocation,
        checkpoint: dict[str, Any] | None,
        values: dict[str, Any],
    ) -> bool:
        if checkpoint is None:
            return False
        job = get_job(tx.session, allocation.job_id)
        if job.last_checkpoint == checkpoint:
            return False
        values["last_checkpoint_at"] = _checkpoint_time(checkpoint, tx.now)
        job.last_checkpoint = checkpoint
        tx.session.flush()
        return True

    @staticmethod
    def _directive(allocation: Allocation, now: float, lease: float) -> HeartbeatAnswer:
        if allocation.state != AllocationState.YIELDING.value or allocation.yield_deadline is None:
            return HeartbeatAnswer(directive=Directive.CONTINUE, lease_seconds=lease)
        left = allocation.yield_deadline - now
        if left <= 0:
            return HeartbeatAnswer(
                directive=Directive.ABORT, grace_seconds=0, lease_seconds=max(0.0, allocation.deadline - now)
            )
        return HeartbeatAnswer(
            directive=Directive.CHECKPOINT_AND_EXIT, grace_seconds=left, lease_seconds=lease
        )

    def _held(self, tx: Transaction, allocation_id: str, epoch: int) -> Allocation:
        """The allocation, while it is the job's present one; else StaleEpochError."""
        allocation = get_allocation(tx.session, allocation_id, lock=True)
        if allocation.epoch != epoch:
            raise StaleEpochError(
                f"epoch {epoch} is not that of allocation {allocation_id} ({allocation.epoch}): abort",
                field="epoch",
            )
        if AllocationState(allocation.state) not in LIVE_ALLOCATION_STATES:
            raise StaleEpochError(
                f"allocation {allocation_id} is {allocation.state}: its GPUs are no longer yours, abort",
                field="epoch",
            )
        return allocation

    # ---- completion ----------------------------------------------------------------------------------------

    def complete(self, allocation_id: str, end: Completion, *, actor: str = "supervisor") -> JobView:
        """The work has ended with this exit code: release the GPUs and decide where the job goes.

        The same call again is answered the same. Raises StaleEpochError for another epoch or a lost lease,
        ConflictError where it was completed with another exit code.
        """
        end = as_ended(end)

        def work(tx: Transaction) -> JobView:
            allocation = get_allocation(tx.session, allocation_id)
            job = get_job(tx.session, allocation.job_id, lock=True)
            allocation = get_allocation(tx.session, allocation_id, lock=True)
            if allocation.state == AllocationState.RELEASED.value and allocation.epoch == end.epoch:
                if allocation.exit_code != end.exit_code:
                    raise ConflictError(
                        f"allocation {allocation_id} has ended, with exit code {allocation.exit_code}",
                        field="exit_code",
                    )
                return job_view(tx.session, job)
            self._held(tx, allocation_id, end.epoch)
            self._end(tx, job, allocation, end, actor)
            return job_view(tx.session, job)

        return self._context.database.write(work, holds=True)

    def _end(self, tx: Transaction, job: Job, allocation: Allocation, end: Completion, actor: str) -> None:
        cause = YieldCause(allocation.yield_cause) if allocation.yield_cause else None
        if JobState(job.state) is JobState.STARTING and end.exit_code in (EXIT_DONE, EXIT_PREEMPTED):
            # Over before its first heartbeat.
            tx.move_job(job, JobEvent.STARTED, started_at=job.started_at or tx.now)
        sentence = sentence_of(end)
        self._lifecycle.end(
            tx,
            allocation,
            AllocationEvent.RELEASED,
            code=f"exit_{end.exit_code}",
            reason=sentence,
            actor=actor,
            exit_code=end.exit_code,
            confirmed=True,
        )
        job.exit_code, job.result = end.exit_code, end.result
        tx.session.flush()
        self._outcomes.ended_with(tx, job, allocation, end, cause, actor)


def _checkpoint_time(checkpoint: dict[str, Any], now: float) -> float:
    """When the checkpoint was taken: the time it states if that is in the past, else ``now``."""
    try:
        moment = datetime.fromisoformat(str(checkpoint.get("time")))
        return min(now, moment.timestamp()) if moment.tzinfo else now
    except (ValueError, OverflowError):
        return now
