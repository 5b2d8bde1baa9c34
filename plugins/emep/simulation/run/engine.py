"""The event loop: virtual time around the very same ``plan`` that production runs.

At each instant with events, the loop carries out all of them (ends first, which frees GPUs; then failures,
then arrivals), and then calls ``plan``. Its decisions may cause more events at the same instant (a victim
that exits at once), which are carried out in the same way before time goes on. There is no clock and no
randomness: the same input gives the same output to the byte.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from enum import IntEnum

from emep.policy.model import Policy
from emep.scheduling.model import Node, Reservation, Snapshot
from emep.scheduling.plan import plan
from emep.simulation.read.failures import Failure
from emep.simulation.read.jobs import JobSpec
from emep.simulation.run.health import ClusterHealth
from emep.simulation.run.recording import Outcome, Recording, State
from emep.simulation.run.runs import instant
from emep.simulation.run.schedulers import Scheduler
from emep.simulation.run.workload import Workload
from emep.wire.units import format_duration

Progress = Callable[[int, int, float], None]
"""Called with jobs ended, jobs in all, virtual time."""

_SAME_INSTANT_LIMIT = 10_000
"""Rounds of planning at one instant after which the scheduler is going in circles."""


class _Kind(IntEnum):
    """Events in the order in which those of one instant are carried out."""

    END = 0
    EXIT = 1
    FAILURE = 2
    SUBMIT = 3
    WAKE = 4
    EXPIRE = 5


class Simulation:
    """One replay of a workload on a cluster under a policy."""

    def __init__(
        self,
        nodes: Sequence[Node],
        specs: Sequence[JobSpec],
        policy: Policy,
        scheduler: Scheduler,
        *,
        failures: Sequence[Failure] = (),
        progress: Progress | None = None,
    ) -> None:
        """``policy`` must be the variant ``for_simulation``: without limits of queues that no file names."""
        self._policy = policy
        self._scheduler = scheduler
        self._progress = progress
        self._health = ClusterHealth(nodes)
        self.recording = Recording(
            outcomes=[Outcome(spec) for spec in specs],
            total_gpus=sum(len(node.gpus) for node in nodes),
        )
        self._work = Workload(specs, policy, nodes, scheduler, self.recording)
        self._failures = list(failures)
        self._reserved: dict[str, float] = {}
        self._heap: list[tuple[float, int, int, int, int]] = []
        self._sequence = 0
        self._ended = 0

    def run(self) -> Recording:
        """Replay everything; returns what happened. Can be called once."""
        for number, outcome in enumerate(self.recording.outcomes):
            self._at(outcome.spec.job.submit_time, _Kind.SUBMIT, number)
        for number, failure in enumerate(self._failures):
            self._at(failure.time, _Kind.FAILURE, number)
        heap, last, rounds = self._heap, -1.0, 0
        while heap and self._ended < len(self.recording.outcomes):
            now = heap[0][0]
            rounds = rounds + 1 if now == last else 0
            if rounds > _SAME_INSTANT_LIMIT:
                raise RuntimeError(f"the scheduler goes in circles at {now:g} s: no decision ends it")
            last = now
            self._happen(now)
            self._plan(now)
            self._work.sample(now)
        if self._work.pending:
            self._say_why_they_wait(last)
        self._work.close(last)
        return self.recording

    def _say_why_they_wait(self, now: float) -> None:
        """Record the scheduler's reasons for the jobs that still wait when no event is left."""
        snapshot = Snapshot(
            nodes=self._health.nodes,
            pending=tuple(self._work.pending.values()),
            allocations=tuple(self._work.allocations.values()),
            usage=self._work.look(now),
        )
        for waiting in plan(snapshot, self._policy, now).waiting:
            outcome = self.recording.outcomes[self._work.number(waiting.job_id)]
            outcome.reason = "; ".join(reason.text for reason in waiting.reasons)

    # ---- time ----------------------------------------------------------------------------------------------

    def _at(self, time: float, kind: _Kind, number: int, epoch: int = 0) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (instant(time), kind, self._sequence, number, epoch))

    def _happen(self, now: float) -> None:
        """Carry out everything of this instant but expiries: they come after a last look by the scheduler."""
        heap = self._heap
        while heap and heap[0][0] <= now and heap[0][1] != _Kind.EXPIRE:
            _, kind, _, number, epoch = heapq.heappop(heap)
            if kind == _Kind.END:
                self._end(number, epoch, now)
            elif kind == _Kind.EXIT:
                self._exit(number, epoch, now)
            elif kind == _Kind.FAILURE:
                self._fail(self._failures[number], now)
            elif kind == _Kind.SUBMIT:
                self._work.submit(number, now)
                self._watch(number, now)
            # WAKE only makes the scheduler look again.

    def _expire(self, now: float) -> bool:
        """Expire jobs that still wait past their time to live; return whether there were any."""
        heap, found = self._heap, False
        while heap and heap[0][0] <= now and heap[0][1] == _Kind.EXPIRE:
            _, _, _, number, epoch = heapq.heappop(heap)
            if self._work.waits_since(number) == epoch:
                ttl = self._policy.queues[self.recording.outcomes[number].spec.job.queue].pending_ttl or 0.0
                self._finish(number, State.EXPIRED, f"pending longer than {format_duration(ttl)}", now)
                found = True
        return found

    # ---- planning ------------------------------------------------------------------------------------------

    def _plan(self, now: float) -> None:
        self._ask(now)
        heap = self._heap
        # Something else may come at this very instant first (an exit that was just decided).
        if heap and heap[0][0] <= now and heap[0][1] == _Kind.EXPIRE and self._expire(now):
            self._ask(now)

    def _ask(self, now: float) -> None:
        if not self._work.pending:
            return
        decided = self._scheduler.plan(self._health.nodes, now, self._work.look(now))
        record = self.recording
        record.decisions += len(decided.starts) + len(decided.preemptions) + len(decided.rejections)
        for rejected in decided.rejections:
            self._finish(self._work.number(rejected.job_id), State.REJECTED, rejected.message, now)
        for preempt in decided.preemptions:
            number = self._work.number(preempt.job_id)
            run = self._work.tell_to_yield(number, now, preempt.for_job, preempt.reason)
            if run is not None and run.yields_at is not None:
                self._at(run.yields_at, _Kind.EXIT, number, run.epoch)
        for start in decided.starts:
            number = self._work.number(start.job_id)
            run = self._work.start(number, start.placement, start.reason, now)
            self._at(run.ends_at, _Kind.END, number, run.epoch)
            self._reserved.pop(start.job_id, None)
            if self._policy.preemption.min_runtime > 0:
                self._at(now + self._policy.preemption.min_runtime, _Kind.WAKE, number)
        self._note_reservations(decided.reservations, now)

    def _note_reservations(self, reservations: Sequence[Reservation], now: float) -> None:
        for reservation in reservations:
            at = instant(reservation.at)
            if self._reserved.get(reservation.job_id) != at:
                self._reserved[reservation.job_id] = at
                self.recording.reserved(now, reservation.job_id, reservation.placement.gpus, at)

    # ---- what happens --------------------------------------------------------------------------------------

    def _end(self, number: int, epoch: int, now: float) -> None:
        run = self._work.run_of(number, epoch)
        if run is None:
            return
        self._work.stop(number, now)
        if run.over_limit:
            limit = format_duration(run.allocation.job.max_duration or 0.0)
            self._finish(number, State.FAILED, f"killed at its max_duration of {limit}", now)
        else:
            self._work.learn(number)
            self._finish(number, State.COMPLETED, "", now)

    def _exit(self, number: int, epoch: int, now: float) -> None:
        run = self._work.run_of(number, epoch)
        if run is None:
            return
        self._work.stop(number, now)
        self._work.keep(number, run.keeps, run.told_done)
        if run.counts_as_infrastructure:
            self._requeue_or_bury(number, "unhealthy GPU", now)
        else:
            self._work.requeue(number, now, "preempted", preempted=True)
            self._watch(number, now)

    def _fail(self, failure: Failure, now: float) -> None:
        self._health.apply(failure)
        if not failure.down:
            return
        for number in self._work.runs_on(failure.node, failure.gpu):
            if failure.gpu is None:
                run = self._work.stop(number, now)
                self._work.keep(number, run.kept_without_warning(now), run.done_until(now))
                self._requeue_or_bury(number, f"node {failure.node} lost", now)
                continue
            yielding = self._work.tell_to_yield(number, now, None, "unhealthy GPU")
            if yielding is not None and yielding.yields_at is not None:
                self._at(yielding.yields_at, _Kind.EXIT, number, yielding.epoch)

    def _requeue_or_bury(self, number: int, reason: str, now: float) -> None:
        retries = self._policy.retries
        count = self._work.count_infrastructure(number)
        if count > retries.max_infrastructure:
            text = f"{reason}, and its {retries.max_infrastructure} requeues for infrastructure are used up"
            self._finish(number, State.DEAD, text, now)
            return
        ready = instant(now + min(retries.backoff * 2 ** (count - 1), retries.max_backoff))
        self._work.requeue(number, now, reason, not_before=ready)
        self._at(ready, _Kind.WAKE, number)
        self._watch(number, now)

    def _watch(self, number: int, now: float) -> None:
        """A job entered the queue: note when it expires and when it counts as starving."""
        rules = self._policy.queues.get(self.recording.outcomes[number].spec.job.queue)
        if rules is not None and rules.pending_ttl is not None:
            self._at(now + rules.pending_ttl, _Kind.EXPIRE, number, self._work.waits_since(number))
        bound = self._policy.starvation_bound
        if bound and self._policy.order != "submit_time":
            self._at(
                max(now, self.recording.outcomes[number].spec.job.submit_time + bound), _Kind.WAKE, number
            )

    def _finish(self, number: int, state: State, reason: str, now: float) -> None:
        self._work.finish(number, state, reason, now)
        self._reserved.pop(self.recording.outcomes[number].spec.job.id, None)
        self._ended += 1
        if self._progress is not None:
            self._progress(self._ended, len(self.recording.outcomes), now)
