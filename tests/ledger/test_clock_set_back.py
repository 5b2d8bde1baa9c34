"""The machine's clock jumps back: nothing lasts an hour longer for it, and nothing stands still."""

from __future__ import annotations

from sqlalchemy import update
from tests.builders.ledger import Bench, events

from emep.ledger.planning.planner import LOCK_NAME, LOCK_SECONDS, Planner
from emep.ledger.planning.runner import Runner
from emep.ledger.store.tables import Lock
from emep.wire.base import JobState

HOUR = 3600.0


def test_a_lease_whose_holder_is_dead_runs_out_within_a_minute(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    bench.clock.advance(-HOUR)
    bench.ledger.housekeeping.tick()

    bench.quiet(80)

    assert bench.job(job).state is JobState.PENDING
    assert ("requeued", "lease_expired") in events(bench, job)


def test_what_was_told_to_yield_is_killed_after_its_grace(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    bench.ledger.jobs.cancel(job.id, actor="alice")
    bench.clock.advance(-HOUR)
    bench.ledger.housekeeping.tick()

    bench.clock.advance(bench.policy.preemption.grace_period + 1)

    assert bench.beat(job).directive.value == "abort"


def test_the_lock_of_a_dead_planner_is_taken_over(bench: Bench) -> None:
    bench.node()
    bench.plan()
    with bench.engine.begin() as connection:
        dead = {"holder": "dead", "expires_at": bench.clock.now + LOCK_SECONDS}
        connection.execute(update(Lock).where(Lock.name == LOCK_NAME).values(**dead))
    bench.clock.advance(-HOUR)

    assert Planner(bench.ledger, "next").cycle() is not None


def test_jobs_that_wait_are_planned_again(bench: Bench) -> None:
    bench.node()
    bench.submit(gpu_count=4)
    bench.submit(gpu_count=4)
    runner = Runner(bench.ledger, bench.planner)
    while runner.needs_plan():
        runner.step()
    bench.clock.advance(-HOUR)

    assert runner.needs_plan()


def test_servers_whose_clocks_differ_by_seconds_do_not_keep_dead_leases_alive(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    for _ in range(45):
        bench.clock.advance(4)
        bench.report("n0")
        bench.ledger.housekeeping.tick()
        bench.clock.advance(-2)  # the other server
        bench.ledger.housekeeping.tick()

    assert bench.job(job).state is not JobState.RUNNING
    assert [name for name, _ in events(bench)].count("control_plane_back") == 1
