"""Decides where a job goes when its work ends, by whose failure the end was.

Application: the engine ended with an exit status of its own; the job has failed, and its task's retry policy
decides. Infrastructure: node or lease lost, GPU unhealthy, nothing started in time, killed by a signal that
EMEP did not send; the job is requeued in the same try, a bounded number of times. Preempted or drained: the
job is requeued, and that does not count.
"""

from __future__ import annotations

import math
import signal
from enum import Enum
from types import SimpleNamespace
from typing import Any

from emep.ledger.context import LedgerContext
from emep.ledger.failing_nodes.failure_checks import note_failure, note_success
from emep.ledger.jobs.burial import bury
from emep.ledger.lifecycle.allocation import AllocationLifecycle, release_holds
from emep.ledger.states import AllocationEvent, JobEvent, YieldCause
from emep.ledger.store.database import Transaction
from emep.ledger.store.job_rows import model_job
from emep.ledger.store.node_rows import read_nodes
from emep.ledger.store.repository import current_allocation
from emep.ledger.store.tables import Allocation, Job
from emep.ledger.store.views import to_datetime
from emep.scheduling.intake import validate_job
from emep.wire.allocations import Completion
from emep.wire.base import JobState
from emep.wire.units import count_of

EXIT_DONE, EXIT_BAD_INPUT, EXIT_PREEMPTED, EXIT_GPU_MEMORY = 0, 65, 75, 86
KILLED = frozenset({137, 143, -9, -15})
"""SIGKILL and SIGTERM, as a shell and as Python count them."""
SIGNALS_FROM = 128
"""Exit statuses above are of signals, as a shell counts them."""
NOT_STARTED = frozenset({126, 127})
"""A shell's word for a command that cannot be run, and an agent's for an order it cannot carry out."""
MAX_SENTENCE = 4096
"""Characters kept of an engine's own words; all of them are in its Result."""
LIMITS = frozenset({YieldCause.TIME_LIMIT, YieldCause.EXECUTION_TIMEOUT})


class Verdict(str, Enum):
    """What an end means for the job."""

    COMPLETED = "completed"
    STOPPED = "stopped"
    """It stopped because it was told to: the cause decides where it goes."""
    INFRASTRUCTURE = "infrastructure"
    GPU_MEMORY = "gpu_memory"
    FAILED = "failed"


def verdict(
    exit_code: int, cause: YieldCause | None, runtime: str = "agent", *, began: bool = True
) -> Verdict:
    """Whose failure an exit status was; ``cause``: why it had been told to yield, if it had.

    ``began``: it has sent a heartbeat or left a Result. What never began, as where an agent's engine command
    is broken, says nothing of itself. Work that exits by itself while it is told to make room is judged by
    its own exit status.
    """
    if exit_code == EXIT_DONE:
        return Verdict.COMPLETED
    stopped = exit_code == EXIT_PREEMPTED or exit_code in KILLED
    if cause is YieldCause.CANCEL or (cause is not None and stopped):
        return Verdict.STOPPED
    if cause in LIMITS and exit_code == EXIT_GPU_MEMORY:
        return Verdict.STOPPED
    if cause is YieldCause.UNHEALTHY and exit_code != EXIT_BAD_INPUT:
        # The GPU had been found bad: what fails on it says nothing about the work.
        return Verdict.INFRASTRUCTURE
    if stopped or (exit_code in NOT_STARTED and runtime == "agent"):
        return Verdict.INFRASTRUCTURE
    if not began and runtime == "agent" and exit_code not in (EXIT_BAD_INPUT, EXIT_GPU_MEMORY):
        return Verdict.INFRASTRUCTURE
    return Verdict.GPU_MEMORY if exit_code == EXIT_GPU_MEMORY else Verdict.FAILED


def as_ended(end: Completion) -> Completion:
    """What an end amounts to: a Result that says done stands, whatever signal ended its process later.

    A Result that names another epoch is none of this run's, and is left as it is.
    """
    result = end.result or {}
    killed = end.exit_code > SIGNALS_FROM or end.exit_code < 0
    done = result.get("status") == "done" and result.get("exit_code", EXIT_DONE) == EXIT_DONE
    if killed and done and result.get("epoch", end.epoch) == end.epoch:
        return end.model_copy(update={"exit_code": EXIT_DONE, "message": None})
    return end


