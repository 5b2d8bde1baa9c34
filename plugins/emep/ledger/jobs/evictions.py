"""What operators do to work that holds GPUs: tell it to make room, or take back what has not begun."""

from __future__ import annotations

from emep.ledger.jobs.outcomes import JobOutcomes
from emep.ledger.lifecycle.allocation import AllocationLifecycle
from emep.ledger.states import AllocationEvent, YieldCause
from emep.ledger.store.database import Transaction
from emep.ledger.store.tables import Allocation, Job
from emep.wire.base import JobState


class Evictions:
    """Takes GPUs from work on an operator's word."""

    def __init__(self, lifecycle: AllocationLifecycle, outcomes: JobOutcomes) -> None:
        self._lifecycle = lifecycle
        self._outcomes = outcomes

    def take_back(
        self, tx: Transaction, job: Job, allocation: Allocation, cause: YieldCause, why: str, actor: str
    ) -> bool:
        """Send the job back to its place in the queue; False if it is leaving already. Both rows are locked.

        Running work is told to checkpoint and exit within the grace period. What has been granted and has not
        reported yet is taken back at once, and its agent told to abort.
        """
        state = JobState(job.state)
        if state is JobState.RUNNING:
            self._lifecycle.tell_to_yield(tx, job, allocation, cause, why, actor=actor)
            return True
        if state is not JobState.STARTING:
            return False
        self._lifecycle.end(
            tx,
            allocation,
            AllocationEvent.LOST,
            code=cause.value,
            reason=why,
            actor=actor,
            confirmed=False,
        )
        self._outcomes.yielded(tx, job, cause, why)
        return True
