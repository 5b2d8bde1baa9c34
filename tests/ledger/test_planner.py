"""The planner's cycle around the pure core: decisions and effects together, one planner at a time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError
from tests.builders.ledger import Bench, events, holders

from emep.ledger.planning.planner import LOCK_SECONDS, Planner
from emep.ledger.planning.runner import Runner
from emep.ledger.store.database import Transaction
from emep.ledger.store.tables import Allocation, AllocationGpu, Clock, Lock
from emep.policy import Policy
from emep.scheduling.model import Plan, Snapshot
from emep.scheduling.plan import plan
from emep.wire.base import JobState


class Interrupted(Exception):
    """A crash in the middle."""


def test_a_grant_is_whole(bench: Bench) -> None:
    bench.node(gpus=4)
    job = bench.submit(gpu_count=4)
    bench.plan()
    granted = bench.job(job)
    assert (granted.state, granted.epoch, granted.allocation_id) == (JobState.STARTING, 1, f"{job.id}-1")
    assert [gpu.uuid for gpu in granted.gpus] == [f"GPU-n0-{i}" for i in range(4)]
    assert set(holders(bench).values()) == {granted.allocation_id}
    assert ("granted", "") in events(bench, job)


def test_only_what_fits_starts_and_the_rest_says_why(bench: Bench) -> None:
    bench.node(gpus=4)
    bench.submit(gpu_count=3)
    bench.clock.advance(1)
    waiting = bench.submit(gpu_count=2)
    bench.plan()
    told = bench.job(waiting)
    assert told.state is JobState.PENDING
    assert "needs 2 GPUs" in told.reason
    assert ("waiting", "insufficient_gpus,no_topology_domain") in events(bench, waiting)
    before = len(events(bench))
    bench.plan()
    assert len(events(bench)) == before, "nothing new to say"


def test_a_job_cancelled_while_the_plan_was_made_is_not_started(bench: Bench) -> None:
    bench.node(gpus=4)
    job, other = bench.submit(gpu_count=2), bench.submit(gpu_count=2)

    def plan_and_cancel(snapshot: Snapshot, policy: Policy, now: float) -> Plan:
        decisions = plan(snapshot, policy, now)
        bench.ledger.jobs.cancel(job.id, actor="alice")
        return decisions

    Planner(bench.ledger, "p", plan_and_cancel).cycle()
    assert bench.job(job).state is JobState.CANCELLED
    assert bench.job(other).state is JobState.STARTING
    assert len(holders(bench)) == 2


def test_a_gpu_that_falls_ill_while_the_plan_was_made_is_not_granted(bench: Bench) -> None:
    bench.node(gpus=1)
    job = bench.submit()

    def plan_and_fail(snapshot: Snapshot, policy: Policy, now: float) -> Plan:
        decisions = plan(snapshot, policy, now)
        for _ in range(3):
            bench.report("n0", bad=(0,))
        return decisions

    Planner(bench.ledger, "p", plan_and_fail).cycle()
    assert bench.job(job).state is JobState.PENDING
    assert holders(bench) == {}


def test_a_crash_in_the_middle_leaves_nothing_half_done(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.node(gpus=4)
    first, second = bench.submit(), bench.submit()
    granted: list[Any] = []
    original = Transaction.emit

    def crash_at_the_second(tx: Transaction, event: str, **rest: Any) -> None:
        if event == "granted":
            granted.append(rest["job"])
        if len(granted) == 2:
            raise Interrupted
        original(tx, event, **rest)

    monkeypatch.setattr(Transaction, "emit", crash_at_the_second)
    with pytest.raises(Interrupted):
        bench.planner.cycle()
    assert {bench.job(first).state, bench.job(second).state} == {JobState.PENDING}
    assert holders(bench) == {}
    monkeypatch.undo()
    bench.plan()
    assert {bench.job(first).state, bench.job(second).state} == {JobState.STARTING}


def test_while_one_plans_another_does_not(bench: Bench) -> None:
    bench.node()
    bench.submit()
    outcome: list[object] = []

    def plan_slowly(snapshot: Snapshot, policy: Policy, now: float) -> Plan:
        outcome.append(Planner(bench.ledger, "other").cycle())
        return plan(snapshot, policy, now)

    assert Planner(bench.ledger, "first", plan_slowly).cycle() is not None
    assert outcome == [None]


def test_a_dead_planners_lock_runs_out_and_what_it_still_decides_is_refused(bench: Bench) -> None:
    bench.node(gpus=1)
    job = bench.submit()
    other = Planner(bench.ledger, "other")

    def stall(snapshot: Snapshot, policy: Policy, now: float) -> Plan:
        decisions = plan(snapshot, policy, now)
        bench.clock.advance(LOCK_SECONDS + 1)
        bench.report("n0")
        assert other.cycle() is not None
        return decisions

    assert Planner(bench.ledger, "stalled", stall).cycle() is None
    assert bench.job(job).epoch == 1
    assert list(holders(bench).values()) == [f"{job.id}-1"]
    with bench.database.read() as session:
        assert session.scalars(select(Lock)).one().expires_at == 0.0


def test_racing_planners_grant_every_gpu_once(bench: Bench) -> None:
    for number in range(4):
        bench.node(f"n{number}", gpus=4)
    for _ in range(24):
        bench.submit()
    planners = [Planner(bench.ledger, f"p{number}") for number in range(4)]
    barrier = threading.Barrier(4)

    def run(planner: Planner) -> int:
        barrier.wait()
        return sum(planner.cycle() is not None for _ in range(5))

    with ThreadPoolExecutor(4) as pool:
        cycles = sum(pool.map(run, planners))
    assert cycles >= 1
    bench.plan()
    assert len(holders(bench)) == 16
    assert bench.ledger.jobs.page(states=[JobState.STARTING]).total == 16
    assert bench.ledger.jobs.page(states=[JobState.PENDING]).total == 8


def test_the_database_itself_refuses_a_gpu_held_twice(bench: Bench) -> None:
    bench.node(gpus=1)
    job = bench.running()
    with pytest.raises(IntegrityError):
        bench.database.write(
            lambda tx: tx.session.execute(
                insert(AllocationGpu), [{"node": "n0", "gpu_index": 0, "allocation_id": job.allocation_id}]
            )
        )


def test_a_planner_that_would_grant_a_held_gpu_carries_out_nothing(bench: Bench) -> None:
    bench.node(gpus=2)
    holder = bench.running()
    job = bench.submit()

    def blind(snapshot: Snapshot, policy: Policy, now: float) -> Plan:
        return plan(Snapshot(snapshot.nodes, snapshot.pending), policy, now)

    with pytest.raises(IntegrityError):
        Planner(bench.ledger, "blind", blind).cycle()
    assert bench.job(job).state is JobState.PENDING
    assert list(holders(bench).values()) == [holder.allocation_id]
    bench.plan()
    assert bench.job(job).state is JobState.STARTING


def test_a_plan_is_due_when_the_state_has_changed_and_not_otherwise(bench: Bench) -> None:
    runner = Runner(bench.ledger, bench.planner)
    bench.node(gpus=1)
    job = bench.submit()
    assert runner.needs_plan()
    assert runner.step()
    assert not runner.needs_plan()
    bench.poll("n0", bench.job(job))
    bench.beat(bench.job(job))
    assert not runner.needs_plan(), "a first heartbeat changes nothing for anybody else"
    waiting = bench.submit()
    assert runner.needs_plan()
    runner.step()
    bench.complete(bench.job(job))
    assert runner.needs_plan()
    runner.step()
    assert bench.job(waiting).state is JobState.STARTING


def test_a_backoff_that_ends_is_planned_for(bench: Bench) -> None:
    runner = Runner(bench.ledger, bench.planner)
    bench.node(gpus=1)
    job = bench.running()
    bench.complete(job, 75)
    runner.step()
    assert bench.job(job).state is JobState.PENDING
    bench.quiet(31)
    assert runner.needs_plan()
    runner.step()
    assert bench.job(job).state is JobState.STARTING


def test_the_runners_thread_plans_what_is_submitted(bench: Bench) -> None:
    """In real time: the clock of this ledger is the machine's."""
    import time

    bench.database.clock = time.time
    granted = threading.Event()
    runner = Runner(bench.ledger, bench.planner)
    bench.database.on_commit(
        lambda: granted.set() if bench.ledger.jobs.page(states=[JobState.STARTING]).total else None
    )
    runner.start()
    try:
        bench.node(gpus=1)
        bench.submit()
        assert granted.wait(30)
        assert runner.is_alive
        age = runner.last_plan_age()
        assert age is not None
        assert age < 30
    finally:
        runner.stop()
    assert not runner.is_alive


