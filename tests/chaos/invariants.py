"""What must be true whatever was killed: pure functions over the evidence, each a list of violations.

None of them believes the ledger alone: grants are held against the files that the engines wrote themselves,
and results against the steps that were really done.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.chaos.model import AuditEvent, Evidence, Gpu, JobRow, StepLine, WitnessLine

CLOCK_SLACK = 1.0
"""Seconds by which the time of a transaction (taken at its begin) may differ from that of its commit."""
AT_REST = frozenset({"pending", "completed", "failed", "cancelled", "rejected", "expired", "dead"})
BY_SOMEBODY = frozenset({"pending", "completed", "cancelled"})
"""Where a job of an engine that never fails by itself may be at the end."""
REFUSED = frozenset({401, 403, 404, 409, 410})
FOR_SILENCE = frozenset({"lease_expired", "node_lost", "start_deadline"})
"""Reasons for which an allocation is lost because nothing was heard."""
_ENDS = ("allocation_released", "allocation_lost")


@dataclass(frozen=True)
class Violation:
    """A broken invariant in one sentence, with the lines that show it."""

    sentence: str
    lines: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Hold:
    """A GPU held by an allocation: from its grant to the moment from which it may be granted again."""

    gpu: Gpu
    granted: AuditEvent
    freed: AuditEvent | None = None

    @property
    def until(self) -> float:
        """Seconds since 1970; infinite where it was never given back."""
        return math.inf if self.freed is None else self.freed.time


def _lines(*found: Any) -> list[dict[str, Any]]:
    return [asdict(entry) for entry in found if entry is not None]


def holds(evidence: Evidence) -> Iterator[tuple[Hold, Hold | None]]:
    """Every hold in the audit's order, with the one that had not ended when it began (None: all is well)."""
    open_now: dict[Gpu, Hold] = {}
    last: dict[Gpu, Hold] = {}
    made: list[tuple[Hold, Hold | None]] = []
    for event in sorted(evidence.events, key=lambda entry: entry.id):
        if event.event == "granted":
            for node, index, *_ in event.data["gpus"]:
                hold = Hold((node, index), event)
                before = open_now.get(hold.gpu) or last.get(hold.gpu)
                is_overlap = before is not None and before.until > event.time + CLOCK_SLACK
                made.append((hold, before if is_overlap else None))
                open_now[hold.gpu] = last[hold.gpu] = hold
        elif event.event in _ENDS and event.data.get("confirmed"):
            for gpu, hold in list(open_now.items()):
                if hold.granted.allocation == event.allocation:
                    open_now.pop(gpu).freed = event
        elif event.event == "gpus_confirmed_free":
            for index in event.data["gpu_indices"]:
                gpu = (str(event.node), index)
                if gpu in open_now and open_now[gpu].granted.allocation == event.allocation:
                    open_now.pop(gpu).freed = event
    return iter(made)


def no_gpu_granted_twice(evidence: Evidence) -> list[Violation]:
    """By the audit: a GPU is granted only after its last holder's end was confirmed."""
    return [
        Violation(
            f"GPU {hold.gpu[0]}:{hold.gpu[1]} was granted to {hold.granted.allocation} "
            f"while {other.granted.allocation} held it",
            _lines(other.granted, other.freed, hold.granted),
        )
        for hold, other in holds(evidence)
        if other is not None
    ]


@dataclass
class Presence:
    """One process on one GPU, by its own notes: it surely lived from its first to its last line."""

    first: WitnessLine
    last: WitnessLine


def presences(evidence: Evidence) -> list[Presence]:
    """Every process on every GPU, in order of their starts."""
    found: dict[tuple[Any, ...], Presence] = {}
    for line in evidence.witness:
        if line.kind == "collision":
            continue
        key = (line.node, line.gpu, line.pid, line.allocation, line.epoch)
        presence = found.setdefault(key, Presence(line, line))
        presence.first = min(presence.first, line, key=lambda entry: entry.time)
        presence.last = max(presence.last, line, key=lambda entry: entry.time)
    return sorted(found.values(), key=lambda entry: entry.first.time)


