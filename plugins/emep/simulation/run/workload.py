"""The jobs of a simulation as they move: pending, running, ended; what they hold, saved and consumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from emep.policy.model import Policy
from emep.scheduling.history import DurationHistory, Kind, kind_of
from emep.scheduling.model import Allocation, GpuId, Job, Node, Placement, UsageRecord
from emep.simulation.read.jobs import JobSpec
from emep.simulation.run.recording import Recording, RunSpan, State
from emep.simulation.run.runs import Run, instant, plan_run
from emep.simulation.run.schedulers import Scheduler
from emep.simulation.run.usage import Leaf, UsageAccounts


class Workload:
    """Moves jobs between their states and keeps every account on the way.

    The scheduler is told of every move. Job and Allocation objects stay the same as long as nothing about
    them changes, so that it may key what it derives on them.
    """

    def __init__(
        self,
        specs: Sequence[JobSpec],
        policy: Policy,
        nodes: Sequence[Node],
        scheduler: Scheduler,
        recording: Recording,
    ) -> None:
        self._policy, self._scheduler, self._recording = policy, scheduler, recording
        self._jobs = [spec.under(policy) for spec in specs]
        self._limited = [spec.job.max_duration is not None or job.max_duration != spec.duration
                         for spec, job in zip(specs, self._jobs, strict=True)]  # fmt: skip
        self._leaves: list[Leaf] = [(job.queue, job.project, job.user) for job in self._jobs]
        self._numbers = {job.id: number for number, job in enumerate(self._jobs)}
        self._durations = [spec.duration for spec in specs]
        self._saved = [0.0] * len(specs)
        self._queued_at = [0.0] * len(specs)
        self._epoch = [0] * len(specs)
        self._queue_entries = [0] * len(specs)
        self._infrastructure = [0] * len(specs)
        self._billing = _billing_of_gpus(policy, nodes)
        self._usage = UsageAccounts(policy.half_life)
        self._projects = UsageAccounts(half_life=0.0)
        self._history = DurationHistory()
        self._guessed: dict[Kind, set[int]] = {}
        self._runs: dict[int, Run] = {}
        self._with_schedule: set[int] = set()
        self._busy = 0
        self.pending: dict[int, Job] = {}
        self.allocations: dict[int, Allocation] = {}

    # ---- what the scheduler sees ---------------------------------------------------------------------------

    def look(self, now: float) -> tuple[UsageRecord, ...]:
        """Bring what changes with time alone up to ``now`` before a plan, and return all consumption."""
        for number in self._with_schedule:
            run = self._runs[number]
            taken = run.last_checkpoint(now)
            if taken != run.allocation.last_checkpoint:
                self._change(number, replace(run.allocation, last_checkpoint=taken))
        return self._usage.records(now)

    def number(self, job_id: str) -> int:
        """Number of a job in the workload."""
        return self._numbers[job_id]

    def waits_since(self, number: int) -> int:
        """Which stay in the queue this is, 0 where the job is not in it."""
        return self._queue_entries[number] if number in self.pending else 0

    def run_of(self, number: int, epoch: int) -> Run | None:
        """The job's run, if it is still that one."""
        run = self._runs.get(number)
        return run if run is not None and run.epoch == epoch else None

    def runs_on(self, node: str, gpu: int | None) -> list[int]:
        """Jobs that run on a node, or on one GPU of it, in order of their start."""
        if gpu is None:
            return [number for number, held in self.allocations.items() if node in held.nodes]
        wanted = GpuId(node, gpu)
        return [number for number, held in self.allocations.items() if wanted in held.gpus]

    # ---- moves ---------------------------------------------------------------------------------------------

    def submit(self, number: int, now: float) -> None:
        """A job enters the queue for the first time."""
        job = self._jobs[number]
        self._usage.know(self._leaves[number], now)
        self._projects.know(("", job.project, ""), now)
        self._recording.event(now, "submitted", job.id)
        self._enqueue(number, job, now)

    def start(self, number: int, placement: Placement, reason: str, now: float) -> Run:
        """The scheduler granted GPUs to a pending job."""
        job = self._leave_queue(number, now)
        outcome = self._recording.outcomes[number]
        resumed = outcome.first_start is not None
        self._epoch[number] += 1
        run = plan_run(
            Allocation(job=job, gpus=placement.gpus, start_time=now, nodes=placement.nodes),
            saved=self._saved[number],
            restart=self._policy.simulation.restart_time if resumed else 0.0,
            duration=self._durations[number],
            limited=self._limited[number],
            epoch=self._epoch[number],
        )
        self._runs[number] = run
        self.allocations[number] = run.allocation
        self._scheduler.start(run.allocation)
        if job.checkpoint_interval:
            self._with_schedule.add(number)
        self._hold(number, placement.gpus, 1, now)
        if not resumed:
            outcome.first_start = now
        outcome.nodes, outcome.gpus, outcome.reason = placement.nodes, placement.gpus, reason
        self._recording.event(now, "started", job.id, placement.gpus)
        return run

    def tell_to_yield(self, number: int, now: float, for_job: str | None, reason: str) -> Run | None:
        """Tell a running job to checkpoint and exit; None where it yields already or ends by itself first.

        ``for_job`` None: because of a bad GPU. A job that saves on a schedule exits at once and loses what it
        did since; any other takes ``checkpoint_time``, and loses its run's work if the grace is shorter.
        """
        run = self._runs[number]
        if run.yields_at is not None:
            return None
        costs, grace = self._policy.simulation, self._policy.preemption.grace_period
        run.told_done = run.work_done(now)
        if run.allocation.job.checkpoint_interval:
            leaves, run.keeps = now, run.work_in_checkpoints(now)
        else:
            leaves = instant(now + min(costs.checkpoint_time, grace))
            run.keeps = run.told_done if costs.checkpoint_time <= grace else run.saved
        run.yields_at = leaves
        run.counts_as_infrastructure = for_job is None
        ends_first = run.ends_at <= leaves
        told = replace(run.allocation, yielding=True, held_for=for_job, releases_at=min(leaves, run.ends_at))
        self._change(number, told)
        if ends_first:
            return None
        if for_job is not None:
            self._recording.outcomes[number].preemptions += 1
            self._recording.preempted(now, run.allocation.job.id, run.allocation.gpus, for_job)
        return run

    def stop(self, number: int, now: float) -> Run:
        """A run is over, however: its GPUs are free."""
        run = self._runs.pop(number)
        del self.allocations[number]
        self._scheduler.end(run.allocation.job.id)
        self._with_schedule.discard(number)
        gpus = run.allocation.gpus
        self._hold(number, gpus, -1, now)
        self._recording.outcomes[number].gpu_seconds += (now - run.start) * len(gpus)
        self._recording.runs.append(RunSpan(number, run.start, now, gpus))
        return run

    def keep(self, number: int, saved: float, done: float) -> None:
        """After a run that did not complete: what of the work done is in a checkpoint."""
        self._saved[number] = saved
        self._recording.outcomes[number].work_lost += (done - saved) * self._jobs[number].gpu_count

    def requeue(
        self, number: int, now: float, reason: str, *, preempted: bool = False, not_before: float = 0.0
    ) -> None:
        """A job that did not complete goes back, with its priority and submission time."""
        job = self._jobs[number]
        job = replace(job, preempted=preempted or job.preempted, queued_at=now, not_before=not_before)
        self._recording.outcomes[number].reason = reason
        self._recording.event(now, "requeued", job.id)
        self._enqueue(number, job, now)

    def finish(self, number: int, state: State, reason: str, now: float) -> None:
        """A job has ended for good."""
        if number in self.pending:
            self._leave_queue(number, now)
        outcome = self._recording.outcomes[number]
        outcome.state, outcome.end, outcome.reason = state, now, reason
        self._recording.event(now, state.value, self._jobs[number].id, outcome.gpus)

    def count_infrastructure(self, number: int) -> int:
        """How often the job has lost its place to infrastructure, this time included."""
        self._infrastructure[number] += 1
        return self._infrastructure[number]

    def learn(self, number: int) -> None:
        """A job completed: estimate the waiting jobs of its kind again."""
        kind = kind_of(self._jobs[number])
        self._history.add(kind, self._durations[number])
        for other in sorted(self._guessed.get(kind, ())):
            self._replace_pending(other, self._estimated(self.pending[other]))

    def sample(self, now: float) -> None:
        """Note the curves of the report after an instant."""
        self._recording.sample(now, self._busy, len(self.pending))
        if self._recording.wants_shares():
            self._recording.add_shares(
                now, {record.project: record.gpu_seconds for record in self._projects.records(now)}
            )

    def close(self, now: float) -> None:
        """End the simulation: jobs that still wait have waited until now."""
        self._recording.end_time = now
        for number in list(self.pending):
            self._leave_queue(number, now)

    # ---- helpers -------------------------------------------------------------------------------------------

    def _enqueue(self, number: int, job: Job, now: float) -> None:
        if self._limited[number]:
            self._guessed.setdefault(kind_of(job), set()).add(number)
            job = self._estimated(job)
        self._queue_entries[number] += 1
        self._queued_at[number] = now
        self._replace_pending(number, job)

    def _estimated(self, job: Job) -> Job:
        estimate = self._history.estimate(job)
        return job if estimate == job.estimated_duration else replace(job, estimated_duration=estimate)

    def _replace_pending(self, number: int, job: Job) -> None:
        self._jobs[number] = job
        self.pending[number] = job
        self._scheduler.submit(job)

    def _change(self, number: int, allocation: Allocation) -> None:
        self._runs[number].allocation = allocation
        self.allocations[number] = allocation
        self._scheduler.change(allocation)

    def _leave_queue(self, number: int, now: float) -> Job:
        job = self.pending.pop(number)
        self._scheduler.leave(job.id)
        if self._limited[number]:
            self._guessed[kind_of(job)].discard(number)
        self._recording.outcomes[number].wait += now - self._queued_at[number]
        return job

    def _hold(self, number: int, gpus: Sequence[GpuId], sign: int, now: float) -> None:
        """Account for GPUs taken (``sign`` 1) or given back (-1)."""
        self._busy += sign * len(gpus)
        billed = float(len(gpus)) if self._billing is None else sum(self._billing[gpu] for gpu in gpus)
        self._usage.add_rate(self._leaves[number], sign * billed, now)
        self._projects.add_rate(("", self._leaves[number][1], ""), sign * float(len(gpus)), now)


def _billing_of_gpus(policy: Policy, nodes: Sequence[Node]) -> Mapping[GpuId, float] | None:
    """What a second of each GPU is charged; None where every one costs the same."""
    if not policy.gpu_billing:
        return None
    return {GpuId(node.name, gpu.index): policy.billing(gpu.gpu_type) for node in nodes for gpu in node.gpus}