def test_a_defect_of_the_core_does_not_end_scheduling(bench: Bench) -> None:
    import time

    bench.database.clock = time.time
    recovered = threading.Event()
    failures: list[int] = []

    def fail_once(snapshot: Snapshot, policy: Policy, now: float) -> Plan:
        if not failures:
            failures.append(1)
            raise ZeroDivisionError
        recovered.set()
        return plan(snapshot, policy, now)

    runner = Runner(bench.ledger, Planner(bench.ledger, "p", fail_once))
    runner.start()
    try:
        bench.submit()
        assert recovered.wait(30)
    finally:
        runner.stop()


def test_thinking_changes_nothing(bench: Bench) -> None:
    bench.node(gpus=1)
    job = bench.submit()
    before = events(bench)
    _, decisions = bench.planner.think()
    assert [start.job_id for start in decisions.starts] == [job.id]
    assert events(bench) == before
    assert bench.job(job).state is JobState.PENDING


def test_the_planners_clock_row_is_kept(bench: Bench) -> None:
    bench.node()
    bench.submit()
    cycle = bench.plan()
    with bench.database.read() as session:
        clock = session.scalars(select(Clock)).one()
    assert (clock.planned_at, clock.planned_dirty) == (cycle.seen.taken_at, cycle.seen.dirty)