class JobOutcomes:
    """The moves of a job out of its allocation, and out of the queue."""

    def __init__(self, context: LedgerContext, lifecycle: AllocationLifecycle) -> None:
        self._context = context
        self._lifecycle = lifecycle

    def ended_with(
        self,
        tx: Transaction,
        job: Job,
        allocation: Allocation,
        end: Completion,
        cause: YieldCause | None,
        actor: str,
    ) -> None:
        """Move a job whose work ended with an exit status, after its allocation has ended."""
        began = allocation.first_heartbeat_at is not None or end.result is not None
        what = verdict(end.exit_code, cause, job.runtime, began=began)
        self._learn_of_nodes(tx, job, allocation, end, what, cause, began=began)
        if what is Verdict.COMPLETED:
            tx.move_job(job, JobEvent.COMPLETED, ended_at=tx.now, reason_code="", reason="completed")
            tx.emit("completed", job=job, actor=actor)
        elif what is Verdict.STOPPED and cause is not None:
            self.after_yield(tx, job, cause)
        elif what is Verdict.INFRASTRUCTURE:
            self.requeue(tx, job, *_infrastructure(end, cause))
        elif what is Verdict.GPU_MEMORY:
            self._out_of_gpu_memory(tx, job, end, actor)
        else:
            code = "bad_input" if end.exit_code == EXIT_BAD_INPUT else f"exit_{end.exit_code}"
            self.fail(tx, job, code, sentence_of(end), actor)

    def _learn_of_nodes(
        self,
        tx: Transaction,
        job: Job,
        allocation: Allocation,
        end: Completion,
        what: Verdict,
        cause: YieldCause | None,
        *,
        began: bool,
    ) -> None:
        """Record what an end tells about its nodes; bad input and requested ends tell nothing."""
        if what is Verdict.COMPLETED:
            note_success(tx, self._context.policy.node_checks, job, allocation)
        elif (
            what in (Verdict.INFRASTRUCTURE, Verdict.FAILED)
            and end.exit_code not in (EXIT_BAD_INPUT, EXIT_PREEMPTED)
            and cause is not YieldCause.UNHEALTHY
        ):
            checks, reason = self._context.policy.node_checks, sentence_of(end)
            note_failure(tx, checks, job, allocation, reason, began=began)

    def lose(self, tx: Transaction, job: Job, allocation: Allocation, code: str, reason: str) -> None:
        """End an allocation as lost; its GPUs stay held until the agents confirm that nothing runs there."""
        cause = YieldCause(allocation.yield_cause) if allocation.yield_cause else None
        self._lifecycle.end(tx, allocation, AllocationEvent.LOST, code=code, reason=reason, confirmed=False)
        if cause is not None and cause is not YieldCause.UNHEALTHY:
            # It had been told to end: where it goes was decided then, and nothing counts twice.
            self.after_yield(tx, job, cause)
        else:
            if code == "start_deadline":
                # One minute or ten: it says how long it was waited for, and that differs.
                reason_of_node = "no heartbeat within the start deadline"
                note_failure(
                    tx, self._context.policy.node_checks, job, allocation, reason_of_node, began=False
                )
            self.requeue(tx, job, code, reason)

    def after_yield(self, tx: Transaction, job: Job, cause: YieldCause) -> None:
        """Move a job that stopped because EMEP told it to, by the cause for that."""
        if cause is YieldCause.CANCEL:
            self.cancelled(tx, job)
        elif cause in LIMITS:
            self.fail(tx, job, cause.value, job.reason)
        elif cause is YieldCause.UNHEALTHY:
            self.requeue(tx, job, "unhealthy_gpu", job.reason)
        else:
            self.yielded(tx, job, cause, job.reason)

    # ---- back to the queue ---------------------------------------------------------------------------------

    def yielded(self, tx: Transaction, job: Job, cause: YieldCause | None, reason: str) -> None:
        """Put a job that made room back in the queue, with its former priority and submission time."""
        preempted = cause is YieldCause.PREEMPTION
        tx.move_job(
            job,
            JobEvent.YIELDED,
            queued_at=tx.now,
            not_before=0.0,
            preempted=job.preempted or preempted,
            preemptions=job.preemptions + (1 if preempted else 0),
            reason_code="",
            reason=reason,
        )
        tx.emit("yielded", job=job, code=cause.value if cause else "", reason=reason)

    def requeue(self, tx: Transaction, job: Job, code: str, reason: str) -> None:
        """Put a job back because infrastructure was lost under it.

        At most ``retries.max_infrastructure`` times, each twice as late as the one before: the n-th waits
        ``min(backoff * 2**n, max_backoff)`` seconds. Then it is a dead letter.
        """
        retries = self._context.policy.retries
        used_up = job.requeues >= retries.max_infrastructure
        wait = min(retries.backoff * 2.0 ** min(job.requeues, 60), retries.max_backoff)
        tx.move_job(
            job,
            JobEvent.REQUEUED,
            queued_at=tx.now,
            not_before=tx.now + wait,
            requeues=job.requeues if used_up else job.requeues + 1,
            reason_code="",
            reason=f"{reason}; requeued, not before {_clock_time(tx.now + wait)}",
        )
        if used_up:
            self._dead_for_infrastructure(tx, job, code, reason)
            return
        tx.emit(
            "requeued", job=job, code=code, reason=reason, not_before=tx.now + wait, requeues=job.requeues
        )

    def _dead_for_infrastructure(self, tx: Transaction, job: Job, code: str, reason: str) -> None:
        times = self._context.policy.retries.max_infrastructure
        requeued = f"requeued {count_of(times, 'time')} for lost infrastructure"
        sentence = f"{requeued}, no more are allowed; the last: {reason}"
        tx.move_job(job, JobEvent.DIED, ended_at=tx.now, reason_code=code, reason=sentence)
        tx.emit("dead", job=job, code="requeues_used_up", reason=sentence)
        bury(tx, job, "requeues_used_up", sentence)

    # ---- out of GPU memory ---------------------------------------------------------------------------------

    def _out_of_gpu_memory(self, tx: Transaction, job: Job, end: Completion, actor: str) -> None:
        """Once, the same job goes back as a CPU job that works in chunks; a second time is a failure."""
        own = sentence_of(end)
        if job.gpu_count == 0 or job.promoted_from_gpus is not None:
            where = "promoted to the CPU before" if job.promoted_from_gpus is not None else "without GPUs"
            self.fail(tx, job, f"exit_{end.exit_code}", f"{own} (out of GPU memory, {where})", actor)
            return
        changes = _on_cpu(job)
        columns = {column.key: getattr(job, column.key) for column in Job.__mapper__.column_attrs}
        changed = model_job(SimpleNamespace(**(columns | changes)), self._context.policy)
        nodes = read_nodes(tx.session, alive_since=0.0)
        reject = validate_job(changed, nodes, self._context.policy)
        if reject is not None:
            sentence = f"{own} (out of GPU memory); it cannot run on the CPU either: {reject.message}"
            self.fail(tx, job, f"exit_{end.exit_code}", sentence, actor)
            return
        had = job.gpu_count
        reason = f"out of memory on {count_of(had, 'GPU')}: runs once more on the CPU, in chunks"
        tx.move_job(
            job,
            JobEvent.REQUEUED,
            queued_at=tx.now,
            not_before=0.0,
            promoted_from_gpus=had,
            reason_code="",
            reason=reason,
            **changes,
        )
        tx.emit("promoted", job=job, code="gpu_out_of_memory", reason=f"{reason} ({own})", gpus=had)

    # ---- ends ----------------------------------------------------------------------------------------------

    def fail(self, tx: Transaction, job: Job, code: str, reason: str, actor: str = "scheduler") -> None:
        """End a job as failed; a task's last try that fails is a dead letter."""
        last = job.dag_id is not None and job.last_try
        event = JobEvent.DIED if last else JobEvent.FAILED
        tx.move_job(job, event, ended_at=tx.now, reason_code=code, reason=reason)
        tx.emit("dead" if last else "failed", job=job, code=code, reason=reason, actor=actor)
        if last:
            bury(tx, job, code, reason)

    def cancelled(self, tx: Transaction, job: Job) -> None:
        """End a job that was told to yield because it had been cancelled."""
        tx.move_job(job, JobEvent.CANCELLED, ended_at=tx.now)
        tx.emit("cancelled", job=job, reason=job.reason)

    def call_off(self, tx: Transaction, job: Job, reason: str, actor: str) -> bool:
        """End a job that its task no longer wants; False if it has ended already.

        A waiting job ends at once; a running one is told to checkpoint and exit. An allocation that has not
        reported yet is taken back, and its agent is told to abort.
        """
        state = JobState(job.state)
        allocation = current_allocation(tx.session, job, lock=True)
        if state is JobState.RUNNING and allocation is not None:
            self._lifecycle.tell_to_yield(tx, job, allocation, YieldCause.CANCEL, reason, actor=actor)
        elif state is JobState.YIELDING and allocation is not None:
            if allocation.yield_cause != YieldCause.CANCEL.value:
                allocation.yield_cause = YieldCause.CANCEL.value
                job.reason_code, job.reason = YieldCause.CANCEL.value, reason
                tx.emit("cancel_requested", job=job, actor=actor, reason=reason, plan=False)
        elif state in (JobState.PENDING, JobState.STARTING):
            self._take_back(tx, job, "cancelled", reason, actor)
            tx.move_job(job, JobEvent.CANCELLED, ended_at=tx.now, reason_code="cancelled", reason=reason)
            release_holds(tx, [job.id])
            tx.emit("cancelled", job=job, actor=actor, reason=reason)
        else:
            return False
        return True

    def time_out(self, tx: Transaction, job: Job, reason: str) -> None:
        """The task's ``execution_timeout`` is over: the job ends, and its task's retry policy decides.

        One that waits ends at once, as ``cancelled`` with the code ``execution_timeout`` (a last try is a
        dead letter); one that runs is told to checkpoint and exit, and has then failed.
        """
        code, state = YieldCause.EXECUTION_TIMEOUT, JobState(job.state)
        if state is JobState.PENDING:
            last = job.dag_id is not None and job.last_try
            event = JobEvent.DIED if last else JobEvent.CANCELLED
            tx.move_job(job, event, ended_at=tx.now, reason_code=code.value, reason=reason)
            release_holds(tx, [job.id])
            tx.emit("dead" if last else "cancelled", job=job, code=code.value, reason=reason)
            if last:
                bury(tx, job, code.value, reason)
        elif state is JobState.STARTING:
            self._take_back(tx, job, code.value, reason, "scheduler")
            self.fail(tx, job, code.value, reason)
        elif state is JobState.RUNNING:
            allocation = current_allocation(tx.session, job, lock=True)
            if allocation is not None:
                self._lifecycle.tell_to_yield(tx, job, allocation, code, reason)

    def _take_back(self, tx: Transaction, job: Job, code: str, reason: str, actor: str) -> None:
        """End the allocation of a job that has not reported yet, if it has one."""
        allocation = current_allocation(tx.session, job, lock=True)
        if JobState(job.state) is JobState.STARTING and allocation is not None:
            lost = AllocationEvent.LOST
            self._lifecycle.end(tx, allocation, lost, code=code, reason=reason, actor=actor, confirmed=False)