def no_gpu_used_twice(evidence: Evidence) -> list[Violation]:
    """By the witness files: no two processes on one GPU at once; every lock was free when it was taken."""
    violations = [
        Violation(
            f"GPU {line.node}:{line.gpu} was still used by {line.other or 'somebody'} "
            f"when epoch {line.epoch} of {line.job} began on it",
            _lines(line),
        )
        for line in evidence.witness
        if line.kind == "collision"
    ]
    latest: dict[Gpu, Presence] = {}
    for presence in presences(evidence):
        gpu = (presence.first.node, presence.first.gpu)
        before = latest.get(gpu)
        if before is not None and before.last.time > presence.first.time:
            violations.append(
                Violation(
                    f"GPU {gpu[0]}:{gpu[1]} was used by processes {before.first.pid} and "
                    f"{presence.first.pid} at once",
                    _lines(before.first, before.last, presence.first),
                )
            )
        if before is None or presence.last.time > before.last.time:
            latest[gpu] = presence
    return violations


def gpus_used_only_while_granted(evidence: Evidence) -> list[Violation]:
    """Witness files against audit: a process is on a GPU only while its allocation holds it."""
    granted: dict[tuple[str | None, Gpu], Hold] = {
        (hold.granted.allocation, hold.gpu): hold for hold, _ in holds(evidence)
    }
    violations = []
    for presence in presences(evidence):
        line = presence.first
        hold = granted.get((line.allocation, (line.node, line.gpu)))
        where = f"process {line.pid} of {line.allocation} (epoch {line.epoch}) on {line.node}:{line.gpu}"
        if hold is None or hold.granted.epoch != line.epoch:
            violations.append(Violation(f"{where} was never granted that GPU", _lines(line)))
        elif line.time < hold.granted.time - CLOCK_SLACK:
            violations.append(Violation(f"{where} began before its grant", _lines(hold.granted, line)))
        elif presence.last.time > hold.until + CLOCK_SLACK:
            violations.append(
                Violation(
                    f"{where} still ran {presence.last.time - hold.until:.1f} s after the GPU was given back",
                    _lines(hold.granted, hold.freed, presence.last),
                )
            )
    return violations


def every_job_is_at_rest(evidence: Evidence) -> list[Violation]:
    """At the end every job has ended or waits, and nothing is held by anybody."""
    violations = [
        Violation(f"job {job.id} is {job.state} at the end: {job.reason}", _lines(job))
        for job in evidence.jobs
        if job.state not in AT_REST
    ]
    ends: dict[str | None, int] = defaultdict(int)
    for event in evidence.events:
        ends[event.allocation] += event.event in _ENDS
    violations.extend(
        Violation(f"allocation {event.allocation} has ended {ends[event.allocation]} times", _lines(event))
        for event in evidence.events
        if event.event == "granted" and ends[event.allocation] != 1
    )
    return violations


def no_job_failed_by_a_kill(evidence: Evidence) -> list[Violation]:
    """The engine never fails by itself and requeues are not bounded here: whoever failed was made to."""
    return [
        Violation(f"job {job.id} is {job.state} (exit {job.exit_code}): {job.reason}", _lines(job))
        for job in evidence.jobs
        if job.state in AT_REST - BY_SOMEBODY
    ]


def no_result_of_an_old_epoch(evidence: Evidence) -> list[Violation]:
    """A result counts only from the epoch that was granted last, and once; a zombie is refused."""
    grants: dict[str | None, list[AuditEvent]] = defaultdict(list)
    completions: dict[str | None, list[AuditEvent]] = defaultdict(list)
    for event in sorted(evidence.events, key=lambda entry: entry.id):
        if event.event == "granted":
            grants[event.job].append(event)
        elif event.event == "completed":
            completions[event.job].append(event)
    finishers = {(line.job, line.epoch) for line in evidence.steps if line.kind == "finish"}
    violations = []
    for job in evidence.jobs:
        ends = completions[job.id]
        if (job.state == "completed") != (len(ends) == 1) or len(ends) > 1:
            violations.append(
                Violation(f"job {job.id} is {job.state} and was completed {len(ends)} times", _lines(*ends))
            )
        for end in ends:
            violations.extend(_wrong_end(job, end, grants[job.id], (job.id, end.epoch) in finishers))
    violations.extend(
        Violation(
            f"a completion by the old epoch {probe.epoch} of job {probe.job} was answered {probe.status}",
            _lines(probe),
        )
        for probe in evidence.probes
        if probe.status not in REFUSED
    )
    return violations