def test_a_fenced_transaction_rolls_back(bench: Bench) -> None:
    bench.node(gpus=1)
    bench.submit()

    def steal(snapshot: Snapshot, policy: Policy, now: float) -> Plan:
        bench.database.write(
            lambda tx: tx.session.execute(update(Lock).values(fence=Lock.fence + 1, holder="x"))
        )
        return plan(snapshot, policy, now)

    assert Planner(bench.ledger, "victim", steal).cycle() is None
    with bench.database.read() as session:
        assert session.scalars(select(Allocation)).all() == []


def test_what_the_same_user_s_work_took_before_is_the_estimate_of_what_waits(bench: Bench) -> None:
    bench.node(gpus=4)
    for seconds in (100, 20, 40):
        job = bench.running(gpu_count=2, job_type="merge")
        bench.alive(seconds, job)
        bench.complete(job)
    alike = bench.submit(gpu_count=2, job_type="merge", max_duration=3600)
    limited = bench.submit(gpu_count=2, job_type="merge", max_duration=10)
    bench.submit(gpu_count=1, job_type="merge")
    bench.submit(gpu_count=2, job_type="evaluate")
    bench.submit(by="bob", gpu_count=2, job_type="merge")
    seen = {job.id: job.estimated_duration for job in bench.planner.read().snapshot.pending}
    assert seen[alike.id] == pytest.approx(30, abs=1)
    assert seen[limited.id] == 10
    assert [value for job, value in seen.items() if job not in (alike.id, limited.id)] == [None] * 3


@pytest.mark.parametrize("saved_late", [0, 1])
def test_the_victim_is_the_one_that_loses_the_least_work_since_its_last_checkpoint(
    bench: Bench, saved_late: int
) -> None:
    """Both began at the same moment; what their supervisors said of checkpoints decides."""
    bench.node(gpus=4)
    fields = {"gpu_count": 2, "priority": "low", "preemptible": True, "checkpoint_interval": "30s"}
    jobs = [bench.running(**fields) for _ in range(2)]
    bench.plan()
    for seconds, index in ((40, 1 - saved_late), (200, saved_late)):
        bench.alive(seconds, *jobs)
        time = datetime.fromtimestamp(bench.clock.now, UTC).isoformat()
        bench.beat(jobs[index], checkpoint={"step": seconds, "uri": "file:///c", "time": time})
        bench.plan()
    bench.submit(gpu_count=2, priority="critical", roles=("Admin",))
    bench.plan()
    states = [bench.job(job).state for job in jobs]
    assert states[saved_late] is JobState.YIELDING
    assert states[1 - saved_late] is JobState.RUNNING