def sentence_of(end: Completion) -> str:
    """Why work ended, in its own words where it left any."""
    error = (end.result or {}).get("error")
    own = error.get("message") if isinstance(error, dict) else None
    words = end.message or (own if isinstance(own, str) else None)
    return (words or f"exited with {end.exit_code}")[:MAX_SENTENCE]


def _infrastructure(end: Completion, cause: YieldCause | None) -> tuple[str, str]:
    """Code and sentence for an end that the application did not cause."""
    if cause is YieldCause.UNHEALTHY:
        return "unhealthy_gpu", f"{sentence_of(end)}, on a GPU that was reported bad"
    if end.exit_code == EXIT_PREEMPTED:
        words = f" ({sentence_of(end)})" if end.message or end.result else ""
        return "stopped", f"stopped without EMEP's doing{words}, its checkpoint is saved"
    if end.exit_code not in (KILLED | NOT_STARTED):
        return "not_started", f"ended before its first heartbeat: {sentence_of(end)}"
    if end.exit_code in NOT_STARTED:
        return "not_started", f"nothing could be started: {sentence_of(end)}"
    number = end.exit_code - 128 if end.exit_code > 0 else -end.exit_code
    name = signal.Signals(number).name
    words = end.message or (f"ended by {name}" if not end.result else sentence_of(end))
    sentence = f"{words}; EMEP did not send that signal"
    if number == signal.SIGKILL:
        sentence += " (the kernel does when a node's memory is full: if it repeats, ask for more memory)"
    return "killed", sentence


def _on_cpu(job: Job) -> dict[str, Any]:
    """The columns of a job that is to run on the CPU: no demand that only a GPU can meet is left."""
    topology = dict(job.topology or {})
    if topology.get("required") == "nvlink":
        topology["required"] = "node"
    if topology.get("preferred") == "nvlink":
        topology["preferred"] = "node"
    return {
        "gpu_count": 0,
        "node_count": None,
        "gpu_memory_min": 0,
        "gpu_type": "",
        "nvlink_required": False,
        "topology": topology,
        # Checkpoints do not depend on these two: it resumes from its last one.
        "spec": None if job.spec is None else {**job.spec, "chunked": True, "device": "cpu"},
    }


def _clock_time(seconds: float) -> str:
    moment = to_datetime(math.ceil(seconds))
    return moment.strftime("%H:%M:%S UTC") if moment else ""