def _wrong_end(job: JobRow, end: AuditEvent, grants: list[AuditEvent], finished: bool) -> Iterator[Violation]:
    """What is wrong with one accepted completion of a job."""
    newest = next((grant for grant in reversed(grants) if grant.id < end.id), None)
    if newest is None or newest.epoch != end.epoch:
        epoch = newest.epoch if newest else "none"
        yield Violation(
            f"job {job.id} was completed by epoch {end.epoch}, but epoch {epoch} was granted last",
            _lines(newest, end),
        )
    later = [grant for grant in grants if grant.id > end.id]
    if later:
        yield Violation(f"job {job.id} was granted GPUs after its end", _lines(end, *later))
    claimed = ((job.result or {}).get("metrics") or {}).get("epoch")
    if claimed != end.epoch:
        yield Violation(f"job {job.id} has the result of epoch {claimed}, not {end.epoch}", _lines(job))
    if not finished:
        yield Violation(f"epoch {end.epoch} of job {job.id} never said it had finished", _lines(end))


def _by_log(evidence: Evidence) -> Mapping[str, list[StepLine]]:
    logs: dict[str, list[StepLine]] = defaultdict(list)
    for line in evidence.steps:
        logs[line.log].append(line)
    return logs


def no_finished_step_redone(evidence: Evidence) -> list[Violation]:
    """A step below a complete checkpoint is not done again by whoever began after that checkpoint."""
    violations = []
    for name, lines in _by_log(evidence).items():
        covered: StepLine | None = None
        begun: dict[tuple[str, int], StepLine | None] = {}
        done: set[tuple[str, int, int]] = set()
        for line in lines:
            run = (line.job, line.epoch)
            if line.kind == "resume":
                begun[run] = covered
            elif line.kind == "checkpoint":
                covered = line if covered is None or line.step > covered.step else covered
            elif line.kind == "step":
                before = begun.get(run)
                if before is not None and line.step <= before.step:
                    violations.append(
                        Violation(
                            f"{name}: epoch {line.epoch} did step {line.step} again, which the checkpoint of "
                            f"step {before.step} (epoch {before.epoch}) covers",
                            _lines(before, line),
                        )
                    )
                if (*run, line.step) in done:
                    violations.append(
                        Violation(f"{name}: epoch {line.epoch} did step {line.step} twice", _lines(line))
                    )
                done.add((*run, line.step))
    return violations


def no_step_left_out(evidence: Evidence) -> list[Violation]:
    """A completed job has done every one of its steps at least once."""
    done: dict[str, set[int]] = defaultdict(set)
    for line in evidence.steps:
        if line.kind == "step":
            done[line.log].add(line.step)
    violations = []
    for job in evidence.jobs:
        wanted = ((job.result or {}).get("metrics") or {}).get("steps")
        if job.state != "completed" or not isinstance(wanted, int):
            continue
        for name in [
            log for log in done if log == job.step_log or log.startswith(f"{job.step_log}.rank-")
        ] or [job.step_log]:
            missing = sorted(set(range(1, wanted + 1)) - done[name])
            if missing:
                violations.append(
                    Violation(
                        f"job {job.id} is completed, but {name} lacks steps {missing[:10]}", _lines(job)
                    )
                )
    return violations


def charges_equal_held_time(evidence: Evidence) -> list[Violation]:
    """Every entity was charged what its allocations held, from grant to end, and no more."""
    entity = {job.id: (job.queue, job.project, job.user) for job in evidence.jobs}
    granted = {event.allocation: event for event in evidence.events if event.event == "granted"}
    held: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    violations = []
    for event in evidence.events:
        if event.event not in _ENDS:
            continue
        seconds, begin = float(event.data["held_seconds"]), granted.get(event.allocation)
        if begin is None or abs(event.time - begin.time - seconds) > 1e-3:
            violations.append(
                Violation(
                    f"allocation {event.allocation} says it was held {seconds:.3f} s, by its events it was "
                    f"{event.time - begin.time if begin else math.nan:.3f} s",
                    _lines(begin, event),
                )
            )
        if event.data["gpus"]:
            held[entity[str(event.job)]].append(seconds * len(event.data["gpus"]))
    charged = {(row.queue, row.project, row.user): row.gpu_seconds for row in evidence.usage}
    for name in sorted(held.keys() | charged.keys()):
        wanted, found = math.fsum(held[name]), charged.get(name, 0.0)
        if not math.isclose(wanted, found, rel_tol=1e-9, abs_tol=1e-6):
            violations.append(
                Violation(f"{'/'.join(name)} was charged {found:.6f} GPU-seconds and held {wanted:.6f}")
            )
    return violations


def outages_cost_nothing(evidence: Evidence) -> list[Violation]:
    """While the control plane was away its running jobs went on, and none lost its GPUs for it."""
    violations = []
    for outage in evidence.outages:
        during = [line for line in evidence.witness if outage.start < line.time < outage.end]
        if not during:
            violations.append(Violation("nothing ran while the control plane was away"))
        granted = {event.allocation for event in evidence.events if event.time < outage.start}
        lost = [
            event
            for event in evidence.events
            if event.event == "allocation_lost"
            and event.code in FOR_SILENCE
            and event.allocation in granted
            and outage.start <= event.time <= outage.end + CLOCK_SLACK
        ]
        violations.extend(
            Violation(f"{event.allocation} was lost for the outage: {event.reason}", _lines(event))
            for event in lost
        )
    return violations


def tasks_agree_with_their_jobs(evidence: Evidence) -> list[Violation]:
    """An Airflow task has succeeded exactly where one job of its tries was completed.

    It fails only where its last job was cancelled or it never got to ask; one that has not ended has a job
    that waits, or is about to begin another try. A job that was called off, for its try was over, may have
    been completed all the same.
    """
    called_off = {
        event.job for event in evidence.events if event.event == "told_to_yield" and event.code == "cancel"
    }
    of_task: dict[str, list[JobRow]] = defaultdict(list)
    for job in sorted(evidence.jobs, key=lambda entry: entry.id):
        of_task[job.task].append(job)
    violations = []
    for task in evidence.tasks:
        jobs = of_task[task.name]
        completed = [job for job in jobs if job.state == "completed"]
        words = f"task {task.name} is {task.state} in try {task.try_number}"
        if task.state == "success" and not completed:
            violations.append(Violation(f"{words}, but none of its jobs was completed", _lines(task, *jobs)))
        if len([job for job in completed if job.id not in called_off]) > 1:
            violations.append(
                Violation(f"{words}, {len(completed)} of its jobs were completed", _lines(*jobs))
            )
        if completed and task.state != "success":
            violations.append(Violation(f"{words}, but its job was completed", _lines(task, *jobs)))
        if task.state in ("failed", "upstream_failed") and jobs and jobs[-1].state != "cancelled":
            violations.append(
                Violation(f"{words}, but its last job is {jobs[-1].state}", _lines(task, *jobs))
            )
    return violations


def no_process_left(evidence: Evidence) -> list[Violation]:
    """After the end nothing of the run is left on the machine."""
    return [Violation(f"left over: {words}") for words in evidence.left_over]


INVARIANTS: dict[str, Callable[[Evidence], list[Violation]]] = {
    check.__name__: check
    for check in (
        no_gpu_granted_twice,
        no_gpu_used_twice,
        gpus_used_only_while_granted,
        every_job_is_at_rest,
        no_job_failed_by_a_kill,
        no_result_of_an_old_epoch,
        no_finished_step_redone,
        no_step_left_out,
        charges_equal_held_time,
        outages_cost_nothing,
        tasks_agree_with_their_jobs,
        no_process_left,
    )
}


def check_all(evidence: Evidence) -> dict[str, list[Violation]]:
    """Every invariant by name, with what breaks it."""
    return {name: check(evidence) for name, check in INVARIANTS.items()}
